/* The core executor: runs a plan's units.  It does not know which operation
 * they serve.
 *
 * Each core runs its units in order.  A thread that runs several cores goes round
 * among them: one whose unit must wait is passed over, and only when none can go
 * on does the thread wait.
 */
#ifndef ST_EXEC_H
#define ST_EXEC_H

#include "st_copy.h"
#include "st_exec_trace.h"
#include "st_rows.h"
#include "st_sync.h"

/* One thread's part in running a plan. */
struct st_run {
    struct st_group *g;
    const struct st_plan *p;
    uint64_t number;
    struct st_waiter *waiter;
    const struct st_rows *rows; /* what units of rows move; NULL: there may be none */
    void **at;         /* room for 2 * max_operands pointers */
    uint32_t first;    /* runs cores first, first + stride, ... */
    uint32_t stride;
    struct st_tracer *trace; /* of this thread; NULL: off */
    uint32_t *stopped; /* the status of a thread that has given up, or NULL if there is one thread */
};

/* Addresses of a unit's operands.  Those in another die's memory are checked
 * against its page table and mapped. */
static inline int st_resolve(struct st_group *g, const struct st_plan *p, const struct st_unit *u,
                             const struct st_operand *o, uint32_t count, int writes, void **at)
{
    uint32_t k;

    for (k = 0; k < count; k++) {
        uint64_t va = g->bases[o[k].member].va[o[k].buf] + o[k].offset;

        if ((uint32_t)o[k].member != g->me && !(p->mailbox && o[k].buf == ST_BUF_SRC)) {
            int rc = st_ensure_mapped(g->ctx, va, st_operand_bytes(u, &o[k]), writes);

            if (__builtin_expect(rc != ST_OK, 0))
                return rc;
        }
        at[k] = (void *)(uintptr_t)va;
    }
    return ST_OK;
}

static inline int st_unit_ready(const struct st_group *g, const struct st_unit *u, uint64_t number)
{
    return u->wait_flag < 0 || /* pairs with st_unit_done */
           st_load_acquire_64(&g->flags[(uint64_t)u->wait_peer * ST_GROUP_FLAGS + (uint32_t)u->wait_flag]) >= number;
}

/* A unit is done: the last of those that post its flag raises it, and returns 1. */
static inline int st_unit_done(struct st_group *g, const struct st_plan *p, const struct st_unit *u, uint64_t number)
{
    if (u->post_flag < 0)
        return 0;
    if (p->posts[u->post_flag] > 1 && /* pairs with itself: whoever is last has seen what all wrote */
        st_add_acq_rel_32(&p->left[u->post_flag], (uint32_t)-1) != 1)
        return 0;
    ST_FAULT(FLAG_BEFORE);
    /* pairs with st_unit_ready */
    st_store_seqcst_64(&g->flags[(uint64_t)g->me * ST_GROUP_FLAGS + (uint32_t)u->post_flag], number);
    ST_FAULT(FLAG_AFTER);
    st_group_wake(g);
    return 1;
}

/* A reduction with partial operands. */
static int st_unit_partial(struct st_group *g, const struct st_plan *p, const struct st_unit *u, void **at, void **to)
{
    uint64_t partial[2][ST_MASK_WORDS];
    const struct st_operand *o[2] = {p->operands + u->src_first, p->operands + u->dst_first};
    uint32_t count[2] = {u->nsrc, u->ndst}, k;
    int side;

    memset(partial, 0, sizeof partial);
    for (side = 0; side < 2; side++)
        for (k = 0; k < count[side]; k++)
            if (o[side][k].flags & ST_OPERAND_PARTIAL)
                st_mask_set(partial[side], k);
    return g->ctx->reduce_partial(u->dtype, u->op, to, u->ndst, partial[1], (const void *const *)at, u->nsrc,
                                  partial[0], u->total, u->bytes / (uint64_t)st_dtype_size(u->dtype));
}

static inline int st_unit_has_partial(const struct st_plan *p, const struct st_unit *u)
{
    const struct st_operand *src = p->operands + u->src_first, *dst = p->operands + u->dst_first;
    uint32_t k, any = u->total;

    for (k = 0; k < u->nsrc; k++)
        any |= src[k].flags;
    for (k = 0; k < u->ndst; k++)
        any |= dst[k].flags;
    return any != 0;
}

/* Is what a reduction writes what it has read?  Those lines are in the cache, and going past it would only drive them out. */
static inline int st_unit_in_place(const struct st_unit *u, void *const *src, void *const *dst)
{
    uint32_t k = 0;

    while (k < u->nsrc && src[k] != dst[0])
        k++;
    return u->ndst && k < u->nsrc;
}

static inline int st_unit_run(const struct st_run *r, const struct st_unit *u)
{
    struct st_group *g = r->g;
    const struct st_plan *p = r->p;
    void **at = r->at, **to, **late;
    uint64_t size;
    uint32_t d;
    int rc = ST_OK;

    if (u->kind == ST_UNIT_SYNC)
        return ST_OK;
    if (st_unit_has_rows(u)) /* on posts of a board, which tell of failures themselves */
        return r->rows ? st_rows_unit(g, p, u, r->rows) : ST_EINVAL;
    if (!p->mailbox && (rc = st_group_failed(g)) != ST_OK)
        return rc; /* somebody has given up: it may have its buffers back */
    to = at + p->max_operands;
    rc = st_resolve(g, p, u, p->operands + u->src_first, u->nsrc, 0, at);
    if (rc == ST_OK)
        rc = st_resolve(g, p, u, p->operands + u->dst_first, u->ndst, 1, to);
    if (rc != ST_OK)
        return rc;
    if (u->kind == ST_UNIT_COPY) {
        for (d = 0; d < u->ndst; d++)
            st_copy(to[d], at[0], u->bytes, (int)p->nt);
        return ST_OK;
    }
    ST_DRAIN(); /* kernels read and write by themselves */
    size = (uint64_t)st_dtype_size(u->dtype);
    if (u->kind == ST_UNIT_ACCUMULATE) {
        for (d = 0; d < u->ndst && rc == ST_OK; d++)
            rc = ST_ACCUMULATE(g->ctx->accumulate, u->dtype, u->op, to[d], at[0], u->bytes / size, u->bytes);
        return rc;
    }
    if (p->partial && st_unit_has_partial(p, u))
        return st_unit_partial(g, p, u, at, to);
    late = ST_LATE(to, u->ndst, u->bytes);
    rc = g->ctx->reduce(u->dtype, u->op, late, u->ndst, (const void *const *)at, u->nsrc, u->bytes / size,
                        p->nt && !st_unit_in_place(u, at, to));
    ST_MADE(late, to, u->ndst, u->bytes, rc);
    return rc;
}

/* Runs a core from unit *next on, as far as it comes. */
static inline int st_core_run(const struct st_run *r, uint64_t *next, uint64_t end)
{
    for (; *next < end; ++*next) {
        const struct st_unit *u = &r->p->units[*next];
        int rc;

        if (!st_unit_ready(r->g, u, r->number))
            return ST_AGAIN;
        if (r->stopped && st_load_acquire_32(r->stopped)) /* pairs with st_crew_give_up */
            return ST_EBROKEN;
        if (__builtin_expect(r->trace && r->trace->waits, 0))
            st_unit_waited(r->trace, r->g, u, r->number);
        ST_FAULT(UNIT_BEFORE);
        rc = st_unit_run(r, u);
        ST_FAULT(UNIT_AFTER);
        if (rc != ST_OK)
            return rc;
        if (__builtin_expect(r->trace != NULL, 0))
            st_unit_traced(r->trace, r->g, r->p, *next);
        if (st_unit_done(r->g, r->p, u, r->number))
            ST_TRACE(r->trace, ST_TRACE_FLAG_SET, u->core, ST_TRACE_NOBODY, r->g->id, ST_TRACE_FLAG(r->number, u->post_flag));
    }
    return ST_OK;
}

/* Does a core of this thread wait for a flag of a member that says that it is done, and so must have raised it? */
static inline int st_run_stuck(const struct st_run *r, uint64_t alone)
{
    const struct st_plan *p = r->p;
    uint32_t cores = st_plan_cores(p), c;
    uint64_t at;

    for (c = r->first; c < cores; c += r->stride) {
        const struct st_unit *u;

        at = cores > 1 ? p->next[c] : alone;
        if (at >= (p->core_begin ? p->core_begin[c + 1] : p->nunits))
            continue;
        u = &p->units[at];
        if (u->wait_flag >= 0 && (uint32_t)u->wait_peer != r->g->me &&
            st_here(r->g, ST_PHASE_EXECUTION, r->number, (uint32_t)u->wait_peer) && !st_unit_ready(r->g, u, r->number))
            return 1;
    }
    return 0;
}

/* No core of this thread can go on. */
static inline int st_run_wait(const struct st_run *r, uint64_t alone)
{
    int rc = st_wait_step(r->waiter);

    if (__builtin_expect(r->trace != NULL, 0))
        r->trace->waits = 1;
    if (r->stopped && st_load_acquire_32(r->stopped)) /* pairs with st_crew_give_up */
        return ST_EBROKEN;
    if (rc == ST_OK)
        return ST_OK;
    rc = st_group_look(r->g, ST_PHASE_EXECUTION, r->number, rc);
    if (rc != ST_OK || !st_run_stuck(r, alone))
        return rc;
    rc = st_group_failed(r->g); /* who gives up says so first, and then that it is done */
    return rc == ST_OK ? ST_ECORRUPT : rc; /* nobody is missing: such a flag would be waited for for ever */
}

/* Runs this thread's cores. */
static inline int st_run_cores(const struct st_run *r)
{
    const struct st_plan *p = r->p;
    uint64_t alone = 0;
    uint32_t cores = st_plan_cores(p), c, waiting;
    int rc = ST_OK, moved;

    do {
        for (c = r->first, waiting = 0, moved = 0; c < cores; c += r->stride) {
            uint64_t *next = cores > 1 ? &p->next[c] : &alone, before = *next;

            rc = st_core_run(r, next, p->core_begin ? p->core_begin[c + 1] : p->nunits);
            if (rc != ST_OK && rc != ST_AGAIN)
                return rc;
            waiting += rc == ST_AGAIN;
            moved |= *next != before;
        }
        if (moved)
            st_wait_again(r->waiter);
        else if (waiting && (rc = st_run_wait(r, alone)) != ST_OK)
            return rc;
    } while (waiting);
    return ST_OK;
}

/* Before the threads begin. */
static inline void st_exec_reset(const struct st_plan *p)
{
    uint32_t i;

    for (i = 0; i < p->nflags; i++)
        p->left[i] = p->posts[i];
    if (st_plan_cores(p) > 1)
        for (i = 0; i < p->cores; i++)
            p->next[i] = p->core_begin[i];
}

#endif
