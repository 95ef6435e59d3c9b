/* Gates that wait for each other are found out, all of them end, and nothing else is taken for a cycle.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_sdma_cycle.c && ./a.out [seed]
 */
#include "rigs.h"

static uint64_t dice;

/* Rounds with a look in each, so to speak: no time passes between two. */
static struct rig *open_looking(uint32_t n, int threads)
{
    struct rig *r = rig_open(n, 16, 0);

    for (uint32_t i = 0; i < n; i++) {
        r->d->ctx[i].wait.poll_ns = threads ? 100000 : 1;
        if (threads)
            CHECK_IS(st_engine_start(r->e[i]), ST_OK);
    }
    return r;
}

/* Runs until dies [from, to) have looked `looks` times more. */
static void look(struct rig *r, uint32_t from, uint32_t to, uint64_t looks)
{
    for (uint32_t i = from; i < to; i++) {
        uint64_t until = r->e[i]->count.looks + looks;

        while (r->e[i]->count.looks < until)
            st_engine_round(r->e[i]);
    }
}

/* ---- cycles --------------------------------------------------------------------------- */

enum how { BY_WRITE, BY_ADD, BY_COUNT, BY_CALL, BY_CALL_GATED, BY_WORLD, HOWS };

/* Ring k of n waits for flag k, and behind that raises flag k + 1. */
struct knot {
    struct rig *r;
    uint32_t n, dies;
    struct st_lane lane[DIES_MOST];
    uint32_t event[DIES_MOST];
    uint64_t *flag[DIES_MOST];
};

static struct st_descriptor opener(struct knot *k, uint32_t i, enum how how, uint64_t *counter)
{
    uint64_t *flag = k->flag[(i + 1) % k->n];

    switch (how) {
    case BY_ADD: return make_add(flag, 7);
    case BY_COUNT: return make_count(counter, 1, flag, 7);
    default: return make_write(flag, 7);
    }
}

static void tie(struct knot *k, uint32_t i, enum how how, int later)
{
    uint32_t die = i % k->dies;
    struct st_descriptor d[4], *list = rig_take(k->r, die, 40 * sizeof *list);
    uint64_t *counter = rig_take(k->r, die, 64), n = 0, far, fill = next(&dice) % 40;

    for (far = 0; far < fill; far++) { /* something else around */
        list[far] = make_copy(counter + 1, counter + 2, 8);
    }
    if (how == BY_CALL_GATED) { /* gate and opener in one list; what it waits for is said to the call */
        list[0] = with_flags(make_gate(k->flag[i], 1), ST_SDMA_RELATIVE);
        list[1] = make_copy(counter + 1, counter + 2, 8);
        list[2] = with_flags(make_write(k->flag[(i + 1) % k->n], 1), ST_SDMA_RELATIVE);
        d[n++] = with_event(make_call(list, 3, 6), k->event[i]);
    } else {
        d[n++] = with_event(make_gate(k->flag[i], 7), k->event[i]);
        d[n++] = with_event(opener(k, i, how, counter), k->event[i]);
        if (how == BY_CALL) {
            list[fill < 39 ? fill : 39] = d[1];
            d[1] = with_event(make_call(list, 40, 0), k->event[i]);
            for (far = fill + 1; far < 40; far++)
                list[far] = (struct st_descriptor){.type = ST_SDMA_NOP};
        }
    }
    if (later && n == 2) { /* the opener is another chain's */
        rig_put(k->r, die, &k->lane[i], d, 1);
        d[1].event = 0;
        rig_put(k->r, die, &k->lane[i], &d[1], 1);
        n = 0;
    }
    d[n++] = make_notify(k->event[i]);
    rig_put(k->r, die, &k->lane[i], d, n);
}

/* n rings of so many dies, knotted; with `later`, whoever gives up lets the others go on. */
static void test_knot(uint32_t n, uint32_t dies, enum how how, int later, int threads)
{
    struct knot k = {.r = open_looking(dies, threads), .n = n, .dies = dies};
    uint32_t i, found = 0, seen, j, status;
    struct st_event *v;

    for (i = 0; i < n; i++) {
        k.lane[i] = rig_ring(k.r, i % dies, 8, next(&dice));
        k.event[i] = st_event_take(k.r->e[i % dies], NULL, NULL);
        k.flag[i] = rig_take(k.r, (uint32_t)(next(&dice) % dies), 64);
    }
    for (i = 0; i < n; i++)
        tie(&k, i, how == HOWS ? (enum how)(next(&dice) % BY_WORLD) : how, later);
    for (i = 0; i < n; i++) {
        v = &k.r->e[i % dies]->events[k.event[i]];
        if (threads)
            rig_wait(k.r, i % dies, k.event[i], 1);
        else
            while (st_event_count(k.r->e[i % dies], k.event[i]) == 0)
                st_engine_round(k.r->e[next(&dice) % dies]);
    }
    for (i = 0; i < n; i++) {
        v = &k.r->e[i % dies]->events[k.event[i]];
        status = (uint32_t)st_event_status(k.r->e[i % dies], k.event[i]);
        CHECK(status == ST_EDEADLOCK || (later && status == ST_OK));
        if (status == ST_OK || v->ncycle == 0)
            continue; /* let go, or by poison */
        found++;
        CHECK_IS(v->ncycle, n);
        for (j = 0, seen = 0; j < n; j++) { /* from the one that found it, each waiting for the next */
            uint32_t at = (i + n - j) % n;

            CHECK(v->cycle[j].die == at % dies && v->cycle[j].ring == k.lane[at].index);
            CHECK(v->cycle[j].va == VA(k.flag[at]) && v->cycle[j].value == 7);
            seen |= 1u << at;
        }
        CHECK(seen == (1u << n) - 1);
    }
    CHECK(found > 0);
    rig_close(k.r);
}

/* Flags of the world group are offsets. */
static void test_world_knot(void)
{
    struct rig *r = open_looking(2, 0);
    uint64_t at = st_group_flags_off(2);
    struct st_lane lane[2] = {rig_ring(r, 0, 4, 0), rig_ring(r, 1, 4, 0)};
    uint32_t i, event[2];
    struct st_descriptor d[3];

    for (i = 0; i < 2; i++) {
        event[i] = st_event_take(r->e[i], NULL, NULL);
        d[0] = (struct st_descriptor){.type = ST_SDMA_GATE, .flags = ST_SDMA_WORLD, .src = at + 8 * i, .value = 1,
                                      .bytes = FOREVER, .event = event[i]};
        d[1] = (struct st_descriptor){.type = ST_SDMA_WRITE, .flags = ST_SDMA_WORLD, .dst = at + 8 * !i, .value = 1,
                                      .event = event[i]};
        d[2] = make_notify(event[i]);
        rig_put(r, i, &lane[i], d, 3);
    }
    for (i = 0; i < 2; i++)
        while (!st_event_count(r->e[i], event[i]))
            st_engine_round(r->e[next(&dice) % 2]);
    CHECK(st_event_status(r->e[0], event[0]) == ST_EDEADLOCK && st_event_status(r->e[1], event[1]) == ST_EDEADLOCK);
    rig_close(r);
}

/* ---- what is none ------------------------------------------------------------------------ */

/* Die 0 and 1 wait for each other, but something else may raise a flag. */
struct miss {
    struct rig *r;
    struct st_lane lane[4];
    uint64_t *flag[4];
};

static struct miss miss_open(void)
{
    struct miss m = {.r = open_looking(3, 0)};
    struct st_descriptor d[2];

    for (uint32_t i = 0; i < 4; i++) {
        m.lane[i] = rig_ring(m.r, i % 3, 4, 0);
        m.flag[i] = rig_take(m.r, i % 3, 64);
    }
    for (uint32_t i = 0; i < 2; i++) {
        d[0] = make_gate(m.flag[i], 5);
        d[1] = make_write(m.flag[!i], 5);
        rig_put(m.r, i, &m.lane[i], d, 2);
    }
    return m;
}

/* Nobody has given up; then all goes well. */
static void miss_close(struct miss *m, uint64_t *flag)
{
    look(m->r, 0, 2, 10);
    CHECK(rig_head(&m->lane[0]) == 0 && rig_head(&m->lane[1]) == 0);
    if (flag)
        *flag = 5;
    rig_run(m->r);
    for (uint32_t i = 0; i < 4; i++)
        CHECK(rig_head(&m->lane[i]) == m->lane[i].ring->tail && m->lane[i].ring->failed == 0);
    CHECK(*m->flag[0] == 5 && *m->flag[1] == 5);
    rig_close(m->r);
}

static void test_misses(void)
{
    struct st_descriptor d[3], *list;
    struct miss m;
    uint64_t *cpu;

    m = miss_open(); /* another ring has not come to it yet */
    d[0] = make_write(m.flag[0], 5);
    rig_put(m.r, 2, &m.lane[2], d, 1);
    miss_close(&m, NULL);

    m = miss_open(); /* it is in a list */
    list = rig_take(m.r, 2, 100 * sizeof *list);
    for (uint32_t i = 0; i < 100; i++)
        list[i] = (struct st_descriptor){.type = ST_SDMA_NOP};
    list[99] = with_flags(make_write(m.flag[1], 3), ST_SDMA_RELATIVE);
    d[0] = make_call(list, 100, 2);
    rig_put(m.r, 2, &m.lane[2], d, 1);
    miss_close(&m, NULL);

    m = miss_open(); /* it lies behind a gate that a CPU may open */
    cpu = m.flag[3];
    d[0] = make_gate(cpu, 5);
    d[1] = make_add(m.flag[1], 5);
    rig_put(m.r, 0, &m.lane[3], d, 2);
    look(m.r, 0, 1, 2);
    miss_close(&m, cpu);

    m = miss_open(); /* a ring of the same die that is not rung yet, after two chains of others */
    d[0] = d[1] = (struct st_descriptor){.type = ST_SDMA_NOP};
    d[2] = make_count(m.flag[2] + 1, 1, m.flag[0], 9);
    rig_put(m.r, 2, &m.lane[2], d, 3);
    look(m.r, 0, 2, 10);
    CHECK(rig_head(&m.lane[0]) == 0 && rig_head(&m.lane[1]) == 0);
    rig_run(m.r);
    CHECK(*m.flag[1] == 5 && m.lane[0].ring->failed == 0 && m.lane[1].ring->failed == 0);
    rig_close(m.r);
}

/* A gate that waits for a CPU, alone or before its own ring's smaller value. */
static void test_cpu(void)
{
    struct rig *r = open_looking(1, 0);
    struct st_lane lane = rig_ring(r, 0, 4, 0);
    uint64_t *flag = rig_take(r, 0, 64);
    struct st_descriptor d[3] = {make_gate(flag, 5), make_write(flag, 4), make_write(flag + 1, 9)};

    rig_put(r, 0, &lane, d, 1);
    look(r, 0, 1, 10);
    CHECK(rig_head(&lane) == 0);
    *flag = 5;
    rig_run(r);
    *flag = 0;
    rig_put(r, 0, &lane, d, 3);
    look(r, 0, 1, 10);
    CHECK(rig_head(&lane) == 1);
    *flag = 5;
    rig_run(r);
    CHECK(rig_head(&lane) == 4 && *flag == 4 && flag[1] == 9 && lane.ring->failed == 0);
    rig_close(r);
}

/* What a dead die's rings hold will not be executed, so it neither opens nor closes anything. */
static void test_dead(void)
{
    struct miss m = miss_open();
    struct st_descriptor d[1] = {make_write(m.flag[0], 5)};

    rig_put(m.r, 2, &m.lane[2], d, 1);
    look(m.r, 0, 2, 3);
    CHECK(rig_head(&m.lane[0]) == 0);
    dies_end(&(struct die){.dies = m.r->d, .rank = 2});
    while (rig_head(&m.lane[0]) != 2 || rig_head(&m.lane[1]) != 2)
        st_engine_round(m.r->e[next(&dice) % 2]);
    CHECK(m.lane[0].ring->failed + m.lane[1].ring->failed >= 1);
    rig_close(m.r);
}

/* One flag under two addresses. */
static void test_alias(void)
{
    struct rig *r = open_looking(2, 0);
    struct st_ctx *c = &r->d->ctx[0];
    struct st_lane lane = rig_ring(r, 0, 4, 0), other = rig_ring(r, 1, 4, 0);
    uint64_t va[2], word, done, *flag;
    struct st_descriptor d[2];

    CHECK_IS(st_handle_create(c, 1, &word), ST_OK);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK_IS(st_va_reserve(c, 1, 1, &va[i]), ST_OK);
        CHECK_IS(st_vmm_map(c, va[i], &word, 1), ST_OK);
        CHECK_IS(st_vmm_access(c, va[i], 1, ST_PAGE_MAPPED, &done), ST_OK);
    }
    flag = (uint64_t *)(uintptr_t)va[0];
    d[0] = make_gate(flag, 1);
    d[1] = make_write(flag, 2);
    rig_put(r, 0, &lane, d, 2);
    d[0] = make_write((uint64_t *)(uintptr_t)va[1], 1); /* elsewhere, and free to run */
    rig_put(r, 1, &other, d, 1);
    look(r, 0, 1, 10);
    CHECK(rig_head(&lane) == 0);
    rig_run(r);
    CHECK(rig_head(&lane) == 2 && *flag == 2);
    rig_close(r);
}

/* ---- at random ------------------------------------------------------------------------------ */

enum { RINGS = 6, STEPS = 40 };

/* Flags are raised once each, by a random ring; gates wait for any of them, so that some never open.  Whatever cannot
 * end by itself must be ended, and nothing else may be. */
static void test_random(int threads)
{
    struct {
        int gate;
        uint32_t flag;
    } steps[RINGS][2 * STEPS];
    uint32_t count[RINGS] = {0}, at[RINGS] = {0}, dies = 1 + (uint32_t)(next(&dice) % 3), k, i, moved, ring, stuck = 0;
    struct rig *r = open_looking(dies, threads);
    uint32_t event[RINGS], backwards = (uint32_t)(next(&dice) % 30), deadlocks = 0;
    uint64_t *flags = rig_take(r, 0, 8 * STEPS);
    struct st_lane lane[RINGS];
    int raised[STEPS] = {0};

    for (k = 0; k < STEPS; k++) { /* in this order all would be well, but for gates on flags of later steps */
        ring = (uint32_t)(next(&dice) % RINGS);
        if (k && next(&dice) % 3) {
            steps[ring][count[ring]].gate = 1;
            steps[ring][count[ring]++].flag = (uint32_t)(next(&dice) % (next(&dice) % 100 < backwards ? STEPS : k));
        }
        steps[ring][count[ring]].gate = 0;
        steps[ring][count[ring]++].flag = k;
    }
    do { /* what will come of it */
        for (ring = 0, moved = 0; ring < RINGS; ring++)
            while (at[ring] < count[ring] && (!steps[ring][at[ring]].gate || raised[steps[ring][at[ring]].flag])) {
                if (!steps[ring][at[ring]].gate)
                    raised[steps[ring][at[ring]].flag] = 1;
                at[ring]++;
                moved = 1;
            }
    } while (moved);
    for (ring = 0; ring < RINGS; ring++) {
        struct st_descriptor d[2 * STEPS + 1];

        stuck += at[ring] < count[ring];
        lane[ring] = rig_ring(r, ring % dies, 128, 0);
        event[ring] = st_event_take(r->e[ring % dies], NULL, NULL);
        for (i = 0; i < count[ring]; i++) {
            uint64_t *flag = &flags[steps[ring][i].flag];

            d[i] = steps[ring][i].gate ? make_gate(flag, 3) : next(&dice) % 2 ? make_write(flag, 4) : make_add(flag, 3);
            d[i].event = event[ring];
        }
        d[i] = make_notify(event[ring]);
        rig_put(r, ring % dies, &lane[ring], d, i + 1);
    }
    for (ring = 0; ring < RINGS; ring++) {
        while (!st_event_count(r->e[ring % dies], event[ring]))
            if (!threads)
                st_engine_round(r->e[next(&dice) % dies]);
            else
                sched_yield();
        i = (uint32_t)st_event_status(r->e[ring % dies], event[ring]);
        CHECK(i == ST_OK || i == ST_EDEADLOCK);
        deadlocks += i == ST_EDEADLOCK;
    }
    CHECK((deadlocks > 0) == (stuck > 0));
    rig_close(r);
}

int main(int argc, char **argv)
{
    dice = dies_setup("test_sdma_cycle", argc, argv);
    for (uint32_t how = 0; how <= HOWS; how++)
        for (int later = 0; later < 2 && how != BY_WORLD; later++) {
            test_knot(1, 1, (enum how)how, later, 0);
            test_knot(2, 1, (enum how)how, later, 0);
            test_knot(2, 2, (enum how)how, later, 0);
            test_knot(3, 3, (enum how)how, later, 0);
            test_knot(7, 3, (enum how)how, later, 0);
        }
    test_knot(1, 1, BY_WRITE, 0, 1);
    test_knot(3, 3, BY_WRITE, 0, 1);
    test_knot(5, 3, HOWS, 1, 1);
    test_world_knot();
    test_misses();
    test_cpu();
    test_dead();
    test_alias();
    for (int i = 0; i < 60 / DIES_SLOW; i++)
        test_random(i % 2);
    printf("test_sdma_cycle: ok\n");
    return 0;
}
