/* Weak order: stores and copies that take effect later than they were made. */
#ifndef ST_WEAK_H
#define ST_WEAK_H

#include "st_atomic.h"
#include "st_copy.h"
#include "st_faults.h"

#define ST_WEAK_FAMILY(bits)                                                                                       \
    ST_EXPORTED uint##bits##_t st_hook_load_##bits(const uint##bits##_t *p, enum st_order order, const char *where) \
    {                                                                                                              \
        (void)where;                                                                                               \
        if (order == ST_RELAXED)                                                                                   \
            return (st_load_relaxed_##bits)(p);                                                                    \
        return order == ST_ACQUIRE ? (st_load_acquire_##bits)(p) : (st_load_seqcst_##bits)(p);                     \
    }                                                                                                              \
    ST_EXPORTED void st_hook_store_##bits(uint##bits##_t *p, uint##bits##_t v, enum st_order order,                \
                                          const char *where)                                                       \
    {                                                                                                              \
        (void)where;                                                                                               \
        if (order == ST_RELAXED)                                                                                   \
            (st_store_relaxed_##bits)(p, v);                                                                       \
        else if (order == ST_RELEASE)                                                                              \
            (st_store_release_##bits)(p, v); /* pairs with whatever the caller's does */                           \
        else                                                                                                       \
            (st_store_seqcst_##bits)(p, v); /* pairs with whatever the caller's does */                            \
    }

ST_WEAK_FAMILY(32)
ST_WEAK_FAMILY(64)

ST_EXPORTED void st_hook_rmw(const void *p, enum st_order order, const char *where)
{
    (void)p;
    (void)order;
    (void)where;
}

ST_EXPORTED void st_hook_fence(const char *where) { (void)where; }

ST_EXPORTED void st_hook_copy(void *dst, const void *src, uint64_t bytes, int nt) { (st_copy)(dst, src, bytes, nt); }

ST_EXPORTED void st_hook_drain(void) {}

#endif
