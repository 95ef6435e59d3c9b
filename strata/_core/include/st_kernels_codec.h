/* Loops between the operands' type and the accumulators', for one level: part of the
 * template st_kernels_level.h. */
#ifdef ST_L

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

#endif
