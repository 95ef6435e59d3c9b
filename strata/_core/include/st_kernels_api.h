/* The reduction kernels as function pointers, for code that is handed them
 * instead of compiling st_kernels.h again. */
#ifndef ST_KERNELS_API_H
#define ST_KERNELS_API_H

#include <stdint.h>

/* st_reduce */
typedef int st_reduce_fn(int dtype, int op, void *const *dst, int ndst, const void *const *src,
                         int nsrc, uint64_t count, int nt);
/* st_reduce_partial */
typedef int st_reduce_partial_fn(int dtype, int op, void *const *dst, int ndst, const uint64_t *dst_partial,
                                 const void *const *src, int nsrc, const uint64_t *src_partial, int total,
                                 uint64_t count);
/* st_accumulate */
typedef int st_accumulate_fn(int dtype, int op, void *dst, const void *src, uint64_t count);
/* st_weigh */
typedef int st_weigh_fn(int dtype, void *dst, const void *const *src, const float *weights, int nsrc,
                        const void *const bias[2], uint64_t count);
/* st_copy */
typedef void st_copy_fn(void *dst, const void *src, uint64_t bytes, int nt);

#endif
