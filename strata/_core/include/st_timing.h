/* What the timing plane simulates, as flat arrays: twins of the numpy dtypes in
 * strata/exec/timed/records.py (tests/unit/test_timing_records.py compares them).
 *
 * A *link* is whatever flows share: a port of a die in one direction, what one die gives one other,
 * a die's memory, a core, an SDMA engine, the free cores of a die.  A *flow* is the work of a task that moves:
 * at any instant flows share links by weighted max-min, none above its bound.
 *
 * A *lane* does its tasks in order: a core its transfer units, an SDMA ring its descriptors, a stream its
 * operations and kernels.  A task
 *   1. waits for up to two flags, each seen wait_ps after it is raised;
 *   2. holds the lane for hold_ps (issue, submission of descriptors, a lock);
 *   3. waits latency_ps, while nothing flows (distance; paid once, here and not on links);
 *   4. flows, until its work is done;
 *   5. is done, and counts down its flag, which is raised at zero.
 * On a lane with `ahead`, 1 to 3 of a task go on while the one before it flows (double buffering); what flows, and
 * what is done, stays in order.
 *
 * A *rendezvous* is a synchronisation of all its members: each arrives with a flag, and when all have, each
 * is let go by another: start(i) = base + max over members j of (arrive(j) + seen[tier of i and j]).
 *
 * Times are whole picoseconds, rates bytes per picosecond (1000 GB/s are 1).  Work is in bytes, or, of kernels that
 * touch no memory, in picoseconds at full speed. */
#ifndef ST_TIMING_H
#define ST_TIMING_H

#include <stddef.h>
#include <stdint.h>

#define ST_TIMING_NONE (-1)
#define ST_TIMING_WAITS 2
/* A backlog of 1, in fixed point: sums are exact, whatever the order. */
#define ST_TIMING_BACKLOG_ONE (1 << 20)

enum st_timing_link_kind {
    ST_LINK_UB_OUT = 0,  /* a die's port to all others, per direction */
    ST_LINK_UB_IN = 1,
    ST_LINK_SIO_OUT = 2, /* ... to its package */
    ST_LINK_SIO_IN = 3,
    ST_LINK_HBM = 4,     /* reads and writes of a die's memory */
    ST_LINK_PAIR = 5,    /* what one die gives one other */
    ST_LINK_NODE_UP = 6, /* a node's uplink */
    ST_LINK_NODE_DOWN = 7,
    ST_LINK_ENGINE = 8,  /* a die's SDMA engine */
    ST_LINK_POOL = 9,    /* cores of a die that hold nothing: capacity falls by 1 for each core lane that is held */
    ST_LINK_KINDS = 10
};

struct st_timing_link {
    double capacity; /* work per picosecond; of a pool, cores */
    double loss;     /* fan-out: capacity / (1 + loss log2(peers) backlog), with the number of distinct
                      * peers that flow through it now and the mean of its flows' backlogs; 0: none */
    int32_t kind;    /* enum st_timing_link_kind */
    int32_t die;     /* whose; a node of NODE links */
};

/* A flow at rate x takes weight * x of the link's capacity. */
struct st_timing_use {
    uint32_t link;
    int32_t peer; /* the die at the other end, where the link has a loss; else ST_TIMING_NONE */
    double weight;
};

enum st_timing_task_kind {
    ST_TASK_NOTHING = 0, /* waits and posts */
    ST_TASK_MOVE = 1,    /* a transfer unit, by a core or by a ring */
    ST_TASK_SUBMIT = 2,  /* a core builds descriptors */
    ST_TASK_COMPUTE = 3, /* a kernel */
    ST_TASK_MAP = 4,     /* pages are mapped, under the page table's lock */
    ST_TASK_DELAY = 5,
    ST_TASK_KINDS = 6
};

struct st_timing_task {
    int64_t hold_ps;
    int64_t latency_ps;
    double work;  /* 0: nothing flows */
    double bound; /* most work per picosecond; infinity: none */
    int64_t wait_ps[ST_TIMING_WAITS];
    int32_t wait[ST_TIMING_WAITS]; /* flags; ST_TIMING_NONE */
    int32_t post;                  /* flag; ST_TIMING_NONE */
    uint32_t use_first;            /* its uses: [use_first, use_first + nuse) */
    uint16_t nuse;
    uint8_t kind; /* enum st_timing_task_kind */
    uint8_t tier; /* enum st_tier, farthest operand's; for reports */
    int32_t backlog;   /* 0 to ST_TIMING_BACKLOG_ONE: how much of a fan-out's loss it meets (bytes per peer / (those + m0)) */
    int32_t operation; /* index of the operation or kernel it belongs to; for reports */
    int32_t unit;      /* index in its plan, or ST_TIMING_NONE */
    int32_t pad[2];    /* zero */
};

struct st_timing_lane {
    uint32_t first; /* its tasks: [first, first + count), in order */
    uint32_t count;
    int32_t die;
    int32_t pool;  /* link of kind POOL that loses a core from when its first task has waited until its last is done */
    int32_t core;  /* number on the die, or ST_TIMING_NONE; rings follow, as cores + ring */
    uint32_t ahead; /* 1: see above */
};

struct st_timing_flag {
    int32_t need;       /* posts until it is raised; 0: at time 0 */
    int32_t rendezvous; /* which its raising is an arrival at; ST_TIMING_NONE */
};

struct st_timing_member {
    int32_t die;
    int32_t arrive; /* flags */
    int32_t start;
    int32_t pad; /* zero */
};

struct st_timing_rendezvous {
    uint32_t first; /* its members: [first, first + count) */
    uint32_t count;
    int64_t base_ps;
    int64_t seen_ps[4]; /* by tier: how long after its arrival a member is seen; not below 0 */
};

/* What became of a task: picoseconds; -1: not reached. */
struct st_timing_times {
    int64_t ready;   /* the lane came to it */
    int64_t begun;   /* had waited: step 2 began */
    int64_t flowing; /* step 4 began */
    int64_t done;
};

_Static_assert(sizeof(struct st_timing_link) == 24, "st_timing_link");
_Static_assert(sizeof(struct st_timing_use) == 16, "st_timing_use");
_Static_assert(sizeof(struct st_timing_task) == 88, "st_timing_task");
_Static_assert(offsetof(struct st_timing_task, wait_ps) == 32, "st_timing_task.wait_ps");
_Static_assert(offsetof(struct st_timing_task, wait) == 48, "st_timing_task.wait");
_Static_assert(offsetof(struct st_timing_task, post) == 56, "st_timing_task.post");
_Static_assert(offsetof(struct st_timing_task, use_first) == 60, "st_timing_task.use_first");
_Static_assert(offsetof(struct st_timing_task, nuse) == 64, "st_timing_task.nuse");
_Static_assert(offsetof(struct st_timing_task, backlog) == 68, "st_timing_task.backlog");
_Static_assert(offsetof(struct st_timing_task, unit) == 76, "st_timing_task.unit");
_Static_assert(sizeof(struct st_timing_lane) == 24, "st_timing_lane");
_Static_assert(sizeof(struct st_timing_flag) == 8, "st_timing_flag");
_Static_assert(sizeof(struct st_timing_member) == 16, "st_timing_member");
_Static_assert(sizeof(struct st_timing_rendezvous) == 48, "st_timing_rendezvous");
_Static_assert(sizeof(struct st_timing_times) == 32, "st_timing_times");

#endif
