/* Reading a UB space from outside: for inspectors, which may look at any job, hung, half dead, or made of garbage.
 *
 * Everything is copied out by pread(), after its bounds were checked: nothing is mapped, so no hole in the object and
 * no end of the job while it is looked at is a fault, and nothing can be written.  What was copied is private; it may
 * be torn, and each value in it may be anything.
 */
#ifndef ST_INSPECT_H
#define ST_INSPECT_H

#include "st_abi_sdma.h"
#include "st_flight.h"
#include "st_space.h"

struct st_inspect {
    int fd;
    uint64_t base; /* of the VA window; 0: the dies have not agreed on one, so addresses lead nowhere */
    struct st_header h;
};

/* ST_EABI: no UB space of this version. */
static inline int st_inspect_open(struct st_inspect *v, int fd)
{
    memset(v, 0, sizeof *v);
    v->fd = fd;
    return st_space_header(fd, &v->h);
}

/* ST_ECORRUPT: beyond the object; ST_ESYS: errno. */
static inline int st_inspect_read(const struct st_inspect *v, uint64_t at, void *to, uint64_t bytes)
{
    uint64_t have = 0;
    ssize_t got;

    if (at > v->h.object_bytes || bytes > v->h.object_bytes - at)
        return ST_ECORRUPT;
    while (have < bytes) {
        got = pread(v->fd, (uint8_t *)to + have, bytes - have, (off_t)(at + have));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return ST_ESYS;
        if (got == 0)
            return ST_ECORRUPT; /* it has become smaller */
        have += (uint64_t)got;
    }
    return ST_OK;
}

static inline int st_inspect_control(const struct st_inspect *v, uint64_t offset, void *to, uint64_t bytes)
{
    return offset > v->h.control_bytes || bytes > v->h.control_bytes - offset
               ? ST_ECORRUPT
               : st_inspect_read(v, v->h.control_offset + offset, to, bytes);
}

static inline int st_inspect_die(const struct st_inspect *v, uint32_t die, struct st_die *d)
{
    return die < v->h.ndies ? st_inspect_control(v, v->h.dies_off + die * sizeof *d, d, sizeof *d) : ST_EINVAL;
}

/* The window that dies whose address spaces are in `mask` take. */
static inline void st_inspect_window(struct st_inspect *v, uint64_t mask)
{
    mask &= (1ull << ST_NCANDIDATES) - 1;
    v->base = mask ? v->h.candidates[__builtin_ctzll(mask)] : 0;
    if (v->base % ST_PAGE_BYTES || v->base > UINT64_MAX - v->h.seg_bytes * v->h.ndies)
        v->base = 0;
}

/* The frame below one address; ST_EREG: there is none of the UB space's. */
static inline int st_inspect_frame(const struct st_inspect *v, uint64_t va, uint64_t *at)
{
    uint64_t pages = v->h.seg_bytes >> ST_PAGE_SHIFT, page, word;
    int rc;

    if (!v->base || va < v->base || va - v->base >= v->h.seg_bytes * v->h.ndies)
        return ST_EREG;
    page = (va - v->base) >> ST_PAGE_SHIFT; /* segments are neighbours, and so are their tables */
    if (page >= pages * v->h.ndies)
        return ST_EREG;
    rc = st_inspect_control(v, v->h.tables_off + 8 * page, &word, 8);
    if (rc != ST_OK)
        return rc;
    if ((ST_PTE_STATE(word) != ST_PAGE_MAPPED && ST_PTE_STATE(word) != ST_PAGE_READ) ||
        ST_PTE_FRAME(word) >= v->h.control_offset >> ST_PAGE_SHIFT) /* or a file's (st_foreign.h) */
        return ST_EREG;
    *at = (ST_PTE_FRAME(word) << ST_PAGE_SHIFT) + va % ST_PAGE_BYTES;
    return ST_OK;
}

/* Copies what stands at an address that means the same on all dies. */
static inline int st_inspect_va(const struct st_inspect *v, uint64_t va, void *to, uint64_t bytes)
{
    uint64_t at, part;
    int rc;

    while (bytes) {
        rc = st_inspect_frame(v, va, &at);
        if (rc != ST_OK)
            return rc;
        part = ST_PAGE_BYTES - va % ST_PAGE_BYTES;
        part = part < bytes ? part : bytes;
        rc = st_inspect_read(v, at, to, part);
        if (rc != ST_OK)
            return rc;
        to = (uint8_t *)to + part;
        va += part;
        bytes -= part;
    }
    return ST_OK;
}

/* Does somebody hold the die's liveness lock?  Takes none. */
static inline int st_inspect_locked(const struct st_inspect *v, uint32_t die)
{
    struct flock lock;

    memset(&lock, 0, sizeof lock);
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = (off_t)(v->h.object_bytes + die);
    lock.l_len = 1;
    return fcntl(v->fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* A die's recorder.  Records that were written meanwhile (they differ in two looks) have kind 0 in the copy, unless
 * they hold still in one of a few more. */
static inline int st_inspect_flight(const struct st_inspect *v, uint32_t die, struct st_flight *f)
{
    uint64_t offset = v->h.flight_off + die * sizeof *f, from;
    struct st_flight_record again[ST_FLIGHT_RECORDS];
    uint32_t k, look, moving = 1;
    int rc = die < v->h.ndies ? st_inspect_control(v, offset, f, sizeof *f) : ST_EINVAL;

    from = offset + offsetof(struct st_flight, records);
    for (look = 0; rc == ST_OK && moving && look < 4; look++) {
        rc = st_inspect_control(v, from, again, sizeof again);
        for (k = moving = 0; k < ST_FLIGHT_RECORDS && rc == ST_OK; k++) {
            if (memcmp(&again[k], &f->records[k], sizeof again[k]) == 0)
                continue;
            f->records[k] = again[k];
            moving++;
            if (look == 3)
                f->records[k].state &= ~(ST_FLIGHT_STATE(0, 0, 0xff, 0, 0));
        }
    }
    for (k = 0; k < ST_FLIGHT_GROUPS; k++)
        f->groups[k].name[ST_FLIGHT_NAME - 1] = 0;
    return rc;
}

/* CLOCK_MONOTONIC of a moment in a recorder, in ns; 0: it cannot be told.  now, now_ns: one moment, of the caller's. */
static inline uint64_t st_inspect_time(const struct st_flight *f, uint64_t ticks, uint64_t now, uint64_t now_ns)
{
    double each;

    if (!ticks)
        return 0;
    if (f->clock == ST_CLOCK_MONOTONIC)
        return ticks <= now_ns ? ticks : 0;
    if (f->clock != ST_CLOCK_TICKS || now <= f->ticks || now_ns <= f->time_ns || ticks > now || ticks < f->ticks)
        return 0;
    each = (double)(now_ns - f->time_ns) / (double)(now - f->ticks);
    return now_ns - (uint64_t)(each * (double)(now - ticks));
}

#endif
