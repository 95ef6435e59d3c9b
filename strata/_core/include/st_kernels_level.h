/* The loops of all reductions, for one level of the instruction set.
 *
 * A template: st_kernels.h includes it once for each level, with
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

/* s[0..k-1] -> out, left to right, k from 2 to ST_FAN.  out is one of the operands or
 * overlaps none. */
#define ST_X(name, elem, load, op, finish)                                                \
    ST_TARGET static void ST_L(name)(void *out, const void *const *s, int k, size_t n)    \
    {                                                                                     \
        elem *o = (elem *)out;                                                            \
        const elem *a = (const elem *)s[0], *b = (const elem *)s[1];                      \
        const elem *c = (const elem *)(k > 2 ? s[2] : s[0]);                              \
        const elem *d = (const elem *)(k > 3 ? s[3] : s[0]);                              \
        const elem *e = (const elem *)(k > 4 ? s[4] : s[0]);                              \
        switch (k) {                                                                      \
        case 2:                                                                           \
            ST_NO_CARRY                                                                   \
            for (size_t i = 0; i < n; i++)                                                \
                o[i] = finish(op(load(a[i]), load(b[i])));                                \
            break;                                                                        \
        case 3:                                                                           \
            ST_NO_CARRY                                                                   \
            for (size_t i = 0; i < n; i++)                                                \
                o[i] = finish(op(op(load(a[i]), load(b[i])), load(c[i])));                \
            break;                                                                        \
        case 4:                                                                           \
            ST_NO_CARRY                                                                   \
            for (size_t i = 0; i < n; i++)                                                \
                o[i] = finish(op(op(op(load(a[i]), load(b[i])), load(c[i])), load(d[i]))); \
            break;                                                                        \
        default:                                                                          \
            ST_NO_CARRY                                                                   \
            for (size_t i = 0; i < n; i++)                                                \
                o[i] = finish(op(                                                         \
                    op(op(op(load(a[i]), load(b[i])), load(c[i])), load(d[i])), load(e[i]))); \
        }                                                                                 \
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

#define ST_X(name, elem, widen, narrow)                                                   \
    ST_TARGET static void ST_L(widen_##name)(void *wide, const void *src, size_t n)       \
    {                                                                                     \
        st_e_f32 *o = (st_e_f32 *)wide;                                                   \
        const elem *a = (const elem *)src;                                                \
        ST_NO_CARRY                                                                       \
        for (size_t i = 0; i < n; i++)                                                    \
            o[i] = widen(a[i]);                                                           \
    }                                                                                     \
    ST_TARGET static void ST_L(narrow_##name)(void *out, const void *wide, size_t n,      \
                                              int nsrc)                                   \
    {                                                                                     \
        elem *o = (elem *)out;                                                            \
        const st_e_f32 *a = (const st_e_f32 *)wide;                                       \
        (void)nsrc;                                                                       \
        ST_NO_CARRY                                                                       \
        for (size_t i = 0; i < n; i++)                                                    \
            o[i] = narrow(a[i]);                                                          \
    }
ST_SMALL_FLOATS(ST_X)
#undef ST_X

ST_TARGET static void ST_L(widen_f16)(void *wide, const void *src, size_t n)
{
    st_e_f32 *o = (st_e_f32 *)wide;
    const st_e_u16 *a = (const st_e_u16 *)src;
    size_t i = 0;
#if ST_F16C
    for (; i + 8 <= n; i += 8)
        *(st_v8f32 *)(void *)(o + i) = ST_WIDEN_F16(*(const st_v8i16 *)(const void *)(a + i));
#endif
    ST_NO_CARRY
    for (; i < n; i++)
        o[i] = st_f16_to_f32(a[i]);
}

ST_TARGET static void ST_L(narrow_f16)(void *out, const void *wide, size_t n, int nsrc)
{
    st_e_u16 *o = (st_e_u16 *)out;
    const st_e_f32 *a = (const st_e_f32 *)wide;
    size_t i = 0;
    (void)nsrc;
#if ST_F16C
    for (; i + 8 <= n; i += 8)
        *(st_v8i16 *)(void *)(o + i) = __builtin_ia32_vcvtps2ph256(
            *(const st_v8f32 *)(const void *)(a + i), 0 /* to nearest even */);
#endif
    ST_NO_CARRY
    for (; i < n; i++)
        o[i] = st_f32_to_f16(a[i]);
}

/* Divides a sum by the number of operands.  A power of two has an exact
 * reciprocal, and multiplying by it rounds alike, sooner. */
#define ST_X(type)                                                                        \
    ST_TARGET static void ST_L(scale_##type)(void *out, const void *sum, size_t n, int nsrc) \
    {                                                                                     \
        st_e_##type *o = (st_e_##type *)out;                                              \
        const st_e_##type *a = (const st_e_##type *)sum;                                  \
        st_e_##type by = (st_e_##type)nsrc, inverse = 1 / by;                             \
        if ((nsrc & (nsrc - 1)) == 0) {                                                   \
            ST_NO_CARRY                                                                   \
            for (size_t i = 0; i < n; i++)                                                \
                o[i] = a[i] * inverse;                                                    \
            return;                                                                       \
        }                                                                                 \
        ST_NO_CARRY                                                                       \
        for (size_t i = 0; i < n; i++)                                                    \
            o[i] = a[i] / by;                                                             \
    }
ST_X(f32)
ST_X(f64)
#undef ST_X

#define ST_X(name, elem)                                                                  \
    ST_TARGET static void ST_L(widen_##name)(void *wide, const void *src, size_t n)       \
    {                                                                                     \
        st_e_i64 *o = (st_e_i64 *)wide;                                                   \
        const elem *a = (const elem *)src;                                                \
        ST_NO_CARRY                                                                       \
        for (size_t i = 0; i < n; i++)                                                    \
            o[i] = (int64_t)a[i];                                                         \
    }                                                                                     \
    ST_TARGET static void ST_L(narrow_##name)(void *out, const void *wide, size_t n,      \
                                              int nsrc)                                   \
    {                                                                                     \
        elem *o = (elem *)out;                                                            \
        const st_e_i64 *a = (const st_e_i64 *)wide;                                       \
        ST_NO_CARRY                                                                       \
        for (size_t i = 0; i < n; i++)                                                    \
            o[i] = (elem)st_floor_quotient(a[i], nsrc);                                   \
    }
ST_MEAN_INTS(ST_X)
#undef ST_X

/* 64-bit integers: all low halves of a block, then all high halves. */
#define ST_X(name, elem)                                                                  \
    ST_TARGET static void ST_L(widen_##name)(void *wide, const void *src, size_t n)       \
    {                                                                                     \
        st_e_i64 *lo = (st_e_i64 *)wide, *hi = lo + n;                                    \
        const elem *a = (const elem *)src;                                                \
        ST_NO_CARRY                                                                       \
        for (size_t i = 0; i < n; i++) {                                                  \
            lo[i] = (int64_t)((uint64_t)a[i] & 0xffffffffu);                              \
            hi[i] = (int64_t)(a[i] >> 32);                                                \
        }                                                                                 \
    }                                                                                     \
    ST_TARGET static void ST_L(narrow_##name)(void *out, const void *wide, size_t n,      \
                                              int nsrc)                                   \
    {                                                                                     \
        elem *o = (elem *)out;                                                            \
        const st_e_i64 *lo = (const st_e_i64 *)wide, *hi = lo + n;                        \
        ST_NO_CARRY                                                                       \
        for (size_t i = 0; i < n; i++)                                                    \
            o[i] = (elem)st_mean_of_halves(hi[i], lo[i], nsrc);                           \
    }
ST_MEAN_INTS64(ST_X)
#undef ST_X

/* NULL if the next lower level has the fold. */
ST_TARGET static st_fold_fn *ST_L(find_fold)(int id)
{
    switch (id) {
#define ST_X(name, ...)                                                                   \
    case ST_FOLD_##name:                                                                  \
        return ST_L(name);
        ST_FOLDS(ST_X)
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
