/* Boards: rounds whose slots are used over and over, and members that are slow, stop, die, or are left out.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_board.c && ./a.out [seed]
 *
 * tsan must report: st_board_publish st_board_tell
 */
#include "handles.h"
#include "st_board.h"

enum { ROUNDS = 400 / DIES_SLOW, WORDS = 24 };
#define MS 1000000ull
#define LONG 60000000000ull

struct scene {
    struct handle handle[DIES_MOST];
    struct st_boards boards[DIES_MOST];
    struct st_board_head *at[DIES_MOST][DIES_MOST];
    uint64_t *block[DIES_MOST]; /* [ST_BOARD_ROUNDS][WORDS], what posts point at */
    uint64_t first;             /* round before the first */
    uint32_t ends;              /* the member that dies half way; n: none does */
};

static struct dies *scene_open(struct scene *s, uint32_t n, uint64_t first)
{
    struct dies *d = dies_open(n, 8, 100000);
    uint8_t *memory = dies_group(d, NULL), *page[DIES_MOST];
    uint64_t mask[ST_MASK_WORDS] = {0};

    memset(s, 0, sizeof *s);
    s->first = first;
    s->ends = n;
    for (uint32_t i = 0; i < n; i++) {
        s->boards[i].g = handle_bind(&s->handle[i], &d->ctx[i], memory);
        s->boards[i].at = s->at[i];
        page[i] = dies_pages(&d->ctx[i], 2);
        st_board_format(page[i], n);
        s->block[i] = (uint64_t *)(void *)(page[i] + ST_PAGE_BYTES);
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < n; j++)
            CHECK_IS(st_board_attach(&s->boards[i], j, (uint64_t)(uintptr_t)page[j]), ST_OK);
        for (uint64_t r = 1; r <= first && r <= ST_BOARD_ROUNDS; r++) /* as if all before had been done */
            for (uint32_t j = 0; j < n; j++)
                *st_board_mark(s->at[i][i], n, first + 1 - r, j) = first + 1 - r;
    }
    CHECK_IS(st_board_post(&s->boards[0], 0, &(struct st_post){0}, MS, 0, mask), ST_EINVAL);
    return d;
}

static uint64_t *block_of(struct scene *s, uint32_t i, uint64_t round)
{
    return s->block[i] + round % ST_BOARD_ROUNDS * WORDS;
}

static uint64_t word(uint32_t member, uint64_t round, uint64_t k)
{
    return member * 0x9e3779b97f4a7c15ull + round * 0xc2b2ae3d27d4eb4full + k;
}

/* Fills a block and posts it. */
static int post(struct scene *s, uint32_t i, uint64_t round, uint64_t timeout_ns, int masking, uint64_t *mask)
{
    struct st_post p = {.desc = 7, .count = round, .tokens = WORDS};
    int rc = ST_OK;

    if (round > s->first + ST_BOARD_ROUNDS) /* before the block is written over */
        rc = st_board_drain(&s->boards[i], round - ST_BOARD_ROUNDS, timeout_ns, masking, mask);
    if (rc != ST_OK)
        return rc;
    for (uint64_t k = 0; k < WORDS; k++)
        block_of(s, i, round)[k] = word(i, round, k);
    p.block = p.at[0] = (uint64_t)(uintptr_t)block_of(s, i, round);
    p.block_bytes = p.bytes[0] = 8 * WORDS;
    return st_board_post(&s->boards[i], round, &p, timeout_ns, masking, mask);
}

/* Reads a round, looks at what it points at. */
static int take(struct scene *s, uint32_t i, uint64_t round, uint64_t timeout_ns, int masking, uint64_t *mask)
{
    struct st_post posts[DIES_MOST];
    uint64_t waited[DIES_MOST];
    int rc = st_board_read(&s->boards[i], round, timeout_ns, masking, posts, waited, mask);

    for (uint32_t j = 0; j < s->handle[i].g.n && rc == ST_OK; j++) {
        const uint64_t *block = (const uint64_t *)(uintptr_t)posts[j].block;

        if (st_board_masked(&s->boards[i], j)) {
            CHECK(posts[j].epoch == 0 && posts[j].block == 0);
            continue;
        }
        CHECK(posts[j].epoch == round && posts[j].count == round && posts[j].desc == 7 && posts[j].tokens == WORDS);
        CHECK(waited[j] < LONG);
        for (uint64_t k = 0; k < WORDS; k++)
            CHECK(block[k] == word(j, round, k));
    }
    return rc == ST_OK ? st_board_done(&s->boards[i], round, masking, mask) : rc;
}

/* Up to ST_BOARD_ROUNDS rounds in flight, as chance has it. */
static void rounds(struct die *die)
{
    struct scene *s = die->arg;
    uint64_t posted = s->first, read = s->first, last = s->first + ROUNDS, mask[ST_MASK_WORDS] = {0};
    int masking = s->ends < die->dies->n;

    while (read < last) {
        if (die->rank == s->ends && posted > s->first + ROUNDS / 2) {
            dies_end(die);
            return;
        }
        if (posted < last && posted - read < ST_BOARD_ROUNDS && (posted == read || next(&die->seed) % 2)) {
            CHECK_IS(post(s, die->rank, posted + 1, LONG, masking, mask), ST_OK);
            posted++;
        } else {
            CHECK_IS(take(s, die->rank, read + 1, LONG, masking, mask), ST_OK);
            read++;
        }
    }
    for (uint64_t r = last - ST_BOARD_ROUNDS + 1; r <= last; r++)
        CHECK_IS(st_board_drain(&s->boards[die->rank], r, LONG, masking, mask), ST_OK);
    for (uint32_t j = 0; j < die->dies->n; j++)
        CHECK(st_board_masked(&s->boards[die->rank], j) == (j == s->ends));
    CHECK(mask[0] == 0);
}

static void test_rounds(uint32_t n, uint64_t first, int one_dies)
{
    struct scene s;
    struct dies *d = scene_open(&s, n, first);

    s.ends = one_dies ? n - 1 : n;
    dies_run(d, rounds, &s);
    dies_close(d);
}

#define BOTH(call0, call1) \
    do {                   \
        CHECK_IS(call0, ST_OK); \
        CHECK_IS(call1, ST_OK); \
    } while (0)

/* One that has not done a round holds its slot, and nobody else's. */
static void test_slow_reader(void)
{
    struct scene s;
    struct dies *d = scene_open(&s, 3, 0);
    uint64_t mask[ST_MASK_WORDS] = {0}, r;

    for (r = 1; r <= ST_BOARD_ROUNDS; r++)
        for (uint32_t i = 0; i < 3; i++) {
            CHECK_IS(post(&s, i, r, MS, 0, mask), ST_OK);
        }
    for (r = 1; r <= ST_BOARD_ROUNDS; r++)
        BOTH(take(&s, 0, r, MS, 0, mask), take(&s, 1, r, MS, 0, mask));
    CHECK_IS(post(&s, 0, r, MS, 0, mask), ST_ETIMEOUT);
    CHECK(mask[0] == 4);
    mask[0] = 0;
    CHECK_IS(st_board_post(&s.boards[0], r, &(struct st_post){0}, MS, 0, mask), ST_ETIMEOUT);
    CHECK(mask[0] == 4);
    mask[0] = 0;
    CHECK_IS(take(&s, 2, 2, MS, 0, mask), ST_OK); /* another round: not that one's slot */
    CHECK_IS(post(&s, 0, r, MS, 0, mask), ST_ETIMEOUT);
    CHECK(mask[0] == 4);
    mask[0] = 0;
    CHECK_IS(take(&s, 2, 1, MS, 0, mask), ST_OK);
    for (uint32_t i = 0; i < 3; i++)
        CHECK_IS(post(&s, i, r, MS, 0, mask), ST_OK);
    CHECK_IS(take(&s, 0, r, MS, 0, mask), ST_OK);
    CHECK(mask[0] == 0);
    dies_close(d);
}

static void test_missing(void)
{
    struct scene s;
    struct dies *d = scene_open(&s, 3, 0);
    struct st_post posts[3];
    uint64_t mask[ST_MASK_WORDS] = {0};

    CHECK_IS(st_board_read(&s.boards[0], 1, MS, 0, posts, NULL, mask), ST_EINVAL); /* it has not posted itself */
    BOTH(post(&s, 0, 1, MS, 0, mask), post(&s, 1, 1, MS, 0, mask));
    CHECK_IS(st_board_read(&s.boards[0], 1, MS, 0, posts, NULL, mask), ST_ETIMEOUT);
    CHECK(mask[0] == 4);
    mask[0] = 0;
    st_store_release_32(&d->gone[2], 1);
    CHECK_IS(st_board_read(&s.boards[0], 1, LONG, 0, posts, NULL, mask), ST_EDEAD);
    CHECK(mask[0] == 4);
    mask[0] = 0;
    CHECK_IS(take(&s, 0, 1, LONG, 1, mask), ST_OK); /* masked, it is left out from now on */
    CHECK(st_board_masked(&s.boards[0], 2) && !st_board_masked(&s.boards[0], 1) && mask[0] == 0);
    CHECK_IS(st_board_drain(&s.boards[0], 1, MS, 0, mask), ST_ETIMEOUT);
    CHECK(mask[0] == 2);
    mask[0] = 0;
    CHECK_IS(st_board_drain(&s.boards[0], 1, MS, 1, mask), ST_OK); /* late is enough */
    CHECK(st_board_masked(&s.boards[0], 1) && mask[0] == 0);
    for (uint64_t r = 2; r < 3 * ST_BOARD_ROUNDS; r++)
        BOTH(post(&s, 0, r, MS, 0, mask), take(&s, 0, r, MS, 0, mask));
    dies_close(d);
}

/* A round that somebody posted before it died counts. */
static void test_posted_before_death(void)
{
    struct scene s;
    struct dies *d = scene_open(&s, 2, 0);
    uint64_t mask[ST_MASK_WORDS] = {0};

    BOTH(post(&s, 0, 1, MS, 0, mask), post(&s, 1, 1, MS, 0, mask));
    CHECK_IS(post(&s, 0, 2, MS, 0, mask), ST_OK);
    st_store_release_32(&d->gone[1], 1);
    CHECK_IS(take(&s, 0, 1, MS, 0, mask), ST_OK);
    CHECK_IS(take(&s, 0, 2, LONG, 0, mask), ST_EDEAD);
    CHECK(mask[0] == 2);
    dies_close(d);
}

static void test_giving_up(void)
{
    struct scene s;
    struct dies *d = scene_open(&s, 3, 0);
    uint64_t mask[ST_MASK_WORDS] = {0};

    for (uint32_t i = 0; i < 3; i++)
        CHECK_IS(post(&s, i, 1, MS, 0, mask), ST_OK);
    st_board_fail(&s.boards[1], ST_ENOMEM, 1);
    st_board_fail(&s.boards[1], ST_ESYS, 2);
    CHECK(s.at[1][1]->failed == ST_ENOMEM && s.at[1][1]->failed_round == 1);
    CHECK_IS(take(&s, 0, 1, MS, 0, mask), ST_EBROKEN); /* what it had posted is there, but it may write over it */
    CHECK(mask[0] == 2);
    mask[0] = 0;
    CHECK_IS(take(&s, 2, 1, MS, 1, mask), ST_OK);
    CHECK(st_board_masked(&s.boards[2], 1) && !st_board_masked(&s.boards[2], 0) && mask[0] == 0);
    CHECK_IS(st_board_drain(&s.boards[0], 1, LONG, 0, mask), ST_EBROKEN);
    CHECK(mask[0] == 2);
    mask[0] = 0;
    CHECK_IS(post(&s, 0, 2, MS, 0, mask), ST_OK);
    CHECK_IS(take(&s, 0, 2, LONG, 0, mask), ST_EBROKEN);
    CHECK(mask[0] == 2);
    mask[0] = 0;
    CHECK_IS(post(&s, 2, 2, MS, 0, mask), ST_OK);
    CHECK_IS(take(&s, 0, 2, LONG, 1, mask), ST_OK);
    CHECK(st_board_masked(&s.boards[0], 1) && !st_board_masked(&s.boards[0], 2));
    dies_close(d);
}

/* One that others have left out hears of it, and does not take what it finds for its own. */
static void test_left_out(void)
{
    struct scene s;
    struct dies *d = scene_open(&s, 2, 0);
    struct st_post posts[2];
    uint64_t mask[ST_MASK_WORDS] = {0};

    BOTH(post(&s, 0, 1, MS, 0, mask), post(&s, 1, 1, MS, 0, mask));
    CHECK_IS(st_board_read(&s.boards[1], 1, MS, 0, posts, NULL, mask), ST_OK);
    st_board_leave_out(&s.boards[0], 1, 1);
    CHECK_IS(take(&s, 0, 1, MS, 0, mask), ST_OK);
    CHECK_IS(st_board_drain(&s.boards[0], 1, MS, 0, mask), ST_OK); /* the block may be written over now */
    CHECK_IS(st_board_done(&s.boards[1], 1, 0, mask), ST_EBROKEN);
    CHECK(mask[0] == 1);
    mask[0] = 0;
    CHECK_IS(st_board_read(&s.boards[1], 1, LONG, 0, posts, NULL, mask), ST_EBROKEN);
    CHECK(mask[0] == 1);
    mask[0] = 0;
    CHECK_IS(st_board_copy(&s.boards[1], 1, 0, posts), ST_EBROKEN);
    CHECK_IS(post(&s, 1, 1 + ST_BOARD_ROUNDS, MS, 1, mask), ST_OK); /* it is not told that its round is done */
    CHECK(st_board_masked(&s.boards[1], 0));
    st_board_leave_out(&s.boards[1], 0, 0);
    CHECK_IS(st_board_read(&s.boards[1], 1 + ST_BOARD_ROUNDS, MS, 0, posts, NULL, mask), ST_ETIMEOUT); /* not yet */
    mask[0] = 0;
    st_board_leave_out(&s.boards[0], 1, 0); /* taken in again, both at round 9 */
    *st_board_mark(s.at[0][0], 2, 1, 1) = 1;
    CHECK_IS(post(&s, 0, 1 + ST_BOARD_ROUNDS, MS, 0, mask), ST_OK);
    BOTH(take(&s, 0, 1 + ST_BOARD_ROUNDS, MS, 0, mask), take(&s, 1, 1 + ST_BOARD_ROUNDS, MS, 0, mask));
    BOTH(st_board_drain(&s.boards[0], 1 + ST_BOARD_ROUNDS, MS, 0, mask),
         st_board_drain(&s.boards[1], 1 + ST_BOARD_ROUNDS, MS, 0, mask));
    dies_close(d);
}

/* Members that ask for different things see the same table, each all of it. */
static void test_mismatch(void)
{
    struct scene s;
    struct dies *d = scene_open(&s, 3, 0);
    struct st_post p = {.count = 5}, posts[3][3];
    uint64_t mask[ST_MASK_WORDS] = {0};

    for (uint32_t i = 0; i < 3; i++) {
        p.desc = 100 + i;
        CHECK_IS(st_board_post(&s.boards[i], 1, &p, MS, 0, mask), ST_OK);
    }
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_IS(st_board_read(&s.boards[i], 1, MS, 0, posts[i], NULL, mask), ST_OK);
        CHECK_IS(st_board_done(&s.boards[i], 1, 0, mask), ST_OK);
        CHECK(memcmp(posts[i], posts[0], sizeof posts[0]) == 0 && posts[i][2].desc == 102);
    }
    dies_close(d);
}

/* What a member that has gone wrong may show. */
static void test_wrong_boards(void)
{
    struct scene s;
    struct dies *d = scene_open(&s, 2, 0);
    uint64_t own = (uint64_t)(uintptr_t)s.block[1], end = st_segment(&d->ctx[0], 1) + d->ctx[0].seg_bytes;
    uint64_t mask[ST_MASK_WORDS] = {0}, r = 1;
    const struct {
        uint64_t at, bytes;
        int status;
    } wrong[] = {{(uint64_t)(uintptr_t)s.block[0], 8, ST_ECORRUPT}, {8, 8, ST_ECORRUPT}, {~0ull - 7, 8, ST_ECORRUPT},
                 {own, end - own, ST_EREG}, {own, end - own + 8, ST_EREG}, {own, ~0ull, ST_EREG},
                 {end - 8, 8, ST_ECORRUPT}, {own, 8, ST_OK}, {12345, 0, ST_OK}};

    for (uint64_t i = 0; i < 2 * sizeof wrong / sizeof *wrong; i++, r++) {
        struct st_post p = {0}, posts[2];
        int expected = wrong[i / 2].status;

        *(i % 2 ? &p.block : &p.at[i / 2 % ST_BOARD_COLUMNS]) = i % 2 ? wrong[i / 2].at & ~7ull : wrong[i / 2].at;
        *(i % 2 ? &p.block_bytes : &p.bytes[i / 2 % ST_BOARD_COLUMNS]) = wrong[i / 2].bytes;
        if (wrong[i / 2].at == end - 8)
            expected = ST_EREG; /* in the segment, where nothing is */
        BOTH(st_board_post(&s.boards[0], r, &(struct st_post){0}, MS, 0, mask),
             st_board_post(&s.boards[1], r, &p, MS, 0, mask));
        CHECK_IS(st_board_read(&s.boards[0], r, MS, 0, posts, NULL, mask), expected);
        CHECK(mask[0] == (expected == ST_OK ? 0 : 2));
        mask[0] = 0;
        BOTH(st_board_done(&s.boards[0], r, 0, mask), st_board_done(&s.boards[1], r, 0, mask));
    }
    CHECK_IS(st_board_attach(&s.boards[0], 1, own + 8), ST_ECORRUPT);
    CHECK_IS(st_board_attach(&s.boards[0], 1, (uint64_t)(uintptr_t)s.at[0][0]), ST_ECORRUPT); /* another member's */
    CHECK_IS(st_board_attach(&s.boards[0], 1, own), ST_ECORRUPT);                             /* no board */
    CHECK_IS(st_board_attach(&s.boards[0], 1, end - 64), ST_EREG);
    s.at[1][1]->nmembers = 3;
    CHECK_IS(st_board_attach(&s.boards[0], 1, (uint64_t)(uintptr_t)s.at[1][1]), ST_ECORRUPT);
    dies_close(d);
}

int main(int argc, char **argv)
{
    dies_setup("test_board", argc, argv);
    for (uint32_t n = 1; n <= 4; n++)
        test_rounds(n, 0, 0);
    test_rounds(3, (1ull << 32) - ROUNDS / 2, 0);
    test_rounds(2, (1ull << 63) - 4 * ROUNDS, 0);
    test_rounds(4, 0, 1);
    test_slow_reader();
    test_missing();
    test_posted_before_death();
    test_giving_up();
    test_left_out();
    test_mismatch();
    test_wrong_boards();
    return 0;
}
