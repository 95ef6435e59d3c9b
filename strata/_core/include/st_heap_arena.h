/* Layout and set-up of a heap in its arena. */
#include "st_heap.h" /* which includes this one at its end: either may come first */
#ifndef ST_HEAP_ARENA_H
#define ST_HEAP_ARENA_H

/* Lays the heap's tables out from `at`; the end of the last.  h == NULL measures. */
static inline size_t st_heap_layout(struct st_heap *h, char *at, uint64_t segment_pages,
                                    uint64_t most)
{
    /* A node for every granule and two for every page, while 32 bits can number them. */
    const uint64_t all = most * (ST_HEAP_GRANULES + 2) + 4;
    const uint64_t nodes = all < UINT32_MAX ? all : UINT32_MAX;
    size_t used = ST_HEAP_HEADER, n;
    const uint64_t sizes[] = {
        segment_pages * sizeof(uint32_t),           /* pages */
        segment_pages,                              /* starts */
        (most + 1) * sizeof(uint32_t),              /* slots */
        most * ST_HEAP_GRANULES * sizeof(uint32_t), /* granules */
        (nodes + 1) * sizeof(struct st_heap_node),  /* nodes; 0 is none */
    };
    void *tables[5];

    n = st_bins_layout(h ? &h->holes : NULL, ST_HEAP_GRANULES, h ? at + used : NULL);
    used += n;
    n = st_bins_layout(h ? &h->runs : NULL, (uint32_t)most, h ? at + used : NULL);
    if (n == 0)
        return 0;
    used += n;
    for (int i = 0; i < 5; i++) {
        tables[i] = h ? at + used : NULL;
        used += (sizes[i] + 4095) & ~UINT64_C(4095);
    }
    if (h) {
        h->pages = tables[0];
        h->starts = tables[1];
        h->slots = tables[2];
        h->granules = tables[3];
        h->nodes = tables[4];
        h->nodes_most = (uint32_t)nodes;
    }
    return used;
}

/* Bytes of arena for a heap of at most `most_pages` mapped pages in a segment of
 * `segment_pages`: address space, most of which is never touched.  0: too large. */
static inline size_t st_heap_arena_bytes(uint64_t segment_pages, uint64_t most_pages)
{
    if (most_pages == 0 || most_pages > segment_pages || segment_pages > UINT32_MAX / 2)
        return 0;
    return st_heap_layout(NULL, NULL, segment_pages, most_pages);
}

/* Makes a heap at the start of a zeroed, private, page-aligned arena.  It needs
 * no teardown: unmap the arena when nothing calls the heap any more. */
static inline int st_heap_init(void *arena, size_t arena_bytes, const struct st_heap_config *cfg,
                               struct st_heap **out)
{
    struct st_heap *h = arena;
    size_t need = st_heap_arena_bytes(cfg->segment_pages, cfg->most_pages);

    if (need == 0 || arena_bytes < need || cfg->base % ST_HEAP_PAGE || !cfg->map || !cfg->unmap)
        return ST_EINVAL;
    if (h->magic != 0)
        return ST_EINVAL; /* in use, or not zeroed */
    st_heap_layout(h, arena, cfg->segment_pages, cfg->most_pages);
    h->cfg = *cfg;
    h->pid = getpid();
    /* Touched here and there: a huge page for each touch would cost more than all the tables. */
    (void)madvise(arena, arena_bytes, MADV_NOHUGEPAGE);
    /* If the kernel cannot (before 4.14), every call compares process ids instead. */
    h->wiped = madvise(arena, ST_HEAP_HEADER, MADV_WIPEONFORK) == 0;
    if (pthread_mutex_init(&h->io, NULL) || pthread_mutex_init(&h->mu, NULL))
        return ST_ESYS;
    h->magic = ST_HEAP_MAGIC;
    *out = h;
    return ST_OK;
}

#endif
