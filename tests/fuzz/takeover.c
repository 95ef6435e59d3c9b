/* A process that becomes a die which another one was before: all that it reads was left by that one, or by its peers. */
#include "arena.h"
#include "st_invite.h"

enum { PEER_USE = 1 };

static uint32_t missing;
static int joined, settled, fresh; /* how far the case came */
static uint64_t former; /* pages it took over */

/* The memory of the job is as a die 0 that was killed has left it; this process has nothing yet. */
static void die_0_is_gone(struct st_ctx *c)
{
    struct st_follow *f;
    uint32_t i;

    c->dies[0].start_time = 1; /* not this process's: the pid is somebody else's by now */
    munmap((void *)(uintptr_t)c->base, c->seg_bytes * DIES);
    memset(c->shadow, 0, c->private_bytes);
    for (i = 0; i < DIES; i++) {
        f = &c->follow[i];
        FUZZ_CHECK(pthread_mutex_init(&f->log_lock, NULL) == 0 && pthread_mutex_init(&f->map_lock, NULL) == 0);
    }
    c->base = c->former_pages = c->quarantined_frames = c->closing = c->vmm = 0;
    c->held_first = c->held_last = c->leaving_first = c->leaving_last = 0;
    c->frames_left = c->hbm_pages;
    c->flight = NULL;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct st_ctx *c = &fuzz.ctx;
    uint64_t words[1], use;
    uint32_t slot;

    (void)argc, (void)argv;
    fuzz_open_job();
    FUZZ_CHECK(st_export_open(c, st_shadow(c, 0) + 1, 1, &slot, &use) == ST_OK); /* with an importer that lives */
    st_export_at(c, 0, slot)->importers[0] = 1ull << 2;
    st_export_at(c, 1, 0)->va = st_segment(c, 1) + (PAGES + 1) * ST_PAGE_BYTES; /* it had imported a page of die 1 */
    st_export_at(c, 1, 0)->npages = 1;
    st_export_at(c, 1, 0)->state = PEER_USE << 2 | ST_EXPORT_OPEN;
    FUZZ_CHECK(st_import(c, 1, 0, PEER_USE, 1, words) == ST_OK);
    FUZZ_CHECK(st_pin(c, st_segment(c, 1), 100) == 1);
    fuzz_region(fuzz_control(&c->dies[0]), sizeof *c->dies, 1);
    fuzz_region(fuzz_control(&c->dies[1]), sizeof *c->dies, 1);
    fuzz_region(fuzz_control(st_table(c, 0)), c->seg_pages * 8, 1);
    fuzz_region(fuzz_control(st_table(c, 0)), c->seg_pages * 8, 0); /* more often than the rest */
    fuzz_region(fuzz_control(st_table(c, 1)), c->seg_pages * 8, 0);
    fuzz_region(fuzz_control(st_table(c, 2)), c->seg_pages * 8, 0);
    fuzz_region(fuzz_control(st_export_at(c, 0, slot)), sizeof(struct st_export), 1);
    fuzz_region(fuzz_control(st_export_at(c, 0, slot + 1)), sizeof(struct st_export), 0);
    fuzz_region(fuzz_control(st_export_at(c, 1, 0)), sizeof(struct st_export), 1);
    fuzz_region(fuzz_control(st_foreign_at(c, 0, 0)), sizeof(struct st_foreign), 1);
    fuzz_region(fuzz_control(c->rendezvous), sizeof *c->rendezvous, 1);
    fuzz_region(fuzz_control(c->cursors), DIES * DIES * 8, 1);
    fuzz_region(fuzz_control(st_pins(c, 0)), 64, 1);
    fuzz_region(fuzz_control(st_pins(c, 1)), 64, 1);
    fuzz_region(fuzz_control(st_log(c, 0)), 16 * sizeof(struct st_log_record), 1);
    fuzz_region(fuzz_control(st_log(c, 1)), 8 * sizeof(struct st_log_record), 1);
    fuzz_region(fuzz_control(c->flight), sizeof *c->flight, 0);
    die_0_is_gone(c);
    fuzz_ready();
    LLVMFuzzerTestOneInput(NULL, 0);
    LLVMFuzzerTestOneInput(NULL, 0); /* the second time, too */
    FUZZ_CHECK(joined && settled && fresh && former == PAGES); /* without a poke all goes well */
    return 0;
}

/* What a die does that lives: follows, lends, allocates. */
static void lives(struct st_ctx *c)
{
    uint32_t failed = 0, die;
    uint64_t va = 0, i;

    (void)st_registrar_round(c, &failed);
    (void)st_quarantine_reclaim(c);
    st_import_sweep(c, 0);
    st_export_sweep(c);
    for (i = 0; i < DIES * c->seg_pages; i++)
        if (st_ensure_mapped(c, c->base + (i << ST_PAGE_SHIFT), 64, 1) == ST_OK && !fuzz_left)
            fuzz_touch(c->base + (i << ST_PAGE_SHIFT), 64, 1);
    fresh = st_pages_map(c, 1, &va) == ST_OK;
    if (fresh)
        fuzz_touch(va, ST_PAGE_BYTES, 1); /* its own, whatever others write */
    for (die = 1; die < DIES; die++)
        (void)st_accept(c, die);
    if (fresh)
        FUZZ_CHECK(st_pages_unmap(c, va, 1) == ST_OK || c->dies[0].pages_top < c->seg_pages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_ctx *c = &fuzz.ctx;
    uint32_t last = size ? data[size - 1] : 0;

    fuzz_begin(data, size);
    fuzz.dead = last >> 4 & 6;
    c->lazy = last & 1;
    settled = fresh = 0;
    joined = st_space_join_as(c, 0, 1) == ST_OK && st_space_agree(c, 1000000, &missing) == ST_OK;
    if (joined) {
        FUZZ_CHECK(c->base == FUZZ_WINDOW);
        st_takeover_settle(c);
        settled = !c->taking;
        former = c->former_pages;
        fuzz_books();
        if (last & 2)
            fuzz.dead = 6; /* all that it may have waited for */
        lives(c);
        fuzz_books();
    }
    st_live_release(c);
    fuzz_end();
    munmap((void *)FUZZ_WINDOW, c->seg_bytes * DIES); /* the next process reserves it */
    return 0;
}
