/* The core executor: runs a plan's units.  It does not know which operation
 * they serve.
 */
#ifndef ST_EXEC_H
#define ST_EXEC_H

#include "st_copy.h"
#include "st_sync.h"
#include "st_kernels_plan.h"

#define ST_EXEC_OPERANDS 64u /* resolved on the stack; more are resolved in the caller's space */

/* A die's part of a plan, as the executor needs it. */
struct st_plan {
    const struct st_unit *units;
    const struct st_operand *operands;
    uint64_t nunits;
    uint64_t noperands;
    const uint64_t *buffer_bytes; /* [n][ST_NBUFS]: how far it reaches into them */
    uint64_t mail_bytes; /* mailbox: what a contributor puts there */
    uint32_t max_operands; /* sources or destinations of one unit */
    uint32_t needs_done;   /* peers touch user buffers: a closing synchronisation is due */
    uint32_t nt;           /* large enough for non-temporal stores */
    uint32_t mailbox;      /* SRC is the mailbox */
};

/* Every index and offset of a plan, once, before it is ever run. */
static inline int st_plan_check(struct st_plan *p, uint32_t n)
{
    uint64_t i;

    p->max_operands = 0;
    for (i = 0; i < p->nunits; i++) {
        const struct st_unit *u = &p->units[i];
        uint64_t first[2] = {u->src_first, u->dst_first}, count[2] = {u->nsrc, u->ndst}, k;
        int side;

        if ((u->kind != ST_UNIT_COPY && u->kind != ST_UNIT_REDUCE) || u->nsrc == 0 ||
            (u->kind == ST_UNIT_COPY && u->nsrc != 1))
            return ST_EINVAL;
        if (u->kind == ST_UNIT_REDUCE && !st_reduce_supported(u->dtype, u->op))
            return ST_EUNSUPPORTED;
        if (u->wait_flag >= (int32_t)ST_GROUP_FLAGS || u->post_flag >= (int32_t)ST_GROUP_FLAGS ||
            (u->wait_flag >= 0 && (u->wait_peer < 0 || (uint32_t)u->wait_peer >= n)))
            return ST_EINVAL;
        if (u->wait_flag >= 0 && !p->needs_done) /* a member that waits for others can only be */
            return ST_EINVAL;                    /* told from a missing one if all say `done` */
        if (u->kind == ST_UNIT_REDUCE && u->bytes % (uint64_t)st_dtype_size(u->dtype))
            return ST_EINVAL;
        for (side = 0; side < 2; side++) {
            if (count[side] > ST_MAX_DIES || first[side] + count[side] > p->noperands)
                return ST_EINVAL;
            p->max_operands = count[side] > p->max_operands ? (uint32_t)count[side] : p->max_operands;
            for (k = first[side]; k < first[side] + count[side]; k++) {
                const struct st_operand *o = &p->operands[k];

                uint64_t limit;

                if (o->member < 0 || (uint32_t)o->member >= n || o->buf >= ST_NBUFS)
                    return ST_EINVAL;
                limit = p->buffer_bytes[(uint64_t)o->member * ST_NBUFS + o->buf];
                if (o->offset > limit || u->bytes > limit - o->offset)
                    return ST_EINVAL;
            }
        }
    }
    return ST_OK;
}

/* Addresses of a unit's operands.  Those in another die's memory are checked
 * against its page table and mapped. */
static inline int st_resolve(struct st_group *g, const struct st_plan *p, const struct st_operand *o,
                             uint32_t count, uint64_t bytes, int writes, void **at)
{
    uint32_t k;

    for (k = 0; k < count; k++) {
        uint64_t va = g->bases[o[k].member].va[o[k].buf] + o[k].offset;

        if ((uint32_t)o[k].member != g->me && !(p->mailbox && o[k].buf == ST_BUF_SRC)) {
            int rc = st_ensure_mapped(g->ctx, va, bytes, writes);

            if (__builtin_expect(rc != ST_OK, 0))
                return rc;
        }
        at[k] = (void *)(uintptr_t)va;
    }
    return ST_OK;
}

static inline int st_unit_wait(struct st_group *g, const struct st_unit *u, uint64_t number)
{
    const uint64_t *flag = &g->flags[(uint64_t)u->wait_peer * ST_GROUP_FLAGS + (uint32_t)u->wait_flag];
    int rc = ST_OK;

    while (st_load_acquire_64(flag) < number) { /* pairs with st_unit_post */
        rc = st_wait_step(&g->waiter);
        if (rc != ST_OK) {
            rc = st_group_look(g, ST_PHASE_EXECUTION, number, rc);
            if (rc != ST_OK)
                break;
        }
    }
    st_wait_again(&g->waiter);
    return rc;
}

static inline void st_unit_post(struct st_group *g, const struct st_unit *u, uint64_t number)
{
    /* pairs with st_unit_wait */
    st_store_seqcst_64(&g->flags[(uint64_t)g->me * ST_GROUP_FLAGS + (uint32_t)u->post_flag], number);
    st_group_wake(g);
}

/* Runs all units in order.  at: space for 2 * max_operands pointers. */
static inline int st_exec(struct st_group *g, const struct st_plan *p, uint64_t number, void **at)
{
    void **to = at + p->max_operands;
    uint64_t i;
    uint32_t d;
    int rc;

    for (i = 0; i < p->nunits; i++) {
        const struct st_unit *u = &p->units[i];

        if (u->wait_flag >= 0 && (rc = st_unit_wait(g, u, number)) != ST_OK)
            return rc;
        if (!p->mailbox && (rc = st_group_failed(g)) != ST_OK)
            return rc; /* somebody has given up: it may have its buffers back */
        rc = st_resolve(g, p, p->operands + u->src_first, u->nsrc, u->bytes, 0, at);
        if (rc == ST_OK)
            rc = st_resolve(g, p, p->operands + u->dst_first, u->ndst, u->bytes, 1, to);
        if (rc != ST_OK)
            return rc;
        if (u->kind == ST_UNIT_COPY) {
            for (d = 0; d < u->ndst; d++)
                st_copy(to[d], at[0], u->bytes, (int)p->nt);
        } else {
            rc = g->ctx->reduce(u->dtype, u->op, to, u->ndst, (const void *const *)at, u->nsrc,
                                u->bytes / (uint64_t)st_dtype_size(u->dtype), (int)p->nt);
            if (rc != ST_OK)
                return rc;
        }
        if (u->post_flag >= 0)
            st_unit_post(g, u, number);
    }
    return ST_OK;
}

#endif
