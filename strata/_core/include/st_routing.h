/* Routing of tokens to experts: who gets how many rows, which, and where each choice of a token came to lie.
 *
 * One pass over the tokens makes counts, lists and positions; whatever is planned afterwards goes by counts.
 * Arrays are C-contiguous, of the shapes named; t tokens, k choices of each, n dies, P slots.  Slot -1 is none. */
#ifndef ST_ROUTING_H
#define ST_ROUTING_H

#include <string.h>

#include "st_plan.h"

#define ST_ROUTE_CHOICES 64u     /* of a token at most: entries of a weighted sum */

/* slot[t, k] of the experts that topk[t, k] names: replica (rank + token) % replicas of each; table[E, width].
 * Returns t * k, or the first choice that is no expert, or one without a slot. */
static inline uint64_t st_route_physical(const int64_t *topk, uint64_t t, uint64_t k, const int32_t *table,
                                         uint64_t width, const int32_t *replicas, int64_t experts, uint64_t rank,
                                         int64_t *slot)
{
    uint64_t i, j;

    for (i = 0; i < t; i++)
        for (j = i * k; j < (i + 1) * k; j++) {
            int64_t e = topk[j];

            if (e == -1) {
                slot[j] = -1;
                continue;
            }
            if (e < 0 || e >= experts || replicas[e] < 1)
                return j;
            slot[j] = table[(uint64_t)e * width + (replicas[e] == 1 ? 0 : (rank + i) % (uint64_t)replicas[e])];
        }
    return t * k;
}

/* die[P] of the slots that die d has from first[d] to first[d + 1]; 0, or -1 where they fall or do not span P. */
static inline int st_route_dies(const int32_t *first, uint64_t n, uint64_t slots, int32_t *die)
{
    uint64_t d;
    int32_t s;

    if (first[0] != 0 || (uint64_t)(uint32_t)first[n] != slots || first[n] < 0)
        return -1;
    for (d = 0; d < n; d++) {
        if (first[d + 1] < first[d] || first[d + 1] > first[n])
            return -1;
        for (s = first[d]; s < first[d + 1]; s++)
            die[s] = (int32_t)d;
    }
    return 0;
}

/* per_rank[n]: tokens that go there, each once; per_slot[P]: choices; in_rank[t, n]: whether.  All zero before.
 * Returns t * k, or the first choice that is no slot. */
static inline uint64_t st_route_layout(const int64_t *slot, uint64_t t, uint64_t k, const int32_t *die, uint64_t slots,
                                       uint64_t n, int32_t *per_rank, int32_t *per_slot, uint8_t *in_rank)
{
    uint64_t i, j;

    for (i = 0; i < t; i++)
        for (j = i * k; j < (i + 1) * k; j++) {
            int64_t s = slot[j];
            int32_t d;

            if (s == -1)
                continue;
            if (s < 0 || (uint64_t)s >= slots)
                return j;
            d = die[s];
            per_slot[s]++;
            per_rank[d] += !in_rank[i * n + (uint64_t)d];
            in_rank[i * n + (uint64_t)d] = 1;
        }
    return t * k;
}

/* counts[n], zero before: tokens of each rank. */
static inline void st_route_count(const uint8_t *in_rank, uint64_t t, uint64_t n, uint32_t *counts)
{
    uint64_t i, d;

    for (i = 0; i < t; i++)
        for (d = 0; d < n; d++)
            counts[d] += in_rank[i * n + d] != 0;
}

/* Which of the eight bytes that were loaded is the first that is not zero; it is cleared. */
static inline uint64_t st_route_first(uint64_t *word)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    uint64_t at = (uint64_t)__builtin_ctzll(*word) >> 3;

    *word &= ~(0xffull << 8 * at);
#else
    uint64_t at = (uint64_t)__builtin_clzll(*word) >> 3;

    *word &= ~(0xffull << (56 - 8 * at));
#endif
    return at;
}

/* list: the tokens of each rank, rank by rank; position[t, n]: which of that rank's a token is, or -1.
 * at[n], zero before, ends as counts; begin[n]: where a rank's part of the list begins. */
static inline void st_route_by_rank(const uint8_t *in_rank, uint64_t t, uint64_t n, const uint64_t *begin, uint32_t *at,
                                    uint32_t *list, int32_t *position)
{
    uint64_t i, d, from, word;

    memset(position, 0xff, t * n * sizeof(*position));
    for (i = 0; i < t; i++)
        for (from = 0; from < n; from += 8) { /* eight ranks at once, of which few are meant */
            word = 0;
            memcpy(&word, in_rank + i * n + from, n - from < 8 ? n - from : 8);
            while (word) {
                d = from + st_route_first(&word);
                list[begin[d] + at[d]] = (uint32_t)i;
                position[i * n + d] = (int32_t)at[d]++;
            }
        }
}

/* counts[P], zero before: choices of each slot.  Returns t * k, or the first choice that is no slot. */
static inline uint64_t st_route_slots(const int64_t *slot, uint64_t choices, uint64_t slots, uint32_t *counts)
{
    uint64_t j;

    for (j = 0; j < choices; j++) {
        if (slot[j] == -1)
            continue;
        if (slot[j] < 0 || (uint64_t)slot[j] >= slots)
            return j;
        counts[slot[j]]++;
    }
    return choices;
}

/* list: the tokens of each slot, slot by slot, in the order of tokens and then of choices; position[t, k]: which of
 * that slot's a choice is, or -1. */
static inline void st_route_by_slot(const int64_t *slot, uint64_t t, uint64_t k, const uint64_t *begin, uint32_t *at,
                                    uint32_t *list, int32_t *position)
{
    uint64_t i, j;

    for (i = 0; i < t; i++)
        for (j = i * k; j < (i + 1) * k; j++) {
            int64_t s = slot[j];

            position[j] = -1;
            if (s < 0)
                continue;
            list[begin[s] + at[s]] = (uint32_t)i;
            position[j] = (int32_t)at[s]++;
        }
}

/* Whether neither is negative, without a branch: tokens go anywhere. */
static inline uint64_t st_route_meant(int32_t position, int64_t base)
{
    return (uint64_t)(~((int64_t)position | base)) >> 63;
}

/* Most ranks of a token to which it has a position and which have a base. */
static inline uint64_t st_route_width(const int32_t *position, uint64_t t, uint64_t n, const int64_t *base)
{
    uint64_t i, d, width = 1, number;

    for (i = 0; i < t; i++) {
        for (d = 0, number = 0; d < n; d++)
            number += st_route_meant(position[i * n + d], base[d]);
        width = number > width ? number : width;
    }
    return width;
}

/* rows[t, width]: base[d] + position of each rank that a token went to, by rank, then no entries. */
static inline void st_route_ht_entries(const int32_t *position, uint64_t t, uint64_t n, const int64_t *base,
                                       uint64_t width, uint64_t *rows)
{
    uint64_t i, d, number;

    for (i = 0; i < t; i++, position += n, rows += width) {
        for (d = 0, number = 0; d < n && number < width; d++) { /* what is written and does not count is overwritten */
            rows[number] = (uint64_t)(base[d] + position[d]);
            number += st_route_meant(position[d], base[d]);
        }
        for (; number < width; number++)
            rows[number] = ST_ROW_NONE;
    }
}

/* rows[t, k]: base[slot] + position of each choice, by `order` of its slot and then by choice, then no entries;
 * which[t, k]: the choice of each entry, or -1.  k is at most ST_ROUTE_CHOICES; slots have been looked at. */
static inline void st_route_ll_entries(const int64_t *slot, const int32_t *position, uint64_t t, uint64_t k,
                                       const int64_t *base, const int32_t *order, uint64_t *rows, int32_t *which)
{
    uint64_t i, j, number, at;

    for (i = 0; i < t; i++, slot += k, position += k, rows += k, which += k) {
        for (j = 0, number = 0; j < k; j++) {
            if (slot[j] < 0 || position[j] < 0 || base[slot[j]] < 0)
                continue;
            for (at = number++; at > 0 && order[slot[which[at - 1]]] > order[slot[j]]; at--)
                which[at] = which[at - 1];
            which[at] = (int32_t)j;
        }
        for (j = 0; j < number; j++)
            rows[j] = (uint64_t)(base[slot[which[j]]] + position[which[j]]);
        for (; j < k; j++) {
            rows[j] = ST_ROW_NONE;
            which[j] = -1;
        }
    }
}

/* sums[t + 1]: price of all rows before each: `each`, and that of its entries; price[operands], by their upper half.
 * Returns t * width, or the first entry whose operand has no price. */
static inline uint64_t st_route_prices(const uint64_t *rows, uint64_t t, uint64_t width, const int64_t *price,
                                       uint64_t operands, int64_t each, int64_t *sums)
{
    uint64_t i, j;
    int64_t sum = 0;

    for (i = 0; i < t; i++) {
        sums[i] = sum;
        sum += each;
        for (j = i * width; j < (i + 1) * width; j++) {
            if (rows[j] == ST_ROW_NONE)
                continue;
            if (rows[j] >> ST_ROW_BITS >= operands)
                return j;
            sum += price[rows[j] >> ST_ROW_BITS];
        }
    }
    sums[t] = sum;
    return t * width;
}

#endif
