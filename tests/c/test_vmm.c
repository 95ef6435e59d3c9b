/* Addresses, frames and access apart; exports and imports.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_vmm.c && ./a.out [seed]
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* The core's system calls fail when a test says so. */
static struct { int after, error; } trip_fallocate, trip_mmap;

static int test_fallocate(int fd, int mode, off_t at, off_t bytes)
{
    if (!(mode & FALLOC_FL_PUNCH_HOLE) && trip_fallocate.error && trip_fallocate.after-- == 0) {
        errno = trip_fallocate.error;
        trip_fallocate.error = 0;
        return -1;
    }
    return fallocate(fd, mode, at, bytes);
}

static void *test_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t off)
{
    if ((flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) && trip_mmap.error && trip_mmap.after-- == 0) {
        errno = trip_mmap.error;
        trip_mmap.error = 0;
        return MAP_FAILED;
    }
    return mmap(at, bytes, prot, flags, fd, off);
}
#define fallocate test_fallocate
#define mmap test_mmap
#include "dies.h"
#include "forks.h"
#include "st_alias.h"

enum { HBM = 24 }; /* pages */
#define PAGE ST_PAGE_BYTES
#define WORD(va) (*(volatile uint64_t *)(uintptr_t)(va))

/* ---- what must hold at rest ----------------------------------------------------- */

/* Every frame is used exactly as often as counted: by mappings and by the handles given. */
static void sound(struct st_ctx *c, uint64_t *const *words, const uint64_t *npages, int handles)
{
    uint64_t refs[HBM] = {0}, used = 0, first = c->rank * c->hbm_pages, i, k, w;

    for (i = 0; i < c->seg_pages && i < st_table_top(c, c->rank); i++) {
        w = st_table(c, c->rank)[i];
        if (ST_PTE_STATE(w) == ST_PAGE_FREE)
            continue;
        CHECK(st_bit(c->page_used, i));
        CHECK(st_shadow(c, c->rank)[i] == w);
        if (st_frame_own(c, ST_PTE_FRAME(w)))
            refs[ST_PTE_FRAME(w) - first]++;
    }
    for (int h = 0; h < handles; h++)
        for (k = 0; k < npages[h]; k++)
            refs[ST_PTE_FRAME(words[h][k]) - first]++;
    for (i = 0; i < HBM; i++) {
        CHECK_IS(c->frame_refs[i], refs[i]);
        CHECK_IS(st_bit(c->frame_used, i), refs[i] > 0);
        used += refs[i] > 0;
    }
    CHECK_IS(c->quarantined_frames, 0);
    CHECK_IS(c->frames_left, HBM - used);
    CHECK_IS(c->dies[c->rank].pages_reserved, used);
}

static void empty(struct st_ctx *c)
{
    sound(c, NULL, NULL, 0);
    for (uint64_t i = 0; i < c->seg_pages; i++)
        CHECK(!st_bit(c->page_used, i));
    CHECK(c->closing == 0 && c->leaving_first == 0);
}

static uint64_t reserve(struct st_ctx *c, uint64_t n)
{
    uint64_t va;

    CHECK_IS(st_va_reserve(c, n, 1, &va), ST_OK);
    return va;
}

static void map_all(struct st_ctx *c, uint64_t va, const uint64_t *words, uint64_t n, uint32_t state)
{
    uint64_t done;

    CHECK_IS(st_vmm_map(c, va, words, n), ST_OK);
    CHECK_IS(st_vmm_access(c, va, n, state, &done), ST_OK);
    CHECK_IS(done, n);
}

/* ---- addresses ---------------------------------------------------------------------- */

static void test_addresses(void)
{
    struct dies *d = dies_open(2, HBM, 1000000);
    struct st_ctx *c = &d->ctx[1];
    uint64_t a, b, all = c->seg_pages, outside = c->base;

    CHECK_IS(st_va_reserve(c, 0, 1, &a), ST_EINVAL);
    CHECK_IS(st_va_reserve(c, 1, 0, &a), ST_EINVAL);
    CHECK_IS(st_va_reserve(c, all + 1, 1, &a), ST_ENOMEM);
    CHECK_IS(st_va_reserve(c, ~0ull, 1, &a), ST_ENOMEM);
    CHECK_IS(st_va_reserve(c, 1, ~0ull, &a), ST_ENOMEM);
    CHECK_IS(st_va_reserve(c, all, 1, &a), ST_OK);
    CHECK(a == st_segment(c, 1));
    errno = 5;
    CHECK_IS(st_va_reserve(c, 1, 1, &b), ST_ENOMEM);
    CHECK(errno == 0);
    CHECK_IS(st_va_free(c, a, all), ST_OK);
    CHECK_IS(st_va_free(c, a, all), ST_EINVAL); /* twice */
    a = reserve(c, 1);
    for (uint64_t align = 2; align <= all / 2; align *= 2) {
        CHECK_IS(st_va_reserve(c, 2, align, &b), ST_OK);
        CHECK(b % (align * PAGE) == 0 && b != a);
        CHECK_IS(st_va_free(c, b, 2), ST_OK);
    }
    CHECK_IS(st_va_free(c, a + 1, 1), ST_EINVAL);
    CHECK_IS(st_va_free(c, a, 2), ST_EINVAL);
    CHECK_IS(st_va_free(c, a, 0), ST_EINVAL);
    CHECK_IS(st_va_free(c, a, ~0ull), ST_EINVAL);
    CHECK_IS(st_va_free(c, outside, 1), ST_EINVAL);
    CHECK_IS(st_va_free(c, a, 1), ST_OK);
    trip_fallocate.error = ENOSPC; /* the page table has no room */
    d->ctx[0].dies[1].pages_top = 0;
    CHECK_IS(st_va_reserve(c, 1, 1, &a), ST_ENOMEM);
    CHECK(errno == ENOSPC && trip_fallocate.error == 0);
    CHECK_IS(st_va_reserve(c, 1, 1, &a), ST_OK);
    CHECK_IS(st_va_free(c, a, 1), ST_OK);
    empty(c);
    dies_close(d);
}

/* ---- handles ------------------------------------------------------------------------- */

static void test_handles(void)
{
    struct dies *d = dies_open(1, HBM, 1000000);
    struct st_ctx *c = &d->ctx[0];
    uint64_t words[HBM], more[HBM], n = HBM, va, *list[2] = {words, more}, sizes[2] = {8, 16};

    CHECK_IS(st_handle_create(c, 0, words), ST_EINVAL);
    CHECK_IS(st_handle_create(c, HBM + 1, words), ST_ENOMEM);
    CHECK_IS(st_handle_create(c, HBM, words), ST_OK);
    sound(c, list, &n, 1);
    CHECK_IS(st_handle_create(c, 1, more), ST_ENOMEM);
    CHECK_IS(st_handle_release(c, words, HBM), ST_OK);
    empty(c);
    for (int step = 0; step < 12; step++) { /* whatever fails, nothing is taken */
        uint64_t pages = dies_pages(c, 2) - (uint8_t *)(uintptr_t)c->base;

        CHECK(pages == 0);
        CHECK_IS(st_handle_create(c, 1, more), ST_OK);
        CHECK_IS(st_pages_unmap(c, c->base, 2), ST_OK); /* a hole of two frames, then one that is used */
        trip_fallocate.after = step;
        trip_fallocate.error = step % 2 ? ENOSPC : EIO;
        int rc = st_handle_create(c, 12, words);
        if (trip_fallocate.error == 0 && rc != ST_OK)
            CHECK_IS(rc, step % 2 ? ST_ENOMEM : ST_ESYS);
        trip_fallocate.error = 0;
        if (rc == ST_OK)
            CHECK_IS(st_handle_release(c, words, 12), ST_OK);
        sizes[0] = 1;
        list[0] = more;
        sound(c, list, sizes, 1);
        CHECK_IS(st_handle_release(c, more, 1), ST_OK);
        empty(c);
    }
    list[0] = words;
    c->huge = 1; /* makes huge pages where the kernel does, at addresses that it gives back */
    trip_mmap.after = 1;
    trip_mmap.error = EACCES;
    if (st_handle_create(c, 8, words) != ST_OK)
        CHECK_IS(st_handle_create(c, 8, words), ST_OK);
    trip_mmap.error = 0;
    CHECK_IS(st_va_reserve(c, c->seg_pages, 1, &va), ST_OK); /* no address is left to make them at */
    CHECK_IS(st_handle_create(c, 16, more), ST_OK);
    sizes[0] = 8;
    sound(c, list, sizes, 2);
    map_all(c, va, more, 16, ST_PAGE_MAPPED);
    for (int i = 0; i < 16; i++)
        CHECK(WORD(va + i * PAGE) == 0 && WORD(va + (i + 1) * PAGE - 8) == 0);
    CHECK_IS(st_vmm_unmap(c, va, 16), ST_OK);
    CHECK_IS(st_handle_release(c, more, 16), ST_OK);
    CHECK_IS(st_handle_release(c, words, 8), ST_OK);
    CHECK_IS(st_va_free(c, va, c->seg_pages), ST_OK);
    empty(c);
    dies_close(d);
}

/* ---- mappings --------------------------------------------------------------------------- */

static void test_mappings(void)
{
    struct dies *d = dies_open(2, HBM, 1000000);
    struct st_ctx *c = &d->ctx[0], *peer = &d->ctx[1];
    uint64_t words[4], va, heap = (uint64_t)(uintptr_t)dies_pages(c, 1), done, *list[1] = {words}, n = 4;

    CHECK_IS(st_handle_create(c, 4, words), ST_OK);
    va = reserve(c, 8);
    CHECK_IS(st_vmm_map(c, va + 8 * PAGE, words, 1), ST_EINVAL); /* not reserved */
    CHECK_IS(st_vmm_map(c, heap, words, 1), ST_EINVAL);
    CHECK_IS(st_vmm_map(c, va + 1, words, 1), ST_EINVAL);
    CHECK_IS(st_vmm_map(c, st_segment(c, 1), words, 1), ST_EINVAL);
    CHECK_IS(st_vmm_unmap(c, va, 1), ST_EINVAL);
    CHECK_IS(st_vmm_access(c, va, 1, ST_PAGE_READ, &done), ST_EINVAL);
    CHECK_IS(st_vmm_map(c, va, words, 4), ST_OK);
    CHECK_IS(st_vmm_map(c, va + 3 * PAGE, words, 2), ST_EINVAL); /* in part mapped already */
    CHECK_IS(st_vmm_access(c, va, 5, ST_PAGE_READ, &done), ST_EINVAL);
    CHECK_IS(st_vmm_access(c, va, 4, ST_PAGE_FREE, &done), ST_EINVAL);
    CHECK_IS(st_vmm_access(c, va, 4, 9, &done), ST_EINVAL);
    CHECK_IS(done, 0);
    CHECK_IS(st_vmm_unmap(c, va, 5), ST_EINVAL);
    CHECK_IS(st_va_free(c, va, 8), ST_EINVAL);
    CHECK_IS(st_ensure_mapped(peer, va, 1, 0), ST_EREG); /* no access yet, for nobody */
    CHECK_IS(st_ensure_mapped(c, va, 1, 0), ST_EREG);
    CHECK_IS(st_vmm_access(c, va, 4, ST_PAGE_MAPPED, &done), ST_OK);
    CHECK_IS(st_ensure_mapped(peer, va, 4 * PAGE, 1), ST_OK);
    CHECK_IS(st_vmm_access(c, va, 4, ST_PAGE_MAPPED, &done), ST_OK); /* nothing new: nobody hears of it */
    CHECK(done == 4 && st_load_relaxed_64(&st_shadow(peer, 0)[(va - c->base) / PAGE]) == st_table(c, 0)[(va - c->base) / PAGE]);
    WORD(va + 3 * PAGE) = 7;
    CHECK_IS(st_vmm_access(c, va + PAGE, 3, ST_PAGE_READ, &done), ST_OK);
    CHECK_IS(st_ensure_mapped(peer, va, PAGE, 1), ST_OK);
    CHECK_IS(st_ensure_mapped(peer, va, PAGE + 1, 1), ST_EREG);
    CHECK_IS(st_ensure_mapped(peer, va, 4 * PAGE, 0), ST_OK);
    CHECK_IS(st_ensure_mapped(c, va + PAGE, 1, 1), ST_EREG);
    CHECK_IS(st_ensure_own(c, (void *)(uintptr_t)va, 4 * PAGE, 0), ST_OK);
    CHECK_IS(st_ensure_own(c, &done, 8, 1), ST_OK); /* not in the fabric */
    CHECK(WORD(va + 3 * PAGE) == 7);
    CHECK_IS(st_vmm_access(c, va, 4, ST_PAGE_HELD, &done), ST_OK);
    CHECK_IS(st_ensure_mapped(peer, va, 1, 0), ST_EREG);
    dies_settle(d);
    sound(c, list, &n, 1);
    /* A change that fails half way: what was changed is known to all. */
    CHECK_IS(st_vmm_unmap(c, va, 4), ST_OK);
    CHECK_IS(st_vmm_map(c, va, words + 2, 2), ST_OK); /* two runs of frames */
    CHECK_IS(st_vmm_map(c, va + 2 * PAGE, words, 2), ST_OK);
    trip_mmap.after = 1;
    trip_mmap.error = ENOMEM;
    CHECK_IS(st_vmm_access(c, va, 4, ST_PAGE_MAPPED, &done), ST_EMAPS);
    CHECK_IS(done, 2);
    CHECK_IS(st_ensure_mapped(peer, va, 2 * PAGE, 1), ST_OK);
    CHECK_IS(st_ensure_mapped(peer, va, 2 * PAGE + 1, 0), ST_EREG);
    CHECK_IS(st_vmm_access(c, va, 4, ST_PAGE_MAPPED, &done), ST_OK);
    CHECK(WORD(va + PAGE) == 7);
    trip_mmap.after = 0;
    trip_mmap.error = EACCES;
    CHECK_IS(st_vmm_unmap(c, va, 4), ST_ESYS); /* nothing has changed */
    CHECK_IS(st_ensure_mapped(peer, va, 4 * PAGE, 1), ST_OK);
    trip_mmap.after = 0;
    trip_mmap.error = ENOMEM; /* too many mappings: another way */
    CHECK_IS(st_vmm_unmap(c, va, 4), ST_OK);
    CHECK_IS(trip_mmap.error, 0);
    CHECK_IS(st_va_free(c, va, 8), ST_OK);
    CHECK_IS(st_handle_release(c, words, 4), ST_OK);
    CHECK_IS(st_pages_unmap(c, heap, 1), ST_OK);
    dies_settle(d);
    empty(c);
    dies_close(d);
}

/* ---- aliases -------------------------------------------------------------------------------- */

static void test_aliases(void)
{
    struct dies *d = dies_open(2, HBM, 1000000);
    struct st_ctx *c = &d->ctx[0];
    uint64_t words[4], va, heap = (uint64_t)(uintptr_t)dies_pages(c, 2), b;

    CHECK_IS(st_handle_create(c, 4, words), ST_OK);
    va = reserve(c, 16);
    b = va + 8 * PAGE;
    map_all(c, va, words, 4, ST_PAGE_MAPPED);
    map_all(c, b, words + 2, 2, ST_PAGE_READ);
    map_all(c, b + 2 * PAGE, words, 2, ST_PAGE_MAPPED);
    for (uint64_t i = 0; i < 4; i++)
        WORD(va + i * PAGE + 8 * i) = i + 1;
    for (uint64_t i = 0; i < 4; i++)
        CHECK(WORD(b + (i + 2) % 4 * PAGE + 8 * i) == i + 1);
    CHECK(st_alias_shared(c, va, 4 * PAGE, b, 4 * PAGE));
    CHECK(st_alias_shared(c, va + 2 * PAGE - 1, 2, b, 1)); /* the last byte of one page, the first of the next */
    CHECK(!st_alias_shared(c, va, 2 * PAGE, b, 2 * PAGE));
    CHECK(!st_alias_shared(c, va, 2 * PAGE - 1, b + 4 * PAGE - 1, 1));
    CHECK(st_alias_shared(c, va, 2 * PAGE, b + 4 * PAGE - 1, 1));
    CHECK(!st_alias_shared(c, va, 8, b + 2 * PAGE + 8, 8));
    CHECK(!st_alias_shared(c, va, 4 * PAGE, va, 4 * PAGE)); /* no byte of it is there twice */
    CHECK(st_alias_shared(c, va, 12 * PAGE, va, 12 * PAGE));
    CHECK(!st_alias_shared(c, heap, 2 * PAGE, va, 4 * PAGE));
    CHECK(!st_alias_shared(c, heap, 2 * PAGE, heap, 2 * PAGE));
    CHECK(st_alias_shared(&d->ctx[1], va, 4 * PAGE, b, 4 * PAGE)); /* a peer sees it, too */
    CHECK_IS(st_page_word(c, st_segment(c, 1)), 0);
    CHECK_IS(st_page_word(c, c->base - 1), 0);
    CHECK_IS(st_handle_release(c, words, 4), ST_OK);
    CHECK_IS(st_vmm_unmap(c, va, 4), ST_OK);
    CHECK_IS(c->quarantined_frames, 0); /* they are mapped still */
    CHECK_IS(st_vmm_unmap(c, b, 3), ST_OK);
    CHECK_IS(c->quarantined_frames, 3);
    CHECK_IS(st_vmm_unmap(c, b + 3 * PAGE, 1), ST_OK);
    CHECK_IS(st_va_free(c, va, 16), ST_OK);
    CHECK_IS(st_pages_unmap(c, heap, 2), ST_OK);
    dies_settle(d);
    empty(c);
    dies_close(d);
}

/* ---- exports ---------------------------------------------------------------------------------- */

static void test_exports(void)
{
    struct dies *d = dies_open(3, HBM, 1000000);
    struct st_ctx *c = &d->ctx[0], *in = &d->ctx[1];
    uint64_t words[3], got[3], use, va, uses[ST_EXPORT_SLOTS];
    uint32_t slot, slots[ST_EXPORT_SLOTS];

    CHECK_IS(st_handle_create(c, 3, words), ST_OK);
    CHECK_IS(st_export_open(c, words, 3, &slot, &use), ST_OK);
    CHECK_IS(st_import(in, 0, slot, use + 1, 3, got), ST_EREG);
    CHECK_IS(st_import(in, 0, slot, use, 2, got), ST_ECORRUPT);
    CHECK_IS(st_import(in, 0, ST_EXPORT_SLOTS, use, 3, got), ST_EINVAL);
    CHECK_IS(st_import(in, 3, slot, use, 3, got), ST_EINVAL);
    CHECK_IS(st_import(in, 1, slot, use, 3, got), ST_EINVAL); /* its own */
    CHECK_IS(st_import(in, 2, slot, use, 3, got), ST_EREG);
    CHECK_IS(st_export_at(c, 0, slot)->importers[0], 0); /* who failed is no importer */
    CHECK_IS(st_import(in, 0, slot, use, 3, got), ST_OK);
    CHECK_IS(st_import(in, 0, slot, use, 3, got), ST_OK); /* twice */
    CHECK_IS(st_import(in, 0, slot, use + 1, 3, got), ST_EREG);
    for (int i = 0; i < 3; i++)
        CHECK(ST_PTE_FRAME(got[i]) == ST_PTE_FRAME(words[i]));
    va = reserve(in, 3);
    map_all(in, va, got, 3, ST_PAGE_MAPPED);
    WORD(va + PAGE) = 99;
    CHECK_IS(st_ensure_mapped(&d->ctx[2], va, 3 * PAGE, 1), ST_OK); /* a third die reaches them there */
    CHECK(st_alias_possible(in, va, 1));
    st_export_close(c, slot, use);
    CHECK_IS(st_handle_release(c, words, 3), ST_OK);
    CHECK_IS(st_import(&d->ctx[2], 0, slot, use, 3, got), ST_EREG);
    dies_settle(d);
    st_export_sweep(c);
    CHECK(c->closing == 1 && c->frames_left == HBM - 3 && WORD(va + PAGE) == 99);
    CHECK_IS(st_vmm_unmap(in, va, 3), ST_OK);
    st_import_end(in, 0, slot);
    st_export_sweep(c);
    CHECK_IS(c->closing, 1);
    in->registrar_runs = 1; /* as if: the last end then waits until peers have followed */
    st_import_end(in, 0, slot);
    st_export_sweep(c);
    CHECK(c->closing == 1 && in->leaving_first);
    dies_settle(d);
    st_import_sweep(in, 0);
    CHECK_IS(in->leaving_first, 0);
    in->registrar_runs = 0;
    st_export_sweep(c);
    CHECK_IS(c->closing, 0);
    CHECK_IS(st_va_free(in, va, 3), ST_OK);
    dies_settle(d);
    empty(c);
    empty(in);

    CHECK_IS(st_handle_create(c, 1, words), ST_OK); /* all slots */
    for (uint32_t i = 0; i < ST_EXPORT_SLOTS; i++) {
        if (st_export_open(c, words, 1, &slots[i], &uses[i]) != ST_OK)
            CHECK(i == c->seg_pages); /* no addresses are left */
        if (i == c->seg_pages)
            break;
        CHECK(slots[i] == i && uses[i] == (i == slot ? use + 1 : 1));
    }
    for (uint32_t i = 0; i < ST_EXPORT_SLOTS && i < c->seg_pages; i++) {
        st_export_close(c, slots[i], uses[i]);
        st_export_close(c, slots[i], uses[i]); /* twice does nothing */
    }
    CHECK_IS(st_handle_release(c, words, 1), ST_OK);
    dies_settle(d);
    empty(c);
    dies_close(d);
}

static void test_no_slot(void)
{
    struct dies *d = dies_open(1, 2 * HBM, 1000000);
    struct st_ctx *c = &d->ctx[0];
    uint64_t word, use, bits = 0;
    uint32_t slot;

    CHECK_IS(st_handle_create(c, 1, &word), ST_OK);
    for (uint32_t i = 0; i < ST_EXPORT_SLOTS; i++)
        CHECK_IS(st_export_open(c, &word, 1, &slot, &use), ST_OK);
    CHECK_IS(st_export_open(c, &word, 1, &slot, &use), ST_AGAIN);
    for (uint64_t i = 0; i < c->seg_pages; i++)
        bits += st_bit(c->page_used, i);
    CHECK_IS(bits, ST_EXPORT_SLOTS);
    CHECK_IS(c->frame_refs[0], 1 + ST_EXPORT_SLOTS);
    dies_close(d);
}

/* The importer dies: what it had mapped is cleared on all, and the frames come back. */
static void test_dead_importer(void)
{
    struct dies *d = dies_open(3, HBM, 1000000);
    struct st_ctx *c = &d->ctx[0], *in = &d->ctx[1], *third = &d->ctx[2];
    uint64_t words[2], got[2], use, va, own = (uint64_t)(uintptr_t)dies_pages(in, 1);
    uint32_t slot;

    CHECK_IS(st_handle_create(c, 2, words), ST_OK);
    CHECK_IS(st_export_open(c, words, 2, &slot, &use), ST_OK);
    CHECK_IS(st_import(in, 0, slot, use, 2, got), ST_OK);
    va = reserve(in, 2);
    map_all(in, va, got, 2, ST_PAGE_MAPPED);
    CHECK_IS(st_ensure_mapped(third, va, 2 * PAGE, 1), ST_OK);
    st_export_close(c, slot, use);
    CHECK_IS(st_handle_release(c, words, 2), ST_OK);
    CHECK_IS(c->closing, 1);
    d->gone[1] = 1;
    in->dies[1].dead = 1;
    st_export_sweep(c);
    CHECK(c->closing == 0 && c->quarantined_frames == 2);
    CHECK_IS(st_ensure_mapped(third, va, 1, 0), ST_EREG);
    CHECK_IS(st_ensure_mapped(third, own, 1, 0), ST_OK); /* its own memory stays */
    CHECK_IS(st_shadow_follow(third, 0, st_log_head(third, 0), 1), ST_OK);
    CHECK(!st_is_ready(third, va, 1));
    st_quarantine_reclaim(c);
    empty(c);
    dies_close(d);
}

/* A child that was forked changes nothing. */
static void test_child(void)
{
    struct dies *d = dies_open(2, HBM, 1000000);
    struct st_ctx *c = &d->ctx[0];
    uint64_t words[2], got[2], use, va, done;
    uint32_t slot;
    int status;
    pid_t child;

    CHECK_IS(st_handle_create(c, 1, words), ST_OK);
    CHECK_IS(st_export_open(c, words, 1, &slot, &use), ST_OK);
    CHECK_IS(st_import(&d->ctx[1], 0, slot, use, 1, got), ST_OK);
    va = reserve(c, 1);
    fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (!child) {
        st_export_close(c, slot, use);
        st_import_end(&d->ctx[1], 0, slot);
        _exit(st_va_reserve(c, 1, 1, &done) != ST_ENOJOB || st_va_free(c, va, 1) != ST_ENOJOB ||
              st_handle_create(c, 1, got) != ST_ENOJOB || st_handle_release(c, words, 1) != ST_ENOJOB ||
              st_vmm_map(c, va, words, 1) != ST_ENOJOB || st_vmm_unmap(c, va, 1) != ST_ENOJOB ||
              st_vmm_access(c, va, 1, ST_PAGE_READ, &done) != ST_ENOJOB ||
              st_export_open(c, words, 1, &slot, &use) != ST_ENOJOB ||
              st_import(&d->ctx[1], 0, slot, use, 1, got) != ST_ENOJOB);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_IS(status, 0);
    CHECK(st_export_at(c, 0, slot)->state == (use << 2 | ST_EXPORT_OPEN) && st_export_at(c, 0, slot)->importers[0] == 2);
    dies_close(d);
}

/* ---- threads -------------------------------------------------------------------------------------- */

struct market {
    uint64_t offer[2]; /* of die 0 and 1: slot << 32 | use, or 0 */
    uint64_t stamp[2];
    uint64_t over;     /* exporters that have ended */
    uint64_t imported;
    uint64_t rounds;
};

/* Offers memory under one stamp after another, and closes each at once or later. */
static void sell(struct die *die, struct market *m)
{
    struct st_ctx *c = die->ctx;
    uint64_t words[4], use, va = reserve(c, 4);
    uint32_t slot;

    for (uint64_t r = 1; r <= m->rounds; r++) {
        uint64_t n = 1 + next(&die->seed) % 4, i, spin;
        uint32_t closing;
        int rc;

        do { /* frames of exports that close are not in quarantine yet */
            closing = st_load_relaxed_32(&c->closing);
            rc = st_handle_create(c, n, words);
        } while (rc == ST_ENOMEM && closing && sched_yield() == 0);
        CHECK_IS(rc, ST_OK);
        map_all(c, va, words, n, ST_PAGE_MAPPED);
        for (i = 0; i < n; i++) {
            CHECK(WORD(va + i * PAGE) == 0); /* nobody writes to what has come back */
            WORD(va + i * PAGE) = r << 8 | n;
        }
        CHECK_IS(st_vmm_unmap(c, va, n), ST_OK);
        CHECK_IS(st_export_open(c, words, n, &slot, &use), ST_OK);
        st_store_release_64(&m->offer[die->rank], (uint64_t)slot << 48 | n << 32 | use);
        for (spin = next(&die->seed) % 3000; spin--;)
            st_pause();
        if (next(&die->seed) % 4 == 0)
            sched_yield();
        CHECK_IS(st_handle_release(c, words, n), ST_OK);
        st_export_close(c, slot, use);
    }
    CHECK_IS(st_va_free(c, va, 4), ST_OK);
    st_add_seqcst_64(&m->over, 1);
}

/* Takes what is on offer: it is all there for as long as it is held. */
static void *buy(void *arg)
{
    struct die *die = arg;
    struct st_ctx *c = die->ctx;
    struct market *m = die->arg;
    uint64_t seed = die->seed ^ (uint64_t)(uintptr_t)&seed, words[4], va = reserve(c, 4), first, i;

    while (st_load_acquire_64(&m->over) < 2) {
        uint32_t from = (uint32_t)(next(&seed) % 2);
        uint64_t offer = st_load_acquire_64(&m->offer[from]), n = offer >> 32 & 15;
        int rc;

        if (!offer)
            continue;
        rc = st_import(c, from, (uint32_t)(offer >> 48), offer & 0xffffffff, n, words);
        CHECK(rc == ST_OK || rc == ST_EREG);
        if (rc != ST_OK)
            continue;
        map_all(c, va, words, n, next(&seed) % 2 ? ST_PAGE_MAPPED : ST_PAGE_READ);
        first = WORD(va);
        CHECK((first & 255) == n);
        if (next(&seed) % 2)
            sched_yield();
        for (i = 0; i < n; i++)
            CHECK(WORD(va + i * PAGE) == first);
        CHECK_IS(st_vmm_unmap(c, va, n), ST_OK);
        st_import_end(c, from, (uint32_t)(offer >> 48));
        st_add_seqcst_64(&m->imported, 1);
    }
    CHECK_IS(st_va_free(c, va, 4), ST_OK);
    return NULL;
}

static void trade(struct die *die)
{
    pthread_t second;

    if (die->rank < 2) {
        sell(die, die->arg);
        return;
    }
    CHECK(pthread_create(&second, NULL, buy, die) == 0);
    buy(die);
    CHECK(pthread_join(second, NULL) == 0);
}

static void test_threads(uint64_t rounds)
{
    struct dies *d = dies_register(dies_open(4, HBM, 1000000));
    struct market m = {.rounds = rounds};

    dies_run(d, trade, &m);
    for (int i = 0; i < 4; i++)
        while (st_export_pending(&d->ctx[i]))
            sched_yield();
    for (int i = 0; i < 4; i++) {
        dies_drain(&d->ctx[i]);
        empty(&d->ctx[i]);
    }
    printf("test_vmm: %llu imports of %llu offers\n", (unsigned long long)m.imported, (unsigned long long)(2 * rounds));
    CHECK(m.imported > 0);
    dies_close(d);
}

int main(int argc, char **argv)
{
    dies_setup("test_vmm", argc, argv);
    test_addresses();
    test_handles();
    test_mappings();
    test_aliases();
    test_exports();
    test_no_slot();
    test_dead_importer();
    if (forks_wipe())
        test_child();
    test_threads(200 / DIES_SLOW);
    printf("test_vmm: ok\n");
    return 0;
}
