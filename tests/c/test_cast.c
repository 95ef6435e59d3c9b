/* Casts: many roots and sizes in one order, roots that run ahead, members that ask for something else or cannot take part,
 * deaths, giving up, and damaged rings.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_cast.c && ./a.out [seed]
 *
 * tsan must report: st_cast_post st_cast_take st_cast_passed
 */
#include "handles.h"
#include "st_types.h"

#define MS 1000000ull
#define LONG 60000000000ull /* ns */

struct scene {
    uint8_t *memory;
    uint64_t rounds, seed;
    uint32_t victim;
    uint8_t *page[DIES_MOST]; /* fabric memory of each */
    struct handle handle[DIES_MOST];
};

static struct st_transfer cast(const struct st_group *g, uint32_t root, void *buf, uint64_t bytes)
{
    return (struct st_transfer){.receive = root != g->me, .cast = 1, .peer = root, .buf = buf, .bytes = bytes,
                                .count = bytes / 8, .desc = ST_DESC(6, 0, ST_I64, root, 0)};
}

static int casts(struct st_group *g, uint32_t root, void *buf, uint64_t bytes, uint64_t timeout_ns)
{
    struct st_transfer t = cast(g, root, buf, bytes);

    return st_p2p_run(g, &t, timeout_ns);
}

/* A group in which every member has a ring. */
static struct dies *scene_open(struct scene *s, uint32_t n)
{
    struct dies *d = dies_open(n, 2 * n + 8, 100000);

    memset(s, 0, sizeof *s);
    s->seed = dies_seed;
    s->memory = dies_group(d, NULL);
    CHECK(st_cast_bytes(n) <= ST_PAGE_BYTES);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *ring = dies_pages(&d->ctx[i], 1);

        s->page[i] = dies_pages(&d->ctx[i], 1);
        handle_bind(&s->handle[i], &d->ctx[i], s->memory);
        st_cast_open(&s->handle[i].g, (uint64_t)(uintptr_t)ring);
    }
    return d;
}

/* ---- all dies, in one order ------------------------------------------------------------- */

static void conversation(struct die *die)
{
    static const uint64_t sizes[] = {0, 8, 32, 40, 1000, 4096, ST_CAST_BYTES};
    struct scene *s = die->arg;
    struct st_group *g = &s->handle[die->rank].g;
    uint64_t *buf = (uint64_t *)(void *)s->page[die->rank], common = s->seed, k;
    uint32_t root = 0;

    for (k = 0; k < s->rounds; k++) {
        uint64_t bytes = sizes[next(&common) % 7];

        root = next(&common) % 4 ? root : (uint32_t)(next(&common) % g->n); /* often the same one for a while */
        if (die->rank == root)
            fill(buf, bytes, k);
        else
            memset(buf, 0xff, bytes);
        CHECK_IS(casts(g, root, buf, bytes, LONG), ST_OK);
        CHECK(filled(buf, bytes, k));
        if (next(&die->seed) % 64 == 0)
            sched_yield();
    }
}

/* ---- one thread that drives both ends step by step --------------------------------------- */

static void test_ahead(struct scene *s)
{
    struct st_group *g0 = &s->handle[0].g, *g1 = &s->handle[1].g, *g2 = &s->handle[2].g;
    uint64_t a[4], b[4];
    struct st_transfer t;
    uint64_t i, k;

    t = cast(g1, 0, b, 32);
    CHECK_IS(st_p2p_progress(g1, &t), ST_AGAIN); /* nothing there yet */
    for (i = 0; i < ST_CAST_SLOTS; i++) {
        fill(a, 32, i);
        t = cast(g0, 0, a, 32);
        CHECK_IS(st_p2p_progress(g0, &t), ST_OK);
    }
    for (k = 0; k < 40; k++) { /* full: it goes on as the slowest does */
        fill(a, 32, i);
        t = cast(g0, 0, a, 32);
        CHECK_IS(st_p2p_progress(g0, &t), ST_AGAIN);
        CHECK_IS(casts(g1, 0, b, 32, LONG), ST_OK);
        CHECK(filled(b, 32, k));
        CHECK_IS(st_p2p_progress(g0, &t), ST_AGAIN);
        CHECK_IS(casts(g2, 0, b, 32, LONG), ST_OK);
        CHECK(filled(b, 32, k));
        CHECK_IS(st_p2p_progress(g0, &t), ST_OK);
        i++;
    }
    for (; k < i; k++) {
        CHECK_IS(casts(g1, 0, b, 32, LONG), ST_OK);
        CHECK_IS(casts(g2, 0, b, 32, LONG), ST_OK);
        CHECK(filled(b, 32, k));
    }
    CHECK_IS(s->handle[0].g.ctx->count.casts, i);
}

/* The next cast is right again, on all three. */
static void in_step(struct scene *s)
{
    static uint64_t identity = 100;
    uint64_t a[8], b[8];

    fill(a, 64, ++identity);
    CHECK_IS(casts(&s->handle[0].g, 0, a, 64, LONG), ST_OK);
    for (uint32_t j = 1; j < 3; j++) {
        memset(b, 0x55, sizeof b);
        CHECK_IS(casts(&s->handle[j].g, 0, b, 64, LONG), ST_OK);
        CHECK(filled(b, 64, identity));
    }
}

/* What was not asked for is passed over, and untouched; the next is right again. */
static void test_mismatch(struct scene *s)
{
    struct st_group *g0 = &s->handle[0].g, *g1 = &s->handle[1].g, *g2 = &s->handle[2].g;
    uint64_t a[8], b[8];
    struct st_transfer t;

    memset(b, 0x55, sizeof b);
    for (int which = 0; which < 3; which++) {
        fill(a, 64, 1);
        CHECK_IS(casts(g0, 0, a, 64, LONG), ST_OK);
        t = cast(g1, 0, b, which == 0 ? 56 : 64);
        if (which == 1)
            t.desc = ST_DESC(6, 0, ST_F64, 0, 0);
        if (which == 2)
            t.count = 16;
        CHECK_IS(st_p2p_run(g1, &t, LONG), ST_EMISMATCH);
        CHECK(t.m.bytes == 64 && t.m.count == 8 && t.m.desc == ST_DESC(6, 0, ST_I64, 0, 0));
        CHECK(b[0] == 0x5555555555555555ull);
        CHECK_IS(casts(g2, 0, a, 64, LONG), ST_OK);
    }
    in_step(s);
}

/* Two roots at one place, for arrays that are alike: who is out of order hears of it, and does not take an older cast's. */
static void test_orders(struct scene *s)
{
    struct st_group *g0 = &s->handle[0].g, *g1 = &s->handle[1].g, *g2 = &s->handle[2].g;
    uint64_t a[8], b[8];

    memset(b, 0x55, sizeof b);
    fill(a, 64, 7);
    CHECK_IS(casts(g0, 0, a, 64, LONG), ST_OK);
    CHECK_IS(casts(g1, 1, a, 64, LONG), ST_OK);
    CHECK_IS(casts(g0, 1, b, 64, LONG), ST_EMISMATCH);
    CHECK_IS(casts(g1, 0, b, 64, LONG), ST_EMISMATCH);
    CHECK(b[0] == 0x5555555555555555ull);
    CHECK_IS(casts(g2, 0, b, 64, LONG), ST_OK);
    CHECK(filled(b, 64, 7));
    CHECK_IS(casts(g2, 1, b, 64, LONG), ST_EMISMATCH);
    in_step(s);
}

/* A root whose array is gone says so; a reader whose array is gone keeps its place. */
static void test_refused(struct scene *s)
{
    struct st_group *g0 = &s->handle[0].g, *g1 = &s->handle[1].g, *g2 = &s->handle[2].g;
    uint8_t *gone = s->page[0] + 4 * ST_PAGE_BYTES; /* nothing is mapped there */
    uint64_t a[8];
    struct st_transfer t = cast(g0, 0, gone, 64);

    CHECK(st_p2p_run(g0, &t, LONG) != ST_OK && t.refused);
    CHECK_IS(casts(g1, 0, a, 64, LONG), ST_EMISMATCH);
    CHECK_IS(casts(g2, 0, a, 64, LONG), ST_EMISMATCH);
    fill(a, 64, 3);
    CHECK_IS(casts(g0, 0, a, 64, LONG), ST_OK);
    t = cast(g1, 0, s->page[1] + 4 * ST_PAGE_BYTES, 64);
    CHECK(st_p2p_run(g1, &t, LONG) != ST_OK && t.refused);
    CHECK_IS(casts(g2, 0, a, 64, LONG), ST_OK);
    in_step(s);
}

static int poll_now(void *arg)
{
    (void)arg;
    return 1;
}

static void test_giving_up(void)
{
    struct scene *s = calloc(1, sizeof *s);
    uint64_t a[1] = {0};

    CHECK(s);
    for (int how = 0; how < 3; how++) {
        struct dies *d = scene_open(s, 3);
        struct st_group *g0 = &s->handle[0].g, *g1 = &s->handle[1].g;

        if (how == 0) { /* the root never comes */
            CHECK_IS(casts(g1, 0, a, 8, MS), ST_ETIMEOUT);
            CHECK_IS(g1->header->fail_mask[0], 1);
        } else if (how == 1) { /* a reader never comes */
            for (uint32_t i = 0; i < ST_CAST_SLOTS; i++) {
                CHECK_IS(casts(g0, 0, a, 8, LONG), ST_OK);
                CHECK_IS(casts(g1, 0, a, 8, LONG), ST_OK);
            }
            CHECK_IS(casts(g0, 0, a, 8, MS), ST_ETIMEOUT);
            CHECK_IS(g1->header->fail_mask[0], 4);
        } else {
            g0->ctx->wait.poll = poll_now;
            CHECK_IS(casts(g0, 1, a, 8, LONG), ST_EINTR);
            CHECK_IS(g1->header->fail_status, ST_EBROKEN);
        }
        CHECK(casts(&s->handle[2].g, 1, a, 8, LONG) == (int)g1->header->fail_status); /* and the third hears of it */
        dies_close(d);
    }
    free(s);
}

static void test_damage(void)
{
    struct scene *s = calloc(1, sizeof *s);
    uint64_t a[1] = {0}, va;

    CHECK(s);
    for (int how = 0; how < 5; how++) {
        struct dies *d = scene_open(s, 2);
        struct st_group *g0 = &s->handle[0].g, *g1 = &s->handle[1].g;
        uint64_t *word = st_channel_word(g0, 0, 0);

        va = *word;
        switch (how) {
        case 0: *word = va + 8; break;                                    /* not aligned */
        case 1: *word = *st_channel_word(g0, 1, 1); break;                /* of another die */
        case 2: st_cast_at(va)->magic = 5; break;
        case 3: st_cast_at(va)->nmembers = 3; break;
        default: *word = (uint64_t)(uintptr_t)s->page[0] + 64; break;     /* memory, but no ring */
        }
        CHECK_IS(casts(g1, 0, a, 8, LONG), ST_ECORRUPT);
        CHECK(st_group_failed(g0) != ST_OK);
        dies_close(d);
    }
    free(s);
}

/* ---- death ------------------------------------------------------------------------------------ */

/* What a dead root had said counts for all who had not read it; then it is dead, for all. */
static void dying_root(struct die *die)
{
    struct scene *s = die->arg;
    struct st_group *g = &s->handle[die->rank].g;
    uint64_t *buf = (uint64_t *)(void *)s->page[die->rank], k, said = s->seed % ST_CAST_SLOTS;
    int rc;

    for (k = 0; k < said; k++) {
        if (die->rank == 0)
            fill(buf, 1000, k);
        rc = casts(g, 0, buf, 1000, LONG);
        if (rc == ST_EDEAD) { /* another reader was through already */
            CHECK(die->rank != 0);
            return;
        }
        CHECK_IS(rc, ST_OK);
        CHECK(filled(buf, 1000, k));
    }
    if (die->rank == 0) {
        dies_end(die);
        return;
    }
    CHECK_IS(casts(g, 0, buf, 1000, LONG), ST_EDEAD);
    CHECK_IS(g->header->fail_mask[0], 1);
    CHECK_IS(casts(g, 1, buf, 1000, LONG), ST_EDEAD); /* the group has failed */
}

/* A root hears of a dead reader when it is a ring ahead of it, and the others then do. */
static void dying_reader(struct die *die)
{
    struct scene *s = die->arg;
    struct st_group *g = &s->handle[die->rank].g;
    uint64_t *buf = (uint64_t *)(void *)s->page[die->rank], k;
    int rc = ST_OK;

    if (die->rank == 1)
        for (k = 0; k < s->seed % 40; k++)
            CHECK_IS(casts(g, 0, buf, 8, LONG), ST_OK);
    if (die->rank == 1) {
        dies_end(die);
        return;
    }
    for (k = 0; rc == ST_OK; k++)
        rc = casts(g, 0, buf, 8, LONG);
    CHECK_IS(rc, ST_EDEAD);
    CHECK_IS(g->header->fail_mask[0], 2);
    if (die->rank == 0)
        CHECK_IS(k - 1, s->seed % 40 + ST_CAST_SLOTS);
}

int main(int argc, char **argv)
{
    struct scene *s = calloc(1, sizeof *s);
    struct dies *d;

    CHECK(s);
    dies_setup("test_cast", argc, argv);
    d = scene_open(s, 3);
    test_ahead(s);
    test_mismatch(s);
    test_orders(s);
    test_refused(s);
    dies_close(d);
    test_giving_up();
    test_damage();
    for (uint32_t n = 2; n <= 4; n++) {
        d = scene_open(s, n);
        s->rounds = 2000 / DIES_SLOW;
        dies_run(d, conversation, s);
        dies_close(d);
    }
    for (uint64_t i = 0; i < 20; i++) {
        d = scene_open(s, 3);
        s->seed += i;
        dies_run(d, dying_root, s);
        dies_close(d);
        d = scene_open(s, 3);
        s->seed += i;
        dies_run(d, dying_reader, s);
        dies_close(d);
    }
    free(s);
    printf("test_cast: ok\n");
    return 0;
}
