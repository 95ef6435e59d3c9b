/* Rows of bf16, f16 or f32 as f8 e4m3fn or int8 with scales, and back.
 *
 * f8 has a scale for each ST_GROUP elements of a row (the last group may be short), int8 one for a row:
 *
 *   amax  = max(|x|), at least 1e-4          scale = amax / M          q = round(x * (M / amax))
 *
 * in f32, M = 448 or 127, each operation rounded, q to nearest even.  Rounded scales are the power of two that is not
 * less, and q = round(x / scale).  Where x has a NaN or an infinity, amax has, too.  Back is q * scale in f32, rounded
 * once.  The bits are the same at every level. */
#ifndef ST_QUANTISE_H
#define ST_QUANTISE_H

#include "st_kernels.h"

#define ST_GROUP 128u

struct st_caster {
    st_widen_fn *widen;
    st_narrow_fn *narrow; /* NULL: f32 as it is */
    uint32_t (*amax)(const void *x, size_t n);
    void (*times)(void *x, float by, size_t n);
    void (*to_int8)(void *out, const void *x, size_t n);
    void (*from_int8)(void *out, const void *q, size_t n);
    st_narrow_fn *to_fp8;
    st_widen_fn *from_fp8;
    void (*canon)(void *x, size_t n);
};

#define ST_LEVELS "st_quantise_level.h"
#include "st_kernels_each_level.h"

/* ST_EUNSUPPORTED: rows of another type; ST_EINVAL: the processor has not that level. */
static inline int st_find_caster(int level, int dtype, struct st_caster *c)
{
    if (dtype != ST_F16 && dtype != ST_BF16 && dtype != ST_F32)
        return ST_EUNSUPPORTED;
    if (level < 0 || level > st_kernels_level())
        return ST_EINVAL;
#if ST_X86_LEVELS
    if (level == ST_LEVEL_AVX512)
        st_avx512_find_caster(dtype, c);
    else if (level == ST_LEVEL_AVX2)
        st_avx2_find_caster(dtype, c);
    else
        st_portable_find_caster(dtype, c);
#else
    st_portable_find_caster(dtype, c);
#endif
    return ST_OK;
}

static inline uint64_t st_groups(uint64_t hidden) { return hidden / ST_GROUP + (hidden % ST_GROUP != 0); }

/* The greatest magnitude, from its bits, and not too small to divide by. */
static inline float st_amax(uint32_t bits)
{
    uint32_t least = st_f32_bits(1e-4f);

    return st_f32_from_bits(bits > least ? bits : least);
}

/* 2 to the power that frexp() gives; of what is no number, to the power 0. */
static inline float st_round_scale(float scale, float *inverse)
{
    uint32_t u = st_f32_bits(scale);
    int32_t e = u >= ST_F32_INF ? 0 : (int32_t)(u >> 23) - 127 + ((u & 0x7fffffu) != 0);

    *inverse = st_f32_from_bits((uint32_t)(127 - e) << 23);
    return st_f32_from_bits((uint32_t)(127 + e) << 23);
}

/* x: [rows][hidden]; q the same; scales: [rows][st_groups(hidden)]. */
static int st_cast_fp8_at(int level, int dtype, const void *x, uint8_t *q, float *scales, uint64_t rows, uint64_t hidden,
                          int round_scale)
{
    float wide[ST_GROUP] __attribute__((aligned(64))), amax, by;
    uint64_t size = (uint64_t)st_dtype_size(dtype), i, k, n;
    const uint8_t *from = (const uint8_t *)x;
    struct st_caster c;
    int rc = st_find_caster(level, dtype, &c);

    for (i = 0; i < rows && rc == ST_OK; i++)
        for (k = 0; k < hidden; k += n, from += n * size, q += n, scales++) {
            n = hidden - k < ST_GROUP ? hidden - k : ST_GROUP;
            c.widen(wide, from, (size_t)n);
            amax = st_amax(c.amax(wide, (size_t)n));
            *scales = amax / 448.0f;
            by = 448.0f / amax;
            if (round_scale)
                *scales = st_round_scale(*scales, &by);
            c.times(wide, by, (size_t)n);
            c.to_fp8(q, wide, (size_t)n, 1);
        }
    return rc;
}

/* scales: [rows]. */
static int st_cast_int8_at(int level, int dtype, const void *x, int8_t *q, float *scales, uint64_t rows, uint64_t hidden)
{
    float wide[ST_GROUP] __attribute__((aligned(64)));
    uint64_t size = (uint64_t)st_dtype_size(dtype), i, k, n;
    const uint8_t *from = (const uint8_t *)x;
    struct st_caster c;
    int rc = st_find_caster(level, dtype, &c);

    for (i = 0; i < rows && rc == ST_OK; i++, from += hidden * size, q += hidden) {
        uint32_t most = 0, one;
        float amax;

        for (k = 0; k < hidden; k += n) {
            n = hidden - k < ST_GROUP ? hidden - k : ST_GROUP;
            c.widen(wide, from + k * size, (size_t)n);
            one = c.amax(wide, (size_t)n);
            most = one > most ? one : most;
        }
        amax = st_amax(most);
        scales[i] = amax / 127.0f;
        for (k = 0; k < hidden; k += n) {
            n = hidden - k < ST_GROUP ? hidden - k : ST_GROUP;
            c.widen(wide, from + k * size, (size_t)n);
            c.times(wide, 127.0f / amax, (size_t)n);
            c.to_int8(q + k, wide, (size_t)n);
        }
    }
    return rc;
}

/* q: f8 e4m3fn, or int8; scales as the cast made them; out: [rows][hidden] of dtype. */
static int st_cast_back_at(int level, int from, const void *q, const float *scales, int dtype, void *out, uint64_t rows,
                           uint64_t hidden)
{
    float wide[ST_GROUP] __attribute__((aligned(64)));
    uint64_t size = (uint64_t)st_dtype_size(dtype), groups = from == ST_I8 ? 1 : st_groups(hidden), i, k, n;
    struct st_caster c;
    int rc = from == ST_I8 || from == ST_F8E4M3FN ? st_find_caster(level, dtype, &c) : ST_EUNSUPPORTED;

    for (i = 0; i < rows && rc == ST_OK; i++)
        for (k = 0; k < hidden; k += n) {
            uint8_t *to = (uint8_t *)out + (i * hidden + k) * size;
            const uint8_t *at = (const uint8_t *)q + i * hidden + k;

            n = hidden - k < ST_GROUP ? hidden - k : ST_GROUP;
            if (from == ST_I8)
                c.from_int8(wide, at, (size_t)n);
            else
                c.from_fp8(wide, at, (size_t)n);
            c.times(wide, scales[i * groups + (from == ST_I8 ? 0 : k / ST_GROUP)], (size_t)n);
            c.canon(wide, (size_t)n);
            if (c.narrow)
                c.narrow(to, wide, (size_t)n, 1);
            else
                memcpy(to, wide, n * 4);
        }
    return rc;
}

#endif
