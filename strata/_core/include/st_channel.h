/* A channel: the messages of one member to another, and those nobody has
 * asked for yet. */
#ifndef ST_CHANNEL_H
#define ST_CHANNEL_H

#include "st_sync.h"

/* A message taken out of the channel before anybody asked for it. */
struct st_unexpected {
    struct st_unexpected *next;
    struct st_message m;
    uint8_t data[];
};

struct st_p2p {
    uint64_t head;               /* messages sent to this peer */
    struct st_unexpected *first; /* from this peer, oldest first */
    struct st_unexpected **last; /* NULL: not used yet */
    uint64_t channel;            /* address of the incoming channel, once checked */
    uint64_t out;                /* of this die's own to the peer */
    uint64_t cast;               /* address of the peer's cast ring (of this die: its own), once checked */
    uint64_t cast_next;          /* casts of the peer that were taken here; of this die: that it has made */
    uint64_t cast_passed;        /* of this die: that all had taken when it last looked */
};

_Static_assert(sizeof(struct st_p2p) <= 64, "what the groups' fronts allocate a member");

static inline struct st_channel *st_channel_at(uint64_t va) { return (struct st_channel *)(uintptr_t)va; }

static inline uint64_t *st_channel_word(struct st_group *g, uint32_t from, uint32_t to)
{
    return &g->channels[(uint64_t)from * g->n + to];
}

/* Publishes a zeroed channel to dst in this die's memory. */
static inline void st_channel_open(struct st_group *g, uint32_t dst, uint64_t va)
{
    g->p2p[dst].out = va;
    st_channel_at(va)->magic = ST_MAGIC;
    ST_FAULT(CHANNEL_BEFORE);
    st_store_seqcst_64(st_channel_word(g, g->me, dst), va); /* pairs with st_channel_find */
    ST_FAULT(CHANNEL_AFTER);
    st_group_wake(g);
}

/* The address of what member `from` has published to `to`, mapped here; 0: nothing yet, or rc says what is wrong. */
static inline uint64_t st_channel_find(struct st_group *g, uint32_t from, uint32_t to, uint64_t bytes, int *rc)
{
    uint64_t va = st_load_acquire_64(st_channel_word(g, from, to)); /* pairs with st_channel_open, st_cast_open */

    if (!va)
        return 0;
    if (st_owner(g->ctx, va) != (int64_t)g->ranks[from] || va % ST_LINE)
        *rc = ST_ECORRUPT;
    else
        *rc = st_ensure_mapped(g->ctx, va, bytes, 1);
    return *rc == ST_OK ? va : 0;
}

/* The incoming channel from src; NULL: it has not sent anything yet. */
static inline struct st_channel *st_channel_from(struct st_group *g, uint32_t src, int *rc)
{
    struct st_p2p *p = &g->p2p[src];
    uint64_t va;

    if (p->channel)
        return st_channel_at(p->channel);
    va = st_channel_find(g, src, g->me, sizeof(struct st_channel), rc);
    if (!va)
        return NULL;
    if (st_channel_at(va)->magic != ST_MAGIC) {
        *rc = ST_ECORRUPT;
        return NULL;
    }
    p->channel = va;
    return st_channel_at(va);
}

/* A reply that no message uses; ST_CHANNEL_REPLIES: none. */
static inline uint32_t st_reply_free(const struct st_channel *c, uint64_t from)
{
    uint32_t k, i;

    for (k = 0; k < ST_CHANNEL_REPLIES; k++) {
        uint64_t ack;

        i = (uint32_t)((from + k) % ST_CHANNEL_REPLIES);
        ack = st_load_acquire_64(&c->reply[i].ack); /* pairs with st_send_acked, st_recv_finish */
        if (!ack || (ack & 255) == ST_ACK_CANCELLED || (ack & 255) == ST_ACK_COLLECTED)
            return i;
    }
    return ST_CHANNEL_REPLIES;
}

static inline void st_unexpected_push(struct st_p2p *p, struct st_unexpected *u)
{
    u->next = NULL;
    if (!p->last)
        p->last = &p->first;
    *p->last = u;
    p->last = &u->next;
}

/* Keeps a message for later; data NULL: its bytes stay with the sender. */
static inline int st_unexpected_keep(struct st_group *g, uint32_t src, const struct st_message *m,
                                     const void *data)
{
    struct st_unexpected *u = g->alloc(sizeof *u + (data ? m->bytes : 0));

    if (!u) {
        errno = ENOMEM;
        return ST_ESYS;
    }
    u->m = *m;
    if (data)
        memcpy(u->data, data, m->bytes);
    st_unexpected_push(&g->p2p[src], u);
    return ST_OK;
}

#endif
