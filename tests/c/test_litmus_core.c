/* The core's own protocols as litmus tests: each holds under weak order, and breaks when its memory orders are taken out.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include -Istrata/_core/checked tests/c/test_litmus_core.c &&
 *         ./a.out [seed [runs of each]]
 */
#include "litmus.h"
#include "st_collective.h"
#include "st_flag.h"
#include "st_types.h"
#include "st_accumulate.h"
#include "st_kernels.h"

enum { PAYLOAD = 24, EAGER = 256 };
#define LONG 60000000000ull

static struct {
    struct dies *d;
    uint8_t *memory, *page[2];
    struct handle h[2];
    struct st_boards boards[2];
    struct st_board_head *at[2];
    struct st_lane lane;
    uint64_t round, bad;
    uint32_t busy, given;
    struct st_wait_policy policy, awake; /* that sleeps at once, and never */
} s;

/* Which of the two dies runs. */
static uint32_t me(void)
{
    return LITMUS_THREADS ? (uint32_t)(litmus_self) : litmus.now;
}

static struct st_ctx *ctx(void) { return &s.d->ctx[me()]; }

static struct st_group *group(void) { return &s.h[me()].g; }

static void wrong(int truth)
{
    if (truth)
        (st_store_relaxed_64)(&s.bad, 1);
}

static int bad(void) { return (st_load_relaxed_64)(&s.bad) || litmus.stuck; }

/* A group in which nothing has happened. */
static void begin(void)
{
    uint32_t i;

    s.round++;
    s.bad = 0;
    s.busy = s.given = 0;
    dies_group(s.d, s.memory);
    for (i = 0; i < 2; i++) {
        handle_bind(&s.h[i], &s.d->ctx[i], s.memory);
        s.h[i].g.policy = s.policy;
    }
}

/* ---- arrival and what it brings -------------------------------------------------------- */

static void arrive(void)
{
    uint64_t mine[PAYLOAD / 8] = {s.round, me(), s.round + me()};
    struct st_request r = {.desc = 3, .count = s.round, .src = mine, .payload = PAYLOAD};
    uint64_t theirs[PAYLOAD / 8];
    int rc = st_collective(group(), &r);

    st_copy(theirs, st_line(group(), 1, !me())->u.data, PAYLOAD, 0);
    wrong(rc != ST_OK || theirs[0] != s.round || theirs[1] != !me() || theirs[2] != s.round + !me());
    if (r.lines)
        free(r.lines);
}

/* A line by itself, read as mailboxes are: nothing but the arrival stands before it. */
static void awake_begin(void)
{
    begin();
    for (uint32_t i = 0; i < 2; i++)
        s.h[i].g.policy = s.awake;
}

static void comes(void)
{
    struct st_group *g = group();
    uint64_t mine[PAYLOAD / 8] = {s.round, me(), s.round + me()}, theirs[PAYLOAD / 8];

    st_wait_begin(&g->waiter, &g->policy, &g->header->wake_word, &g->header->sleepers, 0);
    st_copy(st_line(g, 1, me())->u.data, mine, PAYLOAD, 0);
    st_group_arrive(g, 1);
    wrong(st_group_wait_all(g, ST_PHASE_ARRIVAL, 1) != ST_OK);
    st_copy(theirs, st_line(g, 1, !me())->u.data, PAYLOAD, 0);
    wrong(theirs[0] != s.round || theirs[1] != !me() || theirs[2] != s.round + !me());
    st_wait_end(&g->waiter);
}

/* ---- giving up against beginning --------------------------------------------------------- */

static uint64_t *condition(void) { return (uint64_t *)(void *)s.page[0]; }

static void touches(void)
{
    struct st_group *g = group();
    int k;

    g->number = 1;
    if (st_group_begin(g, 1) != ST_OK)
        return;
    (st_store_seqcst_32)(&s.busy, 1);
    st_store_relaxed_64(condition(), s.round); /* into the buffer of the one that gives up */
    for (k = 0; k < 40; k++) {
        litmus_turn();
        wrong((int)(st_load_seqcst_32)(&s.given)); /* the buffer is its owner's again */
    }
    st_store_relaxed_64(condition() + 8, s.round);
    (st_store_seqcst_32)(&s.busy, 0);
    st_store_seqcst_64(&g->members[g->me].done, 1); /* pairs with st_group_quiesce */
}

static void gives_up(void)
{
    struct st_group *g = group();
    uint64_t mask[ST_MASK_WORDS] = {0};

    g->number = 1;
    st_group_fail(g, ST_ETIMEOUT, ST_PHASE_ARRIVAL, 0, mask);
    st_store_seqcst_64(&g->members[g->me].done, 1); /* pairs with st_group_quiesce */
    wrong(st_group_quiesce(g, 1, LONG * 60, mask) != 0);
    (st_store_seqcst_32)(&s.given, 1);
    wrong((int)(st_load_seqcst_32)(&s.busy));
    wrong((st_load_relaxed_64(condition()) == s.round) != (st_load_relaxed_64(condition() + 8) == s.round));
}

/* ---- what a failure says ------------------------------------------------------------------ */

static void fails(void)
{
    uint64_t mask[ST_MASK_WORDS] = {0x55};

    group()->number = 9;
    st_group_fail(group(), ST_EDEAD, ST_PHASE_COMPLETION, 17, mask);
}

static void reads_failure(void)
{
    struct st_group *g = group();
    struct st_request r = {0};

    while (st_group_failed(g) == ST_OK && !litmus.stuck)
        litmus_turn();
    wrong(st_request_failed(g, &r, 0) != 0 || r.failed_number != 9 || r.failed_desc != 17 || r.mask[0] != 0x55 ||
          r.failed_by != 0 || r.phase != ST_PHASE_COMPLETION || st_group_failed(g) != ST_EDEAD);
}

static void reads_reason(void)
{
    struct st_group *g = group();
    struct st_request r = {0};

    while (!r.phase && !litmus.stuck) {
        (void)st_request_failed(g, &r, 0);
        litmus_turn();
    }
    wrong(r.failed_number != 9 || r.mask[0] != 0x55);
}

/* ---- sleepers ------------------------------------------------------------------------------ */

static void sleep_begin(void)
{
    begin();
    *condition() = 0;
}

static void wakes(void)
{
    st_store_seqcst_64(condition(), 1); /* pairs with sleeps */
    st_group_wake(group());
}

static void sleeps(void)
{
    struct st_waiter w;

    st_wait_begin(&w, &s.policy, &group()->header->wake_word, &group()->header->sleepers, 0);
    w.steps = LITMUS_THREADS ? 0 : 64; /* it has been patient */
    while (!st_load_acquire_64(condition())) /* pairs with wakes */
        (void)st_wait_step(&w);
    st_wait_end(&w);
    wrong(group()->header->sleepers != 0);
}

static int lost(void) { return litmus.lost || bad(); }

/* ---- the log --------------------------------------------------------------------------------- */

static void log_begin(void)
{
    begin();
    s.d->ctx[0].dies[0].log_head = (s.round + 1) * ST_LOG_RECORDS; /* slot 0 is written over */
}

static void logs(void)
{
    st_log_append(ctx(), ST_LOG_MAP, (s.round + 1) << 30, (s.round + 1) & 0xffff);
    st_log_append(ctx(), ST_LOG_UNMAP, (s.round + 1) << 31, 7);
}

static void reads_log(void)
{
    uint64_t first = (s.round + 1) * ST_LOG_RECORDS, head = st_log_head(ctx(), 0), k;
    struct st_log_record r = {0};

    for (k = first; k < head; k++) {
        if (!st_log_read(ctx(), 0, k, &r))
            wrong(1); /* nobody has lapped it */
        else
            wrong(k == first ? r.va != (s.round + 1) << 30 || r.npages != ((s.round + 1) & 0xffff)
                             : r.va != (s.round + 1) << 31 || r.npages != 7 || r.kind != ST_LOG_UNMAP);
    }
    if (s.round > 1 && st_log_read(ctx(), 0, first - ST_LOG_RECORDS, &r)) /* it is written over meanwhile */
        wrong(r.va != s.round << 30 || r.npages != (s.round & 0xffff));
}

/* ---- rendezvous -------------------------------------------------------------------------------- */

static void rendezvous_begin(void)
{
    uint64_t key[2] = {1, s.round + 1};

    begin();
    st_rendezvous_write(st_rendezvous_table(&s.d->ctx[0], 0), key, 100 + s.round, 5, 0, 1);
}

static void meets(void)
{
    uint64_t key[2] = {2, s.round};

    st_rendezvous_write(st_rendezvous_table(ctx(), 0), key, 200 + s.round, 6, 1, 1);
}

static void finds(void)
{
    uint64_t old[2] = {1, s.round}, key[2] = {2, s.round}, va, bytes, status;
    const struct st_rendezvous *slot = st_rendezvous_table(ctx(), 0);

    if (st_rendezvous_read(slot, key, &va, &bytes, &status))
        wrong(va != 200 + s.round || bytes != 6 || status != 1);
    if (st_rendezvous_read(slot, old, &va, &bytes, &status))
        wrong(va != 100 + s.round || bytes != 5 || status != 0);
}

/* ---- a ring of the DMA engine -------------------------------------------------------------------- */

static void ring_begin(void)
{
    begin();
    memset(s.page[1], 0, st_ring_bytes(4) + 4096);
    s.lane = (struct st_lane){.ring = (struct st_ring *)(void *)(s.page[1] + 4096), .depth = 4,
                              .of = (struct st_sdma *)(void *)(s.page[1] + ST_PAGE_BYTES / 2)};
    s.lane.ring->tail = s.lane.ring->head = s.round;
}

static void submits(void)
{
    struct st_descriptor d = {.type = ST_SDMA_COPY, .src = s.round, .dst = s.round + 1, .bytes = 64};

    while (!st_cas_acq_rel_32(&s.lane.ring->lock, 0, me() + 1) && !litmus.stuck) /* pairs with st_lane_unlock */
        litmus_turn();
    st_lane_put(&s.lane, 0, &d);
    d.bytes = 128;
    st_lane_put(&s.lane, 1, &d);
    st_lane_ring(&s.lane, 2);
    st_lane_unlock(&s.lane);
}

static void executes(void)
{
    uint64_t head = s.round, tail;
    int k;

    for (k = 0; k < 20; k++) {
        tail = st_load_acquire_64(&s.lane.ring->tail); /* pairs with st_lane_ring */
        for (; head < tail; head++) {
            struct st_descriptor d;

            st_copy(&d, st_ring_slot(s.lane.ring, 4, head), sizeof d, 0);
            wrong(d.commit != head + 1 || d.src != s.round || d.dst != s.round + 1 ||
                  d.bytes != ((head - s.round) % 2 ? 128 : 64));
        }
        litmus_turn();
    }
}

/* ---- boards ---------------------------------------------------------------------------------------- */

static struct st_post posted(uint64_t round)
{
    struct st_post p = {.epoch = round, .desc = round * 3, .count = round * 5, .tokens = round * 7};

    for (uint32_t k = 0; k < ST_BOARD_COLUMNS; k++)
        p.at[k] = p.bytes[k] = round * 8;
    return p;
}

static void board_begin(void)
{
    struct st_post p;

    begin();
    p = posted((s.round - 1) * ST_BOARD_ROUNDS);
    st_board_publish(&s.boards[0], p.epoch, &p);
}

static void posts(void)
{
    struct st_post p = posted(s.round * ST_BOARD_ROUNDS);

    st_board_publish(&s.boards[0], s.round * ST_BOARD_ROUNDS, &p);
}

static void copies(void)
{
    uint64_t round = (s.round - st_hook_choose(2, 0)) * ST_BOARD_ROUNDS;
    struct st_post p, right = posted(round);

    while (st_board_copy(&s.boards[1], round, 0, &p) != ST_OK) {
        if (litmus.stuck || round < s.round * ST_BOARD_ROUNDS) /* it has been written over */
            return;
        litmus_turn();
    }
    wrong(memcmp(&p, &right, sizeof p) != 0);
}

/* ---- messages and flags ------------------------------------------------------------------------------ */

static struct st_transfer transfer(int receive, void *buf)
{
    return (struct st_transfer){.receive = (uint32_t)receive, .peer = !receive, .tag = 5, .buf = buf, .bytes = EAGER,
                                .count = EAGER / 8, .desc = ST_DESC(10, 0, ST_I64, 0, 0)};
}

static void message_begin(void)
{
    begin();
    memset(s.page[0], 0, sizeof(struct st_channel));
    st_channel_open(&s.h[0].g, 1, (uint64_t)(uintptr_t)s.page[0]);
}

static void sends(void)
{
    uint64_t bytes[EAGER / 8], k;
    struct st_transfer t = transfer(0, bytes);

    for (k = 0; k < EAGER / 8; k++)
        bytes[k] = s.round;
    wrong(st_p2p_progress(group(), &t) != ST_OK);
}

static void receives(void)
{
    uint64_t bytes[EAGER / 8] = {0}, k;
    struct st_transfer t = transfer(1, bytes);
    int rc;

    while ((rc = st_p2p_progress(group(), &t)) == ST_AGAIN && !litmus.stuck)
        litmus_turn();
    wrong(rc != ST_OK);
    for (k = 0; k < EAGER / 8; k++)
        wrong(bytes[k] != s.round);
}

/* A large message: its receiver pulls, and answers. */
static void sends_large(void)
{
    struct st_transfer t = transfer(0, s.page[0] + ST_PAGE_BYTES / 2);
    uint64_t k;
    int rc;

    t.bytes = 2 * ST_EAGER_BYTES;
    t.count = t.bytes / 8;
    for (k = 0; k < t.count; k++)
        ((uint64_t *)t.buf)[k] = s.round;
    while ((rc = st_p2p_progress(group(), &t)) == ST_AGAIN && !litmus.stuck)
        litmus_turn();
    wrong(rc != ST_OK);
    memset(t.buf, 0, t.bytes); /* they are its own again */
}

static void receives_large(void)
{
    struct st_transfer t = transfer(1, s.page[1]);
    uint64_t k;
    int rc;

    t.bytes = 2 * ST_EAGER_BYTES;
    t.count = t.bytes / 8;
    while ((rc = st_p2p_progress(group(), &t)) == ST_AGAIN && !litmus.stuck)
        litmus_turn();
    wrong(rc != ST_OK);
    for (k = 0; k < t.count; k++)
        wrong(((uint64_t *)t.buf)[k] != s.round);
}

/* One that asks for something else: its sender hears for what. */
static void sends_refused(void)
{
    struct st_transfer t = transfer(0, s.page[0] + ST_PAGE_BYTES / 2);
    int rc;

    t.bytes = 2 * ST_EAGER_BYTES;
    t.count = s.round;
    while ((rc = st_p2p_progress(group(), &t)) == ST_AGAIN && !litmus.stuck)
        litmus_turn();
    wrong(rc != ST_EMISMATCH || t.m.count != s.round + 1 || t.m.desc != (t.desc ^ (s.round << 48)));
}

static void receives_refused(void)
{
    struct st_transfer t = transfer(1, s.page[1]);
    int rc;

    t.bytes = 2 * ST_EAGER_BYTES;
    t.count = s.round + 1;
    t.desc ^= s.round << 48;
    while ((rc = st_p2p_progress(group(), &t)) == ST_AGAIN && !litmus.stuck)
        litmus_turn();
    wrong(rc != ST_EMISMATCH || t.m.count != s.round);
}

/* A channel is opened while its receiver looks for it. */
static void channel_begin(void)
{
    begin();
    memset(s.page[0], 0, sizeof(struct st_channel));
}

static void opens(void)
{
    st_channel_open(group(), 1, (uint64_t)(uintptr_t)s.page[0]);
    sends();
}

static void flag_begin(void)
{
    begin();
    memset(s.page[0], 0, 4096);
}

static void raises(void)
{
    uint64_t bytes[EAGER / 8], k;

    for (k = 0; k < EAGER / 8; k++)
        bytes[k] = s.round;
    st_copy(s.page[0] + 64, bytes, sizeof bytes, 0);
    wrong(st_flag_write(ctx(), (uint64_t)(uintptr_t)s.page[0], s.round) != ST_OK);
}

static void awaits(void)
{
    uint64_t value = 0, k;

    while (st_flag_read(ctx(), (uint64_t)(uintptr_t)s.page[0], &value) == ST_OK && value < s.round && !litmus.stuck)
        litmus_turn();
    for (k = 0; k < EAGER / 8; k++)
        wrong(st_load_relaxed_64(&((uint64_t *)(void *)s.page[0])[8 + k]) != s.round);
}

/* ---- the end of an operation, flags of a plan, and a board that is given up ------------- */

static uint64_t *target(uint32_t die) { return (uint64_t *)(void *)s.page[die]; }

static void put(uint32_t die)
{
    uint64_t bytes[EAGER / 8], k;

    for (k = 0; k < EAGER / 8; k++)
        bytes[k] = s.round;
    st_copy(target(die) + 8, bytes, sizeof bytes, 0);
}

static void look(uint32_t die)
{
    uint64_t k;

    for (k = 0; k < EAGER / 8; k++)
        wrong(st_load_relaxed_64(&target(die)[8 + k]) != s.round);
}

/* Each writes into the other's array; who has left the operation finds its own whole. */
static void completes(void)
{
    struct st_group *g = group();

    st_wait_begin(&g->waiter, &s.policy, &g->header->wake_word, &g->header->sleepers, 0);
    put(!me());
    wrong(st_group_complete(g, 1) != ST_OK);
    look(me());
    st_wait_end(&g->waiter);
}

static const struct st_unit unit = {.post_flag = 3, .wait_flag = 3, .wait_peer = 0};

static void unit_done(void)
{
    uint32_t posts[4] = {0, 0, 0, 1}, left[4] = {0, 0, 0, 1};
    struct st_plan p = {.posts = posts, .left = left};

    put(1);
    st_unit_done(group(), &p, &unit, 1);
}

static void unit_waits(void)
{
    while (!st_unit_ready(group(), &unit, 1) && !litmus.stuck)
        litmus_turn();
    look(1);
}

/* The same by kernels: they reduce into the other's array, or accumulate there. */
static void kernel_begin(void)
{
    uint32_t i;

    begin();
    memset(s.page[1], 0, 64 + EAGER);
    for (i = 0; i < EAGER / 8; i++)
        target(0)[8 + i] = s.round - 1;
    for (i = 0; i < 2; i++) {
        s.d->ctx[i].reduce = st_reduce;
        s.d->ctx[i].accumulate = st_accumulate;
        s.h[i].bases[0].va[ST_BUF_SRC] = (uint64_t)(uintptr_t)(target(0) + 8);
        s.h[i].bases[1].va[ST_BUF_OUT] = (uint64_t)(uintptr_t)(target(1) + 8);
        s.h[i].bases[0].va[ST_BUF_SCRATCH] = (uint64_t)(uintptr_t)(target(0) + 256);
    }
    for (i = 0; i < EAGER / 8; i++)
        target(0)[256 + i] = 1;
}

static void by_kernel(int kind)
{
    static const struct st_operand operands[] = {
        {.member = 0, .buf = ST_BUF_SRC}, {.member = 0, .buf = ST_BUF_SCRATCH}, {.member = 1, .buf = ST_BUF_OUT}};
    struct st_unit u = {.kind = (uint8_t)kind, .op = ST_SUM, .dtype = ST_U64, .ndst = 1, .dst_first = 2, .bytes = EAGER,
                        .wait_flag = -1, .post_flag = 3};
    uint32_t posts[4] = {0, 0, 0, 1}, left[4] = {0, 0, 0, 1};
    struct st_plan p = {.posts = posts, .left = left, .operands = operands, .max_operands = 2};
    void *at[4];
    struct st_run r = {.g = group(), .p = &p, .number = 1, .at = at};

    u.nsrc = kind == ST_UNIT_ACCUMULATE ? 1 : 2;
    wrong(st_unit_run(&r, &u) != ST_OK);
    if (kind == ST_UNIT_ACCUMULATE) { /* and the rest */
        u.src_first = 1;
        wrong(st_unit_run(&r, &u) != ST_OK);
    }
    st_unit_done(group(), &p, &u, 1);
}

static void reduces(void) { by_kernel(ST_UNIT_REDUCE); }

static void accumulates(void) { by_kernel(ST_UNIT_ACCUMULATE); }

static void fail_begin(void)
{
    begin();
    st_board_format(s.at[0], 2);
}

static void board_fails(void) { st_board_fail(&s.boards[0], ST_EDEAD, s.round); }

static void board_failed(void)
{
    uint64_t round = 0;
    int rc;

    while ((rc = st_board_failure(&s.boards[1], 0, &round)) == ST_OK && !litmus.stuck)
        litmus_turn();
    wrong(rc != ST_EDEAD || round != s.round);
}

/* -------------------------------------------------------------------------------------- */

static const struct litmus tests[] = {
    {"arrival line and payload", 2, begin, {arrive, arrive}, bad, {"st_group_arrive"}, 0},
    {"arrival, read at once", 2, awake_begin, {comes, comes}, bad, {"st_here"}, 0},
    {"began against failure", 2, begin, {touches, gives_up}, bad, {"st_group_begin", "st_group_quiesce"}, 0},
    {"failure and its reason", 2, begin, {fails, reads_failure}, bad, {"st_group_fail"}, 0},
    {"reason, read at once", 2, begin, {fails, reads_reason}, bad, {"st_request_failed"}, 0},
    {"sleepers", 2, sleep_begin, {wakes, sleeps}, lost, {"wakes"}, 0},
    {"log record and head", 2, log_begin, {logs, reads_log}, bad, {"st_log_append", "st_log_read"}, 0},
    {"rendezvous slot", 2, rendezvous_begin, {meets, finds}, bad, {"st_rendezvous_write", "st_rendezvous_read"}, 0},
    {"ring slots and tail", 3, ring_begin, {submits, executes, submits}, bad, {"st_lane_ring", "executes"}, 0},
    {"board slots", 2, board_begin, {posts, copies}, bad, {"st_board_publish", "st_board_copy"}, 0},
    {"small message", 2, message_begin, {sends, receives}, bad, {"st_send_post", "st_recv_take"}, 0},
    {"large message", 2, message_begin, {sends_large, receives_large}, bad, {0}, 0},
    {"refused message", 2, message_begin, {sends_refused, receives_refused}, bad, {"st_recv_finish", "st_send_acked"}, 0},
    {"channel and message", 2, channel_begin, {opens, receives}, bad, {"st_send_post"}, 0},
    {"completion", 2, begin, {completes, completes}, bad, {"st_group_complete"}, 0},
    {"flags of a plan", 2, begin, {unit_done, unit_waits}, bad, {"st_unit_done", "st_unit_ready"}, 0},
    {"reduction and flag", 2, kernel_begin, {reduces, unit_waits}, bad, {"st_unit_done"}, 0},
    {"accumulation and flag", 2, kernel_begin, {accumulates, unit_waits}, bad, {"st_unit_done"}, 0},
    {"board given up", 2, fail_begin, {board_fails, board_failed}, bad, {"st_board_fail", "st_board_failure"}, 0},
    {"flag from the host", 2, flag_begin, {raises, awaits}, bad, {"st_flag_write", "st_flag_read"}, 0},
};

int main(int argc, char **argv)
{
    uint64_t runs = litmus_begin("test_litmus_core", argc, argv, 3000);
    uint32_t i;

    s.d = dies_open(2, 8, 0);
    s.policy = (struct st_wait_policy){.sleep_ns = 0, .poll_ns = 3600000000000ull};
    s.awake = (struct st_wait_policy){.sleep_ns = LONG * 60, .poll_ns = 3600000000000ull};
    s.memory = dies_group(s.d, NULL);
    for (i = 0; i < 2; i++) {
        s.page[i] = dies_pages(&s.d->ctx[i], 1);
        CHECK_IS(st_ensure_mapped(&s.d->ctx[!i], (uint64_t)(uintptr_t)s.page[i], ST_PAGE_BYTES, 1), ST_OK);
        s.boards[i].g = &s.h[i].g;
        s.boards[i].at = s.at;
        s.at[i] = (struct st_board_head *)(void *)dies_pages(&s.d->ctx[i], 1);
        st_board_format(s.at[i], 2);
    }
    for (size_t k = 0; k < sizeof tests / sizeof *tests; k++)
        litmus_test(&tests[k], runs);
    dies_close(s.d);
    printf("test_litmus_core: ok\n");
    return 0;
}
