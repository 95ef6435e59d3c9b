/* Reductions over many operands: every operand is read once, every result is
 * written once to each destination.
 *
 * Results are computed block by block in the first-level cache.  Operands are
 * folded strictly in the order given; f16, bf16 and f8 are accumulated in f32
 * and rounded once; integers wrap, and their mean is the floor of the exact
 * mean.  The bits of a result depend on its operands alone, never on how the
 * elements are split among calls, on alignment, or on the processor.
 *
 *   min, max  a NaN in any operand makes a NaN; of -0 and +0 the earlier operand's
 *   NaN       every NaN result is the positive quiet one, except that e4m3fn's overflow
 *             keeps the sign of what overflowed; a single operand is copied as it is
 *   bool      any byte but 0 is true and becomes 1; sum, max, bor: or; prod, min,
 *             band: and; bxor: xor
 *   complex   sum, prod ((ac-bd) + (ad+bc)i, four products) and avg
 *
 * The instruction set is found at run time.  Define ST_KERNELS_PORTABLE to leave
 * out all but the portable loops (sanitizer builds, which would take long).
 */
#ifndef ST_KERNELS_H
#define ST_KERNELS_H

#include "st_copy.h"
#include "st_kernels_api.h"
#include "st_kernels_plan.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(ST_KERNELS_PORTABLE)
#define ST_X86_LEVELS 1
typedef float st_v8f32 __attribute__((vector_size(32), aligned(1), may_alias));
typedef int st_v8i32 __attribute__((vector_size(32)));
typedef short st_v8i16 __attribute__((vector_size(16), aligned(1), may_alias));
#if defined(__clang__)
typedef __fp16 st_v8f16 __attribute__((vector_size(16)));
#define ST_WIDEN_F16(v) __builtin_convertvector((st_v8f16)(v), st_v8f32)
#else
#define ST_WIDEN_F16(v) __builtin_ia32_vcvtph2ps256(v)
#endif
#else
#define ST_X86_LEVELS 0
#endif

#if defined(__clang__)
#define ST_NO_CARRY _Pragma("clang loop vectorize(assume_safety)")
#define ST_WIDE_VECTORS
#elif defined(__GNUC__)
#define ST_NO_CARRY _Pragma("GCC ivdep")
#define ST_WIDE_VECTORS ",prefer-vector-width=512"
#else
#define ST_NO_CARRY
#endif

#define ST_INLINE static inline __attribute__((always_inline))
#define ST_UNROLL _Pragma("GCC unroll 8")
#define ST_BY_COUNT(f, out, s, k, n)                                                      \
    switch (k) {                                                                          \
    case 2: f(out, s, 2, n); break;                                                       \
    case 3: f(out, s, 3, n); break;                                                       \
    case 4: f(out, s, 4, n); break;                                                       \
    case 5: f(out, s, 5, n); break;                                                       \
    case 6: f(out, s, 6, n); break;                                                       \
    case 7: f(out, s, 7, n); break;                                                       \
    default: f(out, s, ST_FAN, n);                                                        \
    }

enum st_level { ST_LEVEL_PORTABLE, ST_LEVEL_AVX2, ST_LEVEL_AVX512, ST_NLEVELS };

/* The loops of each level. */
#define ST_LEVELS "st_kernels_level.h"
#include "st_kernels_each_level.h"

/* The best level of this processor. */
static inline int st_kernels_level(void)
{
#if ST_X86_LEVELS
    /* Compilers that cannot ask for f16c: fma came with the same processors. */
#if (defined(__clang__) && __clang_major__ >= 18) || (!defined(__clang__) && __GNUC__ >= 11)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("f16c"))
#else
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
#endif
        return ST_LEVEL_PORTABLE;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512vl"))
        return ST_LEVEL_AVX512;
    return ST_LEVEL_AVX2;
#else
    return ST_LEVEL_PORTABLE;
#endif
}

static inline void st_find_kernel(int level, const struct st_choice *c, struct st_kernel *k)
{
    k->size = c->size;
    k->lanes = c->lanes;
    k->wide = c->wide;
    k->fan = c->fan;
#if ST_X86_LEVELS
    if (level == ST_LEVEL_AVX512) {
        k->fold = st_avx512_find_fold(c->fold);
        if (!k->fold)
            k->fold = st_avx2_find_fold(c->fold);
        k->scale = st_avx512_find_scale(c->scale);
        st_avx512_find_codec(c->codec, k);
        return;
    }
    if (level == ST_LEVEL_AVX2) {
        k->fold = st_avx2_find_fold(c->fold);
        k->scale = st_avx2_find_scale(c->scale);
        st_avx2_find_codec(c->codec, k);
        return;
    }
#endif
    (void)level;
    k->fold = st_portable_find_fold(c->fold);
    k->scale = st_portable_find_scale(c->scale);
    st_portable_find_codec(c->codec, k);
}

#include "st_kernels_drive.h"

/* st_reduce with the loops of one level; ST_EINVAL if the processor has it not. */
static int st_reduce_at(int level, int dtype, int op, void *const *dst, int ndst,
                        const void *const *src, int nsrc, uint64_t count, int nt)
{
    struct st_choice c;
    struct st_kernel k;
    int rc = st_choose(dtype, op, nsrc, &c);
    if (rc != ST_OK)
        return rc;
    if (nsrc < 1 || nsrc > ST_MAX_OPERANDS || ndst < 0 || ndst > ST_MAX_OPERANDS || level < 0
        || level > st_kernels_level() || count > (uint64_t)PTRDIFF_MAX / 16)
        return ST_EINVAL;
    if (!count || !ndst)
        return ST_OK;
    if (!dst || !src)
        return ST_EINVAL;
    for (int i = 0; i < nsrc; i++)
        if (!src[i])
            return ST_EINVAL;
    for (int i = 0; i < ndst; i++)
        if (!dst[i])
            return ST_EINVAL;
    st_find_kernel(level, &c, &k);
    count *= c.per;
    if (nsrc == 1 && dtype != ST_BOOL) {
        for (int i = 0; i < ndst; i++)
            st_copy(dst[i], src[0], count * c.size, nt);
    } else if (nsrc == 1) {
        const void *const twice[2] = {src[0], src[0]};
        st_drive(&k, dst, ndst, twice, 2, count, nt);
    } else {
        st_drive(&k, dst, ndst, src, nsrc, count, nt);
    }
    return ST_OK;
}

/* For every element i: dst[0..ndst-1][i] = src[0][i] op src[1][i] op ... src[nsrc-1][i].
 *
 * dtype, op   enum st_dtype, enum st_op
 * dst, ndst   0 to 1024 destinations; each equal to an operand or overlapping none,
 *             and equal to another destination or overlapping none
 * src, nsrc   1 to 1024 operands, at any addresses
 * count       elements (not bytes)
 * nt          nonzero: write past the cache; a later release store publishes the
 *             results all the same
 *
 * ST_OK; ST_EUNSUPPORTED if op does not go with dtype; ST_EINVAL. */
static int st_reduce(int dtype, int op, void *const *dst, int ndst, const void *const *src,
                     int nsrc, uint64_t count, int nt)
{
    return st_reduce_at(st_kernels_level(), dtype, op, dst, ndst, src, nsrc, count, nt);
}

#endif
