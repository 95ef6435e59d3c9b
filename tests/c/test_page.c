/* Pages: frames, page table, metadata log and shadow tables, alone, with failing
 * system calls, with threads that look on, and with processes that map for real.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_page.c && ./a.out [seed]
 *
 * tsan must report: st_pages_publish st_log_append
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
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

static void (*during_mmap)(void); /* called once, before the core maps frames */

static void *test_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t off)
{
    if (fd >= 0 && (flags & MAP_FIXED) && trip_mmap.error && trip_mmap.after-- == 0) {
        errno = trip_mmap.error;
        trip_mmap.error = 0;
        return MAP_FAILED;
    }
    if (fd >= 0 && (flags & MAP_FIXED) && during_mmap) {
        void (*call)(void) = during_mmap;

        during_mmap = NULL;
        call();
    }
    return mmap(at, bytes, prot, flags, fd, off);
}
#define fallocate test_fallocate
#define mmap test_mmap
#include "processes.h"
#include "forks.h"

enum { HBM = 24 }; /* pages */
#define PAGE ST_PAGE_BYTES

/* ---- what must hold at rest ----------------------------------------------------- */

/* Kilobytes the object occupies, the whole control region included. */
static uint64_t occupied(const struct st_ctx *c)
{
    struct stat st;
    volatile uint8_t *touch = c->control;

    for (uint64_t i = 0; i < c->control_bytes; i += 4096)
        (void)touch[i];
    CHECK(fstat(c->fd, &st) == 0);
    return (uint64_t)st.st_blocks / 2;
}

/* Table, bitmaps and counts agree, and no frame is used twice. */
static void sound(struct st_ctx *c)
{
    uint64_t used = 0, waiting = 0, i, frames[HBM] = {0};

    for (i = 0; i < c->seg_pages; i++) {
        uint64_t w = st_table(c, c->rank)[i];

        CHECK(st_bit(c->page_used, i) == (ST_PTE_STATE(w) == ST_PAGE_MAPPED));
        if (ST_PTE_STATE(w) != ST_PAGE_MAPPED)
            continue;
        CHECK(ST_PTE_FRAME(w) >= c->rank * c->hbm_pages && ST_PTE_FRAME(w) < (c->rank + 1) * c->hbm_pages);
        CHECK(frames[ST_PTE_FRAME(w) - c->rank * c->hbm_pages]++ == 0);
        used++;
    }
    for (i = c->held_first; i; i = c->held[i - 1].next) {
        CHECK(i - 1 + c->held[i - 1].run <= c->hbm_pages && c->held[i - 1].run > 0);
        CHECK(c->held[i - 1].next || c->held_last == i);
        for (uint64_t k = i - 1; k < i - 1 + c->held[i - 1].run; k++)
            CHECK(frames[k]++ == 0 && c->frame_refs[k] == 0);
        waiting += c->held[i - 1].run;
    }
    for (i = 0; i < c->hbm_pages; i++)
        CHECK((uint64_t)st_bit(c->frame_used, i) == frames[i]);
    CHECK(waiting == c->quarantined_frames);
    CHECK(c->frames_left == c->hbm_pages - used - waiting);
    CHECK(c->dies[c->rank].pages_reserved == used + waiting);
    CHECK(c->count.pages_mapped - c->count.pages_unmapped == used);
}

static uint64_t page_of(const struct st_ctx *c, uint64_t va) { return (va - st_segment(c, c->rank)) / PAGE; }

/* ---- bitmaps ------------------------------------------------------------------------ */

static void test_bits(uint64_t seed)
{
    for (int round = 0; round < 3000 / DIES_SLOW; round++) {
        uint64_t size = 1 + next(&seed) % 300, map[8], from = next(&seed) % size, n = 1 + next(&seed) % 80;
        uint64_t i, at, found, k, best = size, length = 0;
        int whole = (int)(next(&seed) & 1), kind = (int)(next(&seed) % 3);

        for (i = 0; i < 8; i++)
            map[i] = kind == 0 ? next(&seed) : kind == 1 ? next(&seed) | next(&seed) | next(&seed) : ~0ull;
        for (i = 0; i < 3; i++)
            st_bits_set(map, next(&seed) % size, 0, 1); /* of none */
        at = next(&seed) % size;
        k = next(&seed) % (size - at + 1);
        st_bits_set(map, at, k, (int)(next(&seed) & 1));
        for (i = from; i < size && best == size; i++) {
            for (k = 0; k < n && i + k < size && !st_bit(map, i + k); k++) {
            }
            if (k == n || (k && !whole)) {
                best = i;
                length = k;
            }
        }
        at = st_bits_find(map, size, from, n, whole, &found);
        CHECK(found == length && (!length || at == best));
    }
}

/* ---- the owner alone ------------------------------------------------------------------ */

static void test_owner(void)
{
    struct dies *d = dies_open(2, HBM, 1000000);
    struct st_ctx *c = &d->ctx[1];
    uint64_t a, b, before = occupied(c), i, gen;

    CHECK_IS(st_pages_map(c, 0, &a), ST_EINVAL);
    CHECK_IS(st_pages_map(c, HBM + 1, &a), ST_ENOMEM);
    CHECK_IS(st_pages_map(c, UINT64_MAX, &a), ST_ENOMEM);
    CHECK_IS(st_pages_map(c, HBM, &a), ST_OK); /* an exact fit fits */
    sound(c);
    CHECK(a % PAGE == 0 && st_owner(c, a) == 1 && occupied(c) == before + HBM * PAGE / 1024);
    for (i = 0; i < HBM * PAGE; i += 4096)
        CHECK(((uint8_t *)(uintptr_t)a)[i] == 0);
    memset((void *)(uintptr_t)a, 0xee, HBM * PAGE);
    CHECK_IS(st_pages_map(c, 1, &b), ST_ENOMEM);
    gen = ST_PTE_GEN(st_table(c, 1)[page_of(c, a) + 3]);
    CHECK_IS(st_pages_unmap(c, a + 3 * PAGE, 2), ST_OK); /* a part of the run */
    sound(c);
    CHECK_IS(ST_PTE_GEN(st_table(c, 1)[page_of(c, a) + 3]), gen + 1);
    CHECK(occupied(c) == before + HBM * PAGE / 1024 && c->quarantined_frames == 2); /* a peer might read it */
    CHECK_IS(st_quarantine_reclaim(c), 0);
    dies_settle(d);
    sound(c);
    CHECK(occupied(c) == before + (HBM - 2) * PAGE / 1024); /* punched */
    CHECK_IS(st_pages_unmap(c, a + 9 * PAGE, 3), ST_OK);
    dies_settle(d);
    CHECK_IS(st_pages_map(c, 5, &b), ST_OK); /* one run of addresses over two of frames */
    sound(c);
    CHECK(occupied(c) == before + HBM * PAGE / 1024);
    for (i = 0; i < 5 * PAGE; i++) /* nothing of what was there before */
        CHECK(((uint8_t *)(uintptr_t)b)[i] == 0);
    for (i = 0; i < PAGE; i++)
        CHECK(((uint8_t *)(uintptr_t)a)[2 * PAGE + i] == 0xee);
    CHECK_IS(st_pages_unmap(c, b, 5), ST_OK);
    CHECK_IS(st_pages_unmap(c, a, 3), ST_OK);
    CHECK_IS(st_pages_unmap(c, a + 5 * PAGE, 4), ST_OK);
    CHECK_IS(st_pages_unmap(c, a + 12 * PAGE, HBM - 12), ST_OK);
    sound(c);
    dies_settle(d);
    sound(c);
    CHECK(c->frames_left == HBM && occupied(c) == before);
    dies_close(d);
}

static void test_bad_unmaps(void)
{
    struct dies *d = dies_open(3, HBM, 1000000);
    struct st_ctx *c = &d->ctx[1];
    uint64_t a, head;

    CHECK_IS(st_pages_map(c, 4, &a), ST_OK);
    head = st_log_head(c, 1);
    CHECK_IS(st_pages_unmap(c, a + 1, 1), ST_EINVAL);
    CHECK_IS(st_pages_unmap(c, a, 0), ST_EINVAL);
    CHECK_IS(st_pages_unmap(c, a, 5), ST_EINVAL);
    CHECK_IS(st_pages_unmap(c, a + 4 * PAGE, 1), ST_EINVAL);
    CHECK_IS(st_pages_unmap(c, st_segment(c, 0), 1), ST_EINVAL);
    CHECK_IS(st_pages_unmap(c, st_segment(c, 2), 1), ST_EINVAL);
    CHECK_IS(st_pages_unmap(c, st_segment(c, 2) - PAGE, 2), ST_EINVAL);
    CHECK_IS(st_pages_unmap(c, c->base - PAGE, 1), ST_EINVAL);
    CHECK_IS(st_pages_unmap(c, 0, 1), ST_EINVAL);
    CHECK_IS(st_pages_unmap(c, a, UINT64_MAX), ST_EINVAL);
    CHECK_IS(st_pages_unmap(c, a, UINT64_MAX / PAGE + 2), ST_EINVAL);
    sound(c);
    CHECK(st_log_head(c, 1) == head && c->frames_left == HBM - 4);
    CHECK_IS(st_pages_map_at(c, a + 3 * PAGE, 2), ST_EINVAL); /* one is in use */
    CHECK_IS(st_pages_map_at(c, a + 4 * PAGE + 1, 1), ST_EINVAL);
    CHECK_IS(st_pages_map_at(c, a + 4 * PAGE, 0), ST_EINVAL);
    CHECK_IS(st_pages_map_at(c, st_segment(c, 2), 1), ST_EINVAL);
    CHECK_IS(st_pages_map_at(c, st_segment(c, 2) - PAGE, 2), ST_EINVAL);
    CHECK_IS(st_pages_map_at(c, a + 4 * PAGE, HBM), ST_ENOMEM);
    CHECK_IS(st_pages_map_at(c, a + 4 * PAGE, 2), ST_OK);
    CHECK(st_log_head(c, 1) == head + 1);
    sound(c);
    CHECK_IS(st_pages_unmap(c, a, 6), ST_OK); /* over both */
    dies_close(d);
}

/* Whichever call fails, nothing has changed. */
static void test_failing_calls(void)
{
    static const int errors[] = {ENOSPC, ENOMEM, EDQUOT, EIO, EFBIG};
    struct dies *d = dies_open(2, HBM, 1000000);
    struct st_ctx *c = &d->ctx[1];
    uint64_t a, b, before, head, e, after;

    CHECK_IS(st_pages_map(c, HBM, &a), ST_OK);
    for (e = 1; e < HBM; e += 2) /* free frames in single pieces: many calls for one mapping */
        CHECK_IS(st_pages_unmap(c, a + e * PAGE, 1), ST_OK);
    dies_settle(d);
    before = occupied(c);
    head = st_log_head(c, 1);
    for (e = 0; e < 5; e++)
        for (after = 0; after < 8; after += 1 + after / 2) {
            trip_fallocate.after = (int)after;
            trip_fallocate.error = errors[e];
            b = 77;
            errno = 0;
            CHECK_IS(st_pages_map(c, 8, &b), e < 3 ? ST_ENOMEM : ST_ESYS);
            CHECK(errno == errors[e] && b == 77 && trip_fallocate.error == 0);
            sound(c);
            CHECK(occupied(c) == before && st_log_head(c, 1) == head);
            trip_mmap.after = (int)after;
            trip_mmap.error = errors[e];
            CHECK_IS(st_pages_map(c, 8, &b), errors[e] == ENOMEM ? ST_ENOMEM : ST_ESYS);
            CHECK(errno == errors[e] && b == 77 && trip_mmap.error == 0);
            sound(c);
            CHECK(occupied(c) == before && st_log_head(c, 1) == head);
        }
    trip_fallocate.after = 3; /* a signal is no failure */
    trip_fallocate.error = EINTR;
    CHECK_IS(st_pages_map(c, 8, &b), ST_OK);
    CHECK(trip_fallocate.error == 0);
    sound(c);
    dies_close(d);
}

static void test_forked_child(void)
{
    if (!forks_wipe()) {
        printf("test_page: MADV_WIPEONFORK does nothing here (an emulator): forks were not tested\n");
        return;
    }

    struct dies *d = dies_open(1, HBM, 1000000);
    uint64_t va = 0;
    int status;
    pid_t child;

    fflush(stdout);
    child = fork();
    if (!child)
        _exit(st_pages_map(&d->ctx[0], 1, &va) == ST_ENOJOB &&
                      st_pages_unmap(&d->ctx[0], d->ctx[0].base, 1) == ST_ENOJOB
                  ? 0
                  : 1);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    dies_close(d);
}

/* ---- a peer ----------------------------------------------------------------------------- */

static void test_ensure_bounds(void)
{
    struct dies *d = dies_open(2, HBM, 1000000);
    struct st_ctx *owner = &d->ctx[0], *peer = &d->ctx[1];
    uint64_t a, seg = st_segment(owner, 0), end, old;

    CHECK_IS(st_pages_map(owner, 3, &a), ST_OK);
    CHECK(a == seg);
    CHECK_IS(st_ensure_mapped(peer, a, 3 * PAGE, 0), ST_OK);
    CHECK_IS(st_ensure_mapped(peer, 0, 0, 0), ST_OK); /* nothing is anywhere */
    CHECK_IS(st_ensure_mapped(peer, 0, 1, 0), ST_EREG);
    CHECK_IS(st_ensure_mapped(peer, a - 1, 1, 0), ST_EREG);
    CHECK_IS(st_ensure_mapped(peer, a - 1, 2, 0), ST_EREG);
    CHECK_IS(st_ensure_mapped(peer, a + 3 * PAGE - 1, 2, 0), ST_EREG);
    CHECK_IS(st_ensure_mapped(peer, a + 3 * PAGE, 1, 0), ST_EREG);
    CHECK_IS(st_ensure_mapped(peer, a, UINT64_MAX, 0), ST_EREG);
    CHECK_IS(st_ensure_mapped(peer, a + 1, UINT64_MAX, 0), ST_EREG);
    CHECK_IS(st_ensure_mapped(peer, UINT64_MAX, 1, 0), ST_EREG);
    end = peer->base + 2 * peer->seg_bytes;
    CHECK_IS(st_ensure_mapped(peer, end, 1, 0), ST_EREG);
    CHECK_IS(st_ensure_mapped(peer, end - 1, 2, 0), ST_EREG);
    CHECK_IS(st_ensure_mapped(peer, st_segment(peer, 1) - 1, 2, 0), ST_EREG); /* over two dies */
    CHECK_IS(st_ensure_mapped(owner, a, 3 * PAGE, 0), ST_OK);
    CHECK_IS(st_pages_unmap(owner, a + PAGE, 1), ST_OK);
    CHECK_IS(st_ensure_mapped(peer, a, PAGE, 0), ST_OK);
    CHECK_IS(st_ensure_mapped(peer, a, PAGE + 1, 0), ST_EREG); /* stale: an error, never a stale read */
    CHECK_IS(st_ensure_mapped(owner, a, PAGE + 1, 0), ST_EREG);
    old = peer->count.shadow_maps;
    CHECK_IS(st_pages_map(owner, 1, &end), ST_OK);
    CHECK(end == a + PAGE); /* the same address, the same frame, another generation */
    CHECK_IS(st_ensure_mapped(peer, a, 3 * PAGE, 0), ST_OK);
    CHECK(peer->count.shadow_maps == old + 1);
    CHECK(st_shadow(peer, 0)[1] == st_table(peer, 0)[1]);
    st_table(owner, 0)[2] = ST_PTE(2 * HBM, 9, ST_PAGE_MAPPED); /* a frame that does not exist */
    CHECK_IS(st_ensure_mapped(peer, a + 2 * PAGE, 1, 0), ST_ECORRUPT);
    st_table(owner, 0)[2] = ST_PTE(UINT32_MAX, 9, ST_PAGE_MAPPED);
    CHECK_IS(st_ensure_mapped(peer, a + 2 * PAGE, 1, 0), ST_ECORRUPT);
    dies_close(d);
}

/* After the log was followed the shadow table is the table. */
static void same(struct st_ctx *peer, uint32_t die)
{
    pthread_mutex_lock(&peer->follow[die].map_lock); /* a registrar may just look on */
    for (uint64_t i = 0; i < peer->seg_pages; i++) {
        uint64_t w = st_table(peer, die)[i], s = st_shadow(peer, die)[i];

        CHECK(w == s && st_bit(st_ready(peer, die), i) == (ST_PTE_STATE(w) == ST_PAGE_MAPPED));
    }
    pthread_mutex_unlock(&peer->follow[die].map_lock);
}

static void test_log(uint64_t seed)
{
    struct dies *d = dies_open(3, HBM, 1000000);
    struct st_ctx *owner = &d->ctx[2];
    uint64_t run[HBM], length[HBM], n = 0, rescans = 0, lapped[2] = {0, 0}, last[2] = {0, 0};

    owner->quarantine_ns = 1; /* readers are late here on purpose */
    for (int step = 0; step < 400; step++) {
        uint64_t want = 1 + next(&seed) % 3, k;

        st_quarantine_reclaim(owner);

        if (n && (next(&seed) & 1)) {
            k = next(&seed) % n;
            CHECK_IS(st_pages_unmap(owner, run[k], length[k]), ST_OK);
            run[k] = run[--n];
            length[k] = length[n];
        } else if (want <= owner->frames_left) {
            CHECK_IS(st_pages_map(owner, want, &run[n]), ST_OK);
            length[n++] = want;
        }
        if (n && (next(&seed) % 50 == 0 || step % 100 == 50)) /* what is there is said again and again: readers are lapped */
            for (k = 0; k < ST_LOG_RECORDS; k++)
                st_log_append(owner, ST_LOG_MAP, run[0], length[0]);
        for (uint32_t p = 0; p < 2; p++) {
            uint64_t head = st_log_head(&d->ctx[p], 2);

            if (next(&seed) % (p ? 30 : 2) && step % 100 != 51)
                continue;
            lapped[p] += head - last[p] > ST_LOG_RECORDS;
            last[p] = head;
            rescans = d->ctx[p].count.rescans;
            CHECK_IS(st_shadow_follow(&d->ctx[p], 2, head, 1), ST_OK);
            CHECK(d->ctx[p].count.rescans - rescans <= 1);
            same(&d->ctx[p], 2);
        }
        if (step % 64 == 0)
            sound(owner);
    }
    for (uint32_t p = 0; p < 2; p++)
        CHECK(lapped[p] > 0 && d->ctx[p].count.rescans == lapped[p]);
    CHECK(d->ctx[0].count.shadow_maps > 0);
    rescans = d->ctx[0].count.shadow_map_calls;
    CHECK_IS(st_shadow_follow(&d->ctx[0], 2, last[0], 1), ST_OK); /* nothing new: nothing done */
    CHECK_IS(st_shadow_follow(owner, 2, st_log_head(owner, 2), 1), ST_OK); /* one's own */
    CHECK(d->ctx[0].count.shadow_map_calls == rescans);
    dies_close(d);
}

/* A record is checked before it is an index. */
static void test_bad_log(void)
{
    static const struct { int64_t pages; uint32_t n; } bad[] = {
        {-1, 1}, {0, UINT32_MAX}, {0, 1 << 20}, {1 << 20, 1}, {-(1 << 20), 1}, {0, 65}, {63, 2}, {64, 1},
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct dies *d = dies_open(2, HBM, 1000000);
        struct st_ctx *owner = &d->ctx[0];
        uint64_t a = 0;

        CHECK(owner->seg_pages == 64);
        CHECK_IS(st_pages_map(owner, 1, &a), ST_OK);
        st_log(owner, 0)[0].va = a + (uint64_t)(bad[i].pages * (int64_t)PAGE);
        st_log(owner, 0)[0].npages = bad[i].n;
        CHECK_IS(st_shadow_follow(&d->ctx[1], 0, 1, 1), ST_ECORRUPT);
        st_log(owner, 0)[0].va = a;
        st_log(owner, 0)[0].npages = 1;
        CHECK_IS(st_shadow_follow(&d->ctx[1], 0, 1, 1), ST_OK); /* it is looked at again */
        dies_close(d);
    }
}

/* Is the address mapped here?  The kernel says so without a signal. */
static int readable(uint64_t va)
{
    int ends[2], ok;

    CHECK(pipe(ends) == 0);
    ok = write(ends[1], (void *)(uintptr_t)va, 1) == 1;
    CHECK(ok || errno == EFAULT);
    close(ends[0]);
    close(ends[1]);
    return ok;
}

static struct dies *stage_dies;

static void unmap_first(void)
{
    CHECK_IS(st_pages_unmap(&stage_dies->ctx[0], stage_dies->ctx[0].base, 1), ST_OK);
    CHECK_IS(st_quarantine_reclaim(&stage_dies->ctx[0]), 1);
}

static void remap_first(void) /* page 0 with another frame */
{
    struct st_ctx *c = &stage_dies->ctx[0];
    uint64_t va = 0;

    CHECK_IS(st_pages_map(c, HBM - 1, &va), ST_OK);
    CHECK_IS(st_pages_unmap(c, c->base, 1), ST_OK);
    CHECK_IS(st_pages_unmap(c, c->base + 5 * PAGE, 1), ST_OK);
    CHECK_IS(st_quarantine_reclaim(c), 2);
    CHECK_IS(st_pages_map(c, 2, &va), ST_OK); /* takes frames 0 and 5 */
    CHECK_IS(st_pages_unmap(c, c->base + 3 * PAGE, 1), ST_OK);
    CHECK_IS(st_quarantine_reclaim(c), 1);
    CHECK_IS(st_pages_map(c, 1, &va), ST_OK);
    CHECK(va == c->base && ST_PTE_FRAME(st_table(c, 0)[0]) == 3);
}

/* A page that changes just when a peer maps it: the peer does not take what it has
 * mapped for the page, and lets go of it later.  Frame 0 is what a free page's word names. */
static void test_changed_meanwhile(void)
{
    struct dies *d = dies_open(2, HBM, 1000000);
    struct st_ctx *peer = &d->ctx[1];
    uint64_t a;
    int rc;

    stage_dies = d;
    d->ctx[0].quarantine_ns = 1; /* frames come free though the peer has not read */
    peer->shared_window = 0; /* it maps, at the same place */
    CHECK_IS(st_pages_map(&d->ctx[0], 1, &a), ST_OK);
    CHECK(ST_PTE_FRAME(st_table(peer, 0)[0]) == 0);
    during_mmap = unmap_first;
    rc = st_ensure_mapped(peer, a, 1, 0);
    CHECK(during_mmap == NULL && (rc == ST_OK || rc == ST_EREG));
    CHECK(readable(a)); /* for now */
    CHECK_IS(st_ensure_mapped(peer, a, 1, 0), ST_EREG);
    CHECK_IS(st_shadow_follow(peer, 0, st_log_head(peer, 0), 1), ST_OK);
    same(peer, 0);
    CHECK(!readable(a) && peer->count.shadow_unmaps == 1);

    CHECK_IS(st_pages_map(&d->ctx[0], 1, &a), ST_OK);
    during_mmap = remap_first;
    rc = st_ensure_mapped(peer, a, 1, 0);
    CHECK(during_mmap == NULL && rc == ST_OK);
    CHECK_IS(st_ensure_mapped(peer, a, 2 * PAGE, 0), ST_OK);
    CHECK_IS(st_shadow_follow(peer, 0, st_log_head(peer, 0), 1), ST_OK);
    same(peer, 0);
    *(uint64_t *)(uintptr_t)a = 5;
    dies_close(d);
}

/* ---- threads -------------------------------------------------------------------------------- */

struct stage {
    pthread_barrier_t all;
    uint64_t done; /* rounds whose mapping is over */
    uint64_t rounds;
};

/* Die 0 maps while two threads of each of the others look on: what they may touch
 * holds zeroes that die 0 put there, though nobody else told them that it is there. */
static void *look_on(void *arg)
{
    struct die *die = arg;
    struct st_ctx *c = die->ctx;
    struct stage *s = die->arg;
    uint64_t seed = die->seed ^ (uint64_t)(uintptr_t)&seed, r, seen = 0;

    for (r = 1; r <= s->rounds; r++) {
        while (st_load_relaxed_64(&s->done) < r) { /* no order but strata's own */
            uint64_t at = next(&seed) % HBM, va = st_segment(c, 0) + at * PAGE;
            int rc;

            if (next(&seed) % 2)
                CHECK_IS(st_shadow_follow(c, 0, st_log_head(c, 0), 1), ST_OK);
            rc = st_ensure_mapped(c, va, PAGE, 0);
            CHECK(rc == ST_OK || rc == ST_EREG);
            if (rc == ST_OK) {
                CHECK(*(uint64_t *)(uintptr_t)(va + next(&seed) % (PAGE / 8) * 8) == 0);
                seen++;
            }
            if (next(&seed) % 4 == 0)
                sched_yield();
        }
        pthread_barrier_wait(&s->all);
        CHECK_IS(st_shadow_follow(c, 0, st_log_head(c, 0), 1), ST_OK);
        pthread_barrier_wait(&s->all); /* die 0 unmaps */
    }
    return NULL;
}

static void storm(struct die *die)
{
    struct stage *s = die->arg;
    struct st_ctx *c = die->ctx;
    pthread_t second;

    if (die->rank) {
        CHECK(pthread_create(&second, NULL, look_on, die) == 0);
        look_on(die);
        CHECK(pthread_join(second, NULL) == 0);
        return;
    }
    for (uint64_t r = 1; r <= s->rounds; r++) {
        while (c->frames_left) {
            uint64_t n = 1 + next(&die->seed) % (c->frames_left < 6 ? c->frames_left : 6), va;

            CHECK_IS(st_pages_map(c, n, &va), ST_OK);
            if (next(&die->seed) % 2)
                sched_yield();
        }
        st_store_relaxed_64(&s->done, r);
        pthread_barrier_wait(&s->all);
        for (uint64_t i = 0; i < HBM; i++) /* back to front: the next round's frames lie scattered */
            CHECK_IS(st_pages_unmap(c, c->base + (i * 7 % HBM) * PAGE, 1), ST_OK);
        dies_drain(c);
        pthread_barrier_wait(&s->all);
    }
}

static void test_threads(uint64_t rounds)
{
    struct dies *d = dies_register(dies_open(3, HBM, 1000000));
    struct stage s = {.rounds = rounds};

    CHECK(pthread_barrier_init(&s.all, NULL, 5) == 0);
    dies_run(d, storm, &s);
    sound(&d->ctx[0]);
    pthread_barrier_destroy(&s.all);
    dies_close(d);
}

/* What a die wrote before it mapped a page is there for who finds the page in the table
 * (odd dies), or in the log (even ones).  Without registrars: they would find both first. */
static void order(struct die *die)
{
    struct stage *s = die->arg;
    struct st_ctx *c = die->ctx;
    uint64_t r, k, va = 0, *said = (uint64_t *)(uintptr_t)c->base; /* page 0 stays */

    for (r = 1; r <= s->rounds; r++) {
        for (k = 1; k < HBM; k++) {
            if (die->rank == 0) {
                said[k] = r * HBM + k;
                CHECK_IS(st_pages_map(c, 1, &va), ST_OK);
                CHECK(va == c->base + k * PAGE);
                continue;
            }
            while (die->rank % 2 ? st_ensure_slow(c, 0, k, k, 0) != ST_OK /* which looks at no log */
                                 : st_log_head(c, 0) < s->done + k)
                sched_yield();
            CHECK(said[k] == r * HBM + k);
        }
        pthread_barrier_wait(&s->all);
        if (die->rank == 0)
            CHECK_IS(st_pages_unmap(c, c->base + PAGE, HBM - 1), ST_OK);
        pthread_barrier_wait(&s->all);
        CHECK_IS(st_shadow_follow(c, 0, st_log_head(c, 0), 0), ST_OK);
        pthread_barrier_wait(&s->all);
        if (die->rank == 0) {
            CHECK_IS(st_quarantine_reclaim(c), HBM - 1);
            s->done = st_log_head(c, 0);
        }
        pthread_barrier_wait(&s->all);
    }
}

static void test_order(uint64_t rounds)
{
    struct dies *d = dies_open(3, HBM, 1000000);
    struct stage s = {.rounds = rounds};

    dies_pages(&d->ctx[0], 1);
    s.done = st_log_head(&d->ctx[0], 0);
    CHECK(pthread_barrier_init(&s.all, NULL, 3) == 0);
    dies_run(d, order, &s);
    pthread_barrier_destroy(&s.all);
    dies_close(d);
}

/* Threads of one die that map and unmap at once. */
static void *own_storm(void *arg)
{
    struct die *die = arg;
    struct st_ctx *c = die->ctx;
    uint64_t seed = die->seed ^ (uint64_t)(uintptr_t)&seed;

    for (int i = 0; i < 60 / DIES_SLOW; i++) {
        uint64_t va, n = 1 + next(&seed) % 4, k;
        int rc = st_pages_map(c, n, &va);

        CHECK(rc == ST_OK || rc == ST_ENOMEM);
        if (rc != ST_OK)
            continue;
        for (k = 0; k < n; k++) {
            CHECK(*(uint64_t *)(uintptr_t)(va + k * PAGE) == 0);
            *(uint64_t *)(uintptr_t)(va + k * PAGE) = seed;
        }
        for (k = 0; k < n; k++)
            CHECK(*(uint64_t *)(uintptr_t)(va + k * PAGE) == seed);
        CHECK_IS(st_pages_unmap(c, va, n), ST_OK);
    }
    return NULL;
}

static void own_threads(struct die *die)
{
    pthread_t other;

    CHECK(pthread_create(&other, NULL, own_storm, die) == 0);
    own_storm(die);
    CHECK(pthread_join(other, NULL) == 0);
    dies_drain(die->ctx);
    sound(die->ctx);
    CHECK(die->ctx->frames_left == HBM);
}

/* A peer's log is followed while it is written round and round: holes and laps are
 * seen, mixtures are not, and at the end the shadow table is the table. */
static void race_log(struct die *die)
{
    struct st_ctx *c = die->ctx;
    uint64_t *over = die->arg, va = 0, i;

    if (die->rank == 0) {
        CHECK_IS(st_pages_map(c, 2, &va), ST_OK);
        for (i = 0; i < 60000 / DIES_SLOW; i++) /* records alone: the pages stay */
            st_log_append(c, ST_LOG_MAP, va + (i & 1) * PAGE, 1 + (i + 1) % 2);
        st_store_relaxed_64(over, 1);
        return;
    }
    do {
        i = st_load_relaxed_64(over);
        CHECK_IS(st_shadow_follow(c, 0, st_log_head(c, 0), 1), ST_OK);
        for (uint64_t spin = next(&die->seed) % 3000; spin--;)
            st_pause();
    } while (!i);
    same(c, 0);
}

/* ---- processes: peers that really map ---------------------------------------------------------- */

struct hall { /* shared by the processes */
    uint64_t round;
    uint64_t acks;
    uint64_t va[4], pages[4], stamp;
    uint64_t gone;
};

static void peer_process(int fd, uint32_t rank, struct hall *h, uint64_t rounds)
{
    struct st_ctx *c;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    c = enter(fd, rank);
    CHECK_IS(st_registrar_begin(c), ST_OK);
    for (uint64_t r = 1; r <= rounds; r++) {
        await(&h->round, 2 * r - 1); /* mapped and written */
        if (r % 3 == 0)
            CHECK_IS(st_shadow_follow(c, 0, st_log_head(c, 0), 1), ST_OK);
        for (int k = 0; k < 4; k++) {
            CHECK_IS(st_ensure_mapped(c, h->va[k], h->pages[k] * PAGE, 0), ST_OK);
            for (uint64_t p = 0; p < h->pages[k]; p++) {
                uint64_t *at = (uint64_t *)(uintptr_t)(h->va[k] + p * PAGE);

                CHECK(*at == h->stamp + (uint64_t)k * 100 + p); /* never another round's */
                at[rank] = r; /* and writes reach the owner */
            }
        }
        st_add_seqcst_64(&h->acks, 1);
        await(&h->round, 2 * r); /* unmapped */
        for (int k = 0; k < 4; k++)
            CHECK_IS(st_ensure_mapped(c, h->va[k], 1, 0), ST_EREG);
        if (r % 2 == 0) {
            CHECK_IS(st_shadow_follow(c, 0, st_log_head(c, 0), 1), ST_OK);
            same(c, 0);
            for (int k = 0; k < 4; k++)
                CHECK(!readable(h->va[k]) && !readable(h->va[k] + (h->pages[k] - 1) * PAGE));
        }
        st_add_seqcst_64(&h->acks, 1);
    }
    CHECK(c->count.shadow_unmaps > 0);
    _exit(0);
}

static void test_processes(uint64_t rounds)
{
    enum { PEERS = 2 };
    struct hall *h = mmap(NULL, sizeof *h, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t seed = dies_seed, before;
    struct st_header layout;
    struct st_ctx *c;
    pid_t child[PEERS];
    int fd = memfd_create("pages", MFD_CLOEXEC), status;

    CHECK(h != MAP_FAILED && fd >= 0);
    CHECK_IS(st_space_layout(&layout, PEERS + 1, HBM * PAGE, DIES_MAILBOX, DIES_WINDOW), ST_OK);
    CHECK_IS(st_space_format(fd, &layout, 1, 2), ST_OK);
    fflush(stdout);
    for (uint32_t i = 0; i < PEERS; i++) {
        child[i] = fork();
        CHECK(child[i] >= 0);
        if (!child[i])
            peer_process(fd, i + 1, h, rounds);
    }
    c = enter(fd, 0);
    CHECK_IS(st_registrar_begin(c), ST_OK);
    before = occupied(c);
    for (uint64_t r = 1; r <= rounds; r++) {
        h->stamp = r << 32;
        for (int k = 0; k < 4; k++) {
            h->pages[k] = 1 + next(&seed) % 4;
            CHECK_IS(st_pages_map(c, h->pages[k], &h->va[k]), ST_OK);
            for (uint64_t p = 0; p < h->pages[k]; p++)
                *(uint64_t *)(uintptr_t)(h->va[k] + p * PAGE) = h->stamp + (uint64_t)k * 100 + p;
        }
        st_store_release_64(&h->round, 2 * r - 1);
        await(&h->acks, PEERS * (2 * r - 1));
        for (int k = 0; k < 4; k++) {
            for (uint64_t p = 0; p < h->pages[k]; p++)
                for (int i = 1; i <= PEERS; i++)
                    CHECK(((uint64_t *)(uintptr_t)(h->va[k] + p * PAGE))[i] == r);
            CHECK_IS(st_pages_unmap(c, h->va[k], h->pages[k]), ST_OK);
        }
        dies_drain(c);
        CHECK(occupied(c) == before);
        st_store_release_64(&h->round, 2 * r);
        await(&h->acks, PEERS * 2 * r);
    }
    for (int i = 0; i < PEERS; i++) {
        CHECK(waitpid(child[i], &status, 0) == child[i]);
        CHECK_IS(status, 0);
    }
    st_registrar_end(c);
    free(c);
    close(fd);
}

int main(int argc, char **argv)
{
    uint64_t seed = dies_setup("test_page", argc, argv), over = 0;
    struct dies *d;

    test_bits(seed);
    test_owner();
    test_bad_unmaps();
    test_failing_calls();
    test_forked_child();
    test_ensure_bounds();
    test_log(seed);
    test_bad_log();
    test_changed_meanwhile();
    test_order(12 / DIES_SLOW);
    test_threads(12 / DIES_SLOW);
    d = dies_register(dies_open(2, HBM, 1000000));
    dies_run(d, own_threads, NULL);
    dies_close(d);
    d = dies_open(4, HBM, 1000000);
    dies_run(d, race_log, &over);
    dies_close(d);
    test_processes(16 / DIES_SLOW);
    printf("test_page: ok\n");
    return 0;
}
