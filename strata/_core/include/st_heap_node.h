/* The heap's bookkeeping: its arena, nodes and free lists; runs and chunks are in
 * the two headers at its end.  All functions there and here run under the heap's lock `mu`; st_heap.h is the interface.
 *
 * One node describes one range: a run of pages (live or cached), a chunk (one
 * page cut into blocks), or a block or hole in a chunk.  A node is found from an
 * address through `pages` (first and last page of each run, the page of each
 * chunk) and, in chunks, through the chunk's table of granules (first granule of
 * each block).  Entries there are never cleared: they are believed only if the
 * node they name is of the right kind and really begins, or ends, there. */
#ifndef ST_HEAP_NODE_H
#define ST_HEAP_NODE_H

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "st_heap_bins.h"
#include "st_heap_stats.h"
#include "st_status.h"

#define ST_HEAP_PAGE_SHIFT 21
#define ST_HEAP_PAGE (UINT64_C(1) << ST_HEAP_PAGE_SHIFT)
#define ST_HEAP_GRANULE_SHIFT 6
#define ST_HEAP_GRANULES (1u << (ST_HEAP_PAGE_SHIFT - ST_HEAP_GRANULE_SHIFT))
#define ST_HEAP_ALIGN_FROM (UINT64_C(1) << 20) /* from this size, blocks begin at 4 KiB */
#define ST_HEAP_ALIGN_GRANULES 64u
#define ST_HEAP_MAGIC UINT64_C(0x7374686561700001)
#define ST_HEAP_HEADER 65536 /* a multiple of any page size; wiped at fork */

/* map: n pages, mapped and zero, into *va; ST_ENOMEM if there is no room.
 * extend: n pages, mapped and zero, at exactly `va`; ST_EINVAL if those addresses
 * are not free; ST_ENOMEM if there is no room.  NULL: the provider cannot.
 * unmap: any part of what one of them gave.  Whatever it returns, the heap does not
 * touch the pages again until they are handed out again.
 * The heap never calls the provider from two threads at once. */
struct st_heap_config {
    uint64_t base;          /* address of the segment that pages come from */
    uint64_t segment_pages; /* its size */
    uint64_t most_pages;    /* never more than this many mapped at once */
    uint64_t cache_bytes;   /* cached runs beyond this are unmapped */
    uint64_t limit_bytes;   /* mappings that lead beyond this are refused */
    int (*map)(void *arg, uint64_t npages, uint64_t *va);
    int (*extend)(void *arg, uint64_t va, uint64_t npages);
    int (*unmap)(void *arg, uint64_t va, uint64_t npages);
    void *arg;
};

enum st_heap_kind {
    ST_HEAP_UNUSED = 0,
    ST_HEAP_RUN = 1,    /* pages of one live allocation */
    ST_HEAP_CACHED = 2, /* mapped pages that nobody uses */
    ST_HEAP_CHUNK = 3,  /* a page of blocks and holes; `first` is its slot, `next` its first node */
    ST_HEAP_BLOCK = 4,  /* one live allocation */
    ST_HEAP_HOLE = 5,
    ST_HEAP_HELD = 6 /* a cached run that is being extended: nobody may take it meanwhile */
};

/* What an allocation is for; people read it when there is no room. */
enum st_heap_tag {
    ST_HEAP_ARRAY = 0,
    ST_HEAP_GROUP = 1,   /* a group's memory */
    ST_HEAP_CHANNEL = 2, /* a point-to-point channel */
    ST_HEAP_STAGING = 3, /* a copy of an array that is not in the fabric */
    ST_HEAP_FOREIGN = 4, /* memory of an intercepted allocator */
    ST_HEAP_RAW = 5,     /* Heap.alloc() */
    ST_HEAP_SDMA = 6,    /* rings and flags of the DMA engine */
    ST_HEAP_TAGS = 7,
    ST_HEAP_ZEROED = 256 /* added to a tag: the caller will want zeros */
};

struct st_heap_node {
    uint32_t page, first, size; /* page of the segment; first granule; pages or granules */
    uint8_t kind, fresh;        /* fresh: never handed out since it was mapped */
    uint16_t tag;               /* of a live allocation: enum st_heap_tag */
    uint32_t prev, next; /* neighbours in the chunk, or in the list of cached runs by age */
    uint32_t back;       /* free list */
    uint32_t forth;      /* free list; of a live allocation: bytes beyond those asked for */
};

struct st_heap {
    uint64_t magic;
    pid_t pid;
    int wiped; /* the kernel zeroes this header in a forked child */
    struct st_heap_config cfg;
    struct st_heap_stats stats;
    struct st_bins holes, runs;
    struct st_heap_node *nodes;
    uint32_t nodes_used, node_spare; /* ever used; head of the dropped */
    uint32_t nodes_live, nodes_most;
    uint32_t slots_used, slot_spare;
    uint32_t oldest, newest; /* cached runs */
    uint32_t held;           /* the one of them that is being extended */
    uint32_t hole_count;
    uint32_t top;            /* no page at or above was ever mapped */
    uint32_t *pages, *granules, *slots;
    uint64_t pool_pages; /* mapped once and for all; 0: pages are mapped as they are needed */
    uint8_t *starts;     /* of each page: a mapping by the provider began here */
    uint64_t *shown;     /* where inspectors read cached and allocated bytes; NULL: nowhere */
    pthread_mutex_t io, mu;
};

_Static_assert(sizeof(struct st_heap) <= ST_HEAP_HEADER, "the header holds the heap");
_Static_assert(sizeof(struct st_heap_node) == 32, "two nodes in a cache line");

/* The end of all that changes something under mu. */
static inline void st_heap_unlock(struct st_heap *h)
{
    const struct st_heap_stat *a = &h->stats.allocated;

    if (h->shown) {
        h->shown[0] = h->stats.cached_bytes;
        h->shown[1] = a->now[ST_HEAP_SMALL] + a->now[ST_HEAP_LARGE];
    }
    pthread_mutex_unlock(&h->mu);
}

/* 0 in a forked child. */
static inline int st_heap_mine(const struct st_heap *h)
{
    return h->magic == ST_HEAP_MAGIC && (h->wiped || h->pid == getpid());
}

static inline struct st_heap_node *st_heap_at(struct st_heap *h, uint32_t i)
{
    return h->nodes + i;
}

static inline uint32_t st_heap_index(struct st_heap *h, const struct st_heap_node *n)
{
    return (uint32_t)(n - h->nodes);
}

static inline uint64_t st_heap_page_va(const struct st_heap *h, uint64_t page)
{
    return h->cfg.base + (page << ST_HEAP_PAGE_SHIFT);
}

/* The largest request that could ever be met. */
static inline uint64_t st_heap_largest(const struct st_heap *h)
{
    return h->cfg.most_pages << ST_HEAP_PAGE_SHIFT;
}

/* Size of the allocation for a request, at most st_heap_largest. */
static inline uint64_t st_heap_round(uint64_t bytes)
{
    uint64_t unit = ST_HEAP_PAGE;

    if (bytes <= 4096)
        unit = 64;
    else if (bytes < ST_HEAP_ALIGN_FROM)
        unit = 512;
    else if (bytes < ST_HEAP_PAGE)
        unit = 4096;
    return bytes ? (bytes + unit - 1) & ~(unit - 1) : unit;
}

/* An allocation takes up to four nodes, and anything else frees before it takes. */
static inline int st_heap_nodes_short(const struct st_heap *h)
{
    return h->nodes_live + 4 > h->nodes_most;
}

static inline struct st_heap_node *st_heap_node_new(struct st_heap *h)
{
    uint32_t i = h->node_spare;

    h->nodes_live++;
    if (i)
        h->node_spare = h->nodes[i].forth;
    else
        i = ++h->nodes_used;
    memset(h->nodes + i, 0, sizeof(struct st_heap_node));
    return h->nodes + i;
}

static inline void st_heap_node_drop(struct st_heap *h, struct st_heap_node *n)
{
    h->nodes_live--;
    n->kind = ST_HEAP_UNUSED;
    n->forth = h->node_spare;
    h->node_spare = st_heap_index(h, n);
}

static inline void st_heap_bin_push(struct st_heap *h, struct st_bins *b, struct st_heap_node *n)
{
    uint32_t i = st_heap_index(h, n), head = b->head[n->size];

    n->back = 0;
    n->forth = head;
    if (head)
        h->nodes[head].back = i;
    else
        st_bins_mark(b, n->size);
    b->head[n->size] = i;
}

static inline void st_heap_bin_pull(struct st_heap *h, struct st_bins *b, struct st_heap_node *n)
{
    if (n->forth)
        h->nodes[n->forth].back = n->back;
    if (n->back)
        h->nodes[n->back].forth = n->forth;
    else if ((b->head[n->size] = n->forth) == 0)
        st_bins_clear(b, n->size);
}

static inline void st_heap_push_hole(struct st_heap *h, struct st_heap_node *n)
{
    st_heap_bin_push(h, &h->holes, n);
    h->hole_count++;
}

static inline void st_heap_pull_hole(struct st_heap *h, struct st_heap_node *n)
{
    st_heap_bin_pull(h, &h->holes, n);
    h->hole_count--;
}

#include "st_heap_run.h"
#include "st_heap_chunk.h"

#endif
