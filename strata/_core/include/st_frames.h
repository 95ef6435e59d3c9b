/* Frames: physical memory of this die's share of the UB space. */
#ifndef ST_FRAMES_H
#define ST_FRAMES_H

#include <signal.h>
#include <sys/mman.h>

#include "st_bits.h"
#include "st_ctx.h"
#include "st_live.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

static inline int st_frames_punch(struct st_ctx *ctx, uint64_t frame, uint64_t n)
{
    return fallocate(ctx->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     (off_t)((ctx->rank * ctx->hbm_pages + frame) << ST_PAGE_SHIFT),
                     (off_t)(n << ST_PAGE_SHIFT)) == 0
               ? ST_OK
               : ST_ESYS;
}

/* Free addresses for n pages, as an index; in *found how many (0: none).  Those that earlier processes of this die have used
 * come last: an old pointer of a peer finds nothing there, rather than something new. */
static inline uint64_t st_pages_room(const struct st_ctx *ctx, uint64_t n, uint64_t *found)
{
    uint64_t at = st_bits_find(ctx->page_used, ctx->seg_pages, ctx->fresh, n, 1, found);

    return *found || !ctx->fresh ? at : st_bits_find(ctx->page_used, ctx->seg_pages, 0, n, 1, found);
}

/* Is a frame of the whole object this die's? */
static inline int st_frame_own(const struct st_ctx *ctx, uint64_t frame)
{
    return frame >= ctx->rank * ctx->hbm_pages && frame < (ctx->rank + 1) * ctx->hbm_pages;
}

/* The first of at most `want` contiguous free frames, punched; how many in *got (0: none). */
static inline uint64_t st_frames_find(struct st_ctx *ctx, uint64_t want, uint64_t *got)
{
    uint64_t frame = st_bits_find(ctx->frame_used, ctx->hbm_pages, 0, want, 1, got);

    if (!*got)
        frame = st_bits_find(ctx->frame_used, ctx->hbm_pages, 0, want, 0, got);
    if (*got)
        st_frames_punch(ctx, frame, *got); /* what a late writer may have left in free frames must not show */
    return frame;
}

/* A small allocation that no signal interrupts: the kernel undoes the call each
 * time, so that a profiler's timer could for ever.  Signals wait a moment. */
static inline int st_fallocate_quiet(struct st_ctx *ctx, uint64_t at, uint64_t bytes)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* neither call touches errno */
    rc = fallocate(ctx->fd, FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)bytes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

/* Backing for this die's table up to page `to`.  Without it the first touch of a
 * table page, also by a reader, would be a SIGBUS when the file system is full. */
static inline int st_table_reserve(struct st_ctx *ctx, uint64_t to)
{
    struct st_die *me = &ctx->dies[ctx->rank];
    uint64_t from = st_load_relaxed_64(&me->pages_top), at;

    if (to <= from)
        return ST_OK;
    to = (to + 511) / 512 * 512;
    to = to < ctx->seg_pages ? to : ctx->seg_pages;
    at = ctx->job.control_offset + (uint64_t)((uint8_t *)(st_table(ctx, ctx->rank) + from) - ctx->control);
    if (st_fallocate_quiet(ctx, at, 8 * (to - from)) != 0)
        return errno == ENOSPC || errno == ENOMEM || errno == EDQUOT ? ST_ENOMEM : ST_ESYS;
    ST_FAULT(TABLE_RESERVED);
    st_store_release_64(&me->pages_top, to); /* pairs with st_table_top */
    return ST_OK;
}

/* Pages of a die's segment that its table has ever held; beyond, all are free. */
static inline uint64_t st_table_top(const struct st_ctx *ctx, uint32_t die)
{
    uint64_t top = st_load_acquire_64(&ctx->dies[die].pages_top); /* pairs with st_table_reserve */

    return top < ctx->seg_pages ? top : ctx->seg_pages;
}

/* Makes empty frames huge pages, as far as the kernel does it (Linux 6.1 and
 * later, also where tmpfs never does so by itself): asked for frames of which
 * one small page exists, it allocates and clears the rest in one piece.  That
 * takes no longer than 512 small pages, peers map a frame by one entry,
 * and large copies gain up to twofold in a virtual machine.  Whatever is not
 * done here is done in small pages by st_frames_reserve. */
static inline void st_frames_huge(struct st_ctx *ctx, uint64_t va, uint64_t frame, uint64_t n)
{
    uint64_t at = (ctx->rank * ctx->hbm_pages + frame) << ST_PAGE_SHIFT, i;
    uint8_t *p = (uint8_t *)(uintptr_t)va;

    if (!ctx->huge)
        return;
    for (i = 0; i < n; i++) /* so that the touch below cannot be a SIGBUS */
        if (st_fallocate_quiet(ctx, at + (i << ST_PAGE_SHIFT), 4096) != 0)
            return;
    if (mmap(p, n << ST_PAGE_SHIFT, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ctx->fd,
             (off_t)at) == MAP_FAILED)
        return;
    for (i = 0; i < n; i++)
        *(volatile uint8_t *)(p + (i << ST_PAGE_SHIFT)) = 0;
    if (madvise(p, n << ST_PAGE_SHIFT, MADV_COLLAPSE) != 0 && errno == EINVAL)
        ctx->huge = 0; /* this kernel does not */
}

/* Backing for n frames, or none: after this a full file system cannot kill. */
static inline int st_frames_reserve(struct st_ctx *ctx, uint64_t frame, uint64_t n)
{
    uint64_t done = 0, step;
    off_t at;
    int rc;

    while (done < n) { /* in steps, since a signal makes the kernel undo a call */
        step = n - done < 16 ? n - done : 16;
        at = (off_t)((ctx->rank * ctx->hbm_pages + frame + done) << ST_PAGE_SHIFT);
        rc = fallocate(ctx->fd, FALLOC_FL_KEEP_SIZE, at, (off_t)(step << ST_PAGE_SHIFT));
        if (rc != 0 && errno == EINTR) {
            step = 1;
            rc = st_fallocate_quiet(ctx, (uint64_t)at, ST_PAGE_BYTES);
        }
        if (rc != 0) {
            int err = errno;

            st_frames_punch(ctx, frame, done + step);
            errno = err;
            return err == ENOSPC || err == ENOMEM || err == EDQUOT ? ST_ENOMEM : ST_ESYS;
        }
        done += step;
    }
    return ST_OK;
}

/* Maps frames of the whole object, and populates. */
static inline int st_map_frames(struct st_ctx *ctx, uint64_t va, uint64_t frame, uint64_t n, int prot, int own)
{
    void *at = (void *)(uintptr_t)va;
    uint64_t bytes = n << ST_PAGE_SHIFT;

    if (ctx->shared_window && !own)
        return ST_OK;
    if (mmap(at, bytes, prot, MAP_SHARED | MAP_FIXED, ctx->fd, (off_t)(frame << ST_PAGE_SHIFT)) == MAP_FAILED)
        return errno != ENOMEM ? ST_ESYS : own ? ST_ENOMEM : ST_EMAPS;
    /* Only a saving of later faults: an old kernel says EINVAL, and faults. */
    if (prot & PROT_READ)
        (void)madvise(at, bytes, own && prot & PROT_WRITE ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
    return ST_OK;
}

/* Puts the reservation back over pages. */
static inline int st_unmap_range(struct st_ctx *ctx, uint64_t va, uint64_t n)
{
    void *at = (void *)(uintptr_t)va;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, err;

    (void)ctx;
    if (mmap(at, n << ST_PAGE_SHIFT, PROT_NONE, flags | MAP_FIXED, -1, 0) != MAP_FAILED)
        return ST_OK;
    err = errno;
    if (err != ENOMEM)
        return ST_ESYS;
    /* With as many mappings as it may have (vm.max_map_count), a process may not even replace
     * one, but it may take a whole one away. */
    if (munmap(at, n << ST_PAGE_SHIFT) == 0 &&
        mmap(at, n << ST_PAGE_SHIFT, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0) == at)
        return ST_OK;
    errno = err;
    return ST_EMAPS;
}

#endif
