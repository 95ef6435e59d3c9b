/* The heap's runs of pages, live and cached: second part of st_heap_node.h. */
#include "st_heap_node.h" /* which includes this one at its end: either may come first */
#ifndef ST_HEAP_RUN_H
#define ST_HEAP_RUN_H

/* Writes a run's kind, and its entries in the page table. */
static inline void st_heap_place_run(struct st_heap *h, struct st_heap_node *n, uint8_t kind)
{
    n->kind = kind;
    h->pages[n->page] = h->pages[n->page + n->size - 1] = st_heap_index(h, n);
}

/* Takes a cached run out of the list by age. */
static inline void st_heap_unlink_cached(struct st_heap *h, struct st_heap_node *n)
{
    *(n->prev ? &h->nodes[n->prev].next : &h->oldest) = n->next;
    *(n->next ? &h->nodes[n->next].prev : &h->newest) = n->prev;
}

static inline void st_heap_forget_cached(struct st_heap *h, struct st_heap_node *n)
{
    st_heap_bin_pull(h, &h->runs, n);
    st_heap_unlink_cached(h, n);
}

static inline void st_heap_link_cached(struct st_heap *h, struct st_heap_node *n, int as_oldest)
{
    uint32_t i = st_heap_index(h, n);

    st_heap_place_run(h, n, ST_HEAP_CACHED);
    st_heap_bin_push(h, &h->runs, n);
    n->prev = as_oldest ? 0 : h->newest;
    n->next = as_oldest ? h->oldest : 0;
    *(n->prev ? &h->nodes[n->prev].next : &h->oldest) = i;
    *(n->next ? &h->nodes[n->next].prev : &h->newest) = i;
}

/* The page-level node that is a cached run with its first (or last) page there. */
static inline struct st_heap_node *st_heap_cached_at(struct st_heap *h, uint32_t page, int last)
{
    struct st_heap_node *n = st_heap_at(h, h->pages[page]);

    return n->kind == ST_HEAP_CACHED && page == (last ? n->page + n->size - 1 : n->page) ? n : NULL;
}

/* The run or chunk that a mapped range begins or ends with at this page; NULL if
 * the page is not mapped, or neither its first nor its last. */
static inline struct st_heap_node *st_heap_border(struct st_heap *h, uint64_t page)
{
    struct st_heap_node *n = st_heap_at(h, h->pages[page]);
    int pages = n->kind == ST_HEAP_RUN || n->kind == ST_HEAP_CACHED || n->kind == ST_HEAP_CHUNK ||
                n->kind == ST_HEAP_HELD;

    return pages && (page == n->page || page == (uint64_t)n->page + n->size - 1) ? n : NULL;
}

static inline int st_heap_large_at(struct st_heap *h, uint64_t page)
{
    struct st_heap_node *n = page < h->cfg.segment_pages ? st_heap_border(h, page) : NULL;
    return n && n->kind != ST_HEAP_CHUNK;
}

/* Counts a range of pages that goes from one pool to another; ST_HEAP_ALL stands
 * for not mapped.  What lies beside it is in the tables, and it itself is not looked at. */
static inline void st_heap_move_pages(struct st_heap *h, uint32_t page, uint32_t size, int from,
                                      int to)
{
    int64_t bytes = (int64_t)((uint64_t)size << ST_HEAP_PAGE_SHIFT);
    int large = (to == ST_HEAP_LARGE) - (from == ST_HEAP_LARGE);
    int small = (to == ST_HEAP_SMALL) - (from == ST_HEAP_SMALL);
    int beside = (page && st_heap_large_at(h, page - 1)) + st_heap_large_at(h, (uint64_t)page + size);

    st_heap_change(&h->stats.reserved, small * bytes, large * bytes);
    st_heap_change(&h->stats.segments, small, large * (1 - beside));
}

/* Mapped pages that are free now become (part of) the newest cached run. */
static inline void st_heap_cache_pages(struct st_heap *h, uint32_t page, uint32_t size)
{
    struct st_heap_node *left = page ? st_heap_cached_at(h, page - 1, 1) : NULL;
    struct st_heap_node *right = NULL, *n;

    if (page + size < h->cfg.segment_pages)
        right = st_heap_cached_at(h, page + size, 0);
    h->stats.cached_bytes += (uint64_t)size << ST_HEAP_PAGE_SHIFT;
    if (left) {
        st_heap_forget_cached(h, left);
        page = left->page;
        size += left->size;
        st_heap_node_drop(h, left);
    }
    if (right) {
        st_heap_forget_cached(h, right);
        size += right->size;
        st_heap_node_drop(h, right);
    }
    n = st_heap_node_new(h);
    n->page = page;
    n->size = size;
    st_heap_link_cached(h, n, 0);
}

/* A run of exactly `size` pages from the best cached one; NULL if none is large enough. */
static inline struct st_heap_node *st_heap_cut_cached(struct st_heap *h, uint32_t size)
{
    uint32_t found = st_bins_find(&h->runs, size);
    struct st_heap_node *r, *n;

    if (!found)
        return NULL;
    r = st_heap_at(h, h->runs.head[found]);
    if (found == size) {
        st_heap_forget_cached(h, r);
        n = r;
    } else { /* from the front; the rest keeps its age */
        n = st_heap_node_new(h);
        n->page = r->page;
        n->size = size;
        n->fresh = r->fresh;
        st_heap_bin_pull(h, &h->runs, r);
        r->page += size;
        r->size -= size;
        st_heap_place_run(h, r, ST_HEAP_CACHED);
        st_heap_bin_push(h, &h->runs, r);
    }
    st_heap_place_run(h, n, ST_HEAP_RUN);
    h->stats.cached_bytes -= (uint64_t)size << ST_HEAP_PAGE_SHIFT;
    return n;
}

/* The nth largest cached run, from 0; NULL if there are not so many. */
static inline struct st_heap_node *st_heap_nth_cached(struct st_heap *h, uint32_t nth)
{
    uint32_t size = st_bins_largest(&h->runs), i = size ? h->runs.head[size] : 0;

    while (i && nth--) {
        i = h->nodes[i].forth;
        if (!i && (size = st_bins_below(&h->runs, size - 1)) != 0)
            i = h->runs.head[size];
    }
    return i ? st_heap_at(h, i) : NULL;
}

/* Keeps a cached run from everybody else: it stays cached, at its age, but is in no
 * free list, does not merge with neighbours, and is not evicted. */
static inline void st_heap_hold(struct st_heap *h, struct st_heap_node *n)
{
    st_heap_bin_pull(h, &h->runs, n);
    n->kind = ST_HEAP_HELD;
    h->held = st_heap_index(h, n);
}

/* The held run is an ordinary cached one again, with neighbours that were freed meanwhile. */
static inline void st_heap_let_go(struct st_heap *h)
{
    struct st_heap_node *n = st_heap_at(h, h->held);
    uint32_t page = n->page, size = n->size;

    h->held = 0;
    n->kind = ST_HEAP_CACHED;
    st_heap_bin_push(h, &h->runs, n);
    if ((page && st_heap_cached_at(h, page - 1, 1)) ||
        (page + size < h->cfg.segment_pages && st_heap_cached_at(h, page + size, 0))) {
        st_heap_forget_cached(h, n);
        st_heap_node_drop(h, n);
        h->stats.cached_bytes -= (uint64_t)size << ST_HEAP_PAGE_SHIFT;
        st_heap_cache_pages(h, page, size);
    }
}

/* The held run becomes a live one of `size` pages from `page`, with new pages around it. */
static inline struct st_heap_node *st_heap_use_held(struct st_heap *h, uint32_t page, uint32_t size)
{
    struct st_heap_node *n = st_heap_at(h, h->held);

    h->held = 0;
    st_heap_unlink_cached(h, n);
    h->stats.cached_bytes -= (uint64_t)n->size << ST_HEAP_PAGE_SHIFT;
    n->page = page;
    n->size = size;
    n->fresh = 0;
    st_heap_place_run(h, n, ST_HEAP_RUN);
    return n;
}

#endif
