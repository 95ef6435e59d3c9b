/* What a reduction does to two elements, and the list of all folds.
 *
 * Elements are read and written through types of alignment 1 that may alias
 * anything, so any address will do.  Integer arithmetic is done unsigned, so
 * it wraps.  A fold of floats ends in st_canon_*, which makes every NaN the one
 * positive quiet NaN without payload: which NaN the hardware picks out of two
 * depends on the order in which a compiler placed the operands, and the bits
 * of a result must not.
 */
#ifndef ST_KERNELS_OPS_H
#define ST_KERNELS_OPS_H

#include <stdint.h>

#include "st_half.h"

#define ST_ELEM(name, type) typedef type name __attribute__((aligned(1), may_alias))
ST_ELEM(st_e_u8, uint8_t);
ST_ELEM(st_e_i8, int8_t);
ST_ELEM(st_e_u16, uint16_t);
ST_ELEM(st_e_i16, int16_t);
ST_ELEM(st_e_u32, uint32_t);
ST_ELEM(st_e_i32, int32_t);
ST_ELEM(st_e_u64, uint64_t);
ST_ELEM(st_e_i64, int64_t);
ST_ELEM(st_e_f32, float);
ST_ELEM(st_e_f64, double);
#undef ST_ELEM

static inline float st_canon_f32(float v) { return v != v ? st_f32_from_bits(ST_F32_NAN) : v; }
static inline double st_canon_f64(double v) { return v != v ? st_f64_from_bits(ST_F64_NAN) : v; }

static inline uint16_t st_finish_bf16(float v) { return st_round_bf16(st_canon_f32(v)); }

/* `wide` is an unsigned type in which the product of two elements is not promoted to int. */
#define ST_DEFINE_ADD_MUL(t, type, wide)                                                  \
    static inline type st_add_##t(type a, type b) { return (type)((wide)a + (wide)b); }   \
    static inline type st_mul_##t(type a, type b) { return (type)((wide)a * (wide)b); }
ST_DEFINE_ADD_MUL(u8, uint8_t, uint32_t)
ST_DEFINE_ADD_MUL(u16, uint16_t, uint32_t)
ST_DEFINE_ADD_MUL(u32, uint32_t, uint32_t)
ST_DEFINE_ADD_MUL(u64, uint64_t, uint64_t)
ST_DEFINE_ADD_MUL(f32, float, float)
ST_DEFINE_ADD_MUL(f64, double, double)
#undef ST_DEFINE_ADD_MUL

#define ST_DEFINE_MIN_MAX(t, type)                                                        \
    static inline type st_min_##t(type a, type b) { return b < a ? b : a; }               \
    static inline type st_max_##t(type a, type b) { return b > a ? b : a; }
ST_DEFINE_MIN_MAX(u8, uint8_t)
ST_DEFINE_MIN_MAX(i8, int8_t)
ST_DEFINE_MIN_MAX(u16, uint16_t)
ST_DEFINE_MIN_MAX(i16, int16_t)
ST_DEFINE_MIN_MAX(u32, uint32_t)
ST_DEFINE_MIN_MAX(i32, int32_t)
ST_DEFINE_MIN_MAX(u64, uint64_t)
ST_DEFINE_MIN_MAX(i64, int64_t)
#undef ST_DEFINE_MIN_MAX

/* Floats: a NaN on either side wins; of equal values (-0 and +0) the earlier. */
#define ST_DEFINE_FMIN_FMAX(t, type)                                                      \
    static inline type st_min_##t(type a, type b) { return ((b < a) | (b != b)) ? b : a; }\
    static inline type st_max_##t(type a, type b) { return ((b > a) | (b != b)) ? b : a; }
ST_DEFINE_FMIN_FMAX(f32, float)
ST_DEFINE_FMIN_FMAX(f64, double)
#undef ST_DEFINE_FMIN_FMAX

static inline uint8_t st_and_u8(uint8_t a, uint8_t b) { return (uint8_t)(a & b); }
static inline uint8_t st_or_u8(uint8_t a, uint8_t b) { return (uint8_t)(a | b); }
static inline uint8_t st_xor_u8(uint8_t a, uint8_t b) { return (uint8_t)(a ^ b); }

/* floor(a / n), exact for |a| < 2^50 and 1 <= n <= 1024, in steps that vectorise
 * everywhere.  Adding 1.5 * 2^52 leaves an integer in a double's low bits.  The
 * quotient's rounding error is below 1/(8n), and the exact quotient is at
 * least 1/n below the next integer, so rounding cannot reach it. */
static inline int64_t st_floor_quotient(int64_t a, int n)
{
    const double magic = 0x1.8p52;
    uint64_t bias = st_f64_bits(magic), nearest;
    double q = (st_f64_from_bits((uint64_t)a + bias) - magic) / n;
    nearest = st_f64_bits(q + magic);
    return (int64_t)(nearest - bias - (st_f64_from_bits(nearest) - magic > q));
}

/* floor((hi * 2^32 + lo) / n) modulo 2^64: hi and lo sum n high and low halves. */
static inline int64_t st_mean_of_halves(int64_t hi, int64_t lo, int n)
{
    int64_t q = st_floor_quotient(hi, n);
    uint64_t rest = ((uint64_t)hi - (uint64_t)q * (uint64_t)n) << 32; /* a partial operand may hold anything */
    int64_t low = st_floor_quotient((int64_t)(rest + (uint64_t)lo), n);
    return (int64_t)(((uint64_t)q << 32) + (uint64_t)low);
}

#define ST_SAME(v) (v)
#define ST_TRUTH(v) ((uint8_t)((v) != 0))

#define ST_ARITHMETIC(X, t, finish)                                                       \
    X(t##_sum, st_e_##t, ST_SAME, st_add_##t, finish)                                     \
    X(t##_prod, st_e_##t, ST_SAME, st_mul_##t, finish)
#define ST_ORDER(X, t, finish)                                                            \
    X(t##_min, st_e_##t, ST_SAME, st_min_##t, finish)                                     \
    X(t##_max, st_e_##t, ST_SAME, st_max_##t, finish)
#define ST_BYTEWISE(X, name, load)                                                        \
    X(name##_band, st_e_u8, load, st_and_u8, ST_SAME)                                     \
    X(name##_bor, st_e_u8, load, st_or_u8, ST_SAME)                                       \
    X(name##_bxor, st_e_u8, load, st_xor_u8, ST_SAME)
#define ST_BRIEF(X, name, op)                                                              \
    X(bf16_##name, st_e_u16, st_bf16_to_f32, st_##op##_f32, st_finish_bf16)

/* Every fold of real elements: X(name, element, load, combine, finish).  Those of
 * bf16 serve few operands without a detour through accumulators in memory. */
#define ST_FOLDS(X)                                                                       \
    ST_ARITHMETIC(X, u8, ST_SAME) ST_ARITHMETIC(X, u16, ST_SAME)                          \
    ST_ARITHMETIC(X, u32, ST_SAME) ST_ARITHMETIC(X, u64, ST_SAME)                         \
    ST_ARITHMETIC(X, f32, st_canon_f32) ST_ARITHMETIC(X, f64, st_canon_f64)               \
    ST_ORDER(X, u8, ST_SAME) ST_ORDER(X, i8, ST_SAME)                                     \
    ST_ORDER(X, u16, ST_SAME) ST_ORDER(X, i16, ST_SAME)                                   \
    ST_ORDER(X, u32, ST_SAME) ST_ORDER(X, i32, ST_SAME)                                   \
    ST_ORDER(X, u64, ST_SAME) ST_ORDER(X, i64, ST_SAME)                                   \
    ST_ORDER(X, f32, st_canon_f32) ST_ORDER(X, f64, st_canon_f64)                         \
    ST_BRIEF(X, sum, add) ST_BRIEF(X, prod, mul) ST_BRIEF(X, min, min) ST_BRIEF(X, max, max)  \
    ST_BYTEWISE(X, u8, ST_SAME) ST_BYTEWISE(X, bool, ST_TRUTH)

/* The same of f16, by loops of their own: X(name, combine). */
#define ST_F16_FOLDS(X) X(sum, add) X(prod, mul) X(min, min) X(max, max)

/* Products of complex numbers, stored as pairs (real, imaginary): X(name, element, finish). */
#define ST_COMPLEX_FOLDS(X)                                                               \
    X(c64_prod, st_e_f32, st_canon_f32)                                                   \
    X(c128_prod, st_e_f64, st_canon_f64)

enum st_fold_id {
#define ST_X(name, ...) ST_FOLD_##name,
    ST_FOLDS(ST_X) ST_COMPLEX_FOLDS(ST_X)
#undef ST_X
#define ST_X(name, ...) ST_FOLD_f16_##name,
    ST_F16_FOLDS(ST_X)
#undef ST_X
    ST_NFOLDS
};

/* Small floats, reduced as f32: X(name, element, widen one, narrow one); what is
 * narrowed holds no NaN but the canonical one.  f16 has loops of its own, since
 * some processors convert it. */
#define ST_SMALL_FLOATS(X)                                                                \
    X(bf16, st_e_u16, st_bf16_to_f32, st_round_bf16)                                      \
    X(e4m3fn, st_e_u8, st_f8e4m3fn_to_f32, st_f32_to_f8e4m3fn)                            \
    X(e5m2, st_e_u8, st_f8e5m2_to_f32, st_f32_to_f8e5m2)

/* Means of integers, reduced as i64: X(name, element). */
#define ST_MEAN_INTS(X)                                                                   \
    X(u8, st_e_u8)                                                                        \
    X(i8, st_e_i8)                                                                        \
    X(u16, st_e_u16)                                                                      \
    X(i16, st_e_i16)                                                                      \
    X(u32, st_e_u32)                                                                      \
    X(i32, st_e_i32)

/* The same with 64 bits, as two i64: low and high half. */
#define ST_MEAN_INTS64(X)                                                                 \
    X(u64, st_e_u64)                                                                      \
    X(i64, st_e_i64)

#define ST_CODECS(X)                                                                      \
    ST_SMALL_FLOATS(X) X(f16, st_e_u16) ST_MEAN_INTS(X) ST_MEAN_INTS64(X)

enum st_codec_id {
    ST_CODEC_NONE,
#define ST_X(name, ...) ST_CODEC_##name,
    ST_CODECS(ST_X)
#undef ST_X
};

enum st_scale_id { ST_SCALE_NONE, ST_SCALE_F32, ST_SCALE_F64 };

#endif
