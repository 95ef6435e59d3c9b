/* Files that are not the UB space's, in a die's segment: how peers map them.
 *
 * Memory that its owner has registered, and that is a shared mapping of a file,
 * stands a second time in the owner's segment.  The page table words have
 * frames beyond the UB space's, which name a slot of the owner's table and a page
 * of what is offered there.  A peer opens the owner's descriptor by way of /proc
 * and believes it only if device and inode are those of the slot.
 *
 * The words change before a slot is written again, and no word ever comes back: a
 * peer that finds the same word after it has mapped has mapped the right file. */
#ifndef ST_FOREIGN_H
#define ST_FOREIGN_H

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "st_live.h"

/* Frames: 1 | slot (6 bits) | page (25 bits), in 32 bits. */
#define ST_FOREIGN_FRAME (1ull << 31)
#define ST_FOREIGN_PAGES (1ull << 25)
#define ST_PTE_FOREIGN(w) (ST_PTE_FRAME(w) >= ST_FOREIGN_FRAME)

_Static_assert(ST_FOREIGN_SLOTS * ST_FOREIGN_PAGES == ST_FOREIGN_FRAME, "slot and page fill the frame");

static inline struct st_foreign *st_foreign_at(const struct st_ctx *ctx, uint32_t die, uint32_t slot)
{
    return ctx->foreign + (uint64_t)die * ST_FOREIGN_SLOTS + slot;
}

/* Maps pages of a file that is `bytes` long from `offset` at va: whole pages of the
 * segment, but for the last. */
static inline int st_foreign_mmap(uint64_t va, int fd, uint64_t offset, uint64_t bytes, uint64_t page,
                                  uint64_t n, int prot)
{
    uint64_t from = page << ST_PAGE_SHIFT, length = n << ST_PAGE_SHIFT;

    length = length < bytes - from ? length : bytes - from;
    if (mmap((void *)(uintptr_t)va, length, prot, MAP_SHARED | MAP_FIXED, fd, (off_t)(offset + from)) == MAP_FAILED)
        return errno == ENOMEM ? ST_EMAPS : ST_ESYS;
    (void)madvise((void *)(uintptr_t)va, length, MADV_POPULATE_READ); /* only a saving of later faults */
    return ST_OK;
}

/* A peer's page with this word, mapped here.  ST_EFILE: its file cannot be opened, or
 * is another one; ST_EDEAD: it cannot, since the peer has died. */
static inline int st_foreign_map(struct st_ctx *ctx, uint32_t die, uint64_t va, uint64_t word)
{
    uint64_t index = ST_PTE_FRAME(word) - ST_FOREIGN_FRAME, page = index % ST_FOREIGN_PAGES;
    const struct st_foreign *f = st_foreign_at(ctx, die, (uint32_t)(index / ST_FOREIGN_PAGES));
    uint64_t offset = st_load_relaxed_64(&f->offset), bytes = st_load_relaxed_64(&f->bytes);
    int writes = ST_PTE_STATE(word) == ST_PAGE_MAPPED, fd, rc = ST_EFILE;
    struct stat st;
    char path[64];

    ST_FAULT(FOREIGN_FOLLOWED);
    if (page << ST_PAGE_SHIFT >= bytes || bytes > INT64_MAX || offset > INT64_MAX - bytes || offset % 4096)
        return ST_ECORRUPT;
    snprintf(path, sizeof path, "/proc/%u/fd/%u", st_load_relaxed_32(&ctx->dies[die].pid),
             st_load_relaxed_32(&f->fd));
    fd = open(path, (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 && errno != EMFILE && errno != ENFILE && errno != ENOMEM)
        return st_pid_ends(st_load_relaxed_32(&ctx->dies[die].pid)) ? ST_EDEAD : ST_EFILE;
    if (fd < 0)
        return ST_ESYS;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_dev == st_load_relaxed_64(&f->device) &&
        st.st_ino == st_load_relaxed_64(&f->inode) && (uint64_t)st.st_size >= offset + bytes)
        rc = ctx->shared_window
                 ? ST_OK
                 : st_foreign_mmap(va, fd, offset, bytes, page, 1, writes ? PROT_READ | PROT_WRITE : PROT_READ);
    close(fd);
    return rc;
}

#endif
