/* Dies apart from each other.
 *
 * A scheduler leaves waiting dies that yield to each other on one CPU: each has
 * run a moment ago, so it takes them for warm and moves neither, even if another
 * CPU has nothing to do.  So dies say, now and then while they wait, which CPU
 * they are on, and one that shares its CPU with at least two more dies than some
 * other allowed CPU has moves there.  It moves and is not pinned: its affinity
 * mask is what it was.
 */
#ifndef ST_SPREAD_H
#define ST_SPREAD_H

#include <sched.h>
#include <stdint.h>
#include <string.h>

#include "st_abi.h"
#include "st_atomic.h"

#define ST_SPREAD_EVERY 64u /* polls between two looks */
#define ST_SPREAD_CPUS 1024u

struct st_spread {
    uint32_t *cpus; /* [n], shared: CPU + 1 of each die, 0 not known */
    uint32_t me;
    uint32_t n;
    uint32_t tick;
    uint32_t rest; /* looks to leave out after a move, so that all see it */
    uint32_t moves;
};

/* Says that this die runs nowhere any more. */
static inline void st_spread_leave(struct st_spread *s) { st_store_relaxed_32(&s->cpus[s->me], 0); }

/* Moves the calling thread, within its mask. */
static inline int st_spread_move(uint32_t cpu, const cpu_set_t *mask)
{
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0)
        return 0;
    sched_setaffinity(0, sizeof *mask, mask);
    return 1;
}

static void st_spread_look(struct st_spread *s)
{
    uint16_t dies[ST_SPREAD_CPUS] = {0};
    uint32_t here = (uint32_t)sched_getcpu(), best = here, i, cpu;
    cpu_set_t mask;
    int last = 1;

    if (here >= ST_SPREAD_CPUS || here >= CPU_SETSIZE)
        return;
    if (st_load_relaxed_32(&s->cpus[s->me]) != here + 1)
        st_store_relaxed_32(&s->cpus[s->me], here + 1);
    i = st_load_relaxed_32(&s->rest);
    if (i) {
        st_store_relaxed_32(&s->rest, i - 1);
        return;
    }
    for (i = 0; i < s->n; i++) {
        cpu = i == s->me ? here + 1 : st_load_relaxed_32(&s->cpus[i]);
        if (cpu == 0 || cpu > ST_SPREAD_CPUS)
            continue;
        dies[cpu - 1]++;
        if (cpu == here + 1 && i > s->me)
            last = 0; /* the last of those on a CPU moves, one at a time */
    }
    if (!last || dies[here] < 2 || sched_getaffinity(0, sizeof mask, &mask) != 0)
        return;
    for (cpu = 0; cpu < CPU_SETSIZE && cpu < ST_SPREAD_CPUS; cpu++)
        if (CPU_ISSET(cpu, &mask) && dies[cpu] < dies[best])
            best = cpu;
    if (dies[best] + 2 <= dies[here] && st_spread_move(best, &mask)) {
        st_store_relaxed_32(&s->cpus[s->me], best + 1);
        st_store_relaxed_32(&s->moves, st_load_relaxed_32(&s->moves) + 1);
        st_store_relaxed_32(&s->rest, 16);
    }
}

static inline void st_spread_tick(struct st_spread *s)
{
    uint32_t tick = st_load_relaxed_32(&s->tick) + 1; /* threads of a die may lose a tick: no harm */

    st_store_relaxed_32(&s->tick, tick);
    if (__builtin_expect(tick % ST_SPREAD_EVERY == 0, 0))
        st_spread_look(s);
}

#endif
