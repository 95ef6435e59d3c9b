/* SDMA: ring headers, descriptors, lists, calls and flags, as the DMA thread finds them, and peers' rings, as a producer
 * does. */
#include "arena.h"
#include "kernels.h"
#include "st_engine_thread.h"
#include "st_flag.h"

enum { DEPTH = 16, LIST = 8, DATA = 64 << 10, EVENTS = 2 };

static struct st_engine *engine;
static struct st_ring *ring[2], *theirs;
static struct st_sdma *shared, *other;
static struct st_descriptor *list, *chain;
static struct st_sdma_operand *operands;
static uint64_t *flags;
static uint8_t *data_of[DIES];
static struct st_lane lane, own;
static uint64_t heads[2], failed; /* how far the case came */

static uint64_t at(uint32_t die, uint64_t offset) { return fuzz_va(die, data_of[die]) + offset; }

/* What stands in both rings: one of each kind. */
static void fill(struct st_ring *r)
{
    uint64_t mine = at(0, 0), far = at(1, 0), flag = fuzz_va(0, flags), n = 0;
    struct st_descriptor d[DEPTH] = {
        {.type = ST_SDMA_COPY, .flags = ST_SDMA_BEGIN, .event = 1, .src = far, .dst = mine, .bytes = 4096},
        {.type = ST_SDMA_REDUCE, .op = ST_SUM, .dtype = ST_F32, .event = 1, .src = far, .dst = mine, .bytes = 4096},
        {.type = ST_SDMA_REDUCE, .op = ST_SUM, .dtype = ST_F32, .flags = ST_SDMA_LIST, .event = 1,
         .src = fuzz_va(0, operands), .bytes = 256, .value = ST_SDMA_OPERANDS(3, 1, 0)},
        {.type = ST_SDMA_FILL, .event = 1, .dst = mine + 8192, .bytes = 1000, .value = 7},
        {.type = ST_SDMA_ACCUMULATE, .op = ST_SUM, .dtype = ST_I32, .event = 1, .src = far, .dst = mine, .bytes = 64},
        {.type = ST_SDMA_WRITE, .event = 1, .dst = flag, .value = 1, .wake = 2},
        {.type = ST_SDMA_ADD, .event = 1, .dst = flag + 16, .value = 1},
        {.type = ST_SDMA_COUNT, .event = 1, .src = flag + 24, .dst = flag + 32, .bytes = 1, .value = 1},
        {.type = ST_SDMA_GATE, .event = 1, .src = flag, .value = 1},
        {.type = ST_SDMA_CALL, .event = 1, .src = fuzz_va(0, list), .bytes = LIST, .value = 1},
        {.type = ST_SDMA_NOTIFY, .event = 1},
        {.type = ST_SDMA_COPY, .flags = ST_SDMA_BEGIN, .event = 2, .src = at(2, 0), .dst = far, .bytes = 512},
        {.type = ST_SDMA_GATE, .event = 2, .src = flag + 40, .value = 9, .bytes = 3000000},
        {.type = ST_SDMA_NOTIFY, .event = 2},
    };

    for (n = 0; n < DEPTH; n++) {
        d[n].commit = n + 1;
        *st_ring_slot(r, DEPTH, n) = d[n];
    }
    r->tail = 14;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    uint32_t i, index;

    (void)argc, (void)argv;
    fuzz_open_job();
    fuzz.ctx.reduce = st_reduce;
    fuzz.ctx.reduce_partial = st_reduce_partial;
    fuzz.ctx.accumulate = st_accumulate;
    engine = calloc(1, st_engine_bytes());
    FUZZ_CHECK(engine && st_engine_init(engine, &fuzz.ctx, 5000000) == ST_OK);
    shared = fuzz_take(0, sizeof *shared);
    other = fuzz_take(1, sizeof *other);
    theirs = fuzz_take(1, st_ring_bytes(DEPTH));
    for (i = 0; i < 2; i++)
        ring[i] = fuzz_take(0, st_ring_bytes(DEPTH));
    list = fuzz_take(0, LIST * sizeof *list);
    operands = fuzz_take(0, 8 * sizeof *operands);
    flags = fuzz_take(0, 256);
    for (i = 0; i < DIES; i++)
        data_of[i] = fuzz_take(i, DATA);
    for (i = 0; i < 4; i++)
        operands[i] = (struct st_sdma_operand){at(i % DIES, 256 * (i + 1)), 0, 0};
    for (i = 0; i < LIST; i++)
        list[i] = (struct st_descriptor){.type = i % 2 ? ST_SDMA_WRITE : ST_SDMA_COPY, .flags = ST_SDMA_RELATIVE,
                                         .src = at(1, 64 * i), .dst = i % 2 ? fuzz_va(0, flags) + 8 * i : at(0, 64 * i),
                                         .bytes = 64};
    st_engine_open(engine, (struct st_sdma *)(uintptr_t)fuzz_va(0, shared));
    for (i = 0; i < 2; i++) {
        FUZZ_CHECK(st_engine_add(engine, (struct st_ring *)(uintptr_t)fuzz_va(0, ring[i]), DEPTH, 0, &index) == ST_OK);
        fill(ring[i]);
    }
    for (i = 0; i < EVENTS; i++)
        FUZZ_CHECK(st_event_take(engine, NULL, NULL) == i + 1);
    shared->pending[0] = 3;
    other->magic = theirs->magic = ST_SDMA_MAGIC;
    other->open = other->top = 1;
    other->rings[0] = fuzz_va(1, theirs);
    theirs->opened = 1;
    theirs->depth = DEPTH;
    fuzz.ctx.dies[1].sdma = fuzz_va(1, other);
    FUZZ_CHECK(st_lane_attach(&fuzz.ctx, 1, 0, &lane) == ST_OK && st_lane_attach(&fuzz.ctx, 0, 1, &own) == ST_OK);
    chain = calloc(4, sizeof *chain);
    for (i = 0; i < 4; i++)
        chain[i] = (struct st_descriptor){.type = ST_SDMA_NOP};
    fuzz_region(shared, 256 + 64, 1);
    fuzz_region(other, 256 + 64, 1);
    fuzz_region(theirs, sizeof *theirs + 2 * sizeof(struct st_descriptor), 1);
    for (i = 0; i < 2; i++) {
        fuzz_region(ring[i], sizeof(struct st_ring), 1);
        fuzz_region((uint8_t *)ring[i] + sizeof(struct st_ring), DEPTH * sizeof(struct st_descriptor), 1);
    }
    fuzz_region((uint8_t *)ring[0] + sizeof(struct st_ring), 4 * sizeof(struct st_descriptor), 1);
    fuzz_region(list, LIST * sizeof *list, 1);
    fuzz_region(operands, 8 * sizeof *operands, 1);
    fuzz_region(flags, 256, 1);
    for (i = 0; i < 2; i++)
        fuzz_region(fuzz_control(st_table(&fuzz.ctx, i)), fuzz.ctx.seg_pages * 8, 0);
    fuzz_private(engine, offsetof(struct st_engine, events) + (EVENTS + 1) * sizeof *engine->events);
    fuzz_private(&lane, sizeof lane);
    fuzz_private(&own, sizeof own);
    fuzz_ready();
    LLVMFuzzerTestOneInput(NULL, 0); /* without a poke all goes well, but for the gate that is never raised */
    FUZZ_CHECK(heads[0] == 14 && heads[1] == 18 && failed == 2);
    return 0;
}

static void produce(struct st_lane *l)
{
    uint64_t first = 0, done = 0;

    (void)st_lane_submit(&fuzz.ctx, l, chain, 4, &fuzz.ctx.wait, 3000000, &first, &done);
    FUZZ_CHECK(done <= 4);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_ctx *c = &fuzz.ctx;
    struct st_lane again;
    uint64_t value;
    uint32_t k;

    fuzz_begin(data, size);
    produce(&lane);
    for (k = 0; k < 60; k++)
        if (st_engine_round(engine) == ST_TURN_EMPTY)
            break;
    produce(&own);
    (void)st_engine_round(engine);
    (void)st_lane_attach(c, 1, 0, &again);
    (void)st_lane_attach(c, 1, 1, &again);
    (void)st_sdma_of(c, 2);
    (void)st_flag_read(c, fuzz_va(0, flags) + 8, &value);
    (void)st_flag_write(c, fuzz_va(1, data_of[1]), 3);
    FUZZ_CHECK(engine->hold.nheld == 0);
    for (k = 0; k < 2; k++)
        heads[k] = engine->rings[k].head;
    failed = engine->count.failed;
    fuzz_end();
    return 0;
}
