/* Slices looked at, and divided into stages. */
#ifndef ST_SCHEDULE_CHECK_H
#define ST_SCHEDULE_CHECK_H

#include "st_schedule_types.h"

/* Whether a slice is one that the rest can work on. */
static inline int st_sched_check_one(const struct st_sched *s, const struct st_slice *x)
{
    const uint16_t partial = ST_SLICE_PARTIAL_SRC | ST_SLICE_PARTIAL_DST;

    if (x->kind != ST_SLICE_PULL && x->kind != ST_SLICE_PUSH && x->kind != ST_SLICE_SYNC)
        return ST_SCHED_EKIND;
    if ((x->bytes == 0) != (x->kind == ST_SLICE_SYNC))
        return ST_SCHED_EBYTES;
    if ((x->wait_flag == -1) != (x->wait_peer == -1))
        return ST_SCHED_EWAIT;
    if (x->peer < 0 || x->peer >= s->nranks || x->wait_peer < -1 || x->wait_peer >= s->nranks)
        return ST_SCHED_EMEMBER;
    if (x->op >= ST_NOPS || (x->op && !s->itemsize) || s->tier[x->peer] >= ST_NTIERS ||
        x->src_buf >= ST_NBUFS || x->dst_buf >= ST_NBUFS || x->bytes >> 60 || x->src >> 61 || x->dst >> 61 ||
        x->flags > (partial | ST_SLICE_TRANSIENT | ST_SLICE_ATOMIC) || x->wait_flag < -1 ||
        x->post_flag < -1 || x->wait_flag >= ST_SCHED_MAX_FLAGS || x->post_flag >= ST_SCHED_MAX_FLAGS)
        return ST_SCHED_ERANGE;
    if (x->kind == ST_SLICE_SYNC)
        return ST_SCHED_OK;
    if (x->flags & ST_SLICE_ATOMIC && (!x->op || x->op == ST_AVG))
        return ST_SCHED_EATOMIC;
    if (x->op && x->kind == ST_SLICE_PUSH && !(x->flags & ST_SLICE_ATOMIC))
        return ST_SCHED_EPUSHOP;
    /* a push without operator may go with a reduction, which is seen later */
    if (x->flags & partial && (x->flags & ST_SLICE_ATOMIC || (!x->op && x->kind == ST_SLICE_PULL)))
        return ST_SCHED_EPARTIAL;
    return ST_SCHED_OK;
}

/* The stages, and what is wrong with a slice, of which *at then tells the number. */
static inline int st_sched_stages(struct st_sched *s, uint32_t *at, uint64_t *bytes)
{
    const struct st_slice *x;
    uint32_t i;
    int rc, sync, was = -1;

    s->nstages = s->nsyncs = 0;
    *bytes = 0;
    for (i = 0; i < s->nslices; i++, was = sync) {
        x = &s->slices[*at = i];
        sync = x->kind == ST_SLICE_SYNC;
        rc = st_sched_check_one(s, x);
        if (rc)
            return rc;
        if (i && x->step < x[-1].step)
            return ST_SCHED_ESTEP;
        if (sync != was || x->step != x[-1].step)
            s->stages[s->nstages++] = (struct st_sched_stage){.bundle = i, .sync = (uint8_t)sync};
        s->stages[s->nstages - 1].nbundles++; /* slices, for now */
        s->nsyncs += (uint32_t)sync;
        *bytes += x->bytes; /* bundles move no more than this */
        if (*bytes >> 62)
            return ST_SCHED_ERANGE;
    }
    return ST_SCHED_OK;
}

#endif
