/* The structs of a board in shared memory: what a member tells the others of a round of dispatch or combine.
 *
 * A board is [header][ST_BOARD_ROUNDS posts][done: ST_BOARD_ROUNDS * n words], in its member's HBM.  Rounds are
 * numbered from 1; round r has slot r % ST_BOARD_ROUNDS of all boards. */
#ifndef ST_ABI_MOE_H
#define ST_ABI_MOE_H

#include "st_abi.h"

#define ST_BOARD_MAGIC 0x3144524142545453ull /* "STTBARD1" */
#define ST_BOARD_ROUNDS 8u                   /* that may be in flight */
#define ST_BOARD_COLUMNS 6u                  /* arrays that one round moves */
#define ST_BOARD_WRITING (1ull << 63)        /* of an epoch: the slot is that round's, and not filled yet */

struct st_board_head {
    /* line 0: written when the board is made */
    uint64_t magic;
    uint32_t nmembers;
    uint32_t rounds;
    uint8_t pad0[48];
    /* line 1: the member has given up, for good */
    uint32_t failed; /* enum st_status; the commit word */
    uint32_t pad1;
    uint64_t failed_round;
    uint8_t pad2[48];
};
_Static_assert(offsetof(struct st_board_head, failed) == 64, "abi");
_Static_assert(sizeof(struct st_board_head) == 128, "abi");

struct st_post {
    uint64_t epoch; /* round; the commit word */
    uint64_t desc;  /* fingerprints */
    uint64_t count;
    uint64_t tokens;                  /* rows of each column */
    uint64_t at[ST_BOARD_COLUMNS];    /* addresses in the member's memory, */
    uint64_t bytes[ST_BOARD_COLUMNS]; /* and lengths */
    uint64_t block;                   /* the same of its routing block */
    uint64_t block_bytes;
    uint64_t spare[14];
};
_Static_assert(offsetof(struct st_post, at) == 32, "abi");
_Static_assert(offsetof(struct st_post, bytes) == 80, "abi");
_Static_assert(offsetof(struct st_post, block) == 128, "abi");
_Static_assert(sizeof(struct st_post) == 256, "abi");

static inline uint64_t st_board_bytes(uint64_t n)
{
    return sizeof(struct st_board_head) + ST_BOARD_ROUNDS * (sizeof(struct st_post) + 8 * n);
}

static inline struct st_post *st_board_slot(struct st_board_head *b, uint64_t round)
{
    return (struct st_post *)(void *)(b + 1) + round % ST_BOARD_ROUNDS;
}

/* Where member `reader` says that it has read the board's post of a round. */
static inline uint64_t *st_board_mark(struct st_board_head *b, uint64_t n, uint64_t round, uint32_t reader)
{
    return (uint64_t *)(void *)((struct st_post *)(void *)(b + 1) + ST_BOARD_ROUNDS) + round % ST_BOARD_ROUNDS * n + reader;
}

#endif
