/* Pins: memory of other dies that a die holds on to by its address.
 *
 * Survivors look at the memory of a group after its owner has died: its failure, and who has called shrink().  Should
 * the owner be started again, its successor takes the HBM over, but for pages that some die which runs has pinned.
 * Whoever pins looks at the owner's incarnation afterwards; the successor changes that first and looks at pins later
 * (all sequentially consistent): one of the two sees the other.
 */
#ifndef ST_PIN_H
#define ST_PIN_H

#include "st_bits.h"
#include "st_live.h"

#define ST_PIN_UNLISTED (ST_PIN_SLOTS + 1u)
#define ST_PIN_PAGES 0xffffull

_Static_assert(ST_PAGE_BYTES * ST_PIN_PAGES > (1ull << 36), "a pin covers any group's memory");

static inline uint64_t *st_pins(const struct st_ctx *ctx, uint32_t die)
{
    return ctx->pins + (uint64_t)die * ST_PIN_SLOTS;
}

/* First page of the window that a pin covers, and how many. */
static inline uint64_t st_pin_page(uint64_t pin) { return pin >> 16; }
static inline uint64_t st_pin_count(uint64_t pin) { return pin & ST_PIN_PAGES; }

/* Pins a range of some die's segment; returns what st_let_go takes, never 0. */
static inline uint32_t st_pin(struct st_ctx *ctx, uint64_t va, uint64_t bytes)
{
    uint64_t first = (va - ctx->base) >> ST_PAGE_SHIFT, last = (va + bytes - 1 - ctx->base) >> ST_PAGE_SHIFT;
    uint64_t *pins = st_pins(ctx, ctx->rank);
    uint32_t i;

    for (i = 0; i < ST_PIN_SLOTS && last - first < ST_PIN_PAGES; i++)
        if (!st_load_relaxed_64(&pins[i]) &&
            st_cas_acq_rel_64(&pins[i], 0, first << 16 | (last - first + 1))) { /* pairs with st_pins_mark */
            st_fence_seqcst();
            return i + 1;
        }
    st_add_seqcst_32(&ctx->dies[ctx->rank].pins_more, 1); /* pairs with st_pins_mark */
    return ST_PIN_UNLISTED;
}

/* Marks which pages of a die's segment another one has pinned, but for its pin `without`.  1: it may be any. */
static inline int st_pins_mark(const struct st_ctx *ctx, uint32_t reader, uint32_t die, uint32_t without, uint64_t *map)
{
    const uint64_t *pins = st_pins(ctx, reader);
    uint64_t begin = (uint64_t)die * ctx->seg_pages, end = begin + ctx->seg_pages, pin, from, to;
    uint32_t i, more = st_load_seqcst_32(&ctx->dies[reader].pins_more); /* pairs with st_pin */

    if (more > (without == ST_PIN_UNLISTED))
        return 1;
    for (i = 0; i < ST_PIN_SLOTS; i++) {
        pin = st_load_seqcst_64(&pins[i]); /* pairs with st_pin */
        if (!pin || i + 1 == without)
            continue;
        from = st_pin_page(pin) > begin ? st_pin_page(pin) : begin;
        to = st_pin_page(pin) + st_pin_count(pin) < end ? st_pin_page(pin) + st_pin_count(pin) : end;
        if (from < to)
            st_bits_set(map, from - begin, to - from, 1);
    }
    return 0;
}

#endif
