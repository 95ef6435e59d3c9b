/* Flags, from the host: words of fabric memory that gates wait for. */
#ifndef ST_FLAG_H
#define ST_FLAG_H

#include "st_sdma.h"

/* Rings the DMA thread that may be asleep at a gate on a flag of this address. */
static inline void st_flag_tell(struct st_ctx *ctx, uint64_t va)
{
    int64_t owner = st_owner(ctx, va);
    struct st_sdma *of = owner < 0 ? NULL : st_sdma_of(ctx, (uint32_t)owner);

    st_fence_seqcst(); /* pairs with st_engine_sleep */
    if (of)
        st_wake(&of->bell, &of->bell_sleepers);
}

/* What a flag holds; ST_EREG: there is none. */
static inline int st_flag_read(struct st_ctx *ctx, uint64_t va, uint64_t *value)
{
    int rc = va % 8 ? ST_EINVAL : st_ensure_mapped(ctx, va, 8, 0);

    if (rc == ST_OK)
        *value = st_load_acquire_64((const uint64_t *)(uintptr_t)va); /* pairs with st_engine_flag, st_flag_write */
    return rc;
}

/* Raises a flag from the host. */
static inline int st_flag_write(struct st_ctx *ctx, uint64_t va, uint64_t value)
{
    struct st_tracer *t = st_trace_on(ctx);
    int rc = va % 8 ? ST_EINVAL : st_ensure_mapped(ctx, va, 8, 1);

    st_trace_begins(t);
    if (rc != ST_OK)
        return rc;
    ST_FAULT(HOST_FLAG_BEFORE);
    st_store_seqcst_64((uint64_t *)(uintptr_t)va, value); /* pairs with st_engine_gate, st_flag_read */
    ST_FAULT(HOST_FLAG_AFTER);
    st_flag_tell(ctx, va);
    ST_TRACE(t, ST_TRACE_FLAG_SET, 0, ST_TRACE_NOBODY, 0, va);
    return ST_OK;
}

/* Waits until a flag has come to a value, or is poisoned before (then the status).  `die`: whose death ends the wait
 * (ST_EDEAD); this one: none's.  `lane`: ring whose closing does (ST_ENOJOB), or NULL. */
static inline int st_flag_wait(struct st_ctx *ctx, uint64_t va, uint64_t value, uint32_t die, const struct st_lane *lane,
                               const struct st_wait_policy *policy, uint64_t timeout_ns)
{
    struct st_tracer *t = st_trace_on(ctx);
    struct st_flight_record *record = NULL;
    struct st_waiter w;
    uint64_t now = 0, life = st_die_life(ctx, die);
    int rc;

    st_trace_begins(t);
    st_wait_begin(&w, policy, NULL, NULL, timeout_ns);
    while ((rc = st_flag_read(ctx, va, &now)) == ST_OK && now < value) {
        rc = st_wait_step(&w);
        if (rc == ST_AGAIN)
            st_flight_waits(ctx, &record, ST_FLIGHT_FLAG, die == ctx->rank ? ST_FLIGHT_NOBODY : die, 0, va, value);
        if (rc == ST_AGAIN && lane)
            rc = st_lane_open(ctx, lane);
        else if (rc == ST_AGAIN)
            rc = die == ctx->rank || st_die_alive_as(ctx, die, life) ? ST_OK : ST_EDEAD;
        if (rc != ST_OK)
            break;
    }
    st_wait_end(&w);
    st_flight_waited(ctx, record, rc);
    ST_TRACE(t, ST_TRACE_FLAG_WAIT, 0, die, 0, va);
    if ((rc == ST_EDEAD || rc == ST_ENOJOB) && st_flag_read(ctx, va, &now) == ST_OK && now >= value)
        rc = ST_OK; /* it was its last deed */
    return rc == ST_OK ? st_flag_look(now, value) : rc;
}

#endif
