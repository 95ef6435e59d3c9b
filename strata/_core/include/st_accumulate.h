/* Accumulation: dst[i] = dst[i] op src[i], each element by one atomic
 * read-modify-write, so that any number of cores and dies may add into one target.
 *
 * Each step rounds to the dtype, by the rules of st_kernels.h.  An element is changed
 * by the atomic of its own width, so destinations must be aligned to it; complex
 * numbers are sums of two reals, and products of those of 8 bytes one word.  There is
 * no product of 16-byte complex numbers: no lock-free atomic is that wide.
 */
#ifndef ST_ACCUMULATE_H
#define ST_ACCUMULATE_H

#include "st_atomic.h"
#include "st_half.h"
#include "st_kernels_plan.h"

/* Bytes that a destination must be aligned to; 0: op does not go with dtype. */
static inline uint32_t st_accumulate_width(int dtype, int op)
{
    if (!st_reduce_supported(dtype, op) || op == ST_AVG)
        return 0;
    if (dtype == ST_C64)
        return op == ST_PROD ? 8 : 4;
    if (dtype == ST_C128)
        return op == ST_PROD ? 0 : 8;
    return (uint32_t)st_dtype_size(dtype);
}

/* old op given, both real numbers of one C type. */
#define ST_REAL_STEP(op, a, b)                                                            \
    ((op) == ST_SUM    ? (a) + (b)                                                        \
     : (op) == ST_PROD ? (a) * (b)                                                        \
     : (op) == ST_MIN  ? ((b) < (a) || (b) != (b) ? (b) : (a))                            \
                       : ((b) > (a) || (b) != (b) ? (b) : (a)))

static inline float st_step_f32(int op, float a, float b)
{
    float r = a != a ? a : ST_REAL_STEP(op, a, b);

    return r != r ? __builtin_nanf("") : r;
}

static inline double st_step_f64(int op, double a, double b)
{
    double r = a != a ? a : ST_REAL_STEP(op, a, b);

    return r != r ? __builtin_nan("") : r;
}

static inline uint64_t st_step_int(int op, int is_signed, uint64_t a, uint64_t b)
{
    switch (op) {
    case ST_SUM: return a + b;
    case ST_PROD: return a * b;
    case ST_BAND: return a & b;
    case ST_BOR: return a | b;
    case ST_BXOR: return a ^ b;
    case ST_MIN: return (is_signed ? (int64_t)b < (int64_t)a : b < a) ? b : a;
    default: return (is_signed ? (int64_t)b > (int64_t)a : b > a) ? b : a;
    }
}

static inline uint64_t st_step_bool(int op, uint64_t a, uint64_t b)
{
    switch (op) {
    case ST_PROD: case ST_MIN: case ST_BAND: return a && b;
    case ST_BXOR: return !a != !b;
    default: return a || b;
    }
}

static inline uint64_t st_step_c64(uint64_t a, uint64_t b)
{
    float x[2], y[2], z[2];
    uint64_t made;

    memcpy(x, &a, 8);
    memcpy(y, &b, 8);
    z[0] = x[0] * y[0] - x[1] * y[1];
    z[1] = x[0] * y[1] + x[1] * y[0];
    memcpy(&made, z, 8);
    return made;
}

/* Everything of one width: an element's bits and the given one's to the new bits. */
static inline uint64_t st_step_bits(int dtype, int op, uint64_t a, uint64_t b)
{
    union { uint32_t u; float f; } x32, y32;
    union { uint64_t u; double f; } x64, y64;

    switch (dtype) {
    case ST_BOOL: return st_step_bool(op, a, b);
    case ST_I8: return st_step_int(op, 1, (uint64_t)(int8_t)a, (uint64_t)(int8_t)b);
    case ST_I16: return st_step_int(op, 1, (uint64_t)(int16_t)a, (uint64_t)(int16_t)b);
    case ST_I32: return st_step_int(op, 1, (uint64_t)(int32_t)a, (uint64_t)(int32_t)b);
    case ST_I64: return st_step_int(op, 1, a, b);
    case ST_F16: return st_f32_to_f16(st_step_f32(op, st_f16_to_f32((uint16_t)a), st_f16_to_f32((uint16_t)b)));
    case ST_BF16:
        return st_f32_to_bf16(st_step_f32(op, st_bf16_to_f32((uint16_t)a), st_bf16_to_f32((uint16_t)b)));
    case ST_F8E4M3FN:
        return st_f32_to_f8e4m3fn(st_step_f32(op, st_f8e4m3fn_to_f32((uint8_t)a), st_f8e4m3fn_to_f32((uint8_t)b)));
    case ST_F8E5M2:
        return st_f32_to_f8e5m2(st_step_f32(op, st_f8e5m2_to_f32((uint8_t)a), st_f8e5m2_to_f32((uint8_t)b)));
    case ST_F32:
        x32.u = (uint32_t)a;
        y32.u = (uint32_t)b;
        x32.f = st_step_f32(op, x32.f, y32.f);
        return x32.u;
    case ST_F64:
        x64.u = a;
        y64.u = b;
        x64.f = st_step_f64(op, x64.f, y64.f);
        return x64.u;
    case ST_C64: return st_step_c64(a, b); /* of products alone */
    default: return st_step_int(op, 0, a, b); /* unsigned */
    }
}

/* One loop for each width; the compiler makes one of each dtype's where it is inlined. */
#define ST_ACCUMULATE_LOOP(bits)                                                          \
    static inline __attribute__((always_inline)) void st_accumulate_##bits(               \
        int dtype, int op, uint##bits##_t *dst, const uint8_t *src, uint64_t count)       \
    {                                                                                     \
        uint##bits##_t given, old;                                                        \
        for (uint64_t i = 0; i < count; i++) {                                            \
            memcpy(&given, src + i * sizeof given, sizeof given);                         \
            do {                                                                          \
                old = st_load_relaxed_##bits(&dst[i]);                                    \
            } while (!st_cas_relaxed_##bits(&dst[i], old,                                 \
                                            (uint##bits##_t)st_step_bits(dtype, op, old, given))); \
        }                                                                                 \
    }
ST_ACCUMULATE_LOOP(8)
ST_ACCUMULATE_LOOP(16)
ST_ACCUMULATE_LOOP(32)
ST_ACCUMULATE_LOOP(64)
#undef ST_ACCUMULATE_LOOP

/* count elements of dtype.  ST_EUNSUPPORTED; ST_EINVAL: dst is not aligned. */
static int st_accumulate(int dtype, int op, void *dst, const void *src, uint64_t count)
{
    uint32_t width = st_accumulate_width(dtype, op);
    const uint8_t *from = (const uint8_t *)src;

    if (!width)
        return ST_EUNSUPPORTED;
    if ((uintptr_t)dst % width)
        return ST_EINVAL;
    count = count * (uint64_t)st_dtype_size(dtype) / width;
    switch (dtype) {
#define ST_X(code, bits, as)                                                              \
    case code:                                                                            \
        st_accumulate_##bits(as, op, (uint##bits##_t *)dst, from, count);                 \
        return ST_OK;
        ST_X(ST_BOOL, 8, ST_BOOL)
        ST_X(ST_I8, 8, ST_I8)
        ST_X(ST_U8, 8, ST_U8)
        ST_X(ST_F8E4M3FN, 8, ST_F8E4M3FN)
        ST_X(ST_F8E5M2, 8, ST_F8E5M2)
        ST_X(ST_I16, 16, ST_I16)
        ST_X(ST_U16, 16, ST_U16)
        ST_X(ST_F16, 16, ST_F16)
        ST_X(ST_BF16, 16, ST_BF16)
        ST_X(ST_I32, 32, ST_I32)
        ST_X(ST_U32, 32, ST_U32)
        ST_X(ST_F32, 32, ST_F32)
        ST_X(ST_I64, 64, ST_I64)
        ST_X(ST_U64, 64, ST_U64)
        ST_X(ST_F64, 64, ST_F64)
        ST_X(ST_C128, 64, ST_F64)
#undef ST_X
    default: /* ST_C64 */
        if (op == ST_PROD)
            st_accumulate_64(ST_C64, op, (uint64_t *)dst, from, count);
        else
            st_accumulate_32(ST_F32, op, (uint32_t *)dst, from, count);
        return ST_OK;
    }
}

#endif
