/* Reductions of which some operands are partial: accumulators in memory, in place of
 * elements.  So a reduction in several steps rounds as often as one in one step.
 *
 * A mean of 64-bit integers has two accumulators an element, the sums of the low and
 * the high halves, side by side in memory; in a block they lie one after the other. */
#ifndef ST_KERNELS_PARTIAL_H
#define ST_KERNELS_PARTIAL_H

#include "st_kernels.h"

typedef uint64_t st_pair_word __attribute__((aligned(1), may_alias));

/* n operands' accumulators into a block, and back. */
static inline void st_partial_load(const struct st_kernel *k, void *acc, const uint8_t *p, int partial, size_t n)
{
    if (partial && k->lanes == 2) {
        const st_pair_word *pair = (const st_pair_word *)(const void *)p;
        st_pair_word *lo = (st_pair_word *)acc;
        for (size_t i = 0; i < n; i++) {
            lo[i] = pair[2 * i];
            lo[n + i] = pair[2 * i + 1];
        }
    } else if (partial || !k->widen) {
        memcpy(acc, p, n * k->wide);
    } else {
        k->widen(acc, p, n);
    }
}

static inline void st_partial_store(const struct st_kernel *k, uint8_t *p, const void *acc, size_t n)
{
    if (k->lanes == 2) {
        const st_pair_word *lo = (const st_pair_word *)acc;
        st_pair_word *pair = (st_pair_word *)(void *)p;
        for (size_t i = 0; i < n; i++) {
            pair[2 * i] = lo[i];
            pair[2 * i + 1] = lo[n + i];
        }
    } else {
        memcpy(p, acc, n * k->wide);
    }
}

/* Whole elements of a block. */
static inline void st_partial_finish(const struct st_kernel *k, void *out, const void *acc, void *room, size_t n,
                                     int total)
{
    if (k->scale) {
        k->scale(room, acc, n * k->lanes, total);
        acc = room;
    }
    if (k->narrow)
        k->narrow(out, acc, n, total);
    else
        memcpy(out, acc, n * k->size);
}

static inline int st_partial_bit(const uint64_t *bits, int i) { return (int)(bits[i >> 6] >> (i & 63) & 1); }

static void st_drive_partial(const struct st_kernel *k, void *const *dst, int ndst, const uint64_t *dst_partial,
                             const void *const *src, int nsrc, const uint64_t *src_partial, int total,
                             uint64_t count)
{
    uint8_t acc[ST_WIDE_FAN][ST_APART] __attribute__((aligned(64)));
    uint8_t room[ST_STRIPE] __attribute__((aligned(64)));
    uint64_t block = ST_STRIPE / k->wide, done, n;

    for (done = 0; done < count; done += n) {
        const void *s[ST_FAN];
        int used = 0, m = 0;

        n = count - done < block ? count - done : block;
        do {
            for (; m < ST_WIDE_FAN && m < k->fan && used < nsrc; m++, used++) {
                int partial = st_partial_bit(src_partial, used);

                st_partial_load(k, acc[m], (const uint8_t *)src[used] + done * (partial ? k->wide : k->size),
                                partial, n);
                s[m] = acc[m];
            }
            if (m > 1)
                k->fold(acc[0], s, m, n * k->lanes);
            m = 1;
        } while (used < nsrc);
        for (int i = 0; i < ndst; i++) {
            int partial = st_partial_bit(dst_partial, i);
            uint8_t *to = (uint8_t *)dst[i] + done * (partial ? k->wide : k->size);

            if (partial)
                st_partial_store(k, to, acc[0], n);
            else
                st_partial_finish(k, to, acc[0], room, n, total);
        }
    }
}

/* As st_reduce, where the operands whose bits are set are partial: st_partial_bytes()
 * each element.  A mean divides by `total` (0: by nsrc) where a destination is whole. */
static int st_reduce_partial(int dtype, int op, void *const *dst, int ndst, const uint64_t *dst_partial,
                             const void *const *src, int nsrc, const uint64_t *src_partial, int total,
                             uint64_t count)
{
    struct st_choice c;
    struct st_kernel k;
    int rc;

    if (nsrc < 1 || nsrc > ST_MAX_OPERANDS || ndst < 0 || ndst > ST_MAX_OPERANDS || total < 0 ||
        count > (uint64_t)PTRDIFF_MAX / 16)
        return ST_EINVAL;
    rc = st_choose(dtype, op, ST_FAN + 1, &c); /* not the folds that take small floats as they lie */
    if (rc != ST_OK)
        return rc;
    if (c.codec == ST_CODEC_NONE && op != ST_AVG) /* a partial operand is like any other */
        return st_reduce(dtype, op, dst, ndst, src, nsrc, count, 0);
    st_find_kernel(st_kernels_level(), &c, &k);
    st_drive_partial(&k, dst, ndst, dst_partial, src, nsrc, src_partial, total ? total : nsrc, count * c.per);
    return ST_OK;
}

#endif
