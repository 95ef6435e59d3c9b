/* Casts: what a member says to all others without waiting for any of them.
 *
 * A bound broadcast of few bytes.  Its members have agreed on what it is, so the root writes to its cast ring and goes
 * on, up to a ring ahead of the slowest; the others wait for it alone.  A message that is not what a member has asked for,
 * or not the group's same cast by its count (the members call in different orders), is an error of that member.  What a member gives up breaks the group, as with
 * all collectives, since the ring's numbers are the order of calls.
 */
#ifndef ST_CAST_H
#define ST_CAST_H

#include "st_copy.h"
#include "st_transfer.h"

static inline uint64_t st_cast_bytes(uint64_t n) { return sizeof(struct st_cast) + n * sizeof(struct st_cast_taken); }

static inline struct st_cast *st_cast_at(uint64_t va) { return (struct st_cast *)(uintptr_t)va; }

/* Publishes a zeroed ring in this die's memory; its place in the table is that of a channel to itself. */
static inline void st_cast_open(struct st_group *g, uint64_t va)
{
    g->p2p[g->me].cast = va;
    st_cast_at(va)->nmembers = g->n;
    st_cast_at(va)->magic = ST_MAGIC;
    ST_FAULT(CAST_MADE);
    st_store_seqcst_64(st_channel_word(g, g->me, g->me), va); /* pairs with st_channel_find */
    st_group_wake(g);
}

/* The ring of the cast's root; NULL: there is none yet, or rc says what is wrong with it. */
static inline struct st_cast *st_cast_of(struct st_group *g, const struct st_transfer *t, int *rc)
{
    uint32_t root = t->receive ? t->peer : g->me;
    struct st_p2p *p = &g->p2p[root];
    uint64_t va = p->cast;

    if (__builtin_expect(!va, 0)) {
        va = st_channel_find(g, root, root, st_cast_bytes(g->n), rc);
        if (va && (st_cast_at(va)->magic != ST_MAGIC || st_cast_at(va)->nmembers != g->n)) {
            *rc = ST_ECORRUPT;
            va = 0;
        }
        p->cast = va;
    }
    return va ? st_cast_at(va) : NULL;
}

/* How far all readers have come; where `late`, it gets those that are a whole ring behind. */
static inline uint64_t st_cast_passed(const struct st_group *g, const struct st_cast *c, uint64_t at, uint64_t *late)
{
    uint64_t least = at, count;
    uint32_t j;

    for (j = 0; j < g->n; j++) {
        if (j == g->me)
            continue;
        count = st_load_acquire_64(&c->taken[j].count); /* pairs with st_cast_take */
        if (count < least)
            least = count;
        if (late && count + ST_CAST_SLOTS <= at)
            st_mask_set(late, j);
    }
    return least;
}

/* The root's part.  refused: its array cannot be read, and the others hear of it. */
static inline int st_cast_post(struct st_group *g, struct st_cast *c, struct st_transfer *t, int refused)
{
    struct st_p2p *p = &g->p2p[g->me];
    struct st_cast_slot *s = &c->slot[p->cast_next % ST_CAST_SLOTS];
    uint64_t bytes = refused ? 0 : t->bytes;

    if (p->cast_next - p->cast_passed >= ST_CAST_SLOTS) {
        p->cast_passed = st_cast_passed(g, c, p->cast_next, NULL);
        if (p->cast_next - p->cast_passed >= ST_CAST_SLOTS)
            return ST_AGAIN;
    }
    st_store_relaxed_64(&s->desc, refused ? ST_DESC_NOTHING : t->desc);
    st_store_relaxed_64(&s->count, refused ? 0 : t->count); /* of nothing: who is lost (st_item_lost); nobody here */
    st_store_relaxed_32(&s->bytes, (uint32_t)bytes);
    st_store_relaxed_32(&s->number, g->casts++);
    if (bytes)
        st_copy(bytes <= ST_CAST_INLINE ? s->data : c->data[p->cast_next % ST_CAST_SLOTS], t->buf, bytes, 0);
    st_count(&g->ctx->count.casts, 1);
    t->state = ST_P2P_DONE;
    ST_FAULT(CAST_BEFORE);
    st_store_seqcst_64(&s->seq, ++p->cast_next); /* pairs with st_cast_take */
    ST_FAULT(CAST_AFTER);
    st_group_wake(g);
    return ST_OK;
}

/* A reader's part.  refused: its array cannot be written; the message is passed over. */
static inline int st_cast_take(struct st_group *g, struct st_cast *c, struct st_transfer *t, int refused)
{
    struct st_p2p *p = &g->p2p[t->peer];
    const struct st_cast_slot *s = &c->slot[p->cast_next % ST_CAST_SLOTS];
    int same;

    if (st_load_acquire_64(&s->seq) != p->cast_next + 1) /* pairs with st_cast_post */
        return ST_AGAIN;
    t->m.desc = s->desc;
    t->m.count = s->count;
    t->m.bytes = s->bytes;
    same = t->m.desc == t->desc && t->m.count == t->count && t->m.bytes == t->bytes && s->number == g->casts;
    g->casts++;
    if (same && t->bytes && !refused)
        st_copy(t->buf, t->bytes <= ST_CAST_INLINE ? s->data : c->data[p->cast_next % ST_CAST_SLOTS], t->bytes, 0);
    t->state = ST_P2P_DONE;
    ST_FAULT(CAST_READ);
    st_store_seqcst_64(&c->taken[g->me].count, ++p->cast_next); /* pairs with st_cast_passed */
    ST_FAULT(CAST_TAKEN);
    st_group_wake(g);
    return same ? ST_OK : ST_EMISMATCH;
}

/* One step.  ST_AGAIN: not done yet; anything else is the cast's result. */
static inline int st_cast_progress(struct st_group *g, struct st_transfer *t)
{
    int own, err, rc = st_group_failed(g);
    struct st_cast *c;

    if (rc != ST_OK)
        return rc;
    own = st_ensure_own(g->ctx, t->buf, t->bytes, (int)t->receive);
    err = errno;
    t->refused = own != ST_OK;
    pthread_mutex_lock(&g->p2p_lock); /* threads of this die; and no peer's pages go blank meanwhile */
    c = st_cast_of(g, t, &rc);
    if (c)
        rc = t->receive ? st_cast_take(g, c, t, own != ST_OK) : st_cast_post(g, c, t, own != ST_OK);
    else if (rc == ST_OK)
        rc = ST_AGAIN;
    pthread_mutex_unlock(&g->p2p_lock);
    if (rc == ST_AGAIN || own == ST_OK)
        return rc;
    errno = err;
    return own;
}

/* Whom a cast that has not come to its end waits for. */
static inline void st_cast_missing(struct st_group *g, const struct st_transfer *t, uint64_t *mask)
{
    const struct st_p2p *p = &g->p2p[g->me];

    if (t->receive)
        st_mask_set(mask, t->peer);
    else if (p->cast)
        st_cast_passed(g, st_cast_at(p->cast), p->cast_next, mask);
}

/* The slow look of a wait.  What a root had said before it died counts, until its die is started again. */
static inline int st_cast_look(struct st_group *g, struct st_transfer *t)
{
    uint64_t missing[ST_MASK_WORDS] = {0}, dead[ST_MASK_WORDS] = {0};
    uint32_t j, ndead = 0;
    int rc = st_group_failed(g);

    if (rc != ST_OK)
        return rc;
    st_cast_missing(g, t, missing);
    for (j = g->n; j-- > 0;)
        if (missing[j >> 6] >> (j & 63) & 1)
            st_flight_peer(t->record, g->ranks[j]);
    for (j = 0; j < g->n; j++)
        if ((missing[j >> 6] >> (j & 63) & 1) && !st_member_alive(g, j)) {
            st_mask_set(dead, j);
            ndead++;
        }
    if (!ndead)
        return ST_AGAIN;
    rc = t->receive && st_member_replaced(g, t->peer) ? ST_AGAIN : st_cast_progress(g, t);
    return rc == ST_AGAIN ? st_group_fail(g, ST_EDEAD, ST_PHASE_ARRIVAL, t->desc, dead) : rc;
}

/* Gives a cast up that has not come to its end: the others must not take the next for it.  Returns what counts. */
static inline int st_cast_cancel(struct st_group *g, struct st_transfer *t, int rc)
{
    uint64_t mask[ST_MASK_WORDS] = {0};
    int why;

    if (t->state == ST_P2P_DONE || st_group_failed(g) != ST_OK)
        return rc;
    if (rc == ST_EINTR)
        st_mask_set(mask, g->me);
    else
        st_cast_missing(g, t, mask);
    why = st_group_fail(g, rc == ST_EINTR ? ST_EBROKEN : rc, ST_PHASE_ARRIVAL, t->desc, mask);
    return rc == ST_EINTR ? rc : why;
}

#endif
