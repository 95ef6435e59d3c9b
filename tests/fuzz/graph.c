/* Graphs: the list that is called again and again, the lines by which members meet, the ring; and how a die that waits for
 * a replay, or gives the graph up, reads them.  Also what a stream says of its items. */
#include "arena.h"
#include "kernels.h"
#include "st_engine_thread.h"
#include "st_graph_lower.h"
#include "st_graph_wait.h"
#include "st_stream.h"

enum { DEPTH = 16, LIST = 16, BYTES = 4096, REPLAYS = 2 };

static struct st_group group;
static struct st_engine *engine;
static struct st_ring *ring;
static struct st_sdma *shared;
static struct st_graph graph;
static struct st_graph_part parts[1];
static struct st_graph_step steps[2];
static struct st_graph_line *lines[DIES];
static struct st_descriptor *list, *farewell;
static struct st_progress *progress;
static uint64_t line_at[DIES], length;
static int well; /* of the case: its replays and its stream */

static void meanwhile(void)
{
    fuzz_clock_ns += 1000000; /* so that who waits 10 s for the DMA thread does not take a case's time */
    (void)st_engine_round(engine);
}

/* All members meet, a copy, all meet again; then a copy that is this die's alone. */
static void make_list(uint8_t *mine, const uint8_t *theirs)
{
    struct st_graph_op op = {.l = {.ctx = &fuzz.ctx, .me = 0}, .line_at = line_at, .n = DIES};
    struct st_descriptor made[LIST];
    uint64_t done = 0, k;

    FUZZ_CHECK(st_graph_lower(&op, made, &done) == ST_OK && done == 8);
    memmove(made + 5, made + 4, 4 * sizeof *made);
    made[4] = (struct st_descriptor){.type = ST_SDMA_COPY, .src = fuzz_va(1, theirs), .dst = fuzz_va(0, mine), .bytes = BYTES};
    st_sdma_seal(&fuzz.ctx, &made[4]);
    length = 9;
    steps[0] = (struct st_graph_step){.first = 0, .desc = 5, .part = 0};
    steps[1] = (struct st_graph_step){.first = length, .desc = 0, .part = ST_GRAPH_NOBODY};
    length += st_graph_copy(&fuzz.ctx, fuzz_va(0, mine) + BYTES, fuzz_va(0, mine), BYTES, BYTES, made + length);
    made[length] = (struct st_descriptor){.type = ST_SDMA_WRITE, .flags = ST_SDMA_RELATIVE, .value = 1,
                                          .dst = fuzz_va(0, &progress->done), .wake = ST_PROGRESS_WAKE};
    st_sdma_seal(&fuzz.ctx, &made[length++]);
    memcpy(list, made, length * sizeof *made);
    FUZZ_CHECK(st_graph_farewell(&fuzz.ctx, line_at, DIES, 0, made) == DIES - 1);
    memcpy(farewell, made, (DIES - 1) * sizeof *made);
    for (k = 1; k < DIES; k++)
        lines[0][k].phase = REPLAYS * ST_GRAPH_SPAN; /* the peers are through with all replays */
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    uint8_t *memory, *mine, *theirs;
    uint32_t i, index;

    (void)argc, (void)argv;
    fuzz_open_job();
    engine = calloc(1, st_engine_bytes());
    FUZZ_CHECK(engine && st_engine_init(engine, &fuzz.ctx, 5000000) == ST_OK);
    engine->runs = 1; /* whoever waits runs its rounds */
    memory = fuzz_group(&group);
    shared = fuzz_take(0, sizeof *shared);
    ring = fuzz_take(0, st_ring_bytes(DEPTH));
    list = fuzz_take(0, LIST * sizeof *list);
    farewell = fuzz_take(0, DIES * sizeof *farewell);
    progress = fuzz_take(0, sizeof *progress);
    mine = fuzz_take(0, 2 * BYTES);
    theirs = fuzz_take(1, BYTES);
    for (i = 0; i < DIES; i++) {
        lines[i] = fuzz_take(i, DIES * sizeof **lines);
        line_at[i] = fuzz_va(i, lines[i]);
    }
    make_list(mine, theirs);
    st_engine_open(engine, (struct st_sdma *)(uintptr_t)fuzz_va(0, shared));
    FUZZ_CHECK(st_engine_add(engine, (struct st_ring *)(uintptr_t)fuzz_va(0, ring), DEPTH, 0, &index) == ST_OK);
    parts[0] = (struct st_graph_part){.g = &group, .lines = (struct st_graph_line *)(uintptr_t)line_at[0], .joined = 1};
    graph = (struct st_graph){.e = engine, .list = (struct st_descriptor *)(uintptr_t)fuzz_va(0, list), .parts = parts,
                              .steps = steps, .length = length, .nparts = 1, .nsteps = 2};
    FUZZ_CHECK(st_lane_attach(&fuzz.ctx, 0, index, &graph.lane) == ST_OK);
    graph.event = st_event_take(engine, NULL, NULL);
    FUZZ_CHECK(graph.event);
    fuzz_region(lines[0], DIES * sizeof **lines, 1);
    fuzz_region(list, LIST * sizeof *list, 1);
    fuzz_region(list, 8 * sizeof *list, 1); /* more often than the rest */
    fuzz_region(farewell, DIES * sizeof *farewell, 1);
    fuzz_region(progress, sizeof *progress, 1);
    fuzz_region(ring, sizeof *ring, 1);
    fuzz_region(ring + 1, DEPTH * sizeof *list, 1);
    fuzz_region(shared, 256 + 64, 1);
    fuzz_region(memory, 320 + 64, 1);
    fuzz_region(lines[1], DIES * sizeof **lines, 1);
    for (i = 0; i < DIES; i++)
        fuzz_region(fuzz_control(st_table(&fuzz.ctx, i)), fuzz.ctx.seg_pages * 8, 0);
    fuzz_private(engine, offsetof(struct st_engine, events) + 3 * sizeof *engine->events);
    fuzz_private(&graph, sizeof graph);
    fuzz_ready();
    LLVMFuzzerTestOneInput(NULL, 0);
    FUZZ_CHECK(well); /* without a poke all goes well */
    return 0;
}

/* Waits for `count` replays, and gives the graph up if they do not end well. */
static int wait_for(uint64_t count)
{
    struct st_graph_end end;
    int rc = st_graph_wait(&graph, count, 20000000, &end), status;

    FUZZ_CHECK(rc >= 0 && rc < ST_NSTATUS);
    if (rc == ST_OK && st_event_status(engine, graph.event) == ST_OK)
        return 1;
    if (rc == ST_OK)
        st_graph_failed(&graph, &end);
    status = end.status;
    FUZZ_CHECK(status > 0 && status < ST_NSTATUS && end.step < graph.nsteps);
    FUZZ_CHECK(end.part < graph.nparts || end.part == ST_GRAPH_NOBODY);
    st_graph_give_up(&graph, &end);
    FUZZ_CHECK(!(end.mask[0] >> DIES) && !(end.late[0] >> DIES));
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_progress *p = (struct st_progress *)(uintptr_t)fuzz_va(0, progress);
    uint64_t k;
    uint32_t last = size ? data[size - 1] : 0;

    fuzz_begin(data, size);
    fuzz.dead = last & 6;
    fuzz_meanwhile = meanwhile;
    for (k = 1, well = 1; k <= REPLAYS && well; k++) {
        well = st_graph_replay(&graph, 3000000) == ST_OK && (last & 1 || wait_for(k));
        (void)st_graph_waits(&graph);
    }
    if (graph.begun && last & 1)
        well &= wait_for(graph.begun);
    if (well)
        well = st_stream_wait(engine, p, 1, &fuzz.ctx.wait, 3000000) == ST_OK && st_stream_look(p, 1) == ST_OK;
    (void)st_graph_close(&graph, (struct st_descriptor *)(uintptr_t)fuzz_va(0, farewell), DIES - 1);
    for (k = 0; k < 20 && !st_graph_drained(&graph); k++)
        meanwhile();
    (void)st_graph_gone(&graph);
    fuzz_meanwhile = NULL;
    FUZZ_CHECK(engine->hold.nheld == 0);
    fuzz_end();
    return 0;
}
