/* Point to point: send and receive with tags.
 *
 * Small messages travel in the channel's slots; a sender of a large one posts its address and the receiver pulls.  Both
 * are small state machines that a caller drives with st_p2p_progress() until it does not say ST_AGAIN; so one thread can
 * drive many, in any order.
 */
#ifndef ST_P2P_H
#define ST_P2P_H

#include "st_cast.h"

/* ---- send ---------------------------------------------------------------------- */

static inline int st_send_self(struct st_group *g, struct st_transfer *t)
{
    struct st_message m = {0, t->desc, t->count, t->bytes, 0, t->tag, ST_MSG_EAGER, 0, 0};

    t->state = ST_P2P_DONE;
    st_count(&g->ctx->count.sends, 1);
    return st_unexpected_keep(g, g->me, &m, t->buf ? t->buf : "");
}

static inline struct st_reply *st_send_reply(struct st_group *g, const struct st_transfer *t)
{
    return &st_channel_at(g->p2p[t->peer].out)->reply[t->m.reply];
}

static inline int st_send_post(struct st_group *g, struct st_transfer *t)
{
    struct st_p2p *p = &g->p2p[t->peer];
    struct st_channel *c = st_channel_at(p->out);
    uint32_t i = (uint32_t)(p->head % ST_CHANNEL_SLOTS);
    struct st_message *m = &c->slot[i];
    uint32_t kind = t->bytes <= ST_EAGER_BYTES ? ST_MSG_EAGER : ST_MSG_RENDEZVOUS;

    if (p->head - st_load_acquire_64(&c->tail) >= ST_CHANNEL_SLOTS) /* pairs with st_recv_take */
        return ST_AGAIN;
    t->m.reply = kind == ST_MSG_EAGER ? 0 : st_reply_free(c, p->head);
    if (t->m.reply == ST_CHANNEL_REPLIES)
        return ST_AGAIN; /* as many large messages wait for their receiver */
    st_store_relaxed_64(&m->desc, t->desc);
    st_store_relaxed_64(&m->count, t->count);
    st_store_relaxed_64(&m->bytes, t->bytes);
    st_store_relaxed_64((uint64_t *)(void *)&m->tag, (uint64_t)t->tag);
    st_store_relaxed_64(&m->va, (uint64_t)(uintptr_t)t->buf);
    st_store_relaxed_32(&m->kind, kind);
    st_store_relaxed_32(&m->reply, t->m.reply);
    t->seq = ++p->head;
    st_count(&g->ctx->count.sends, 1);
    if (kind == ST_MSG_EAGER) {
        if (t->bytes)
            st_copy(c->eager[i], t->buf, t->bytes, 0);
        t->state = ST_P2P_DONE;
    } else {
        st_store_relaxed_64(&c->reply[t->m.reply].ack, t->seq << 8 | ST_ACK_POSTED);
        t->state = ST_P2P_POSTED;
    }
    ST_FAULT(SEND_BEFORE);
    st_store_seqcst_64(&m->seq, t->seq); /* pairs with st_recv_take */
    ST_FAULT(SEND_AFTER);
    st_group_wake(g);
    return t->state == ST_P2P_DONE ? ST_OK : ST_AGAIN;
}

static inline int st_send_acked(struct st_group *g, struct st_transfer *t)
{
    struct st_reply *r = st_send_reply(g, t);
    uint64_t ack = st_load_acquire_64(&r->ack); /* pairs with st_recv_finish */

    if (ack == (t->seq << 8 | ST_ACK_POSTED) || ack == (t->seq << 8 | ST_ACK_CLAIMED))
        return ST_AGAIN;
    t->state = ST_P2P_DONE;
    if (ack >> 8 != t->seq)
        return ST_ECORRUPT;
    t->m.desc = st_load_relaxed_64(&r->desc);
    t->m.count = st_load_relaxed_64(&r->count);
    st_store_release_64(&r->ack, t->seq << 8 | ST_ACK_COLLECTED); /* pairs with st_reply_free */
    switch (ack & 255) {
    case ST_ACK_DONE: return ST_OK;
    case ST_ACK_REFUSED: return ST_EMISMATCH;
    case ST_ACK_FAILED: return ST_EREG;
    default: return ST_ECORRUPT;
    }
}

/* ---- receive ------------------------------------------------------------------------ */

static inline int st_recv_listed(struct st_group *g, struct st_transfer *t)
{
    struct st_p2p *p = &g->p2p[t->peer];
    struct st_unexpected **at, *u;

    for (at = &p->first; (u = *at) != NULL; at = &u->next) {
        if (u->m.tag != t->tag)
            continue;
        *at = u->next;
        if (p->last == &u->next)
            p->last = at;
        t->m = u->m;
        t->matched = u;
        return 1;
    }
    return 0;
}

/* The tags, `most` at most, under which a peer has sent what nobody has asked for; how many. */
static inline uint32_t st_recv_others(struct st_group *g, uint32_t peer, int64_t *tags, uint32_t most)
{
    const struct st_unexpected *u;
    uint32_t n = 0, k;

    pthread_mutex_lock(&g->p2p_lock);
    for (u = g->p2p[peer].first; u && n < most; u = u->next) {
        for (k = 0; k < n && tags[k] != u->m.tag; k++) {
        }
        if (k == n)
            tags[n++] = u->m.tag;
    }
    pthread_mutex_unlock(&g->p2p_lock);
    return n;
}

/* Takes messages out of the slots until one matches.  Its eager bytes are
 * copied at once, since the slot is the sender's again afterwards. */
static inline int st_recv_take(struct st_group *g, struct st_transfer *t)
{
    int rc = ST_OK;
    struct st_channel *c = st_channel_from(g, t->peer, &rc);
    uint64_t tail;

    if (!c)
        return rc == ST_OK ? ST_AGAIN : rc;
    for (;;) {
        struct st_message m;
        uint32_t i;
        int mine;

        tail = st_load_relaxed_64(&c->tail);
        i = (uint32_t)(tail % ST_CHANNEL_SLOTS);
        if (st_load_acquire_64(&c->slot[i].seq) != tail + 1) /* pairs with st_send_post */
            return ST_AGAIN;
        m = c->slot[i];
        if ((m.kind != ST_MSG_EAGER && m.kind != ST_MSG_RENDEZVOUS) ||
            (m.kind == ST_MSG_EAGER && m.bytes > ST_EAGER_BYTES) || m.reply >= ST_CHANNEL_REPLIES)
            return ST_ECORRUPT;
        mine = m.tag == t->tag;
        if (mine) {
            t->m = m;
            if (m.kind == ST_MSG_EAGER && m.bytes && m.bytes == t->bytes && m.count == t->count && m.desc == t->desc)
                st_copy(t->buf, c->eager[i], m.bytes, 0);
        } else {
            rc = st_unexpected_keep(g, t->peer, &m, m.kind == ST_MSG_EAGER ? c->eager[i] : NULL);
            if (rc != ST_OK)
                return rc;
        }
        ST_FAULT(RECV_MATCHED);
        st_store_seqcst_64(&c->tail, tail + 1); /* pairs with st_send_post */
        ST_FAULT(RECV_TAKEN);
        st_group_wake(g);
        if (mine)
            return ST_OK;
    }
}

/* The matched message's bytes, and the answer to its sender. */
static inline int st_recv_finish(struct st_group *g, struct st_transfer *t)
{
    int ok = t->m.desc == t->desc && t->m.count == t->count && t->m.bytes == t->bytes;
    int rc = ok ? ST_OK : ST_EMISMATCH;
    struct st_reply *r;

    t->state = ST_P2P_DONE;
    if (t->m.kind == ST_MSG_EAGER) {
        if (t->matched && ok && t->bytes)
            memcpy(t->buf, t->matched->data, t->bytes);
        goto out;
    }
    r = &st_channel_at(g->p2p[t->peer].channel)->reply[t->m.reply];
    if (!st_cas_acq_rel_64(&r->ack, t->m.seq << 8 | ST_ACK_POSTED, /* pairs with st_p2p_cancel */
                           t->m.seq << 8 | ST_ACK_CLAIMED)) {
        t->state = ST_P2P_NEW; /* cancelled: as if it had never been sent */
        rc = ST_AGAIN;
        goto out;
    }
    ST_FAULT(RECV_CLAIMED);
    if (ok) {
        rc = st_ensure_mapped(g->ctx, t->m.va, t->bytes, 0);
        if (rc == ST_OK)
            st_copy(t->buf, (const void *)(uintptr_t)t->m.va, t->bytes, t->bytes >= (4u << 20));
        if (st_member_replaced(g, t->peer))
            rc = ST_EDEAD; /* what was copied may be anything */
    } else {
        st_store_relaxed_64(&r->desc, t->desc); /* if it has been withdrawn, the reply may be another's */
        st_store_relaxed_64(&r->count, t->count);
    }
    ST_FAULT(RECV_COPIED);
    if (!st_cas_acq_rel_64(&r->ack, t->m.seq << 8 | ST_ACK_CLAIMED, /* pairs with st_p2p_cancel, st_send_acked */
                           t->m.seq << 8 | (rc == ST_OK ? ST_ACK_DONE : ok ? ST_ACK_FAILED : ST_ACK_REFUSED))) {
        t->state = ST_P2P_NEW; /* withdrawn while it was copied: what came may be anything */
        rc = ST_AGAIN;
        goto out;
    }
    ST_FAULT(RECV_ACKED);
    st_fence_seqcst(); /* st_wake wants a seqcst store before it */
    st_group_wake(g);
out:
    if (t->matched) {
        g->release(t->matched);
        t->matched = NULL;
    }
    return rc;
}

/* ---- driving ---------------------------------------------------------------------------- */

/* One step.  ST_AGAIN: not done yet; anything else is the transfer's result. */
static inline int st_p2p_progress(struct st_group *g, struct st_transfer *t)
{
    int rc;

    if (t->cast)
        return st_cast_progress(g, t);
    if (t->state == ST_P2P_NEW) {
        rc = st_ensure_own(g->ctx, t->buf, t->bytes, (int)t->receive);
        t->refused = rc != ST_OK;
        if (rc != ST_OK)
            return rc;
        pthread_mutex_lock(&g->p2p_lock);
        if (!t->receive) {
            rc = t->peer == g->me ? st_send_self(g, t) : st_send_post(g, t);
        } else {
            rc = st_recv_listed(g, t) ? ST_OK : t->peer == g->me ? ST_AGAIN : st_recv_take(g, t);
            if (rc == ST_OK) {
                t->state = ST_P2P_MATCHED;
                st_count(&g->ctx->count.recvs, 1);
            }
        }
        pthread_mutex_unlock(&g->p2p_lock);
        if (rc != ST_OK || !t->receive)
            return rc;
    }
    return t->receive ? st_recv_finish(g, t) : st_send_acked(g, t);
}

/* Gives a transfer up.  Takes back a send that has not been answered, also from a receiver that is reading it (and may be stopped there): it
 * finds out before it believes what it has read.  So the bytes are the sender's again at once; returns rc or the outcome. */
static inline int st_p2p_cancel(struct st_group *g, struct st_transfer *t, int rc)
{
    struct st_reply *r;

    if (t->cast)
        return st_cast_cancel(g, t, rc);
    if (t->receive || t->state != ST_P2P_POSTED)
        return rc;
    r = st_send_reply(g, t);
    if (!st_cas_acq_rel_64(&r->ack, t->seq << 8 | ST_ACK_POSTED, t->seq << 8 | ST_ACK_CANCELLED) &&
        !st_cas_acq_rel_64(&r->ack, t->seq << 8 | ST_ACK_CLAIMED, /* both pair with st_recv_finish */
                           t->seq << 8 | ST_ACK_CANCELLED))
        return st_send_acked(g, t);
    t->state = ST_P2P_DONE;
    return rc;
}

/* Nothing is to be hoped for from the peer: it is dead and has left nothing; or the group has failed (ST_EBROKEN). */
static inline int st_p2p_look(struct st_group *g, struct st_transfer *t)
{
    int rc;

    if (t->cast)
        return st_cast_look(g, t);
    if (t->peer == g->me || st_member_alive(g, t->peer))
        return st_group_failed(g) == ST_OK ? ST_AGAIN : ST_EBROKEN;
    /* What it sent before it died counts, until its die is started again. */
    rc = st_member_replaced(g, t->peer) ? ST_EDEAD : st_p2p_progress(g, t);
    return rc == ST_AGAIN ? ST_EDEAD : rc;
}

#endif
