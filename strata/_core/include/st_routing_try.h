/* How fine windows of rows are best cut: by trying.
 *
 * LPT (Graham 1969) goes by costs alone, and a piece's cost by its tier and number of rows, so a trial counts pieces
 * by these, and deals them out from the dearest on.  The scheduler then does the same with the cut that is chosen. */
#ifndef ST_ROUTING_TRY_H
#define ST_ROUTING_TRY_H

#include <string.h>

#include "st_routing_cut.h"

enum { ST_ROUTE_CUTS = 7 };

/* Pieces of one cost. */
struct st_route_run {
    int64_t cost;
    uint64_t n;
};

struct st_route_try {
    const struct st_route_window *windows;
    const uint8_t *tier;  /* of members */
    const int64_t *alpha; /* picoseconds of a piece, by tier */
    const double *rate;   /* of a row */
    const int64_t *plain; /* rows of a piece at most, by tier */
    uint64_t nwindows, cores;
    uint64_t most;      /* pieces of a cut that is tried */
    int64_t least;      /* rows of a piece, so that there are not too many */
    uint64_t widest;    /* the largest of `plain` */
    uint32_t *pieces;   /* [ST_NTIERS][widest + 1], zero, and left so */
    struct st_route_run *runs; /* as many */
    int64_t *loads;     /* [cores], a heap: the least on top */
};

static inline int64_t st_route_cost(const struct st_route_try *q, uint8_t tier, uint64_t rows)
{
    return q->alpha[tier] + (int64_t)((double)rows * q->rate[tier] + 0.5);
}

/* Counts the pieces of a part of a window, of two sizes at most; how many. */
static inline uint64_t st_route_tally(struct st_route_try *q, uint8_t tier, uint64_t rows, uint64_t most)
{
    uint64_t n, more;

    if (rows <= most) { /* as most are in low latency; divisions are what a trial would spend its time on */
        q->pieces[tier * (q->widest + 1) + rows] += rows > 0;
        return rows > 0;
    }
    n = st_route_even(rows, most);
    more = rows % n;
    q->pieces[tier * (q->widest + 1) + rows / n] += (uint32_t)(n - more);
    if (more)
        q->pieces[tier * (q->widest + 1) + rows / n + 1] += (uint32_t)more;
    return n;
}

static inline void st_route_charge(int64_t *loads, uint64_t cores, int64_t cost)
{
    int64_t top = loads[0] + cost;
    uint64_t at = 0, child;

    while ((child = 2 * at + 1) < cores) {
        child += child + 1 < cores && loads[child + 1] < loads[child];
        if (loads[child] >= top)
            break;
        loads[at] = loads[child];
        at = child;
    }
    loads[at] = top;
}

/* The pieces that were counted as runs, the dearest first; how many runs. */
static inline uint64_t st_route_runs(struct st_route_try *q, const struct st_route_limits *cut, int64_t *total)
{
    uint64_t at[ST_NTIERS], row = q->widest + 1, n = 0;
    int64_t cost, next;
    int t, best;

    *total = 0;
    for (t = 0; t < ST_NTIERS; t++)
        at[t] = (uint64_t)cut->big[t];
    for (;;) {
        for (t = 0, best = -1, cost = -1; t < ST_NTIERS; t++) {
            for (; at[t] && !q->pieces[(uint64_t)t * row + at[t]]; at[t]--) {
            }
            next = at[t] ? st_route_cost(q, (uint8_t)t, at[t]) : -1;
            best = next > cost ? t : best;
            cost = next > cost ? next : cost;
        }
        if (best < 0)
            return n;
        q->runs[n] = (struct st_route_run){cost, q->pieces[(uint64_t)best * row + at[best]]};
        *total += cost * (int64_t)q->runs[n++].n;
        q->pieces[(uint64_t)best * row + at[best]] = 0;
    }
}

/* When the last core is done with a cut, and what all cores have to do.  INT64_MAX: no sooner than `best`, or it has
 * too many pieces. */
static inline int64_t st_route_trial(struct st_route_try *q, const struct st_route_limits *cut, int64_t best,
                                     int64_t *total)
{
    uint64_t i, k, head, n = 0, runs;
    int64_t latest = 0;

    for (i = 0; i < q->nwindows; i++) {
        const struct st_route_window *w = &q->windows[i];
        uint8_t tier = q->tier[w->peer];

        head = st_route_head(w, cut, tier);
        n += st_route_tally(q, tier, head, (uint64_t)cut->big[tier]);
        n += st_route_tally(q, tier, (uint64_t)w->rows - head, (uint64_t)cut->small[tier]);
    }
    runs = st_route_runs(q, cut, total);
    if (n > q->most || *total / (int64_t)q->cores >= best)
        return INT64_MAX;
    memset(q->loads, 0, q->cores * sizeof(*q->loads));
    for (i = 0; i < runs; i++)
        for (k = 0; k < q->runs[i].n; k++)
            st_route_charge(q->loads, q->cores, q->runs[i].cost);
    for (i = 0; i < q->cores; i++)
        latest = q->loads[i] > latest ? q->loads[i] : latest;
    return latest;
}

/* Rows of a piece that costs at most `ps`. */
static inline int64_t st_route_fit(const struct st_route_try *q, int t, double ps)
{
    double rows = (ps - (double)q->alpha[t]) / q->rate[t];

    if (!(rows > (double)q->least))
        return q->least;
    return rows < (double)q->plain[t] ? (int64_t)rows : q->plain[t];
}

/* Cut number k, by what a core has to do on average: the tier's own pieces; pieces of an eighth, then a third of it, the
 * last ones much smaller; and equal pieces, one to four of a core. */
static inline void st_route_cut_number(const struct st_route_try *q, int k, int64_t average, struct st_route_limits *cut)
{
    static const double parts[ST_ROUTE_CUTS][2] = {{0, 0}, {8, 48}, {3, 12}, {1, 1}, {2, 2}, {3, 3}, {4, 4}};
    double share;
    int t;

    for (t = 0; t < ST_NTIERS; t++) {
        cut->big[t] = k ? st_route_fit(q, t, (double)average / parts[k][0]) : q->plain[t];
        cut->small[t] = k ? st_route_fit(q, t, (double)average / parts[k][1]) : q->plain[t];
        share = cut->small[t] < cut->big[t] ? (double)st_route_cost(q, (uint8_t)t, (uint64_t)cut->big[t]) : 0;
        cut->tail[t] = share > 0 && share < (double)average ? share / (double)average : share > 0;
    }
}

/* The cut that is done first, or one within 2 % of `average`, which becomes what a core has to do under the tiers' own. */
static inline void st_route_choose(struct st_route_try *q, struct st_route_limits *chosen, int64_t *average)
{
    struct st_route_limits cut;
    int64_t best = INT64_MAX, latest, total;
    int k;

    *average = 0;
    for (k = 0; k < ST_ROUTE_CUTS; k++) {
        st_route_cut_number(q, k, *average, &cut);
        latest = st_route_trial(q, &cut, best, &total);
        if (!k)
            *average = (total + (int64_t)q->cores - 1) / (int64_t)q->cores;
        if (!k || latest < best) {
            best = latest;
            *chosen = cut;
        }
        if (best <= *average + *average / 50)
            return;
    }
}

/* No partition that gives each peer cores of its own is done sooner: some core has the whole of the largest peer, or
 * as little of it as there are cores for a peer; and where there are more peers than cores, some has several, of which
 * none is less than the least.  Windows are by peer. */
static inline int64_t st_route_apart(const struct st_route_try *q)
{
    int64_t load = 0, largest = 0, smallest = INT64_MAX, shared, many;
    uint64_t i, peers = 0;

    for (i = 0; i < q->nwindows; i++) {
        const struct st_route_window *w = &q->windows[i];
        uint8_t t = q->tier[w->peer];

        load += (int64_t)st_route_even((uint64_t)w->rows, (uint64_t)q->plain[t]) * q->alpha[t] +
                (int64_t)((double)w->rows * q->rate[t]);
        if (i + 1 < q->nwindows && w[1].peer == w->peer)
            continue;
        peers++;
        largest = load > largest ? load : largest;
        smallest = load < smallest ? load : smallest;
        load = 0;
    }
    if (!peers)
        return 0;
    shared = largest / (int64_t)((q->cores + peers - 1) / peers);
    many = peers > q->cores ? smallest * (int64_t)((peers + q->cores - 1) / q->cores) : 0;
    return shared > many ? shared : many;
}

#endif
