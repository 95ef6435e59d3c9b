/* What descriptors do: each type against a model, bad ones, chains, calls, cancellation, and indices that wrap.
 * No threads: rounds are run by hand.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_sdma.c && ./a.out [seed]
 */
#include "rigs.h"
#include "st_foreign_own.h"

static uint64_t dice;

/* ---- data against a model -------------------------------------------------------------- */

enum { AREA = 16384 }; /* bytes of each of two dies that random descriptors work on */

struct world {
    struct rig *r;
    struct st_lane lane;
    uint8_t *area[2];
    uint8_t model[2][AREA] __attribute__((aligned(64)));
};

static uint8_t *in_model(struct world *w, uint64_t va)
{
    uint32_t die = va < VA(w->area[0]) || va >= VA(w->area[0]) + AREA;

    return w->model[die] + (va - VA(w->area[die]));
}

/* Somewhere in either area, `bytes` long, a multiple of `align`. */
static uint64_t somewhere(struct world *w, uint64_t bytes, uint64_t align)
{
    CHECK(bytes <= AREA);
    return VA(w->area[next(&dice) % 2]) + next(&dice) % (AREA - bytes + 1) / align * align;
}

static int overlaps(uint64_t a, uint64_t na, uint64_t b, uint64_t nb) { return a < b + nb && b < a + na; }

/* Executes one descriptor as a chain; its status.  Memory must be as the model is then. */
static int execute(struct world *w, struct st_descriptor d)
{
    uint64_t at;

    st_sdma_seal(&w->r->d->ctx[0], &d);
    at = rig_put(w->r, 0, &w->lane, &d, 1);
    rig_run(w->r);
    CHECK(rig_head(&w->lane) == at + 1);
    return (int)rig_status(&w->lane, at);
}

static void same(struct world *w)
{
    CHECK(memcmp(w->area[0], w->model[0], AREA) == 0);
    CHECK(memcmp(w->area[1], w->model[1], AREA) == 0);
}

static void scramble(struct world *w)
{
    for (uint32_t k = 0; k < 2; k++) {
        for (uint64_t i = 0; i < AREA; i++)
            w->model[k][i] = (uint8_t)(next(&dice) % 3 ? next(&dice) % 4 : next(&dice));
        memcpy(w->area[k], w->model[k], AREA);
    }
}

static uint64_t some_bytes(void)
{
    switch (next(&dice) % 4) {
    case 0: return next(&dice) % 3;
    case 1: return next(&dice) % 130;
    default: return next(&dice) % (AREA / 2);
    }
}

static void random_copy(struct world *w)
{
    uint64_t n = some_bytes(), src = somewhere(w, n, 1), dst = next(&dice) % 8 ? somewhere(w, n, 1) : src;
    struct st_descriptor d = make_copy((void *)(uintptr_t)dst, (void *)(uintptr_t)src, n);
    int wrong = n && src != dst && overlaps(src, n, dst, n);

    d.flags = next(&dice) % 2 ? ST_SDMA_NT : 0;
    CHECK_IS(execute(w, d), wrong ? ST_EINVAL : ST_OK);
    if (!wrong)
        memmove(in_model(w, dst), in_model(w, src), n);
}

static void random_fill(struct world *w)
{
    uint64_t n = some_bytes(), dst = somewhere(w, n, 1), value = next(&dice);
    uint8_t *to = in_model(w, dst);

    CHECK_IS(execute(w, (struct st_descriptor){.type = ST_SDMA_FILL, .dst = dst, .bytes = n, .value = value,
                                               .src = next(&dice)}), ST_OK);
    for (uint64_t i = 0; i < n; i++)
        to[i] = (uint8_t)(value >> i % 8 * 8);
}

/* dtype and op may be anything; what they may not be must be said. */
static int reducible(struct st_descriptor *d, uint32_t dtype, uint32_t op)
{
    uint64_t size = (uint64_t)st_dtype_size((int)dtype);

    d->dtype = (uint8_t)dtype;
    d->op = (uint8_t)op;
    if (dtype == ST_RAW || dtype >= ST_NDTYPES || op >= ST_NOPS)
        return ST_EINVAL;
    d->bytes = d->bytes / size * size;
    return st_reduce_supported((int)dtype, (int)op) ? ST_OK : ST_EUNSUPPORTED;
}

static void random_reduce(struct world *w, uint32_t dtype, uint32_t op)
{
    struct st_descriptor d = {.type = next(&dice) % 2 ? ST_SDMA_REDUCE : ST_SDMA_ACCUMULATE, .bytes = some_bytes()};
    int wanted = reducible(&d, dtype, op);
    uint64_t n = d.bytes, width = 1;

    if (wanted == ST_OK && d.type == ST_SDMA_ACCUMULATE) {
        width = st_accumulate_width((int)dtype, (int)op);
        wanted = width ? ST_OK : ST_EUNSUPPORTED;
        width = width && next(&dice) % 4 ? width : 1;
    }
    d.src = somewhere(w, n, 1);
    d.dst = next(&dice) % 8 ? somewhere(w, n, width) : d.src;
    d.flags = next(&dice) % 2 ? ST_SDMA_NT : 0;
    if (wanted == ST_OK && d.type == ST_SDMA_ACCUMULATE && d.dst % st_accumulate_width((int)dtype, (int)op))
        wanted = ST_EINVAL;
    if (wanted == ST_OK && n && d.src != d.dst && overlaps(d.src, n, d.dst, n))
        wanted = ST_EINVAL;
    CHECK_IS(execute(w, d), wanted);
    if (wanted == ST_OK && n) {
        uint8_t *dst = in_model(w, d.dst), *src = in_model(w, d.src);
        const void *both[2] = {dst, src};
        void *to = dst;
        uint64_t count = n / (uint64_t)st_dtype_size((int)dtype);

        if (d.type == ST_SDMA_REDUCE)
            CHECK_IS(st_reduce((int)dtype, (int)op, &to, 1, both, 2, count, 0), ST_OK);
        else
            CHECK_IS(st_accumulate((int)dtype, (int)op, dst, src, count), ST_OK);
    }
}

enum { MOST_LISTED = 7 };

static void random_list(struct world *w, struct st_sdma_operand *o, uint32_t dtype, uint32_t op)
{
    uint32_t nsrc = 1 + (uint32_t)(next(&dice) % 4), ndst = 1 + (uint32_t)(next(&dice) % 3), total = 0, n = nsrc + ndst;
    struct st_descriptor d = {.type = ST_SDMA_REDUCE, .flags = ST_SDMA_LIST, .src = VA(o), .bytes = next(&dice) % 700};
    int wanted = reducible(&d, dtype, op), any = 0;
    uint64_t partial[2] = {0, 0}, bytes[MOST_LISTED], i, k, size;
    void *at[MOST_LISTED];

    if (next(&dice) % 3 == 0)
        total = 1 + (uint32_t)(next(&dice) % 9);
    for (i = 0; i < n; i++) {
        o[i].flags = next(&dice) % 3 == 0 ? ST_OPERAND_PARTIAL : 0;
        partial[i >= nsrc] |= (uint64_t)o[i].flags << (i >= nsrc ? i - nsrc : i);
        any |= (int)o[i].flags;
        size = wanted == ST_OK && o[i].flags ? st_partial_bytes((int)dtype, (int)op) : 0;
        bytes[i] = size ? d.bytes / (uint64_t)st_dtype_size((int)dtype) * size : d.bytes;
        o[i].va = i && next(&dice) % 6 == 0 ? o[next(&dice) % i].va : somewhere(w, bytes[i], 1);
        if (o[i].va - VA(w->area[0]) > AREA - bytes[i] && o[i].va - VA(w->area[1]) > AREA - bytes[i])
            o[i].va = somewhere(w, bytes[i], 1);
        at[i] = in_model(w, o[i].va);
        o[i].generation = st_sdma_generation(&w->r->d->ctx[0], o[i].va, bytes[i]);
    }
    for (i = nsrc; i < n; i++) /* a target meets nothing, but may be a source */
        for (k = 0; k < n && wanted == ST_OK && d.bytes; k++)
            if (k != i && overlaps(o[i].va, bytes[i], o[k].va, bytes[k]) &&
                (k >= nsrc || o[i].va != o[k].va || bytes[i] != bytes[k]))
                wanted = ST_EINVAL;
    d.value = ST_SDMA_OPERANDS(nsrc, ndst, total);
    CHECK_IS(execute(w, d), wanted);
    if (wanted != ST_OK || !d.bytes)
        return;
    k = d.bytes / (uint64_t)st_dtype_size((int)dtype);
    if (any || total)
        CHECK_IS(st_reduce_partial((int)dtype, (int)op, at + nsrc, (int)ndst, &partial[1], (const void *const *)at,
                                   (int)nsrc, &partial[0], (int)total, k), ST_OK);
    else
        CHECK_IS(st_reduce((int)dtype, (int)op, at + nsrc, (int)ndst, (const void *const *)at, (int)nsrc, k, 0), ST_OK);
}

static void test_data(int rounds)
{
    struct world *w = calloc(1, sizeof *w);
    struct st_sdma_operand *o;

    CHECK(w);
    w->r = rig_open(2, 16, 0);
    w->lane = rig_ring(w->r, 0, 8, next(&dice));
    w->area[0] = rig_take(w->r, 0, AREA);
    w->area[1] = rig_take(w->r, 1, AREA);
    o = rig_take(w->r, 1, MOST_LISTED * sizeof *o);
    scramble(w);
    while (rounds--) {
        random_copy(w);
        random_fill(w);
        for (uint32_t dtype = 0; dtype <= ST_NDTYPES; dtype++)
            for (uint32_t op = 0; op <= ST_NOPS; op++) {
                random_reduce(w, dtype, op);
                random_list(w, o, dtype, op);
                same(w);
            }
        scramble(w);
    }
    CHECK(w->r->e[0]->count.bytes > 0 && w->r->e[0]->count.failed == w->lane.ring->failed);
    rig_close(w->r);
    free(w);
}

/* ---- bad descriptors --------------------------------------------------------------------- */

struct bad {
    const char *why;
    struct st_descriptor d;
    int status;
};

/* A chain of the bad one, data, flags and a notification; then one that is right. */
static void expect_bad(struct rig *r, struct st_lane *lane, const struct bad *b, uint64_t *flags, uint8_t *data)
{
    struct st_engine *e = r->e[0];
    uint32_t event = st_event_take(e, NULL, NULL), good = st_event_take(e, NULL, NULL);
    uint64_t failed = lane->ring->failed, at, k;
    struct st_descriptor chain[6];

    CHECK(event && good);
    flags[0] = flags[1] = flags[2] = 5;
    memset(data, 1, 64);
    memset(data + 64, 2, 64);
    chain[0] = with_event(b->d, event);
    chain[1] = with_event(make_copy(data, data + 64, 64), event);
    chain[2] = with_event(make_write(&flags[0], 7), event);
    chain[3] = with_event(with_flags(make_write(&flags[1], 7), ST_SDMA_SILENT), event);
    chain[4] = with_event(make_add(&flags[2], 7), event);
    chain[5] = make_notify(event);
    at = rig_put(r, 0, lane, chain, 6);
    rig_run(r);
    if ((int)rig_status(lane, at) != b->status)
        fprintf(stderr, "%s\n", b->why);
    CHECK_IS(rig_status(lane, at), b->status);
    for (k = 1; k < 5; k++)
        CHECK_IS(rig_status(lane, at + k), ST_ECANCELED);
    CHECK_IS(rig_status(lane, at + 5), b->status);
    CHECK(data[0] == 1 && data[63] == 1);
    CHECK(flags[0] == st_flag_poisoned(5, b->status) && flags[1] == 5 && flags[2] == flags[0]);
    CHECK(st_event_count(e, event) == 1 && st_event_status(e, event) == b->status);
    CHECK(e->events[event].index == at && e->events[event].ring == lane->index);
    CHECK(memcmp(&e->events[event].failed.src, &b->d.src, 32) == 0 && e->events[event].failed.type == b->d.type);
    CHECK(lane->ring->failed == failed + 1 && lane->ring->failed_index == at &&
          (int)lane->ring->failed_status == b->status);
    chain[0] = with_event(make_copy(data, data + 64, 64), good);
    chain[1] = with_event(make_write(&flags[0], 8), good);
    chain[2] = make_notify(good);
    rig_put(r, 0, lane, chain, 3);
    rig_run(r);
    CHECK(data[0] == 2 && data[63] == 2 && flags[0] == 8);
    CHECK(st_event_count(e, good) == 1 && st_event_status(e, good) == ST_OK);
    st_event_give(e, event);
    st_event_give(e, good);
}

/* Where bad ones point. */
struct places {
    struct st_descriptor old; /* reads pages that have been given back, and are something else by now */
    uint64_t unmapped, beyond, edge, world;
    uint64_t *flags, *far, *list;
    uint8_t *data;
    struct st_sdma_operand *o;
};

#define COPY_OF(to, from, n) {.type = ST_SDMA_COPY, .dst = (to), .src = (from), .bytes = (n)}
#define FLAG_AT(kind, at, ...) {.type = (kind), .dst = (at), .value = 1, __VA_ARGS__}
#define LIST_OF(first, operands, n) \
    {.type = ST_SDMA_REDUCE, .flags = ST_SDMA_LIST, .dtype = ST_I32, .op = ST_SUM, .src = VA(first), \
     .value = (operands), .bytes = (n)}

static void bad_data(struct rig *r, struct st_lane *lane, const struct places *p)
{
    const uint64_t all = ST_SDMA_OPERANDS(1, 1, 0), data = VA(p->data), unmapped = p->unmapped;
    const struct bad bad[] = {
        {"type 0", {0}, ST_EINVAL},
        {"type 12", {.type = 12}, ST_EINVAL},
        {"type 255", {.type = 255, .flags = 0xfe}, ST_EINVAL},
        {"source below the window", COPY_OF(data, 4096, 8), ST_EREG},
        {"source 0", COPY_OF(data, 0, 8), ST_EREG},
        {"source beyond the window", COPY_OF(data, p->beyond, 8), ST_EREG},
        {"source at the end of addresses", COPY_OF(data, UINT64_MAX - 7, 8), ST_EREG},
        {"source not mapped", COPY_OF(data, unmapped, 8), ST_EREG},
        {"target not mapped", COPY_OF(unmapped, data, 8), ST_EREG},
        {"source ends where nothing is", COPY_OF(data, p->edge, 16), ST_EREG},
        {"runs out of its segment", COPY_OF(data, p->beyond - ST_PAGE_BYTES, 2 * ST_PAGE_BYTES), ST_EREG},
        {"freed, and something else by now", p->old, ST_EREG},
        {"too long", COPY_OF(data, data + ST_SDMA_MOST, ST_SDMA_MOST + 1), ST_EINVAL},
        {"length that wraps", COPY_OF(data, data + 64, UINT64_MAX - 63), ST_EINVAL},
        {"fill of nothing", {.type = ST_SDMA_FILL, .dst = unmapped, .bytes = 1}, ST_EREG},
        {"dtype raw", {.type = ST_SDMA_REDUCE, .op = ST_SUM, .bytes = 8}, ST_EINVAL},
        {"dtype 255", {.type = ST_SDMA_ACCUMULATE, .dtype = 255, .op = ST_SUM, .bytes = 8}, ST_EINVAL},
        {"odd bytes", {.type = ST_SDMA_REDUCE, .dtype = ST_I32, .op = ST_SUM, .bytes = 6}, ST_EINVAL},
        {"max of complex", {.type = ST_SDMA_REDUCE, .dtype = ST_C64, .op = ST_MAX, .bytes = 8}, ST_EUNSUPPORTED},
        {"mean by accumulation", {.type = ST_SDMA_ACCUMULATE, .dtype = ST_F32, .op = ST_AVG, .bytes = 8}, ST_EUNSUPPORTED},
        {"no sources", LIST_OF(p->o, ST_SDMA_OPERANDS(0, 1, 0), 8), ST_EINVAL},
        {"no targets", LIST_OF(p->o, ST_SDMA_OPERANDS(1, 0, 0), 8), ST_EINVAL},
        {"sources without end", LIST_OF(p->o, ST_SDMA_OPERANDS(0xffff, 1, 0), 8), ST_EINVAL},
        {"targets without end", LIST_OF(p->o, ST_SDMA_OPERANDS(1, ST_MAX_DIES + 1, 0), 8), ST_EINVAL},
        {"list not mapped", LIST_OF(unmapped, all, 8), ST_EREG},
        {"list not aligned", LIST_OF(VA(p->o) + 4, all, 8), ST_EINVAL},
        {"operand not mapped", LIST_OF(&p->o[1], all, 8), ST_EREG},
        {"operand with flags", LIST_OF(&p->o[3], all, 8), ST_EINVAL},
        {"operand freed", LIST_OF(&p->o[4], all, 8), ST_EREG},
        {"two targets that are one", LIST_OF(&p->o[0], ST_SDMA_OPERANDS(1, 5, 0), 8), ST_EINVAL},
    };

    for (uint32_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_bad(r, lane, &bad[i], p->flags, p->data);
}

static void bad_flags(struct rig *r, struct st_lane *lane, const struct places *p)
{
    const uint64_t far = VA(p->far), unmapped = p->unmapped, list = VA(p->list);
    const struct bad bad[] = {
        {"flag not aligned", FLAG_AT(ST_SDMA_WRITE, far + 4), ST_EINVAL},
        {"flag not mapped", FLAG_AT(ST_SDMA_ADD, unmapped), ST_EREG},
        {"flag nowhere", FLAG_AT(ST_SDMA_WRITE, 0), ST_EREG},
        {"world's last word and beyond", FLAG_AT(ST_SDMA_WRITE, p->world, .flags = ST_SDMA_WORLD), ST_EREG},
        {"no offset in the world", FLAG_AT(ST_SDMA_ADD, UINT64_MAX - 7, .flags = ST_SDMA_WORLD), ST_EREG},
        {"odd offset in the world", FLAG_AT(ST_SDMA_ADD, 4, .flags = ST_SDMA_WORLD), ST_EINVAL},
        {"futex before the world", FLAG_AT(ST_SDMA_WRITE, 64, .flags = ST_SDMA_WORLD, .wake = 17), ST_EINVAL},
        {"futex before the window", FLAG_AT(ST_SDMA_WRITE, VA(r->memory[0]), .wake = 2), ST_EREG},
        {"futex in the flag", FLAG_AT(ST_SDMA_WRITE, far, .wake = 1), ST_EINVAL},
        {"futex nowhere", FLAG_AT(ST_SDMA_WRITE, far, .wake = UINT32_MAX), ST_EREG},
        {"counter not aligned", FLAG_AT(ST_SDMA_COUNT, far, .src = far + 9, .bytes = 1), ST_EINVAL},
        {"counter not mapped", FLAG_AT(ST_SDMA_COUNT, far, .src = unmapped, .bytes = 1), ST_EREG},
        {"gate not mapped", {.type = ST_SDMA_GATE, .src = unmapped, .value = 1}, ST_EREG},
        {"gate not aligned", {.type = ST_SDMA_GATE, .src = far + 1, .value = 1}, ST_EINVAL},
        {"gate of a world that ends", {.type = ST_SDMA_GATE, .src = p->world, .flags = ST_SDMA_WORLD, .value = 1}, ST_EREG},
        {"call of nothing mapped", {.type = ST_SDMA_CALL, .src = unmapped, .bytes = 1}, ST_EREG},
        {"call without end", {.type = ST_SDMA_CALL, .src = list, .bytes = UINT64_MAX / 64}, ST_EINVAL},
        {"call not aligned", {.type = ST_SDMA_CALL, .src = list + 4, .bytes = 1}, ST_EINVAL},
    };

    for (uint32_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_bad(r, lane, &bad[i], p->flags, p->data);
}

/* Events that are none, of each type: in chains that go well, that fail there, and that have failed before. */
static void bad_events(struct rig *r, struct st_lane *lane, const struct places *p)
{
    static const uint32_t events[] = {ST_SDMA_EVENTS, ST_SDMA_EVENTS + 1, 1u << 31, UINT32_MAX};
    uint32_t k, type, failing;
    struct st_descriptor d[2];
    uint64_t at;

    for (k = 0; k < sizeof events / sizeof *events; k++)
        for (type = 0; type <= ST_SDMA_CALL + 1; type++)
            for (failing = 0; failing < 2; failing++) {
                d[0] = (struct st_descriptor){.type = failing ? ST_SDMA_COPY : ST_SDMA_NOP, .bytes = 8, .event = events[k]};
                d[1] = (struct st_descriptor){.type = (uint8_t)type, .src = VA(p->list), .dst = VA(p->list + 1),
                                              .event = events[k]};
                at = rig_put(r, 0, lane, d, 2);
                rig_run(r);
                CHECK_IS(rig_status(lane, at), failing ? ST_EREG : ST_OK);
                if (type == ST_SDMA_NOTIFY)
                    CHECK_IS(rig_status(lane, at + 1), ST_EINVAL);
            }
}

static void test_bad(void)
{
    struct rig *r = rig_open(2, 16, 0);
    struct st_lane lane = rig_ring(r, 0, 8, 0);
    uint8_t *gone = dies_pages(&r->d->ctx[1], 1);
    struct places p = {.flags = rig_take(r, 0, 64), .far = rig_take(r, 1, 64), .data = rig_take(r, 0, 1 << 13),
                       .list = rig_take(r, 0, 64), .o = rig_take(r, 0, 8 * sizeof *p.o)};

    p.old = make_copy(p.data, gone, 64);
    st_sdma_seal(&r->d->ctx[0], &p.old);
    CHECK_IS(st_pages_unmap(&r->d->ctx[1], VA(gone), 1), ST_OK);
    dies_settle(r->d);
    CHECK(dies_pages(&r->d->ctx[1], 1) == gone); /* something else is there now */
    p.unmapped = st_segment(&r->d->ctx[1], 1) + 12 * ST_PAGE_BYTES;
    p.beyond = r->d->ctx[0].base + 2 * r->d->ctx[0].seg_bytes;
    p.edge = st_segment(&r->d->ctx[1], 1) + (RIG_PAGES + 1) * ST_PAGE_BYTES - 8;
    p.world = st_group_bytes(2, DIES_MAILBOX);
    p.o[0] = p.o[5] = (struct st_sdma_operand){.va = VA(p.data)};
    p.o[1] = (struct st_sdma_operand){.va = VA(p.data) + 4096};
    p.o[2] = (struct st_sdma_operand){.va = p.unmapped};
    p.o[3] = (struct st_sdma_operand){.va = VA(p.data), .flags = 2};
    p.o[4] = (struct st_sdma_operand){.va = VA(gone), .generation = p.old.src_gen};
    bad_data(r, &lane, &p);
    bad_flags(r, &lane, &p);
    bad_events(r, &lane, &p);
    CHECK(p.far[0] == 0 && p.far[1] == 0);
    rig_close(r);
}

/* A file fills its last page in part: what lies behind it there is nobody's, whatever the page table says. */
static void test_file(void)
{
    struct rig *r = rig_open(1, 16, 0);
    struct st_lane lane = rig_ring(r, 0, 8, 0);
    uint64_t bytes = ST_PAGE_BYTES + 12000, va, at;
    uint8_t *data = rig_take(r, 0, 1 << 14);
    int fd = memfd_create("file", MFD_CLOEXEC);
    struct st_descriptor d;
    struct st_foreign f;
    struct stat st;
    uint32_t slot;

    CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && pwrite(fd, "end", 3, (off_t)bytes - 3) == 3);
    CHECK(fstat(fd, &st) == 0);
    f = (struct st_foreign){.fd = (uint32_t)fd, .device = st.st_dev, .inode = st.st_ino, .bytes = bytes};
    CHECK_IS(st_foreign_open(&r->d->ctx[0], &f, 1, &va, &slot), ST_OK);
    CHECK(dies_pages(&r->d->ctx[0], 1) == (uint8_t *)(uintptr_t)(va + 2 * ST_PAGE_BYTES)); /* behind it */
    const struct {
        uint64_t from, n;
        int status;
    } tries[] = {{0, 8192, ST_OK}, {bytes - 3, 3, ST_OK}, {ST_PAGE_BYTES - 4096, 8192, ST_OK}, {bytes - 3, 4, ST_EREG},
                 {bytes + 8192, 8, ST_EREG}, {2 * ST_PAGE_BYTES - 1, 1, ST_EREG}, {2 * ST_PAGE_BYTES - 1, 8192, ST_EREG},
                 {2 * ST_PAGE_BYTES, 8192, ST_OK}};
    for (uint32_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        d = make_copy(data, (void *)(uintptr_t)(va + tries[i].from), tries[i].n);
        at = rig_put(r, 0, &lane, &d, 1);
        rig_run(r);
        CHECK_IS(rig_status(&lane, at), tries[i].status);
        CHECK(i != 1 || memcmp(data, "end", 3) == 0);
    }
    CHECK_IS(st_foreign_close(&r->d->ctx[0], va, bytes, slot), ST_OK);
    close(fd);
    rig_close(r);
}

/* Nothing of a ring that has been overwritten is executed, and what comes after is. */
static void test_overwritten(void)
{
    struct rig *r = rig_open(1, 16, 0);
    struct st_lane lane = rig_ring(r, 0, 4, 40);
    uint64_t *flags = rig_take(r, 0, 64);
    struct st_descriptor d[3] = {make_write(&flags[0], 1), make_write(&flags[1], 1), make_write(&flags[2], 1)};
    uint64_t at = rig_put(r, 0, &lane, d, 3);

    st_ring_slot(lane.ring, 4, at + 1)->commit = at + 1 - 4; /* never filled */
    rig_run(r);
    CHECK(rig_status(&lane, at) == ST_OK && rig_status(&lane, at + 1) == ST_ECORRUPT);
    CHECK(flags[0] == 1 && flags[1] == 0 && flags[2] == (ST_SDMA_POISON | ST_ECORRUPT));
    lane.ring->tail += 1000;
    st_sdma_bell(lane.of, lane.index);
    rig_run(r);
    CHECK(rig_head(&lane) == lane.ring->tail && lane.ring->failed == 2 && lane.ring->failed_status == ST_ECORRUPT);
    at = rig_put(r, 0, &lane, d, 3);
    rig_run(r);
    CHECK(rig_status(&lane, at + 2) == ST_OK && flags[1] == 1 && flags[2] == 1);
    rig_close(r);
}

/* ---- chains ------------------------------------------------------------------------------- */

/* Poison goes from die to die by gates, and ends where a chain begins. */
static void test_poison(void)
{
    struct rig *r = rig_open(3, 16, 0);
    struct st_lane lane[3];
    uint64_t *flag[3], *seen[3];
    uint32_t event[3], i;
    struct st_descriptor d[6];

    for (i = 0; i < 3; i++) {
        lane[i] = rig_ring(r, i, 16, next(&dice));
        flag[i] = rig_take(r, i, 64);
        seen[i] = rig_take(r, i, 64);
        event[i] = st_event_take(r->e[i], NULL, NULL);
    }
    for (i = 2; i < 3; i--) { /* each waits for the one before it; the first fails */
        d[0] = i ? make_gate(flag[i], 3) : (struct st_descriptor){.type = ST_SDMA_FILL, .dst = 8, .bytes = 8};
        d[0].event = event[i];
        d[1] = with_event(make_copy(seen[i], flag[0] + 7, 8), event[i]);
        d[2] = with_event(make_write(flag[(i + 1) % 3], 3), event[i]);
        d[3] = make_notify(event[i]);
        d[4] = with_flags(make_gate(&flag[i][1], 7), ST_SDMA_BEGIN); /* the next chain */
        d[5] = make_write(seen[i], 9);
        rig_put(r, i, &lane[i], d, 6);
        rig_run(r);
    }
    for (i = 0; i < 3; i++) {
        CHECK(st_event_count(r->e[i], event[i]) == 1);
        CHECK_IS(st_event_status(r->e[i], event[i]), ST_EREG);
        CHECK(*flag[i] == (ST_SDMA_POISON | ST_EREG) && *seen[i] == 0);
        CHECK(r->e[i]->events[event[i]].failed.type == (i ? ST_SDMA_GATE : ST_SDMA_FILL));
    }
    for (i = 0; i < 3; i++)
        flag[i][1] = 7 + i;
    rig_run(r);
    for (i = 0; i < 3; i++)
        CHECK(*seen[i] == 9 && rig_head(&lane[i]) == lane[i].ring->tail);
    *flag[0] = ST_SDMA_POISON | 200; /* no status */
    d[0] = make_gate(flag[0], 1);
    d[1] = make_write(seen[0], 1);
    rig_put(r, 2, &lane[0], d, 2);
    rig_run(r);
    CHECK(*seen[0] == (ST_SDMA_POISON | 9 << 8 | ST_ECORRUPT));
    rig_close(r);
}

/* A flag that has come to a value before it is poisoned has come to it: what waits for that, or less, goes on. */
static void test_late_look(void)
{
    static const uint64_t come[] = {0, 1, 3, ST_SDMA_REACHED - 1, ST_SDMA_REACHED, ST_SDMA_REACHED + 1, ST_SDMA_POISON - 1};
    struct rig *r = rig_open(2, 16, 0);
    struct st_lane lane[2] = {rig_ring(r, 0, 16, 1), rig_ring(r, 1, 16, 1)};
    uint64_t *flag = rig_take(r, 0, 64), *out = rig_take(r, 1, 64), kept;
    struct st_descriptor d[4];
    uint32_t i;

    for (i = 0; i < sizeof come / sizeof come[0]; i++) {
        kept = come[i] < ST_SDMA_REACHED ? come[i] : ST_SDMA_REACHED;
        *flag = come[i];
        out[0] = out[1] = 0;
        d[0] = (struct st_descriptor){.type = ST_SDMA_FILL, .flags = ST_SDMA_BEGIN, .dst = 8, .bytes = 8};
        d[1] = make_write(flag, come[i] + 1);
        d[2] = d[1]; /* poison on poison: the same */
        rig_put(r, 0, &lane[0], d, 3);
        rig_run(r);
        CHECK(*flag == (ST_SDMA_POISON | kept << 8 | ST_EREG));
        d[0] = with_flags(make_gate(flag, kept), ST_SDMA_BEGIN);
        d[1] = make_write(&out[0], 1);
        d[2] = with_flags(make_gate(flag, kept + 1), ST_SDMA_BEGIN);
        d[3] = make_write(&out[1], 1);
        rig_put(r, 1, &lane[1], d, 4);
        rig_run(r);
        CHECK(out[0] == 1 && out[1] == (ST_SDMA_POISON | ST_EREG));
    }
    rig_close(r);
}

/* A flag by as many counts as it takes, from rings of several dies; then by additions. */
static void test_count(void)
{
    enum { POSTERS = 5 };
    struct rig *r = rig_open(2, 16, 0);
    uint64_t *flag = rig_take(r, 1, 64), *counter = rig_take(r, 0, 64), *sum = rig_take(r, 0, 64), *out = rig_take(r, 1, 64);
    struct st_lane lane[POSTERS], gated = rig_ring(r, 1, 8, 0);
    struct st_descriptor d[4] = {make_gate(flag, 77), make_write(out, 1), make_gate(sum, 10 * POSTERS), make_write(out, 2)};
    uint32_t i;

    rig_put(r, 1, &gated, d, 4);
    for (i = 0; i < POSTERS; i++) {
        lane[i] = rig_ring(r, i % 2, 2, 7);
        rig_run(r);
        CHECK(*flag == 0 && *out == 0 && *counter == i && rig_head(&gated) == 0 && gated.ring->gated_ns != 0);
        d[0] = make_count(counter, POSTERS, flag, 77);
        rig_put(r, i % 2, &lane[i], d, 1);
    }
    rig_run(r);
    CHECK(*flag == 77 && *out == 1 && *counter == POSTERS && rig_head(&gated) == 2);
    for (i = 0; i < POSTERS; i++) {
        d[0] = make_add(sum, 10);
        CHECK(*out == 1);
        rig_put(r, i % 2, &lane[i], d, 1);
        rig_run(r);
    }
    CHECK(*sum == 10 * POSTERS && *out == 2 && rig_head(&gated) == 4 && gated.ring->gated_ns == 0);
    CHECK(r->e[1]->count.gates == 2);
    rig_close(r);
}

/* A program that is called again and again, each time for another epoch. */
static void test_call(void)
{
    struct rig *r = rig_open(2, 16, 0);
    struct st_lane lane = rig_ring(r, 0, 4, 0);
    struct st_descriptor *list = rig_take(r, 1, 200 * sizeof *list), d[3];
    uint64_t *flag = rig_take(r, 0, 64), *out = rig_take(r, 1, 200 * 8), *data = rig_take(r, 0, 64), at, k;
    uint32_t event = st_event_take(r->e[0], NULL, NULL);

    list[0] = with_flags(make_gate(flag, 0), ST_SDMA_RELATIVE);
    list[1] = make_copy(data, data + 4, 32);
    for (k = 2; k < 200; k++)
        list[k] = with_flags(make_write(&out[k], k), ST_SDMA_RELATIVE);
    for (k = 1; k < 4; k++) {
        d[0] = with_event(make_call(list, 200, 1000 * k), event);
        d[1] = make_notify(event);
        st_sdma_seal(&r->d->ctx[0], &d[0]);
        at = rig_put(r, 0, &lane, d, 2);
        rig_run(r);
        CHECK(rig_head(&lane) == at && lane.ring->gated_ns && lane.ring->called == 0 && out[2] == (k > 1 ? 1000 * k - 998 : 0));
        data[4] = k;
        *flag = 1000 * k;
        rig_run(r);
        CHECK(rig_head(&lane) == at + 2 && lane.ring->gated_ns == 0 && lane.ring->called == 0 && data[0] == k);
        CHECK(out[2] == 1000 * k + 2 && out[199] == 1000 * k + 199);
        CHECK(st_event_count(r->e[0], event) == k && st_event_status(r->e[0], event) == ST_OK);
    }
    list[1].type = ST_SDMA_CALL; /* no call calls, nor notifies */
    rig_put(r, 0, &lane, d, 2);
    rig_run(r);
    CHECK_IS(st_event_status(r->e[0], event), ST_EINVAL);
    CHECK(out[2] == st_flag_poisoned(3002, ST_EINVAL) && out[199] == st_flag_poisoned(3199, ST_EINVAL));
    CHECK(r->e[0]->events[event].index == 6);
    CHECK(rig_status(&lane, 6) == ST_EINVAL && st_event_count(r->e[0], event) == 4);
    list[1] = make_notify(event);
    rig_put(r, 0, &lane, d, 2);
    rig_run(r);
    CHECK(rig_status(&lane, 8) == ST_EINVAL && st_event_count(r->e[0], event) == 5);
    d[0] = make_call(list, 0, 0); /* nothing, done */
    d[1] = make_notify(0);
    d[2] = make_write(out, 5);
    rig_put(r, 0, &lane, d, 3);
    rig_run(r);
    CHECK(rig_status(&lane, 10) == ST_OK && rig_status(&lane, 11) == ST_EINVAL && *out == (ST_SDMA_POISON | ST_EINVAL));
    rig_close(r);
}

/* The list of a call goes while it is executed: what is not done is not done. */
static void test_call_freed(void)
{
    struct rig *r = rig_open(2, 16, 0);
    struct st_lane lane = rig_ring(r, 0, 4, 0);
    struct st_descriptor *list = (struct st_descriptor *)(void *)dies_pages(&r->d->ctx[1], 1), d;
    uint64_t *flag = rig_take(r, 0, 64), *out = rig_take(r, 0, 64);

    for (int again = 0; again < 2; again++) {
        list[0] = make_write(out, 1 + (uint64_t)again);
        list[1] = make_gate(flag, 1 + (uint64_t)again);
        list[2] = make_write(out + 1, 1);
        d = make_call(list, 3, 0);
        st_sdma_seal(&r->d->ctx[0], &d);
        rig_put(r, 0, &lane, &d, 1);
        rig_run(r);
        CHECK(*out == 1 + (uint64_t)again && lane.ring->called == 1);
        CHECK_IS(st_pages_unmap(&r->d->ctx[1], VA(list), 1), ST_OK);
        dies_settle(r->d);
        if (again) { /* something that would open the gate is there now */
            CHECK(dies_pages(&r->d->ctx[1], 1) == (uint8_t *)list);
            list[1] = make_gate(flag, 0);
            list[2] = make_write(out + 1, 1);
        }
        rig_run(r);
        CHECK(rig_head(&lane) == 1 + (uint64_t)again && out[1] == 0);
        CHECK_IS(rig_status(&lane, (uint64_t)again), ST_EREG);
        list = again ? list : (struct st_descriptor *)(void *)dies_pages(&r->d->ctx[1], 1);
    }
    rig_close(r);
}

/* ---- ends before their time ---------------------------------------------------------------- */

static void test_cancel(void)
{
    struct rig *r = rig_open(1, 16, 0);
    struct st_lane lane = rig_ring(r, 0, 16, 0);
    struct st_engine *e = r->e[0];
    uint64_t *flag = rig_take(r, 0, 64), *out = rig_take(r, 0, 64);
    uint32_t a = st_event_take(e, NULL, NULL), b = st_event_take(e, NULL, NULL), c = st_event_take(e, NULL, NULL);
    struct st_descriptor d[3] = {make_gate(flag, 1)}, *list = rig_take(r, 0, 2 * sizeof *list);
    const uint32_t events[] = {a, b, c};

    for (int i = 0; i < 3; i++) { /* one at a gate, two behind it */
        d[0].event = events[i];
        d[1] = with_event(make_write(&out[i], 1), events[i]);
        d[2] = make_notify(events[i]);
        rig_put(r, 0, &lane, d, 3);
    }
    rig_run(r);
    st_event_cancel(e, b, ST_ECANCELED); /* behind another's gate: it ends when its turn comes */
    rig_run(r);
    CHECK(st_event_count(e, b) == 0 && rig_head(&lane) == 0);
    st_event_cancel(e, a, ST_ETIMEOUT);
    rig_run(r);
    CHECK(st_event_count(e, a) == 1 && st_event_status(e, a) == ST_ETIMEOUT);
    CHECK(st_event_count(e, b) == 1 && st_event_status(e, b) == ST_ECANCELED);
    CHECK(st_event_count(e, c) == 0 && rig_head(&lane) == 6 && lane.ring->gated_ns != 0);
    CHECK(out[0] == (ST_SDMA_POISON | ST_ETIMEOUT) && out[1] == (ST_SDMA_POISON | ST_ECANCELED) && out[2] == 0);
    *flag = 1;
    rig_run(r);
    CHECK(st_event_count(e, c) == 1 && st_event_status(e, c) == ST_OK && out[2] == 1);
    list[0] = make_gate(flag, 2); /* within a call */
    list[1] = make_write(&out[3], 1);
    st_event_give(e, a);
    CHECK(st_event_take(e, NULL, NULL) == a && st_event_status(e, a) == ST_OK);
    d[0] = with_event(make_call(list, 2, 0), a);
    d[1] = make_notify(a);
    rig_put(r, 0, &lane, d, 2);
    rig_run(r);
    CHECK(lane.ring->gated_ns != 0 && st_event_count(e, a) == 0);
    st_event_cancel(e, a, ST_EDEAD);
    rig_run(r);
    CHECK(st_event_count(e, a) == 1 && st_event_status(e, a) == ST_EDEAD && out[3] == (ST_SDMA_POISON | ST_EDEAD));
    rig_close(r);
}

/* All that is in rings ends when the engine does; it may begin again. */
static void test_end(void)
{
    struct rig *r = rig_open(2, 16, 0);
    struct st_engine *e = r->e[0];
    struct st_lane lane = rig_ring(r, 0, 16, 0), far = rig_lane(r, 1, 0, lane.index), other = rig_ring(r, 0, 2, 0);
    uint64_t *flag = rig_take(r, 0, 64), first, done;
    uint32_t a = st_event_take(e, NULL, NULL), b = st_event_take(e, NULL, NULL), index;
    struct st_descriptor d[3] = {with_event(make_gate(flag, 1), a), with_event(make_write(&flag[1], 1), a), make_notify(a)};

    rig_put(r, 1, &far, d, 3);
    d[2].event = b;
    rig_put(r, 0, &lane, d, 3);
    rig_run(r);
    CHECK_IS(st_engine_start(e), ST_OK);
    CHECK_IS(st_engine_remove(e, lane.index), ST_AGAIN);
    CHECK_IS(st_engine_remove(e, other.index), ST_OK);
    CHECK_IS(st_engine_remove(e, other.index), ST_EINVAL);
    CHECK_IS(st_engine_remove(e, ST_SDMA_RINGS), ST_EINVAL);
    CHECK_IS(st_lane_submit(&r->d->ctx[0], &other, d, 1, &r->d->ctx[0].wait, 0, &first, &done), ST_ENOJOB);
    st_engine_end(e);
    CHECK(st_event_count(e, a) == 1 && st_event_status(e, a) == ST_ENOJOB);
    CHECK(st_event_count(e, b) == 1 && st_event_status(e, b) == ST_ENOJOB);
    CHECK(flag[1] == (ST_SDMA_POISON | ST_ENOJOB) && rig_head(&lane) == lane.ring->tail);
    CHECK_IS(st_lane_submit(&r->d->ctx[1], &far, d, 1, &r->d->ctx[1].wait, 0, &first, &done), ST_ENOJOB);
    CHECK_IS(st_lane_submit(&r->d->ctx[0], &lane, d, 1, &r->d->ctx[0].wait, 0, &first, &done), ST_ENOJOB);
    CHECK_IS(st_lane_attach(&r->d->ctx[1], 0, lane.index, &far), ST_ENOJOB);
    CHECK_IS(st_engine_add(e, rig_take(r, 0, st_ring_bytes(2)), 2, 0, &index), ST_ENOJOB);
    st_engine_open(e, rig_take(r, 0, sizeof(struct st_sdma)));
    lane = rig_ring(r, 0, 2, 0);
    d[0] = make_write(&flag[1], 3);
    rig_put(r, 0, &lane, d, 1);
    rig_run(r);
    CHECK(flag[1] == 3);
    CHECK_IS(st_lane_attach(&r->d->ctx[1], 0, lane.index, &far), ST_OK);
    dies_end(&(struct die){.dies = r->d, .rank = 0});
    CHECK_IS(st_lane_submit(&r->d->ctx[1], &far, d, 1, &r->d->ctx[1].wait, 0, &first, &done), ST_EDEAD);
    CHECK_IS(st_lane_attach(&r->d->ctx[1], 2, 0, &far), ST_ENOJOB);
    CHECK_IS(st_lane_attach(&r->d->ctx[1], 0, ST_SDMA_RINGS, &far), ST_ENOJOB);
    rig_close(r);
}

/* ---- indices ---------------------------------------------------------------------------------- */

/* A ring of each depth, its indices where they wrap: what fits goes in, what does not is refused as a whole, and all is
 * executed once, in order. */
static void test_indices(uint64_t rounds)
{
    static const uint64_t firsts[] = {0, (1ull << 32) - 3, UINT64_MAX - 2, UINT64_MAX, 1ull << 63};

    for (uint32_t k = 0; k < 5; k++)
        for (uint32_t depth = 1; depth <= 8; depth *= 2) {
            struct rig *r = rig_open(1, 16, 0);
            struct st_lane lane = rig_ring(r, 0, depth, firsts[k]);
            uint64_t *log = rig_take(r, 0, 8 * 64), put = 0, ran = 0, first, done, n, i;
            struct st_descriptor d[16];

            for (uint64_t round = 0; round < rounds; round++) {
                n = 1 + next(&dice) % (depth + 2);
                for (i = 0; i < n; i++)
                    d[i] = make_write(&log[(put + i) % 64], put + i + 1);
                if (put + n - ran <= depth) {
                    CHECK_IS(st_lane_submit(&r->d->ctx[0], &lane, d, n, &r->d->ctx[0].wait, ST_SDMA_NOWAIT, &first,
                                            &done), ST_OK);
                    CHECK(done == n && first == firsts[k] + put);
                    put += n;
                } else {
                    CHECK_IS(st_lane_submit(&r->d->ctx[0], &lane, d, n, &r->d->ctx[0].wait, ST_SDMA_NOWAIT, &first,
                                            &done), ST_EFULL);
                    CHECK(done == 0 && lane.ring->tail == firsts[k] + put);
                }
                if (next(&dice) % 2)
                    continue;
                rig_run(r);
                for (; ran < put; ran++)
                    CHECK(log[ran % 64] == ran + 1 && rig_status(&lane, firsts[k] + put - 1) == ST_OK);
                CHECK(rig_head(&lane) == firsts[k] + put);
            }
            CHECK(put > rounds / 16 && r->e[0]->count.failed == 0);
            rig_close(r);
        }
}

int main(int argc, char **argv)
{
    dice = dies_setup("test_sdma", argc, argv);
    test_data(12 / DIES_SLOW);
    test_bad();
    test_file();
    test_overwritten();
    test_poison();
    test_late_look();
    test_count();
    test_call();
    test_call_freed();
    test_cancel();
    test_end();
    test_indices(400);
    printf("test_sdma: ok\n");
    return 0;
}
