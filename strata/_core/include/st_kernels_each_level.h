/* Includes the template ST_LEVELS, a header's name, once for each level of the instruction set; st_kernels_level.h says
 * what a template is given.  avx512f brings fma with it, and avx2 must not.  Without ST_LEVELS it is empty. */
#ifdef ST_LEVELS

#define ST_L(name) st_portable_##name
#define ST_TARGET
#define ST_F16C 0
#define ST_FUSES 0
#include ST_LEVELS
#undef ST_L
#undef ST_TARGET
#undef ST_F16C
#undef ST_FUSES

#if ST_X86_LEVELS
#define ST_L(name) st_avx2_##name
#define ST_TARGET __attribute__((target("avx2,f16c")))
#define ST_F16C 1
#define ST_FUSES 0
#include ST_LEVELS
#undef ST_L
#undef ST_TARGET
#undef ST_FUSES
#define ST_L(name) st_avx512_##name
#define ST_TARGET                                                                         \
    __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512cd,avx512dq,avx512vl" ST_WIDE_VECTORS)))
#define ST_FUSES 1
#include ST_LEVELS
#undef ST_L
#undef ST_TARGET
#undef ST_F16C
#undef ST_FUSES
#endif

#undef ST_LEVELS
#endif
