/* Runs a kernel over whole operands, block by block. */
#ifndef ST_KERNELS_DRIVE_H
#define ST_KERNELS_DRIVE_H

#include "st_copy.h"
#include "st_kernels_plan.h"

enum {
    ST_MAX_OPERANDS = 1024,
    ST_BLOCK = 8192,  /* bytes of accumulators, when operands are folded as they lie */
    ST_STRIPE = 4096, /* bytes of each of ST_FAN accumulators, when they are widened */
    ST_APART = ST_STRIPE + 320, /* between them: addresses equal modulo 4096 delay each other */
};

/* One block of n elements, `at` bytes into the operands, folded into out; acc has
 * room for the block and may be out. */
static inline void st_fold_block(const struct st_kernel *k, void *out, void *acc,
                                 const void *const *src, int nsrc, uint64_t at, size_t n)
{
    const void *s[ST_FAN];
    int used = 0, m = 0;
    do {
        while (m < k->fan && used < nsrc)
            s[m++] = (const uint8_t *)src[used++] + at;
        k->fold(used == nsrc && !k->scale ? out : acc, s, m, n);
        s[0] = acc;
        m = 1;
    } while (used < nsrc);
    if (k->scale)
        k->scale(out, acc, n, nsrc);
}

/* The same through accumulators of another type than the operands'. */
static inline void st_widen_block(const struct st_kernel *k, void *out,
                                  uint8_t (*acc)[ST_APART], const void *const *src, int nsrc,
                                  uint64_t at, size_t n)
{
    const void *s[ST_FAN];
    int used = 0, m = 0;
    do {
        for (; m < k->fan && used < nsrc; m++) {
            k->widen(acc[m], (const uint8_t *)src[used++] + at, n);
            s[m] = acc[m];
        }
        k->fold(acc[0], s, m, n * k->lanes);
        m = 1;
    } while (used < nsrc);
    if (k->scale)
        k->scale(acc[0], acc[0], n * k->lanes, nsrc);
    k->narrow(out, acc[0], n, nsrc);
}

/* Elements of the first block: with nt, as many as bring p to a cache line. */
static inline uint64_t st_first_block(const void *p, uint32_t size, uint64_t block, int nt)
{
    uint64_t head = (0u - (uintptr_t)p) & (ST_LINE - 1u);
    return nt && head && head % size == 0 ? head / size : block;
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
    uint64_t block = ST_BLOCK / k->size, done = 0;
    uint64_t n = st_first_block(dst[0], k->size, block, nt);
    if (!nt && ndst == 1 && nsrc <= k->fan && !k->scale) {
        k->fold(dst[0], src, nsrc, (size_t)count);
        return;
    }
    for (; done < count; done += n, n = block) {
        uint64_t at = done * k->size;
        void *out = nt ? (void *)acc : (uint8_t *)dst[0] + at;
        n = n < count - done ? n : count - done;
        st_fold_block(k, out, acc, src, nsrc, at, (size_t)n);
        st_store_block(dst, !nt, ndst, out, at, n * k->size, nt);
    }
}

static void st_drive_widened(const struct st_kernel *k, void *const *dst, int ndst,
                             const void *const *src, int nsrc, uint64_t count, int nt)
{
    uint8_t acc[ST_FAN][ST_APART] __attribute__((aligned(64)));
    uint8_t result[ST_STRIPE] __attribute__((aligned(64)));
    uint64_t block = ST_STRIPE / k->wide, done = 0;
    uint64_t n = st_first_block(dst[0], k->size, block, nt);
    for (; done < count; done += n, n = block) {
        uint64_t at = done * k->size;
        void *out = nt ? (void *)result : (uint8_t *)dst[0] + at;
        n = n < count - done ? n : count - done;
        st_widen_block(k, out, acc, src, nsrc, at, (size_t)n);
        st_store_block(dst, !nt, ndst, out, at, n * k->size, nt);
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
