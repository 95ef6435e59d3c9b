/* Channels, messages and casts: what a receiver makes of a sender's, and a sender of a receiver's answers. */
#include "arena.h"
#include "st_p2p_run.h"

static struct st_group group;
static struct st_p2p p2p[DIES];
static struct st_channel *channels[DIES][DIES];
static uint8_t *mine, *theirs;
static struct st_cast *casts[2];
static uint32_t well; /* transfers of the case that went well */
static struct { void *p[64]; uint32_t n; } taken;

static void *take(size_t bytes)
{
    FUZZ_CHECK(bytes <= sizeof(struct st_unexpected) + ST_EAGER_BYTES);
    if (taken.n == 64)
        return NULL;
    return taken.p[taken.n++] = malloc(bytes);
}

static void give(void *p)
{
    for (uint32_t i = 0; i < taken.n; i++)
        if (taken.p[i] == p) {
            free(p);
            taken.p[i] = taken.p[--taken.n];
            return;
        }
    fuzz_die("freed what was not taken", 0);
}

/* The victim has a cast ring; die 1 has one, and has said something by it. */
static void make_casts(void)
{
    for (uint32_t i = 0; i < 2; i++) {
        casts[i] = fuzz_take(i, st_cast_bytes(DIES));
        fuzz_region(casts[i], 64 + 2 * 64, 1);
        fuzz_region(casts[i]->taken, DIES * sizeof *casts[i]->taken, 1);
    }
    st_cast_open(&group, fuzz_va(0, casts[0]));
    casts[1]->magic = ST_MAGIC;
    casts[1]->nmembers = DIES;
    casts[1]->slot[0] = (struct st_cast_slot){.seq = 1, .desc = 5, .count = 16, .bytes = 128};
    *st_channel_word(&group, 1, 1) = fuzz_va(1, casts[1]);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    uint8_t *memory;
    uint32_t i, j;

    (void)argc, (void)argv;
    fuzz_open_job();
    group = (struct st_group){.p2p = p2p, .alloc = take, .release = give};
    memory = fuzz_group(&group);
    for (i = 0; i < DIES; i++)
        for (j = 0; j < DIES; j++) {
            if (i == j || (i && j))
                continue;
            channels[i][j] = fuzz_take(i, sizeof(struct st_channel));
        }
    mine = fuzz_take(0, 64 << 10);
    theirs = fuzz_take(1, 64 << 10);
    for (j = 1; j < DIES; j++) {
        struct st_message *m = channels[j][0]->slot;

        st_channel_open(&group, j, fuzz_va(0, channels[0][j]));
        channels[j][0]->magic = ST_MAGIC;
        *st_channel_word(&group, j, 0) = fuzz_va(j, channels[j][0]);
        m[0] = (struct st_message){1, 5, 16, 128, 0, 9, ST_MSG_EAGER, 0, 0};
        m[1] = (struct st_message){2, 5, 16, 128, 0, 7, ST_MSG_EAGER, 0, 0};
        m[2] = (struct st_message){3, 5, 2048, 16384, fuzz_va(1, theirs), 7, ST_MSG_RENDEZVOUS, 2, 0};
        channels[j][0]->reply[2].ack = 3 << 8 | ST_ACK_POSTED;
        fuzz_region(channels[j][0], 64 + 4 * 64, 1);
        fuzz_region(&channels[j][0]->reply, 4 * 32, 1);
        fuzz_region(channels[0][j], 64 + 2 * 64, 1);
        fuzz_region(&channels[0][j]->reply, 4 * 32, 1);
    }
    make_casts();
    fuzz_region(memory + st_group_channels_off(DIES), DIES * DIES * 8, 1);
    fuzz_region(memory, 320, 1);
    fuzz_private(p2p, sizeof p2p);
    fuzz_ready();
    LLVMFuzzerTestOneInput(NULL, 0);
    FUZZ_CHECK(well == 8); /* all but the large sends, which nobody takes */
    return 0;
}

/* A transfer, a few steps of it, and its end. */
static void transfer(int cast, int receive, uint32_t peer, int64_t tag, uint64_t count)
{
    struct st_transfer t = {.cast = (uint32_t)cast, .receive = (uint32_t)receive, .peer = peer, .tag = tag, .desc = 5,
                            .count = count, .bytes = 8 * count, .buf = (void *)(uintptr_t)fuzz_va(0, mine)};

    well += st_p2p_run(&group, &t, 3000000) == ST_OK;
    if (t.matched)
        give(t.matched);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint32_t peer, i;

    fuzz_begin(data, size);
    well = 0;
    for (peer = 1; peer < DIES; peer++) {
        transfer(0, 1, peer, 7, 16);
        transfer(0, 0, peer, 7, size & 1 ? 16 : 4096);
        transfer(0, 1, peer, 7, 2048);
        transfer(0, 1, peer, 9, 16);
    }
    for (i = 0; i < (size & 2 ? 2 * ST_CAST_SLOTS : 1); i++) /* beyond a ring: nobody reads it */
        transfer(1, 0, 0, 0, i % 3 ? 16 : 2);
    group.casts = 0; /* what die 1 has said is its first */
    transfer(1, 1, 1, 0, 16);
    (void)st_group_failed(&group);
    for (i = 0; i < taken.n; i++)
        free(taken.p[i]);
    taken.n = 0;
    fuzz_end();
    return 0;
}
