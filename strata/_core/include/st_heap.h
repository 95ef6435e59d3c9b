/* The caching sub-allocator of a die's fabric memory.
 *
 * It turns runs of 2 MiB pages, which a provider maps and unmaps, into
 * allocations of any size:
 *
 *   < 2 MiB    blocks of 64-byte granules in shared one-page chunks; exact best
 *              fit, split and merged (>= 1 MiB: aligned to 4 KiB);
 *   >= 2 MiB   a run of whole pages each.
 *
 * Pages without a live allocation stay mapped as cached runs, up to a limit,
 * oldest out first; if the provider is out of memory, all of them go back and
 * the mapping is tried once more.
 *
 * All bookkeeping is in an arena of private memory, none in the memory that is
 * handed out, so a stray write to an array cannot break the heap.  No operation
 * looks at more than a few words, whatever is allocated; only the eviction of a
 * run is linear in its pages.
 *
 * Two locks.  `mu` guards the bookkeeping and is held for a few dozen
 * instructions, never over a system call.  `io` is taken first, and held over
 * the provider's calls: so the provider sees one call at a time, and memory that
 * left the cache is really free before another mapping is tried.  Neither is
 * held while Python code can run.  A caller that must not block (it holds the
 * GIL) uses st_heap_take and st_heap_put, which never touch `io`, and continues
 * with st_heap_grow or st_heap_settle elsewhere on ST_AGAIN.
 *
 * A forked child gets ST_ENOJOB from every call: the heap's header is wiped by
 * the kernel at fork, so that not even a lock inherited in the locked state is
 * touched. */
#ifndef ST_HEAP_H
#define ST_HEAP_H

#include "st_heap_node.h"

/* Takes memory from chunks and cached runs; ST_AGAIN if pages must be mapped. */
static inline int st_heap_take_locked(struct st_heap *h, uint64_t bytes, uint64_t *va,
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
            n = st_heap_make_chunk(h, run);
            first = 0;
        }
        n = st_heap_cut_hole(h, n, first, (uint32_t)(size >> ST_HEAP_GRANULE_SHIFT));
    } else {
        n = st_heap_cut_cached(h, (uint32_t)(size >> ST_HEAP_PAGE_SHIFT));
        if (!n)
            return ST_AGAIN;
    }
    *va = st_heap_hand_out(h, n, size, bytes);
    *fresh = n->fresh;
    return ST_OK;
}

/* Allocates from what is mapped.  ST_AGAIN: nothing fits, call st_heap_grow.
 * *fresh is 1 if the memory was never handed out since it was mapped (all zero). */
static inline int st_heap_take(struct st_heap *h, uint64_t bytes, uint64_t *va, int *fresh)
{
    int rc;

    if (!st_heap_mine(h))
        return ST_ENOJOB;
    if (bytes > st_heap_limit(h))
        return ST_ENOMEM;
    pthread_mutex_lock(&h->mu);
    rc = st_heap_take_locked(h, bytes, va, fresh);
    pthread_mutex_unlock(&h->mu);
    return rc;
}

/* Cuts pages off the end of the oldest cached run, at most `excess` and only
 * within what one call of the provider mapped.  Returns how many. */
static inline uint32_t st_heap_evict(struct st_heap *h, uint64_t excess, uint64_t *va)
{
    struct st_heap_node *r = st_heap_at(h, h->oldest);
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
    h->stats.reserved_bytes -= (uint64_t)n << ST_HEAP_PAGE_SHIFT;
    *va = st_heap_page_va(h, end - n);
    return n;
}

/* Gives cached pages back until at most `keep` bytes are cached; `io` is held.
 * Returns the provider's first complaint; it keeps those pages. */
static inline int st_heap_shrink(struct st_heap *h, uint64_t keep, uint64_t *pages)
{
    int first = ST_OK;

    for (;;) {
        uint64_t va = 0, n = 0;
        int rc;

        pthread_mutex_lock(&h->mu);
        if (h->stats.cached_bytes > keep)
            n = st_heap_evict(
                h, (h->stats.cached_bytes - keep + ST_HEAP_PAGE - 1) >> ST_HEAP_PAGE_SHIFT, &va);
        pthread_mutex_unlock(&h->mu);
        if (n == 0)
            return first;
        rc = h->cfg.unmap(h->cfg.arg, va, n);
        pthread_mutex_lock(&h->mu);
        h->stats.unmaps++;
        h->stats.unmap_errors += rc != ST_OK;
        pthread_mutex_unlock(&h->mu);
        *pages += n;
        first = first == ST_OK ? rc : first;
    }
}

/* Maps n pages; gives the whole cache back and tries again if there is no room. */
static inline int st_heap_map(struct st_heap *h, uint64_t n, uint64_t *va)
{
    uint64_t freed = 0;
    int rc = h->cfg.map(h->cfg.arg, n, va);

    if (rc != ST_ENOMEM)
        return rc;
    (void)st_heap_shrink(h, 0, &freed); /* whatever it says, the next call decides */
    if (freed == 0)
        return rc;
    pthread_mutex_lock(&h->mu);
    h->stats.flushes++;
    pthread_mutex_unlock(&h->mu);
    return h->cfg.map(h->cfg.arg, n, va);
}

/* Puts pages that the provider has just mapped to use for a request.  Not ST_OK:
 * the heap has not taken them. */
static inline int st_heap_adopt(struct st_heap *h, uint64_t mapped, uint32_t pages, uint64_t bytes,
                                uint64_t *va)
{
    uint64_t size = st_heap_round(bytes), page = (mapped - h->cfg.base) >> ST_HEAP_PAGE_SHIFT;
    struct st_heap_node *n;

    if (mapped < h->cfg.base || (mapped - h->cfg.base) % ST_HEAP_PAGE ||
        page + pages > h->cfg.segment_pages ||
        (h->stats.reserved_bytes >> ST_HEAP_PAGE_SHIFT) + pages > h->cfg.most_pages)
        return ST_ECORRUPT;
    if (st_heap_nodes_short(h))
        return ST_ENOMEM; /* other threads took nodes meanwhile */
    n = st_heap_node_new(h);
    n->page = (uint32_t)page;
    n->size = pages;
    n->fresh = 1;
    st_heap_place_run(h, n, ST_HEAP_RUN);
    memset(h->starts + page, 0, pages);
    h->starts[page] = 1;
    if (page + pages > h->top)
        h->top = (uint32_t)page + pages;
    h->stats.reserved_bytes += (uint64_t)pages << ST_HEAP_PAGE_SHIFT;
    if (h->stats.reserved_bytes > h->stats.reserved_peak)
        h->stats.reserved_peak = h->stats.reserved_bytes;
    h->stats.maps++;
    if (size < ST_HEAP_PAGE)
        n = st_heap_cut_hole(h, st_heap_make_chunk(h, n), 0,
                             (uint32_t)(size >> ST_HEAP_GRANULE_SHIFT));
    *va = st_heap_hand_out(h, n, size, bytes);
    return ST_OK;
}

/* Allocates, mapping pages if nothing that is mapped fits. */
static inline int st_heap_grow(struct st_heap *h, uint64_t bytes, uint64_t *va, int *fresh)
{
    int rc;

    if (!st_heap_mine(h))
        return ST_ENOJOB;
    pthread_mutex_lock(&h->io);
    rc = st_heap_take(h, bytes, va, fresh); /* another thread may have freed or mapped some */
    if (rc == ST_AGAIN) {
        uint64_t mapped = 0;
        uint64_t pages = (st_heap_round(bytes) + ST_HEAP_PAGE - 1) >> ST_HEAP_PAGE_SHIFT;

        rc = st_heap_map(h, pages, &mapped);
        if (rc == ST_OK) {
            pthread_mutex_lock(&h->mu);
            rc = st_heap_adopt(h, mapped, (uint32_t)pages, bytes, va);
            pthread_mutex_unlock(&h->mu);
            *fresh = 1;
            if (rc != ST_OK)
                (void)h->cfg.unmap(h->cfg.arg, mapped, pages);
        }
    }
    pthread_mutex_unlock(&h->io);
    return rc;
}

/* Allocates `bytes`, aligned to 64, from 1 MiB to 4 KiB, from 2 MiB to 2 MiB.
 * Zero bytes give an address of their own, that must be freed like any other.
 * ST_ENOMEM if the provider is out of memory with the cache empty; nothing has
 * changed then, but for the cache. */
static inline int st_heap_alloc(struct st_heap *h, uint64_t bytes, uint64_t *va)
{
    int fresh, rc = st_heap_take(h, bytes, va, &fresh);
    return rc == ST_AGAIN ? st_heap_grow(h, bytes, va, &fresh) : rc;
}

/* Ends an allocation; bookkeeping only.  ST_AGAIN: done, and the cache is above
 * its limit, call st_heap_settle.  ST_EINVAL: no live allocation starts at va
 * (freed before, foreign, or in the middle of one); nothing has changed. */
static inline int st_heap_put(struct st_heap *h, uint64_t va)
{
    int rc;

    if (!st_heap_mine(h))
        return ST_ENOJOB;
    pthread_mutex_lock(&h->mu);
    rc = st_heap_take_back(h, va);
    if (rc != ST_OK)
        h->stats.bad_frees++;
    else if (h->stats.cached_bytes > h->cfg.cache_bytes)
        rc = ST_AGAIN;
    pthread_mutex_unlock(&h->mu);
    return rc;
}

/* Gives cached pages back until at most `keep` bytes are cached. */
static inline int st_heap_trim(struct st_heap *h, uint64_t keep)
{
    uint64_t freed = 0;
    int rc;

    if (!st_heap_mine(h))
        return ST_ENOJOB;
    pthread_mutex_lock(&h->io);
    rc = st_heap_shrink(h, keep, &freed);
    pthread_mutex_unlock(&h->io);
    return rc;
}

/* Brings the cache back to its limit. */
static inline int st_heap_settle(struct st_heap *h)
{
    return st_heap_mine(h) ? st_heap_trim(h, h->cfg.cache_bytes) : ST_ENOJOB;
}

/* Ends an allocation.  It has ended even if the provider complains about pages
 * that it gets back; that is counted (unmap_errors). */
static inline int st_heap_free(struct st_heap *h, uint64_t va)
{
    int rc = st_heap_put(h, va);

    if (rc != ST_AGAIN)
        return rc;
    st_heap_settle(h);
    return ST_OK;
}

#include "st_heap_arena.h"
#include "st_heap_check.h"

#endif
