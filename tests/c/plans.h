/* Random operations whose results are known.
 *
 * All members draw a round's operation from the same seed, so that each knows what
 * the others do. */
#ifndef PLANS_H
#define PLANS_H

#include "handmade.h"

/* ---- a round: one operation that all members draw alike ---------------------------- */

struct round {
    enum kind kind;
    uint32_t root;
    uint32_t odd; /* a member that asks for something else; n: none does */
    uint32_t oddity;
    uint64_t count;
    uint64_t salt;
};

/* A member's buffers: fabric memory, room for n * MOST_COUNT elements in out. */
struct buffers {
    uint64_t *src;
    uint64_t *out;
    uint64_t *scratch;
    uint64_t mail[MOST_COUNT]; /* mailbox payloads need no fabric memory */
    uint64_t mail_out[MOST_COUNT];
};

static inline void buffers_make(struct buffers *b, struct st_ctx *ctx)
{
    b->src = (uint64_t *)(void *)dies_pages(ctx, 1);
    b->out = b->src + MOST_COUNT;
    b->scratch = b->out + MOST_COUNT * DIES_MOST;
    CHECK(8ull * MOST_COUNT * (2 * DIES_MOST + 1) <= ST_PAGE_BYTES);
}

static inline uint64_t element(const struct round *r, uint32_t member, uint64_t i)
{
    uint64_t z = (r->salt + member * 0x9e3779b97f4a7c15ull) ^ (i * 0xc2b2ae3d27d4eb4full);

    return z ^ z >> 29;
}

static inline struct round round_draw(uint64_t number, uint32_t n, uint32_t mismatches)
{
    uint64_t seed = dies_seed * 31 + number * 0x2545f4914f6cdd1dull;
    struct round r = {.kind = (enum kind)(next(&seed) % KINDS), .root = (uint32_t)(next(&seed) % n), .odd = n};

    r.salt = next(&seed);
    if (n > 1 && mismatches && next(&seed) % mismatches == 0)
        r.odd = (uint32_t)(next(&seed) % n);
    r.oddity = (uint32_t)(next(&seed) % 3);
    switch (r.kind) {
    case MAIL:
    case MAIL_ROOT:
        r.count = 1 + next(&seed) % (next(&seed) % 2 ? ST_INLINE_BYTES / 8 : DIES_MAILBOX / 8);
        break;
    default:
        r.count = 1 + next(&seed) % (next(&seed) % 4 ? 64 : MOST_COUNT);
    }
    return r;
}

/* The request of a member, its source filled. */
static inline struct st_request round_request(const struct round *r, struct hand_plan *h, struct buffers *b,
                                              uint32_t n, uint32_t me, uint64_t timeout_ns)
{
    struct st_request q = {.count = r->count, .timeout_ns = timeout_ns};
    int mail = r->kind == MAIL || r->kind == MAIL_ROOT;
    uint64_t *src = mail ? b->mail : b->src;

    q.desc = ST_DESC(1 + r->kind, ST_SUM, ST_I64, r->root, mail);
    if (r->odd == me) {
        if (r->oddity == 0)
            q.count++;
        else
            q.desc ^= r->oddity == 1 ? 1ull << 48 : 1;
    }
    if (r->kind == BARRIER) {
        q.fence = 1;
        return q;
    }
    plan_make(h, r->kind, n, me, r->root, r->count);
    for (uint64_t i = 0; i < r->count; i++)
        src[i] = element(r, me, i);
    h->p.nt = r->salt & 1;
    q.plan = &h->p;
    q.src = src;
    q.out = mail ? b->mail_out : b->out;
    q.scratch = mail ? NULL : b->scratch;
    q.payload = mail && (r->kind == MAIL || r->root == me) ? 8 * r->count : 0;
    q.solo = 8 * r->count;
    return q;
}

/* Is the result what it must be? */
static inline void round_check(const struct round *r, const struct buffers *b, uint32_t n)
{
    uint64_t i, sum;
    uint32_t j;

    for (i = 0; i < r->count; i++) {
        switch (r->kind) {
        case MAIL:
        case PUSH:
        case ADD:
            for (sum = 0, j = 0; j < n; j++)
                sum += element(r, j, i);
            CHECK((r->kind == MAIL ? b->mail_out : b->out)[i] == sum);
            break;
        case MAIL_ROOT:
            CHECK(b->mail_out[i] == element(r, r->root, i));
            break;
        case GATHER:
        case RING:
        case LISTS:
            for (j = 0; j < n; j++)
                CHECK(b->out[j * r->count + i] == element(r, j, i));
            break;
        default:
            return;
        }
    }
}

/* The buffers are the caller's again: whoever still used them would be seen. */
static inline void buffers_scribble(struct buffers *b, uint64_t with)
{
    memset(b->src, (int)with, 8 * MOST_COUNT);
    memset(b->out, (int)with, 16ull * MOST_COUNT * DIES_MOST); /* scratch is behind it */
    memset(b->mail, (int)with, sizeof b->mail);
    memset(b->mail_out, (int)with, sizeof b->mail_out);
}

#endif
