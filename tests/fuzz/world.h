/* What the core asks of the kernel, in a case's hands: time is made up (each look at the clock and each sleep takes
 * 100 us of it), nobody sleeps, and mappings that the core makes anywhere lie between guard pages.
 *
 * Each atomic access of the core is a tick: pokes come at ticks (arena.h), and a core that does not end is found. */
#ifndef WORLD_H
#define WORLD_H

#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

enum { FUZZ_GUARD = 32 << 20, FUZZ_TICKS = 1 << 24 };

static uint64_t fuzz_clock_ns = 1000000000ull, fuzz_ticks;
static void fuzz_due(void); /* applies the pokes whose time has come */

static inline int fuzz_clock(clockid_t clock, struct timespec *ts)
{
    (void)clock;
    fuzz_clock_ns += 100000;
    ts->tv_sec = (time_t)(fuzz_clock_ns / 1000000000ull);
    ts->tv_nsec = (long)(fuzz_clock_ns % 1000000000ull);
    return 0;
}

static void (*fuzz_meanwhile)(void); /* what other threads of the victim do while this one waits; NULL: nothing */

static inline int fuzz_yield(void)
{
    void (*then)(void) = fuzz_meanwhile;

    fuzz_clock_ns += 100000;
    fuzz_meanwhile = NULL; /* that does not wait for itself */
    if (then)
        then();
    fuzz_meanwhile = then;
    return 0;
}

static inline int fuzz_sleep(const struct timespec *ts, struct timespec *rest)
{
    (void)ts, (void)rest;
    return fuzz_yield();
}

static inline long fuzz_syscall(long number, ...) /* futexes only: nobody wakes, nobody sleeps */
{
    FUZZ_CHECK(number == SYS_futex || number == SYS_getcpu || number == SYS_sched_setaffinity || number == SYS_gettid);
    return fuzz_yield();
}

static void *fuzz_guarded[64]; /* what has guard pages around it */

static inline void *fuzz_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t from)
{
    uint32_t k = 0;
    uint8_t *p;

    if (at || flags & MAP_FIXED)
        return (mmap)(at, bytes, prot, flags, fd, from);
    p = (mmap)(NULL, bytes + 2 * FUZZ_GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return p;
    p = (mmap)(p + FUZZ_GUARD, bytes, prot, flags | MAP_FIXED, fd, from);
    while (p != MAP_FAILED && fuzz_guarded[k])
        FUZZ_CHECK(++k < 64);
    fuzz_guarded[k] = p;
    return p;
}

static inline int fuzz_munmap(void *at, size_t bytes)
{
    uint32_t k;

    for (k = 0; k < 64; k++)
        if (at && fuzz_guarded[k] == at) {
            fuzz_guarded[k] = NULL;
            return (munmap)((uint8_t *)at - FUZZ_GUARD, bytes + 2 * FUZZ_GUARD);
        }
    return (munmap)(at, bytes);
}

/* The core opens other dies' descriptors by way of /proc: here only this process's, whatever a poke says. */
static inline int fuzz_open(const char *path, int flags)
{
    char own[32];

    snprintf(own, sizeof own, "/proc/%d/", (int)getpid());
    if (strncmp(path, own, strlen(own)) != 0) {
        errno = ENOENT;
        return -1;
    }
    return (open)(path, flags);
}

/* Memory comes when it is touched: a page of 2 MiB, made ready before, costs more than a case. */
static inline int fuzz_madvise(void *at, size_t bytes, int advice)
{
    return advice == MADV_POPULATE_READ || advice == MADV_POPULATE_WRITE ? 0 : (madvise)(at, bytes, advice);
}

static inline int fuzz_fallocate(int fd, int mode, off_t at, off_t bytes)
{
    return mode & FALLOC_FL_PUNCH_HOLE ? (fallocate)(fd, mode, at, bytes) : 0;
}

#define clock_gettime fuzz_clock
#define sched_yield fuzz_yield
#define nanosleep fuzz_sleep
#define syscall fuzz_syscall
#define mmap fuzz_mmap
#define munmap fuzz_munmap
#define open fuzz_open
#define madvise fuzz_madvise
#define fallocate fuzz_fallocate

#include "st_atomic.h"

static inline void fuzz_tick(void)
{
    if (++fuzz_ticks > FUZZ_TICKS)
        fuzz_die("the core does not come to an end", fuzz_ticks);
    fuzz_due();
}

#define st_load_relaxed_32(p) (fuzz_tick(), (st_load_relaxed_32)(p))
#define st_load_relaxed_64(p) (fuzz_tick(), (st_load_relaxed_64)(p))
#define st_load_acquire_32(p) (fuzz_tick(), (st_load_acquire_32)(p))
#define st_load_acquire_64(p) (fuzz_tick(), (st_load_acquire_64)(p))
#define st_load_seqcst_32(p) (fuzz_tick(), (st_load_seqcst_32)(p))
#define st_load_seqcst_64(p) (fuzz_tick(), (st_load_seqcst_64)(p))
#define st_cas_acq_rel_32(p, old, v) (fuzz_tick(), (st_cas_acq_rel_32)(p, old, v))
#define st_cas_acq_rel_64(p, old, v) (fuzz_tick(), (st_cas_acq_rel_64)(p, old, v))

#endif
