/* One die that really maps, and a job around it whose other dies are nobody: their memory is written by hand.
 *
 * Die 0 (the victim) runs the core as any process does.  What others would have written is poked by the case, through a
 * second mapping of the same object.  The window is reserved without access but for what the victim has mapped, and
 * mappings that the core makes anywhere lie between guard pages: an access outside faults.
 *
 * What a case does to it, and that afterwards all is as it was before, is in case.h. */
#ifndef ARENA_H
#define ARENA_H

#include "world.h"

#include <sanitizer/asan_interface.h>

#include "st_join.h"
#include "st_page.h"
#include "st_ready.h"
#include "st_registrar.h"
#include "st_rendezvous.h"

/* ---- the job ------------------------------------------------------------------------- */

enum { DIES = 3, HBM_PAGES = 4, PAGES = 3, REGIONS = 32, PRIVATE = 12, POKES = FUZZ_MOST / 12 };
#define FUZZ_WINDOW 0x200000000000ull
#define FUZZ_MAILBOX 256u

struct region {
    uint8_t *at; /* as the hand sees it */
    uint64_t bytes, va; /* va: as the victim does, 0: not in the window */
    int timed;   /* it may be poked while the core is at it */
    uint8_t *before;
};

static struct {
    struct st_ctx ctx;
    uint8_t *hand; /* the whole object */
    uint64_t hbm, control;
    struct region regions[REGIONS];
    struct region privates[PRIVATE]; /* the victim's own: put back, not poked */
    uint32_t nregions, nprivates;
    uint8_t *scratch[DIES]; /* next free byte of each die's memory */
    uint64_t shadow[DIES * 64]; /* as it was */
    uint32_t dead;              /* a bit for each die: of this case */
} fuzz;

static int fuzz_alive(struct st_ctx *ctx, uint32_t die)
{
    FUZZ_CHECK(die < ctx->ndies);
    return !(fuzz.dead >> die & 1);
}

static inline uint64_t fuzz_va(uint32_t die, const void *hand)
{
    return st_segment(&fuzz.ctx, die) + (uint64_t)((const uint8_t *)hand - fuzz.hand) - die * fuzz.hbm;
}

static inline void *fuzz_control(const void *p) /* of the victim's control region, as the hand sees it */
{
    return fuzz.hand + fuzz.control + ((const uint8_t *)p - fuzz.ctx.control);
}

/* Zeroed memory of a die. */
static inline void *fuzz_take(uint32_t die, uint64_t bytes)
{
    uint8_t *p = fuzz.scratch[die];

    fuzz.scratch[die] += (bytes + 63) / 64 * 64;
    FUZZ_CHECK(fuzz.scratch[die] <= fuzz.hand + die * fuzz.hbm + PAGES * ST_PAGE_BYTES);
    return p;
}

static inline void fuzz_region(void *hand, uint64_t bytes, int timed)
{
    struct region *r = &fuzz.regions[fuzz.nregions++];
    uint64_t at = (uint64_t)((uint8_t *)hand - fuzz.hand);

    FUZZ_CHECK(fuzz.nregions <= REGIONS && bytes >= 8);
    *r = (struct region){hand, bytes, 0, timed, malloc(bytes)};
    if (at < fuzz.control)
        r->va = fuzz_va((uint32_t)(at / fuzz.hbm), hand);
}

static inline void fuzz_private(void *p, uint64_t bytes)
{
    FUZZ_CHECK(fuzz.nprivates < PRIVATE);
    fuzz.privates[fuzz.nprivates++] = (struct region){p, bytes, 0, 0, malloc(bytes)};
}

/* What a peer has: pages with frames, one for reading only, one without access; its log says so. */
static inline void fuzz_peer(uint32_t die)
{
    struct st_ctx *c = &fuzz.ctx;
    uint64_t *table = st_table(c, die), i;

    for (i = 0; i < PAGES; i++)
        table[i] = ST_PTE(die * HBM_PAGES + i, 1, ST_PAGE_MAPPED);
    table[PAGES] = ST_PTE(die * HBM_PAGES + 3, 1, ST_PAGE_READ);
    table[PAGES + 1] = ST_PTE(die * HBM_PAGES + 3, 1, ST_PAGE_HELD);
    c->dies[die].pages_top = c->seg_pages;
    c->dies[die].log_head = 2;
    st_log(c, die)[0] = (struct st_log_record){1, ST_LOG_MAP, PAGES, st_segment(c, die), 0};
    st_log(c, die)[1] = (struct st_log_record){2, ST_LOG_MAP, 2, st_segment(c, die) + PAGES * ST_PAGE_BYTES, 0};
    c->dies[die].state = ST_DIE_JOINED;
    c->dies[die].pid = (uint32_t)getpid();
    c->dies[die].window_mask = 0xffff;
}

static inline void fuzz_open_job(void)
{
    struct st_ctx *c = &fuzz.ctx;
    struct st_header h;
    uint64_t va;
    uint32_t i, missing;
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    FUZZ_CHECK(fd >= 0 && st_space_layout(&h, DIES, HBM_PAGES * ST_PAGE_BYTES, FUZZ_MAILBOX, FUZZ_WINDOW) == ST_OK);
    FUZZ_CHECK(st_space_format(fd, &h, 1, 2) == ST_OK && st_space_map(c, fd) == ST_OK);
    FUZZ_CHECK(st_space_private(c) == ST_OK);
    fuzz.hbm = h.hbm_bytes;
    fuzz.control = h.control_offset;
    fuzz.hand = (mmap)(NULL, h.object_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    FUZZ_CHECK(fuzz.hand != MAP_FAILED);
    c->alive = fuzz_alive;
    c->wait = (struct st_wait_policy){.sleep_ns = 1000000, .poll_ns = 2000000};
    c->quarantine_ns = 1000000;
    FUZZ_CHECK(st_space_join(c, 0) == ST_OK);
    for (i = 1; i < DIES; i++)
        c->dies[i].state = ST_DIE_JOINED;
    for (i = 1; i < DIES; i++)
        c->dies[i].window_mask = 0xffff;
    FUZZ_CHECK(st_space_agree(c, 0, &missing) == ST_OK && c->base == FUZZ_WINDOW);
    for (i = 1; i < DIES; i++)
        fuzz_peer(i);
    FUZZ_CHECK(st_pages_map(c, PAGES, &va) == ST_OK && va == c->base);
    for (i = 0; i < DIES; i++)
        fuzz.scratch[i] = fuzz.hand + i * fuzz.hbm;
    for (i = 1; i < DIES; i++)
        FUZZ_CHECK(st_shadow_follow(c, i, 2, 1) == ST_OK);
}

/* The private tables lie in one mapping: what is between two of them is out of bounds. */
static inline void fuzz_gaps(int closed)
{
    struct st_ctx *c = &fuzz.ctx;
    struct { void *at; uint64_t bytes; } t[] = {
        {c->ready, DIES * c->ready_words * 8}, {c->readable, c->ready_words * 8}, {c->frame_used, (c->hbm_pages + 63) / 64 * 8},
        {c->page_used, c->ready_words * 8}, {c->kept, DIES * c->ready_words * 8}, {c->former, c->ready_words * 8},
        {c->frame_refs, c->hbm_pages * 4}, {c->held, c->hbm_pages * sizeof *c->held}};
    uint32_t k;

    for (k = 0; k < sizeof t / sizeof *t; k++)
        if (t[k].bytes % 64 && closed)
            ASAN_POISON_MEMORY_REGION((uint8_t *)t[k].at + t[k].bytes, 64 - t[k].bytes % 64);
        else if (t[k].bytes % 64)
            ASAN_UNPOISON_MEMORY_REGION((uint8_t *)t[k].at + t[k].bytes, 64 - t[k].bytes % 64);
}

/* The victim's own books agree with each other, whatever others have written. */
static inline void fuzz_books(void)
{
    struct st_ctx *c = &fuzz.ctx;
    uint64_t used = 0, former = 0, held = 0, refs, f, i, *own = st_shadow(c, 0);
    uint32_t h;

    for (f = 0; f < c->hbm_pages; f++) {
        for (refs = i = 0; i < c->seg_pages; i++)
            refs += ST_PTE_STATE(own[i]) != ST_PAGE_FREE && ST_PTE_FRAME(own[i]) == f;
        FUZZ_CHECK(c->frame_refs[f] == refs && (!refs || st_bit(c->frame_used, f)));
        used += (uint64_t)st_bit(c->frame_used, f);
    }
    for (i = 0; i < c->seg_pages; i++) {
        former += (uint64_t)st_bit(c->former, i);
        FUZZ_CHECK(ST_PTE_STATE(own[i]) == ST_PAGE_FREE || st_bit(c->page_used, i));
    }
    for (h = c->held_first; h; h = c->held[h - 1].next)
        held += c->held[h - 1].run;
    FUZZ_CHECK(used == c->hbm_pages - c->frames_left && former == c->former_pages && held == c->quarantined_frames);
}

/* Makes *g the group of all dies, by memory of die 1, which is returned.  The caller has filled what else it wants in *g. */
static inline uint8_t *fuzz_group(struct st_group *g)
{
    static const uint32_t ranks[DIES] = {0, 1, 2};
    static const uint64_t id[2] = {3, 4};
    static struct st_base bases[DIES];
    uint64_t bytes = st_group_bytes(DIES, FUZZ_MAILBOX);
    uint8_t *memory = fuzz_take(1, bytes);

    st_group_format(memory, DIES, FUZZ_MAILBOX, id, ranks);
    g->ctx = &fuzz.ctx;
    g->n = DIES;
    g->ranks = ranks;
    g->bases = bases;
    g->alloc = g->alloc ? g->alloc : malloc;
    g->release = g->release ? g->release : free;
    g->va = fuzz_va(1, memory);
    FUZZ_CHECK(st_group_bind(g, (uint8_t *)(uintptr_t)g->va, bytes) == ST_OK);
    fuzz_private(g, sizeof *g);
    fuzz_private(bases, sizeof bases);
    return memory;
}

/* After the target has made what it fuzzes: how it is now, it will be before each case. */
static inline void fuzz_ready(void)
{
    struct st_ctx *c = &fuzz.ctx;
    uint32_t i;

    fuzz_private(c, sizeof *c);
    fuzz_private(c->shadow, c->private_bytes);
    fuzz_region(fuzz_control(c->header), sizeof *c->header, 1);
    fuzz_region(fuzz_control(c->dies), DIES * sizeof *c->dies, 1);
    for (i = 0; i < fuzz.nregions; i++)
        memcpy(fuzz.regions[i].before, fuzz.regions[i].at, fuzz.regions[i].bytes);
    for (i = 0; i < fuzz.nprivates; i++)
        memcpy(fuzz.privates[i].before, fuzz.privates[i].at, fuzz.privates[i].bytes);
    FUZZ_CHECK(DIES * c->seg_pages <= sizeof fuzz.shadow / 8);
    memcpy(fuzz.shadow, c->shadow, DIES * c->seg_pages * 8);
    fuzz_gaps(1);
}

#include "case.h"

#endif
