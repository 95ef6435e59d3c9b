/* The only place that spells memory orders.
 *
 * Types are plain integers in shared memory; the order is in the name.  A
 * store_release makes all earlier writes of its thread visible to a thread
 * whose load_acquire reads the stored value; each release in this code base
 * names, in a "pairs with" comment, the acquire that it publishes to.  8 bytes
 * is the widest: 16-byte atomics fall back to a per-process lock, which is no
 * lock at all between dies.
 */
#ifndef ST_ATOMIC_H
#define ST_ATOMIC_H

#include <stdint.h>

_Static_assert(__atomic_always_lock_free(8, 0), "8-byte atomics must be lock-free");

#if defined(__x86_64__) || defined(__i386__)
#define ST_STORE_BARRIER() ((void)0)
#else
#define ST_STORE_BARRIER() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#endif

#define ST_ATOMIC_FAMILY(bits)                                                            \
    static inline uint##bits##_t st_load_relaxed_##bits(const uint##bits##_t *p)          \
    {                                                                                     \
        return __atomic_load_n(p, __ATOMIC_RELAXED);                                      \
    }                                                                                     \
    static inline uint##bits##_t st_load_acquire_##bits(const uint##bits##_t *p)          \
    {                                                                                     \
        return __atomic_load_n(p, __ATOMIC_ACQUIRE);                                      \
    }                                                                                     \
    static inline void st_store_relaxed_##bits(uint##bits##_t *p, uint##bits##_t v)       \
    {                                                                                     \
        __atomic_store_n(p, v, __ATOMIC_RELAXED);                                         \
    }                                                                                     \
    static inline void st_store_release_##bits(uint##bits##_t *p, uint##bits##_t v)       \
    {                                                                                     \
        __atomic_store_n(p, v, __ATOMIC_RELEASE);                                         \
    }                                                                                     \
    /* Also a full barrier: nothing after it moves before it.  The store alone is that on x86 only. */ \
    static inline void st_store_seqcst_##bits(uint##bits##_t *p, uint##bits##_t v)        \
    {                                                                                     \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                         \
        ST_STORE_BARRIER();                                                               \
    }                                                                                     \
    static inline uint##bits##_t st_load_seqcst_##bits(const uint##bits##_t *p)           \
    {                                                                                     \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                      \
    }                                                                                     \
    static inline uint##bits##_t st_add_acq_rel_##bits(uint##bits##_t *p, uint##bits##_t v) \
    {                                                                                     \
        return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);                                \
    }                                                                                     \
    static inline uint##bits##_t st_add_seqcst_##bits(uint##bits##_t *p, uint##bits##_t v) \
    {                                                                                     \
        return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                                \
    }                                                                                     \
    static inline uint##bits##_t st_or_acq_rel_##bits(uint##bits##_t *p, uint##bits##_t v) \
    {                                                                                     \
        return __atomic_fetch_or(p, v, __ATOMIC_ACQ_REL);                                 \
    }                                                                                     \
    static inline uint##bits##_t st_and_seqcst_##bits(uint##bits##_t *p, uint##bits##_t v) \
    {                                                                                     \
        return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST);                                \
    }                                                                                     \
    /* The value that v replaced. */                                                      \
    static inline uint##bits##_t st_swap_acq_rel_##bits(uint##bits##_t *p, uint##bits##_t v) \
    {                                                                                     \
        return __atomic_exchange_n(p, v, __ATOMIC_ACQ_REL);                               \
    }                                                                                     \
    /* 1 if *p was old and is now v. */                                                   \
    static inline int st_cas_acq_rel_##bits(uint##bits##_t *p, uint##bits##_t old,        \
                                            uint##bits##_t v)                             \
    {                                                                                     \
        return __atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_ACQ_REL,               \
                                           __ATOMIC_ACQUIRE);                             \
    }

ST_ATOMIC_FAMILY(32)
ST_ATOMIC_FAMILY(64)

#undef ST_ATOMIC_FAMILY

/* For accumulation, whose order other synchronisation makes: 1 if *p was old and is now v. */
#define ST_ATOMIC_ELEMENT(bits)                                                           \
    static inline int st_cas_relaxed_##bits(uint##bits##_t *p, uint##bits##_t old,        \
                                            uint##bits##_t v)                             \
    {                                                                                     \
        return __atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_RELAXED,               \
                                           __ATOMIC_RELAXED);                             \
    }

ST_ATOMIC_ELEMENT(8)
ST_ATOMIC_ELEMENT(16)
ST_ATOMIC_ELEMENT(32)
ST_ATOMIC_ELEMENT(64)

#undef ST_ATOMIC_ELEMENT

static inline uint8_t st_load_relaxed_8(const uint8_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline uint16_t st_load_relaxed_16(const uint16_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }

/* Orders all earlier loads and stores before all later ones. */
static inline void st_fence_seqcst(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

/* Tells the processor that this is a polling loop. */
static inline void st_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

#include "st_checked.h"

#endif
