/* Which fold, codec and scale serve a pair of dtype and operator. */
#ifndef ST_KERNELS_PLAN_H
#define ST_KERNELS_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "st_kernels_ops.h"
#include "st_status.h"
#include "st_types.h"

/* s[0..k-1] -> out, n elements. */
typedef void st_fold_fn(void *out, const void *const *s, int k, size_t n);
/* Storage -> accumulators, and back; nsrc operands went into the sum. */
typedef void st_widen_fn(void *wide, const void *src, size_t n);
typedef void st_narrow_fn(void *out, const void *wide, size_t n, int nsrc);

/* The most operands of one fold: of reals, of complex numbers in products, and through
 * accumulators, which have to stay in the first-level cache. */
enum { ST_FAN = 8, ST_COMPLEX_FAN = 2, ST_WIDE_FAN = 5 };

/* The loops of one reduction.  Without widen, operands are folded as they lie. */
struct st_kernel {
    st_fold_fn *fold;
    st_narrow_fn *scale; /* sum -> mean in the accumulators' type, or NULL */
    st_widen_fn *widen;  /* NULL, or */
    st_narrow_fn *narrow;
    uint32_t size;  /* bytes of an element in memory */
    uint32_t lanes; /* elements that fold sees in its accumulator */
    uint32_t wide;  /* bytes of its accumulator */
    int fan;        /* most operands of one fold */
};

/* The same, before the level is known. */
struct st_choice {
    uint8_t fold, codec, scale;
    uint8_t size, lanes, wide, fan;
    uint8_t per; /* elements of `size` bytes in one of the caller's */
};

static inline int st_dtype_size(int dtype)
{
    switch (dtype) {
    case ST_RAW: case ST_BOOL: case ST_I8: case ST_U8: case ST_F8E4M3FN: case ST_F8E5M2:
        return 1;
    case ST_I16: case ST_U16: case ST_F16: case ST_BF16:
        return 2;
    case ST_I32: case ST_U32: case ST_F32:
        return 4;
    case ST_I64: case ST_U64: case ST_F64: case ST_C64:
        return 8;
    case ST_C128:
        return 16;
    default:
        return 0;
    }
}

static inline int st_is_integer(int dtype) { return dtype >= ST_I8 && dtype <= ST_U64; }

static inline int st_is_small_float(int dtype)
{
    return dtype == ST_F16 || dtype == ST_BF16 || dtype == ST_F8E4M3FN || dtype == ST_F8E5M2;
}

static inline int st_reduce_supported(int dtype, int op)
{
    if (dtype <= ST_RAW || dtype >= ST_NDTYPES)
        return 0;
    switch (op) {
    case ST_SUM: case ST_PROD:
        return 1;
    case ST_MIN: case ST_MAX:
        return dtype != ST_C64 && dtype != ST_C128;
    case ST_AVG:
        return dtype != ST_BOOL;
    case ST_BAND: case ST_BOR: case ST_BXOR:
        return dtype == ST_BOOL || st_is_integer(dtype);
    default:
        return 0;
    }
}

/* Bytes of an element of a partial operand: see st_plan.h. */
static inline uint32_t st_partial_bytes(int dtype, int op)
{
    if (st_is_small_float(dtype))
        return 4;
    if (op == ST_AVG && st_is_integer(dtype))
        return st_dtype_size(dtype) == 8 ? 16 : 8;
    return (uint32_t)st_dtype_size(dtype);
}

/* Bytes of the partial operand of as many elements as `bytes` hold. */
static inline uint64_t st_partial_extent(int dtype, int op, uint64_t bytes)
{
    return bytes / (uint64_t)st_dtype_size(dtype) * st_partial_bytes(dtype, op);
}

static inline int st_choose_bool(int op)
{
    switch (op) {
    case ST_SUM: case ST_MAX: case ST_BOR:
        return ST_FOLD_bool_bor;
    case ST_PROD: case ST_MIN: case ST_BAND:
        return ST_FOLD_bool_band;
    default:
        return ST_FOLD_bool_bxor;
    }
}

/* Sum, product, minimum and maximum of a real type, as accumulated. */
static inline int st_choose_real(int dtype, int op)
{
#define ST_X(code, wraps, own)                                                            \
    case code:                                                                            \
        return op == ST_PROD  ? ST_FOLD_##wraps##_prod                                    \
               : op == ST_MIN ? ST_FOLD_##own##_min                                       \
               : op == ST_MAX ? ST_FOLD_##own##_max                                       \
                              : ST_FOLD_##wraps##_sum;
    switch (dtype) {
        ST_X(ST_I8, u8, i8)
        ST_X(ST_U8, u8, u8)
        ST_X(ST_I16, u16, i16)
        ST_X(ST_U16, u16, u16)
        ST_X(ST_I32, u32, i32)
        ST_X(ST_U32, u32, u32)
        ST_X(ST_I64, u64, i64)
        ST_X(ST_U64, u64, u64)
        ST_X(ST_F64, f64, f64)
    default: /* f32, and what is widened to it */
        ST_X(ST_F32, f32, f32)
    }
#undef ST_X
}

/* The same of f16 and bf16 in one go. */
static inline int st_choose_16(int dtype, int op)
{
    switch (op) {
    case ST_PROD: return dtype == ST_F16 ? ST_FOLD_f16_prod : ST_FOLD_bf16_prod;
    case ST_MIN: return dtype == ST_F16 ? ST_FOLD_f16_min : ST_FOLD_bf16_min;
    case ST_MAX: return dtype == ST_F16 ? ST_FOLD_f16_max : ST_FOLD_bf16_max;
    default: return dtype == ST_F16 ? ST_FOLD_f16_sum : ST_FOLD_bf16_sum;
    }
}

static inline int st_choose_codec(int dtype, int op)
{
    switch (dtype) {
    case ST_F16: return ST_CODEC_f16;
    case ST_BF16: return ST_CODEC_bf16;
    case ST_F8E4M3FN: return ST_CODEC_e4m3fn;
    case ST_F8E5M2: return ST_CODEC_e5m2;
    default: break;
    }
    if (op != ST_AVG)
        return ST_CODEC_NONE;
    switch (dtype) {
    case ST_I8: return ST_CODEC_i8;
    case ST_U8: return ST_CODEC_u8;
    case ST_I16: return ST_CODEC_i16;
    case ST_U16: return ST_CODEC_u16;
    case ST_I32: return ST_CODEC_i32;
    case ST_U32: return ST_CODEC_u32;
    case ST_I64: return ST_CODEC_i64;
    case ST_U64: return ST_CODEC_u64;
    default: return ST_CODEC_NONE;
    }
}

/* ST_OK, ST_EINVAL (no such code) or ST_EUNSUPPORTED. */
static inline int st_choose(int dtype, int op, int nsrc, struct st_choice *c)
{
    int size = st_dtype_size(dtype), real = dtype;
    if (!size || op < 0 || op >= ST_NOPS)
        return ST_EINVAL;
    if (!st_reduce_supported(dtype, op))
        return ST_EUNSUPPORTED;
    *c = (struct st_choice){.size = (uint8_t)size, .lanes = 1, .fan = ST_FAN, .per = 1};
    if (dtype == ST_BOOL) {
        c->fold = (uint8_t)st_choose_bool(nsrc > 1 ? op : ST_BOR); /* x or x, made 0 or 1 */
    } else if (op >= ST_BAND) { /* of integers: bytes */
        c->fold = op == ST_BAND ? ST_FOLD_u8_band : op == ST_BOR ? ST_FOLD_u8_bor : ST_FOLD_u8_bxor;
        c->per = c->size;
        c->size = 1;
    } else if ((dtype == ST_F16 || dtype == ST_BF16) && op != ST_AVG && nsrc <= ST_FAN) {
        c->fold = (uint8_t)st_choose_16(dtype, op);
    } else if (op == ST_PROD && (dtype == ST_C64 || dtype == ST_C128)) {
        c->fold = dtype == ST_C64 ? ST_FOLD_c64_prod : ST_FOLD_c128_prod;
        c->fan = ST_COMPLEX_FAN;
    } else {
        if (dtype == ST_C64 || dtype == ST_C128) { /* twice as many real numbers */
            real = dtype == ST_C64 ? ST_F32 : ST_F64;
            c->per = 2;
            c->size /= 2;
        }
        c->codec = (uint8_t)st_choose_codec(real, op);
        if (c->codec != ST_CODEC_NONE)
            c->fan = ST_WIDE_FAN;
        c->fold = (uint8_t)st_choose_real(real, op);
        if (op == ST_AVG && st_is_integer(real)) {
            c->fold = ST_FOLD_u64_sum;
            c->lanes = c->size == 8 ? 2 : 1;
            c->wide = (uint8_t)(8 * c->lanes);
            return ST_OK;
        }
        if (op == ST_AVG)
            c->scale = real == ST_F64 ? ST_SCALE_F64 : ST_SCALE_F32;
    }
    c->wide = c->codec == ST_CODEC_NONE ? c->size : 4;
    return ST_OK;
}

#endif
