/* Units on cores to the records of a plan. */
#ifndef ST_SCHEDULE_WRITE_H
#define ST_SCHEDULE_WRITE_H

#include "st_schedule_cut.h"

/* What the unit of an entry has to wait for that its core has not waited for yet: all but the last by
 * sync units before it.  Marks them; *last is -1 or the wait of the unit itself. */
static inline uint32_t st_sched_waits(struct st_sched *s, const struct st_sched_bundle *b, uint32_t core, uint32_t *ids,
                                      int64_t *last)
{
    uint32_t i, id, n = 0;

    *last = -1;
    for (i = b->wait; i < b->wait + b->nwaits; i++) {
        id = s->wait_ids[i];
        if (s->seen[id] == core + 1)
            continue;
        s->seen[id] = core + 1;
        if (*last >= 0)
            ids[n++] = (uint32_t)*last;
        *last = id;
    }
    return n;
}

/* Fields go straight to memory: a unit made elsewhere and copied waits for its own narrow stores. */
static inline void st_sched_put(struct st_sched *s, const struct st_sched_bundle *b, uint8_t kind, uint32_t core,
                                int64_t wait)
{
    struct st_unit *u = &s->units[s->nunits];

    memset(u, 0, sizeof(*u));
    u->kind = kind;
    u->dtype = s->dtype;
    u->core = (uint16_t)core;
    u->src_first = u->dst_first = (uint32_t)s->nout;
    u->wait_peer = wait < 0 ? -1 : s->waits[wait].peer;
    u->wait_flag = wait < 0 ? -1 : s->waits[wait].flag;
    u->post_flag = -1;
    u->slice = b->slice;
    u->step = b->step;
}

/* The unit of an entry, and its operands. */
static inline void st_sched_unit(struct st_sched *s, const struct st_sched_entry *e, uint32_t core, int64_t wait)
{
    const struct st_sched_bundle *b = &s->bundles[e->bundle];
    const struct st_operand *from = &s->operands[b->operand];
    struct st_operand *to = &s->out[s->nout];
    struct st_unit *u = &s->units[s->nunits];
    uint64_t begin, partial = 0, bytes;
    uint32_t i, n = (uint32_t)b->nsrc + b->ndst;

    st_sched_put(s, b, b->kind, core, wait);
    u->post_flag = b->post;
    if (b->kind == ST_UNIT_SYNC)
        return;
    begin = st_sched_piece(b, e->nth, &bytes);
    u->op = b->op;
    u->tier = b->tier;
    u->nsrc = b->nsrc;
    u->ndst = b->ndst;
    u->dst_first += b->nsrc;
    u->bytes = bytes;
    u->total = b->total;
    if (b->kind == ST_UNIT_REDUCE)
        partial = st_sched_shift(s, b->op, begin);
    for (i = 0; i < n; i++) {
        memcpy(&to[i], &from[i], offsetof(struct st_operand, offset));
        to[i].offset = from[i].offset + (from[i].flags ? partial : begin);
    }
    s->nout += n;
}

/* Counts units and operands, and if `fill` writes them: units, out and begin. */
static inline int st_sched_walk(struct st_sched *s, int fill)
{
    uint32_t c, k, i, extra;
    const struct st_sched_bundle *b;
    int64_t last = -1;

    s->nunits = s->nout = 0;
    if (!fill && !s->nwaits && !s->nsyncs) { /* every entry is a unit */
        for (i = 0; i < s->nbundles; i++) {
            b = &s->bundles[i];
            s->nout += ((uint64_t)b->nbig + b->nsmall) * ((uint64_t)b->nsrc + b->ndst);
        }
        s->nunits = s->nentries;
        return s->nunits >> 31 || s->nout >> 32 ? ST_SCHED_EMANY : ST_SCHED_OK;
    }
    memset(s->seen, 0, (s->nwaits + 1) * sizeof(*s->seen));
    for (c = 0; c < s->cores; c++) {
        if (fill)
            s->begin[c] = (uint32_t)s->nunits;
        for (k = s->core_begin[c]; k < s->core_begin[c + 1]; k++) {
            const struct st_sched_entry *e = &s->entries[s->order[k]];

            b = &s->bundles[e->bundle];
            extra = b->nwaits ? st_sched_waits(s, b, c, s->heads, &last) : 0;
            for (i = 0; i < extra; i++, s->nunits++)
                if (fill)
                    st_sched_put(s, b, ST_UNIT_SYNC, c, s->heads[i]);
            last = b->nwaits ? last : -1;
            if (b->kind == ST_UNIT_SYNC && last < 0 && b->post == -1)
                continue;
            if (fill)
                st_sched_unit(s, e, c, last);
            else
                s->nout += (uint64_t)b->nsrc + b->ndst;
            s->nunits++;
        }
    }
    if (fill)
        s->begin[s->cores] = (uint32_t)s->nunits;
    return s->nunits >> 31 || s->nout >> 32 ? ST_SCHED_EMANY : ST_SCHED_OK;
}

/* Member on the far side of a unit; -1 where there are many, or no cap counts. */
static inline int32_t st_sched_far(const struct st_sched *s, const struct st_unit *u)
{
    if ((u->kind != ST_UNIT_COPY && u->kind != ST_UNIT_ACCUMULATE) || s->cap[u->tier] >= s->cores)
        return -1;
    return s->slices[u->slice].peer;
}

/* Stripes: a core has one unit in a stripe, in its order, and at most cap[tier] cores are on one peer
 * in it; lower cores first, the others put off. */
static inline void st_sched_stripes(struct st_sched *s)
{
    uint32_t stripe, c, left = 0, capped = 0, *at = s->at, *met = s->met, *number = s->number;
    struct st_unit *u;
    int32_t far;
    int t;

    for (t = 0; t < ST_NTIERS; t++)
        capped |= s->cap[t] < s->cores;
    for (c = 0; c < s->cores; c++) {
        at[c] = s->begin[c];
        left += at[c] < s->begin[c + 1];
        for (stripe = 0; !capped && at[c] < s->begin[c + 1]; stripe++)
            s->units[at[c]++].stripe = (uint16_t)(stripe < UINT16_MAX ? stripe : UINT16_MAX);
    }
    memset(met, 0, (size_t)s->nranks * sizeof(*met));
    for (stripe = 0; capped && left; stripe++) {
        for (c = 0; c < s->cores; c++) {
            if (at[c] == s->begin[c + 1])
                continue;
            u = &s->units[at[c]];
            far = st_sched_far(s, u);
            if (far >= 0) {
                if (met[far] != stripe + 1)
                    number[far] = 0;
                met[far] = stripe + 1;
                if (number[far] >= (uint64_t)s->cap[u->tier])
                    continue;
                number[far]++;
            }
            u->stripe = (uint16_t)(stripe < UINT16_MAX ? stripe : UINT16_MAX);
            at[c]++;
            left -= at[c] == s->begin[c + 1];
        }
    }
}

/* How far the plan reaches into each buffer of each member. */
static inline void st_sched_extents(struct st_sched *s)
{
    const struct st_sched_bundle *b;
    const struct st_operand *o;
    uint64_t end, *reach;
    uint32_t i, k;

    memset(s->extent, 0, (size_t)s->nranks * ST_NBUFS * sizeof(*s->extent));
    for (i = 0; i < s->nbundles; i++) {
        b = &s->bundles[i];
        for (k = 0; k < (uint32_t)b->nsrc + b->ndst; k++) {
            o = &s->operands[b->operand + k];
            end = o->offset + (o->flags ? st_sched_shift(s, b->op, b->bytes) : b->bytes);
            reach = &s->extent[(size_t)o->member * ST_NBUFS + o->buf];
            *reach = end > *reach ? end : *reach;
        }
    }
}

#endif
