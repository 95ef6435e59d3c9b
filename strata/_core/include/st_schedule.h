/* The scheduler: st_sched_fuse, st_sched_room, st_sched_place, then (st_schedule_write.h)
 * st_sched_walk twice, to count and to write, st_sched_stripes and st_sched_extents.
 *
 * Buffers come from the caller, of the sizes named beside each function.  Time is
 * O(U log U + U log C) for U units on C cores, and about linear where units are alike. */
#ifndef ST_SCHEDULE_H
#define ST_SCHEDULE_H

#include "st_schedule_fuse.h"
#include "st_schedule_place.h"

/* What `room` has to be: entries of all stages. */
static inline uint64_t st_sched_room(struct st_sched *s)
{
    const struct st_sched_limit plain = {0, 0, 0, 0};
    uint64_t room = 0, units, floor = (uint64_t)ST_SCHED_PER_CORE * s->cores;
    struct st_sched_bundle *b;
    uint32_t k, i;

    for (k = 0; k < s->nstages; k++) {
        units = 0;
        b = &s->bundles[s->stages[k].bundle];
        for (i = 0; i < s->stages[k].nbundles && !s->stages[k].sync; i++) {
            if (i && st_sched_alike(&b[i], &b[i - 1]))
                st_sched_cut_as(&b[i], &b[i - 1]);
            else
                st_sched_cut_one(s, &b[i], &plain);
            units += b[i].nbig + b[i].nsmall;
        }
        if (s->stages[k].sync)
            units = (uint64_t)s->stages[k].nbundles * s->cores;
        else if (s->balanced && s->cores > 1 && units < floor)
            units = floor;
        room += units;
    }
    return room;
}

/* Lower bound of the makespan of these units on any partition: average load, largest unit, and in one
 * stage of LPT, whose entries fall in cost, what some core must take together: of the k C + 1 largest
 * units some core has k + 1, which cost no less than the k + 1 smallest of them. */
static inline int64_t st_sched_bound(const struct st_sched *s)
{
    int64_t bound = (s->total + s->cores - 1) / s->cores, sum;
    uint64_t k, i, bytes;
    const struct st_sched_entry *e;

    if (s->largest > bound)
        bound = s->largest;
    if (s->nstages != 1 || s->nsyncs || !s->balanced || s->cores < 2)
        return bound;
    for (k = 1; k <= 3 && k * s->cores < s->nentries; k++) {
        sum = 0;
        for (i = k * s->cores - k; i <= k * s->cores; i++) {
            e = &s->entries[i];
            (void)st_sched_piece(&s->bundles[e->bundle], e->nth, &bytes);
            sum += st_sched_cost(&s->bundles[e->bundle], bytes);
        }
        bound = sum > bound ? sum : bound;
    }
    return bound;
}

/* Gives every unit its core.  Needs `room` of entries, core and order, cores + 1 of core_begin, cores
 * of loads, 2 cores of trial, 2 * ST_SCHED_RUNS of runs for each bundle, and keys and spare for the
 * most of slices, runs, cores and room. */
static inline void st_sched_place(struct st_sched *s)
{
    uint32_t k, i, c;
    uint64_t e;

    s->nentries = 0;
    s->total = s->largest = s->makespan = 0;
    for (c = 0; c < s->cores; c++)
        s->loads[c] = (struct st_sched_core){0, c, 0};
    for (k = 0; k < s->nstages; k++) {
        const struct st_sched_stage *g = &s->stages[k];

        if (g->sync) {
            for (i = g->bundle; i < g->bundle + g->nbundles; i++)
                for (c = 0; c < s->cores; c++) {
                    s->core[s->nentries] = c;
                    s->entries[s->nentries++] = (struct st_sched_entry){i, 0};
                }
        } else if (s->cores == 1) {
            st_sched_one(s, g);
        } else if (s->balanced) {
            st_sched_balance(s, g);
        } else {
            st_sched_naive(s, g);
        }
    }
    for (c = 0; c < s->cores; c++)
        s->makespan = s->loads[c].load > s->makespan ? s->loads[c].load : s->makespan;
    s->bound = st_sched_bound(s);
    memset(s->core_begin, 0, (s->cores + 1) * sizeof(*s->core_begin));
    for (e = 0; e < s->nentries; e++)
        s->core_begin[s->core[e] + 1]++;
    for (c = 0; c < s->cores; c++)
        s->core_begin[c + 1] += s->core_begin[c];
    for (e = 0; e < s->nentries; e++) /* stable: a core keeps the order of dealing, and so of steps */
        s->order[s->core_begin[s->core[e]]++] = (uint32_t)e;
    for (c = s->cores; c > 0; c--)
        s->core_begin[c] = s->core_begin[c - 1];
    s->core_begin[0] = 0;
}

#endif
