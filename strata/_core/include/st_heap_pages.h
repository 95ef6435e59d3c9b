/* The heap's dealings with its provider: mapping pages, extending cached runs,
 * giving pages back.  All functions here run under `io`, and take `mu` only
 * between the provider's calls; st_heap.h is the interface. */
#ifndef ST_HEAP_PAGES_H
#define ST_HEAP_PAGES_H

#include "st_heap_node.h"

enum { ST_HEAP_TRIES = 8 }; /* cached runs that a request looks at before it maps a run of its own */

/* Bytes of cached runs that may be given back; under `mu`. */
static inline uint64_t st_heap_spare(struct st_heap *h)
{
    uint64_t held = h->held ? st_heap_at(h, h->held)->size : 0;

    return h->pool_pages ? 0 : h->stats.cached_bytes - (held << ST_HEAP_PAGE_SHIFT);
}

/* Cuts pages off the end of the oldest cached run, at most `excess` and only
 * within what one call of the provider mapped.  Returns how many. */
static inline uint32_t st_heap_evict(struct st_heap *h, uint64_t excess, uint64_t *va)
{
    struct st_heap_node *r = st_heap_at(h, h->oldest == h->held ? st_heap_at(h, h->held)->next
                                                               : h->oldest);
    uint32_t end = r->page + r->size, most = excess < r->size ? (uint32_t)excess : r->size, n = 1;

    while (n < most && !h->starts[end - n])
        n++;
    st_heap_forget_cached(h, r);
    if (n < r->size) {
        r->size -= n;
        st_heap_link_cached(h, r, 1);
    } else {
        st_heap_node_drop(h, r);
    }
    if (end < h->cfg.segment_pages)
        h->starts[end] = 1; /* what follows, if mapped, is the start of a run now */
    h->stats.cached_bytes -= (uint64_t)n << ST_HEAP_PAGE_SHIFT;
    st_heap_move_pages(h, end - n, n, ST_HEAP_LARGE, ST_HEAP_ALL);
    *va = st_heap_page_va(h, end - n);
    return n;
}

/* Gives cached pages back until at most `keep` bytes of them are left to give back.
 * Returns the provider's first complaint; it keeps those pages. */
static inline int st_heap_shrink(struct st_heap *h, uint64_t keep, uint64_t *pages)
{
    int first = ST_OK;

    for (;;) {
        uint64_t va = 0, n = 0, spare;
        int rc;

        pthread_mutex_lock(&h->mu);
        spare = st_heap_spare(h);
        if (spare > keep)
            n = st_heap_evict(h, (spare - keep + ST_HEAP_PAGE - 1) >> ST_HEAP_PAGE_SHIFT, &va);
        st_heap_unlock(h);
        if (n == 0)
            return first;
        rc = h->cfg.unmap(h->cfg.arg, va, n);
        pthread_mutex_lock(&h->mu);
        h->stats.unmaps++;
        h->stats.unmap_errors += rc != ST_OK;
        st_heap_unlock(h);
        *pages += n;
        first = first == ST_OK ? rc : first;
    }
}

/* Makes room for n more pages below the limit, from the cache and no more of it than
 * is needed (*freed pages).  ST_ENOMEM: all of it would not do. */
static inline int st_heap_below_limit(struct st_heap *h, uint64_t n, uint64_t *freed)
{
    uint64_t after, over, spare;

    for (;;) { /* once more, if another thread took what was to go */
        pthread_mutex_lock(&h->mu);
        after = h->stats.reserved.now[ST_HEAP_ALL] + (n << ST_HEAP_PAGE_SHIFT);
        over = after > h->cfg.limit_bytes ? after - h->cfg.limit_bytes : 0;
        spare = st_heap_spare(h);
        st_heap_unlock(h);
        if (over == 0)
            return ST_OK;
        if (over > spare)
            return ST_ENOMEM;
        (void)st_heap_shrink(h, spare - over, freed); /* pages it complains about are not ours any more */
    }
}

/* One call of the provider for n pages: at `at`, or anywhere if that is 0. */
static inline int st_heap_call(struct st_heap *h, uint64_t n, uint64_t at, uint64_t *va)
{
    if (!at)
        return h->cfg.map(h->cfg.arg, n, va);
    *va = at;
    return h->cfg.extend(h->cfg.arg, at, n);
}

/* Gives back n cached pages, the oldest, or all there are; returns how many went. */
static inline uint64_t st_heap_free_some(struct st_heap *h, uint64_t n)
{
    uint64_t spare, freed = 0;

    pthread_mutex_lock(&h->mu);
    spare = st_heap_spare(h);
    st_heap_unlock(h);
    n = n < spare >> ST_HEAP_PAGE_SHIFT ? n << ST_HEAP_PAGE_SHIFT : spare;
    (void)st_heap_shrink(h, spare - n, &freed); /* whatever it says, the next call decides */
    return freed;
}

/* The same, below the limit.  If there is no room, as many cached pages go back as are wanted,
 * and if that does not help (others took the room, or it is in pieces), all of them. */
static inline int st_heap_map(struct st_heap *h, uint64_t n, uint64_t at, uint64_t *va)
{
    const uint64_t parts[] = {n, UINT64_MAX};
    uint64_t freed = 0, gone;
    int rc = st_heap_below_limit(h, n, &freed), limited = rc != ST_OK;

    if (!limited)
        rc = st_heap_call(h, n, at, va);
    for (int i = 0; i < 2 && rc == ST_ENOMEM && !limited; i++) {
        gone = st_heap_free_some(h, parts[i]);
        freed += gone;
        if (gone)
            rc = st_heap_call(h, n, at, va);
    }
    if (freed) {
        pthread_mutex_lock(&h->mu);
        h->stats.flushes++;
        st_heap_unlock(h);
    }
    return rc;
}

/* Enters pages that the provider has just mapped; they belong to no run yet. */
static inline void st_heap_enter(struct st_heap *h, uint32_t page, uint32_t n)
{
    memset(h->starts + page, 0, n);
    h->starts[page] = 1;
    if (page + n > h->top)
        h->top = page + n;
    h->stats.maps++;
}

/* Makes a run of pages that the provider has just mapped; under `mu`.  NULL: the
 * heap has not taken them (*rc). */
static inline struct st_heap_node *st_heap_adopt(struct st_heap *h, uint64_t mapped, uint64_t pages,
                                                 int pool, int *rc)
{
    uint64_t page = (mapped - h->cfg.base) >> ST_HEAP_PAGE_SHIFT;
    uint64_t reserved = h->stats.reserved.now[ST_HEAP_ALL] >> ST_HEAP_PAGE_SHIFT;
    struct st_heap_node *n;

    *rc = ST_ECORRUPT;
    if (mapped < h->cfg.base || (mapped - h->cfg.base) % ST_HEAP_PAGE ||
        page + pages > h->cfg.segment_pages || reserved + pages > h->cfg.most_pages)
        return NULL;
    *rc = ST_ENOMEM; /* other threads took nodes meanwhile */
    if (st_heap_nodes_short(h))
        return NULL;
    *rc = ST_OK;
    n = st_heap_node_new(h);
    n->page = (uint32_t)page;
    n->size = (uint32_t)pages;
    n->fresh = 1;
    st_heap_place_run(h, n, ST_HEAP_RUN);
    st_heap_enter(h, n->page, n->size);
    st_heap_move_pages(h, n->page, n->size, ST_HEAP_ALL, pool);
    return n;
}

/* Maps pages anywhere for a request. */
static inline int st_heap_map_new(struct st_heap *h, uint64_t bytes, uint16_t tag, uint64_t *va)
{
    uint64_t size = st_heap_round(bytes), mapped = 0;
    uint64_t pages = (size + ST_HEAP_PAGE - 1) >> ST_HEAP_PAGE_SHIFT;
    int small = size < ST_HEAP_PAGE, rc = st_heap_map(h, pages, 0, &mapped);
    struct st_heap_node *n;

    if (rc != ST_OK)
        return rc;
    pthread_mutex_lock(&h->mu);
    n = st_heap_adopt(h, mapped, pages, small ? ST_HEAP_SMALL : ST_HEAP_LARGE, &rc);
    if (n && small)
        n = st_heap_cut_hole(h, st_heap_make_chunk(h, n), 0, (uint32_t)(size >> ST_HEAP_GRANULE_SHIFT));
    if (n)
        *va = st_heap_hand_out(h, n, size, bytes, tag);
    st_heap_unlock(h);
    if (!n)
        (void)h->cfg.unmap(h->cfg.arg, mapped, pages);
    return rc;
}

struct st_heap_span {
    uint64_t va, bytes;
};

/* Where `need` pages could be put to extend a run: at its end, before it.  The
 * provider knows what is free; this only spares it what the heap itself uses. */
static inline int st_heap_sides(struct st_heap *h, const struct st_heap_node *r, uint32_t need,
                                uint32_t *at)
{
    uint64_t end = (uint64_t)r->page + r->size;
    int sides = 0;

    if (end + need <= h->cfg.segment_pages && !st_heap_border(h, end))
        at[sides++] = (uint32_t)end;
    if (r->page >= need && !st_heap_border(h, r->page - 1))
        at[sides++] = r->page - need;
    return sides;
}

/* The provider was asked for the pages that the held run needs, and said rc.  *old: the
 * pages that are not new. */
static inline void st_heap_extended(struct st_heap *h, int rc, uint32_t at, uint32_t need,
                                    uint64_t bytes, uint16_t tag, uint64_t *va,
                                    struct st_heap_span *old)
{
    struct st_heap_node *n;
    uint32_t first;

    pthread_mutex_lock(&h->mu);
    if (rc == ST_OK) {
        n = st_heap_at(h, h->held);
        first = at < n->page ? at : n->page;
        old->va = st_heap_page_va(h, n->page);
        old->bytes = (uint64_t)n->size << ST_HEAP_PAGE_SHIFT;
        st_heap_enter(h, at, need);
        st_heap_move_pages(h, at, need, ST_HEAP_ALL, ST_HEAP_LARGE);
        n = st_heap_use_held(h, first, n->size + need);
        h->stats.remaps++;
        h->stats.remapped_pages += need;
        *va = st_heap_hand_out(h, n, (uint64_t)n->size << ST_HEAP_PAGE_SHIFT, bytes, tag);
    } else {
        st_heap_let_go(h);
    }
    st_heap_unlock(h);
}

/* Meets a request for several pages by extending one of the largest cached runs.
 * ST_AGAIN: none of them has free addresses beside it. */
static inline int st_heap_extend(struct st_heap *h, uint64_t bytes, uint16_t tag, uint64_t *va,
                                 int *fresh, struct st_heap_span *old)
{
    uint32_t pages = (uint32_t)(st_heap_round(bytes) >> ST_HEAP_PAGE_SHIFT);

    for (uint32_t nth = 0; nth < ST_HEAP_TRIES; nth++) {
        struct st_heap_node *r;
        uint32_t at[2], need = 0;
        uint64_t mapped;
        int sides = 0, i = 0, rc;

        pthread_mutex_lock(&h->mu);
        r = st_heap_nth_cached(h, nth);
        if (r && r->size >= pages) { /* freed by another thread since we looked */
            rc = st_heap_take_locked(h, bytes, tag, va, fresh);
            st_heap_unlock(h);
            return rc;
        }
        if (r) {
            need = pages - r->size;
            sides = st_heap_sides(h, r, need, at);
        }
        if (sides)
            st_heap_hold(h, r);
        st_heap_unlock(h);
        if (!r)
            return ST_AGAIN;
        if (!sides)
            continue;
        do {
            rc = st_heap_map(h, need, st_heap_page_va(h, at[i]), &mapped);
        } while (rc == ST_EINVAL && ++i < sides);
        st_heap_extended(h, rc, at[i < sides ? i : 0], need, bytes, tag, va, old);
        *fresh = 0;
        if (rc != ST_EINVAL)
            return rc;
    }
    return ST_AGAIN;
}

#endif
