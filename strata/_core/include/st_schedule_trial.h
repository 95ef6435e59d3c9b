/* How fine a stage is cut: several cuts are tried, and that which is done first is taken. */
#ifndef ST_SCHEDULE_TRIAL_H
#define ST_SCHEDULE_TRIAL_H

#include "st_schedule_cut.h"
#include "st_schedule_deal.h"

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

enum { /* cuts that are tried, and the first of those whose units are to be equal: in cost, in what they move */
    ST_SCHED_TRIALS = 9,
    ST_SCHED_EQUAL = 3,
    ST_SCHED_APART = 7
};

/* What a stage moves, start-ups apart, picoseconds of one core; its least and largest start-up, and dearest byte. */
struct st_sched_moves {
    double ps, least, alpha, rate;
};

static inline struct st_sched_moves st_sched_moves(const struct st_sched *s, const struct st_sched_stage *g)
{
    const struct st_sched_bundle *b = &s->bundles[g->bundle];
    struct st_sched_moves m = {0, (double)b->alpha, 0, 0};
    uint32_t i;

    for (i = 0; i < g->nbundles; i++) {
        m.ps += (double)b[i].bytes * b[i].rate;
        m.least = (double)b[i].alpha < m.least ? (double)b[i].alpha : m.least;
        m.alpha = (double)b[i].alpha > m.alpha ? (double)b[i].alpha : m.alpha;
        m.rate = b[i].rate > m.rate ? b[i].rate : m.rate;
    }
    return m;
}

/* The limits of trial k: none; units small beside the average load of the first trial; or equal ones, so many for
 * each core.  These may be two lines more: one for the phase, one that rounding takes, lest there be a unit too many.
 * Of equal cost is better on the whole, but where start-ups differ makes fewer units of near bundles, and so at times
 * one more in all than cores have; what moves as much does not. */
static inline struct st_sched_limit st_sched_try(const struct st_sched *s, const struct st_sched_moves *m, uint32_t k,
                                                 double average)
{
    uint32_t apart = k >= ST_SCHED_APART, parts = k + 1 - (apart ? ST_SCHED_APART : ST_SCHED_EQUAL);
    double most;

    if (!k || average == 0)
        return (struct st_sched_limit){0, 0, 0, 0};
    if (k < ST_SCHED_EQUAL)
        return (struct st_sched_limit){average / (k == 1 ? 8 : 3), average / (k == 1 ? 48 : 12), 1 / average, 0};
    most = m->ps / ((double)s->cores * parts) + 2 * ST_SCHED_LINE * m->rate + (apart ? 0 : m->alpha);
    return (struct st_sched_limit){most, most, 0, (double)apart};
}

/* No core is the last to be done before this, of n sorted runs: of the first j cores + 1 units some core has j + 1. */
static inline int64_t st_sched_least(const struct st_sched *s, uint32_t n)
{
    uint32_t i, units = 0;
    int64_t least = 0, some;

    for (i = 0; i < n; i++) {
        units += s->runs[i].n;
        some = s->runs[i].cost * ((units - 1) / s->cores + 1);
        least = some > least ? some : least;
    }
    return least;
}

/* The cut under which a stage is done first, all cores free; of two done at one time, that of fewer units.
 * The tier's unit size if that is within 2 % of its average load.  Else the tail finer, so that equal units leave
 * no lone rest: no unit above an eighth (then a third) of the average, so Graham's makespan <= average + unit is
 * within 4/3 of it; and a last part, large enough to level the large units, of small ones.  Where that is 3 % above
 * what no cut can be below, since start-ups are much of a unit, also units about equal, one for each core to four.
 * A cut is dealt only if nothing says before that another is better.
 * Returns the number of its runs; *placed: they are dealt, on the heap s->trial.  Whose units they are
 * matters to no trial, only costs. */
static inline uint32_t st_sched_best(struct st_sched *s, const struct st_sched_stage *g, uint64_t *units, int *placed)
{
    struct st_sched_limit limit, chosen = {0, 0, 0, 0};
    struct st_sched_moves moves = {0, 0, 0, 0};
    int64_t average = 0, latest, load, best = INT64_MAX;
    uint32_t i, k, n = 0, last = 0, dealt = 0, choice = 0;
    uint64_t most = (uint64_t)ST_SCHED_PER_CORE * s->cores, fewest = 0;
    int each = 0;

    for (k = 0; k < ST_SCHED_TRIALS; k++) {
        if (k == ST_SCHED_EQUAL) {
            moves = st_sched_moves(s, g);
            if ((double)best <= 1.03 * (moves.ps / s->cores + moves.least))
                break;
        }
        limit = st_sched_try(s, &moves, k, (double)average);
        n = st_sched_sketch(s, g, &limit, units, &each);
        last = k;
        for (i = 0, load = 0; i < n; i++)
            load += s->runs[i].n * s->runs[i].cost;
        load = (load + s->cores - 1) / s->cores;
        if (!k) {
            average = load;
            most = *units > most ? *units : most;
        }
        if (*units > most || load > best)
            continue;
        st_sched_falling(s, n);
        latest = st_sched_least(s, n);
        if (latest > best || (latest == best && *units >= fewest))
            continue;
        for (i = 0; i < s->cores; i++)
            s->trial[i] = (struct st_sched_core){0, i, 0};
        latest = st_sched_lpt(s, n, s->trial);
        dealt = k;
        if (latest < best || (latest == best && *units < fewest)) {
            best = latest;
            fewest = *units;
            chosen = limit;
            choice = k;
        }
        if (best <= average + average / 50 || s->whole)
            break;
    }
    *placed = choice == dealt;
    if (choice != last || !each) {
        n = st_sched_cut(s, g, &chosen, units);
        st_sched_falling(s, n);
    }
    return n;
}

#endif
