/* What a simulation holds: what is given, what it works on, what it finds.  Memory is the caller's. */
#ifndef ST_SIM_TYPES_H
#define ST_SIM_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include "st_fanout.h"
#include "st_maxmin.h"
#include "st_timing.h"

#define ST_SIM_NONE 0xffffffffu
#define ST_SIM_NEVER INT64_MAX
#define ST_SIM_MOST (INT64_C(1) << 53)   /* ps: no wait, hold or latency is longer */
#define ST_SIM_LAST (INT64_C(1) << 61)   /* ps: nothing happens later */

enum st_sim_status {
    ST_SIM_OK = 0,
    ST_SIM_MORE = 1,      /* not through yet: call again */
    ST_SIM_EDEADLOCK = 2, /* tasks remain, and nothing will happen */
    ST_SIM_ETIME = 3,     /* something happens after ST_SIM_LAST */
    ST_SIM_ERESIDUAL = 4  /* rates fail the certificate: a bug */
};

/* Kinds of events, in the order in which those of one instant are handled. */
enum st_sim_event {
    ST_SIM_DONE = 0,  /* a lane's flow has done its work */
    ST_SIM_START = 1, /* a member of a rendezvous is let go */
    ST_SIM_TAKEN = 2, /* a lane's first task has waited: it holds its core from now on */
    ST_SIM_FLOW = 3   /* a task's latency has passed */
};

struct st_sim_due {
    int64_t time;
    uint64_t what; /* event << 32 | lane or member */
};

/* What is due at one instant, as far as it was heard of side by side: events of many lanes mostly coincide. */
struct st_sim_instant {
    int64_t time;
    uint32_t bucket, pad;
};

struct st_sim_bucket {
    int64_t time;
    uint32_t first, last; /* in s->pending */
    uint32_t live, next;  /* next: of the free ones, + 1 */
};

struct st_sim_pending {
    uint64_t what;
    uint32_t next; /* + 1 */
    uint32_t pad;
};

#define ST_SIM_RECENT 64 /* buckets that are found again by their time */

struct st_sim_lane {
    uint32_t at;     /* task in steps 1 to 3 */
    uint32_t end;
    uint32_t flow;   /* slot of what flows, or ST_SIM_NONE */
    uint32_t waiter; /* next lane that waits for the same flag, + 1 */
    uint8_t blocked; /* `at` would flow, but for the task before it */
    uint8_t holds;   /* a core */
    uint8_t pad[2];
};

struct st_sim_slot { /* a flow */
    double left;     /* of its work, at `since` */
    double rate;
    int64_t since;
    uint32_t lane;
    uint32_t task;
    int32_t post;
    int32_t backlog;
    uint32_t route;
    uint32_t next, before; /* of those that flow along it, + 1 */
    uint32_t pad;
};

/* A use that matters. */
struct st_sim_hop {
    double weight;
    uint32_t link;   /* in st_mm */
    uint32_t fanout; /* of a port with a loss, or ST_SIM_NONE */
    int32_t peer;    /* ... and ~peer where the route has met the port before */
    uint32_t pad;
};

/* What tasks with the same uses and the same bound have in common: s->way bytes for each.  Those that flow at a time
 * are one flow of st_mm. */
struct st_sim_route {
    uint32_t flow;   /* in st_mm, + 1, while there is one; its `given` is the first slot */
    uint32_t class;
    uint32_t nhops;
    uint32_t pad;
    struct st_sim_hop hop[];
};

struct st_sim_asked { /* of a route, before the simulation runs */
    double bound;
    uint32_t use_first, nuse;
    uint32_t next;   /* with the same first use, + 1 */
    uint32_t lane;   /* that was counted last */
};

#define ST_SIM_BLOCK 64 /* slots whose soonest finish is kept */

struct st_sim_block {
    int64_t soonest;
    int64_t stale;   /* it may be later */
};

struct st_sim_link { /* of each given link */
    uint32_t lane, task, uses, lane_uses, all_uses, lanes; /* counted at the start: flows through it at a time */
    double lane_most, all_most; /* of weight * bound, so much at most */
    uint32_t fanout;            /* or ST_SIM_NONE */
    int32_t held;               /* of pools: cores */
    uint8_t uneven;
    uint8_t alone; /* it bounds one lane's flows, and nothing else */
    uint8_t pad[6];
};

struct st_sim_load { double taken, fastest; }; /* of each given link, by the certificate */

struct st_sim {
    /* given */
    const struct st_timing_link *links;
    const struct st_timing_use *uses;
    const struct st_timing_task *tasks;
    const struct st_timing_lane *lanes;
    const struct st_timing_flag *flags;
    const struct st_timing_member *members;
    const struct st_timing_rendezvous *rendezvous;
    uint64_t nlinks, nuses, ntasks, nlanes, nflags, nmembers, nrendezvous;
    int32_t package, node;
    int flat, check;
    int64_t window;

    /* counted: st_sim_count */
    uint64_t total_uses; /* of all tasks that flow */
    uint64_t npeers, nfanouts;
    uint32_t most_uses;
    uint32_t table; /* size of the table of bounds */

    /* found */
    struct st_timing_times *times;
    int64_t *raised;
    int64_t now, end;
    uint64_t digest, events, batches, solves;
    uint64_t undone; /* tasks */
    double residual;

    /* its own: st_sim_arena.h */
    struct st_mm mm;
    struct st_sim_link *link;
    struct st_sim_load *load;  /* with `check` */
    uint32_t *solved;          /* of each given link: its number in mm; ST_SIM_NONE: it needs none */
    struct st_fanout *fanout;
    uint32_t *fan_touched; /* fan-outs whose capacity is old */
    uint32_t nfan_touched;
    uint32_t *counts; /* of fan-outs */
    double *log2_of;
    struct st_sim_lane *lane;
    struct st_sim_slot *slot;
    int64_t *finish;     /* of each slot */
    struct st_sim_block *block; /* of slots */
    uint32_t *free_slot, *free_flow; /* free_flow: of st_mm */
    uint32_t nfree, nslots, nfree_flows, nflows;
    uint32_t *fresh;     /* slots that have no rate yet */
    uint32_t nfresh;
    char *routes;
    struct st_sim_asked *asked; /* of each route */
    uint32_t nroutes, way;
    uint32_t *route;     /* of each task */
    uint32_t *route_at;  /* of each use: the first route that begins there, + 1 */
    uint32_t *bounds;    /* open hash table of classes, + 1 */
    uint32_t nclasses;
    int32_t *need;       /* posts of each flag */
    uint32_t *waiters;   /* of each flag: first lane + 1 */
    uint32_t *meeting;   /* of each rendezvous: members that have not arrived */
    int64_t *let_go;     /* of each member: when */
    struct st_sim_instant *due; /* heap */
    struct st_sim_bucket *bucket;
    struct st_sim_pending *pending; /* of each lane, then of each member */
    uint32_t ndue, nbuckets, free_bucket;
    uint32_t recent[ST_SIM_RECENT]; /* + 1 */
    struct st_sim_due *batch;
    uint64_t nbatch;
    int64_t soonest;     /* finish of a flow */
    int dirty;           /* what flows, or a pool, has changed */
    int begun, error;
};

static inline struct st_sim_route *st_sim_route(const struct st_sim *s, uint32_t number)
{
    return (struct st_sim_route *)(void *)(s->routes + (size_t)number * s->way);
}

#endif
