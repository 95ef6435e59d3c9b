/* A heap over fake pages, for the tests of it. */
#ifndef HEAPS_H
#define HEAPS_H

#include <stdio.h>
#include <stdlib.h>

#include "st_heap.h"
#include "st_heap_fake.h"

#define MIB (UINT64_C(1) << 20)
#define PAGE ST_HEAP_PAGE
#define ALL ST_HEAP_ALL
#define CHECK(truth)                                                           \
    do {                                                                       \
        if (!(truth)) {                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #truth);        \
            exit(1);                                                           \
        }                                                                      \
    } while (0)
#define SOUND(heap)                                                            \
    do {                                                                       \
        int line_ = st_heap_check(heap);                                       \
        if (line_) {                                                           \
            fprintf(stderr, "%s:%d: invariant, st_heap_check.h:%d\n", __FILE__, __LINE__, line_); \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

struct bed {
    struct st_fake_pages fake;
    struct st_heap *heap;
    void *arena, *memory;
    size_t arena_bytes, memory_bytes;
};

static void *map_memory(size_t bytes, int prot)
{
    void *p = mmap(NULL, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

static struct bed *bed_open(uint64_t segment, uint64_t share, uint64_t cache)
{
    struct bed *b = calloc(1, sizeof *b);
    struct st_heap_config cfg = {.segment_pages = segment, .most_pages = share, .cache_bytes = cache,
                                 .limit_bytes = UINT64_MAX, .map = st_fake_map, .extend = st_fake_extend,
                                 .unmap = st_fake_unmap, .arg = &b->fake};

    CHECK(segment <= ST_FAKE_PAGES);
    b->memory_bytes = (segment + 1) * PAGE;
    b->memory = map_memory(b->memory_bytes, PROT_READ | PROT_WRITE);
    b->fake.base = cfg.base = ((uint64_t)(uintptr_t)b->memory + PAGE - 1) & ~(PAGE - 1);
    b->fake.npages = segment;
    b->fake.share = share;
    b->arena_bytes = st_heap_arena_bytes(segment, share);
    CHECK(b->arena_bytes);
    b->arena = map_memory(b->arena_bytes, PROT_READ | PROT_WRITE);
    CHECK(st_heap_init(b->arena, b->arena_bytes - 1, &cfg, &b->heap) == ST_EINVAL);
    CHECK(st_heap_init(b->arena, b->arena_bytes, &cfg, &b->heap) == ST_OK);
    CHECK(st_heap_init(b->arena, b->arena_bytes, &cfg, &b->heap) == ST_EINVAL); /* in use */
    return b;
}

static void bed_close(struct bed *b)
{
    SOUND(b->heap);
    munmap(b->arena, b->arena_bytes);
    munmap(b->memory, b->memory_bytes);
    free(b);
}

static uint64_t take(struct bed *b, uint64_t bytes)
{
    uint64_t va = 0;
    CHECK(st_heap_alloc(b->heap, bytes, &va) == ST_OK);
    return va;
}

static struct st_heap_stats stats(struct bed *b)
{
    struct st_heap_stats s;
    CHECK(st_heap_stats(b->heap, &s) == ST_OK);
    return s;
}

static uint64_t alignment(uint64_t bytes) { return bytes >= PAGE ? PAGE : bytes >= MIB ? 4096 : 64; }

static uint64_t next(uint64_t *seed) /* xorshift64 */
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static uint64_t some_size(uint64_t *seed)
{
    uint64_t bits = next(seed) % 100;

    if (bits < 4)
        return 0;
    if (bits < 70)
        return next(seed) % 4096;
    if (bits < 85)
        return next(seed) % (PAGE / 8);
    if (bits < 93)
        return MIB + next(seed) % MIB;
    return next(seed) % (5 * PAGE);
}

#endif
