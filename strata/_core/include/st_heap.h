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
 * oldest out first; if the provider is out of memory, as many of them go back as
 * are wanted, at last all, and the mapping is tried once more.  A request for more pages than any cached run
 * has is met, where the addresses beside one of the largest are free, by mapping
 * only the pages that are missing there.  Or, in pool mode, one run is mapped at
 * the start, and nothing is ever mapped or given back after that.
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

#include "st_heap_pages.h"

/* Counts an allocation that found no room; also one that a caller refuses by itself. */
static inline void st_heap_refused(struct st_heap *h)
{
    if (!st_heap_mine(h))
        return;
    pthread_mutex_lock(&h->mu);
    h->stats.refusals++;
    st_heap_unlock(h);
}

/* st_heap_take with a tag that says what for. */
static inline int st_heap_take_as(struct st_heap *h, uint64_t bytes, uint16_t tag, uint64_t *va,
                                  int *fresh)
{
    int rc = ST_ENOMEM;

    if (!st_heap_mine(h))
        return ST_ENOJOB;
    pthread_mutex_lock(&h->mu);
    if (bytes <= st_heap_largest(h))
        rc = st_heap_take_locked(h, bytes, tag, va, fresh);
    h->stats.refusals += rc == ST_ENOMEM;
    st_heap_unlock(h);
    return rc;
}

/* Allocates from what is mapped.  ST_AGAIN: nothing fits, call st_heap_grow.
 * *fresh is 1 if the memory was never handed out since it was mapped (all zero). */
static inline int st_heap_take(struct st_heap *h, uint64_t bytes, uint64_t *va, int *fresh)
{
    return st_heap_take_as(h, bytes, ST_HEAP_ARRAY, va, fresh);
}

/* st_heap_grow with a tag that says what for.  With ST_HEAP_ZEROED in it, an extension
 * zeroes what of it is not new, so that it is fresh as well. */
static inline int st_heap_grow_as(struct st_heap *h, uint64_t bytes, uint16_t tag, uint64_t *va,
                                  int *fresh)
{
    struct st_heap_span old = {0, 0};
    int rc;

    if (!st_heap_mine(h))
        return ST_ENOJOB;
    pthread_mutex_lock(&h->io);
    rc = st_heap_take_as(h, bytes, tag, va, fresh); /* another thread may have freed or mapped some */
    if (rc == ST_AGAIN && h->pool_pages) {
        rc = ST_ENOMEM;
        st_heap_refused(h);
    } else if (rc == ST_AGAIN) {
        if (h->cfg.extend && bytes > ST_HEAP_PAGE)
            rc = st_heap_extend(h, bytes, tag, va, fresh, &old);
        if (rc == ST_AGAIN || rc == ST_ENOMEM) { /* no room there: perhaps without that run */
            rc = st_heap_map_new(h, bytes, tag, va);
            *fresh = 1;
        }
        if (rc == ST_ENOMEM)
            st_heap_refused(h);
    }
    pthread_mutex_unlock(&h->io);
    if (old.bytes && tag & ST_HEAP_ZEROED) { /* the caller's by now */
        memset((void *)(uintptr_t)old.va, 0, old.bytes);
        *fresh = 1;
    }
    return rc;
}

/* Allocates, mapping pages if nothing that is mapped fits. */
static inline int st_heap_grow(struct st_heap *h, uint64_t bytes, uint64_t *va, int *fresh)
{
    return st_heap_grow_as(h, bytes, ST_HEAP_ARRAY, va, fresh);
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
    else if (h->stats.cached_bytes > h->cfg.cache_bytes && !h->pool_pages)
        rc = ST_AGAIN;
    st_heap_unlock(h);
    return rc;
}

/* Gives cached pages back until at most `keep` bytes are cached; nothing in pool mode. */
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

/* From now on at most `bytes` are mapped; what is mapped beyond that stays while it
 * is in use, and the cache goes as far as it must. */
static inline int st_heap_set_limit(struct st_heap *h, uint64_t bytes)
{
    uint64_t freed = 0;
    int rc = ST_OK;

    if (!st_heap_mine(h))
        return ST_ENOJOB;
    pthread_mutex_lock(&h->io);
    pthread_mutex_lock(&h->mu);
    h->cfg.limit_bytes = bytes;
    st_heap_unlock(h);
    if (st_heap_below_limit(h, 0, &freed) != ST_OK) /* not even without a cache */
        rc = st_heap_shrink(h, 0, &freed);
    pthread_mutex_unlock(&h->io);
    return rc;
}

/* Maps `pages` in one piece, as the only ones this heap will ever have: the first
 * call of a new heap, before any other.  Not ST_OK: the heap is as it was. */
static inline int st_heap_fill_pool(struct st_heap *h, uint64_t pages)
{
    uint64_t mapped = 0;
    struct st_heap_node *n;
    int rc;

    if (!st_heap_mine(h))
        return ST_ENOJOB;
    if (pages == 0 || pages > h->cfg.most_pages || h->stats.maps)
        return ST_EINVAL;
    pthread_mutex_lock(&h->io);
    rc = st_heap_map(h, pages, 0, &mapped);
    if (rc == ST_OK) {
        pthread_mutex_lock(&h->mu);
        n = st_heap_adopt(h, mapped, pages, ST_HEAP_LARGE, &rc);
        if (n) {
            st_heap_link_cached(h, n, 0);
            h->stats.cached_bytes += pages << ST_HEAP_PAGE_SHIFT;
            h->pool_pages = pages;
        }
        st_heap_unlock(h);
        if (!n)
            (void)h->cfg.unmap(h->cfg.arg, mapped, pages);
    }
    pthread_mutex_unlock(&h->io);
    return rc;
}

/* Peaks begin anew. */
static inline int st_heap_reset_peaks(struct st_heap *h)
{
    if (!st_heap_mine(h))
        return ST_ENOJOB;
    pthread_mutex_lock(&h->mu);
    st_heap_forget_peaks(&h->stats);
    st_heap_unlock(h);
    return ST_OK;
}

#include "st_heap_arena.h"
#include "st_heap_check.h"

#endif
