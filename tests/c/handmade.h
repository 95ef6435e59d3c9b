/* Plans made by hand. */
#ifndef HANDMADE_H
#define HANDMADE_H

#include "handles.h"
#include "st_collective.h"

enum { MOST_UNITS = 64, MOST_OPERANDS = 256, MOST_COUNT = 2048 };
enum kind { BARRIER, MAIL, MAIL_ROOT, GATHER, PUSH, RING, LISTS, ADD, KINDS };

struct hand_plan {
    struct st_plan p;
    struct st_unit units[MOST_UNITS];
    struct st_operand operands[MOST_OPERANDS];
    uint64_t bytes[DIES_MOST * ST_NBUFS];
    uint32_t begin[3]; /* two cores at most */
    uint32_t posts[MOST_UNITS], left[MOST_UNITS];
    uint64_t next[2];
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

/* A unit between members' buffers, with flags; nothing if it has no bytes. */
static inline void plan_move(struct hand_plan *h, uint32_t kind, uint32_t from, uint32_t buf, uint64_t src, uint32_t to,
                             uint64_t dst, uint64_t bytes, int32_t wait_peer, int32_t wait, int32_t post)
{
    struct st_unit *u;

    if (!bytes)
        return;
    u = plan_unit(h, kind, bytes);
    if (kind == ST_UNIT_ACCUMULATE) {
        u->op = ST_SUM;
        u->dtype = ST_I64;
    }
    plan_operand(h, u, 0, from, buf & 3, src);
    plan_operand(h, u, 1, to, buf >> 2, dst);
    u->wait_peer = wait < 0 ? -1 : wait_peer;
    u->wait_flag = wait;
    u->post_flag = post;
}

/* A ring through scratch on two cores, each with its half of every part: a step's flag has two posters. */
static inline void plan_lists(struct hand_plan *h, uint32_t n, uint32_t me, uint64_t count)
{
    enum { INTO_SCRATCH = ST_BUF_SCRATCH << 2, INTO_OUT = ST_BUF_OUT << 2 };
    uint64_t part = 8 * count, half = count / 2 * 8;
    uint32_t left = (me + n - 1) % n, s;

    for (int core = 0; core < 2; core++) {
        uint64_t from = core ? half : 0, bytes = core ? part - half : half;

        plan_move(h, ST_UNIT_COPY, me, ST_BUF_SRC | INTO_SCRATCH, from, me, me * part + from, bytes, -1, -1, 0);
        for (s = 1; s < n; s++) {
            uint64_t at = (me + n - s) % n * part + from;

            plan_move(h, ST_UNIT_COPY, left, ST_BUF_SCRATCH | INTO_SCRATCH, at, me, at, bytes, (int32_t)left,
                      (int32_t)s - 1, (int32_t)s);
        }
        for (s = 0; s < n; s++) { /* what both cores have brought, so after the flags of this member itself */
            uint64_t at = (me + n - s) % n * part + from;

            plan_move(h, ST_UNIT_COPY, me, ST_BUF_SCRATCH | INTO_OUT, at, me, at, bytes, (int32_t)me, (int32_t)s, -1);
        }
        h->begin[core + 1] = (uint32_t)h->p.nunits;
    }
}

/* Own operand first; then two cores add the others' to it, at the same time. */
static inline void plan_add(struct hand_plan *h, uint32_t n, uint32_t me, uint64_t count)
{
    enum { INTO_OUT = ST_BUF_OUT << 2 };

    plan_move(h, ST_UNIT_COPY, me, ST_BUF_SRC | INTO_OUT, 0, me, 0, 8 * count, -1, -1, 0);
    for (uint32_t core = 0; core < 2; core++) {
        for (uint32_t j = core; j < n; j += 2)
            if (j != me)
                plan_move(h, ST_UNIT_ACCUMULATE, j, ST_BUF_SRC | INTO_OUT, 0, me, 0, 8 * count, (int32_t)me, 0, -1);
        plan_unit(h, ST_UNIT_SYNC, 0)->post_flag = 1;
        h->begin[core + 1] = (uint32_t)h->p.nunits;
    }
}

/* What the executor needs besides units and operands. */
static inline void plan_finish(struct hand_plan *h, enum kind kind, uint32_t n, uint64_t bytes)
{
    if (kind == LISTS || kind == ADD) {
        h->p.core_begin = h->begin;
        h->p.cores = 2;
        h->p.next = h->next;
    }
    h->p.posts = h->posts;
    h->p.left = h->left;
    for (uint64_t i = 0; i < h->p.nunits; i++)
        if (h->units[i].post_flag >= (int32_t)h->p.nflags)
            h->p.nflags = (uint32_t)h->units[i].post_flag + 1;
    h->p.units = h->units;
    h->p.operands = h->operands;
    h->p.buffer_bytes = h->bytes;
    h->p.mailbox = kind == MAIL || kind == MAIL_ROOT;
    h->p.mail_bytes = h->p.mailbox ? bytes : 0;
    h->p.needs_done = !h->p.mailbox;
    CHECK_IS(st_plan_check(&h->p, n), ST_OK);
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
    case LISTS:
        plan_lists(h, n, me, count);
        break;
    case ADD:
        plan_add(h, n, me, count);
        break;
    default:
        break;
    }
    plan_finish(h, kind, n, bytes);
}

#endif
