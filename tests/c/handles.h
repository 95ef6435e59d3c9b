/* A group of all dies of dies.h, and a handle on it for each. */
#ifndef HANDLES_H
#define HANDLES_H

#include "dies.h"

/* A die's handle with all that belongs to it. */
struct handle {
    struct st_group g;
    uint32_t ranks[DIES_MOST];
    struct st_base bases[DIES_MOST];
    struct st_p2p p2p[DIES_MOST];
};

/* Group memory of all dies, in a page of die 0; formatted. */
static inline uint8_t *dies_group(struct dies *d, uint8_t *memory)
{
    uint32_t ranks[DIES_MOST], i;
    uint64_t id[2] = {3, 4};

    CHECK(st_group_bytes(d->n, DIES_MAILBOX) <= ST_PAGE_BYTES);
    for (i = 0; i < d->n; i++)
        ranks[i] = i;
    memory = memory ? memory : dies_pages(&d->ctx[0], 1);
    st_group_format(memory, d->n, DIES_MAILBOX, id, ranks);
    return memory;
}

static inline struct st_group *handle_bind(struct handle *h, struct st_ctx *ctx, uint8_t *memory)
{
    uint32_t i;

    memset(h, 0, sizeof *h);
    for (i = 0; i < ctx->ndies; i++)
        h->ranks[i] = i;
    h->g.ctx = ctx;
    h->g.n = ctx->ndies;
    h->g.me = ctx->rank;
    h->g.ranks = h->ranks;
    h->g.bases = h->bases;
    h->g.p2p = h->p2p;
    h->g.alloc = malloc;
    h->g.release = free;
    CHECK_IS(st_group_bind(&h->g, memory, st_group_bytes(ctx->ndies, DIES_MAILBOX)), ST_OK);
    return &h->g;
}

/* Words by which a message is known. */
static void fill(uint64_t *buf, uint64_t bytes, uint64_t identity)
{
    for (uint64_t i = 0; i < bytes / 8; i++)
        buf[i] = identity * 0x9e3779b97f4a7c15ull + i;
}

static int filled(const uint64_t *buf, uint64_t bytes, uint64_t identity)
{
    for (uint64_t i = 0; i < bytes / 8; i++)
        if (buf[i] != identity * 0x9e3779b97f4a7c15ull + i)
            return 0;
    return 1;
}

#endif
