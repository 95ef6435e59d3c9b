/* The heap's chunks, and what a live allocation is: third part of st_heap_node.h. */
#include "st_heap_node.h" /* which includes this one at its end: either may come first */
#ifndef ST_HEAP_CHUNK_H
#define ST_HEAP_CHUNK_H

/* A new node for the part of `n`, in its chunk, that begins `keep` granules in. */
static inline struct st_heap_node *st_heap_split(struct st_heap *h, struct st_heap_node *n,
                                                 uint32_t keep)
{
    struct st_heap_node *t = st_heap_node_new(h);

    t->page = n->page;
    t->first = n->first + keep;
    t->size = n->size - keep;
    t->kind = ST_HEAP_HOLE;
    t->fresh = n->fresh;
    t->prev = st_heap_index(h, n);
    t->next = n->next;
    if (t->next)
        h->nodes[t->next].prev = st_heap_index(h, t);
    n->next = st_heap_index(h, t);
    n->size = keep;
    return t;
}

/* `n` swallows the hole after it; both are out of the free lists. */
static inline void st_heap_join(struct st_heap *h, struct st_heap_node *n)
{
    struct st_heap_node *t = st_heap_at(h, n->next);

    n->size += t->size;
    n->next = t->next;
    if (n->next)
        h->nodes[n->next].prev = st_heap_index(h, n);
    st_heap_node_drop(h, t);
}

/* Turns a run of one page into a chunk; returns its one hole. */
static inline struct st_heap_node *st_heap_make_chunk(struct st_heap *h, struct st_heap_node *run)
{
    struct st_heap_node *hole = st_heap_node_new(h);
    uint32_t slot = h->slot_spare;

    if (slot)
        h->slot_spare = h->slots[slot];
    else
        slot = ++h->slots_used; /* one for every page that can be mapped */
    hole->page = run->page;
    hole->size = ST_HEAP_GRANULES;
    hole->kind = ST_HEAP_HOLE;
    hole->fresh = run->fresh;
    run->first = slot;
    run->next = st_heap_index(h, hole);
    st_heap_place_run(h, run, ST_HEAP_CHUNK);
    st_heap_push_hole(h, hole);
    return hole;
}

/* The smallest hole with room for `size` granules that begin at a multiple of
 * `align`; *first gets the granule.  NULL if none has. */
static inline struct st_heap_node *st_heap_find_hole(struct st_heap *h, uint32_t size,
                                                     uint32_t align, uint32_t *first)
{
    uint32_t s = size;

    while ((s = st_bins_find(&h->holes, s)) != 0) { /* ends at size + align - 1 */
        struct st_heap_node *n = st_heap_at(h, h->holes.head[s]);
        uint32_t at = (n->first + align - 1) & ~(align - 1);
        if (at + size <= n->first + s) {
            *first = at;
            return n;
        }
        s++;
    }
    return NULL;
}

/* Cuts `size` granules from `first` out of a hole, and makes them a block. */
static inline struct st_heap_node *st_heap_cut_hole(struct st_heap *h, struct st_heap_node *n,
                                                    uint32_t first, uint32_t size)
{
    st_heap_pull_hole(h, n);
    if (first > n->first) {
        struct st_heap_node *t = st_heap_split(h, n, first - n->first);
        st_heap_push_hole(h, n);
        n = t;
    }
    if (size < n->size)
        st_heap_push_hole(h, st_heap_split(h, n, size));
    n->kind = ST_HEAP_BLOCK;
    return n;
}

static inline uint32_t *st_heap_granule(struct st_heap *h, const struct st_heap_node *chunk,
                                        uint32_t first)
{
    return h->granules + (size_t)(chunk->first - 1) * ST_HEAP_GRANULES + first;
}

/* Counts what small allocations have left over, after each of them. */
static inline void st_heap_count_holes(struct st_heap *h)
{
    struct st_heap_stats *s = &h->stats;

    st_heap_set_small(&s->holes, h->hole_count);
    st_heap_set_small(&s->hole_bytes,
                      s->reserved.now[ST_HEAP_SMALL] - s->allocated.now[ST_HEAP_SMALL]);
}

/* Counts a run or block as a live allocation; its address. */
static inline uint64_t st_heap_hand_out(struct st_heap *h, struct st_heap_node *n, uint64_t size,
                                        uint64_t bytes, uint16_t tag)
{
    int pool = n->kind == ST_HEAP_BLOCK ? ST_HEAP_SMALL : ST_HEAP_LARGE;

    n->tag = tag % ST_HEAP_ZEROED;
    n->forth = (uint32_t)(size - bytes);
    st_heap_add(&h->stats.allocated, pool, size);
    st_heap_add(&h->stats.requested, pool, bytes);
    st_heap_add(&h->stats.count, pool, 1);
    if (pool == ST_HEAP_SMALL) {
        *st_heap_granule(h, st_heap_at(h, h->pages[n->page]), n->first) = st_heap_index(h, n);
        st_heap_count_holes(h);
    }
    return st_heap_page_va(h, n->page) + ((uint64_t)n->first << ST_HEAP_GRANULE_SHIFT);
}

/* A block becomes a hole, or all of its chunk a cached page. */
static inline void st_heap_free_block(struct st_heap *h, struct st_heap_node *chunk,
                                      struct st_heap_node *n)
{
    n->kind = ST_HEAP_HOLE;
    n->fresh = 0;
    if (n->next && h->nodes[n->next].kind == ST_HEAP_HOLE) {
        st_heap_pull_hole(h, st_heap_at(h, n->next));
        st_heap_join(h, n);
    }
    if (n->prev && h->nodes[n->prev].kind == ST_HEAP_HOLE) {
        n = st_heap_at(h, n->prev);
        n->fresh = 0;
        st_heap_pull_hole(h, n);
        st_heap_join(h, n);
    }
    if (n->size < ST_HEAP_GRANULES) {
        st_heap_push_hole(h, n);
        return;
    }
    h->slots[chunk->first] = h->slot_spare;
    h->slot_spare = chunk->first;
    st_heap_node_drop(h, n);
    st_heap_node_drop(h, chunk);
    st_heap_move_pages(h, n->page, 1, ST_HEAP_SMALL, ST_HEAP_LARGE);
    st_heap_cache_pages(h, n->page, 1);
}

/* The live allocation that begins at va, a run or a block (*chunk: of this chunk); NULL if
 * there is none. */
static inline struct st_heap_node *st_heap_live_at(struct st_heap *h, uint64_t va,
                                                   struct st_heap_node **chunk)
{
    uint64_t off = va - h->cfg.base;
    uint32_t page = (uint32_t)(off >> ST_HEAP_PAGE_SHIFT);
    struct st_heap_node *n;

    *chunk = NULL;
    if (va < h->cfg.base || off >= h->cfg.segment_pages << ST_HEAP_PAGE_SHIFT || off % 64)
        return NULL;
    n = st_heap_at(h, h->pages[page]);
    if (n->page != page)
        return NULL;
    if (n->kind == ST_HEAP_CHUNK) {
        uint32_t first = (uint32_t)(off % ST_HEAP_PAGE) >> ST_HEAP_GRANULE_SHIFT;
        *chunk = n;
        n = st_heap_at(h, *st_heap_granule(h, n, first));
        return n->kind == ST_HEAP_BLOCK && n->page == page && n->first == first ? n : NULL;
    }
    return n->kind == ST_HEAP_RUN && off % ST_HEAP_PAGE == 0 ? n : NULL;
}

/* Size of the live allocation that begins at va, rounded up as it is; 0 if there is none. */
static inline uint64_t st_heap_extent_locked(struct st_heap *h, uint64_t va)
{
    struct st_heap_node *chunk, *n = st_heap_live_at(h, va, &chunk);

    return n ? (uint64_t)n->size << (chunk ? ST_HEAP_GRANULE_SHIFT : ST_HEAP_PAGE_SHIFT) : 0;
}

/* Ends the live allocation that begins at va; ST_EINVAL if there is none. */
static inline int st_heap_take_back(struct st_heap *h, uint64_t va)
{
    struct st_heap_node *chunk, *n = st_heap_live_at(h, va, &chunk);
    int pool = chunk ? ST_HEAP_SMALL : ST_HEAP_LARGE;
    uint64_t size;
    uint32_t page;

    if (!n)
        return ST_EINVAL;
    size = (uint64_t)n->size << (chunk ? ST_HEAP_GRANULE_SHIFT : ST_HEAP_PAGE_SHIFT);
    st_heap_sub(&h->stats.allocated, pool, size);
    st_heap_sub(&h->stats.requested, pool, size - n->forth);
    st_heap_sub(&h->stats.count, pool, 1);
    if (chunk) {
        st_heap_free_block(h, chunk, n);
        st_heap_count_holes(h);
    } else {
        page = n->page;
        st_heap_node_drop(h, n);
        st_heap_cache_pages(h, page, (uint32_t)(size >> ST_HEAP_PAGE_SHIFT));
    }
    return ST_OK;
}

/* Takes memory from chunks and cached runs; ST_AGAIN if pages must be mapped. */
static inline int st_heap_take_locked(struct st_heap *h, uint64_t bytes, uint16_t tag, uint64_t *va,
                                      int *fresh)
{
    struct st_heap_node *n;
    uint64_t size = st_heap_round(bytes);

    if (st_heap_nodes_short(h))
        return ST_ENOMEM;
    if (size < ST_HEAP_PAGE) {
        uint32_t first;
        n = st_heap_find_hole(h, (uint32_t)(size >> ST_HEAP_GRANULE_SHIFT),
                              size >= ST_HEAP_ALIGN_FROM ? ST_HEAP_ALIGN_GRANULES : 1, &first);
        if (!n) {
            struct st_heap_node *run = st_heap_cut_cached(h, 1);
            if (!run)
                return ST_AGAIN;
            st_heap_move_pages(h, run->page, 1, ST_HEAP_LARGE, ST_HEAP_SMALL);
            n = st_heap_make_chunk(h, run);
            first = 0;
        }
        n = st_heap_cut_hole(h, n, first, (uint32_t)(size >> ST_HEAP_GRANULE_SHIFT));
    } else {
        n = st_heap_cut_cached(h, (uint32_t)(size >> ST_HEAP_PAGE_SHIFT));
        if (!n)
            return ST_AGAIN;
    }
    *va = st_heap_hand_out(h, n, size, bytes, tag);
    *fresh = n->fresh;
    return ST_OK;
}

#endif
