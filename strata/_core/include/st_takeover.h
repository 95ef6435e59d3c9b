/* A process that becomes a die which another process was before: it takes over what that one left.
 *
 * The incarnation changes first, so that nobody takes this one for the other.  All pages of the predecessor become pages
 * without access (st_former.h); frames that no page names may still be mapped somewhere, and go into quarantine.  A
 * successor that dies in the middle of this leaves what the next one can take over in its turn.
 */
#ifndef ST_TAKEOVER_H
#define ST_TAKEOVER_H

#include "st_export.h"
#include "st_follow.h"
#include "st_rendezvous.h"
#include "st_space.h"

/* Words of the table: pages with something under them lose their access, and are former ones. */
static inline void st_takeover_pages(struct st_ctx *ctx)
{
    uint64_t *table = st_table(ctx, ctx->rank), *own = st_shadow(ctx, ctx->rank), top = st_table_top(ctx, ctx->rank);
    uint64_t i, w, held;

    for (i = 0; i < top; i++) {
        do { /* who exports frames to the dead clears their words */
            w = st_load_acquire_64(&table[i]); /* pairs with st_former_drop, st_export_scrub */
            held = ST_PTE_STATE(w) == ST_PAGE_FREE ? w : ST_PTE(ST_PTE_FRAME(w), ST_PTE_GEN(w) + 1, ST_PAGE_HELD);
        } while (held != w && !st_cas_acq_rel_64(&table[i], w, held)); /* pairs with st_accept_pages, st_ensure_mapped */
        own[i] = held;
        if (w)
            ctx->fresh = i + 1;
        if (held == w)
            continue;
        st_bits_set(ctx->page_used, i, 1, 1);
        st_bits_set(ctx->former, i, 1, 1);
        ctx->former_pages++;
        if (!st_frame_own(ctx, ST_PTE_FRAME(w)))
            continue;
        w = ST_PTE_FRAME(w) - ctx->rank * ctx->hbm_pages;
        ctx->frames_left -= !st_bit(ctx->frame_used, w);
        st_bits_set(ctx->frame_used, w, 1, 1);
        ctx->frame_refs[w]++;
    }
}

/* Frames that the predecessor had given back, or had never shown, may still be mapped on a peer. */
static inline void st_takeover_frames(struct st_ctx *ctx, uint64_t due)
{
    uint64_t at = 0, n;

    for (;; at += n) {
        at = st_bits_find(ctx->frame_used, ctx->hbm_pages, at, ctx->hbm_pages, 0, &n);
        if (!n)
            return;
        st_bits_set(ctx->frame_used, at, n, 1);
        ctx->frames_left -= n;
        st_quarantine_add(ctx, at, n, due);
    }
}

/* Offers of the predecessor's frames are closing ones: they end when the importers that live have let go. */
static inline void st_takeover_exports(struct st_ctx *ctx)
{
    uint64_t state, va, n, at, i, top = st_table_top(ctx, ctx->rank);
    uint32_t slot;
    int whole;

    for (slot = 0; slot < ST_EXPORT_SLOTS; slot++) {
        struct st_export *e = st_export_at(ctx, ctx->rank, slot);

        state = st_load_relaxed_64(&e->state);
        if (ST_EXPORT_STATE(state) == ST_EXPORT_FREE)
            continue;
        va = st_load_relaxed_64(&e->va);
        n = st_load_relaxed_64(&e->npages);
        at = (va - st_segment(ctx, ctx->rank)) >> ST_PAGE_SHIFT;
        whole = st_owner(ctx, va) == (int64_t)ctx->rank && n && n <= top && at <= top - n;
        for (i = at; whole && i < at + n; i++)
            whole = st_bit(ctx->former, i);
        if (whole) {
            st_bits_set(ctx->former, at, n, 0);
            ctx->former_pages -= n;
            ctx->closing++;
        } else {
            for (i = 0; i < ST_MAX_DIES / 64; i++)
                st_store_relaxed_64(&e->importers[i], 0);
        }
        st_store_seqcst_64(&e->state, (state & ~3ull) | (whole ? ST_EXPORT_CLOSING : ST_EXPORT_FREE)); /* pairs with st_import */
    }
}

/* What the predecessor had imported ends when all peers have accepted this die. */
static inline void st_takeover_imports(struct st_ctx *ctx, uint64_t due)
{
    uint64_t bit = 1ull << (ctx->rank % 64);
    uint32_t die, slot, index;

    for (die = 0; die < ctx->ndies; die++)
        for (slot = 0; slot < ST_EXPORT_SLOTS && die != ctx->rank; slot++) {
            struct st_imported *own = st_imported_at(ctx, die, slot);

            if (!(st_load_relaxed_64(&st_export_at(ctx, die, slot)->importers[ctx->rank / 64]) & bit))
                continue;
            index = die * ST_EXPORT_SLOTS + slot + 1;
            *own = (struct st_imported){.due = due, .since_ns = st_now_ns(), .listed = 1};
            if (ctx->leaving_last)
                ctx->imported[ctx->leaving_last - 1].next = index;
            else
                st_store_relaxed_32(&ctx->leaving_first, index);
            ctx->leaving_last = index;
        }
}

/* Tables in shared memory that only this die writes. */
static inline void st_takeover_tables(struct st_ctx *ctx)
{
    const uint64_t nobody[2] = {0, 0};
    uint32_t i;

    for (i = 0; i < ST_PIN_SLOTS; i++)
        st_store_relaxed_64(&st_pins(ctx, ctx->rank)[i], 0);
    st_store_relaxed_32(&ctx->dies[ctx->rank].pins_more, 0);
    for (i = 0; i < ST_RENDEZVOUS_SLOTS; i++)
        st_rendezvous_write(&st_rendezvous_table(ctx, ctx->rank)[i], nobody, 0, 0, ST_EDEAD, 0);
    for (i = 0; i < ST_FOREIGN_SLOTS; i++) /* after the words */
        st_store_relaxed_64(&st_foreign_at(ctx, ctx->rank, i)->bytes, 0);
}

/* Logs of others: nothing is mapped here yet, and their tables have it all. */
static inline void st_takeover_logs(struct st_ctx *ctx)
{
    uint64_t head;
    uint32_t i;

    for (i = 0; i < ctx->ndies; i++) {
        if (i == ctx->rank)
            continue;
        head = st_log_head(ctx, i);
        ctx->follow[i].at[0].rescan_to = ctx->follow[i].at[1].rescan_to = head;
        st_store_seqcst_64(st_cursor(ctx, i, ctx->rank), head); /* pairs with st_quarantine_over */
    }
}

/* Called with the liveness lock, the base of the window not known yet. */
static inline int st_space_take_over(struct st_ctx *ctx)
{
    struct st_die *me = &ctx->dies[ctx->rank];
    uint64_t life = st_load_relaxed_64(&me->incarnation) + 1;

    st_store_seqcst_64(&me->dead, life); /* the one before; pairs with st_die_marked */
    st_store_seqcst_64(&me->settled, ST_UNSETTLED); /* pairs with st_accept */
    st_store_seqcst_64(&me->incarnation, life); /* pairs with st_die_life, st_pin */
    ST_FAULT(TAKEOVER_BEGUN);
    st_store_seqcst_64(&me->sdma, 0);  /* pairs with st_sdma_of */
    st_store_seqcst_64(&me->times, 0); /* pairs with st_times_find */
    st_store_seqcst_64(&me->invite, 0); /* pairs with st_invite_claim */
    st_store_relaxed_64(&me->reclaim_due, 0);
    st_store_relaxed_32(&ctx->spread.cpus[ctx->rank], 0);
    ctx->taking = 1;
    return ST_OK;
}

/* The rest, which needs the addresses; before the registrar begins. */
static inline void st_takeover_settle(struct st_ctx *ctx)
{
    struct st_die *me = &ctx->dies[ctx->rank];
    uint64_t head = st_load_relaxed_64(&me->log_head) + 1;
    uint32_t i;

    if (!ctx->taking)
        return;
    ctx->taking = 0;
    pthread_mutex_lock(&ctx->lock);
    st_takeover_pages(ctx);
    ST_FAULT(TAKEOVER_PAGES);
    st_takeover_exports(ctx);
    st_takeover_tables(ctx);
    st_takeover_imports(ctx, head);
    st_takeover_frames(ctx, head);
    st_takeover_logs(ctx);
    st_store_relaxed_64(&me->pages_reserved, ctx->hbm_pages - ctx->frames_left);
    st_store_release_64(&me->taken, head); /* pairs with st_accept */
    st_store_seqcst_64(&me->log_head, head); /* pairs with st_log_head: what was ready is not any more */
    ST_FAULT(TAKEOVER_TAKEN);
    st_store_seqcst_64(&me->settled, st_load_relaxed_64(&me->incarnation)); /* pairs with st_accept */
    pthread_mutex_unlock(&ctx->lock);
    for (i = 0; i < ctx->ndies; i++)
        if (i != ctx->rank)
            st_wake(&ctx->dies[i].bell, &ctx->dies[i].bell_sleepers);
}

#endif
