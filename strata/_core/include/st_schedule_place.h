/* Units to cores, so that the last core is done as early as possible.
 *
 * LPT list scheduling (Graham 1969): units by falling cost, each to the core that is
 * free first.  Units of one cost are dealt in a staggered order, round the peers: a
 * burst of cores on one peer is slow, however even the loads.  Once the loads are
 * closer than the cost of a unit, cores take their turns in a circle, which makes a
 * run of k units O(k). */
#ifndef ST_SCHEDULE_PLACE_H
#define ST_SCHEDULE_PLACE_H

#include "st_schedule_cut.h"
#include "st_schedule_deal.h"

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

/* Cuts a stage, and its units as runs of one cost, in the bundles' order. */
static inline uint32_t st_sched_cut(struct st_sched *s, const struct st_sched_stage *g, const struct st_sched_limit *l,
                                    uint64_t *units)
{
    struct st_sched_bundle *b = &s->bundles[g->bundle];
    struct st_sched_run *run = s->runs;
    uint32_t i, k, made = 0;

    *units = 0;
    for (i = 0; i < g->nbundles; i++, run += made) {
        if (i && st_sched_alike(&b[i], &b[i - 1])) {
            st_sched_cut_as(&b[i], &b[i - 1]);
            for (k = 0; k < made; k++) {
                run[k] = (run - made)[k];
                run[k].bundle = g->bundle + i;
                run[k].turn = b[i].spin;
            }
        } else {
            st_sched_cut_one(s, &b[i], l);
            made = st_sched_runs(&b[i], g->bundle + i, run);
        }
        *units += b[i].nbig + b[i].nsmall;
    }
    return (uint32_t)(run - s->runs);
}

/* The same as far as costs go: runs of bundles that are cut alike and follow each other as runs of the first
 * alone, of all their units.  *each: there are none, and the runs are st_sched_cut's. */
static inline uint32_t st_sched_sketch(struct st_sched *s, const struct st_sched_stage *g,
                                       const struct st_sched_limit *l, uint64_t *units, int *each)
{
    struct st_sched_bundle *b = &s->bundles[g->bundle];
    struct st_sched_run *run = s->runs;
    uint32_t i, k, made = 0, n[ST_SCHED_RUNS], count = 0;

    *units = 0;
    *each = 1;
    for (i = 0; i < g->nbundles; i++, *units += count) {
        if (i && st_sched_alike(&b[i], &b[i - 1])) {
            *each = 0;
            for (k = 0; k < made; k++)
                run[k].n += n[k];
            continue;
        }
        run += made;
        st_sched_cut_one(s, &b[i], l);
        count = b[i].nbig + b[i].nsmall;
        made = st_sched_runs(&b[i], g->bundle + i, run);
        for (k = 0; k < made; k++)
            n[k] = run[k].n;
    }
    return (uint32_t)(run + made - s->runs);
}

/* Runs by falling cost, then in turn.  What is sorted is the first run of each bundle, then the second of
 * each, and so on: bundles that are cut alike then give few runs of sorted keys. */
static inline void st_sched_falling(struct st_sched *s, uint32_t n)
{
    struct st_sched_run *sorted = &s->runs[n];
    uint32_t i, k, at[ST_SCHED_RUNS + 1] = {0};

    for (i = k = 0; i < n; i++) {
        k = i && s->runs[i].bundle == s->runs[i - 1].bundle ? k + 1 : 0;
        at[k + 1]++;
    }
    for (k = 0; k < ST_SCHED_RUNS; k++)
        at[k + 1] += at[k];
    for (i = k = 0; i < n; i++) {
        k = i && s->runs[i].bundle == s->runs[i - 1].bundle ? k + 1 : 0;
        s->keys[at[k]++] = st_sched_key(~(uint64_t)s->runs[i].cost, s->runs[i].turn, i);
    }
    st_sched_sort(s->keys, s->spare, n);
    for (i = 0; i < n; i++)
        sorted[i] = s->runs[st_sched_at(&s->keys[i])];
    memcpy(s->runs, sorted, n * sizeof(*sorted));
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

/* LPT of n sorted runs on a heap: cores of the entries from nentries on; the latest end. */
static inline int64_t st_sched_lpt(struct st_sched *s, uint32_t n, struct st_sched_core *heap)
{
    uint64_t at = s->nentries;
    uint32_t i, j, c, units;
    int64_t latest = 0;

    for (i = 0; i < n; i = j, at += units) {
        for (j = i, units = 0; j < n && s->runs[j].cost == s->runs[i].cost; j++)
            units += s->runs[j].n;
        st_sched_deal(s, heap, s->runs[i].cost, &s->core[at], units);
    }
    for (c = 0; c < s->cores; c++)
        latest = heap[c].load > latest ? heap[c].load : latest;
    return latest;
}

/* The cut under which a stage is done first, all cores free.  The tier's unit size if that is
 * within 2 % of the average load; else the tail finer, so that equal units leave no lone rest:
 * no unit above an eighth (then a third) of the average, so Graham's makespan <= average + unit
 * is within 4/3 of it; and a last part, large enough to level the large units, of small ones.
 * Returns the number of its runs; *placed: they are dealt, on the heap s->trial.  Whose units they are
 * matters to no trial, only costs. */
static inline uint32_t st_sched_best(struct st_sched *s, const struct st_sched_stage *g, uint64_t *units, int *placed)
{
    static const double parts[3][2] = {{0, 0}, {8, 48}, {3, 12}};
    struct st_sched_limit limit, chosen = {0, 0, 0};
    int64_t average = 0, latest, best = INT64_MAX;
    uint32_t i, k, n = 0, last = 0, dealt = 0, choice = 0;
    uint64_t most = 0;
    int each = 0;

    for (k = 0; k < 3; k++) {
        limit = (struct st_sched_limit){0, 0, 0};
        if (k)
            limit = (struct st_sched_limit){(double)average / parts[k][0], (double)average / parts[k][1],
                                            average ? 1 / (double)average : 0};
        n = st_sched_sketch(s, g, &limit, units, &each);
        last = k;
        if (!k) {
            for (i = 0; i < n; i++)
                average += s->runs[i].n * s->runs[i].cost;
            average = (average + s->cores - 1) / s->cores;
            most = *units > (uint64_t)ST_SCHED_PER_CORE * s->cores ? *units : (uint64_t)ST_SCHED_PER_CORE * s->cores;
        } else if (*units > most) {
            continue;
        }
        st_sched_falling(s, n);
        for (i = 0; i < s->cores; i++)
            s->trial[i] = (struct st_sched_core){0, i, 0};
        latest = st_sched_lpt(s, n, s->trial);
        dealt = k;
        if (latest < best) {
            best = latest;
            chosen = limit;
            choice = k;
        }
        if (best <= average + average / 50)
            break;
    }
    *placed = choice == dealt;
    if (choice != last || !each) {
        n = st_sched_cut(s, g, &chosen, units);
        st_sched_falling(s, n);
    }
    return n;
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
    const struct st_sched_limit plain = {0, 0, 0};
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
    const struct st_sched_limit plain = {0, 0, 0};
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
