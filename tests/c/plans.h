/* Plans made by hand, and random operations whose results are known.
 *
 * All members draw a round's operation from the same seed, so that each knows what
 * the others do. */
#ifndef PLANS_H
#define PLANS_H

#include "handles.h"
#include "st_collective.h"

enum { MOST_UNITS = 64, MOST_OPERANDS = 256, MOST_COUNT = 2048 };
enum kind { BARRIER, MAIL, MAIL_ROOT, GATHER, PUSH, RING, KINDS };

struct hand_plan {
    struct st_plan p;
    struct st_unit units[MOST_UNITS];
    struct st_operand operands[MOST_OPERANDS];
    uint64_t bytes[DIES_MOST * ST_NBUFS];
};

/* The kernels have a test of their own. */
static inline int plain_reduce(int dtype, int op, void *const *dst, int ndst, const void *const *src,
                               int nsrc, uint64_t count, int nt)
{
    (void)nt;
    CHECK(dtype == ST_I64 && op == ST_SUM);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t sum = 0;

        for (int k = 0; k < nsrc; k++)
            sum += ((const uint64_t *)src[k])[i];
        for (int k = 0; k < ndst; k++)
            ((uint64_t *)dst[k])[i] = sum;
    }
    return ST_OK;
}

static inline struct st_unit *plan_unit(struct hand_plan *h, uint32_t kind, uint64_t bytes)
{
    struct st_unit *u = &h->units[h->p.nunits++];

    CHECK(h->p.nunits <= MOST_UNITS);
    *u = (struct st_unit){.kind = (uint8_t)kind, .bytes = bytes, .wait_peer = -1, .wait_flag = -1, .post_flag = -1};
    if (kind == ST_UNIT_REDUCE) {
        u->op = ST_SUM;
        u->dtype = ST_I64;
    }
    u->src_first = u->dst_first = (uint32_t)h->p.noperands;
    return u;
}

/* Sources first, then destinations. */
static inline void plan_operand(struct hand_plan *h, struct st_unit *u, int to, uint32_t member, uint32_t buf,
                                uint64_t offset)
{
    uint64_t *reach = &h->bytes[member * ST_NBUFS + buf];

    CHECK(h->p.noperands < MOST_OPERANDS && (to || !u->ndst));
    if (to && !u->ndst)
        u->dst_first = (uint32_t)h->p.noperands;
    h->operands[h->p.noperands++] = (struct st_operand){.member = (int32_t)member, .buf = (uint8_t)buf,
                                                        .offset = offset};
    *(to ? &u->ndst : &u->nsrc) += 1;
    *reach = *reach > offset + u->bytes ? *reach : offset + u->bytes;
}

static inline void plan_copy(struct hand_plan *h, uint32_t from, uint32_t buf, uint64_t src, uint32_t to,
                             uint64_t dst, uint64_t bytes)
{
    struct st_unit *u = plan_unit(h, ST_UNIT_COPY, bytes);

    plan_operand(h, u, 0, from, buf, src);
    plan_operand(h, u, 1, to, ST_BUF_OUT, dst);
}

/* Each member's plan for `count` 8-byte elements. */
static inline void plan_make(struct hand_plan *h, enum kind kind, uint32_t n, uint32_t me, uint32_t root,
                             uint64_t count)
{
    uint64_t bytes = 8 * count, part = (count + n - 1) / n, from, to;
    uint32_t j, s;

    memset(h, 0, sizeof *h);
    switch (kind) {
    case MAIL:
        plan_unit(h, ST_UNIT_REDUCE, bytes);
        for (j = 0; j < n; j++)
            plan_operand(h, &h->units[0], 0, j, ST_BUF_SRC, 0);
        plan_operand(h, &h->units[0], 1, me, ST_BUF_OUT, 0);
        break;
    case MAIL_ROOT:
        plan_copy(h, root, ST_BUF_SRC, 0, me, 0, bytes);
        break;
    case GATHER:
        for (s = 0; s < n; s++) {
            j = (me + s) % n;
            plan_copy(h, j, ST_BUF_SRC, 0, me, j * bytes, bytes);
        }
        break;
    case PUSH: /* member j reduces part j and puts it where all want it */
        from = me * part < count ? me * part : count;
        to = from + part < count ? from + part : count;
        if (from == to)
            break;
        plan_unit(h, ST_UNIT_REDUCE, 8 * (to - from));
        for (j = 0; j < n; j++)
            plan_operand(h, &h->units[0], 0, j, ST_BUF_SRC, 8 * from);
        for (j = 0; j < n; j++)
            plan_operand(h, &h->units[0], 1, j, ST_BUF_OUT, 8 * from);
        break;
    case RING: /* each part goes round, by the left neighbour's OUT */
        j = (me + n - 1) % n;
        plan_copy(h, me, ST_BUF_SRC, 0, me, me * bytes, bytes);
        h->units[0].post_flag = 0;
        for (s = 1; s < n; s++) {
            uint64_t at = (me + n - s) % n * bytes;

            plan_copy(h, j, ST_BUF_OUT, at, me, at, bytes);
            h->units[s].wait_peer = (int32_t)j;
            h->units[s].wait_flag = (int32_t)s - 1;
            h->units[s].post_flag = s < n - 1 ? (int32_t)s : -1;
        }
        break;
    default:
        break;
    }
    h->p.units = h->units;
    h->p.operands = h->operands;
    h->p.buffer_bytes = h->bytes;
    h->p.mailbox = kind == MAIL || kind == MAIL_ROOT;
    h->p.mail_bytes = h->p.mailbox ? bytes : 0;
    h->p.needs_done = !h->p.mailbox;
    CHECK_IS(st_plan_check(&h->p, n), ST_OK);
}

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
    uint64_t mail[MOST_COUNT]; /* mailbox payloads need no fabric memory */
    uint64_t mail_out[MOST_COUNT];
};

static inline void buffers_make(struct buffers *b, struct st_ctx *ctx)
{
    b->src = (uint64_t *)(void *)dies_pages(ctx, 1);
    b->out = b->src + MOST_COUNT;
    CHECK(8ull * MOST_COUNT * (DIES_MOST + 1) <= ST_PAGE_BYTES);
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
            for (sum = 0, j = 0; j < n; j++)
                sum += element(r, j, i);
            CHECK((r->kind == MAIL ? b->mail_out : b->out)[i] == sum);
            break;
        case MAIL_ROOT:
            CHECK(b->mail_out[i] == element(r, r->root, i));
            break;
        case GATHER:
        case RING:
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
    memset(b->out, (int)with, 8ull * MOST_COUNT * DIES_MOST);
    memset(b->mail, (int)with, sizeof b->mail);
    memset(b->mail_out, (int)with, sizeof b->mail_out);
}

#endif
