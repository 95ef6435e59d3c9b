/* The loops of f16, for one level: part of the template st_kernels_level.h.
 * Compilers do not find out by themselves that a processor converts f16, so there
 * the vectors are spelled out, and the portable loops do what is left over.
 */
#ifdef ST_L
#if ST_F16C

#define ST_CHOOSE(mask, a, b) ((st_v8f32)(((mask) & (st_v8i32)(a)) | (~(mask) & (st_v8i32)(b))))
ST_TARGET ST_INLINE st_v8f32 ST_L(v_add)(st_v8f32 a, st_v8f32 b) { return a + b; }
ST_TARGET ST_INLINE st_v8f32 ST_L(v_mul)(st_v8f32 a, st_v8f32 b) { return a * b; }
ST_TARGET ST_INLINE st_v8f32 ST_L(v_min)(st_v8f32 a, st_v8f32 b)
{
    return ST_CHOOSE((b < a) | (b != b), b, a);
}
ST_TARGET ST_INLINE st_v8f32 ST_L(v_max)(st_v8f32 a, st_v8f32 b)
{
    return ST_CHOOSE((b > a) | (b != b), b, a);
}
ST_TARGET ST_INLINE st_v8f32 ST_L(v_canon)(st_v8f32 r)
{
    const st_v8f32 zero = {0};
    return ST_CHOOSE(r == r, r, (st_v8i32)zero + (int)ST_F32_NAN);
}
ST_TARGET ST_INLINE st_v8f32 ST_L(v_load)(const st_e_u16 *a)
{
    return ST_WIDEN_F16(*(const st_v8i16 *)(const void *)a);
}
ST_TARGET ST_INLINE void ST_L(v_store)(st_e_u16 *o, st_v8f32 r)
{
    *(st_v8i16 *)(void *)o = __builtin_ia32_vcvtps2ph256(r, 0 /* to nearest even */);
}

#define ST_X(name, op)                                                                    \
    ST_TARGET ST_INLINE void ST_L(f16_##name##_of)(st_e_u16 *o, const void *const *s, int k, \
                                                   size_t n)                              \
    {                                                                                     \
        const st_e_u16 *p[ST_FAN];                                                        \
        size_t i = 0;                                                                     \
        for (int j = 0; j < k; j++)                                                       \
            p[j] = (const st_e_u16 *)s[j];                                                \
        for (; i + 8 <= n; i += 8) {                                                      \
            st_v8f32 r = ST_L(v_load)(p[0] + i);                                          \
            ST_UNROLL                                                                     \
            for (int j = 1; j < k; j++)                                                   \
                r = ST_L(v_##op)(r, ST_L(v_load)(p[j] + i));                              \
            ST_L(v_store)(o + i, ST_L(v_canon)(r));                                       \
        }                                                                                 \
    }                                                                                     \
    ST_TARGET static void ST_L(f16_##name)(void *out, const void *const *s, int k, size_t n) \
    {                                                                                     \
        size_t done = n & ~(size_t)7;                                                     \
        if (done)                                                                         \
            ST_BY_COUNT(ST_L(f16_##name##_of), (st_e_u16 *)out, s, k, done)               \
        if (done < n) {                                                                   \
            const void *rest[ST_FAN];                                                     \
            for (int j = 0; j < k; j++)                                                   \
                rest[j] = (const st_e_u16 *)s[j] + done;                                  \
            st_portable_f16_##name((st_e_u16 *)out + done, rest, k, n - done);            \
        }                                                                                 \
    }
ST_F16_FOLDS(ST_X)
#undef ST_X
#undef ST_CHOOSE

ST_TARGET static void ST_L(widen_f16)(void *wide, const void *src, size_t n)
{
    st_e_f32 *o = (st_e_f32 *)wide;
    const st_e_u16 *a = (const st_e_u16 *)src;
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        *(st_v8f32 *)(void *)(o + i) = ST_L(v_load)(a + i);
    st_portable_widen_f16(o + i, a + i, n - i);
}

ST_TARGET static void ST_L(narrow_f16)(void *out, const void *wide, size_t n, int nsrc)
{
    st_e_u16 *o = (st_e_u16 *)out;
    const st_e_f32 *a = (const st_e_f32 *)wide;
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        ST_L(v_store)(o + i, *(const st_v8f32 *)(const void *)(a + i));
    st_portable_narrow_f16(o + i, a + i, n - i, nsrc);
}

#else

#define ST_X(name, op)                                                                    \
    ST_TARGET ST_INLINE void ST_L(f16_##name##_of)(st_e_u16 *o, const void *const *s, int k, \
                                                   size_t n)                              \
    {                                                                                     \
        const st_e_u16 *p[ST_FAN];                                                        \
        for (int j = 0; j < k; j++)                                                       \
            p[j] = (const st_e_u16 *)s[j];                                                \
        ST_NO_CARRY                                                                       \
        for (size_t i = 0; i < n; i++) {                                                  \
            float r = st_f16_to_f32(p[0][i]);                                             \
            ST_UNROLL                                                                     \
            for (int j = 1; j < k; j++)                                                   \
                r = st_##op##_f32(r, st_f16_to_f32(p[j][i]));                             \
            o[i] = st_f32_to_f16(st_canon_f32(r));                                        \
        }                                                                                 \
    }                                                                                     \
    ST_TARGET static void ST_L(f16_##name)(void *out, const void *const *s, int k, size_t n) \
    {                                                                                     \
        ST_BY_COUNT(ST_L(f16_##name##_of), (st_e_u16 *)out, s, k, n)                      \
    }
ST_F16_FOLDS(ST_X)
#undef ST_X

ST_TARGET static void ST_L(widen_f16)(void *wide, const void *src, size_t n)
{
    st_e_f32 *o = (st_e_f32 *)wide;
    const st_e_u16 *a = (const st_e_u16 *)src;
    ST_NO_CARRY
    for (size_t i = 0; i < n; i++)
        o[i] = st_f16_to_f32(a[i]);
}

ST_TARGET static void ST_L(narrow_f16)(void *out, const void *wide, size_t n, int nsrc)
{
    st_e_u16 *o = (st_e_u16 *)out;
    const st_e_f32 *a = (const st_e_f32 *)wide;
    (void)nsrc;
    ST_NO_CARRY
    for (size_t i = 0; i < n; i++)
        o[i] = st_f32_to_f16(a[i]);
}

#endif
#endif
