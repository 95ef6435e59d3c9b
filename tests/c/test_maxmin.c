/* Weighted max-min against its certificate, on drawn sets of flows that come and go: no link above its capacity, no
 * flow above its bound, each at its bound or on a full link on which none is faster.  One set of rates alone does
 * that, so it proves the solve; a rate that is changed a little must fail it.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -ffp-contract=off -Istrata/_core/include tests/c/test_maxmin.c && ./a.out [seed]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "st_fanout.h"
#include "st_maxmin.h"

#define CHECK(truth)                                                                                          \
    do {                                                                                                      \
        if (!(truth)) {                                                                                       \
            fprintf(stderr, "%s:%d: %s (seed %llu)\n", __FILE__, __LINE__, #truth, (unsigned long long)seed); \
            exit(1);                                                                                          \
        }                                                                                                     \
    } while (0)

enum { LINKS = 12, CLASSES = 5, FLOWS = 40, USES = 4, SHIFT = 3, ALL = LINKS + CLASSES };

static uint64_t seed = 1, dice;

static uint64_t roll(uint64_t below)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return dice % below;
}

struct rig {
    struct st_mm m;
    struct st_mm_link link[ALL];
    struct st_mm_level level[ALL];
    char flows[FLOWS * 64] __attribute__((aligned(64)));
    double weight[FLOWS << SHIFT], tree[4 * ALL];
    uint32_t place[FLOWS << SHIFT], set[LINKS * FLOWS * USES], narrow[LINKS], changed[LINKS], moved[FLOWS], touched[ALL];
    uint32_t at_leaf[ALL], fresh[FLOWS], reached[LINKS], classes[CLASSES], rises[FLOWS], sorted[FLOWS];
    uint8_t live[FLOWS];
};

static void build(struct rig *r)
{
    static const double bounds[CLASSES] = {0.01, 0.02, 0.025, 0.5, INFINITY};

    memset(r, 0, sizeof *r);
    r->m = (struct st_mm){.link = r->link, .level = r->level, .flows = r->flows, .weight = r->weight, .place = r->place,
                          .set = r->set, .narrow = r->narrow, .moved = r->moved, .touched = r->touched, .tree = r->tree,
                          .at_leaf = r->at_leaf, .changed = r->changed, .fresh = r->fresh, .reached = r->reached,
                          .classes = r->classes, .rises = r->rises, .sorted = r->sorted, .nlinks = LINKS, .shift = SHIFT, .stride = 64};
    for (uint32_t i = 0; i < ALL; i++) {
        r->link[i].first = i < LINKS ? i * FLOWS * USES : 0;
        r->link[i].capacity = i < LINKS ? (roll(8) ? 0.001 * (double)(1 + roll(400)) : 0.0) : bounds[i - LINKS];
        r->link[i].uneven = 1;
    }
}

static void begin(struct rig *r, uint32_t f)
{
    uint32_t n = 1 + (uint32_t)roll(USES);

    st_mm_begin(&r->m, f, LINKS + (uint32_t)roll(CLASSES));
    while (n--)
        st_mm_use(&r->m, f, (uint32_t)roll(LINKS), roll(2) ? 1.0 : (roll(9) ? 0.1 : 1e-7) * (double)(1 + roll(40)));
    r->live[f] = 1;
}

static double over(double a, double b)
{
    return a > b ? (a - b) / a : 0.0;
}

/* Worst violation, computed from the flows alone. */
static double certificate(const struct rig *r)
{
    double taken[LINKS] = {0}, fastest[LINKS] = {0}, worst = 0.0;

    for (uint32_t f = 0; f < FLOWS; f++)
        for (uint32_t u = 1; r->live[f] && u < st_mm_flow(&r->m, f)->nlinks; u++) {
            const struct st_mm_flow *x = st_mm_flow(&r->m, f);

            taken[x->link[u]] += r->weight[f << SHIFT | u] * x->rate * x->count;
            fastest[x->link[u]] = x->rate > fastest[x->link[u]] ? x->rate : fastest[x->link[u]];
        }
    for (uint32_t l = 0; l < LINKS; l++)
        worst = over(taken[l], r->link[l].capacity) > worst ? over(taken[l], r->link[l].capacity) : worst;
    for (uint32_t f = 0; f < FLOWS; f++) {
        const struct st_mm_flow *x = st_mm_flow(&r->m, f);
        double held;

        if (!r->live[f])
            continue;
        held = x->bound < INFINITY ? over(x->bound, x->rate) : 1.0;
        worst = over(x->rate, x->bound) > worst ? over(x->rate, x->bound) : worst;
        for (uint32_t u = 1; u < x->nlinks; u++) {
            double lack = over(r->link[x->link[u]].capacity, taken[x->link[u]]), slower = over(fastest[x->link[u]], x->rate);

            slower = slower > lack ? slower : lack;
            held = slower < held ? slower : held;
        }
        worst = held > worst ? held : worst;
    }
    return worst;
}

static void drawn(int rounds)
{
    struct rig *r = aligned_alloc(64, sizeof *r);
    double worst = 0.0;
    int parts = 0;

    CHECK(r);
    for (int round = 0; round < rounds; round++) {
        build(r);
        for (int step = 0; step < 60; step++) {
            uint32_t f = (uint32_t)roll(FLOWS), l = (uint32_t)roll(LINKS);
            double residual;

            if (!r->live[f]) {
                begin(r, f);
            } else if (roll(3) == 0 && st_mm_flow(&r->m, f)->count < 9) {
                st_mm_more(&r->m, f, 1);
            } else if (st_mm_flow(&r->m, f)->count > 1 && roll(3)) {
                st_mm_more(&r->m, f, -1);
            } else {
                st_mm_end(&r->m, f);
                r->live[f] = 0;
            }
            if (roll(4) == 0) {
                r->link[l].capacity = roll(6) ? 0.002 * (double)roll(300) : 0.0;
                st_mm_settle(&r->m, l);
            }
            if (r->m.nlive == 0)
                continue;
            st_mm_solve(&r->m);
            for (uint32_t i = 0; i < FLOWS; i++) /* what the change leads to, and nothing else */
                if (r->live[i] && st_mm_flow(&r->m, i)->solve != r->m.solve) {
                    parts++;
                    break;
                }
            residual = certificate(r);
            CHECK(residual <= 1e-9);
            worst = residual > worst ? residual : worst;
            for (f = 0; !r->live[f]; f++)
                ;
            if (st_mm_flow(&r->m, f)->rate > 0.0) { /* the certificate sees what is wrong */
                double right = st_mm_flow(&r->m, f)->rate;

                st_mm_flow(&r->m, f)->rate = right * 0.999;
                CHECK(certificate(r) > 1e-6);
                st_mm_flow(&r->m, f)->rate = right * 1.001;
                CHECK(certificate(r) > 1e-9);
                st_mm_flow(&r->m, f)->rate = right;
            }
        }
    }
    printf("worst residual %g, %d solves of a part\n", worst, parts);
    CHECK(parts > rounds);
    free(r);
}

static void logarithms(void)
{
    for (uint32_t n = 1; n < 100000; n++)
        CHECK(fabs(st_fanout_log2(n) - log2(n)) <= 4e-16 * (1.0 + log2(n)));
    for (uint32_t k = 0; k < 32; k++)
        CHECK(st_fanout_log2(UINT32_C(1) << k) == k);
}

int main(int argc, char **argv)
{
    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    dice = seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
    logarithms();
    drawn(300);
    return 0;
}
