/* Looking at a heap: one walker, and on it statistics and the invariants. */
#include "st_heap.h" /* which includes this one at its end: either may come first */
#ifndef ST_HEAP_CHECK_H
#define ST_HEAP_CHECK_H

/* Visits every range in order of address: runs, cached runs, chunks, and after
 * each chunk its blocks and holes.  Stops at the first result that is not 0, and
 * returns it.  `mu` is held: `visit` must not call the heap, nor Python. */
static inline int st_heap_walk_locked(struct st_heap *h,
                                      int (*visit)(void *arg, struct st_heap *h,
                                                   const struct st_heap_node *n),
                                      void *arg)
{
    for (uint32_t p = 0; p < h->top;) {
        const struct st_heap_node *n = st_heap_at(h, h->pages[p]);
        int rc;

        if (n->page != p || !st_heap_border(h, p)) {
            p++; /* not mapped; no entry is believed that its node does not confirm */
            continue;
        }
        if ((rc = visit(arg, h, n)) != 0)
            return rc;
        for (uint32_t i = n->kind == ST_HEAP_CHUNK ? n->next : 0; i; i = h->nodes[i].next)
            if ((rc = visit(arg, h, st_heap_at(h, i))) != 0)
                return rc;
        p += n->size;
    }
    return 0;
}

static inline int st_heap_walk(struct st_heap *h,
                               int (*visit)(void *, struct st_heap *, const struct st_heap_node *),
                               void *arg)
{
    int rc;

    if (!st_heap_mine(h))
        return ST_ENOJOB;
    pthread_mutex_lock(&h->mu);
    rc = st_heap_walk_locked(h, visit, arg);
    pthread_mutex_unlock(&h->mu);
    return rc;
}

/* What a walk that copies out the ranges fills in. */
struct st_heap_range {
    uint64_t va, bytes, requested; /* requested: of live allocations */
    uint32_t kind, fresh, tag;
};

struct st_heap_ranges {
    struct st_heap_range *item;
    uint64_t room, count; /* count goes on beyond room, to say what is needed */
};

static inline int st_heap_collect(void *arg, struct st_heap *h, const struct st_heap_node *n)
{
    struct st_heap_ranges *out = arg;
    int block = n->kind == ST_HEAP_BLOCK || n->kind == ST_HEAP_HOLE;

    if (out->count < out->room) {
        struct st_heap_range *r = out->item + out->count;
        r->va = st_heap_page_va(h, n->page);
        if (block)
            r->va += (uint64_t)n->first << ST_HEAP_GRANULE_SHIFT;
        r->bytes = (uint64_t)n->size << (block ? ST_HEAP_GRANULE_SHIFT : ST_HEAP_PAGE_SHIFT);
        r->requested = n->kind == ST_HEAP_RUN || n->kind == ST_HEAP_BLOCK ? r->bytes - n->forth : 0;
        r->kind = n->kind == ST_HEAP_HELD ? ST_HEAP_CACHED : n->kind;
        r->fresh = n->fresh;
        r->tag = n->tag;
    }
    out->count++;
    return 0;
}

static inline int st_heap_stats(struct st_heap *h, struct st_heap_stats *out)
{
    uint64_t run, hole;

    if (!st_heap_mine(h))
        return ST_ENOJOB;
    pthread_mutex_lock(&h->mu);
    run = (uint64_t)st_bins_largest(&h->runs) << ST_HEAP_PAGE_SHIFT;
    hole = (uint64_t)st_bins_largest(&h->holes) << ST_HEAP_GRANULE_SHIFT;
    h->stats.largest_free = run > hole ? run : hole;
    *out = h->stats;
    pthread_mutex_unlock(&h->mu);
    st_heap_sum_up(out);
    return ST_OK;
}

/* What the walk of a check adds up; [small, large]. */
struct st_heap_sums {
    const struct st_heap_node *chunk, *last;
    uint64_t allocated[2], requested[2], live[2], reserved[2], segments[2];
    uint64_t cached, holes, runs, held, nodes;
    uint64_t end; /* page after the last run or chunk */
    int kind;     /* and which it was */
};

#define ST_HEAP_WANT(truth) \
    do {                    \
        if (!(truth))       \
            return __LINE__; \
    } while (0)

/* A node of a chunk, in order. */
static inline int st_heap_check_part(struct st_heap_sums *s, struct st_heap *h,
                                     const struct st_heap_node *n)
{
    uint32_t first = s->last ? s->last->first + s->last->size : 0;

    ST_HEAP_WANT(s->chunk && n->page == s->chunk->page && n->size > 0);
    ST_HEAP_WANT(n->first == first && first + n->size <= ST_HEAP_GRANULES);
    ST_HEAP_WANT(n->prev == (s->last ? st_heap_index(h, s->last) : 0));
    ST_HEAP_WANT(n->next != 0 || first + n->size == ST_HEAP_GRANULES);
    if (n->kind == ST_HEAP_HOLE) {
        ST_HEAP_WANT(!s->last || s->last->kind == ST_HEAP_BLOCK);
        ST_HEAP_WANT(n->size < ST_HEAP_GRANULES);
        s->holes++;
    } else {
        ST_HEAP_WANT(*st_heap_granule(h, s->chunk, first) == st_heap_index(h, n));
        ST_HEAP_WANT(n->kind == ST_HEAP_BLOCK && n->tag < ST_HEAP_TAGS);
        s->live[ST_HEAP_SMALL]++;
        s->allocated[ST_HEAP_SMALL] += (uint64_t)n->size << ST_HEAP_GRANULE_SHIFT;
        s->requested[ST_HEAP_SMALL] += ((uint64_t)n->size << ST_HEAP_GRANULE_SHIFT) - n->forth;
    }
    s->last = n;
    return 0;
}

/* A run of pages, live or cached. */
static inline int st_heap_check_run(struct st_heap_sums *s, struct st_heap *h,
                                    const struct st_heap_node *n)
{
    uint64_t bytes = (uint64_t)n->size << ST_HEAP_PAGE_SHIFT;
    int beside = s->end == n->page;

    s->reserved[ST_HEAP_LARGE] += bytes;
    s->segments[ST_HEAP_LARGE] += !(s->end && beside && s->kind != ST_HEAP_CHUNK);
    if (n->kind == ST_HEAP_RUN) {
        ST_HEAP_WANT(n->tag < ST_HEAP_TAGS);
        s->live[ST_HEAP_LARGE]++;
        s->allocated[ST_HEAP_LARGE] += bytes;
        s->requested[ST_HEAP_LARGE] += bytes - n->forth;
        return 0;
    }
    s->cached += bytes;
    if (n->kind == ST_HEAP_HELD) {
        ST_HEAP_WANT(h->held == st_heap_index(h, n));
        s->held++;
        return 0;
    }
    ST_HEAP_WANT(n->kind == ST_HEAP_CACHED);
    ST_HEAP_WANT(!(s->end && beside && s->kind == ST_HEAP_CACHED)); /* neighbours are one run */
    s->runs++;
    return 0;
}

static inline int st_heap_check_node(void *arg, struct st_heap *h, const struct st_heap_node *n)
{
    struct st_heap_sums *s = arg;

    s->nodes++;
    if (n->kind == ST_HEAP_BLOCK || n->kind == ST_HEAP_HOLE)
        return st_heap_check_part(s, h, n);
    ST_HEAP_WANT(n->size > 0 && (uint64_t)n->page + n->size <= h->top);
    ST_HEAP_WANT(h->pages[n->page + n->size - 1] == st_heap_index(h, n));
    ST_HEAP_WANT((s->end && s->end == n->page) || h->starts[n->page] == 1);
    s->chunk = s->last = NULL;
    if (n->kind == ST_HEAP_CHUNK) {
        ST_HEAP_WANT(n->size == 1 && n->first >= 1 && n->first <= h->slots_used);
        s->chunk = n;
        s->reserved[ST_HEAP_SMALL] += ST_HEAP_PAGE;
        s->segments[ST_HEAP_SMALL]++;
    } else {
        int rc = st_heap_check_run(s, h, n);
        if (rc)
            return rc;
    }
    s->end = (uint64_t)n->page + n->size;
    s->kind = n->kind;
    return 0;
}

/* A figure is what the walk found, in both pools, and hangs together. */
static inline int st_heap_check_stat(const struct st_heap_stat *t, uint64_t small, uint64_t large)
{
    ST_HEAP_WANT(t->now[ST_HEAP_SMALL] == small && t->now[ST_HEAP_LARGE] == large);
    ST_HEAP_WANT(t->now[ST_HEAP_ALL] == small + large);
    for (int pool = 0; pool < ST_HEAP_POOLS; pool++)
        ST_HEAP_WANT(t->now[pool] <= t->peak[pool] && t->now[pool] <= t->added[pool]);
    ST_HEAP_WANT(t->peak[ST_HEAP_ALL] <= t->peak[ST_HEAP_SMALL] + t->peak[ST_HEAP_LARGE]);
    return 0;
}

static inline int st_heap_check_stats(struct st_heap *h, const struct st_heap_sums *s)
{
    struct st_heap_stats all = h->stats, *t = &all;
    uint64_t gaps = s->reserved[ST_HEAP_SMALL] - s->allocated[ST_HEAP_SMALL];
    int rc;

    st_heap_sum_up(t);
    rc = st_heap_check_stat(&t->allocated, s->allocated[0], s->allocated[1]);
    rc = rc ? rc : st_heap_check_stat(&t->requested, s->requested[0], s->requested[1]);
    rc = rc ? rc : st_heap_check_stat(&t->count, s->live[0], s->live[1]);
    rc = rc ? rc : st_heap_check_stat(&t->reserved, s->reserved[0], s->reserved[1]);
    rc = rc ? rc : st_heap_check_stat(&t->segments, s->segments[0], s->segments[1]);
    rc = rc ? rc : st_heap_check_stat(&t->holes, s->holes, 0);
    rc = rc ? rc : st_heap_check_stat(&t->hole_bytes, gaps, 0);
    if (rc)
        return rc;
    ST_HEAP_WANT(s->cached == t->cached_bytes && s->nodes == h->nodes_live);
    ST_HEAP_WANT(s->held == (h->held != 0) && s->holes == h->hole_count);
    ST_HEAP_WANT(t->remaps <= t->maps && t->remaps <= t->remapped_pages);
    if (h->pool_pages)
        ST_HEAP_WANT(t->reserved.now[ST_HEAP_ALL] == h->pool_pages << ST_HEAP_PAGE_SHIFT &&
                     t->maps == 1 && t->unmaps == 0);
    return 0;
}

/* Bitmaps, heads and lists agree, and hold `count` nodes of that kind. */
static inline int st_heap_check_bins(struct st_heap *h, const struct st_bins *b, int kind,
                                     uint64_t count)
{
    for (uint64_t size = 0; size <= b->cap; size++) {
        uint32_t i = b->head[size], before = 0;
        ST_HEAP_WANT((b->bits[0][size >> 6] >> (size & 63) & 1) == (i != 0));
        for (; i; before = i, i = h->nodes[i].forth, count--)
            ST_HEAP_WANT(count && h->nodes[i].kind == kind && h->nodes[i].size == size &&
                         h->nodes[i].back == before);
    }
    for (uint32_t l = 1; l < b->levels; l++)
        for (uint64_t w = 0; w < b->words[l - 1]; w++)
            ST_HEAP_WANT((b->bits[l][w >> 6] >> (w & 63) & 1) == (b->bits[l - 1][w] != 0));
    ST_HEAP_WANT(count == 0);
    return 0;
}

static inline int st_heap_check_locked(struct st_heap *h)
{
    struct st_heap_sums s = {0};
    uint32_t before = 0;
    int rc = st_heap_walk_locked(h, st_heap_check_node, &s);

    if (rc)
        return rc;
    if ((rc = st_heap_check_stats(h, &s)) != 0)
        return rc;
    if ((rc = st_heap_check_bins(h, &h->holes, ST_HEAP_HOLE, s.holes)) != 0)
        return rc;
    if ((rc = st_heap_check_bins(h, &h->runs, ST_HEAP_CACHED, s.runs)) != 0)
        return rc;
    s.runs += s.held; /* which has kept its place in the list by age */
    for (uint32_t i = h->oldest; i; before = i, i = h->nodes[i].next, s.runs--)
        ST_HEAP_WANT(s.runs && (h->nodes[i].kind == ST_HEAP_CACHED || i == h->held) &&
                     h->nodes[i].prev == before);
    ST_HEAP_WANT(s.runs == 0 && h->newest == before);
    for (uint32_t i = h->node_spare; i; i = h->nodes[i].forth, s.nodes++)
        ST_HEAP_WANT(h->nodes[i].kind == ST_HEAP_UNUSED && s.nodes < h->nodes_used);
    ST_HEAP_WANT(s.nodes == h->nodes_used); /* none lost */
    return 0;
}

/* 0, or the line of this file whose condition does not hold. */
static inline int st_heap_check(struct st_heap *h)
{
    int rc;

    if (!st_heap_mine(h))
        return 0;
    pthread_mutex_lock(&h->mu);
    rc = st_heap_check_locked(h);
    pthread_mutex_unlock(&h->mu);
    return rc;
}

#endif
