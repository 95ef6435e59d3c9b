/* Problems for the simulator, put together by hand: arrays of fixed room, and a run with memory of its own. */
#ifndef TIMINGS_H
#define TIMINGS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "st_sim.h"

#define CHECK(truth)                                                    \
    do {                                                                \
        if (!(truth)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #truth); \
            exit(1);                                                    \
        }                                                               \
    } while (0)
#define CHECK_IS(value, expected)                                                                             \
    do {                                                                                                      \
        long long value_ = (long long)(value), expected_ = (long long)(expected);                             \
        if (value_ != expected_) {                                                                            \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #value, value_, expected_);  \
            exit(1);                                                                                          \
        }                                                                                                     \
    } while (0)

enum { ROOM = 40000 };

struct problem {
    struct st_timing_link links[ROOM];
    struct st_timing_use uses[ROOM];
    struct st_timing_task tasks[ROOM];
    struct st_timing_lane lanes[ROOM];
    struct st_timing_flag flags[ROOM];
    struct st_timing_member members[ROOM];
    struct st_timing_rendezvous rendezvous[8];
    struct st_timing_times times[ROOM];
    int64_t raised[ROOM];
    struct st_sim s;
    int64_t window;
};

static inline struct problem *new_problem(void)
{
    struct problem *p = calloc(1, sizeof *p);

    CHECK(p);
    return p;
}

static inline uint32_t add_link(struct problem *p, double capacity, int kind, double loss)
{
    p->links[p->s.nlinks] = (struct st_timing_link){capacity, loss, kind, 0};
    return (uint32_t)p->s.nlinks++;
}

static inline int32_t add_flag(struct problem *p, int32_t need, int32_t rendezvous)
{
    p->flags[p->s.nflags] = (struct st_timing_flag){need, rendezvous};
    return (int32_t)p->s.nflags++;
}

static inline uint32_t add_lane(struct problem *p, int32_t die, int32_t pool, uint32_t ahead)
{
    p->lanes[p->s.nlanes] = (struct st_timing_lane){(uint32_t)p->s.ntasks, 0, die, pool, 0, ahead};
    return (uint32_t)p->s.nlanes++;
}

/* A task of the last lane; add_use, for each of its links, is next. */
static inline struct st_timing_task *add_task(struct problem *p, int64_t hold, int64_t latency, double work, double bound)
{
    struct st_timing_task *t = &p->tasks[p->s.ntasks++];

    p->lanes[p->s.nlanes - 1].count++;
    *t = (struct st_timing_task){.hold_ps = hold, .latency_ps = latency, .work = work, .bound = bound,
                                 .wait = {-1, -1}, .post = -1, .use_first = (uint32_t)p->s.nuses, .kind = 1};
    return t;
}

static inline void add_use(struct problem *p, uint32_t link, double weight, int32_t peer)
{
    p->uses[p->s.nuses++] = (struct st_timing_use){link, peer, weight};
    p->tasks[p->s.ntasks - 1].nuse++;
}

static inline void given(struct problem *p)
{
    struct st_sim *s = &p->s;

    s->links = p->links;
    s->uses = p->uses;
    s->tasks = p->tasks;
    s->lanes = p->lanes;
    s->flags = p->flags;
    s->members = p->members;
    s->rendezvous = p->rendezvous;
    s->times = p->times;
    s->raised = p->raised;
    s->package = s->package ? s->package : 1;
    s->node = s->node ? s->node : 1;
    s->check = 1;
    s->window = p->window;
}

/* Runs it, a few events at a time, with every solve proved. */
static inline enum st_sim_status simulated(struct problem *p)
{
    struct st_sim s;
    uint8_t *owner = malloc(2 * ROOM);
    uint64_t at;
    char *memory;
    int rc = ST_SIM_MORE;

    given(p);
    s = p->s;
    CHECK_IS(st_sim_check(&s, owner, &at), ST_SIM_RIGHT);
    CHECK(st_sim_count(&s));
    memory = malloc(st_sim_arena(&s, NULL));
    CHECK(memory && owner);
    memset(memory, 0xa5, st_sim_arena(&s, NULL)); /* whatever was there */
    st_sim_arena(&s, memory);
    st_sim_load(&s);
    while (rc == ST_SIM_MORE)
        rc = st_sim_run(&s, 7);
    free(memory);
    free(owner);
    p->s.digest = s.digest;
    p->s.end = s.end;
    p->s.solves = s.solves;
    p->s.residual = s.residual;
    return (enum st_sim_status)rc;
}

#endif
