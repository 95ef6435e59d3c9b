/* Dies that are started again, as a survivor sees them: words of the die table, the successor's table, pins, invitations,
 * and exports whose importers are dead. */
#include "arena.h"
#include "st_invite.h"

enum { OLD = PAGES, NEW = PAGES + 2, KINDS = 4 };

static struct st_group group, other;
static pthread_mutex_t locks[2] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
static uint64_t group_bytes, use;
static uint32_t slot, polls;
static uint8_t *memory, *offered;
static int well; /* what the case set out to do, it has done */

/* Die 1 finds the victim waiting, and offers it a group's memory. */
static int poll(void *arg)
{
    struct st_die *me = &fuzz.ctx.dies[0];
    uint64_t w = st_load_relaxed_64(&me->invite);

    (void)arg;
    if (polls++ == 1 && ST_INVITE_STATE(w) == ST_INVITE_WAITING) {
        me->invite_va = st_segment(&fuzz.ctx, 1) + NEW * ST_PAGE_BYTES;
        me->invite_bytes = group_bytes;
        me->invite = ST_INVITE(ST_INVITE_OFFERED, 1, 1);
    }
    return polls > 200 ? ST_EINTR : 0;
}

/* Die 1 is another process now: what it had has no access any more, and a new page is there. */
static void restart(struct st_ctx *c)
{
    uint64_t *table = st_table(c, 1), i;

    for (i = 0; i < OLD; i++)
        table[i] = ST_PTE(ST_PTE_FRAME(table[i]), 2, ST_PAGE_HELD);
    table[NEW] = ST_PTE(HBM_PAGES + 3, 1, ST_PAGE_MAPPED);
    st_log(c, 1)[3] = (struct st_log_record){4, ST_LOG_MAP, 1, st_segment(c, 1) + NEW * ST_PAGE_BYTES, 0};
    c->dies[1].dead = c->dies[1].incarnation = c->dies[1].settled = 1;
    c->dies[1].taken = 3;
    c->dies[1].log_head = 4;
    c->dies[2].invite = ST_INVITE(ST_INVITE_WAITING, 0, 0);
}

/* A page of the victim is exported; die 2 has imported it, and mapped it. */
static void lend(struct st_ctx *c)
{
    FUZZ_CHECK(st_export_open(c, st_shadow(c, 0) + 2, 1, &slot, &use) == ST_OK);
    st_export_at(c, 0, slot)->importers[0] = 1ull << 2;
    st_table(c, 2)[NEW] = ST_PTE(2, 1, ST_PAGE_MAPPED);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct st_ctx *c = &fuzz.ctx;
    uint8_t *own;

    (void)argc, (void)argv;
    fuzz_open_job();
    group_bytes = st_group_bytes(DIES, FUZZ_MAILBOX);
    memory = fuzz_group(&group);
    FUZZ_CHECK(st_group_pin(&group, group.va, group_bytes, 0) == ST_OK && group.pin == 1);
    group.user = (struct st_user){NULL, {&locks[0], &locks[1]}, group.ranks, group.lives, DIES};
    c->users = &group.user;
    lend(c);
    restart(c);
    offered = fuzz.hand + fuzz.hbm + 3 * ST_PAGE_BYTES; /* the frame of the new page */
    st_group_format(offered, DIES, FUZZ_MAILBOX, (const uint64_t[]){3, 4}, group.ranks);
    own = fuzz_control(st_export_at(c, 0, slot));
    fuzz_region(fuzz_control(&c->dies[0].invite), 24, 1);
    fuzz_region(fuzz_control(&c->dies[1]), sizeof *c->dies, 1);
    fuzz_region(fuzz_control(&c->dies[2].invite), 24, 1);
    fuzz_region(fuzz_control(st_pins(c, 0)), 64, 1);
    fuzz_region(fuzz_control(st_table(c, 1)), c->seg_pages * 8, 0);
    fuzz_region(fuzz_control(st_table(c, 2)), c->seg_pages * 8, 0);
    fuzz_region(fuzz_control(st_table(c, 0)), c->seg_pages * 8, 1);
    fuzz_region(fuzz_control(st_log(c, 1)), 8 * sizeof(struct st_log_record), 1);
    fuzz_region(fuzz_control(st_log(c, 0)), 8 * sizeof(struct st_log_record), 0);
    fuzz_region(own, sizeof(struct st_export), 1);
    fuzz_region(fuzz_control(st_export_at(c, 0, slot + 1)), sizeof(struct st_export), 1);
    fuzz_region(fuzz_control(c->cursors), DIES * DIES * 8, 1);
    fuzz_region(memory, st_group_lives_off(DIES) + 4 * DIES, 1);
    fuzz_region(offered, 320 + 64, 1);
    fuzz_ready();
    for (uint8_t kind = 0; kind < KINDS; kind++) { /* without a poke all goes well */
        LLVMFuzzerTestOneInput(&kind, 1);
        FUZZ_CHECK(well);
    }
    return 0;
}

/* The predecessor's pages go blank, but for the pinned one, and that when it is let go. */
static void accepts(struct st_ctx *c)
{
    volatile uint8_t *old = (uint8_t *)(uintptr_t)st_segment(c, 1);
    uint64_t fresh = st_segment(c, 1) + NEW * ST_PAGE_BYTES, i;
    uint32_t failed = 0;
    int rc;

    (void)st_registrar_round(c, &failed);
    rc = st_accept(c, 1);
    well = !fuzz_npokes && rc == ST_OK && !failed && c->follow[1].kept == 1 && old[0] != 0 && old[ST_PAGE_BYTES] == 0;
    for (i = 0; i < OLD; i++)
        if (st_page_maps(st_shadow(c, 1)[i]) || st_bit(st_kept(c, 1), i))
            fuzz_touch(st_segment(c, 1) + i * ST_PAGE_BYTES, 64, 0); /* a thread comes by an old pointer */
    well &= st_ensure_mapped(c, st_segment(c, 1), 64, 0) == ST_EREG;
    if (!fuzz_left && st_ensure_mapped(c, fresh, 64, 1) == ST_OK)
        fuzz_touch(fresh, 64, 1);
    else
        well = 0;
    st_group_unpin(&group);
    well = well && c->follow[1].kept == 0 && old[0] == 0;
}

static void claims(struct st_ctx *c)
{
    static const uint32_t dies[1] = {2};
    uint32_t lives[1];
    uint8_t missing[1];

    well = st_invite_claim_all(&group, dies, 1, 3000000, lives, missing) == ST_OK;
    well &= st_invite_offer(c, 2, group.va, group_bytes);
    st_invite_retract(c, 2);
    (void)st_invite_claim(c, 1);
}

static void awaits(struct st_ctx *c)
{
    struct st_offer offer = {0, 0, 0};
    int rc;

    polls = 0;
    c->wait.poll = poll;
    rc = st_invite_await(c, 10000000, &offer);
    FUZZ_CHECK(rc >= 0 && rc < ST_NSTATUS);
    other = group;
    other.pin = 0;
    if (rc == ST_OK)
        rc = st_group_pin(&other, offer.va, offer.bytes, offer.life);
    if (rc == ST_OK)
        rc = st_ensure_mapped(c, offer.va, offer.bytes, 1);
    if (rc == ST_OK && !fuzz_left)
        rc = st_group_bind(&other, (uint8_t *)(uintptr_t)offer.va, offer.bytes);
    well = rc == ST_OK;
    st_group_unpin(&other);
}

/* The importer is dead: what it had mapped is cleared, and the range goes. */
static void lends(struct st_ctx *c)
{
    uint64_t at = st_export_at(c, 0, slot)->va;

    fuzz.dead = 1u << 2;
    st_export_close(c, slot, use);
    well = !st_load_relaxed_32(&c->closing) && ST_PTE_STATE(st_table(c, 2)[NEW]) == ST_PAGE_FREE &&
           st_ensure_mapped(c, at, 1, 0) == ST_EREG;
    st_export_sweep(c);
    (void)st_quarantine_reclaim(c);
    fuzz_touch(c->base, PAGES * ST_PAGE_BYTES, 1); /* the victim's arrays are there as before */
    fuzz_touch(c->base + ST_PAGE_BYTES, 2 * ST_PAGE_BYTES, 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const kinds[KINDS])(struct st_ctx *) = {accepts, claims, awaits, lends};
    uint32_t last = size ? data[size - 1] : 0;

    fuzz_begin(data, size);
    if (size > 1)
        fuzz.dead = last >> 4 & 6;
    kinds[last % KINDS](&fuzz.ctx);
    fuzz_books();
    fuzz_end();
    return 0;
}
