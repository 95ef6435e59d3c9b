/* The loops of casts with scales, for one level of the instruction set: a template like st_kernels_level.h, which
 * st_quantise.h has included once for each.
 */
#ifdef ST_L

/* Bits of the greatest magnitude.  Those of NaNs are above all numbers'. */
ST_TARGET static uint32_t ST_L(amax)(const void *x, size_t n)
{
    const st_e_u32 *a = (const st_e_u32 *)x;
    uint32_t most = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t u = a[i] & 0x7fffffffu;
        most = u > most ? u : most;
    }
    return most;
}

ST_TARGET static void ST_L(times)(void *x, float by, size_t n)
{
    st_e_f32 *a = (st_e_f32 *)x;
    ST_NO_CARRY
    for (size_t i = 0; i < n; i++)
        a[i] = a[i] * by;
}

/* To the nearest even integer; magnitudes are 128 at most, and NaN becomes 0. */
ST_TARGET static void ST_L(to_int8)(void *out, const void *x, size_t n)
{
    st_e_i8 *o = (st_e_i8 *)out;
    const st_e_f32 *a = (const st_e_f32 *)x;
    ST_NO_CARRY
    for (size_t i = 0; i < n; i++) {
        float v = a[i] == a[i] ? a[i] : 0.0f, r = (v + 0x1.8p23f) - 0x1.8p23f;
        r = r > 127.0f ? 127.0f : r;
        r = r < -127.0f ? -127.0f : r;
        o[i] = (int8_t)(int32_t)r;
    }
}

ST_TARGET static void ST_L(from_int8)(void *out, const void *q, size_t n)
{
    st_e_f32 *o = (st_e_f32 *)out;
    const st_e_i8 *a = (const st_e_i8 *)q;
    ST_NO_CARRY
    for (size_t i = 0; i < n; i++)
        o[i] = (float)a[i];
}

ST_TARGET static void ST_L(plain_f32)(void *out, const void *x, size_t n) { memcpy(out, x, n * 4); }

ST_TARGET static void ST_L(canon_rows)(void *x, size_t n)
{
    st_e_f32 *a = (st_e_f32 *)x;
    ST_NO_CARRY
    for (size_t i = 0; i < n; i++)
        a[i] = st_canon_f32(a[i]);
}

ST_TARGET static void ST_L(find_caster)(int dtype, struct st_caster *c)
{
    c->widen = dtype == ST_BF16 ? ST_L(widen_bf16) : dtype == ST_F16 ? ST_L(widen_f16) : ST_L(plain_f32);
    c->narrow = dtype == ST_BF16 ? ST_L(narrow_bf16) : dtype == ST_F16 ? ST_L(narrow_f16) : NULL;
    c->amax = ST_L(amax);
    c->times = ST_L(times);
    c->to_int8 = ST_L(to_int8);
    c->from_int8 = ST_L(from_int8);
    c->to_fp8 = ST_L(narrow_e4m3fn);
    c->from_fp8 = ST_L(widen_e4m3fn);
    c->canon = ST_L(canon_rows);
}

#endif
