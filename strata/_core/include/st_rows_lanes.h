/* Lanes of a die's DMA thread that units of rows go through: batches of copies, each with a write of the lane's flag behind
 * it, which is all that the caller looks at.  Two batches of a lane are in flight. */
#ifndef ST_ROWS_LANES_H
#define ST_ROWS_LANES_H

#include "st_engine.h"
#include "st_rows.h"

#define ST_ROWS_LANES 4u
#define ST_ROWS_BATCH 1024u                /* descriptors, the write of the flag included */
#define ST_ROWS_DEPTH (2 * ST_ROWS_BATCH) /* of a lane's ring */

/* Rings and what else a run needs; one run at a time has them.  Flags only grow, until a run fails. */
struct st_rows_engine {
    struct st_engine *e;
    struct st_lane lanes[ST_ROWS_LANES];
    uint64_t told[ST_ROWS_LANES]; /* batches that have been submitted; what the flags come to */
    struct st_descriptor *batch;  /* [ST_ROWS_BATCH] */
    uint64_t *shared;             /* own fabric memory: a futex word and its sleepers, then the flags */
    uint8_t *scratch;             /* own fabric memory, for sums */
    uint64_t scratch_bytes;
    uint64_t timeout_ns; /* for one batch */
    uint32_t event;
};

struct st_rows_cursor {
    uint64_t unit, end, entry;
    uint32_t column;
};

static inline uint64_t *st_rows_flag(const struct st_rows_engine *s, uint32_t lane) { return &s->shared[1 + lane]; }

/* Waits until `batches` of a lane are done; what went wrong otherwise. */
static inline int st_rows_wait(struct st_rows_engine *s, uint32_t lane, uint64_t batches)
{
    uint32_t *word = (uint32_t *)(void *)s->shared;
    struct st_waiter w;
    uint64_t value;
    int rc = ST_OK, status;

    st_wait_begin(&w, &s->e->ctx->wait, word, word + 1, s->timeout_ns);
    for (;;) {
        value = st_load_acquire_64(st_rows_flag(s, lane)); /* pairs with the engine's write */
        if (value >= batches || rc != ST_OK)
            break;
        rc = st_wait_step(&w);
        if (rc == ST_AGAIN)
            rc = st_load_acquire_32(&s->e->runs) ? ST_OK : ST_ENOJOB; /* pairs with st_engine_end */
    }
    st_wait_end(&w);
    status = st_flag_look(value, batches);
    return status == ST_AGAIN ? rc : status;
}

/* Submits the first n descriptors of the batch, and the write of the lane's flag behind them. */
static inline int st_rows_submit(struct st_group *g, struct st_rows_engine *s, uint32_t lane, uint32_t n)
{
    struct st_descriptor *d = &s->batch[n];
    uint64_t first, done;
    uint32_t k;

    *d = (struct st_descriptor){.type = ST_SDMA_WRITE, .dst = (uint64_t)(uintptr_t)st_rows_flag(s, lane),
                                .value = ++s->told[lane], .wake = 2 * (1 + lane)};
    for (k = 0; k <= n; k++) {
        s->batch[k].event = s->event;
        st_sdma_seal(g->ctx, &s->batch[k]);
    }
    return st_lane_submit(g->ctx, &s->lanes[lane], s->batch, n + 1u, &g->ctx->wait, s->timeout_ns, &first, &done);
}

static inline struct st_descriptor st_rows_copy_of(const struct st_rows *r, void *to, const void *from, uint64_t bytes)
{
    return (struct st_descriptor){.type = ST_SDMA_COPY, .flags = r->nt ? ST_SDMA_NT : 0, .bytes = bytes,
                                  .src = (uint64_t)(uintptr_t)from, .dst = (uint64_t)(uintptr_t)to};
}

#endif
