/* DMA engines of the dies of dies.h, with or without threads. */
#ifndef RIGS_H
#define RIGS_H

#include "dies.h"
#define ST_KERNELS_PORTABLE /* the levels have a test of their own */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O0") /* they are most of what is compiled here, and run for a few bytes only */
#endif
#include "st_kernels.h"
#include "st_kernels_partial.h"
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif
#include "st_engine_thread.h"

enum { RIG_PAGES = 4 }; /* of each die, to begin with; without threads of registrars */
#define RIG_TIMEOUT 60000000000ull
#define FOREVER UINT64_MAX

struct rig {
    struct dies *d;
    struct st_engine *e[DIES_MOST];
    uint8_t *memory[DIES_MOST]; /* RIG_PAGES pages */
    uint64_t used[DIES_MOST];
};

/* Zeroed memory of a die, of which nobody has anything yet. */
static inline void *rig_take(struct rig *r, uint32_t die, uint64_t bytes)
{
    uint8_t *p = r->memory[die] + r->used[die];

    r->used[die] += (bytes + 63) / 64 * 64;
    CHECK(r->used[die] <= RIG_PAGES * ST_PAGE_BYTES);
    return p;
}

static inline struct rig *rig_open(uint32_t n, uint64_t hbm_pages, int threads)
{
    struct rig *r = calloc(1, sizeof *r);
    uint32_t i;

    CHECK(r);
    r->d = dies_open(n, hbm_pages, 1000000);
    for (i = 0; i < n; i++) {
        struct st_ctx *c = &r->d->ctx[i];

        r->memory[i] = dies_pages(c, RIG_PAGES);
        r->e[i] = calloc(1, st_engine_bytes());
        CHECK(r->e[i]);
        c->reduce = st_reduce;
        c->reduce_partial = st_reduce_partial;
        c->accumulate = st_accumulate;
        CHECK_IS(st_engine_init(r->e[i], c, RIG_TIMEOUT), ST_OK);
        st_engine_open(r->e[i], rig_take(r, i, sizeof(struct st_sdma)));
    }
    for (i = 0; i < n && threads; i++)
        CHECK_IS(st_engine_start(r->e[i]), ST_OK);
    return r;
}

/* Engines first; then nobody is left to touch what the dies had. */
static inline void rig_close(struct rig *r)
{
    uint32_t i, n = r->d->n;

    for (i = 0; i < n; i++)
        st_engine_end(r->e[i]);
    dies_close(r->d);
    for (i = 0; i < n; i++) {
        CHECK(r->e[i]->hold.nheld == 0 && r->e[i]->hold.nstill == 0);
        CHECK(pthread_mutex_destroy(&r->e[i]->lock) == 0);
        free(r->e[i]);
    }
    free(r);
}

/* A ring of `die`, as die `from` sees it. */
static inline struct st_lane rig_lane(struct rig *r, uint32_t from, uint32_t die, uint32_t index)
{
    struct st_lane lane;

    CHECK_IS(st_lane_attach(&r->d->ctx[from], die, index, &lane), ST_OK);
    return lane;
}

static inline struct st_lane rig_ring(struct rig *r, uint32_t die, uint32_t depth, uint64_t first)
{
    uint32_t index;

    CHECK_IS(st_engine_add(r->e[die], rig_take(r, die, st_ring_bytes(depth)), depth, first, &index), ST_OK);
    return rig_lane(r, die, die, index);
}

/* One chain, all of which must find room.  The index of its first descriptor. */
static inline uint64_t rig_put(struct rig *r, uint32_t from, struct st_lane *lane, const struct st_descriptor *d,
                               uint64_t n)
{
    uint64_t first = 0, done = 0;

    CHECK_IS(st_lane_submit(&r->d->ctx[from], lane, d, n, &r->d->ctx[from].wait, RIG_TIMEOUT, &first, &done), ST_OK);
    CHECK(done == n);
    return first;
}

/* Without threads: rounds until nobody has anything to do but wait. */
static inline void rig_run(struct rig *r)
{
    int more;
    uint32_t i;

    do {
        for (i = 0, more = 0; i < r->d->n; i++)
            more |= st_engine_round(r->e[i]) == ST_TURN_MORE;
    } while (more);
}

static inline uint32_t rig_status(const struct st_lane *lane, uint64_t index)
{
    return st_load_relaxed_32(&st_ring_slot(lane->ring, lane->depth, index)->status);
}

static inline uint64_t rig_head(const struct st_lane *lane)
{
    return st_load_acquire_64(&lane->ring->head); /* pairs with st_ring_pass */
}

/* With threads: waits until an event has happened `count` times; its status. */
static inline int rig_wait(struct rig *r, uint32_t die, uint32_t event, uint64_t count)
{
    CHECK_IS(st_event_wait(r->e[die], event, count, &r->d->ctx[die].wait, RIG_TIMEOUT), ST_OK);
    return st_event_status(r->e[die], event);
}

/* ---- descriptors ------------------------------------------------------------------- */

#define VA(p) ((uint64_t)(uintptr_t)(p))

static inline struct st_descriptor make_copy(void *dst, const void *src, uint64_t bytes)
{
    return (struct st_descriptor){.type = ST_SDMA_COPY, .src = VA(src), .dst = VA(dst), .bytes = bytes};
}

static inline struct st_descriptor make_write(uint64_t *flag, uint64_t value)
{
    return (struct st_descriptor){.type = ST_SDMA_WRITE, .dst = VA(flag), .value = value};
}

static inline struct st_descriptor make_add(uint64_t *flag, uint64_t value)
{
    return (struct st_descriptor){.type = ST_SDMA_ADD, .dst = VA(flag), .value = value};
}

static inline struct st_descriptor make_count(uint64_t *counter, uint64_t until, uint64_t *flag, uint64_t value)
{
    return (struct st_descriptor){
        .type = ST_SDMA_COUNT, .src = VA(counter), .bytes = until, .dst = VA(flag), .value = value};
}

static inline struct st_descriptor make_gate(const uint64_t *flag, uint64_t value)
{
    return (struct st_descriptor){.type = ST_SDMA_GATE, .src = VA(flag), .value = value, .bytes = FOREVER};
}

static inline struct st_descriptor make_notify(uint32_t event)
{
    return (struct st_descriptor){.type = ST_SDMA_NOTIFY, .event = event};
}

static inline struct st_descriptor make_call(const struct st_descriptor *list, uint64_t n, uint64_t value)
{
    return (struct st_descriptor){.type = ST_SDMA_CALL, .src = VA(list), .bytes = n, .value = value};
}

static inline struct st_descriptor with_event(struct st_descriptor d, uint32_t event)
{
    d.event = event;
    return d;
}

static inline struct st_descriptor with_flags(struct st_descriptor d, uint8_t flags)
{
    d.flags |= flags;
    return d;
}

#endif
