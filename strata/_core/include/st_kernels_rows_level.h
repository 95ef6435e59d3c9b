/* The loops of weighted sums, for one level of the instruction set: a template like st_kernels_level.h, which
 * st_kernels_rows.h has included once for each.
 */
#ifdef ST_L

/* acc[i] = ((acc[i] + by[0] * p[0][i]) + by[1] * p[1][i]) + ..., k from 1 to ST_FAN. */
#define ST_X(name, elem, acc, load)                                                       \
    ST_TARGET ST_INLINE void ST_L(weigh_##name##_of)(acc *a, const void *const *s, const float *w, int k, size_t n) \
    {                                                                                     \
        const elem *p[ST_FAN];                                                            \
        acc by[ST_FAN];                                                                   \
        for (int j = 0; j < k; j++) {                                                     \
            p[j] = (const elem *)s[j];                                                    \
            by[j] = (acc)w[j];                                                            \
        }                                                                                 \
        ST_NO_CARRY                                                                       \
        for (size_t i = 0; i < n; i++) {                                                  \
            acc r = a[i];                                                                 \
            ST_UNROLL                                                                     \
            for (int j = 0; j < k; j++)                                                   \
                r = r + by[j] * load(p[j][i]);                                            \
            a[i] = r;                                                                     \
        }                                                                                 \
    }                                                                                     \
    ST_TARGET static void ST_L(weigh_##name)(void *a, const void *const *s, const float *w, int k, size_t n) \
    {                                                                                     \
        switch (k) {                                                                      \
        case 1: ST_L(weigh_##name##_of)((acc *)a, s, w, 1, n); break;                     \
        case 2: ST_L(weigh_##name##_of)((acc *)a, s, w, 2, n); break;                     \
        case 3: ST_L(weigh_##name##_of)((acc *)a, s, w, 3, n); break;                     \
        case 4: ST_L(weigh_##name##_of)((acc *)a, s, w, 4, n); break;                     \
        case 5: ST_L(weigh_##name##_of)((acc *)a, s, w, 5, n); break;                     \
        case 6: ST_L(weigh_##name##_of)((acc *)a, s, w, 6, n); break;                     \
        case 7: ST_L(weigh_##name##_of)((acc *)a, s, w, 7, n); break;                     \
        default: ST_L(weigh_##name##_of)((acc *)a, s, w, ST_FAN, n);                      \
        }                                                                                 \
    }
ST_X(bf16, st_e_u16, st_e_f32, st_bf16_to_f32)
ST_X(f32, st_e_f32, st_e_f32, ST_SAME)
ST_X(f64, st_e_f64, st_e_f64, ST_SAME)
#undef ST_X

/* Which operand's NaN comes out is the compiler's choice: all become one. */
#define ST_X(name)                                                                        \
    ST_TARGET static void ST_L(canon_##name)(void *out, const void *acc, size_t n)        \
    {                                                                                     \
        st_e_##name *o = (st_e_##name *)out;                                              \
        const st_e_##name *a = (const st_e_##name *)acc;                                  \
        ST_NO_CARRY                                                                       \
        for (size_t i = 0; i < n; i++)                                                    \
            o[i] = st_canon_##name(a[i]);                                                 \
    }
ST_X(f32)
ST_X(f64)
#undef ST_X

ST_TARGET static void ST_L(find_weigher)(int dtype, struct st_weigher *w)
{
    w->widen = dtype == ST_BF16 ? ST_L(widen_bf16) : dtype == ST_F16 ? ST_L(widen_f16) : NULL;
    w->narrow = dtype == ST_BF16 ? ST_L(narrow_bf16) : dtype == ST_F16 ? ST_L(narrow_f16) : NULL;
    w->weigh = dtype == ST_BF16 ? ST_L(weigh_bf16) : dtype == ST_F64 ? ST_L(weigh_f64) : ST_L(weigh_f32);
    w->canon = dtype == ST_F64 ? ST_L(canon_f64) : ST_L(canon_f32);
}

#endif
