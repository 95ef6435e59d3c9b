/* Engines of the dies of dies.h, and a group's lanes in each. */
#ifndef MACHINES_H
#define MACHINES_H

#include "plans.h"
#include "st_engine_thread.h"
#include "st_exec_sdma.h"

enum { LANES = 2, LANE_DEPTH = 4096, LISTS_ROOM = 8192 };

/* A die's engine, and in one page its rings and what lanes need. */
struct machine {
    struct st_engine *e;
    uint8_t *page;
    struct st_lane lane[LANES];
    struct st_lane_at at[LANES];
    uint64_t flag_at[DIES_MOST];
    struct st_lanes lanes;
};

static inline void machine_open(struct machine *m, struct st_ctx *ctx)
{
    memset(m, 0, sizeof *m);
    m->page = dies_pages(ctx, 1);
    m->e = calloc(1, st_engine_bytes());
    CHECK(m->e);
    CHECK_IS(st_engine_init(m->e, ctx, 1000000000), ST_OK);
    st_engine_open(m->e, (struct st_sdma *)(void *)m->page);
    ctx->reduce = plain_reduce;
    ctx->accumulate = st_accumulate;
}

/* Two rings, counters and lists, without an event. */
static inline void machine_rings(struct machine *m, uint32_t depth)
{
    uint8_t *at = m->page + (1 << 14);
    struct st_ctx *ctx = m->e->ctx;
    uint32_t index;

    CHECK(depth <= LANE_DEPTH);
    memset(&m->lanes, 0, sizeof m->lanes);
    for (uint32_t c = 0; c < LANES; c++, at += st_ring_bytes(depth)) {
        memset(at, 0, st_ring_bytes(depth));
        CHECK_IS(st_engine_add(m->e, (struct st_ring *)(void *)at, depth, 1000 * c, &index), ST_OK);
        CHECK_IS(st_lane_attach(ctx, ctx->rank, index, &m->lane[c]), ST_OK);
    }
    m->lanes.e = m->e;
    m->lanes.lanes = m->lane;
    m->lanes.at = m->at;
    m->lanes.count = LANES;
    m->lanes.nflags = MOST_UNITS;
    m->lanes.l.counters = (uint64_t)(uintptr_t)at;
    m->lanes.l.lists = (uint64_t)(uintptr_t)(at + 8 * MOST_UNITS);
    m->lanes.l.room = LISTS_ROOM;
    CHECK(at + 8 * MOST_UNITS + LISTS_ROOM * sizeof(struct st_sdma_operand) <= m->page + ST_PAGE_BYTES);
}

/* A group's lanes with blocks of so many bytes. */
static inline struct st_lanes *machine_lanes(struct machine *m, struct st_group *g, uint32_t depth, uint64_t block)
{
    machine_rings(m, depth);
    CHECK_IS(st_lanes_take(&m->lanes, g, m->flag_at), ST_OK);
    m->lanes.l.block = block;
    return &m->lanes;
}

/* They are empty, or will be in a moment. */
static inline void machine_leave(struct machine *m)
{
    int rc;

    for (uint32_t c = 0; c < LANES; c++)
        while ((rc = st_engine_remove(m->e, m->lane[c].index)) != ST_OK) {
            CHECK_IS(rc, ST_AGAIN);
            sched_yield();
        }
    st_lanes_give(&m->lanes);
}

#endif
