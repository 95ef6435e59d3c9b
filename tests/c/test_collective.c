/* Collectives with plans made by hand: thousands of rounds, mismatches in between,
 * deaths at every point, timeouts that race with late members, interruptions.
 * After each return a member overwrites its buffers: whoever still used them would race.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_collective.c && ./a.out [seed]
 *
 * tsan must report: st_group_arrive st_group_complete st_unit_done st_request_abort
 */
#include "plans.h"

#define MS 1000000ull
#define LONG 60000000000ull /* ns; a wait that lasts that long is a failure */

struct scene {
    uint8_t *memory;
    struct buffers *buffers; /* by die */
    struct st_crew *crews;   /* of every second die */
    uint64_t rounds;
    uint32_t mismatches; /* one round in that many */
    pthread_barrier_t all;
    /* failures */
    enum kind kind;
    uint32_t point, victims;
    uint64_t good, timeout_ns, salt;
    int status[DIES_MOST];
    struct st_request request[DIES_MOST];
};

static struct dies *scene_open(struct scene *s, uint32_t n, uint64_t sleep_ns)
{
    struct dies *d = dies_open(n, 4, sleep_ns);

    memset(s, 0, sizeof *s);
    s->memory = dies_group(d, NULL);
    s->buffers = calloc(n, sizeof *s->buffers);
    s->crews = calloc(n, sizeof *s->crews);
    CHECK(s->buffers && s->crews);
    for (uint32_t i = 0; i < n; i++) {
        buffers_make(&s->buffers[i], &d->ctx[i]);
        d->ctx[i].reduce = plain_reduce;
        d->ctx[i].accumulate = st_accumulate;
        d->ctx[i].workers = i % 2 ? 3 : 1; /* one more than there are cores */
        d->ctx[i].crew = &s->crews[i];
        CHECK_IS(st_crew_init(&s->crews[i]), ST_OK);
    }
    CHECK(pthread_barrier_init(&s->all, NULL, n) == 0);
    return d;
}

static void scene_close(struct scene *s, struct dies *d)
{
    pthread_barrier_destroy(&s->all);
    for (uint32_t i = 0; i < d->n; i++)
        st_crew_end(&s->crews[i]);
    free(s->crews);
    free(s->buffers);
    dies_close(d);
}

static void dawdle(uint64_t *seed)
{
    uint64_t spin = next(seed) % 8 ? 0 : next(seed) % 2000;

    while (spin--)
        st_pause();
    if (next(seed) % 16 == 0)
        sched_yield();
}

/* ---- plans that must not run ----------------------------------------------------- */

static void test_plan_check(void)
{
    static const struct { const char *what; int rc; } bad[] = {
        {"kind 0", ST_EINVAL}, {"kind 5", ST_EINVAL}, {"no source", ST_EINVAL},
        {"copy of two", ST_EINVAL}, {"no such operator", ST_EUNSUPPORTED}, {"raw reduction", ST_EUNSUPPORTED},
        {"wait flag 1024", ST_EINVAL}, {"post flag beyond its own", ST_EINVAL}, {"waits for nobody", ST_EINVAL},
        {"waits for a stranger", ST_EINVAL}, {"sources past the end", ST_EINVAL},
        {"destinations past the end", ST_EINVAL}, {"first wraps", ST_EINVAL}, {"member -1", ST_EINVAL},
        {"member n", ST_EINVAL}, {"buffer 3", ST_EINVAL}, {"offset past the buffer", ST_EINVAL},
        {"bytes past the buffer", ST_EINVAL}, {"bytes wrap", ST_EINVAL}, {"broken element", ST_EINVAL},
        {"wait without completion", ST_EINVAL}, {"bytes that only wait", ST_EINVAL}, {"a partial copy", ST_EINVAL},
        {"an operand's flag 2", ST_EINVAL}, {"a mean that is accumulated", ST_EUNSUPPORTED},
        {"cores that end early", ST_EINVAL}, {"cores that go back", ST_EINVAL}, {"no room for cores", ST_EINVAL},
        {"no room for flags", ST_EINVAL}, {"too many flags", ST_EINVAL},
    };
    struct hand_plan h;

    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++) {
        int rc;

        plan_make(&h, i == 8 || i == 9 || i == 20 ? RING : i == 22 ? GATHER : i > 23 ? ADD : PUSH, 3, 1, 0, 48);
        switch (i) {
        case 0: h.units[0].kind = 0; break;
        case 1: h.units[0].kind = 5; break;
        case 2: h.units[0].nsrc = 0; break;
        case 3: h.units[0].kind = ST_UNIT_COPY; break;
        case 4: h.units[0].op = ST_NOPS; break;
        case 5: h.units[0].dtype = ST_RAW; break;
        case 6: h.units[0].wait_flag = ST_GROUP_FLAGS; h.units[0].wait_peer = 0; break;
        case 7: h.units[0].post_flag = (int32_t)h.p.nflags; break;
        case 8: h.units[1].wait_peer = -1; break;
        case 9: h.units[1].wait_peer = 3; break;
        case 10: h.units[0].nsrc = 7; break;
        case 11: h.units[0].ndst = 4; break;
        case 12: h.units[0].src_first = UINT32_MAX; break;
        case 13: h.operands[1].member = -1; break;
        case 14: h.operands[1].member = 3; break;
        case 15: h.operands[1].buf = ST_NBUFS; break;
        case 16: h.operands[1].offset = 1 << 20; break;
        case 17: h.units[0].bytes += 8; break;
        case 18: h.operands[1].offset = UINT64_MAX - 7; break;
        case 19: h.units[0].bytes -= 4; break;
        case 20: h.p.needs_done = 0; break;
        case 21: h.units[0].kind = ST_UNIT_SYNC; break;
        case 22: h.operands[0].flags = ST_OPERAND_PARTIAL; break;
        case 23: h.operands[0].flags = 2; break;
        case 24: h.units[1].op = ST_AVG; break;
        case 25: h.begin[2]--; break;
        case 26: h.begin[1] = h.begin[2] + 1; break;
        case 27: h.p.next = NULL; break;
        case 28: h.p.left = NULL; break;
        case 29: h.p.nflags = ST_GROUP_FLAGS + 1; break;
        }
        rc = st_plan_check(&h.p, 3);
        if (rc != bad[i].rc)
            fprintf(stderr, "a plan with %s: status %d\n", bad[i].what, rc);
        CHECK(rc == bad[i].rc);
    }
    plan_make(&h, GATHER, 3, 1, 0, 48);
    CHECK(h.p.max_operands == 1);
    plan_make(&h, PUSH, 8, 1, 0, 48);
    CHECK(h.p.max_operands == 8);
}

/* ---- rounds ------------------------------------------------------------------------ */

/* Every member has read what every other asked for. */
static void check_lines(const struct st_request *q, const struct round *r, uint32_t n)
{
    int mail = r->kind == MAIL || r->kind == MAIL_ROOT;

    CHECK(q->lines);
    for (uint32_t j = 0; j < n; j++) {
        int odd = r->odd == j;
        uint64_t want = ST_DESC(1 + r->kind, ST_SUM, ST_I64, r->root, mail);

        CHECK(q->lines[2 * j] == (want ^ (!odd || r->oddity == 0 ? 0 : r->oddity == 1 ? 1ull << 48 : 1)));
        CHECK(q->lines[2 * j + 1] == r->count + (odd && r->oddity == 0));
    }
    free(q->lines);
}

static void play(struct die *die)
{
    struct scene *s = die->arg;
    struct buffers *b = &s->buffers[die->rank];
    struct handle h;
    struct st_group *g = handle_bind(&h, die->ctx, s->memory);
    struct hand_plan plan;
    uint64_t i;

    for (i = 1; i <= s->rounds; i++) {
        struct round r = round_draw(i, g->n, s->mismatches);
        struct st_request q = round_request(&r, &plan, b, g->n, g->me, LONG);
        int rc;

        dawdle(&die->seed);
        rc = st_collective(g, &q);
        CHECK(q.number == i);
        if (r.odd < g->n) {
            CHECK_IS(rc, ST_EMISMATCH);
            check_lines(&q, &r, g->n);
        } else {
            CHECK_IS(rc, ST_OK);
            round_check(&r, b, g->n);
        }
        dawdle(&die->seed);
        buffers_scribble(b, i);
    }
    CHECK(g->ctx->count.operations >= s->rounds);
}

static void test_rounds(uint32_t n, uint64_t sleep_ns, uint32_t pauses, uint64_t rounds)
{
    struct scene s;
    struct dies *d = scene_open(&s, n, sleep_ns);

    for (uint32_t i = 0; i < n; i++) {
        d->ctx[i].wait.pauses = pauses;
        d->ctx[i].wait.spread = n % 2 ? NULL : &d->ctx[i].spread;
    }
    s.rounds = rounds;
    s.mismatches = 6;
    dies_run(d, play, &s);
    CHECK(((struct st_group_header *)(void *)s.memory)->sleepers == 0);
    scene_close(&s, d);
}

/* ---- death ---------------------------------------------------------------------------- */

enum point { BEFORE, ARRIVED, HALFWAY, UNITS_DONE, COMPLETED, POINTS };

/* As far as the point, and no further. */
static void part_of(struct st_group *g, struct st_request *q, enum point point)
{
    void *at[2 * ST_EXEC_OPERANDS];
    struct st_plan part;

    if (point == BEFORE)
        return;
    q->number = ++g->number;
    st_wait_begin(&g->waiter, &g->policy, &g->header->wake_word, &g->header->sleepers, q->timeout_ns);
    st_request_publish(g, q, NULL);
    if (point >= HALFWAY) {
        if (st_group_wait_all(g, ST_PHASE_ARRIVAL, q->number) == ST_OK && q->plan) {
            part = *q->plan;
            part.nunits = point == HALFWAY ? part.nunits / 2 : part.nunits;
            st_request_bases(g, q);
            if (part.mailbox || st_group_begin(g, q->number) == ST_OK)
                (void)st_exec(g, &part, q->number, at, q->timeout_ns); /* another victim may have stopped it */
        }
    }
    st_wait_end(&g->waiter);
}

static struct round scene_round(const struct scene *s, uint64_t i, uint32_t n)
{
    struct round r = round_draw(s->salt + i, n, 0);

    if (i == s->good + 1) { /* the one in which somebody dies */
        r.kind = s->kind;
        r.count = s->kind == MAIL || s->kind == MAIL_ROOT ? 1 + r.count % (DIES_MAILBOX / 8) : r.count;
    }
    return r;
}

static void mortal(struct die *die)
{
    struct scene *s = die->arg;
    struct buffers *b = &s->buffers[die->rank];
    struct st_request *q = &s->request[die->rank], again;
    struct handle h;
    struct st_group *g = handle_bind(&h, die->ctx, s->memory);
    struct hand_plan plan;
    uint64_t i;
    int rc = ST_OK;

    for (i = 1; rc == ST_OK; i++) {
        struct round r = scene_round(s, i, g->n);

        *q = round_request(&r, &plan, b, g->n, g->me, LONG);
        dawdle(&die->seed);
        if (i == s->good + 1 && s->victims >> die->rank & 1 && s->point < COMPLETED) {
            part_of(g, q, (enum point)s->point);
            break;
        }
        rc = st_collective(g, q);
        if (rc == ST_OK)
            round_check(&r, b, g->n);
        buffers_scribble(b, i);
        if (i == s->good + 1 && s->victims >> die->rank & 1)
            break;
        CHECK(i <= s->good + 2);
    }
    s->status[die->rank] = rc;
    if (s->victims >> die->rank & 1) {
        dies_end(die);
        return;
    }
    again = (struct st_request){.timeout_ns = LONG};
    CHECK_IS(st_collective(g, &again), rc); /* it stays broken, and says why */
    CHECK(again.mask[0] == q->mask[0] && again.failed_number == q->failed_number);
}

static void test_deaths(uint32_t n, uint64_t sleep_ns, int trials)
{
    struct scene s;
    struct dies *d = scene_open(&s, n, sleep_ns);
    uint64_t seed = dies_seed + n;

    for (int t = 0; t < trials; t++) {
        uint32_t first = n;

        dies_group(d, s.memory);
        memset(s.request, 0, sizeof s.request);
        s.kind = (enum kind)(t % KINDS);
        s.point = (uint32_t)(t / KINDS) % POINTS;
        s.good = next(&seed) % 4;
        s.salt = next(&seed) % 1000000;
        s.victims = 1u << next(&seed) % n;
        if (n > 3 && next(&seed) % 3 == 0)
            s.victims |= 1u << next(&seed) % n;
        dies_run(d, mortal, &s);
        for (uint32_t j = 0; j < n; j++) {
            if (s.victims >> j & 1)
                continue;
            first = first == n ? j : first;
            CHECK_IS(s.status[j], ST_EDEAD);
            CHECK(s.request[j].mask[0] && !(s.request[j].mask[0] & ~(uint64_t)s.victims));
            CHECK(s.request[j].mask[0] == s.request[first].mask[0]); /* the same on all */
            CHECK(s.request[j].failed_number == s.request[first].failed_number);
            CHECK(s.request[j].failed_by == s.request[first].failed_by && s.request[j].nlate == 0);
            CHECK(!(s.victims >> s.request[j].failed_by & 1));
        }
    }
    scene_close(&s, d);
}

/* ---- slowness, and interruption ---------------------------------------------------------- */

static int poll_after(void *arg) { return --*(int *)arg <= 0; }

/* One member comes late, about when the others give up.  Each returns with its
 * buffers its own again. */
static void patient(struct die *die)
{
    struct scene *s = die->arg;
    struct buffers *b = &s->buffers[die->rank];
    struct st_request *q = &s->request[die->rank];
    struct handle h;
    struct st_group *g = handle_bind(&h, die->ctx, s->memory);
    struct hand_plan plan;
    struct round r = scene_round(s, s->good + 1, g->n);
    int left = (int)s->point; /* polls until a signal comes, if one does */
    int odd = s->victims >> die->rank & 1;
    uint64_t most = s->good % 8 ? 600000 : 20000000;
    struct timespec ts = {0, (long)(next(&die->seed) % most)};

    g->policy.poll_ns = 100000;
    if (odd && left) {
        g->policy.poll = poll_after;
        g->policy.arg = &left;
    } else if (odd || (left && die->rank % 2)) {
        nanosleep(&ts, NULL);
    }
    *q = round_request(&r, &plan, b, g->n, g->me, s->timeout_ns);
    s->status[die->rank] = st_collective(g, q);
    if (s->status[die->rank] == ST_OK)
        round_check(&r, b, g->n);
    buffers_scribble(b, die->rank);
    if (g->me == 0)
        sched_yield();
    buffers_scribble(b, die->rank + 100);
}

static void test_timeouts(uint32_t n, int trials)
{
    struct scene s;
    struct dies *d = scene_open(&s, n, 200000);
    uint64_t seed = dies_seed + n, ends[2] = {0, 0};

    for (int t = 0; t < trials || !ends[1]; t++) {
        uint32_t failed = 0;

        dies_group(d, s.memory);
        memset(s.request, 0, sizeof s.request);
        s.kind = (enum kind)(t % KINDS);
        s.point = 0;
        s.salt = next(&seed) % 1000000;
        s.timeout_ns = 300000;
        s.good = (uint64_t)t;
        s.victims = 1u << next(&seed) % n;
        dies_run(d, patient, &s);
        for (uint32_t j = 0; j < n; j++) {
            CHECK(s.status[j] == ST_OK || s.status[j] == ST_ETIMEOUT);
            if (s.status[j] == ST_OK)
                continue;
            CHECK(s.request[j].mask[0] && s.request[j].nlate == 0 && s.request[j].failed_number == 1);
            CHECK(!failed || s.request[j].mask[0] == s.request[failed - 1].mask[0]);
            failed = j + 1;
        }
        ends[failed != 0]++;
    }
    scene_close(&s, d);
}

static void test_interrupts(uint32_t n, int trials)
{
    struct scene s;
    struct dies *d = scene_open(&s, n, 200000);
    uint64_t seed = dies_seed + n, interrupted = 0;

    for (int t = 0; t < trials || !interrupted; t++) {
        uint32_t who = (uint32_t)(next(&seed) % n);

        dies_group(d, s.memory);
        memset(s.request, 0, sizeof s.request);
        s.kind = (enum kind)(t % KINDS);
        s.point = 1 + (uint32_t)(next(&seed) % 3);
        s.salt = next(&seed) % 1000000;
        s.timeout_ns = LONG;
        s.victims = 1u << who;
        s.good = (uint64_t)t;
        dies_run(d, patient, &s);
        for (uint32_t j = 0; j < n; j++) {
            CHECK(s.status[j] == ST_OK || s.status[j] == (j == who ? ST_EINTR : ST_EBROKEN));
            if (s.status[j] == ST_EBROKEN)
                CHECK(s.request[j].mask[0] == 1ull << who && s.request[j].failed_by == who);
        }
        interrupted += s.status[who] == ST_EINTR;
    }
    scene_close(&s, d);
}

/* A member is interrupted while it waits for one that comes only then. */
static void interrupted_alone(struct die *die)
{
    struct scene *s = die->arg;
    struct buffers *b = &s->buffers[die->rank];
    struct handle h;
    struct st_group *g = handle_bind(&h, die->ctx, s->memory);
    struct hand_plan plan;
    struct round r = {.kind = PUSH, .odd = g->n, .count = 600};
    struct st_request q = round_request(&r, &plan, b, g->n, g->me, LONG);
    int left = 2;

    g->policy.poll_ns = 100000;
    if (die->rank == 0) {
        g->policy.poll = poll_after;
        g->policy.arg = &left;
        CHECK_IS(st_collective(g, &q), ST_EINTR);
        CHECK(left <= 0);
    } else {
        if (die->rank == 1)
            while (st_load_acquire_32(&g->header->fail_state) != ST_FAIL_PUBLISHED)
                sched_yield();
        CHECK_IS(st_collective(g, &q), ST_EBROKEN);
        CHECK(q.mask[0] == 1 && q.failed_by == 0 && q.phase == ST_PHASE_ARRIVAL);
    }
    buffers_scribble(b, 1);
}

/* ---- one that does not stop -------------------------------------------------------------- */

/* Member 1 hangs in the middle of a write, alive: the others say that they cannot
 * promise that it will not go on. */
static int hang_reduce(int dtype, int op, void *const *dst, int ndst, const void *const *src, int nsrc,
                       uint64_t count, int nt)
{
    struct timespec ts = {0, 900000000};

    (void)dtype, (void)op, (void)dst, (void)ndst, (void)src, (void)nsrc, (void)count, (void)nt;
    nanosleep(&ts, NULL);
    return ST_OK;
}

static void hang(struct die *die)
{
    struct scene *s = die->arg;
    struct handle h;
    struct st_group *g = handle_bind(&h, die->ctx, s->memory);
    struct hand_plan plan;
    struct round r = {.kind = PUSH, .odd = g->n, .count = 600};
    struct st_request q = round_request(&r, &plan, &s->buffers[die->rank], g->n, g->me, 20 * MS);

    if (die->rank == 1)
        die->ctx->reduce = hang_reduce;
    CHECK_IS(st_collective(g, &q), ST_ETIMEOUT);
    CHECK(q.mask[0] == 2 && q.failed_number == 1 && q.phase == ST_PHASE_COMPLETION);
    if (die->rank == 1)
        CHECK(q.nlate == 0);
    else
        CHECK(q.nlate == 1 && q.late[0] == 2);
}

/* Member 2 gives up while member 1 is still reading member 0's source, slowly: member 0
 * has its source back only when member 1 has stopped. */
static int slow_reduce(int dtype, int op, void *const *dst, int ndst, const void *const *src, int nsrc,
                       uint64_t count, int nt)
{
    struct timespec ts = {0, 20000000};

    nanosleep(&ts, NULL);
    return plain_reduce(dtype, op, dst, ndst, src, nsrc, count, nt);
}

static void slow_reader(struct die *die)
{
    struct scene *s = die->arg;
    struct buffers *b = &s->buffers[die->rank];
    struct handle h;
    struct st_group *g = handle_bind(&h, die->ctx, s->memory);
    struct hand_plan plan;
    struct round r = {.kind = GATHER, .odd = g->n, .count = 64};
    struct st_request q = round_request(&r, &plan, b, g->n, g->me, die->rank == 2 ? 5 * MS : LONG);

    plan.p.nunits = plan.p.noperands = 0;
    if (die->rank == 1) {
        die->ctx->reduce = slow_reduce;
        for (uint64_t k = 0; k < 2; k++) { /* it looks for a failure before each */
            struct st_unit *u = plan_unit(&plan, ST_UNIT_REDUCE, 256);

            plan_operand(&plan, u, 0, 0, ST_BUF_SRC, 256 * k);
            plan_operand(&plan, u, 0, 2, ST_BUF_SRC, 256 * k);
            plan_operand(&plan, u, 1, 1, ST_BUF_OUT, 256 * k);
        }
    }
    CHECK_IS(st_plan_check(&plan.p, g->n), ST_OK);
    CHECK_IS(st_collective(g, &q), ST_ETIMEOUT);
    CHECK(q.nlate == 0 && q.failed_by == 2);
    buffers_scribble(b, 1);
}

/* ---- addresses that are none --------------------------------------------------------------- */

/* Member 1 names an output that is not in the page table: an error on all, at its
 * address nothing is touched. */
static void bad_address(struct die *die)
{
    struct scene *s = die->arg;
    struct buffers *b = &s->buffers[die->rank];
    struct handle h;
    struct st_group *g = handle_bind(&h, die->ctx, s->memory);
    struct hand_plan plan;
    struct round r = {.kind = PUSH, .odd = g->n, .count = 600};
    struct st_request q = round_request(&r, &plan, b, g->n, g->me, LONG);

    if (die->rank == 1)
        plan.p.nunits = 0; /* the front checks a member's own addresses, not the executor */
    if (die->rank == 1)
        q.out = (void *)(uintptr_t)(s->point == 0   ? st_segment(die->ctx, 1) + 3 * ST_PAGE_BYTES
                                    : s->point == 1 ? 4096
                                    : s->point == 2 ? st_segment(die->ctx, 1) + ST_PAGE_BYTES - 8
                                                    : UINT64_MAX - 7);
    CHECK_IS(st_collective(g, &q), ST_EREG);
    CHECK(q.mask[0] == 1ull << q.failed_by && q.failed_by != 1 && q.phase == ST_PHASE_EXECUTION);
    buffers_scribble(b, 1);
}

static void test_oddities(void)
{
    struct scene s;
    struct dies *d = scene_open(&s, 3, 200000);

    for (s.point = 0; s.point < 4; s.point++) {
        dies_group(d, s.memory);
        dies_run(d, bad_address, &s);
    }
    dies_group(d, s.memory);
    dies_run(d, interrupted_alone, &s);
    dies_group(d, s.memory);
    dies_run(d, slow_reader, &s);
    dies_group(d, s.memory);
    dies_run(d, hang, &s);
    scene_close(&s, d);
}

/* Numbers may start anywhere: only their parity and order count. */
static void started_at(struct die *die, uint64_t start)
{
    struct scene *s = die->arg;
    struct buffers *b = &s->buffers[die->rank];
    struct handle h;
    struct st_group *g = handle_bind(&h, die->ctx, s->memory);
    struct hand_plan plan;

    g->number = start;
    for (uint64_t i = 1; i <= 60; i++) {
        struct round r = round_draw(i, g->n, 0);
        struct st_request q = round_request(&r, &plan, b, g->n, g->me, LONG);

        CHECK_IS(st_collective(g, &q), ST_OK);
        round_check(&r, b, g->n);
        buffers_scribble(b, i);
    }
}

static void late_start(struct die *die)
{
    started_at(die, (1ull << 32) - 20);
}

static void later_start(struct die *die)
{
    started_at(die, (1ull << 63) - 20);
}

int main(int argc, char **argv)
{
    struct scene s;
    struct dies *d;

    dies_setup("test_collective", argc, argv);
    test_plan_check();
    for (uint32_t n = 1; n <= DIES_MOST; n++)
        test_rounds(n, n % 3 ? 100000 : 0, n % 2 ? 0 : 50, (n < 5 ? 1200 : 500) / DIES_SLOW);
    d = scene_open(&s, 3, 0);
    dies_run(d, late_start, &s);
    scene_close(&s, d);
    d = scene_open(&s, 3, 0);
    dies_run(d, later_start, &s);
    scene_close(&s, d);
    test_deaths(2, 200000, 2 * KINDS * POINTS);
    test_deaths(3, 0, 2 * KINDS * POINTS);
    test_deaths(5, LONG, 2 * KINDS * POINTS); /* nobody sleeps: the futex's words give no order */
    test_timeouts(2, 240 / DIES_SLOW);
    test_timeouts(4, 240 / DIES_SLOW);
    test_interrupts(3, 120 / DIES_SLOW);
    test_oddities();
    printf("test_collective: ok\n");
    return 0;
}
