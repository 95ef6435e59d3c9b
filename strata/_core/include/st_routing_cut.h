/* Windows of rows cut for a scheduler, and what it makes of them as units of rows. */
#ifndef ST_ROUTING_CUT_H
#define ST_ROUTING_CUT_H

#include "st_plan.h"

/* What one die receives of one source in one place: rows that lie together in the list and in the receive buffer. */
struct st_route_window {
    int64_t peer, rows, entry, out; /* the source; how many; the first in the list; the first row written */
};

/* A part of one, whole rows. */
struct st_route_piece {
    uint64_t window, rows, entry, out;
};

/* How windows are cut, by tier: pieces of at most `big` rows, but for the last `tail` of a window of at most `small`. */
struct st_route_limits {
    int64_t big[ST_NTIERS], small[ST_NTIERS];
    double tail[ST_NTIERS];
};

/* Pieces that are even: of rows cut at `most`. */
static inline uint64_t st_route_even(uint64_t rows, uint64_t most) { return (rows + most - 1) / most; }

static inline uint64_t st_route_head(const struct st_route_window *w, const struct st_route_limits *cut, uint8_t tier)
{
    double part = (double)w->rows * cut->tail[tier];
    uint64_t tail = (uint64_t)part;

    tail += (double)tail < part;
    return tail < (uint64_t)w->rows ? (uint64_t)w->rows - tail : 0;
}

static inline uint64_t st_route_pieces(const struct st_route_window *w, uint64_t n, const uint8_t *tier,
                                       const struct st_route_limits *cut)
{
    uint64_t i, head, made = 0;

    for (i = 0; i < n; i++) {
        uint8_t t = tier[w[i].peer];

        head = st_route_head(&w[i], cut, t);
        made += st_route_even(head, (uint64_t)cut->big[t]) +
                st_route_even((uint64_t)w[i].rows - head, (uint64_t)cut->small[t]);
    }
    return made;
}

/* `rows` rows from row `from` of window w on, in n pieces as even as can be; each is a pull of a byte a row, for a
 * scheduler that is told what a row costs and never cuts it: destinations are `apart` bytes from each other. */
static inline uint64_t st_route_part(const struct st_route_window *w, uint64_t window, uint64_t from, uint64_t rows,
                                     uint64_t n, uint64_t apart, struct st_route_piece *piece, struct st_slice *slice,
                                     uint64_t at)
{
    uint64_t k, begin = from, end;

    for (k = 0; k < n; k++, begin = end, at++) {
        end = from + rows * (k + 1) / n;
        piece[at] = (struct st_route_piece){window, end - begin, (uint64_t)w->entry + begin, (uint64_t)w->out + begin};
        slice[at] = (struct st_slice){.peer = (int32_t)w->peer, .kind = ST_SLICE_PULL, .src_buf = ST_BUF_SRC,
                                      .dst_buf = ST_BUF_OUT, .dst = at * apart, .bytes = end - begin, .wait_peer = -1,
                                      .wait_flag = -1, .post_flag = -1};
    }
    return at;
}

static inline void st_route_cut(const struct st_route_window *w, uint64_t n, const uint8_t *tier,
                                const struct st_route_limits *cut, uint64_t apart, struct st_route_piece *piece,
                                struct st_slice *slice)
{
    uint64_t i, head, rest, at = 0;

    for (i = 0; i < n; i++) {
        uint8_t t = tier[w[i].peer];

        head = st_route_head(&w[i], cut, t);
        rest = (uint64_t)w[i].rows - head;
        at = st_route_part(&w[i], i, 0, head, st_route_even(head, (uint64_t)cut->big[t]), apart, piece, slice, at);
        at = st_route_part(&w[i], i, head, rest, st_route_even(rest, (uint64_t)cut->small[t]), apart, piece, slice, at);
    }
}

/* Units that a scheduler made of such pulls as units of rows; their `slice` becomes the window. */
static inline void st_route_units(const struct st_route_piece *piece, uint32_t row, struct st_unit *units, uint64_t n,
                                  struct st_operand *operands)
{
    uint64_t i;

    for (i = 0; i < n; i++) {
        struct st_unit *u = &units[i];
        const struct st_route_piece *p = &piece[u->slice];

        u->kind = ST_UNIT_ROWS;
        u->bytes = p->rows * row;
        u->row = row;
        u->index = p->entry;
        u->slice = (uint32_t)p->window;
        operands[u->src_first].offset = 0;
        operands[u->dst_first].offset = p->out * row;
    }
}

#endif
