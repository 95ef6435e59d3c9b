/* Dies with a group, its workers, and buffers: what the tests of asynchronous work start from. */
#ifndef WORKERS_H
#define WORKERS_H

#include "plans.h"
#include "st_worker.h"

#define MS 1000000ull
#define LONG 60000000000ull /* ns */

enum { SETS = 4, LARGE = 3 * ST_EAGER_BYTES, SLOTS = 64 };

struct scene {
    uint8_t *memory;
    uint64_t rounds;
    struct buffers *buffers[DIES_MOST][SETS];
    uint8_t *page[DIES_MOST];
    struct handle handle[DIES_MOST];
    struct st_worker collectives[DIES_MOST], transfers[DIES_MOST];
    uint64_t ends[ST_NSTATUS]; /* how items ended */
};

static inline struct dies *scene_open(struct scene *s, uint32_t n, uint64_t sleep_ns)
{
    struct dies *d = dies_open(n, 16, sleep_ns);
    uint64_t room = st_align(sizeof(struct st_channel), 4096);

    memset(s, 0, sizeof *s);
    s->memory = dies_group(d, NULL);
    for (uint32_t i = 0; i < n; i++) {
        struct st_group *g = handle_bind(&s->handle[i], &d->ctx[i], s->memory);
        uint8_t *channels = dies_pages(&d->ctx[i], 1);

        d->ctx[i].reduce = plain_reduce;
        d->ctx[i].accumulate = st_accumulate;
        s->page[i] = dies_pages(&d->ctx[i], 4);
        for (int k = 0; k < SETS; k++) {
            s->buffers[i][k] = calloc(1, sizeof *s->buffers[i][k]);
            CHECK(s->buffers[i][k]);
            buffers_make(s->buffers[i][k], &d->ctx[i]);
        }
        for (uint32_t j = 0; j < n; j++)
            if (i != j)
                st_channel_open(g, j, (uint64_t)(uintptr_t)channels + j * room);
        CHECK_IS(st_worker_init(&s->collectives[i], g, 0), ST_OK);
        CHECK_IS(st_worker_init(&s->transfers[i], g, 1), ST_OK);
    }
    return d;
}

static inline void scene_close(struct scene *s, struct dies *d)
{
    for (uint32_t i = 0; i < d->n; i++) {
        st_worker_stop(&s->collectives[i]);
        st_worker_stop(&s->transfers[i]);
        for (int k = 0; k < SETS; k++)
            free(s->buffers[i][k]);
        for (uint32_t j = 0; j < d->n; j++)
            for (struct st_unexpected *u = s->handle[i].p2p[j].first, *after; u; u = after) {
                after = u->next;
                free(u);
            }
    }
    dies_close(d);
}

static inline struct st_item *item_new(void)
{
    struct st_item *item = calloc(1, sizeof *item);

    CHECK(item);
    return item;
}

/* Waits, takes the outcome, and frees: nobody may touch the item any more. */
static inline int item_end(struct st_item *item, const struct st_wait_policy *policy)
{
    int status;

    CHECK_IS(st_item_wait(item, policy, LONG), ST_OK);
    status = item->status;
    memset(item, 0xdd, sizeof *item);
    free(item);
    return status;
}

static inline struct st_item *receive_item(uint32_t from, int64_t tag, void *buf, uint64_t bytes)
{
    struct st_item *item = item_new();

    item->transfer = (struct st_transfer){.receive = 1, .peer = from, .tag = tag, .buf = buf, .bytes = bytes,
                                          .count = bytes / 8, .desc = ST_DESC(10, 0, ST_I64, 0, 0)};
    return item;
}

static inline struct st_item *send_item(uint32_t to, int64_t tag, void *buf, uint64_t bytes)
{
    struct st_item *item = receive_item(to, tag, buf, bytes);

    item->transfer.receive = 0;
    return item;
}

#endif
