/* What a descriptor does. */
#ifndef ST_ENGINE_DO_H
#define ST_ENGINE_DO_H

#include "st_copy.h"
#include "st_engine_reach.h"
#include "st_exec_plan.h"

/* ---- data -------------------------------------------------------------------------------- */

static inline int st_apart(const void *a, const void *b, uint64_t bytes, int may_be_equal)
{
    uint64_t p = (uint64_t)(uintptr_t)a, q = (uint64_t)(uintptr_t)b;

    return (p == q && may_be_equal) || p + bytes <= q || q + bytes <= p;
}

/* Sizes and operator of a reduction, before anything of it is touched. */
static inline int st_engine_reducible(const struct st_descriptor *d)
{
    uint32_t size = (uint32_t)st_dtype_size(d->dtype);

    if (!size || d->dtype == ST_RAW || d->bytes % size || d->op >= ST_NOPS)
        return ST_EINVAL;
    if (!st_reduce_supported(d->dtype, d->op))
        return ST_EUNSUPPORTED;
    if (d->type != ST_SDMA_ACCUMULATE)
        return ST_OK;
    if (!st_accumulate_width(d->dtype, d->op))
        return ST_EUNSUPPORTED;
    return d->dst % st_accumulate_width(d->dtype, d->op) ? ST_EINVAL : ST_OK;
}

static inline uint64_t st_sdma_operand_bytes(const struct st_descriptor *d, const struct st_sdma_operand *o)
{
    return o->flags & ST_OPERAND_PARTIAL ? st_partial_extent(d->dtype, d->op, d->bytes) : d->bytes;
}

/* Pointers of a list's operands, held; ST_EINVAL if a target is neither apart from an operand nor the very same. */
static inline int st_engine_operands(struct st_engine *e, const struct st_descriptor *d)
{
    uint32_t nsrc = ST_SDMA_NSRC(d->value), n = nsrc + ST_SDMA_NDST(d->value), i, k;
    const struct st_sdma_operand *o = e->operands;
    int rc;

    for (i = nsrc; i < n; i++)
        for (k = 0; k < n; k++) {
            uint64_t a = st_sdma_operand_bytes(d, &o[i]), b = st_sdma_operand_bytes(d, &o[k]);

            if (k != i && !(k < nsrc && o[i].va == o[k].va && a == b) && o[i].va < o[k].va + b && o[k].va < o[i].va + a)
                return ST_EINVAL;
        }
    do {
        e->nranges = 0;
        for (i = 0, rc = ST_OK; i < n && rc == ST_OK; i++) {
            if (o[i].flags & ~(uint32_t)ST_OPERAND_PARTIAL)
                return ST_EINVAL;
            rc = st_engine_reach(e, o[i].va, st_sdma_operand_bytes(d, &o[i]), o[i].generation, i >= nsrc);
            e->pointers[i] = (void *)(uintptr_t)o[i].va;
        }
        rc = rc == ST_OK ? st_engine_take(e) : rc;
    } while (rc == ST_AGAIN);
    return rc;
}

static inline int st_engine_reduce(struct st_engine *e, const struct st_descriptor *d, void **to, uint32_t ndst,
                                   const void *const *from, uint32_t nsrc, uint64_t count)
{
    void **late = ST_LATE(to, ndst, d->bytes);
    int rc = e->ctx->reduce(d->dtype, d->op, late, (int)ndst, from, (int)nsrc, count, !!(d->flags & ST_SDMA_NT));

    ST_MADE(late, to, ndst, d->bytes, rc);
    return rc;
}

static inline int st_engine_reduce_list(struct st_engine *e, const struct st_descriptor *d)
{
    uint32_t nsrc = ST_SDMA_NSRC(d->value), ndst = ST_SDMA_NDST(d->value), total = ST_SDMA_TOTAL(d->value), i;
    uint64_t partial[2][ST_MAX_DIES / 64], count = d->bytes / (uint64_t)st_dtype_size(d->dtype);
    uint32_t any = total;
    int rc;

    if (!nsrc || !ndst || nsrc > ST_MAX_DIES || ndst > ST_MAX_DIES)
        return ST_EINVAL;
    rc = st_engine_fetch(e, e->operands, d->src, (nsrc + ndst) * sizeof *e->operands, d->src_gen);
    if (rc == ST_OK)
        rc = st_engine_operands(e, d);
    if (rc != ST_OK)
        return rc;
    ST_DRAIN(); /* kernels read and write by themselves */
    memset(partial, 0, sizeof partial);
    for (i = 0; i < nsrc + ndst; i++) {
        uint32_t k = i < nsrc ? i : i - nsrc;

        any |= e->operands[i].flags;
        partial[i >= nsrc][k >> 6] |= (uint64_t)(e->operands[i].flags & 1) << (k & 63);
    }
    if (any)
        rc = e->ctx->reduce_partial(d->dtype, d->op, e->pointers + nsrc, (int)ndst, partial[1],
                                    (const void *const *)e->pointers, (int)nsrc, partial[0], (int)total, count);
    else
        rc = st_engine_reduce(e, d, e->pointers + nsrc, ndst, (const void *const *)e->pointers, nsrc, count);
    st_hold_none(&e->hold);
    return rc;
}

static inline void st_fill(uint8_t *dst, uint64_t bytes, uint64_t value)
{
    uint64_t done = bytes < 8 ? bytes : 8;

    memcpy(dst, &value, done);
    for (; done < bytes; done *= 2)
        memcpy(dst + done, dst, bytes - done < done ? bytes - done : done);
}

/* Copies, reductions and fills. */
static inline int st_engine_move(struct st_engine *e, const struct st_descriptor *d)
{
    void *src = (void *)(uintptr_t)d->src, *dst = (void *)(uintptr_t)d->dst;
    const void *both[2] = {dst, src};
    uint64_t *flag, count;
    int rc = ST_OK;

    if (d->bytes > ST_SDMA_MOST)
        return ST_EINVAL;
    if (d->type == ST_SDMA_REDUCE || d->type == ST_SDMA_ACCUMULATE)
        rc = st_engine_reducible(d);
    if (rc != ST_OK || !d->bytes)
        return rc;
    st_count(&e->count.bytes, d->bytes);
    if (d->type == ST_SDMA_REDUCE && d->flags & ST_SDMA_LIST)
        return st_engine_reduce_list(e, d);
    if (d->type != ST_SDMA_FILL && !st_apart(src, dst, d->bytes, 1))
        return ST_EINVAL;
    rc = st_engine_hold(e, d, &flag);
    if (rc != ST_OK)
        return rc;
    if (d->type != ST_SDMA_COPY)
        ST_DRAIN(); /* kernels and fills write by themselves */
    count = d->type == ST_SDMA_COPY || d->type == ST_SDMA_FILL ? 0 : d->bytes / (uint64_t)st_dtype_size(d->dtype);
    if (d->type == ST_SDMA_COPY)
        st_copy(dst, src, d->bytes, !!(d->flags & ST_SDMA_NT));
    else if (d->type == ST_SDMA_FILL)
        st_fill(dst, d->bytes, d->value);
    else if (d->type == ST_SDMA_REDUCE)
        rc = st_engine_reduce(e, d, &dst, 1, both, 2, count);
    else
        rc = ST_ACCUMULATE(e->ctx->accumulate, d->dtype, d->op, dst, src, count, d->bytes);
    ST_FAULT(ENGINE_MOVED);
    st_hold_none(&e->hold);
    return rc;
}

/* ---- flags ---------------------------------------------------------------------------------- */

/* Wakes another die's DMA thread, if it has one that sleeps. */
static inline void st_engine_wake(struct st_engine *e, uint32_t die)
{
    struct st_sdma *s;

    if (st_engine_hold_sdma(e, die, &s) != ST_OK)
        return;
    st_wake(&s->bell, &s->bell_sleepers);
    st_hold_none(&e->hold);
}

/* Wakes the DMA thread of the die that has the flag, and whoever sleeps on the futex before it.  Then nothing is held. */
static inline void st_engine_tell(struct st_engine *e, const struct st_descriptor *d, uint64_t *flag)
{
    uint32_t *word = (uint32_t *)(void *)flag - d->wake;
    int64_t owner = d->flags & ST_SDMA_WORLD ? -1 : st_owner(e->ctx, d->dst);

    if (d->wake)
        st_wake(word, word + 1);
    st_hold_none(&e->hold);
    if (owner >= 0 && (uint32_t)owner != e->ctx->rank)
        st_engine_wake(e, (uint32_t)owner);
}

/* Adds to a flag; a poisoned one stays as it is. */
static inline void st_flag_add(uint64_t *flag, uint64_t value)
{
    uint64_t old;

    do {
        old = st_load_acquire_64(flag); /* pairs with st_engine_flag */
    } while (!(old & ST_SDMA_POISON) && !st_cas_acq_rel_64(flag, old, old + value)); /* pairs with st_engine_gate */
    st_fence_seqcst(); /* before the look at sleepers */
}

/* A flag; of a chain that has failed (status), the poison. */
static inline int st_engine_flag(struct st_engine *e, const struct st_descriptor *d, int status)
{
    uint64_t *flag, *counter = (uint64_t *)(uintptr_t)d->src;
    int rc;

    if (status != ST_OK && d->flags & ST_SDMA_SILENT)
        return ST_OK;
    rc = st_engine_hold(e, d, &flag);
    if (rc != ST_OK)
        return rc;
    ST_FAULT(ENGINE_FLAG_BEFORE);
    if (status != ST_OK) {
        st_flag_poison(flag, status);
    } else if (d->type == ST_SDMA_WRITE) {
        st_store_seqcst_64(flag, d->value); /* pairs with st_engine_gate */
    } else if (d->type == ST_SDMA_ADD) {
        st_flag_add(flag, d->value);
    } else if (st_add_acq_rel_64(counter, 1) + 1 == d->bytes) { /* pairs with itself, in other dies */
        st_store_seqcst_64(flag, d->value); /* pairs with st_engine_gate */
    } else {
        ST_FAULT(ENGINE_COUNTED);
        st_hold_none(&e->hold);
        return ST_OK;
    }
    ST_FAULT(ENGINE_FLAG_AFTER);
    st_engine_tell(e, d, flag);
    return ST_OK;
}

/* ST_AGAIN: the flag has not come to the value.  One that was poisoned before it had gives the status of that. */
static inline int st_engine_gate(struct st_engine *e, const struct st_descriptor *d)
{
    uint64_t *flag, value;
    int rc = st_engine_hold(e, d, &flag);

    if (rc != ST_OK)
        return rc;
    value = st_load_acquire_64(flag); /* pairs with st_engine_flag */
    st_hold_none(&e->hold);
    return st_flag_look(value, d->value);
}

#endif
