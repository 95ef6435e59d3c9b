/* Plans as descriptors: engines of all dies that take turns in one thread give what cores give, however
 * small the blocks.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_lower.c && ./a.out [seed]
 */
#include "machines.h"

/* A member. */
struct part {
    struct machine m;
    struct buffers buffers;
    struct hand_plan plan;
};

/* Puts a member's descriptors into its rings; how many. */
static uint64_t submit(struct machine *m, struct st_lowering *l)
{
    const struct st_plan *p = l->p;
    uint64_t total, operands = st_lower_operands(p, l->block, &total), put, k, sum = 0;
    struct st_descriptor d;

    memset((void *)(uintptr_t)l->counters, 0, 8 * p->nflags);
    CHECK(operands <= LISTS_ROOM);
    l->room = operands;
    for (uint32_t c = 0; c < st_plan_cores(p); c++) {
        uint64_t from = p->core_begin ? p->core_begin[c] : 0, to = p->core_begin ? p->core_begin[c + 1] : p->nunits;

        for (put = 0; from < to; from++) {
            const struct st_unit *u = &p->units[from];

            for (k = 0; k < st_lower_pieces(u, l->block); k++) {
                CHECK_IS(st_lower(l, u, k, &d), ST_OK);
                CHECK(d.bytes <= l->block || d.type == ST_SDMA_GATE);
                d.flags |= put ? 0 : ST_SDMA_BEGIN;
                CHECK(put < LANE_DEPTH);
                st_lane_put(&m->lane[c], put++, &d);
            }
        }
        st_lane_ring(&m->lane[c], put);
        sum += put;
    }
    CHECK(sum == total && l->listed == l->room); /* all that there is room for, and no more */
    if (l->room) {
        for (k = 0; p->units[k].kind != ST_UNIT_REDUCE; k++)
            ;
        CHECK_IS(st_lower(l, &p->units[k], 0, &d), ST_EFULL);
    }
    return sum;
}

static void test_round(struct dies *d, struct part *m, uint8_t *memory, uint64_t number)
{
    struct st_base bases[DIES_MOST];
    uint64_t flag_at[DIES_MOST], seed = dies_seed + number, wake = (uint64_t)(uintptr_t)memory + 128, sum[DIES_MOST];
    uint64_t before, moved = 0;
    struct round r;
    uint32_t i, world = number % 2; /* flags by address, or by their place in the world group's memory */

    do
        r = round_draw(++seed, d->n, 0);
    while (r.kind == BARRIER || r.kind == MAIL || r.kind == MAIL_ROOT);
    if (world) {
        memory = d->ctx[0].control + d->ctx[0].header->world_off;
        wake = 128;
    }
    for (i = 0; i < d->n; i++) {
        struct st_request q = round_request(&r, &m[i].plan, &m[i].buffers, d->n, i, 0);

        bases[i] = (struct st_base){{(uint64_t)(uintptr_t)q.src, (uint64_t)(uintptr_t)q.out,
                                     (uint64_t)(uintptr_t)q.scratch}};
        flag_at[i] = (world ? 0 : (uint64_t)(uintptr_t)memory) + st_group_flags_off(d->n) + 8ull * i * ST_GROUP_FLAGS;
    }
    for (i = 0; i < d->n; i++) {
        struct st_lowering l = {.ctx = &d->ctx[i], .p = &m[i].plan.p, .bases = bases, .flag_at = flag_at,
                                .wake_at = wake, .number = number, .counters = m[i].m.lanes.l.counters,
                                .lists = m[i].m.lanes.l.lists, .me = i,
                                .block = 64ull << next(&seed) % 12,
                                .flag_bits = ST_SDMA_SILENT | (world ? ST_SDMA_WORLD : 0)};
        sum[i] = m[i].m.e->count.descriptors + submit(&m[i].m, &l);
    }
    do { /* until a turn of each brings nothing on */
        for (i = 0, before = moved, moved = 0; i < d->n; i++) {
            st_engine_round(m[i].m.e);
            moved += m[i].m.e->count.descriptors;
        }
    } while (moved != before);
    for (i = 0; i < d->n; i++) {
        CHECK_IS(m[i].m.e->count.descriptors, sum[i]);
        CHECK_IS(m[i].m.e->count.failed, 0);
        round_check(&r, &m[i].buffers, d->n);
        for (uint32_t f = 0; f < m[i].plan.p.nflags; f++)
            CHECK(((uint64_t *)(void *)memory)[st_group_flags_off(d->n) / 8 + i * ST_GROUP_FLAGS + f] == number ||
                  !m[i].plan.p.posts[f]);
    }
}

int main(int argc, char **argv)
{
    struct part m[DIES_MOST];
    struct dies *d;
    uint8_t *memory;

    dies_setup("test_lower", argc, argv);
    for (uint32_t n = 1; n <= 4; n++) {
        d = dies_open(n, 8, 1000000);
        memory = dies_group(d, NULL);
        memset(m, 0, sizeof m);
        for (uint32_t i = 0; i < n; i++) {
            machine_open(&m[i].m, &d->ctx[i]);
            machine_rings(&m[i].m, LANE_DEPTH);
            buffers_make(&m[i].buffers, &d->ctx[i]);
        }
        for (uint64_t number = 1; number <= 100 / DIES_SLOW; number++)
            test_round(d, m, memory, number);
        for (uint32_t i = 0; i < n; i++)
            free(m[i].m.e);
        dies_close(d);
    }
    printf("test_lower: ok\n");
    return 0;
}
