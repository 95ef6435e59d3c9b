/* Element types and reduction operators: the codes that plans, kernels and
 * arrival records share.  The values are part of the plan format; append only. */
#ifndef ST_TYPES_H
#define ST_TYPES_H

#include <stdint.h>

enum st_dtype {
    ST_RAW = 0, /* bytes: any fixed-size dtype, data movement only */
    ST_BOOL = 1,
    ST_I8 = 2,
    ST_U8 = 3,
    ST_I16 = 4,
    ST_U16 = 5,
    ST_I32 = 6,
    ST_U32 = 7,
    ST_I64 = 8,
    ST_U64 = 9,
    ST_F16 = 10,
    ST_BF16 = 11,
    ST_F32 = 12,
    ST_F64 = 13,
    ST_C64 = 14,
    ST_C128 = 15,
    ST_F8E4M3FN = 16,
    ST_F8E5M2 = 17,
    ST_NDTYPES = 18
};

enum st_op {
    ST_OP_NONE = 0, /* plain copy */
    ST_SUM = 1,
    ST_PROD = 2,
    ST_MIN = 3,
    ST_MAX = 4,
    ST_AVG = 5,
    ST_BAND = 6,
    ST_BOR = 7,
    ST_BXOR = 8,
    ST_NOPS = 9
};

#endif
