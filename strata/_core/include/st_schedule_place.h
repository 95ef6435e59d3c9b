/* Units to cores, so that the last core is done as early as possible.
 *
 * LPT list scheduling (Graham 1969): units by falling cost, each to the core that is
 * free first.  Units of one cost are dealt in a staggered order, round the peers: a
 * burst of cores on one peer is slow, however even the loads.  Once the loads are
 * closer than the cost of a unit, cores take their turns in a circle, which makes a
 * run of k units O(k). */
#ifndef ST_SCHEDULE_PLACE_H
#define ST_SCHEDULE_PLACE_H

#include "st_schedule_trial.h"

static inline void st_sched_count(struct st_sched *s, int64_t cost, uint32_t units)
{
    s->total += cost * units;
    if (units && cost > s->largest)
        s->largest = cost;
}

/* Lays the units of some runs, which are in turn order, into entries: by how far through its
 * bundle each lies, then in turn. */
static inline void st_sched_lay(struct st_sched *s, const struct st_sched_run *run, uint32_t n, struct st_sched_entry *to)
{
    const struct st_sched_bundle *b = &s->bundles[run[0].bundle];
    uint32_t i, j, same = 1, units = b->nbig + b->nsmall;
    size_t out = 0;

    for (i = 1; i < n; i++) {
        b = &s->bundles[run[i].bundle];
        same &= run[i].from == run[0].from && run[i].n == run[0].n && b->nbig + b->nsmall == units;
    }
    if (same) {
        for (j = 0; j < run[0].n; j++)
            for (i = 0; i < n; i++)
                to[out++] = (struct st_sched_entry){run[i].bundle, run[0].from + j};
        return;
    }
    for (i = 0; i < n; i++) {
        b = &s->bundles[run[i].bundle];
        for (j = run[i].from; j < run[i].from + run[i].n; j++) /* counts are below 2^20: the quotients tell shares apart */
            s->keys[out++] = st_sched_key(((uint64_t)j << 40) / (b->nbig + b->nsmall), (int32_t)i, j);
    }
    st_sched_sort(s->keys, s->spare, out);
    for (j = 0; j < out; j++)
        to[j] = (struct st_sched_entry){run[st_sched_second(&s->keys[j])].bundle, st_sched_at(&s->keys[j])};
}

/* The units of n sorted runs as entries, from nentries on: those of one cost together. */
static inline void st_sched_laid(struct st_sched *s, uint32_t n)
{
    uint64_t at = s->nentries;
    uint32_t i, j, units;

    for (i = 0; i < n; i = j, at += units) {
        for (j = i, units = 0; j < n && s->runs[j].cost == s->runs[i].cost; j++)
            units += s->runs[j].n;
        st_sched_lay(s, &s->runs[i], j - i, &s->entries[at]);
    }
}

static inline void st_sched_balance(struct st_sched *s, const struct st_sched_stage *g)
{
    int placed;
    uint64_t units;
    uint32_t n = st_sched_best(s, g, &units, &placed), i;

    if (placed && !s->total)
        memcpy(s->loads, s->trial, s->cores * sizeof(*s->loads));
    else
        st_sched_lpt(s, n, s->loads);
    st_sched_laid(s, n);
    for (i = 0; i < n; i++)
        st_sched_count(s, s->runs[i].cost, s->runs[i].n);
    s->nentries += units;
}

/* Each peer its own cores, whatever there is to move and how far; peers to cores in turn
 * where there are more of them. */
static inline void st_sched_naive(struct st_sched *s, const struct st_sched_stage *g)
{
    const struct st_sched_limit plain = {0, 0, 0, 0};
    uint32_t i, j, k, n, peer, peers = 0, first, number;
    struct st_sched_bundle *b = &s->bundles[g->bundle];
    uint64_t units, bytes;

    st_sched_cut(s, g, &plain, &units);
    for (n = 0; n < g->nbundles; n++) { /* bundles are in turn, reductions first */
        peers += !n || b[n].turn != b[n - 1].turn;
        s->runs[n] = (struct st_sched_run){0, g->bundle + n, 0, b[n].nbig + b[n].nsmall, b[n].turn};
    }
    for (i = 0, peer = 0; i < n; i = j, peer++) {
        units = 0;
        for (j = i; j < n && s->runs[j].turn == s->runs[i].turn; j++)
            units += s->runs[j].n;
        first = peers >= s->cores ? peer % s->cores : (uint32_t)((uint64_t)peer * s->cores / peers);
        number = peers >= s->cores ? 1 : (uint32_t)((uint64_t)(peer + 1) * s->cores / peers) - first;
        st_sched_lay(s, &s->runs[i], j - i, &s->entries[s->nentries]);
        for (k = 0; k < units; k++, s->nentries++) {
            const struct st_sched_entry *e = &s->entries[s->nentries];

            s->core[s->nentries] = first + k % number;
            st_sched_piece(&s->bundles[e->bundle], e->nth, &bytes);
            s->loads[first + k % number].load += st_sched_cost(&s->bundles[e->bundle], bytes);
            st_sched_count(s, st_sched_cost(&s->bundles[e->bundle], bytes), 1);
        }
    }
}

/* Everything on one core, in the order of the bundles. */
static inline void st_sched_one(struct st_sched *s, const struct st_sched_stage *g)
{
    const struct st_sched_limit plain = {0, 0, 0, 0};
    uint32_t i, k, n;
    uint64_t units;

    n = st_sched_cut(s, g, &plain, &units);
    for (i = 0; i < n; i++) {
        s->loads[0].load += s->runs[i].n * s->runs[i].cost;
        st_sched_count(s, s->runs[i].cost, s->runs[i].n);
        for (k = 0; k < s->runs[i].n; k++) {
            s->core[s->nentries] = 0;
            s->entries[s->nentries++] = (struct st_sched_entry){s->runs[i].bundle, s->runs[i].from + k};
        }
    }
}

#endif
