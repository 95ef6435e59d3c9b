/* Page tables, metadata logs, cursors, exports and foreign files of peers: what registrars and phase 2 make of them. */
#include "arena.h"

enum { OFFER_USE = 1 };
static uint32_t touched, imported;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct st_ctx *c = &fuzz.ctx;
    uint64_t slot, i;
    struct stat st;

    (void)argc, (void)argv;
    fuzz_open_job();
    for (i = 1; i < DIES; i++) { /* an offer of the page without access, and a file */
        struct st_export *e = st_export_at(c, (uint32_t)i, 0);
        struct st_foreign *f = st_foreign_at(c, (uint32_t)i, 0);

        e->va = st_segment(c, (uint32_t)i) + (PAGES + 1) * ST_PAGE_BYTES;
        e->npages = 1;
        e->state = OFFER_USE << 2 | ST_EXPORT_OPEN;
        FUZZ_CHECK(fstat(c->fd, &st) == 0);
        f->device = st.st_dev;
        f->inode = st.st_ino;
        f->bytes = ST_PAGE_BYTES;
        f->fd = (uint32_t)c->fd;
        st_table(c, (uint32_t)i)[PAGES + 2] = ST_PTE(ST_FOREIGN_FRAME, 1, ST_PAGE_MAPPED);
    }
    for (i = 1; i < DIES; i++) {
        fuzz_region(fuzz_control(st_table(c, (uint32_t)i)), c->seg_pages * 8, 0);
        fuzz_region(fuzz_control(st_log(c, (uint32_t)i)), 8 * sizeof(struct st_log_record), 1);
        fuzz_region(fuzz_control(st_cursor(c, (uint32_t)i, 0)), DIES * 8, 1);
        for (slot = 0; slot < 2; slot++) {
            fuzz_region(fuzz_control(st_foreign_at(c, (uint32_t)i, (uint32_t)slot)), sizeof(struct st_foreign), 1);
            fuzz_region(fuzz_control(st_export_at(c, (uint32_t)i, (uint32_t)slot)), sizeof(struct st_export), 1);
        }
    }
    fuzz_region(fuzz_control(st_cursor(c, 0, 0)), DIES * 8, 1);
    fuzz_region(fuzz_control(st_export_at(c, 0, 0)), sizeof(struct st_export), 1);
    fuzz_region(fuzz_control(st_table(c, 0)), c->seg_pages * 8, 0);
    fuzz_ready();
    LLVMFuzzerTestOneInput(NULL, 0);
    /* Without a poke: each die's pages for reading and writing, a peer's fourth and its file. */
    FUZZ_CHECK(imported == 2 && touched == DIES * PAGES * 2 + 2 * 3);
    return 0;
}

/* All pages of the window, and the ends of it: what may be touched is. */
static void touch_all(void)
{
    struct st_ctx *c = &fuzz.ctx;
    uint64_t pages = c->seg_pages * DIES, i, va;
    int writes;

    for (i = 0; i < pages; i++)
        for (writes = 0; writes < 2; writes++) {
            va = c->base + (i << ST_PAGE_SHIFT);
            if (st_ensure_mapped(c, va, 64, writes) == ST_OK) {
                touched++;
                fuzz_touch(va, 64, writes);
            }
            (void)st_is_ready(c, va, 3 * ST_PAGE_BYTES);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_ctx *c = &fuzz.ctx;
    uint64_t words[16], head;
    uint32_t die, failed = 0;

    fuzz_begin(data, size);
    c->lazy = size & 1;
    (void)st_registrar_round(c, &failed);
    for (die = 1; die < DIES; die++) {
        head = 2;
        if (size >= 8)
            memcpy(&head, data, 8);
        (void)st_shadow_follow(c, die, head, (int)(size >> 1 & 1)); /* as a barrier's line has it */
        if (st_import(c, die, 0, OFFER_USE, 1, words) == ST_OK) {
            imported++;
            st_import_end(c, die, 0);
        }
        (void)st_import(c, die, 1, OFFER_USE, 1, words);
    }
    if (!fuzz_left) /* a page whose word changes after the look may go: see docs/security.md */
        touch_all();
    (void)st_quarantine_reclaim(c);
    st_import_sweep(c, 0);
    st_export_sweep(c);
    (void)st_registrar_round(c, &failed);
    fuzz_books();
    fuzz_end();
    return 0;
}
