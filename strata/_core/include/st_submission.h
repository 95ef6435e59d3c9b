/* What becomes of descriptors in a ring, as their producer sees it. */
#ifndef ST_SUBMISSION_H
#define ST_SUBMISSION_H

#include "st_sdma.h"

/* Has the DMA thread come to an index?  They wrap. */
static inline int st_lane_past(const struct st_lane *lane, uint64_t index)
{
    return (int64_t)(st_lane_head(lane) - index) >= 0;
}

/* Waits until it has.  ST_ENOJOB: the ring was closed; ST_EDEAD. */
static inline int st_lane_drain(struct st_ctx *ctx, const struct st_lane *lane, uint64_t index,
                                const struct st_wait_policy *policy, uint64_t timeout_ns)
{
    struct st_waiter w;
    int rc = st_lane_open(ctx, lane);

    st_wait_begin(&w, policy, &lane->ring->room_word, &lane->ring->room_sleepers, timeout_ns);
    while (rc == ST_OK && !st_lane_past(lane, index)) {
        rc = st_wait_step(&w);
        if (rc == ST_AGAIN)
            rc = st_lane_open(ctx, lane);
    }
    st_wait_end(&w);
    return rc;
}

/* Index of the first of `count` descriptors from `first` on that ended with this status, while they are still there. */
static inline int st_lane_failed(const struct st_lane *lane, uint64_t first, uint64_t count, int status, uint64_t *index)
{
    uint64_t k;

    for (k = 0; k < count; k++) {
        struct st_descriptor *slot = st_ring_slot(lane->ring, lane->depth, first + k);

        if (st_load_relaxed_64(&slot->commit) == first + k + 1 && st_load_relaxed_32(&slot->status) == (uint32_t)status) {
            *index = first + k;
            return 1;
        }
    }
    return 0;
}

#endif
