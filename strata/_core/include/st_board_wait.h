/* Boards: how members of a group tell each other what they have for a round, and that they have read it.
 *
 * A member posts a round on its own board, reads the others' posts and what these point at, and writes `done` for that
 * round on each of their boards.  A slot is used again once all have done the round that had it.  A member that is masked
 * here is neither read nor waited for, and is told nothing; one that others have masked finds that they have gone on.
 *
 * Nothing of the group is changed but its wake word.  Several threads of a die may be at its boards, each at other rounds.
 */
#ifndef ST_BOARD_WAIT_H
#define ST_BOARD_WAIT_H

#include "st_abi_moe.h"
#include "st_group.h"

/* All members' boards, as one of them sees them; private to the die. */
struct st_boards {
    struct st_group *g;
    struct st_board_head **at;    /* [n] */
    uint64_t mask[ST_MASK_WORDS]; /* members that this one leaves out */
};

enum st_board_what { ST_BOARD_POSTS, ST_BOARD_DONE };

static inline int st_board_masked(const struct st_boards *b, uint32_t j)
{
    return st_load_acquire_64(&b->mask[j >> 6]) >> (j & 63) & 1; /* pairs with st_board_leave_out */
}

static inline void st_board_leave_out(struct st_boards *b, uint32_t j, int out)
{
    uint64_t bit = 1ull << (j & 63);

    if (out)
        st_or_acq_rel_64(&b->mask[j >> 6], bit); /* pairs with st_board_masked */
    else
        st_and_seqcst_64(&b->mask[j >> 6], ~bit); /* pairs with st_board_masked */
}

/* Makes zeroed memory, aligned to ST_LINE, a board.  Before any other member has its address. */
static inline void st_board_format(void *memory, uint32_t n)
{
    struct st_board_head *h = memory;

    memset(h, 0, st_board_bytes(n));
    h->nmembers = n;
    h->rounds = ST_BOARD_ROUNDS;
    ST_FAULT(BOARD_FORMATTED);
    st_store_release_64(&h->magic, ST_BOARD_MAGIC); /* pairs with st_board_attach */
}

static inline int st_board_reach(const struct st_boards *b, uint32_t j)
{
    return j == b->g->me ? ST_OK
                         : st_ensure_mapped(b->g->ctx, (uint64_t)(uintptr_t)b->at[j], st_board_bytes(b->g->n), 1);
}

/* Member j's board is at va.  ST_ECORRUPT: there is none of it; ST_EREG: it cannot be read. */
static inline int st_board_attach(struct st_boards *b, uint32_t j, uint64_t va)
{
    struct st_board_head *h = (struct st_board_head *)(uintptr_t)va;
    int rc;

    if (va % ST_LINE || st_owner(b->g->ctx, va) != (int64_t)b->g->ranks[j])
        return ST_ECORRUPT;
    b->at[j] = h;
    rc = st_board_reach(b, j);
    if (rc != ST_OK)
        return rc;
    return st_load_acquire_64(&h->magic) == ST_BOARD_MAGIC && /* pairs with st_board_format */
                   h->nmembers == b->g->n && h->rounds == ST_BOARD_ROUNDS
               ? ST_OK
               : ST_ECORRUPT;
}

/* ---- waiting -------------------------------------------------------------------- */

/* ST_OK: it is there; ST_AGAIN: not yet; ST_EBROKEN: member j is beyond this round, so it has left this member out. */
static inline int st_board_there(const struct st_boards *b, int what, uint64_t round, uint32_t j)
{
    uint64_t e;

    if (what == ST_BOARD_DONE) /* pairs with st_board_tell */
        return st_load_acquire_64(st_board_mark(b->at[b->g->me], b->g->n, round, j)) >= round ? ST_OK : ST_AGAIN;
    e = st_load_acquire_64(&st_board_slot(b->at[j], round)->epoch); /* pairs with st_board_publish */
    return e == round ? ST_OK : (e & ~ST_BOARD_WRITING) > round ? ST_EBROKEN : ST_AGAIN;
}

struct st_board_wait {
    int what;
    uint64_t round;
    int masking;                     /* members that do not come are masked instead */
    uint64_t *waited;                /* [n] or NULL: ns until each was there */
    uint64_t missing[ST_MASK_WORDS]; /* members that are not there yet */
    uint64_t nmissing;
    uint32_t late;                   /* the last that was found there */
};

static inline void st_board_arrived(struct st_board_wait *w, uint32_t j)
{
    w->missing[j >> 6] &= ~(1ull << (j & 63));
    w->nmissing--;
    w->late = j;
}

/* Those in `who` will not come. */
static inline int st_board_lost(struct st_boards *b, struct st_board_wait *w, const uint64_t *who, int status,
                                uint64_t *mask)
{
    uint32_t j;

    for (j = 0; j < b->g->n; j++) {
        if (!(who[j >> 6] & w->missing[j >> 6] & 1ull << (j & 63)))
            continue;
        if (w->masking) {
            st_board_leave_out(b, j, 1);
            st_board_arrived(w, j);
        } else {
            st_mask_set(mask, j);
        }
    }
    return w->masking ? ST_OK : status;
}

/* Goes once over those that are missing. */
static inline int st_board_scan(struct st_boards *b, struct st_board_wait *w, uint64_t began, uint64_t *mask)
{
    uint64_t gone[ST_MASK_WORDS] = {0}, left;
    uint32_t k, j;
    int rc = ST_OK, one;

    for (k = 0; k < (b->g->n + 63) / 64; k++) {
        for (left = w->missing[k]; left; left &= left - 1) {
            j = k * 64 + (uint32_t)__builtin_ctzll(left);
            one = st_board_there(b, w->what, w->round, j);
            if (one == ST_AGAIN)
                continue;
            if (one != ST_OK) {
                st_mask_set(gone, j);
                rc = one;
                continue;
            }
            if (w->waited)
                w->waited[j] = began ? st_now_ns() - began : 0;
            st_board_arrived(w, j);
        }
    }
    return rc == ST_OK ? ST_OK : st_board_lost(b, w, gone, rc, mask);
}

/* The slow look of a wait: is somebody who is missing dead, or has it given up, or is time over? */
static inline int st_board_look(struct st_boards *b, struct st_board_wait *w, int give_up, uint64_t *mask)
{
    const int status[3] = {ST_EDEAD, ST_EBROKEN, ST_ETIMEOUT};
    uint64_t lost[3][ST_MASK_WORDS];
    uint32_t count[3] = {0, 0, 0}, j, why;
    int rc = ST_OK;

    if (give_up == ST_EINTR)
        return ST_EINTR;
    memset(lost, 0, sizeof lost);
    for (j = 0; j < b->g->n; j++) {
        if (!(w->missing[j >> 6] >> (j & 63) & 1))
            continue;
        why = 3;
        if (st_load_acquire_32(&b->at[j]->failed)) /* pairs with st_board_fail */
            why = 1;
        else if (!st_member_alive(b->g, j))
            why = 0;
        else if (give_up == ST_ETIMEOUT)
            why = 2;
        if (why < 3 && st_board_there(b, w->what, w->round, j) == ST_AGAIN) { /* it may have come just before it went */
            st_mask_set(lost[why], j);
            count[why]++;
        }
    }
    for (why = 0; why < 3 && rc == ST_OK; why++)
        if (count[why])
            rc = st_board_lost(b, w, lost[why], status[why], mask);
    return rc;
}

/* Waits until all members that are not masked are there.  ST_EDEAD, ST_ETIMEOUT: those in mask died, or did not come;
 * ST_EBROKEN: they have given up, or have left this member out; ST_EREG: their boards are gone; ST_EINTR. */
static inline int st_board_await(struct st_boards *b, struct st_board_wait *w, uint64_t timeout_ns, uint64_t *mask)
{
    struct st_group *g = b->g;
    struct st_tracer *t = st_trace_on(g->ctx);
    struct st_flight_record *record;
    struct st_waiter waiter;
    uint64_t began;
    uint32_t j;
    int rc;

    st_trace_begins(t);
    memset(w->missing, 0, sizeof w->missing);
    w->nmissing = 0;
    for (j = 0; j < g->n; j++) {
        if (w->waited)
            w->waited[j] = 0;
        if (st_board_masked(b, j) || (w->what == ST_BOARD_DONE && j == g->me))
            continue;
        if ((rc = st_board_reach(b, j)) != ST_OK) {
            st_mask_set(mask, j);
            return st_member_replaced(g, j) ? ST_EDEAD : rc;
        }
        st_mask_set(w->missing, j);
        w->nmissing++;
    }
    rc = st_board_scan(b, w, 0, mask);
    if (rc != ST_OK || w->nmissing == 0)
        return rc;
    st_count(&g->ctx->count.waits, 1);
    began = st_now_ns();
    record = st_flight_begin(g->ctx, w->what == ST_BOARD_DONE ? ST_FLIGHT_DRAIN : ST_FLIGHT_POSTS, ST_FLIGHT_NOBODY,
                             g->id, w->round, 0, w->missing[0], 0);
    st_flight_time(g->ctx, record);
    st_wait_begin(&waiter, &g->ctx->wait, &g->header->wake_word, &g->header->sleepers, timeout_ns);
    while (rc == ST_OK && w->nmissing) {
        rc = st_wait_step(&waiter);
        if (__builtin_expect(rc != ST_OK, 0))
            rc = st_board_look(b, w, rc, mask);
        if (rc == ST_OK)
            rc = st_board_scan(b, w, began, mask);
        st_flight_count(record, w->missing[0]);
    }
    st_wait_end(&waiter);
    st_flight_end(g->ctx, record, rc, 1);
    ST_TRACE(t, ST_TRACE_WAIT, 0, g->ranks[w->late], w->what == ST_BOARD_DONE ? ST_TRACE_DRAIN : ST_TRACE_POSTS, w->round);
    return rc;
}

#endif
