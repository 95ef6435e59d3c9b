/* The registrar and quarantine: what follows logs in the background, what waits for
 * readers that are late, stopped or dead, and what happens when mapping fails.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_registrar.c && ./a.out [seed]
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "st_atomic.h"

static uint32_t refuse_mmap; /* peers' mappings fail as long as it is set */

static void *test_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t off)
{
    if (fd >= 0 && (flags & MAP_FIXED) && st_load_acquire_32(&refuse_mmap)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return mmap(at, bytes, prot, flags, fd, off);
}
#define mmap test_mmap
#include "processes.h"

enum { HBM = 16 }; /* pages */
#define PAGE ST_PAGE_BYTES

static void until_mapped(struct st_ctx *c, uint64_t va, uint64_t pages)
{
    while (!st_is_ready(c, va, pages * PAGE))
        sched_yield();
}

static void until_passed(struct st_ctx *c, uint32_t die)
{
    while (st_load_acquire_64(&c->follow[die].passed) < st_log_head(c, die))
        sched_yield();
}

static uint64_t latencies(const struct st_ctx *c)
{
    uint64_t sum = 0;

    for (uint32_t k = 0; k < ST_LATENCIES; k++)
        sum += st_load_relaxed_32(&c->latencies[k]);
    return sum;
}

/* ---- one at a time ------------------------------------------------------------------ */

/* Phase 1 needs nobody: what one die maps is ready on all others. */
static void test_in_the_background(void)
{
    struct dies *d = dies_register(dies_open(4, HBM, 1000000));
    uint64_t va[4], i, k;

    for (i = 0; i < 4; i++)
        CHECK_IS(st_pages_map(&d->ctx[i], 3 + i, &va[i]), ST_OK);
    for (i = 0; i < 4; i++)
        for (k = 0; k < 4; k++) {
            until_mapped(&d->ctx[k], va[i], 3 + i);
            CHECK_IS(st_ensure_mapped(&d->ctx[k], va[i], (3 + i) * PAGE, 1), ST_OK);
            CHECK(d->ctx[k].count.late_maps == 0);
        }
    for (k = 0; k < 4; k++) {
        for (i = 0; i < 4; i++)
            if (i != k)
                until_passed(&d->ctx[k], (uint32_t)i);
        CHECK(latencies(&d->ctx[k]) == 3 && d->ctx[k].count.rescans == 0 && d->ctx[k].count.lag_max >= 1);
    }
    CHECK_IS(st_pages_unmap(&d->ctx[2], va[2], 5), ST_OK);
    dies_drain(&d->ctx[2]);
    CHECK(d->ctx[2].frames_left == HBM && d->ctx[2].count.reclaimed == 5 && d->ctx[2].count.reclaimed_unread == 0);
    for (k = 0; k < 4; k++)
        CHECK(!st_is_ready(&d->ctx[k], va[2], 1));
    for (i = 0; i < ST_LOG_RECORDS; i++) { /* the thread starts and stops while there is work */
        if (i % 16 == 0) {
            until_passed(&d->ctx[1], 2); /* else 16 frames wait for it at some time */
            st_registrar_end(&d->ctx[1]);
        }
        if (i % 16 == 8)
            CHECK_IS(st_registrar_begin(&d->ctx[1]), ST_OK);
        CHECK_IS(st_pages_map(&d->ctx[2], 1, &va[2]), ST_OK);
        CHECK_IS(st_pages_unmap(&d->ctx[2], va[2], 1), ST_OK);
    }
    CHECK_IS(st_registrar_begin(&d->ctx[1]), ST_OK);
    dies_drain(&d->ctx[2]);
    CHECK(d->ctx[2].frames_left == HBM);
    dies_close(d);
}

/* A histogram's bucket holds the values from its own smallest to the next one's. */
static void test_latencies(void)
{
    static struct st_ctx c;
    uint64_t seed = dies_seed;

    for (int i = 0; i < 20000; i++) {
        uint64_t ns = next(&seed) >> (26 + next(&seed) % 38);
        uint32_t k;

        memset(c.latencies, 0, sizeof c.latencies);
        st_latency_count(&c, ns);
        for (k = 0; c.latencies[k] == 0; k++) {
        }
        CHECK(st_latency_of(k) <= ns && (k + 1 == ST_LATENCIES || ns < st_latency_of(k + 1)));
    }
}

/* Just in time: nothing is mapped before it is asked for, but what is gone is let go. */
static void test_lazy(void)
{
    struct dies *d = dies_open(2, HBM, 1000000);
    struct st_ctx *owner = &d->ctx[0], *peer = &d->ctx[1];
    uint64_t va;

    owner->lazy = peer->lazy = 1;
    dies_register(d);
    for (int round = 0; round < 8; round++) { /* more pages than there are, so frames come back */
        CHECK_IS(st_pages_map(owner, 5, &va), ST_OK);
        CHECK_IS(st_ensure_mapped(peer, va + PAGE, 2 * PAGE, 0), ST_OK);
        CHECK(st_is_ready(peer, va + PAGE, 2 * PAGE) && !st_is_ready(peer, va, 1));
        CHECK_IS(peer->count.shadow_maps, 2 * (uint64_t)(round + 1));
        CHECK_IS(peer->count.late_maps, (uint64_t)round + 1);
        CHECK_IS(st_ensure_mapped(peer, va + PAGE, 2 * PAGE, 0), ST_OK);
        CHECK_IS(peer->count.late_maps, (uint64_t)round + 1);
        CHECK_IS(st_pages_unmap(owner, va, 5), ST_OK);
        dies_drain(owner);
        CHECK_IS(st_ensure_mapped(peer, va + PAGE, 1, 0), ST_EREG);
    }
    CHECK_IS(st_pages_map(owner, 4, &va), ST_OK);
    CHECK_IS(st_shadow_follow(peer, 0, st_log_head(peer, 0), 1), ST_OK); /* the fence maps, also here */
    CHECK(st_is_ready(peer, va, 4 * PAGE));
    dies_close(d);
}

/* ---- readers that are late --------------------------------------------------------------- */

static void *map_all(void *arg)
{
    struct st_ctx *c = arg;
    uint64_t va;

    CHECK_IS(st_pages_map(c, HBM, &va), ST_OK); /* waits for the frames that are in quarantine */
    return NULL;
}

static void test_late_readers(void)
{
    struct dies *d = dies_open(3, HBM, 1000000);
    struct st_ctx *owner = &d->ctx[0];
    uint64_t va, k;
    pthread_t thread;

    owner->quarantine_ns = 3600ull * 1000000000;
    CHECK_IS(st_registrar_begin(owner), ST_OK);
    CHECK_IS(st_pages_map(owner, 5, &va), ST_OK);
    CHECK_IS(st_pages_unmap(owner, va, 2), ST_OK);
    CHECK_IS(st_pages_unmap(owner, va + 2 * PAGE, 3), ST_OK);
    CHECK(pthread_create(&thread, NULL, map_all, owner) == 0);
    CHECK_IS(st_shadow_follow(&d->ctx[1], 0, 3, 1), ST_OK);
    CHECK_IS(st_shadow_follow(&d->ctx[2], 0, 2, 0), ST_OK); /* only the first record of the two */
    while (st_load_relaxed_64(&owner->quarantined_frames) != 3)
        sched_yield();
    CHECK(owner->count.reclaimed_unread == 0);
    for (k = 0; k < 200; k++) /* nothing but the last reader ends it */
        st_quarantine_reclaim(owner);
    CHECK_IS(st_load_relaxed_64(&owner->quarantined_frames), 3);
    st_store_release_32(&d->gone[2], 1); /* pairs with dies_alive */
    CHECK(pthread_join(thread, NULL) == 0); /* the dead hold nothing */
    CHECK(owner->frames_left == 0 && owner->count.reclaimed == 5 && owner->count.reclaimed_unread == 0);
    st_store_release_32(&d->gone[2], 0); /* pairs with dies_alive */
    d->ctx[2].dies[2].dead = 0;
    owner->quarantine_ns = 1000000; /* one that lives and does not read holds them for a while */
    CHECK_IS(st_pages_unmap(owner, st_segment(owner, 0), 4), ST_OK);
    CHECK_IS(st_pages_map(owner, 4, &va), ST_OK);
    CHECK_IS(owner->count.reclaimed_unread, 4);
    d->ctx[2].dies[2].state = ST_DIE_LEFT; /* one that has left on purpose does not */
    owner->quarantine_ns = 3600ull * 1000000000;
    CHECK_IS(st_pages_unmap(owner, va, 4), ST_OK);
    CHECK_IS(st_shadow_follow(&d->ctx[1], 0, st_log_head(owner, 0), 1), ST_OK);
    dies_drain(owner);
    CHECK_IS(owner->count.reclaimed_unread, 4);
    dies_close(d);
}

/* A long quarantine of many runs comes out in the order in which it went in, also cut. */
static void test_long_quarantine(void)
{
    enum { LARGE = 100 };
    struct dies *d = dies_open(2, LARGE, 1000000);
    struct st_ctx *owner = &d->ctx[0], *peer = &d->ctx[1];
    uint64_t va, i, cut[] = {1, 66, 2, 30, 1};

    CHECK_IS(st_pages_map(owner, LARGE, &va), ST_OK);
    for (i = 0; i < 5; va += cut[i++] * PAGE)
        CHECK_IS(st_pages_unmap(owner, va, cut[i]), ST_OK);
    CHECK_IS(owner->quarantined_frames, LARGE);
    CHECK_IS(st_quarantine_reclaim(owner), 0);
    for (i = 0; i < 5; i++) {
        CHECK_IS(st_shadow_follow(peer, 0, 2 + i, i % 2), ST_OK);
        CHECK_IS(st_quarantine_reclaim(owner), cut[i]);
    }
    CHECK(owner->frames_left == LARGE && owner->held_first == 0 && owner->held_last == 0);
    dies_close(d);
}

/* ---- processes: what the kernel says ------------------------------------------------------- */

struct hall {
    uint64_t step;
    uint64_t va;
    uint64_t seen[8];
};

static void peer_process(int fd, struct hall *h)
{
    struct st_ctx *c;
    const volatile uint64_t *word;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    c = enter(fd, 1);
    await(&h->step, 1);
    CHECK_IS(st_ensure_mapped(c, h->va, PAGE, 0), ST_OK);
    word = (const volatile uint64_t *)(uintptr_t)h->va;
    h->seen[0] = *word;
    st_store_release_64(&h->step, 2);
    await(&h->step, 3); /* given back, and its address has another frame now */
    h->seen[1] = *word; /* a raw read through a mapping that is out of date: still what it was */
    h->seen[2] = (uint64_t)st_ensure_mapped(c, h->va, PAGE, 0);
    h->seen[3] = *word; /* and now what is there */
    st_store_release_64(&h->step, 4);
    await(&h->step, 5);
    refuse_mmap = 1; /* the kernel refuses: phase 1 leaves it to phase 2, which says why */
    CHECK_IS(st_registrar_begin(c), ST_OK);
    while (st_load_relaxed_64(&c->count.registrar_errors) == 0)
        sched_yield();
    until_passed(c, 0); /* what is gone is let go all the same */
    h->seen[4] = (uint64_t)st_ensure_mapped(c, h->va, PAGE, 0);
    h->seen[5] = (uint64_t)st_shadow_follow(c, 0, st_log_head(c, 0), 1);
    st_store_release_32(&refuse_mmap, 0); /* pairs with test_mmap */
    h->seen[6] = (uint64_t)st_ensure_mapped(c, h->va, PAGE, 0);
    h->seen[7] = *(const volatile uint64_t *)(uintptr_t)h->va;
    CHECK(c->count.late_maps > 0 && c->count.late_map_ns > 0);
    st_registrar_end(c);
    _exit(0);
}

static void test_process(void)
{
    struct hall *h = mmap(NULL, sizeof *h, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct st_header layout;
    struct st_ctx *c;
    int fd = memfd_create("registrar", MFD_CLOEXEC), status;
    uint64_t va;
    pid_t child;

    CHECK(h != MAP_FAILED && fd >= 0);
    CHECK_IS(st_space_layout(&layout, 2, HBM * PAGE, DIES_MAILBOX, DIES_WINDOW), ST_OK);
    CHECK_IS(st_space_format(fd, &layout, 1, 2), ST_OK);
    fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (!child)
        peer_process(fd, h);
    c = enter(fd, 0);
    c->quarantine_ns = 3600ull * 1000000000;
    CHECK_IS(st_pages_map(c, 1, &h->va), ST_OK);
    *(uint64_t *)(uintptr_t)h->va = 41;
    st_store_release_64(&h->step, 1);
    await(&h->step, 2);
    CHECK_IS(st_pages_unmap(c, h->va, 1), ST_OK);
    CHECK_IS(st_quarantine_reclaim(c), 0);
    CHECK_IS(st_pages_map(c, HBM - 1, &va), ST_OK); /* the address at once, the frame not */
    CHECK(va == h->va);
    for (uint64_t i = 0; i < (HBM - 1) * PAGE / 8; i += 512)
        ((uint64_t *)(uintptr_t)va)[i] = 43;
    st_store_release_64(&h->step, 3);
    await(&h->step, 4);
    CHECK(h->seen[0] == 41 && h->seen[1] == 41 && h->seen[2] == ST_OK && h->seen[3] == 43);
    CHECK_IS(st_pages_unmap(c, va, HBM - 1), ST_OK);
    c->quarantine_ns = 1;
    CHECK_IS(st_quarantine_reclaim(c), HBM);
    CHECK_IS(st_pages_map(c, 2, &h->va), ST_OK);
    *(uint64_t *)(uintptr_t)h->va = 47;
    c->quarantine_ns = 3600ull * 1000000000;
    st_store_release_64(&h->step, 5);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_IS(status, 0);
    CHECK(h->seen[4] == ST_EMAPS && h->seen[5] == ST_EMAPS && h->seen[6] == ST_OK && h->seen[7] == 47);
    CHECK_IS(st_pages_unmap(c, h->va, 2), ST_OK); /* the peer is dead: no quarantine for it */
    CHECK_IS(st_quarantine_reclaim(c), 2);
    CHECK(c->count.reclaimed_unread == HBM && c->frames_left == HBM);
    free(c);
    close(fd);
}

/* ---- storm ------------------------------------------------------------------------------------ */

/* All dies map, read each other's pages and unmap, with registrars behind and one log
 * that is lapped now and then: no frame is lost, and nobody waits for ever. */
static void storm(struct die *die)
{
    struct st_ctx *c = die->ctx;
    uint64_t va[4] = {0}, pages[4], k, at;
    int rc;

    for (int round = 0; round < 400 / DIES_SLOW; round++) {
        k = next(&die->seed) % 4;
        if (va[k]) {
            CHECK_IS(st_pages_unmap(c, va[k], pages[k]), ST_OK);
            va[k] = 0;
        } else {
            pages[k] = 1 + next(&die->seed) % 4;
            CHECK_IS(st_pages_map(c, pages[k], &va[k]), ST_OK); /* 16 frames do for all */
        }
        at = next(&die->seed) % (die->dies->n * HBM);
        rc = st_ensure_mapped(c, st_segment(c, (uint32_t)(at / HBM)) + at % HBM * PAGE, 1 + next(&die->seed) % (2 * PAGE),
                              (int)(next(&die->seed) % 2));
        CHECK(rc == ST_OK || rc == ST_EREG);
        if (next(&die->seed) % 50 == 0) {
            pthread_mutex_lock(&c->lock);
            for (k = 0; k < ST_LOG_RECORDS; k++)
                st_log_append(c, ST_LOG_MAP, st_segment(c, c->rank), 1);
            pthread_mutex_unlock(&c->lock);
        }
    }
    for (k = 0; k < 4; k++)
        if (va[k])
            CHECK_IS(st_pages_unmap(c, va[k], pages[k]), ST_OK);
    dies_drain(c);
    CHECK(c->frames_left == HBM && c->count.reclaimed_unread == 0);
    for (k = 0; k < HBM; k++)
        CHECK(c->frame_refs[k] == 0);
}

int main(int argc, char **argv)
{
    struct dies *d;

    dies_setup("test_registrar", argc, argv);
    test_latencies();
    test_in_the_background();
    test_lazy();
    test_late_readers();
    test_long_quarantine();
    d = dies_register(dies_open(4, HBM, 1000000));
    dies_run(d, storm, NULL);
    dies_close(d);
    test_process(); /* keeps its window */
    printf("test_registrar: ok\n");
    return 0;
}
