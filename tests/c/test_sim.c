/* The simulator against closed forms: what one can say without it.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -ffp-contract=off -Istrata/_core/include tests/c/test_sim.c && ./a.out
 *
 * Prints the digest of one larger problem: compilers and machines must agree on it (DIGEST).
 */
#include "timings.h"

#define DIGEST UINT64_C(0x98d3e6ffe6e6d2e5)

static void single_flow(void)
{
    struct problem *p = new_problem();
    uint32_t port = add_link(p, 0.196, ST_LINK_UB_IN, 0.0);

    add_lane(p, 0, -1, 0);
    add_task(p, 50000, 2100000, 4194304.0, INFINITY);
    add_use(p, port, 1.0, -1);
    CHECK_IS(simulated(p), ST_SIM_OK);
    CHECK_IS(p->times[0].flowing, 2150000);
    CHECK_IS(p->times[0].done, 2150000 + 21399511); /* ceil(4194304 / 0.196) */
    CHECK_IS(p->s.solves, 1);
    free(p);
}

/* k senders to one port: k m / C, whatever else they have. */
static void incast(void)
{
    for (uint32_t k = 1; k <= 300; k = 3 * k + 1) {
        struct problem *p = new_problem();
        uint32_t port = add_link(p, 0.5, ST_LINK_UB_IN, 0.0);

        for (uint32_t i = 0; i < k; i++) {
            uint32_t own = add_link(p, 1.0, ST_LINK_UB_OUT, 0.0);

            add_lane(p, (int32_t)i, -1, 0);
            add_task(p, 0, 1000, 1e6, 0.75);
            add_use(p, port, 1.0, -1);
            add_use(p, own, 1.0, -1);
        }
        CHECK_IS(simulated(p), ST_SIM_OK);
        CHECK_IS(p->s.end, k == 1 ? 1000 + 2000000 : 1000 + (int64_t)k * 2000000);
        CHECK(p->s.residual < 1e-12);
        free(p);
    }
}

/* n dies, each pulls from each other at once, all through one port a direction: (n - 1) m / C. */
static void mesh(double loss, int64_t expected)
{
    enum { N = 32 };
    struct problem *p = new_problem();
    uint32_t out[N], in[N];

    for (int d = 0; d < N; d++)
        out[d] = add_link(p, 0.196, ST_LINK_UB_OUT, loss);
    for (int d = 0; d < N; d++)
        in[d] = add_link(p, 0.196, ST_LINK_UB_IN, loss);
    for (int d = 0; d < N; d++)
        for (int k = 1; k < N; k++) {
            int peer = (d + k) % N;

            add_lane(p, d, -1, 0);
            add_task(p, 0, 200000, 4194304.0, 1.0)->backlog = ST_TIMING_BACKLOG_ONE / 2;
            add_use(p, out[peer], 1.0, d);
            add_use(p, in[d], 1.0, peer);
            add_use(p, add_link(p, 0.15, ST_LINK_PAIR, 0.0), 1.0, -1);
        }
    CHECK_IS(simulated(p), ST_SIM_OK);
    CHECK(llabs(p->s.end - expected) <= 1);
    free(p);
}

/* n dies in a ring, n - 1 steps, each after the flag of the one before: (n - 1) (seen + alpha + m / hop). */
static void ring(void)
{
    enum { N = 16 };
    struct problem *p = new_problem();
    uint32_t in[N];

    for (int d = 0; d < N; d++)
        in[d] = add_link(p, 0.15, ST_LINK_UB_IN, 0.0);
    for (int d = 0; d < N; d++)
        for (int k = 0; k < N - 1; k++)
            add_flag(p, 1, -1);
    for (int d = 0; d < N; d++) {
        add_lane(p, d, -1, 0);
        for (int k = 0; k < N - 1; k++) {
            struct st_timing_task *t = add_task(p, 0, 2100000, 4194304.0, INFINITY);

            add_use(p, in[d], 1.0, -1);
            t->post = d * (N - 1) + k;
            if (k) {
                t->wait[1] = (d + N - 1) % N * (N - 1) + k - 1;
                t->wait_ps[1] = 1463000;
            }
        }
    }
    CHECK_IS(simulated(p), ST_SIM_OK);
    CHECK_IS(p->s.end, (N - 1) * (2100000 + INT64_C(27962027)) + (N - 2) * 1463000);
    free(p);
}

/* Two bounds below a port's share, one above: 0.1 and 0.2 at their bounds, the last has the rest, then all. */
static void two_bounds(void)
{
    struct problem *p = new_problem();
    uint32_t port = add_link(p, 1.0, ST_LINK_HBM, 0.0);
    double bound[] = {0.1, 0.2, 0.9}, work[] = {1e6, 1e6, 1e6};

    for (int i = 0; i < 3; i++) {
        add_lane(p, 0, -1, 0);
        add_task(p, 0, 0, work[i], bound[i]);
        add_use(p, port, i == 2 ? 2.0 : 1.0, -1); /* the last takes the port twice */
    }
    CHECK_IS(simulated(p), ST_SIM_OK);
    CHECK_IS(p->times[0].done, 10000000);
    CHECK_IS(p->times[1].done, 5000000);
    CHECK_IS(p->times[2].done, 2857143); /* 1e6 / ((1 - 0.3) / 2) */
    free(p);
}

/* A kernel on the cores that lanes leave: 2 of 4 while one lane of two holds, none while three hold. */
static void pool(void)
{
    struct problem *p = new_problem();
    uint32_t cores = add_link(p, 4.0, ST_LINK_POOL, 0.0);
    int32_t flag = add_flag(p, 1, -1);

    add_lane(p, 0, -1, 0); /* 3,000,000 at full speed, that is, at 4 cores */
    add_task(p, 0, 0, 3e6, 1.0)->kind = ST_TASK_COMPUTE;
    add_use(p, cores, 4.0, -1);
    for (int i = 0; i < 4; i++) {
        add_lane(p, 0, (int32_t)cores, 0);
        if (i == 3) { /* waits, and holds no core before it has */
            add_task(p, 100, 0, 0.0, 1.0)->wait[0] = flag;
            p->tasks[p->s.ntasks - 1].wait_ps[0] = 500;
        } else
            add_task(p, 1000000, 0, 0.0, 1.0);
    }
    add_lane(p, 0, -1, 0);
    add_task(p, 500000, 0, 0.0, 1.0)->post = flag;
    CHECK_IS(simulated(p), ST_SIM_OK);
    CHECK_IS(p->times[4].begun, 500500);
    /* 1 core of 4 to 1,000,000, but for 100 with none; then all */
    CHECK_IS(p->times[0].done, 1000000 + 3000000 - (1000000 - 100) / 4);
    free(p);
}

/* Tiers of a rendezvous, members in order and not; both must say what each pair says. */
static void meet(int turned)
{
    enum { N = 12 };
    struct problem *p = new_problem();
    int64_t seen[4] = {100, 2000, 700, 2100};

    p->s.package = 2;
    p->s.node = 4;
    p->s.nrendezvous = 1;
    p->rendezvous[0] = (struct st_timing_rendezvous){0, N, 300, {100, 2000, 700, 2100}};
    for (int i = 0; i < N; i++) {
        int32_t arrive = add_flag(p, 1, 0), start = add_flag(p, 1, -1);

        p->members[p->s.nmembers++] = (struct st_timing_member){turned ? (5 * i + 3) % N : i, arrive, start, 0};
        add_lane(p, i, -1, 0);
        add_task(p, 7919 * i % 3001, 0, 0.0, 1.0)->post = arrive;
    }
    CHECK_IS(simulated(p), ST_SIM_OK);
    for (int i = 0; i < N; i++) {
        int64_t last = 0;

        for (int j = 0; j < N; j++) {
            int a = p->members[i].die, b = p->members[j].die, tier = a == b ? 0 : a / 2 == b / 2 ? 1 : a / 4 == b / 4 ? 2 : 3;
            int64_t at = p->raised[p->members[j].arrive] + seen[tier];

            last = at > last ? at : last;
        }
        CHECK_IS(p->raised[p->members[i].start], 300 + last);
    }
    free(p);
}

/* The next task's hold and latency go on while one flows, and flows stay in order. */
static void ahead(void)
{
    for (uint32_t a = 0; a < 2; a++) {
        struct problem *p = new_problem();

        add_lane(p, 0, -1, a);
        for (int i = 0; i < 3; i++)
            add_task(p, 100, 1000, i == 1 ? 500.0 : 5000.0, 1.0);
        add_task(p, 0, 0, 0.0, 1.0);
        CHECK_IS(simulated(p), ST_SIM_OK);
        CHECK_IS(p->times[0].done, 6100);
        CHECK_IS(p->times[1].ready, a ? 1100 : 6100);
        CHECK_IS(p->times[1].done, a ? 6600 : 7700);
        CHECK_IS(p->times[2].flowing, a ? 7200 : 8800); /* ahead: ready at 6100 */
        CHECK_IS(p->times[3].done, a ? 12200 : 13800);
        free(p);
    }
}

static void never(void)
{
    struct problem *p = new_problem();
    int32_t flag = add_flag(p, 2, -1);

    add_lane(p, 0, -1, 0);
    add_task(p, 0, 0, 0.0, 1.0)->post = flag;
    add_lane(p, 0, -1, 0);
    add_task(p, 0, 0, 0.0, 1.0)->wait[1] = flag;
    CHECK_IS(simulated(p), ST_SIM_EDEADLOCK);
    free(p);
    p = new_problem();
    add_lane(p, 0, -1, 0);
    add_task(p, 0, 0, 1.0, 1.0);
    add_use(p, add_link(p, 0.0, ST_LINK_HBM, 0.0), 1.0, -1);
    CHECK_IS(simulated(p), ST_SIM_EDEADLOCK);
    free(p);
    p = new_problem();
    add_lane(p, 0, -1, 0);
    add_task(p, 0, 0, 1e30, 1e-10);
    CHECK_IS(simulated(p), ST_SIM_ETIME);
    free(p);
}

static uint64_t dice = 88172645463325252u;

static uint64_t roll(uint64_t below)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return dice % below;
}

/* Much at once, none of it round: the same digest everywhere. */
static void digest(void)
{
    enum { N = 24, CORES = 6, UNITS = 12 };
    struct problem *p = new_problem();
    uint32_t out[N], in[N], hbm[N], cores[N];

    for (int d = 0; d < N; d++) {
        out[d] = add_link(p, 0.196, ST_LINK_UB_OUT, 0.0785);
        in[d] = add_link(p, 0.196, ST_LINK_UB_IN, 0.0785);
        hbm[d] = add_link(p, 0.3, ST_LINK_HBM, 0.0);
        cores[d] = add_link(p, CORES, ST_LINK_POOL, 0.0);
    }
    for (int d = 0; d < N; d++) {
        add_lane(p, d, -1, 0);
        add_task(p, 1000, 0, 1e7, 1.0)->kind = ST_TASK_COMPUTE;
        add_use(p, cores[d], CORES, -1);
        add_use(p, hbm[d], 0.013, -1);
        for (int c = 0; c < CORES; c++) {
            add_lane(p, d, (int32_t)cores[d], (uint32_t)roll(2));
            for (int u = 0; u < UNITS; u++) {
                int peer = (int)roll(N); /* one roll after the other: arguments have no order */
                int64_t hold = (int64_t)roll(60000), latency = (int64_t)roll(2100000);
                double work = (double)(1 + roll(1 << 20)), bound = 0.03 + 0.001 * (double)roll(40);

                add_task(p, hold, latency, work, bound);
                p->tasks[p->s.ntasks - 1].backlog = (int32_t)roll(ST_TIMING_BACKLOG_ONE + 1);
                add_use(p, out[peer], 1.0, d);
                add_use(p, in[d], 1.0 / 3.0, peer);
                add_use(p, hbm[d], 1.0 + 0.1 * (double)roll(10), -1);
                add_use(p, hbm[peer], 1.0, -1);
            }
        }
    }
    CHECK_IS(simulated(p), ST_SIM_OK);
    CHECK(p->s.residual < 1e-11);
    printf("digest %016llx, end %lld ps, %llu solves, residual %g\n", (unsigned long long)p->s.digest,
           (long long)p->s.end, (unsigned long long)p->s.solves, p->s.residual);
    CHECK(p->s.digest == DIGEST);
    free(p);
}

int main(void)
{
    single_flow();
    incast();
    mesh(0.0, 200000 + INT64_C(663384817));
    /* 4.954 = log2(31), backlog 1 / 2: the ports give so much less */
    mesh(0.0785, 200000 + INT64_C(792381457));
    ring();
    two_bounds();
    pool();
    meet(0);
    meet(1);
    ahead();
    never();
    digest();
    return 0;
}
