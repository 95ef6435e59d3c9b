/* Which frames lie under a range of addresses: two ranges may be one memory. */
#ifndef ST_ALIAS_H
#define ST_ALIAS_H

#include "st_vmm.h"

/* The table's word for the page that holds va, of whichever die; 0: there is none. */
static inline uint64_t st_page_word(const struct st_ctx *ctx, uint64_t va)
{
    int64_t die = st_owner(ctx, va);
    uint64_t at = die < 0 ? 0 : (va - st_segment(ctx, (uint32_t)die)) >> ST_PAGE_SHIFT;

    if (die < 0 || at >= st_table_top(ctx, (uint32_t)die))
        return 0;
    return st_load_acquire_64(&st_table(ctx, (uint32_t)die)[at]); /* pairs with st_pages_publish */
}

/* Is there memory of the UB space under a page with this word? */
static inline int st_alias_frame(uint64_t word)
{
    return ST_PTE_STATE(word) != ST_PAGE_FREE && !ST_PTE_FOREIGN(word);
}

/* May the frames under [va, va + bytes) lie under other addresses as well?  Those of
 * ordinary arrays do not. */
static inline int st_alias_possible(const struct st_ctx *ctx, uint64_t va, uint64_t bytes)
{
    uint64_t at, w, step;

    for (at = va; at < va + bytes; at += step) {
        step = ST_PAGE_BYTES - (at & (ST_PAGE_BYTES - 1));
        w = st_page_word(ctx, at);
        if (st_alias_frame(w) &&
            (!st_frame_own(ctx, ST_PTE_FRAME(w)) ||
             st_load_relaxed_32(&ctx->frame_refs[ST_PTE_FRAME(w) - ctx->rank * ctx->hbm_pages]) > 1))
            return 1;
    }
    return 0;
}

/* Length of the piece of [va, end) from va on that lies in one piece in the UB space, at
 * *where; ~0 there: not in it. */
static inline uint64_t st_alias_piece(const struct st_ctx *ctx, uint64_t va, uint64_t end, uint64_t *where)
{
    uint64_t w = st_page_word(ctx, va), v, at = (va & ~(ST_PAGE_BYTES - 1)) + ST_PAGE_BYTES, pages;

    *where = st_alias_frame(w) ? (ST_PTE_FRAME(w) << ST_PAGE_SHIFT) + (va & (ST_PAGE_BYTES - 1)) : ~0ull;
    for (pages = 1; at < end; at += ST_PAGE_BYTES, pages++) {
        v = st_page_word(ctx, at);
        if (!st_alias_frame(w) || !st_alias_frame(v) || ST_PTE_FRAME(v) != ST_PTE_FRAME(w) + pages)
            break;
    }
    return (at < end ? at : end) - va;
}

/* Do [a, a + na) and [b, b + nb) share memory?  With a == b: is any byte of the range
 * there twice? */
static inline int st_alias_shared(const struct st_ctx *ctx, uint64_t a, uint64_t na, uint64_t b, uint64_t nb)
{
    uint64_t i, j, pa, pb, x, y;

    if (!st_alias_possible(ctx, a, na) || !st_alias_possible(ctx, b, nb))
        return 0;
    for (i = a; i < a + na; i += pa) {
        pa = st_alias_piece(ctx, i, a + na, &x);
        for (j = a == b ? i + pa : b; x != ~0ull && j < b + nb; j += pb) {
            pb = st_alias_piece(ctx, j, b + nb, &y);
            if (y != ~0ull && x < y + pb && y < x + pa)
                return 1;
        }
    }
    return 0;
}

#endif
