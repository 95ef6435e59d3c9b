/* Copying bytes, with or without the cache.
 *
 * Non-temporal stores skip the read for ownership of the destination and leave
 * the caches to others; they pay above roughly 1 MiB per die and cost below.
 * They are weakly ordered even on x86: st_stream_fence() must come between them
 * and the release store that publishes them.  st_copy has it inside.
 *
 * Where there is no such store that is worth it (aarch64), and under
 * ThreadSanitizer, which does not see intrinsics, all of it is memmove.
 */
#ifndef ST_COPY_H
#define ST_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ST_TSAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) && !defined(ST_TSAN)
#define ST_TSAN 1
#endif

#if defined(__x86_64__) && !defined(ST_TSAN)
/* Builtins, since the header of the intrinsics drags in an allocator. */
#define ST_STREAM 1
typedef long long st_v2i64 __attribute__((vector_size(16), may_alias));
typedef st_v2i64 st_v2i64_anywhere __attribute__((aligned(1)));
#if defined(__clang__)
#define ST_STORE_PAST(to, value) __builtin_nontemporal_store((value), (to))
#else
#define ST_STORE_PAST(to, value) __builtin_ia32_movntdq((to), (value))
#endif
#else
#define ST_STREAM 0
#endif

#define ST_LINE 64u

static inline void st_stream_fence(void)
{
#if ST_STREAM
    __builtin_ia32_sfence();
#endif
}

/* Copies without a fence.  Whole lines of dst go past the cache, a partial line
 * at either end does not.  src and dst do not overlap. */
static inline void st_stream(void *dst, const void *src, uint64_t bytes)
{
#if ST_STREAM
    uint8_t *d = (uint8_t *)dst;
    const uint8_t *s = (const uint8_t *)src;
    uint64_t head = (0u - (uintptr_t)d) & (ST_LINE - 1u);
    if (bytes < head + ST_LINE) {
        memmove(d, s, (size_t)bytes);
        return;
    }
    if (head) {
        memmove(d, s, (size_t)head);
        d += head;
        s += head;
        bytes -= head;
    }
    for (; bytes >= ST_LINE; bytes -= ST_LINE, d += ST_LINE, s += ST_LINE) {
        const st_v2i64_anywhere *from = (const st_v2i64_anywhere *)(const void *)s;
        st_v2i64 a = from[0], b = from[1], c = from[2], e = from[3];
        st_v2i64 *to = (st_v2i64 *)(void *)d;
        ST_STORE_PAST(to, a);
        ST_STORE_PAST(to + 1, b);
        ST_STORE_PAST(to + 2, c);
        ST_STORE_PAST(to + 3, e);
    }
    if (bytes)
        memmove(d, s, (size_t)bytes);
#else
    memmove(dst, src, (size_t)bytes);
#endif
}

/* dst and src are equal or do not overlap, unless somebody has written over the addresses: then the data is wrong, and
 * that is all (memmove, which is the same function in the C library).  With nt, the bytes are visible to
 * whoever acquires a later release store of this thread, as without. */
static inline void st_copy(void *dst, const void *src, uint64_t bytes, int nt)
{
    if (!bytes || dst == src)
        return;
    if (!nt) {
        memmove(dst, src, (size_t)bytes);
        return;
    }
    st_stream(dst, src, bytes);
    st_stream_fence();
}

#ifdef ST_CHECKED
#include "st_checked.h"
#define st_copy(dst, src, bytes, nt) st_hook_copy((dst), (src), (bytes), (nt))
#endif

#endif
