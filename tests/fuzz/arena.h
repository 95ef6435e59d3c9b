/* One die that really maps, and a job around it whose other dies are nobody: their memory is written by hand.
 *
 * Die 0 (the victim) runs the core as any process does.  What others would have written is poked by the case, through a
 * second mapping of the same object.  The window is reserved without access but for what the victim has mapped, and
 * mappings that the core makes anywhere lie between guard pages: an access outside faults.
 *
 * A case is a list of pokes, 12 bytes each: a region, how, an offset in it, a value.  A poke may come before the core
 * looks, or later, at the nth of its atomic accesses, as from another die in the middle of it.
 * Afterwards all is as it was before. */
#ifndef ARENA_H
#define ARENA_H

#include "world.h"

#include "st_join.h"
#include "st_page.h"
#include "st_ready.h"
#include "st_registrar.h"
#include "st_rendezvous.h"

/* ---- the job ------------------------------------------------------------------------- */

enum { DIES = 3, HBM_PAGES = 4, PAGES = 3, REGIONS = 24, PRIVATE = 12, POKES = FUZZ_MOST / 12 };
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
} fuzz;

static int fuzz_alive(struct st_ctx *ctx, uint32_t die)
{
    (void)ctx, (void)die;
    return 1;
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
}

/* ---- a case ------------------------------------------------------------------------------ */

struct poke {
    uint8_t region, how;
    uint16_t offset;
    uint64_t value;
};

static struct poke fuzz_pokes[POKES];
static uint64_t fuzz_when[POKES];
static uint32_t fuzz_npokes, fuzz_left; /* left: timed pokes that have not been applied */

static inline struct poke fuzz_read_poke(const uint8_t *data)
{
    struct poke p = {data[0], data[1], 0, 0};

    memcpy(&p.offset, data + 2, 2);
    memcpy(&p.value, data + 4, 8);
    return p;
}

/* Numbers that are near limits. */
static inline uint64_t fuzz_limit(uint64_t k)
{
    static const uint64_t limits[] = {0, 1, 2, 3, 7, 8, 31, 32, 63, 64, 127, 128, 255, 256, 1023, 1024, 1025, 4095, 4096,
        4097, 65535, 65536, ST_PAGE_BYTES - 1, ST_PAGE_BYTES, ST_PAGE_BYTES + 1, INT32_MAX, 1ull << 31, UINT32_MAX,
        1ull << 32, 1ull << 47, 1ull << 62, INT64_MAX, 1ull << 63, UINT64_MAX - 1, UINT64_MAX, 1ull << 58};

    return limits[k % (sizeof limits / 8)];
}

static void fuzz_apply(const struct poke *p)
{
    struct region *r = &fuzz.regions[p->region % fuzz.nregions];
    const struct region *other = &fuzz.regions[p->value % fuzz.nregions];
    uint64_t at = (uint64_t)p->offset * 4 % (r->bytes - 7) / 4 * 4, word;

    memcpy(&word, r->at + at, 8);
    switch (p->how & 7) {
    case 0: word = p->value; break;
    case 1: word = (word & ~0xffffffffull) | (uint32_t)p->value; break;
    case 2: word += (uint64_t)(int64_t)(int8_t)p->value; break;
    case 3: word ^= 1ull << (p->value & 63); break;
    case 4: word = fuzz_limit(p->value) + (p->value >> 8 & 1); break;
    case 5: word = fuzz.ctx.base + p->value % (fuzz.ctx.seg_bytes * DIES + ST_PAGE_BYTES); break;
    case 6: word = other->va + (p->value >> 8) % (other->bytes + 64) / 8 * 8; break;
    default: word = (word & ~0xffull) | (uint8_t)p->value; break;
    }
    memcpy(r->at + at, &word, 8);
}

static void fuzz_due(void)
{
    uint32_t i;

    for (i = 0; fuzz_left && i < fuzz_npokes; i++)
        if (fuzz_when[i] && fuzz_when[i] <= fuzz_ticks) {
            fuzz_when[i] = 0;
            fuzz_left--;
            fuzz_apply(&fuzz_pokes[i]);
        }
}

/* The pokes of a case, those without a time applied. */
static inline void fuzz_begin(const uint8_t *data, size_t size)
{
    uint32_t i;

    fuzz_ticks = fuzz_left = 0;
    for (i = 0; i < POKES && (i + 1) * 12 <= size; i++) {
        uint64_t late;

        fuzz_pokes[i] = fuzz_read_poke(data + 12 * i);
        late = fuzz_pokes[i].how >> 3;
        fuzz_when[i] = fuzz.regions[fuzz_pokes[i].region % fuzz.nregions].timed ? late * late : 0;
        fuzz_left += fuzz_when[i] != 0;
        if (!fuzz_when[i])
            fuzz_apply(&fuzz_pokes[i]);
    }
    fuzz_npokes = i;
}

/* A page of the window, as it was mapped before. */
static inline void fuzz_remap(uint32_t die, uint64_t page)
{
    uint64_t w = fuzz.shadow[die * fuzz.ctx.seg_pages + page];
    void *at = (void *)(uintptr_t)(st_segment(&fuzz.ctx, die) + (page << ST_PAGE_SHIFT));
    int prot = ST_PTE_STATE(w) == ST_PAGE_READ ? PROT_READ : PROT_READ | PROT_WRITE;

    if (st_page_maps(w) && !ST_PTE_FOREIGN(w))
        at = (mmap)(at, ST_PAGE_BYTES, prot, MAP_SHARED | MAP_FIXED, fuzz.ctx.fd, (off_t)(ST_PTE_FRAME(w) << ST_PAGE_SHIFT));
    else
        at = (mmap)(at, ST_PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    FUZZ_CHECK(at != MAP_FAILED);
}

static inline void fuzz_end(void)
{
    uint64_t i;
    uint32_t k;

    fuzz_npokes = fuzz_left = 0;
    for (i = 0; i < DIES * fuzz.ctx.seg_pages; i++)
        if (fuzz.ctx.shadow[i] != fuzz.shadow[i])
            fuzz_remap((uint32_t)(i / fuzz.ctx.seg_pages), i % fuzz.ctx.seg_pages);
    for (k = 0; k < fuzz.nregions; k++)
        memcpy(fuzz.regions[k].at, fuzz.regions[k].before, fuzz.regions[k].bytes);
    for (k = 0; k < fuzz.nprivates; k++)
        memcpy(fuzz.privates[k].at, fuzz.privates[k].before, fuzz.privates[k].bytes);
}

/* What the core has said may be touched, touched. */
static inline void fuzz_touch(uint64_t va, uint64_t bytes, int writes)
{
    volatile uint8_t *p = (volatile uint8_t *)(uintptr_t)va;

    if (bytes && writes)
        p[bytes - 1] = p[0];
    else if (bytes)
        (void)(p[0] + p[bytes - 1]);
}

static size_t fuzz_case(uint64_t *dice, uint8_t *to, size_t most)
{
    uint64_t n = 1 + fuzz_next(dice) % 3, i, value;
    uint16_t offset;

    n += fuzz_next(dice) % 8 ? 0 : fuzz_next(dice) % 20;
    for (i = 0; i < n && (i + 1) * 12 <= most; i++) {
        uint64_t r = fuzz_next(dice);

        to[12 * i] = (uint8_t)r;
        to[12 * i + 1] = (uint8_t)((r >> 8 & 7) | (r >> 11 & 1 ? 0 : r >> 16 & 0xf8));
        offset = (uint16_t)(r >> 32); /* structs begin where regions do */
        offset = r >> 12 & 3 ? offset % 64 : offset;
        value = fuzz_next(dice);
        memcpy(to + 12 * i + 2, &offset, 2);
        memcpy(to + 12 * i + 4, &value, 8);
    }
    return i * 12;
}

#endif
