/* Groups: where things lie, what binding refuses, one failure for all, and giving up.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_group.c && ./a.out [seed]
 *
 * tsan must report: st_group_fail st_group_quiesce
 */
#include "handles.h"
#include "st_collective.h"

/* ---- layout and binding ------------------------------------------------------ */

static void test_layout(void)
{
    for (uint64_t n = 1; n <= ST_MAX_DIES; n += n < 70 ? 1 : 37) {
        uint64_t from[7] = {0, st_group_ranks_off(), st_group_arrivals_off(n), st_group_members_off(n),
                            st_group_flags_off(n), st_group_channels_off(n), st_group_mailboxes_off(n)};
        uint64_t size[7] = {sizeof(struct st_group_header), 4 * n, 2 * n * sizeof(struct st_arrival),
                            n * sizeof(struct st_member), n * ST_GROUP_FLAGS * 8, n * n * 8,
                            n * 2 * DIES_MAILBOX};

        for (int i = 0; i < 6; i++)
            CHECK(from[i] + size[i] <= from[i + 1]);
        CHECK(from[6] + size[6] == st_group_bytes(n, DIES_MAILBOX));
        CHECK(from[2] % 128 == 0 && from[3] % 64 == 0 && from[4] % 64 == 0 && from[5] % 8 == 0 && from[6] % 128 == 0);
    }
    /* At least worth 1 KiB a member, never more than the mailbox; readings count. */
    CHECK(st_mailbox_fits(0, 1, 1024, 8192) && st_mailbox_fits(8192, 1, 8, 8192));
    CHECK(!st_mailbox_fits(8193, 1, 64, 8192));
    CHECK(st_mailbox_fits(2048, 1, 2, 8192) && !st_mailbox_fits(2049, 1, 2, 8192));
    CHECK(st_mailbox_fits(1170, 7, 8, 8192) && !st_mailbox_fits(1171, 7, 8, 8192));
}

static void test_bind_refuses(void)
{
    struct dies *d = dies_open(3, 2, 1000000);
    uint8_t *m = dies_group(d, NULL);
    struct st_group_header *h = (struct st_group_header *)(void *)m;
    uint32_t ranks[3] = {0, 1, 2};
    struct st_group g = {.ctx = &d->ctx[1], .n = 3, .me = 1, .ranks = ranks};
    uint64_t bytes = st_group_bytes(3, DIES_MAILBOX);

    CHECK_IS(st_group_bind(&g, m, bytes), ST_OK);
    CHECK_IS(st_group_bind(&g, m, bytes - 1), ST_EABI);
    CHECK_IS(st_group_bind(&g, m, 0), ST_EABI);
    for (uint64_t at = 0; at < st_group_ranks_off() + 12; at++) {
        int vital = (at < 8) || (at >= offsetof(struct st_group_header, nmembers) &&
                                 at < offsetof(struct st_group_header, pad0)) ||
                    (at >= offsetof(struct st_group_header, mailbox_bytes) &&
                     at < offsetof(struct st_group_header, pad1)) ||
                    at >= st_group_ranks_off();

        m[at] ^= 0x40;
        CHECK_IS(st_group_bind(&g, m, UINT64_MAX / 2), vital ? ST_EABI : ST_OK);
        m[at] ^= 0x40;
    }
    g.n = 2;
    CHECK_IS(st_group_bind(&g, m, bytes), ST_EABI);
    CHECK(h->magic == ST_MAGIC);
    dies_close(d);
}

/* ---- one failure ------------------------------------------------------------------ */

struct scene {
    uint8_t *memory;
    pthread_barrier_t all;
    int status[DIES_MOST];
    uint64_t rounds;
    uint64_t *page[DIES_MOST];
    uint64_t wrote, stayed; /* how often a writer was let in, or kept out */
};

static int reason(uint32_t member) { return ST_EREG + (int)member % 3; } /* EREG, ENOJOB, EABI: whatever, but a status */

/* The published failure is whole, and all members read the same. */
static void read_failure(struct st_group *g, int status)
{
    struct st_group_header *h = g->header;
    uint32_t by = h->fail_by;

    CHECK(by < g->n && (int)h->fail_status == status && status == reason(by));
    CHECK(h->fail_number == 1000 + by && h->fail_desc == 7ull * by && h->fail_phase == by % 3);
    for (uint32_t i = 0; i < ST_MASK_WORDS; i++)
        CHECK(h->fail_mask[i] == (by + 1ull) << i);
}

static void fail_at_once(struct die *die)
{
    struct scene *s = die->arg;
    struct handle h;
    struct st_group *g = handle_bind(&h, die->ctx, s->memory);
    uint64_t mask[ST_MASK_WORDS], r;
    int rc;

    for (uint32_t i = 0; i < ST_MASK_WORDS; i++)
        mask[i] = (die->rank + 1ull) << i;
    g->number = 1000 + die->rank;
    for (r = 0; r < s->rounds; r++) {
        pthread_barrier_wait(&s->all);
        if ((r + die->rank) % 3) {
            rc = st_group_fail(g, reason(die->rank), die->rank % 3, 7ull * die->rank, mask);
        } else {
            while ((rc = st_group_failed(g)) == ST_OK)
                sched_yield();
        }
        read_failure(g, rc);
        CHECK(st_group_failed(g) == rc);
        CHECK(st_group_failed_later(g, 999) && !st_group_failed_later(g, 1000 + DIES_MOST));
        CHECK(st_group_fail(g, 99, 0, 0, mask) == rc); /* the first stays */
        pthread_barrier_wait(&s->all);
        if (die->rank == 0)
            dies_group(die->dies, s->memory);
        pthread_barrier_wait(&s->all);
    }
}

/* A member dies while it writes the failure down: one of the others takes over,
 * and all name the dead one. */
static void die_failing(struct die *die)
{
    struct scene *s = die->arg;
    struct handle h;
    struct st_group *g = handle_bind(&h, die->ctx, s->memory);
    uint32_t victim = (uint32_t)(s->rounds % die->dies->n);
    uint64_t mask[ST_MASK_WORDS] = {0};
    int rc;

    pthread_barrier_wait(&s->all);
    if (die->rank == victim) {
        CHECK(st_cas_acq_rel_32(&g->header->fail_state, ST_FAIL_NONE, ST_FAIL_CLAIM(victim)));
        g->header->fail_status = 77;
        g->header->fail_mask[0] = 0xdead;
        dies_end(die);
        return;
    }
    while (st_load_relaxed_32(&g->header->fail_state) == ST_FAIL_NONE)
        sched_yield();
    rc = die->rank % 2 ? st_group_failed(g) : st_group_fail(g, ST_EDEAD, 1, 0, (mask[0] = 1ull << victim, mask));
    CHECK_IS(rc, ST_EDEAD);
    CHECK(g->header->fail_mask[0] == 1ull << victim && g->header->fail_by != victim);
    for (uint32_t i = 1; i < ST_MASK_WORDS; i++)
        CHECK(g->header->fail_mask[i] == 0);
}

/* One that stands still while it writes the failure down is named by those that wait no longer. */
static void stands_still(struct die *die)
{
    struct scene *s = die->arg;
    struct handle h;
    struct st_group *g = handle_bind(&h, die->ctx, s->memory);
    struct st_request r = {0};

    if (die->rank == 2)
        CHECK(st_cas_acq_rel_32(&g->header->fail_state, ST_FAIL_NONE, ST_FAIL_CLAIM(2)));
    pthread_barrier_wait(&s->all);
    if (die->rank != 2) {
        CHECK_IS(st_request_failed(g, &r, ST_EBROKEN), ST_EBROKEN);
        CHECK(r.failed_by == 2 && r.mask[0] == 4);
    }
}

static void test_failure(uint64_t rounds)
{
    struct dies *d = dies_open(4, 2, 1000000);
    struct scene s = {.memory = dies_group(d, NULL), .rounds = rounds};

    CHECK(pthread_barrier_init(&s.all, NULL, d->n) == 0);
    dies_run(d, fail_at_once, &s);
    for (s.rounds = 0; s.rounds < 60 / DIES_SLOW; s.rounds++) {
        dies_group(d, s.memory);
        dies_run(d, die_failing, &s);
    }
    dies_group(d, s.memory);
    dies_run(d, stands_still, &s);
    pthread_barrier_destroy(&s.all);
    dies_close(d);
}

/* ---- giving up: the last writer is waited for, later ones stay away -------------------- */

/* Member 0 gives operation r up while the others are about to write to its buffer.
 * Once it has done so nobody writes there: its own plain writes would race. */
static void give_up(struct die *die)
{
    struct scene *s = die->arg;
    struct handle h;
    struct st_group *g = handle_bind(&h, die->ctx, s->memory);
    uint64_t mask[ST_MASK_WORDS] = {0}, r, number = 0;
    uint64_t *mine = s->page[0] + die->rank * 512;

    for (r = 1; r <= s->rounds; r++) {
        g->number = ++number;
        pthread_barrier_wait(&s->all);
        for (uint64_t spin = next(&die->seed) % 300; spin--;)
            st_pause();
        if (die->rank == 0) {
            st_group_fail(g, ST_ETIMEOUT, ST_PHASE_ARRIVAL, 0, mask);
            st_store_seqcst_64(&g->members[0].done, number);
            CHECK_IS(st_group_quiesce(g, number, 60000000000ull, mask), 0);
            memset(s->page[0], (int)r, 8 * 512 * DIES_MOST);
            if (next(&die->seed) % 2)
                sched_yield();
            for (uint64_t i = 0; i < 512ull * DIES_MOST; i++)
                CHECK(s->page[0][i] == (r & 255) * 0x0101010101010101ull);
        } else if (st_group_begin(g, number) == ST_OK) {
            for (uint64_t i = 0; i < 512; i++)
                mine[i] = r << 32 | i;
            st_add_acq_rel_64(&s->wrote, 1);
            st_store_seqcst_64(&g->members[g->me].done, number); /* as st_group_complete does */
        } else {
            st_add_acq_rel_64(&s->stayed, 1);
            CHECK_IS(st_group_failed(g), ST_ETIMEOUT);
        }
        pthread_barrier_wait(&s->all);
        if (die->rank == 0) { /* a group that works again, which real ones do not */
            st_store_relaxed_32(&g->header->fail_state, ST_FAIL_NONE);
        }
        pthread_barrier_wait(&s->all);
    }
}

static void test_give_up(uint32_t n, uint64_t rounds)
{
    struct dies *d = dies_open(n, 3, 1000000);
    struct scene s = {.memory = dies_group(d, NULL), .rounds = rounds};

    s.page[0] = (uint64_t *)(void *)dies_pages(&d->ctx[0], 1);
    CHECK(pthread_barrier_init(&s.all, NULL, n) == 0);
    do { /* until both happened, else this tested nothing */
        s.wrote = s.stayed = 0;
        dies_group(d, s.memory);
        dies_run(d, give_up, &s);
        CHECK(s.wrote + s.stayed == rounds * (n - 1));
    } while (!s.wrote || !s.stayed);
    pthread_barrier_destroy(&s.all);
    dies_close(d);
}

/* A writer that does not stop is named; a dead one is not waited for. */
static void test_quiesce_names(void)
{
    struct dies *d = dies_open(4, 3, 1000000);
    uint8_t *m = dies_group(d, NULL);
    struct handle h;
    struct st_group *g = handle_bind(&h, &d->ctx[0], m);
    uint64_t mask[ST_MASK_WORDS] = {0}, begin;

    g->members[1].began = 5; /* writing, alive */
    g->members[2].began = 5; /* writing, dead */
    g->members[3].began = 4; /* not there yet */
    d->gone[2] = 1;
    begin = st_now_ns();
    CHECK_IS(st_group_quiesce(g, 5, 3000000, mask), 1);
    CHECK(mask[0] == 2 && st_now_ns() - begin >= 3000000);
    g->members[1].done = 5;
    mask[0] = 0;
    CHECK_IS(st_group_quiesce(g, 5, 60000000000ull, mask), 0);
    CHECK(mask[0] == 0);
    dies_close(d);
}

int main(int argc, char **argv)
{
    dies_setup("test_group", argc, argv);
    test_layout();
    test_bind_refuses();
    test_failure(1500 / DIES_SLOW);
    test_quiesce_names();
    test_give_up(2, 4000 / DIES_SLOW);
    test_give_up(4, 2000 / DIES_SLOW);
    printf("test_group: ok\n");
    return 0;
}
