/* Binds a heap to the pages of a die of the UB space. */
#ifndef ST_HEAP_SPACE_H
#define ST_HEAP_SPACE_H

#include "st_flight.h"
#include "st_heap.h"
#include "st_page.h"

_Static_assert(ST_HEAP_PAGE == ST_PAGE_BYTES, "the heap's pages are the UB space's");

static inline int st_heap_space_map(void *arg, uint64_t npages, uint64_t *va)
{
    return st_pages_map((struct st_ctx *)arg, npages, va);
}

static inline int st_heap_space_extend(void *arg, uint64_t va, uint64_t npages)
{
    return st_pages_map_at((struct st_ctx *)arg, va, npages);
}

static inline int st_heap_space_unmap(void *arg, uint64_t va, uint64_t npages)
{
    return st_pages_unmap((struct st_ctx *)arg, va, npages);
}

/* Everything of the configuration but cache_bytes and limit_bytes.  The die has joined. */
static inline void st_heap_space_config(struct st_ctx *ctx, struct st_heap_config *cfg)
{
    cfg->base = st_segment(ctx, ctx->rank);
    cfg->segment_pages = ctx->seg_pages;
    cfg->most_pages = ctx->hbm_pages;
    cfg->map = st_heap_space_map;
    cfg->extend = st_heap_space_extend;
    cfg->unmap = st_heap_space_unmap;
    cfg->arg = ctx;
}

/* Its figures stand in the die's flight recorder from now on. */
static inline void st_heap_space_show(struct st_heap *h, const struct st_ctx *ctx)
{
    h->shown = ctx->flight ? &ctx->flight->cached_bytes : NULL; /* heap_bytes is behind it */
}

#endif
