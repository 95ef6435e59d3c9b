/* What the scheduler works on: from slices, by way of bundles, to units on cores.
 *
 * A bundle is what is cut into units: the pulls of a reduction with the pushes of
 * its result, or one slice by itself.  A stage is a run of slices of one step (or
 * a run of synchronisations): the order between stages is kept on every core, the
 * order within one is the scheduler's. */
#ifndef ST_SCHEDULE_TYPES_H
#define ST_SCHEDULE_TYPES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "st_kernels_plan.h"
#include "st_plan.h"
#include "st_schedule_sort.h"

enum {
    ST_SCHED_LINE = 64,         /* units are cut at whole cache lines */
    ST_SCHED_MAX_UNITS = 1 << 14, /* of a die, beyond a few for each bundle */
    ST_SCHED_LEAST = 4096,      /* bytes: balancing cuts no unit finer */
    ST_SCHED_PER_CORE = 64,     /* units of a core: balancing makes no more */
    ST_SCHED_MAX_FLAGS = 1 << 20
};
#define ST_SCHED_NONE 0xffffffffu

/* What is wrong with slices; the front has the words. */
enum st_sched_status {
    ST_SCHED_OK = 0,
    ST_SCHED_EKIND = 1,     /* neither pull nor push nor sync */
    ST_SCHED_EBYTES = 2,    /* a transfer of none, or a sync with some */
    ST_SCHED_EWAIT = 3,     /* wait_peer without wait_flag, or the reverse */
    ST_SCHED_ESTEP = 4,     /* steps fall */
    ST_SCHED_EPUSHOP = 5,   /* a push with an operator is not atomic */
    ST_SCHED_EOPS = 6,      /* operands of one destination have different operators */
    ST_SCHED_EPOSTS = 7,    /* ... or post different flags */
    ST_SCHED_ETRANSIENT = 8, /* a transient reduction that is pushed nowhere */
    ST_SCHED_EPARTIAL = 9,  /* a partial operand of what is no reduction */
    ST_SCHED_EMEMBER = 10,  /* peer or wait_peer is no member */
    ST_SCHED_ERANGE = 11,   /* a code, flag, offset or length is out of range */
    ST_SCHED_EATOMIC = 12,  /* atomic without an operator, or a mean */
    ST_SCHED_EMANY = 13,    /* too many units or operands for the records */
    ST_SCHED_NSTATUS = 14
};

struct st_sched_bundle {
    uint64_t bytes;
    uint64_t head, big, small; /* the cut: `head` bytes in nbig units, the rest in nsmall; head counts the phase */
    double rate;         /* picoseconds per byte */
    int64_t alpha;       /* picoseconds of each unit */
    int32_t peer;        /* on the far side; -1: many, and no cap counts */
    int32_t turn;        /* place in the die's staggered order; -2: a reduction, before all */
    int32_t spin;        /* ... among units of one cost: turned further within a tier */
    int32_t post;
    uint32_t phase;      /* cuts are at whole lines; the destination begins phase bytes above one */
    uint32_t slice;
    uint32_t operand; /* its operands, sources first */
    uint32_t wait, nwaits; /* in wait_ids */
    uint32_t nbig, nsmall;
    uint16_t nsrc, ndst, step, total;
    uint8_t kind, op, tier, pad;
};

struct st_sched_wait { int32_t peer, flag; };

struct st_sched_stage {
    uint32_t bundle, nbundles;
    uint8_t sync, pad[7];
};

struct st_sched_run { /* units [from, from + n) of a bundle, all of one cost */
    int64_t cost;
    uint32_t bundle, from, n;
    int32_t turn;
};

struct st_sched_entry { uint32_t bundle, nth; };

struct st_sched_core { /* a core and what it has to do so far */
    int64_t load;
    uint32_t core, pad;
};

struct st_sched {
    /* given */
    const struct st_slice *slices;
    const uint8_t *tier; /* of each member */
    const double *rate;  /* by tier: picoseconds per byte */
    const int64_t *alpha, *unit, *cap;
    uint32_t nslices, cores, itemsize;
    int32_t rank, nranks;
    uint8_t balanced, local_first, dtype;
    uint8_t whole; /* slices are cut by tiers' sizes alone, never finer: no other cut is tried */

    /* made of them: st_sched_fuse */
    struct st_sched_bundle *bundles;
    struct st_operand *operands;
    struct st_sched_wait *waits;
    struct st_sched_stage *stages;
    uint32_t *wait_ids;
    uint32_t nbundles, noperands, nwaits, nwait_ids, nstages, nsyncs;
    uint64_t least; /* bytes: no unit is smaller, lest there be more than ST_SCHED_MAX_UNITS */
    uint64_t nplain; /* units before any balancing */

    /* placed: st_sched_place */
    struct st_sched_entry *entries; /* in the order in which they were dealt */
    uint32_t *core, *order;         /* core of each entry; entries by core */
    uint32_t *core_begin;           /* cores + 1 */
    struct st_sched_core *loads, *trial; /* heaps: the core that is free first on top */
    struct st_sched_run *runs;
    uint64_t nentries, room;
    int64_t total, largest, makespan, bound; /* picoseconds */

    /* scratch */
    uint32_t *table, *waiting; /* open hash tables: slices by destination, waits */
    uint32_t *next, *tail, *push_first, *push_last, *heads, *seen;
    uint8_t *used;
    struct st_sched_key *keys, *spare;
    uint32_t mask;
    uint32_t *at, *met, *number; /* of cores, members and members: st_sched_stripes */

    /* written: st_sched_write */
    struct st_unit *units;
    struct st_operand *out;
    uint32_t *begin;  /* core_begin of the plan */
    uint64_t *extent; /* (nranks, ST_NBUFS) */
    uint64_t nunits, nout;
};

/* Where a partial operand is, `at` bytes of the dtype into it. */
static inline uint64_t st_sched_shift(const struct st_sched *s, uint8_t op, uint64_t at)
{
    uint32_t size = s->itemsize ? s->itemsize : 1;

    return at / size * st_partial_bytes(s->dtype, op);
}

#endif
