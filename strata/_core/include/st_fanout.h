/* Fan-out loss: what a port gives when it serves several peers at a time.
 *
 * capacity / (1 + loss log2(peers) backlog): `peers` distinct ones, `backlog` the mean over the flows.  Backlogs are
 * whole numbers, so their sum does not depend on the order; log2 is made of sums, products and quotients alone,
 * which round alike on every machine, as libm does not. */
#ifndef ST_FANOUT_H
#define ST_FANOUT_H

#include <stdint.h>

#include "st_timing.h"

/* The port's state beside its links' flows; `count` has an element for each die that may be a peer. */
struct st_fanout {
    uint32_t *count; /* streams of each peer now */
    int64_t backlog; /* sum over flows */
    uint32_t peers;  /* with a stream */
    uint32_t flows;
    uint32_t link;   /* the caller's */
    uint32_t changed;
};

/* log2 of n >= 1, right to a few units of the last place. */
static inline double st_fanout_log2(uint32_t n)
{
    int whole = 31 - __builtin_clz(n);
    double m = (double)n / (double)(UINT32_C(1) << whole), z, zz, sum = 0.0;

    if (m > 1.4142135623730951) {
        m *= 0.5;
        whole++;
    }
    z = (m - 1.0) / (m + 1.0); /* ln m = 2 (z + z^3 / 3 + ...), z at most 0.172 */
    zz = z * z;
    for (int k = 23; k >= 1; k -= 2)
        sum = sum * zz + 1.0 / k;
    return (double)whole + sum * z * 2.8853900817779268; /* 2 / ln 2 */
}

static inline void st_fanout_join(struct st_fanout *f, int32_t peer)
{
    f->peers += f->count[peer]++ == 0;
}

static inline void st_fanout_leave(struct st_fanout *f, int32_t peer)
{
    f->peers -= --f->count[peer] == 0;
}

static inline double st_fanout_capacity(const struct st_fanout *f, const struct st_timing_link *l,
                                        const double *log2_of)
{
    double mean;

    if (f->peers < 2)
        return l->capacity;
    mean = (double)f->backlog / ((double)f->flows * ST_TIMING_BACKLOG_ONE);
    return l->capacity / (1.0 + l->loss * log2_of[f->peers] * mean);
}

#endif
