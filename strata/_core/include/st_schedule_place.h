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

static inline int st_sched_free_first(const struct st_sched_core *a, const struct st_sched_core *b)
{
    return a->load < b->load || (a->load == b->load && a->core < b->core);
}

/* Adds to the load of the core on top of the heap. */
static inline void st_sched_charge(struct st_sched_core *heap, uint32_t cores, int64_t each)
{
    struct st_sched_core top = heap[0];
    uint32_t at = 0, child;

    top.load += each;
    while ((child = 2 * at + 1) < cores) {
        if (child + 1 < cores && st_sched_free_first(&heap[child + 1], &heap[child]))
            child++;
        if (!st_sched_free_first(&heap[child], &top))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = top;
}

/* A sorted array is a heap too. */
static inline void st_sched_sort_heap(struct st_sched *s, struct st_sched_core *heap)
{
    uint32_t i;

    for (i = 0; i < s->cores; i++)
        s->keys[i] = (struct st_sched_key){(uint64_t)heap[i].load, (int32_t)heap[i].core, i};
    st_sched_sort(s->keys, s->spare, s->cores);
    for (i = 0; i < s->cores; i++)
        heap[i] = (struct st_sched_core){(int64_t)s->keys[i].key, (uint32_t)s->keys[i].second, 0};
}

static inline void st_sched_count(struct st_sched *s, int64_t cost, uint32_t units)
{
    s->total += cost * units;
    if (units && cost > s->largest)
        s->largest = cost;
}

/* Gives k units of one cost to cores in a circle, from the one that is free first. */
static inline void st_sched_circle(struct st_sched *s, struct st_sched_core *heap, int64_t each, uint32_t *core, uint32_t k)
{
    struct st_sched_core *turned = s->trial + s->cores; /* scratch */
    uint32_t i, c, n = s->cores, whole = k / n, extra = k % n;

    for (i = 0; i + n <= k; i += n)
        for (c = 0; c < n; c++)
            core[i + c] = heap[c].core;
    for (c = 0; c < extra; c++)
        core[i + c] = heap[c].core;
    for (c = 0; c < n; c++) {
        i = (c + extra) % n;
        turned[c] = heap[i];
        turned[c].load += each * (int64_t)(whole + (i < extra));
    }
    memcpy(heap, turned, n * sizeof(*heap));
}

/* Deals k units of one cost; core[i] becomes the core of the i-th. */
static inline void st_sched_deal(struct st_sched *s, struct st_sched_core *heap, int64_t each, uint32_t *core, uint32_t k)
{
    uint32_t i = 0, n = s->cores, end;
    struct st_sched_core again;

    while (k - i >= n) {
        st_sched_sort_heap(s, heap);
        again = heap[0];
        again.load += each;
        if (st_sched_free_first(&heap[n - 1], &again)) {
            st_sched_circle(s, heap, each, core + i, k - i);
            return;
        }
        for (end = i + n; i < end; i++) {
            core[i] = heap[0].core;
            st_sched_charge(heap, n, each);
        }
    }
    for (; i < k; i++) {
        core[i] = heap[0].core;
        st_sched_charge(heap, n, each);
    }
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
            s->keys[out++] = (struct st_sched_key){((uint64_t)j << 40) / (b->nbig + b->nsmall), (int32_t)i, j};
    }
    st_sched_sort(s->keys, s->spare, out);
    for (j = 0; j < out; j++)
        to[j] = (struct st_sched_entry){run[s->keys[j].second].bundle, s->keys[j].at};
}

/* Cuts a stage, and its units as runs of one cost, in the bundles' order. */
static inline uint32_t st_sched_cut(struct st_sched *s, const struct st_sched_stage *g, const struct st_sched_limit *l,
                                    uint64_t *units)
{
    uint32_t i, n = 0;

    *units = 0;
    for (i = g->bundle; i < g->bundle + g->nbundles; i++) {
        st_sched_cut_one(s, &s->bundles[i], l);
        n += st_sched_runs(&s->bundles[i], i, &s->runs[n]);
        *units += s->bundles[i].nbig + s->bundles[i].nsmall;
    }
    return n;
}

/* Runs by falling cost, then in turn. */
static inline void st_sched_falling(struct st_sched *s, uint32_t n)
{
    struct st_sched_run *sorted = &s->runs[n];
    uint32_t i;

    for (i = 0; i < n; i++)
        s->keys[i] = (struct st_sched_key){~(uint64_t)s->runs[i].cost, s->runs[i].turn, i};
    st_sched_sort(s->keys, s->spare, n);
    for (i = 0; i < n; i++)
        sorted[i] = s->runs[s->keys[i].at];
    memcpy(s->runs, sorted, n * sizeof(*sorted));
}

/* LPT of n sorted runs on a heap, from entry nentries on; the latest end. */
static inline int64_t st_sched_lpt(struct st_sched *s, uint32_t n, struct st_sched_core *heap)
{
    uint64_t at = s->nentries;
    uint32_t i, j, c, units;
    int64_t latest = 0;

    for (i = 0; i < n; i = j) {
        units = 0;
        for (j = i; j < n && s->runs[j].cost == s->runs[i].cost; j++)
            units += s->runs[j].n;
        st_sched_lay(s, &s->runs[i], j - i, &s->entries[at]);
        st_sched_deal(s, heap, s->runs[i].cost, &s->core[at], units);
        at += units;
    }
    for (c = 0; c < s->cores; c++)
        latest = heap[c].load > latest ? heap[c].load : latest;
    return latest;
}

/* The cut under which a stage is done first, all cores free.  The tier's unit size if that is
 * within 2 % of the average load; else the tail finer, so that equal units leave no lone rest:
 * no unit above an eighth (then a third) of the average, so Graham's makespan <= average + unit
 * is within 4/3 of it; and a last part, large enough to level the large units, of small ones.
 * Returns the number of its runs; *placed: they lie in entries, dealt on the heap s->trial. */
static inline uint32_t st_sched_best(struct st_sched *s, const struct st_sched_stage *g, uint64_t *units, int *placed)
{
    static const double parts[3][2] = {{0, 0}, {8, 48}, {3, 12}};
    struct st_sched_limit limit, chosen = {0, 0, 0};
    int64_t average = 0, latest, best = INT64_MAX;
    uint32_t i, k, n = 0, last = 0, choice = 0;
    uint64_t most = 0;

    for (k = 0; k < 3; k++) {
        limit = (struct st_sched_limit){0, 0, 0};
        if (k)
            limit = (struct st_sched_limit){(double)average / parts[k][0], (double)average / parts[k][1],
                                            average ? 1 / (double)average : 0};
        n = st_sched_cut(s, g, &limit, units);
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
        if (latest < best) {
            best = latest;
            chosen = limit;
            choice = k;
        }
        if (best <= average + average / 50)
            break;
    }
    *placed = choice == last;
    if (choice != last) {
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
