/* Runs a kernel over whole operands, block by block. */
#ifndef ST_KERNELS_DRIVE_H
#define ST_KERNELS_DRIVE_H

#include "st_copy.h"
#include "st_kernels_plan.h"

enum {
    ST_MAX_OPERANDS = 1024,
    ST_BLOCK = 8192,  /* bytes of results, when operands are folded as they lie */
    ST_AHEAD = 512,   /* the same with nt: the next block is fetched while one is folded */
    ST_STRIPE = 4096, /* bytes of each of ST_WIDE_FAN accumulators, when they are widened */
    ST_APART = ST_STRIPE + 320, /* between them: addresses equal modulo 4096 delay each other */
};

/* A block of n elements, `at` bytes into the operands; the next one has `ahead`
 * bytes that are to be fetched, if any. */
struct st_block {
    uint64_t at, ahead;
    size_t n;
};

/* Operand i from the block on.  Processors fetch ahead by themselves, but a block is
 * short and each operand another stream: with large operands it helps to say
 * what comes next, and with operands in the cache it costs. */
static inline const uint8_t *st_operand(const void *const *src, int i, const struct st_block *b,
                                        uint32_t size)
{
    const uint8_t *p = (const uint8_t *)src[i] + b->at, *next = p + b->n * size;
    for (uint64_t line = 0; line < b->ahead; line += ST_LINE)
        __builtin_prefetch(next + line);
    return p;
}

/* One block folded into out; acc has room for it and may be out. */
static inline void st_fold_block(const struct st_kernel *k, void *out, void *acc,
                                 const void *const *src, int nsrc, const struct st_block *b)
{
    const void *s[ST_FAN];
    int used = 0, m = 0;
    do {
        while (m < k->fan && used < nsrc)
            s[m++] = st_operand(src, used++, b, k->size);
        k->fold(used == nsrc && !k->scale ? out : acc, s, m, b->n);
        s[0] = acc;
        m = 1;
    } while (used < nsrc);
    if (k->scale)
        k->scale(out, acc, b->n, nsrc);
}

/* The same through accumulators of another type than the operands'. */
static inline void st_widen_block(const struct st_kernel *k, void *out,
                                  uint8_t (*acc)[ST_APART], const void *const *src, int nsrc,
                                  const struct st_block *b)
{
    const void *s[ST_FAN];
    int used = 0, m = 0;
    do {
        for (; m < k->fan && used < nsrc; m++) {
            k->widen(acc[m], st_operand(src, used++, b, k->size), b->n);
            s[m] = acc[m];
        }
        k->fold(acc[0], s, m, b->n * k->lanes);
        m = 1;
    } while (used < nsrc);
    if (k->scale)
        k->scale(acc[0], acc[0], b->n * k->lanes, nsrc);
    k->narrow(out, acc[0], b->n, nsrc);
}

/* Elements of the first block: with nt, as many as bring p to a cache line. */
static inline uint64_t st_first_block(const void *p, uint32_t size, uint64_t block, int nt)
{
    uint64_t head = (0u - (uintptr_t)p) & (ST_LINE - 1u);
    return nt && head && head % size == 0 ? head / size : block;
}

/* The block from element `done` on, n elements at most and `block` in the next. */
static inline struct st_block st_block_at(uint64_t done, uint64_t n, uint64_t block, uint64_t count,
                                          uint32_t size, int nt)
{
    uint64_t left = count - done, next;
    n = n < left ? n : left;
    next = left - n < block ? left - n : block;
    return (struct st_block){.at = done * size, .ahead = nt ? next * size : 0, .n = (size_t)n};
}

static inline void st_store_block(void *const *dst, int from, int ndst, const void *result,
                                  uint64_t at, uint64_t bytes, int nt)
{
    for (int i = from; i < ndst; i++) {
        uint8_t *d = (uint8_t *)dst[i] + at;
        if (nt)
            st_stream(d, result, bytes);
        else if (d != result)
            memcpy(d, result, (size_t)bytes);
    }
}

static void st_drive_folds(const struct st_kernel *k, void *const *dst, int ndst,
                           const void *const *src, int nsrc, uint64_t count, int nt)
{
    uint8_t acc[ST_BLOCK] __attribute__((aligned(64)));
    uint64_t block = (nt ? ST_AHEAD : ST_BLOCK) / k->size, done = 0;
    uint64_t n = st_first_block(dst[0], k->size, block, nt);
    if (!nt && ndst == 1 && nsrc <= k->fan && !k->scale) {
        k->fold(dst[0], src, nsrc, (size_t)count);
        return;
    }
    for (; done < count; n = block) {
        struct st_block b = st_block_at(done, n, block, count, k->size, nt);
        void *out = nt ? (void *)acc : (uint8_t *)dst[0] + b.at;
        st_fold_block(k, out, acc, src, nsrc, &b);
        st_store_block(dst, !nt, ndst, out, b.at, b.n * k->size, nt);
        done += b.n;
    }
}

static void st_drive_widened(const struct st_kernel *k, void *const *dst, int ndst,
                             const void *const *src, int nsrc, uint64_t count, int nt)
{
    uint8_t acc[ST_WIDE_FAN][ST_APART] __attribute__((aligned(64)));
    uint8_t result[ST_STRIPE] __attribute__((aligned(64)));
    uint64_t block = ST_STRIPE / k->wide, done = 0;
    uint64_t n = st_first_block(dst[0], k->size, block, nt);
    for (; done < count; n = block) {
        struct st_block b = st_block_at(done, n, block, count, k->size, nt);
        void *out = nt ? (void *)result : (uint8_t *)dst[0] + b.at;
        st_widen_block(k, out, acc, src, nsrc, &b);
        st_store_block(dst, !nt, ndst, out, b.at, b.n * k->size, nt);
        done += b.n;
    }
}

/* Two operands or more, one destination or more, one element or more. */
static void st_drive(const struct st_kernel *k, void *const *dst, int ndst,
                     const void *const *src, int nsrc, uint64_t count, int nt)
{
    if (k->widen)
        st_drive_widened(k, dst, ndst, src, nsrc, count, nt);
    else
        st_drive_folds(k, dst, ndst, src, nsrc, count, nt);
    if (nt)
        st_stream_fence();
}

#endif
