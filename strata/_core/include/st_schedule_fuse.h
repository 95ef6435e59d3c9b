/* Slices to bundles: checked, grouped into stages, fused, in the die's staggered order. */
#ifndef ST_SCHEDULE_FUSE_H
#define ST_SCHEDULE_FUSE_H

#include "st_schedule_check.h"
#include "st_schedule_turn.h"

static inline uint64_t st_sched_mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15ull ^ (b + 0x632be59bd9b4e019ull);

    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
    return x ^ x >> 32;
}

/* Where a stage's reduction into this range is in the table, or would be. */
static inline uint32_t st_sched_find(const struct st_sched *s, uint32_t first, uint8_t buf, uint64_t dst, uint64_t bytes)
{
    uint32_t at = (uint32_t)st_sched_mix(dst + buf, bytes ^ (uint64_t)first << 40) & s->mask, i;
    const struct st_slice *x;

    for (; s->table[at]; at = (at + 1) & s->mask) {
        i = s->table[at] - 1;
        x = &s->slices[i];
        if (i >= first && x->dst == dst && x->bytes == bytes && x->dst_buf == buf)
            break;
    }
    return at;
}

/* Adds what a slice waits for to the bundle's list, once. */
static inline void st_sched_await(struct st_sched *s, struct st_sched_bundle *b, const struct st_slice *x)
{
    uint32_t at, id;

    if (x->wait_flag == -1)
        return;
    at = (uint32_t)st_sched_mix((uint32_t)x->wait_peer, (uint32_t)x->wait_flag) & s->mask;
    for (; s->waiting[at]; at = (at + 1) & s->mask) {
        id = s->waiting[at] - 1;
        if (s->waits[id].peer == x->wait_peer && s->waits[id].flag == x->wait_flag)
            break;
    }
    if (!s->waiting[at]) {
        s->waits[s->nwaits] = (struct st_sched_wait){x->wait_peer, x->wait_flag};
        s->waiting[at] = ++s->nwaits;
    }
    id = s->waiting[at] - 1;
    if (s->seen[id] == s->nbundles + 1)
        return;
    s->seen[id] = s->nbundles + 1; /* the bundle is the one being made */
    s->wait_ids[s->nwait_ids++] = id;
    b->nwaits++;
}

static inline void st_sched_operand(struct st_sched *s, int32_t member, uint8_t buf, int partial, uint64_t offset)
{
    s->operands[s->noperands++] = (struct st_operand){
        .member = member, .buf = buf, .flags = partial ? ST_OPERAND_PARTIAL : 0, .offset = offset};
}

static inline struct st_sched_bundle *st_sched_new(struct st_sched *s, uint8_t kind, uint32_t slice)
{
    struct st_sched_bundle *b = &s->bundles[s->nbundles];
    const struct st_slice *x = &s->slices[slice];

    memset(b, 0, sizeof(*b)); /* in place: what is made elsewhere and copied waits for its own narrow stores */
    b->bytes = x->bytes;
    b->peer = x->peer;
    b->post = x->post_flag;
    b->slice = slice;
    b->operand = s->noperands;
    b->wait = s->nwait_ids;
    b->step = x->step;
    b->kind = kind;
    b->op = x->op;
    return b;
}

/* Where a bundle's cuts may be. */
static inline void st_sched_phase(const struct st_sched *s, struct st_sched_bundle *b)
{
    const struct st_operand *first = &s->operands[b->operand + b->nsrc];

    if (!first->flags)
        b->phase = (uint32_t)(first->offset % ST_SCHED_LINE);
    if (b->op && b->phase % s->itemsize)
        b->phase = 0; /* elements before lines */
}

/* What a reduction's byte costs: `legs` of each tier. */
static inline void st_sched_legs(const struct st_sched *s, struct st_sched_bundle *b, const uint32_t *legs)
{
    int t;

    for (t = 0; t < ST_NTIERS; t++) {
        if (!legs[t])
            continue;
        b->tier = (uint8_t)t;
        if (s->alpha[t] > b->alpha)
            b->alpha = s->alpha[t];
        b->rate += legs[t] * s->rate[t];
    }
}

static inline int st_sched_single(struct st_sched *s, uint32_t slice)
{
    const struct st_slice *x = &s->slices[slice];
    int push = x->kind == ST_SLICE_PUSH;
    struct st_sched_bundle *b = st_sched_new(s, x->op ? ST_UNIT_ACCUMULATE : ST_UNIT_COPY, slice);

    if (x->flags & (ST_SLICE_PARTIAL_SRC | ST_SLICE_PARTIAL_DST))
        return ST_SCHED_EPARTIAL;
    if (x->flags & ST_SLICE_TRANSIENT)
        return ST_SCHED_ETRANSIENT;
    b->nsrc = b->ndst = 1;
    b->turn = st_sched_turn(s, x->peer);
    st_sched_operand(s, push ? s->rank : x->peer, x->src_buf, 0, x->src);
    st_sched_operand(s, push ? x->peer : s->rank, x->dst_buf, 0, x->dst);
    st_sched_await(s, b, x);
    b->tier = s->tier[x->peer];
    b->alpha = s->alpha[b->tier];
    b->rate = s->rate[b->tier];
    st_sched_phase(s, b);
    s->nbundles++;
    return ST_SCHED_OK;
}

/* One slice of a reduction: its part in operator, flags and cost. */
static inline int st_sched_join(struct st_sched *s, struct st_sched_bundle *b, const struct st_slice *x, uint32_t *legs)
{
    if (x->op && x->op != b->op)
        return ST_SCHED_EOPS;
    if (x->post_flag != -1 && b->post != -1 && x->post_flag != b->post)
        return ST_SCHED_EPOSTS;
    b->post = x->post_flag != -1 ? x->post_flag : b->post;
    st_sched_await(s, b, x);
    legs[s->tier[x->peer]]++;
    return ST_SCHED_OK;
}

/* The bundle of a reduction: operands in the order of the slices; own destination, then peers'. */
static inline int st_sched_reduction(struct st_sched *s, uint32_t head)
{
    struct st_sched_bundle *b = st_sched_new(s, ST_UNIT_REDUCE, head);
    const struct st_slice *x = &s->slices[head];
    uint32_t i, n = 0, legs[ST_NTIERS] = {0}, nsrc = 0, stored = !(x->flags & ST_SLICE_TRANSIENT);
    int rc = ST_SCHED_OK;

    for (i = head; i != ST_SCHED_NONE && !rc; i = s->next[i], nsrc++) {
        x = &s->slices[i];
        rc = st_sched_join(s, b, x, legs);
        st_sched_operand(s, x->peer, x->src_buf, x->flags & ST_SLICE_PARTIAL_SRC, x->src);
    }
    x = &s->slices[head];
    if (stored)
        st_sched_operand(s, s->rank, x->dst_buf, x->flags & ST_SLICE_PARTIAL_DST, x->dst);
    for (i = s->push_first[head]; i != ST_SCHED_NONE; i = s->next[i])
        s->keys[n++] = st_sched_key(0, st_sched_turn(s, s->slices[i].peer), i);
    st_sched_sort(s->keys, s->spare, n);
    if (n + stored == 0)
        return ST_SCHED_ETRANSIENT;
    if (nsrc > UINT16_MAX || n + stored > UINT16_MAX)
        return ST_SCHED_EMANY;
    for (i = 0; i < n && !rc; i++) {
        x = &s->slices[st_sched_at(&s->keys[i])];
        rc = st_sched_join(s, b, x, legs);
        st_sched_operand(s, x->peer, x->dst_buf, x->flags & ST_SLICE_PARTIAL_DST, x->dst);
    }
    if (rc)
        return rc;
    b->nsrc = (uint16_t)nsrc;
    b->ndst = (uint16_t)(n + stored);
    b->peer = -1;
    b->turn = b->spin = -2;
    b->total = b->op == ST_AVG ? (uint16_t)s->nranks : 0;
    st_sched_legs(s, b, legs);
    st_sched_phase(s, b);
    s->nbundles++;
    return ST_SCHED_OK;
}

/* The reductions of a stage, in the order of their first slices; marks what they took as used. */
static inline int st_sched_reductions(struct st_sched *s, uint32_t first, uint32_t last, uint32_t *at)
{
    uint32_t i, h, place, n = 0;
    const struct st_slice *x;
    int rc;

    for (i = first; i < last; i++) {
        x = &s->slices[i];
        if (!x->op || x->flags & ST_SLICE_ATOMIC)
            continue;
        s->used[i] = 1;
        s->next[i] = s->push_first[i] = ST_SCHED_NONE;
        place = st_sched_find(s, first, x->dst_buf, x->dst, x->bytes);
        if (!s->table[place]) {
            s->table[place] = i + 1;
            s->heads[n++] = i;
        } else {
            s->next[s->tail[s->table[place] - 1]] = i;
        }
        s->tail[s->table[place] - 1] = i;
    }
    for (i = first; i < last && n; i++) {
        x = &s->slices[i];
        if (x->kind != ST_SLICE_PUSH || x->op)
            continue;
        place = st_sched_find(s, first, x->src_buf, x->src, x->bytes);
        if (!s->table[place])
            continue;
        h = s->table[place] - 1;
        s->used[i] = 1;
        s->next[i] = ST_SCHED_NONE;
        if (s->push_first[h] == ST_SCHED_NONE)
            s->push_first[h] = i;
        else
            s->next[s->push_last[h]] = i;
        s->push_last[h] = i;
    }
    for (i = 0; i < n; i++) {
        rc = st_sched_reduction(s, *at = s->heads[i]);
        if (rc)
            return rc;
    }
    return ST_SCHED_OK;
}

/* A stage's slices that are no reduction's, in turn. */
static inline int st_sched_singles(struct st_sched *s, uint32_t first, uint32_t last, uint32_t *at)
{
    uint32_t i, n = 0;
    int rc;

    for (i = first; i < last; i++) {
        if (!s->used[i])
            s->keys[n++] = st_sched_key(0, st_sched_turn(s, s->slices[i].peer), i);
    }
    st_sched_sort(s->keys, s->spare, n);
    for (i = 0; i < n; i++) {
        rc = st_sched_single(s, *at = st_sched_at(&s->keys[i]));
        if (rc)
            return rc;
    }
    return ST_SCHED_OK;
}

/* Fills bundles, operands, waits and stages; on an error *at is the slice that is wrong.
 * Needs: nslices + 1 of each array over slices, 2 of operands for each, one more for each
 * reduction; tables of mask + 1 zeros, mask + 1 >= 2 * nslices; `seen` and `used` zero. */
static inline int st_sched_fuse(struct st_sched *s, uint32_t *at)
{
    uint64_t bytes;
    uint32_t i, k, first, last;
    int rc = st_sched_stages(s, at, &bytes);

    s->nbundles = s->noperands = s->nwaits = s->nwait_ids = 0;
    s->least = bytes / ST_SCHED_MAX_UNITS + 1;
    for (k = 0; k < s->nstages && !rc; k++) {
        first = s->stages[k].bundle;
        last = first + s->stages[k].nbundles;
        s->stages[k].bundle = s->nbundles;
        if (s->stages[k].sync) {
            for (i = first; i < last; i++) {
                st_sched_await(s, st_sched_new(s, ST_UNIT_SYNC, i), &s->slices[i]);
                s->bundles[s->nbundles].op = 0;
                s->nbundles++;
            }
        } else {
            rc = st_sched_reductions(s, first, last, at);
            if (!rc)
                rc = st_sched_singles(s, first, last, at);
            st_sched_spin(s, &s->bundles[s->stages[k].bundle], s->nbundles - s->stages[k].bundle);
        }
        s->stages[k].nbundles = s->nbundles - s->stages[k].bundle;
    }
    return rc;
}

#endif
