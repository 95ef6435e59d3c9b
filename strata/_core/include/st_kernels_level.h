/* The loops of all reductions, for one level of the instruction set.
 *
 * A template: st_kernels_each_level.h includes it once for each level, with
 *   ST_L(name)   the level's name of a function
 *   ST_TARGET    the attribute that lets the compiler use the level's instructions
 *   ST_F16C      1 if the level converts f16 in hardware, 8 by ST_WIDEN_F16
 *   ST_FUSES     1 if the level has fused multiply-adds
 *   ST_NO_CARRY  what tells the compiler that an iteration reads nothing that another
 *                one writes
 * Without them it is empty.  The loops are plain C for the compiler to vectorise.
 * Every element goes through the same IEEE operations in the same order wherever
 * it lies and however wide the vector, so all levels and all partitions give the
 * same bits.
 */
#ifdef ST_L

/* s[0..k-1] -> out, left to right, k from 2 to ST_FAN, each with a loop of its own.
 * out is one of the operands or overlaps none. */
#define ST_X(name, elem, load, op, finish)                                                \
    ST_TARGET ST_INLINE void ST_L(name##_of)(elem *o, const void *const *s, int k, size_t n) \
    {                                                                                     \
        const elem *p[ST_FAN];                                                            \
        for (int j = 0; j < k; j++)                                                       \
            p[j] = (const elem *)s[j];                                                    \
        ST_NO_CARRY                                                                       \
        for (size_t i = 0; i < n; i++) {                                                  \
            __auto_type r = load(p[0][i]);                                                \
            ST_UNROLL                                                                     \
            for (int j = 1; j < k; j++)                                                   \
                r = op(r, load(p[j][i]));                                                 \
            o[i] = finish(r);                                                             \
        }                                                                                 \
    }                                                                                     \
    ST_TARGET static void ST_L(name)(void *out, const void *const *s, int k, size_t n)    \
    {                                                                                     \
        ST_BY_COUNT(ST_L(name##_of), (elem *)out, s, k, n)                                \
    }
ST_FOLDS(ST_X)
#undef ST_X

/* Two operands at a time (ST_COMPLEX_FAN).  Not where the compiler could use fused
 * multiply-adds: gcc's vectoriser makes vfmaddsub of this loop even though
 * -ffp-contract=off forbids it. */
#if !ST_FUSES
#define ST_X(name, elem, finish)                                                          \
    ST_TARGET static void ST_L(name)(void *out, const void *const *s, int k, size_t n)    \
    {                                                                                     \
        elem *o = (elem *)out;                                                            \
        const elem *a = (const elem *)s[0], *b = (const elem *)s[1];                      \
        (void)k;                                                                          \
        ST_NO_CARRY                                                                       \
        for (size_t i = 0; i < n; i++) {                                                  \
            elem ar = a[2 * i], ai = a[2 * i + 1], br = b[2 * i], bi = b[2 * i + 1];      \
            o[2 * i] = finish(ar * br - ai * bi);                                         \
            o[2 * i + 1] = finish(ar * bi + ai * br);                                     \
        }                                                                                 \
    }
ST_COMPLEX_FOLDS(ST_X)
#undef ST_X
#endif

#include "st_kernels_codec.h"
#include "st_kernels_f16.h"

/* NULL if the next lower level has the fold. */
ST_TARGET static st_fold_fn *ST_L(find_fold)(int id)
{
    switch (id) {
#define ST_X(name, ...)                                                                   \
    case ST_FOLD_##name:                                                                  \
        return ST_L(name);
        ST_FOLDS(ST_X)
#undef ST_X
#define ST_X(name, ...)                                                                   \
    case ST_FOLD_f16_##name:                                                              \
        return ST_L(f16_##name);
        ST_F16_FOLDS(ST_X)
#undef ST_X
#define ST_X(name, ...)                                                                   \
    case ST_FOLD_##name:                                                                  \
        return ST_L(name);
#if !ST_FUSES
        ST_COMPLEX_FOLDS(ST_X)
#endif
#undef ST_X
    default:
        return NULL;
    }
}

ST_TARGET static void ST_L(find_codec)(int id, struct st_kernel *k)
{
    switch (id) {
#define ST_X(name, ...)                                                                   \
    case ST_CODEC_##name:                                                                 \
        k->widen = ST_L(widen_##name);                                                    \
        k->narrow = ST_L(narrow_##name);                                                  \
        break;
        ST_CODECS(ST_X)
#undef ST_X
    default:
        k->widen = NULL;
        k->narrow = NULL;
    }
}

ST_TARGET static st_narrow_fn *ST_L(find_scale)(int id)
{
    return id == ST_SCALE_F32 ? ST_L(scale_f32) : id == ST_SCALE_F64 ? ST_L(scale_f64) : NULL;
}

#endif
