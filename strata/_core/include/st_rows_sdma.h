/* Units of rows carried out by the die's DMA thread: rows become copies, neighbours as one. */
#ifndef ST_ROWS_SDMA_H
#define ST_ROWS_SDMA_H

#include "st_rows_pull.h"

/* ---- gathers ---------------------------------------------------------------------- */

/* The next descriptor; ST_AGAIN: there is none. */
static inline int st_rows_next(struct st_group *g, const struct st_plan *p, const struct st_rows *r,
                               struct st_rows_cursor *c, struct st_descriptor *d)
{
    for (;;) {
        const struct st_unit *u = &p->units[c->unit];
        const struct st_column *col = &r->columns[c->column];
        const struct st_operand *src, *dst;
        uint64_t count, rows, run = 1, most, *entry;
        const uint8_t *from;
        uint8_t *to;
        int rc;

        if (c->unit == c->end)
            return ST_AGAIN;
        count = u->bytes / u->row;
        if (c->entry == count) {
            c->entry = 0;
            c->column = (c->column + 1) % r->ncolumns;
            c->unit += c->column == 0;
            continue;
        }
        src = p->operands + u->src_first;
        dst = p->operands + u->dst_first;
        rc = st_rows_source(g, col, (uint32_t)src->member, src->offset / u->row, &from, &rows);
        if (rc == ST_OK)
            rc = st_rows_target(col, dst->offset / u->row, count, &to);
        if (rc != ST_OK)
            return rc;
        entry = (uint64_t *)p->rows + u->index + c->entry;
        most = ST_SDMA_BLOCK / col->row;
        while (run < most && c->entry + run < count && entry[run] == entry[0] + run)
            run++;
        if (entry[0] >= rows || run > rows - entry[0])
            return ST_EREG;
        *d = st_rows_copy_of(r, to + c->entry * col->row, from + entry[0] * col->row, run * col->row);
        c->entry += run;
        return ST_OK;
    }
}

/* Submits a lane's next batch, if there is one: *more. */
static inline int st_rows_batch(struct st_group *g, const struct st_plan *p, const struct st_rows *r,
                                struct st_rows_engine *s, uint32_t lane, struct st_rows_cursor *c, int *more)
{
    uint32_t n = 0;
    int rc = ST_OK;

    while (n < ST_ROWS_BATCH - 1 && (rc = st_rows_next(g, p, r, c, &s->batch[n])) == ST_OK)
        n++;
    *more = n > 0;
    if (rc != ST_OK && rc != ST_AGAIN)
        return rc;
    return n ? st_rows_submit(g, s, lane, n) : ST_OK;
}

/* Lanes, no more than the plan has cores, have a share of the units each, in their order. */
static inline int st_rows_gathers(struct st_group *g, const struct st_plan *p, const struct st_rows *r,
                                  struct st_rows_engine *s)
{
    uint32_t lanes = st_plan_cores(p) < ST_ROWS_LANES ? st_plan_cores(p) : ST_ROWS_LANES, lane, left = lanes;
    uint64_t each = (p->nunits + lanes - 1) / lanes;
    struct st_rows_cursor at[ST_ROWS_LANES];
    int more[ST_ROWS_LANES], rc = ST_OK;

    for (lane = 0; lane < lanes; lane++) {
        uint64_t first = lane * each < p->nunits ? lane * each : p->nunits;

        at[lane] = (struct st_rows_cursor){.unit = first, .end = first + each < p->nunits ? first + each : p->nunits};
        more[lane] = 1;
    }
    while (left && rc == ST_OK)
        for (lane = 0; lane < lanes && rc == ST_OK; lane++) {
            if (!more[lane])
                continue;
            if (s->told[lane] > 1) /* room for one more batch */
                rc = st_rows_wait(s, lane, s->told[lane] - 1);
            if (rc == ST_OK)
                rc = st_rows_batch(g, p, r, s, lane, &at[lane], &more[lane]);
            left -= !more[lane];
        }
    for (lane = 0; lane < lanes && rc == ST_OK; lane++)
        rc = st_rows_wait(s, lane, s->told[lane]);
    return rc;
}

/* ---- a run ------------------------------------------------------------------------ */

/* Nothing of the run is in the lanes any more, and the DMA thread is at none of it. */
static inline void st_rows_drain(struct st_rows_engine *s)
{
    uint32_t lane;

    for (lane = 0; lane < ST_ROWS_LANES; lane++)
        while (st_lane_head(&s->lanes[lane]) != st_lane_tail(&s->lanes[lane]) &&
               st_load_acquire_32(&s->e->runs)) /* pairs with st_engine_end */
            sched_yield();
}

/* Runs a plan of units of rows, all of one kind.  No thread touches a buffer when it returns. */
static inline int st_exec_rows_sdma(struct st_group *g, const struct st_plan *p, const struct st_rows *r,
                                    struct st_rows_engine *s)
{
    uint32_t lane;
    uint64_t i;
    int rc = st_rows_check(p, r);

    for (i = 1; i < p->nunits && rc == ST_OK; i++)
        rc = p->units[i].kind == p->units[0].kind ? ST_OK : ST_EINVAL;
    for (lane = 0; lane < ST_ROWS_LANES && rc == ST_OK; lane++)
        rc = st_lane_open(g->ctx, &s->lanes[lane]);
    if (rc != ST_OK || !p->nunits)
        return rc;
    s->event = st_event_take(s->e, NULL, NULL);
    if (!s->event)
        return ST_EFULL;
    rc = p->units[0].kind == ST_UNIT_ROWS ? st_rows_gathers(g, p, r, s) : st_rows_sums(g, p, r, s);
    if (rc != ST_OK)
        st_event_cancel(s->e, s->event, ST_ECANCELED);
    st_rows_drain(s);
    st_event_give(s->e, s->event);
    for (lane = 0; lane < ST_ROWS_LANES && rc != ST_OK; lane++) { /* they may be poisoned */
        st_store_relaxed_64(st_rows_flag(s, lane), 0);
        s->told[lane] = 0;
    }
    return rc;
}

#endif
