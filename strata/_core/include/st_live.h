/* Dead and slow are different.
 *
 * Each die holds a POSIX record lock on one byte of the UB space, past its
 * end.  The kernel drops it when the process dies, whatever killed it, and a
 * child does not inherit it: F_GETLK answers across pid namespaces, needs no
 * pid, and is not fooled by zombies or recycled pids.  A process that closes
 * some other descriptor of the same object loses its lock while it lives, so a
 * missing lock is checked against pid and start time where the pid means
 * something here.
 */
#ifndef ST_LIVE_H
#define ST_LIVE_H

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "st_ctx.h"

static inline struct flock st_live_lock(const struct st_ctx *ctx, uint32_t die, short type)
{
    struct flock lock;

    memset(&lock, 0, sizeof lock);
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = (off_t)(ctx->job.object_bytes + die);
    lock.l_len = 1;
    return lock;
}

#define ST_START_UNKNOWN UINT64_MAX /* it is there, and /proc cannot be looked at now */

#define ST_PF_EXITING 4u /* of the kernel's flags of a task: it has begun to end */

/* Field `wanted` (from 3 on) of /proc/pid/stat; 0: no such process, or a zombie.
 * ST_START_UNKNOWN: this process has no descriptor left, say, to look. */
static inline uint64_t st_pid_stat(uint32_t pid, int wanted)
{
    char path[32], buf[1024], *p;
    ssize_t n;
    int fd, field;

    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        int seen = errno != ENOENT && errno != ESRCH;

        return seen && (kill((pid_t)pid, 0) == 0 || errno == EPERM) ? ST_START_UNKNOWN : 0;
    }
    n = read(fd, buf, sizeof buf - 1);
    close(fd);
    if (n <= 0)
        return 0;
    buf[n] = 0;
    p = strrchr(buf, ')'); /* the name may hold anything, parentheses too */
    if (!p || p[1] != ' ' || p[2] == 'Z' || p[2] == 'X')
        return 0;
    p += 2;
    for (field = 3; field < wanted; field++) {
        p = strchr(p, ' ');
        if (!p)
            return 0;
        p++;
    }
    return strtoull(p, NULL, 10);
}

/* Start time of a process in clock ticks since boot. */
static inline uint64_t st_start_time(uint32_t pid) { return st_pid_stat(pid, 22); }

/* Has a process ended, or begun to?  Then it has no descriptors any more, though its lock may still be seen. */
static inline int st_pid_ends(uint32_t pid)
{
    uint64_t flags = st_pid_stat(pid, 9);

    return flags == 0 || (flags != ST_START_UNKNOWN && flags & ST_PF_EXITING);
}

static inline uint64_t st_pid_namespace(void)
{
    struct stat st;

    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/* Takes this die's byte.  ST_EINVAL: another process has this rank. */
static inline int st_live_claim(struct st_ctx *ctx)
{
    struct flock lock = st_live_lock(ctx, ctx->rank, F_WRLCK);

    while (fcntl(ctx->fd, F_SETLK, &lock) != 0) {
        if (errno == EINTR)
            continue;
        return errno == EACCES || errno == EAGAIN ? ST_EINVAL : ST_ESYS;
    }
    return ST_OK;
}

/* Lets go of it again. */
static inline void st_live_release(struct st_ctx *ctx)
{
    struct flock lock = st_live_lock(ctx, ctx->rank, F_UNLCK);

    (void)fcntl(ctx->fd, F_SETLK, &lock);
}

/* Which process of a die this is: how many were it before. */
static inline uint64_t st_die_life(const struct st_ctx *ctx, uint32_t die)
{
    return st_load_acquire_64(&ctx->dies[die].incarnation); /* pairs with st_space_take_over */
}

/* Is it known that a die's process is dead?  The word names the process that died, so that who finds the dead too late
 * cannot say it of its successor. */
static inline int st_die_marked(const struct st_ctx *ctx, uint32_t die)
{
    uint64_t dead = st_load_relaxed_64(&ctx->dies[die].dead);

    return dead && dead == st_die_life(ctx, die) + 1;
}

/* Is the process that was a die still there, going by its pid?  1: yes, or it cannot be known. */
static inline int st_die_pid_there(const struct st_die *d)
{
    uint64_t started;

    if (!d->pid_ns || d->pid_ns != st_pid_namespace() || !d->start_time)
        return 0;
    started = st_start_time(st_load_relaxed_32(&d->pid));
    return started == st_load_relaxed_64(&d->start_time) || started == ST_START_UNKNOWN;
}

/* Is the process of a joined die still there?  A few microseconds; sticky. */
static inline int st_die_process_alive(struct st_ctx *ctx, uint32_t die)
{
    struct st_die *d = &ctx->dies[die];
    uint64_t life = st_die_life(ctx, die);
    struct flock lock;

    if (die == ctx->rank && st_is_die(ctx)) /* not a viewer, which has no rank, nor a forked child */
        return 1;
    if (st_die_marked(ctx, die))
        return 0;
    lock = st_live_lock(ctx, die, F_WRLCK);
    if (fcntl(ctx->fd, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK)
        return 1;
    if (st_die_pid_there(d))
        return 1;
    st_store_release_64(&d->dead, life + 1); /* pairs with nothing: a sticky hint */
    st_store_relaxed_32(&ctx->spread.cpus[die], 0); /* the dead take no CPU */
    return 0;
}

/* Is the process of a die there, whether it has left the job or not? */
static inline int st_die_runs(struct st_ctx *ctx, uint32_t die)
{
    return ctx->alive ? ctx->alive(ctx, die) : st_die_process_alive(ctx, die);
}

/* 1: may still answer.  0: dead, or left the job.  A die that has not joined
 * yet counts as alive: it is only slow, unless its launcher has said that it
 * is dead. */
static inline int st_die_alive(struct st_ctx *ctx, uint32_t die)
{
    uint32_t state = st_load_acquire_32(&ctx->dies[die].state); /* pairs with st_space_join */

    if (st_die_marked(ctx, die))
        return 0;
    if (state == ST_DIE_LEFT)
        return 0;
    if (state == ST_DIE_ABSENT)
        return 1;
    return st_die_runs(ctx, die);
}

/* The same of one process: a die that was started again is not the one that others knew. */
static inline int st_die_alive_as(struct st_ctx *ctx, uint32_t die, uint64_t life)
{
    return st_die_alive(ctx, die) && st_die_life(ctx, die) == life;
}

static inline int st_die_runs_as(struct st_ctx *ctx, uint32_t die, uint64_t life)
{
    return st_die_runs(ctx, die) && st_die_life(ctx, die) == life;
}

/* A process of a die in one word, not 0: what stands in a lock that it holds. */
static inline uint32_t st_die_stamp(const struct st_ctx *ctx, uint32_t die)
{
    return (die + 1) | (uint32_t)st_die_life(ctx, die) << 12;
}
_Static_assert(ST_MAX_DIES < 4096, "a rank fits below the incarnation");

/* Is the process dead? */
static inline int st_stamp_dead(struct st_ctx *ctx, uint32_t stamp)
{
    uint32_t die = stamp % 4096 - 1;

    return die < ctx->ndies && (!st_die_alive(ctx, die) || st_die_stamp(ctx, die) != stamp);
}

#endif
