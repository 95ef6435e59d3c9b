/* Boards of dispatch and combine, and rings of virtual times. */
#include "arena.h"
#include "st_board.h"
#include "st_times.h"

enum { BLOCK = 1024, DEPTH = 16, ROUND = 3 };

static struct st_group group;
static struct st_boards boards;
static struct st_board_head *at[DIES];
static struct st_board times;
static uint64_t told[4 * DIES];
static uint32_t well, taken;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    uint8_t *memory, *block;
    struct st_board_head *head[DIES];
    struct st_times *t;
    struct st_post post = {.desc = 5, .count = 9, .tokens = 4};
    uint32_t i, k;

    (void)argc, (void)argv;
    fuzz_open_job();
    memory = fuzz_group(&group);
    boards.g = &group;
    boards.at = at;
    for (i = 0; i < DIES; i++) {
        head[i] = fuzz_take(i, st_board_bytes(DIES));
        st_board_format(head[i], DIES);
        FUZZ_CHECK(st_board_attach(&boards, i, fuzz_va(i, head[i])) == ST_OK);
    }
    for (i = 0; i < DIES; i++) { /* all have posted the round, and the victim knows that the others have read its */
        block = fuzz_take(i, BLOCK);
        post.epoch = ROUND;
        for (k = 0; k < ST_BOARD_COLUMNS; k++) {
            post.at[k] = fuzz_va(i, block);
            post.bytes[k] = 128 * k;
        }
        post.block = fuzz_va(i, block);
        post.block_bytes = BLOCK;
        memcpy(st_board_slot(head[i], ROUND), &post, sizeof post);
        *st_board_mark(head[0], DIES, ROUND, i) = ROUND;
        fuzz_region(head[i], sizeof *head[i], 1);
        fuzz_region(st_board_slot(head[i], ROUND), sizeof post, 1);
    }
    fuzz_region(st_board_mark(head[0], DIES, ROUND, 0), 8 * DIES, 1);
    times = (struct st_board){.ctx = &fuzz.ctx, .written = told, .taken = told + DIES, .lane = told + 2 * DIES,
                              .depth = told + 3 * DIES};
    for (i = 0; i < DIES; i++) {
        t = fuzz_take(i, st_times_bytes(DIES, DEPTH));
        if (i == 0) {
            st_times_open(&times, fuzz_va(0, t), DEPTH);
        } else {
            struct st_times_lane *lane = (struct st_times_lane *)(void *)(t + 1);

            *t = (struct st_times){.magic = ST_MAGIC, .ndies = DIES, .depth = DEPTH};
            st_times_records(lane)[0].seq = 1;
            fuzz.ctx.dies[i].times = fuzz_va(i, t);
        }
        fuzz_region(t, sizeof *t + 2 * st_times_lane_bytes(DEPTH), 1);
    }
    fuzz_region(memory, 320, 1);
    fuzz_private(&boards, sizeof boards);
    fuzz_private(at, sizeof at);
    fuzz_private(&times, sizeof times);
    fuzz_private(told, sizeof told);
    fuzz_ready();
    taken = 0;
    LLVMFuzzerTestOneInput(NULL, 0);
    FUZZ_CHECK(well && taken == DIES - 1); /* without a poke all goes well */
    return 0;
}

static void round_of(int masking)
{
    struct st_post posts[DIES], next = {.epoch = ROUND + 1};
    uint64_t waited[DIES], mask[ST_MASK_WORDS] = {0}, number;
    uint8_t *to;
    uint32_t j, k;
    int rc = st_board_read(&boards, ROUND, 3000000, masking, posts, waited, mask);

    for (j = 0; rc == ST_OK && j < DIES; j++) {
        if (st_board_masked(&boards, j))
            continue;
        for (k = 0; k < ST_BOARD_COLUMNS; k++)
            fuzz_touch(posts[j].at[k], posts[j].bytes[k], 0);
        if (posts[j].block_bytes > 1 << 24)
            continue; /* as much as that nobody has: st_board_read says so */
        to = malloc(posts[j].block_bytes + 1);
        (void)st_board_block(&boards, ROUND, j, &posts[j], to);
        free(to);
        (void)st_board_failure(&boards, j, &number);
    }
    well = rc == ST_OK && st_board_done(&boards, ROUND, masking, mask) == ST_OK &&
           st_board_drain(&boards, ROUND, 3000000, masking, mask) == ST_OK;
    (void)st_board_post(&boards, ROUND + 1, &next, 3000000, masking, mask);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_times_record r = {.channel = 1};
    uint32_t j, k;

    fuzz_begin(data, size);
    if (size & 1)
        for (j = 0; j < DIES; j++) /* again, as what has come by another way says where */
            (void)st_board_attach(&boards, j, size > 16 ? fuzz_va(j, fuzz.hand + j * fuzz.hbm) + data[2] * 64u : 0);
    else
        round_of((int)(size >> 1 & 1));
    for (j = 1; j < DIES; j++)
        for (k = 0; k < 3; k++) {
            taken += st_times_take(&times, j, &r) == ST_OK;
            (void)st_times_put(&times, j, &r);
        }
    fuzz_end();
    return 0;
}
