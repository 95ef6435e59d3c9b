/* A group: how its memory is found, what its header, lines, flags, mailboxes and failure say, and operations by these. */
#include "arena.h"
#include "st_collective.h"

enum { COUNT = 64, BYTES = 8 * COUNT, CHUNK = 4096 };

static struct st_group group;
static const uint64_t key[2] = {3, 4};
static uint64_t bytes;
static uint8_t *array[DIES]; /* source, then result, then scratch: CHUNK each */

/* Plans of the victim: pull from all, reduce, push behind a flag; the same by mailbox; by what stands in the line. */
static struct st_unit units[4];
static struct st_operand operands[12];
static uint64_t buffers[DIES * ST_NBUFS];
static uint32_t posts[4], left[4];
static struct st_plan far, mail;
static int result; /* of the case's operation */

static int reduce(int dtype, int op, void *const *dst, int ndst, const void *const *src, int nsrc, uint64_t count, int nt)
{
    (void)dtype, (void)op, (void)nt;
    for (int k = 0; k < nsrc; k++)
        fuzz_touch((uint64_t)(uintptr_t)src[k], 8 * count, 0);
    for (int k = 0; k < ndst; k++)
        fuzz_touch((uint64_t)(uintptr_t)dst[k], 8 * count, 1);
    return ST_OK;
}

static void make_plans(void)
{
    uint32_t i;

    for (i = 0; i < DIES * ST_NBUFS; i++)
        buffers[i] = CHUNK;
    for (i = 0; i < 3; i++) {
        units[i] = (struct st_unit){.kind = i == 1 ? ST_UNIT_REDUCE : ST_UNIT_COPY, .op = i == 1 ? ST_SUM : 0,
                                    .dtype = i == 1 ? ST_I64 : 0, .bytes = BYTES, .src_first = 4 * i, .dst_first = 4 * i + 3,
                                    .nsrc = i == 1 ? 3 : 1, .ndst = 1, .wait_peer = -1, .wait_flag = -1, .post_flag = -1};
        operands[4 * i] = (struct st_operand){.member = i == 2 ? 0 : 1, .buf = i == 2 ? ST_BUF_OUT : ST_BUF_SRC};
        operands[4 * i + 1] = (struct st_operand){.member = 2, .buf = ST_BUF_SRC};
        operands[4 * i + 2] = (struct st_operand){.member = 0, .buf = ST_BUF_SRC};
        operands[4 * i + 3] = (struct st_operand){.member = i == 2 ? 2 : 0, .buf = i == 2 ? ST_BUF_SCRATCH : ST_BUF_OUT};
    }
    units[1].post_flag = 0;
    units[2].wait_peer = 1;
    units[2].wait_flag = 3;
    far = (struct st_plan){.units = units, .operands = operands, .nunits = 3, .noperands = 12, .buffer_bytes = buffers,
                           .nflags = 1, .needs_done = 1, .posts = posts, .left = left};
    FUZZ_CHECK(st_plan_check(&far, DIES) == ST_OK);
    mail = far;
    mail.nunits = 2;
    mail.nflags = 0;
    mail.mailbox = 1;
    mail.mail_bytes = FUZZ_MAILBOX;
    mail.needs_done = 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    uint8_t *memory;
    uint32_t j;

    (void)argc, (void)argv;
    fuzz_open_job();
    fuzz.ctx.reduce = reduce;
    bytes = st_group_bytes(DIES, FUZZ_MAILBOX);
    memory = fuzz_group(&group);
    for (j = 0; j < DIES; j++)
        array[j] = fuzz_take(j, 3 * CHUNK);
    make_plans();
    for (j = 1; j < DIES; j++) { /* the others have come to operation 1, and are through with it */
        struct st_arrival *line = (struct st_arrival *)(void *)(memory + st_group_arrivals_off(DIES)) + DIES + j;
        struct st_member *m = (struct st_member *)(void *)(memory + st_group_members_off(DIES)) + j;
        uint64_t *flags = (uint64_t *)(void *)(memory + st_group_flags_off(DIES)) + j * ST_GROUP_FLAGS;

        *line = (struct st_arrival){.epoch = 1, .desc = 5, .count = COUNT};
        line->u.at.src = fuzz_va(j, array[j]);
        line->u.at.out = fuzz_va(j, array[j] + CHUNK);
        line->u.at.scratch = fuzz_va(j, array[j] + 2 * CHUNK);
        line->u.at.log_head = 2;
        *m = (struct st_member){.done = 1, .began = 1, .found = 1, .shrink = 1};
        flags[3] = 1;
        fuzz_region(flags, 64, 1);
        fuzz.ctx.rendezvous[j * ST_RENDEZVOUS_SLOTS] = (struct st_rendezvous){{3, 4}, 1, group.va, bytes, 0, 0, 2};
    }
    fuzz.ctx.rendezvous[0] = (struct st_rendezvous){{7, 8}, 1, fuzz_va(0, array[0]), bytes, 0, 0, 2};
    fuzz_region(memory, st_group_ranks_off() + 4 * DIES, 1);
    fuzz_region(memory + st_group_arrivals_off(DIES), 2 * DIES * sizeof(struct st_arrival), 1);
    fuzz_region(memory + st_group_arrivals_off(DIES) + DIES * sizeof(struct st_arrival), DIES * sizeof(struct st_arrival), 1);
    fuzz_region(memory + st_group_members_off(DIES), DIES * sizeof(struct st_member), 1);
    fuzz_region(fuzz_control(fuzz.ctx.rendezvous), 64, 1);
    fuzz_region(fuzz_control(fuzz.ctx.rendezvous + ST_RENDEZVOUS_SLOTS), 64, 1);
    fuzz_region(array[0], 320 + 64, 1); /* as if a slot said that there is a group */
    fuzz_region(memory + st_group_flags_off(DIES), 64, 1); /* of the victim */
    fuzz_ready();
    for (uint8_t which = 0; which < 4; which++) { /* without a poke all goes well */
        LLVMFuzzerTestOneInput(&which, 1);
        FUZZ_CHECK(result == ST_OK);
    }
    return 0;
}

static void operation(const struct st_plan *plan, uint64_t payload, uint32_t fence)
{
    uint64_t own = fuzz_va(0, array[0]);
    struct st_request r = {.desc = 5, .count = COUNT, .plan = plan, .src = (void *)(uintptr_t)own,
                           .out = (void *)(uintptr_t)(own + CHUNK), .scratch = (void *)(uintptr_t)(own + 2 * CHUNK),
                           .payload = payload, .src_bytes = BYTES, .out_bytes = BYTES, .timeout_ns = 5000000, .fence = fence};
    int rc = st_collective(&group, &r);

    FUZZ_CHECK(rc >= 0 && rc < ST_NSTATUS && r.failed_by < DIES);
    result = rc;
    free(r.lines);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct st_group other;
    uint64_t va = 0, got = 0, none[2] = {9, 9}, mask[ST_MASK_WORDS], missing[ST_MASK_WORDS];
    int rc;

    fuzz_begin(data, size);
    switch (size ? data[size - 1] & 3 : 0) { /* one operation a case: the others have come to no second one */
    case 0: operation(&far, 0, 0); break;
    case 1: operation(&mail, FUZZ_MAILBOX, 0); break;
    case 2: operation(NULL, 0, 1); break;
    default:
        other = group;
        rc = st_rendezvous_find(&fuzz.ctx, 1, key, 1000000, &va, &got);
        FUZZ_CHECK(rc >= 0 && rc < ST_NSTATUS);
        if (rc == ST_OK && st_ensure_mapped(&fuzz.ctx, va, bytes, 1) == ST_OK)
            rc = st_group_bind(&other, (uint8_t *)(uintptr_t)va, bytes);
        result = rc;
        (void)st_rendezvous_publish(&fuzz.ctx, none, va, 64, ST_OK, 1, 1000000);
        (void)st_rendezvous_stale(&fuzz.ctx, st_load_relaxed_64(&fuzz.ctx.rendezvous[0].va));
        st_rendezvous_forget(&group);
        (void)st_group_survivors(&group, 1, 1000000, mask, missing);
        (void)st_group_deserted(&group, ST_LEFT_GONE);
    }
    rc = st_group_failed(&group);
    FUZZ_CHECK(rc >= 0 && rc < ST_NSTATUS);
    fuzz_end();
    return 0;
}
