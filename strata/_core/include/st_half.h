/* Conversions between float and the small formats: f16, bf16, f8 e4m3fn, f8 e5m2.
 *
 * Widening is exact.  Narrowing rounds once, to nearest even, and agrees bit
 * for bit with ml_dtypes (bf16, f8) and IEEE 754 (f16): f16, bf16 and e5m2
 * overflow to infinity; e4m3fn has none and overflows to NaN.  A NaN stays a
 * NaN with its sign and becomes quiet, without its payload.  All of it is
 * branch-free integer code on one element, so that compilers vectorise it.
 */
#ifndef ST_HALF_H
#define ST_HALF_H

#include <stdint.h>
#include <string.h>

#define ST_F32_INF 0x7f800000u
#define ST_F32_NAN 0x7fc00000u
#define ST_F64_NAN 0x7ff8000000000000u

static inline uint32_t st_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float st_f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint64_t st_f64_bits(double f)
{
    uint64_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline double st_f64_from_bits(uint64_t u)
{
    double f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* cond ? a : b, with both computed: compilers do not vectorise a choice once
 * they have moved a float operation, which may trap, into one arm of it. */
static inline uint32_t st_select(int cond, uint32_t a, uint32_t b)
{
    uint32_t mask = 0u - (uint32_t)cond;
    return (a & mask) | (b & ~mask);
}

static inline float st_bf16_to_f32(uint16_t h)
{
    return st_f32_from_bits((uint32_t)h << 16);
}

/* For numbers, infinities and the canonical NaN (ST_F32_NAN) only. */
static inline uint16_t st_round_bf16(float f)
{
    uint32_t u = st_f32_bits(f);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline uint16_t st_f32_to_bf16(float f)
{
    uint32_t u = st_f32_bits(f), nan = ((u >> 16) & 0x8000u) | 0x7fc0u;
    return (uint16_t)((u & 0x7fffffffu) > ST_F32_INF ? nan : st_round_bf16(f));
}

static inline float st_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, m = h & 0x7fffu;
    uint32_t normal = (m << 13) + (112u << 23);
    uint32_t sub = st_f32_bits((float)(int32_t)m * 0x1p-24f);
    normal += m >= 0x7c00u ? 112u << 23 : 0u;
    normal |= m > 0x7c00u ? 0x400000u : 0u;
    return st_f32_from_bits(sign | st_select(m < 0x400u, sub, normal));
}

/* Magnitude bits `u` of a float, rounded to a format of `mb` mantissa bits and
 * exponent bias `bias`, as if its exponent had no upper limit.  Below the
 * smallest normal number the float addition does the rounding: the last bit
 * of `magic` weighs as much as the format's last subnormal bit. */
static inline uint32_t st_round_small(uint32_t u, uint32_t mb, uint32_t bias)
{
    uint32_t shift = 23u - mb;
    uint32_t magic = (151u - bias - mb) << 23;
    uint32_t sub = st_f32_bits(st_f32_from_bits(u) + st_f32_from_bits(magic)) - magic;
    uint32_t normal = ((u + (1u << (shift - 1u)) - 1u + ((u >> shift) & 1u)) >> shift)
                      - ((127u - bias) << mb);
    return st_select(u < (128u - bias) << 23, sub, normal);
}

static inline uint16_t st_f32_to_f16(float f)
{
    uint32_t u = st_f32_bits(f), sign = (u >> 16) & 0x8000u, r;
    u &= 0x7fffffffu;
    r = st_round_small(u, 10u, 15u);
    r = r > 0x7c00u ? 0x7c00u : r;
    return (uint16_t)(sign | st_select(u > ST_F32_INF, 0x7e00u, r));
}

static inline float st_f8e5m2_to_f32(uint8_t x)
{
    return st_f16_to_f32((uint16_t)((uint16_t)x << 8));
}

static inline uint8_t st_f32_to_f8e5m2(float f)
{
    uint32_t u = st_f32_bits(f), sign = (u >> 24) & 0x80u, r;
    u &= 0x7fffffffu;
    r = st_round_small(u, 2u, 15u);
    r = r > 0x7cu ? 0x7cu : r;
    return (uint8_t)(sign | st_select(u > ST_F32_INF, 0x7eu, r));
}

static inline float st_f8e4m3fn_to_f32(uint8_t x)
{
    uint32_t sign = (uint32_t)(x & 0x80u) << 24, m = x & 0x7fu;
    uint32_t normal = m == 0x7fu ? ST_F32_NAN : (m << 20) + (120u << 23);
    uint32_t sub = st_f32_bits((float)(int32_t)m * 0x1p-9f);
    return st_f32_from_bits(sign | st_select(m < 8u, sub, normal));
}

static inline uint8_t st_f32_to_f8e4m3fn(float f)
{
    uint32_t u = st_f32_bits(f), sign = (u >> 24) & 0x80u, r;
    u &= 0x7fffffffu;
    r = st_round_small(u, 3u, 7u);
    return (uint8_t)(sign | (r > 0x7fu ? 0x7fu : r));
}

#endif
