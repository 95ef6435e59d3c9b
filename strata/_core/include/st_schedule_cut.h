/* Bundles to units: at whole lines of the destination, and whole elements. */
#ifndef ST_SCHEDULE_CUT_H
#define ST_SCHEDULE_CUT_H

#include "st_schedule_types.h"

/* How fine a stage is cut: units that cost at most `big`, and for the last tail_num / tail_den
 * of each bundle at most `small`.  With apart 1 start-ups do not count in these, with 0 they do.
 * Zeros: units of the tier's size throughout. */
struct st_sched_limit {
    double big, small, tail, apart;
};

static inline uint64_t st_sched_down(uint64_t x) { return x / ST_SCHED_LINE * ST_SCHED_LINE; }

static inline uint64_t st_sched_up(uint64_t x) { return st_sched_down(x + ST_SCHED_LINE - 1); }

#define ST_SCHED_MAX_COST (1ll << 44) /* picoseconds; so no sum overflows */

/* What a unit of so many bytes costs, picoseconds; half to even, without libm. */
static inline int64_t st_sched_cost(const struct st_sched_bundle *b, uint64_t bytes)
{
    const double shift = 0x1.8p52; /* a double this large has no fraction */
    double cost = (double)bytes * b->rate;

    if (cost >= (double)ST_SCHED_MAX_COST)
        return ST_SCHED_MAX_COST;
    return b->alpha + (int64_t)(cost + shift - shift);
}

/* Even units of at most `size` bytes in place of a small last one; how many. */
static inline uint32_t st_sched_even(uint64_t span, uint64_t *size)
{
    uint64_t n;

    if (span <= *size) {
        *size = st_sched_up(span);
        return span != 0;
    }
    n = (span + *size - 1) / *size;
    *size = st_sched_up((span + n - 1) / n);
    return (uint32_t)((span + *size - 1) / *size);
}

/* Bytes of a unit that costs at most `ps`, whole lines, not below what is sensible. */
static inline uint64_t st_sched_fit(const struct st_sched_bundle *b, double ps, uint64_t least, uint64_t most)
{
    double bytes = (ps - (double)b->alpha) / b->rate;

    least = st_sched_up(least);
    if (!(bytes > (double)least))
        return least;
    if (bytes >= (double)most)
        return most;
    return st_sched_down((uint64_t)bytes);
}

static inline void st_sched_cut_one(const struct st_sched *s, struct st_sched_bundle *b, const struct st_sched_limit *l)
{
    uint64_t span = b->phase + b->bytes, tail = 0;
    uint64_t floor = s->least > ST_SCHED_LEAST ? s->least : ST_SCHED_LEAST;
    uint64_t most = st_sched_down((uint64_t)s->unit[b->tier]), least = st_sched_up(s->least);
    double part, apart = l->apart * (double)b->alpha;

    b->big = most > least ? most : least;
    b->small = 0;
    if (l->big > 0) {
        least = st_sched_fit(b, l->big + apart, floor, b->big);
        b->big = least < b->big ? least : b->big;
        b->small = st_sched_fit(b, l->small + apart, floor, b->big);
        part = (double)st_sched_cost(b, b->big) * l->tail;
        if (b->small < b->big)
            tail = part < 1 ? st_sched_up((uint64_t)((double)span * part)) : span;
    }
    b->head = tail ? st_sched_down(span > tail ? span - tail : 0) : span;
    b->nbig = st_sched_even(b->head, &b->big);
    b->nsmall = st_sched_even(span - b->head, &b->small);
}

/* Whether bundles are cut alike, under any limit. */
static inline int st_sched_alike(const struct st_sched_bundle *a, const struct st_sched_bundle *b)
{
    return a->bytes == b->bytes && a->phase == b->phase && a->tier == b->tier && a->rate == b->rate &&
           a->alpha == b->alpha;
}

static inline void st_sched_cut_as(struct st_sched_bundle *b, const struct st_sched_bundle *other)
{
    b->head = other->head;
    b->big = other->big;
    b->small = other->small;
    b->nbig = other->nbig;
    b->nsmall = other->nsmall;
}

/* Where unit `nth` begins in the bundle, and how many bytes it has. */
static inline uint64_t st_sched_piece(const struct st_sched_bundle *b, uint32_t nth, uint64_t *bytes)
{
    uint64_t at, end;

    if (nth < b->nbig) {
        at = nth * b->big;
        end = at + b->big < b->head ? at + b->big : b->head;
    } else {
        at = b->head + (nth - b->nbig) * b->small;
        end = at + b->small;
    }
    at = at > b->phase ? at - b->phase : 0;
    end = end - b->phase < b->bytes ? end - b->phase : b->bytes;
    *bytes = end - at;
    return at;
}

/* The bundle's units as runs of one cost, at most ST_SCHED_RUNS of them. */
enum { ST_SCHED_RUNS = 6 };
static inline uint32_t st_sched_runs(const struct st_sched_bundle *b, uint32_t number, struct st_sched_run *runs)
{
    uint32_t edge[ST_SCHED_RUNS + 1], count = b->nbig + b->nsmall, n = 0, made = 0, i;
    uint64_t bytes;
    int64_t cost;

    /* the first is short by the phase, the last of each kind by what is left */
    edge[n++] = 0;
    if (b->nbig > 1)
        edge[n++] = 1;
    if (b->nbig > 2)
        edge[n++] = b->nbig - 1;
    if (b->nsmall && b->nbig)
        edge[n++] = b->nbig;
    if (b->nsmall > 1 && !b->nbig)
        edge[n++] = 1;
    if (b->nsmall > 1 && count - 1 > edge[n - 1])
        edge[n++] = count - 1;
    edge[n] = count;
    for (i = 0; i < n; i++) {
        if (edge[i] == edge[i + 1])
            continue;
        st_sched_piece(b, edge[i], &bytes);
        cost = st_sched_cost(b, bytes);
        if (made && runs[made - 1].cost == cost)
            runs[made - 1].n += edge[i + 1] - edge[i];
        else
            runs[made++] = (struct st_sched_run){cost, number, edge[i], edge[i + 1] - edge[i], b->spin};
    }
    return made;
}

#endif
