/* Passes over drawn routings, in arrays of exactly the sizes that the headers name: every choice is where counts, lists
 * and positions say, entries are in order, and windows in pieces are whole, whatever the cut; a sanitizer sees the rest.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -Istrata/_core/include tests/c/test_routing.c && ./a.out [seed]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "st_routing.h"
#include "st_routing_try.h"

#define CHECK(truth)                                                                                          \
    do {                                                                                                      \
        if (!(truth)) {                                                                                       \
            fprintf(stderr, "%s:%d: %s (seed %llu)\n", __FILE__, __LINE__, #truth, (unsigned long long)seed); \
            exit(1);                                                                                          \
        }                                                                                                     \
    } while (0)

static uint64_t seed = 1, dice;

static uint64_t roll(uint64_t below)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return below ? dice % below : 0;
}

static void *room(size_t number, size_t size)
{
    void *found = calloc(number ? number : 1, size);

    CHECK(found);
    return found;
}

/* A routing: t tokens of k choices, slots of n dies. */
struct drawn {
    uint64_t t, k, n, slots;
    int64_t *slot;
    int32_t *first, *die;
};

static void draw(struct drawn *r)
{
    uint64_t i;

    r->t = roll(40);
    r->k = 1 + roll(16);
    r->n = 1 + roll(30);
    r->slots = 1 + roll(40);
    r->slot = room(r->t * r->k, 8);
    r->first = room(r->n + 1, 4);
    r->die = room(r->slots, 4);
    for (i = 0; i < r->t * r->k; i++)
        r->slot[i] = (int64_t)roll(r->slots + 1) - 1;
    for (i = 1; i < r->n; i++)
        r->first[i] = r->first[i - 1] + (int32_t)roll(roll(3) * (r->slots - (uint64_t)r->first[i - 1]) / 4 + 1);
    r->first[r->n] = (int32_t)r->slots;
    CHECK(st_route_dies(r->first, r->n, r->slots, r->die) == 0);
}

static void free_drawn(struct drawn *r)
{
    free(r->slot);
    free(r->first);
    free(r->die);
}

static uint64_t sum(const uint32_t *counts, uint64_t n, uint64_t *begin)
{
    uint64_t i, at = 0;

    for (i = 0; i < n; at += counts[i++])
        begin[i] = at;
    return at;
}

static void by_rank(const struct drawn *r)
{
    int32_t *per_rank = room(r->n, 4), *per_slot = room(r->slots, 4), *position = room(r->t * r->n, 4);
    uint8_t *in_rank = room(r->t * r->n, 1);
    uint32_t *counts = room(r->n, 4), *at = room(r->n, 4), *list;
    uint64_t *begin = room(r->n, 8), *rows, i, d, width, total, last;
    int64_t *base = room(r->n, 8);

    CHECK(st_route_layout(r->slot, r->t, r->k, r->die, r->slots, r->n, per_rank, per_slot, in_rank) == r->t * r->k);
    st_route_count(in_rank, r->t, r->n, counts);
    total = sum(counts, r->n, begin);
    list = room(total, 4);
    st_route_by_rank(in_rank, r->t, r->n, begin, at, list, position);
    for (d = 0; d < r->n; d++) {
        CHECK(counts[d] == (uint32_t)per_rank[d] && at[d] == counts[d]);
        base[d] = roll(4) ? (int64_t)(d << 32 | roll(100)) : -1;
        for (i = 0; i < r->t; i++) {
            CHECK((position[i * r->n + d] >= 0) == in_rank[i * r->n + d]);
            CHECK(position[i * r->n + d] < 0 || list[begin[d] + (uint64_t)position[i * r->n + d]] == i);
        }
    }
    width = st_route_width(position, r->t, r->n, base);
    rows = room(r->t * width, 8);
    st_route_ht_entries(position, r->t, r->n, base, width, rows);
    for (i = 0; i < r->t; i++) {
        for (d = 0, last = 0; d < r->n; d++)
            if (position[i * r->n + d] >= 0 && base[d] >= 0)
                CHECK(rows[i * width + last++] == (uint64_t)(base[d] + position[i * r->n + d]));
        for (; last < width; last++)
            CHECK(rows[i * width + last] == ST_ROW_NONE);
    }
    free(per_rank), free(per_slot), free(position), free(in_rank), free(counts), free(at), free(list), free(begin);
    free(rows), free(base);
}

static void by_slot(const struct drawn *r)
{
    uint32_t *counts = room(r->slots, 4), *at = room(r->slots, 4), *list;
    int32_t *position = room(r->t * r->k, 4), *order = room(r->slots, 4), *which = room(r->t * r->k, 4);
    uint64_t *begin = room(r->slots, 8), *rows = room(r->t * r->k, 8), i, j;
    int64_t *base = room(r->slots, 8), *sums = room(r->t + 1, 8), price[4] = {1, 20, 300, 4000}, cost = 0;

    CHECK(st_route_slots(r->slot, r->t * r->k, r->slots, counts) == r->t * r->k);
    list = room(sum(counts, r->slots, begin), 4);
    st_route_by_slot(r->slot, r->t, r->k, begin, at, list, position);
    for (i = 0; i < r->slots; i++) {
        CHECK(at[i] == counts[i]);
        order[i] = (int32_t)roll(5);
        base[i] = roll(4) ? (int64_t)(roll(4) << 32 | roll(100)) : -1;
    }
    for (j = 0; j < r->t * r->k; j++)
        CHECK(r->slot[j] < 0 || list[begin[r->slot[j]] + (uint64_t)position[j]] == j / r->k);
    st_route_ll_entries(r->slot, position, r->t, r->k, base, order, rows, which);
    CHECK(st_route_prices(rows, r->t, r->k, price, 4, 7, sums) == r->t * r->k);
    for (i = 0; i < r->t; i++) {
        CHECK(sums[i] == cost);
        cost += 7;
        for (j = i * r->k; j < (i + 1) * r->k; j++) {
            int32_t one = which[j], before = j > i * r->k ? which[j - 1] : -1;
            const int64_t *slot = r->slot + i * r->k;

            CHECK((one < 0) == (rows[j] == ST_ROW_NONE) && (j == i * r->k || before >= 0 || one < 0));
            if (one < 0)
                continue;
            CHECK(rows[j] == (uint64_t)(base[slot[one]] + position[i * r->k + (uint64_t)one]));
            CHECK(before < 0 || order[slot[before]] < order[slot[one]] ||
                  (order[slot[before]] == order[slot[one]] && before < one));
            cost += price[rows[j] >> 32];
        }
    }
    CHECK(sums[r->t] == cost);
    free(counts), free(at), free(list), free(position), free(order), free(which), free(begin), free(rows), free(base);
    free(sums);
}

/* Pieces follow each other, and are a window whole. */
static void whole(const struct st_route_window *w, uint64_t n, const uint8_t *tier, const struct st_route_limits *cut)
{
    uint64_t number = st_route_pieces(w, n, tier, cut), i, at = 0, rows;
    struct st_route_piece *piece = room(number, sizeof(*piece));
    struct st_slice *slice = room(number, sizeof(*slice));

    st_route_cut(w, n, tier, cut, 4096, piece, slice);
    for (i = 0; i < n; i++)
        for (rows = 0; rows < (uint64_t)w[i].rows; rows += piece[at++].rows) {
            int64_t big = cut->big[tier[w[i].peer]], small = cut->small[tier[w[i].peer]];

            CHECK(at < number && piece[at].window == i && piece[at].rows && slice[at].bytes == piece[at].rows);
            CHECK(piece[at].entry == (uint64_t)w[i].entry + rows && piece[at].out == (uint64_t)w[i].out + rows);
            CHECK((int64_t)piece[at].rows <= (big > small ? big : small) && slice[at].peer == w[i].peer);
        }
    CHECK(at == number);
    free(piece), free(slice);
}

static void cuts(void)
{
    uint8_t tier[8];
    int64_t alpha[ST_NTIERS], plain[ST_NTIERS], average, total;
    double rate[ST_NTIERS];
    uint64_t n = roll(60), i;
    struct st_route_window *w = room(n, sizeof(*w));
    struct st_route_try q = {.windows = w, .tier = tier, .alpha = alpha, .rate = rate, .plain = plain, .nwindows = n};
    struct st_route_limits cut;

    for (i = 0; i < 8; i++)
        tier[i] = (uint8_t)roll(ST_NTIERS);
    for (i = 0; i < ST_NTIERS; i++) {
        alpha[i] = (int64_t)roll(2000000);
        rate[i] = 1 + (double)roll(1000000);
        plain[i] = 1 + (int64_t)roll(roll(2) ? 4096 : 30);
        q.widest = (uint64_t)plain[i] > q.widest ? (uint64_t)plain[i] : q.widest;
    }
    for (i = 0; i < n; i++)
        w[i] = (struct st_route_window){(int64_t)(i * 8 / n), 1 + (int64_t)roll(roll(4) ? 40 : 9000), (int64_t)roll(1000),
                                        (int64_t)roll(1000)};
    q.cores = 1 + roll(40);
    q.most = n + roll(3000);
    q.least = 1;
    q.pieces = room(ST_NTIERS * (q.widest + 1), sizeof(*q.pieces));
    q.runs = room(ST_NTIERS * (q.widest + 1), sizeof(*q.runs));
    q.loads = room(q.cores, sizeof(*q.loads));
    st_route_choose(&q, &cut, &average);
    whole(w, n, tier, &cut);
    for (i = 0; i < ST_ROUTE_CUTS; i++) {
        int64_t latest, best;

        st_route_cut_number(&q, (int)i, average, &cut);
        whole(w, n, tier, &cut);
        latest = st_route_trial(&q, &cut, INT64_MAX, &total);
        CHECK(latest == INT64_MAX || latest * (int64_t)q.cores >= total);
        best = st_route_trial(&q, &cut, INT64_MAX, &total); /* counters are left zero */
        CHECK(best == latest);
    }
    CHECK(st_route_apart(&q) >= 0);
    free(w), free(q.pieces), free(q.runs), free(q.loads);
}

int main(int argc, char **argv)
{
    struct drawn r;
    int i;

    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    dice = seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
    for (i = 0; i < 400; i++) {
        draw(&r);
        by_rank(&r);
        by_slot(&r);
        free_drawn(&r);
        cuts();
    }
    return 0;
}
