/* Weighted sums of rows: dst = bias[0] + bias[1] + weights[0] * src[0] + weights[1] * src[1] + ..., left to right.
 *
 * f16, bf16 and f32 are accumulated in f32, f64 in f64: one rounding for each product and each sum, one to dst's type at
 * the end.  A sum of nothing is zero.  Every NaN result is the positive quiet one.  As with st_reduce, the bits depend on
 * the operands alone.
 */
#ifndef ST_KERNELS_ROWS_H
#define ST_KERNELS_ROWS_H

#include "st_kernels.h"

enum { ST_WEIGH_BLOCK = 4096, ST_WEIGH_FAN = 4 }; /* bytes of accumulators; rows that are widened at a time */

struct st_weigher {
    st_widen_fn *widen; /* NULL: accumulators have dst's type */
    st_narrow_fn *narrow;
    void (*weigh)(void *acc, const void *const *s, const float *w, int k, size_t n);
    void (*canon)(void *out, const void *acc, size_t n);
};

#define ST_LEVELS "st_kernels_rows_level.h"
#include "st_kernels_each_level.h"

static inline void st_find_weigher(int level, int dtype, struct st_weigher *w)
{
#if ST_X86_LEVELS
    if (level == ST_LEVEL_AVX512) {
        st_avx512_find_weigher(dtype, w);
        return;
    }
    if (level == ST_LEVEL_AVX2) {
        st_avx2_find_weigher(dtype, w);
        return;
    }
#endif
    (void)level;
    st_portable_find_weigher(dtype, w);
}

/* Adds k rows to a block of accumulators. */
static inline void st_weigh_rows(const struct st_weigher *f, int dtype, void *acc, const void *const *src, const float *w,
                                 int k, uint64_t at, size_t n)
{
    float wide[ST_WEIGH_FAN][ST_WEIGH_BLOCK / 4] __attribute__((aligned(64)));
    const float ones[ST_FAN] = {1, 1, 1, 1, 1, 1, 1, 1};
    const void *s[ST_FAN];
    int done, m, fan = dtype == ST_F16 ? ST_WEIGH_FAN : ST_FAN;

    for (done = 0; done < k; done += m) {
        for (m = 0; m < fan && done + m < k; m++) {
            s[m] = (const uint8_t *)src[done + m] + at;
            if (dtype == ST_F16) {
                f->widen(wide[m], s[m], n);
                s[m] = wide[m];
            }
        }
        f->weigh(acc, s, w ? w + done : ones, m, n);
    }
}

/* st_weigh with the loops of one level; ST_EINVAL if the processor has it not. */
static int st_weigh_at(int level, int dtype, void *dst, const void *const *src, const float *weights, int nsrc,
                       const void *const bias[2], uint64_t count)
{
    uint8_t acc[ST_WEIGH_BLOCK] __attribute__((aligned(64)));
    uint64_t size = (uint64_t)st_dtype_size(dtype), block = ST_WEIGH_BLOCK / (dtype == ST_F64 ? 8 : 4), done, n;
    const void *first = bias[0] ? bias[0] : bias[1], *second = bias[0] ? bias[1] : NULL;
    struct st_weigher f;

    if (dtype != ST_F16 && dtype != ST_BF16 && dtype != ST_F32 && dtype != ST_F64)
        return ST_EUNSUPPORTED;
    if (level < 0 || level > st_kernels_level() || nsrc < 0)
        return ST_EINVAL;
    st_find_weigher(level, dtype, &f);
    for (done = 0; done < count; done += n) {
        uint8_t *out = (uint8_t *)dst + done * size;

        n = count - done < block ? count - done : block;
        if (!first)
            memset(acc, 0, sizeof acc);
        else if (f.widen)
            f.widen(acc, (const uint8_t *)first + done * size, (size_t)n);
        else
            memcpy(acc, (const uint8_t *)first + done * size, n * size);
        if (second)
            st_weigh_rows(&f, dtype, acc, &second, NULL, 1, done * size, (size_t)n);
        st_weigh_rows(&f, dtype, acc, src, weights, nsrc, done * size, (size_t)n);
        f.canon(f.narrow ? acc : out, acc, (size_t)n);
        if (f.narrow)
            f.narrow(out, acc, (size_t)n, 1);
    }
    return ST_OK;
}

/* dtype    f16, bf16, f32 or f64 of dst, src and bias; ST_EUNSUPPORTED: another one
 * weights  [nsrc], NULL: each is 1
 * bias     either may be NULL
 * count    elements; dst overlaps nothing; addresses need no alignment */
static int st_weigh(int dtype, void *dst, const void *const *src, const float *weights, int nsrc,
                    const void *const bias[2], uint64_t count)
{
    return st_weigh_at(st_kernels_level(), dtype, dst, src, weights, nsrc, bias, count);
}

#endif
