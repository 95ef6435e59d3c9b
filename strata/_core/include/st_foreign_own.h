/* Files that are not the UB space's, in this die's own segment (see st_foreign.h). */
#ifndef ST_FOREIGN_OWN_H
#define ST_FOREIGN_OWN_H

#include <sys/prctl.h>

#include "st_vmm.h"

/* Whether peers can open descriptors of this process: they see its pid, and may. */
static inline int st_foreign_reachable(const struct st_ctx *ctx)
{
    uint64_t mine = st_load_relaxed_64(&ctx->dies[ctx->rank].pid_ns);
    uint32_t i;

    for (i = 0; i < ctx->ndies; i++)
        if (st_load_relaxed_64(&ctx->dies[i].pid_ns) != mine)
            return 0;
    return prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 1;
}

/* Writes an offer into a free slot of this die's table.  ST_AGAIN: all are taken. */
static inline int st_foreign_claim(struct st_ctx *ctx, const struct st_foreign *offer, uint32_t *slot)
{
    struct st_foreign *f;
    uint32_t i;

    pthread_mutex_lock(&ctx->lock);
    for (i = 0; i < ST_FOREIGN_SLOTS && st_load_relaxed_64(&st_foreign_at(ctx, ctx->rank, i)->bytes); i++) {
    }
    if (i < ST_FOREIGN_SLOTS) { /* published with the page table words: pairs with st_shadow_map */
        f = st_foreign_at(ctx, ctx->rank, i);
        st_store_relaxed_32(&f->fd, offer->fd);
        st_store_relaxed_64(&f->device, offer->device);
        st_store_relaxed_64(&f->inode, offer->inode);
        st_store_relaxed_64(&f->offset, offer->offset);
        st_store_relaxed_64(&f->bytes, offer->bytes);
        ST_FAULT(FOREIGN_CLAIMED);
        *slot = i;
    }
    pthread_mutex_unlock(&ctx->lock);
    return i < ST_FOREIGN_SLOTS ? ST_OK : ST_AGAIN;
}

static inline void st_foreign_unclaim(struct st_ctx *ctx, uint32_t slot)
{
    pthread_mutex_lock(&ctx->lock);
    st_store_relaxed_64(&st_foreign_at(ctx, ctx->rank, slot)->bytes, 0);
    pthread_mutex_unlock(&ctx->lock);
}

/* Maps what is offered under reserved pages, and publishes them. */
static inline int st_foreign_publish(struct st_ctx *ctx, uint64_t va, const struct st_foreign *f, uint32_t slot,
                                     uint64_t npages, int writes)
{
    uint64_t *own = st_shadow(ctx, ctx->rank), at = (va - st_segment(ctx, ctx->rank)) >> ST_PAGE_SHIFT, i;
    uint32_t state = writes ? ST_PAGE_MAPPED : ST_PAGE_READ;
    int rc;

    pthread_mutex_lock(&ctx->lock);
    rc = st_foreign_mmap(va, (int)f->fd, f->offset, f->bytes, 0, npages,
                         writes ? PROT_READ | PROT_WRITE : PROT_READ);
    if (rc == ST_OK) {
        for (i = 0; i < npages; i++)
            own[at + i] = ST_PTE(ST_FOREIGN_FRAME + slot * ST_FOREIGN_PAGES + i, ST_PTE_GEN(own[at + i]) + 1, state);
        st_pages_publish(ctx, at, npages);
        st_log_append(ctx, ST_LOG_MAP, va, npages);
    }
    pthread_mutex_unlock(&ctx->lock);
    return rc;
}

/* Puts `bytes` of a file, from an offset that is a multiple of 4096, into this die's
 * segment; fd stays open until st_foreign_close.  ST_AGAIN: no slot is free.
 * ST_ENOMEM: no range of addresses is. */
static inline int st_foreign_open(struct st_ctx *ctx, const struct st_foreign *f, int writes, uint64_t *va,
                                  uint32_t *slot)
{
    uint64_t n = (f->bytes + ST_PAGE_BYTES - 1) >> ST_PAGE_SHIFT;
    int rc;

    if (!f->bytes || f->offset % 4096 || n > ST_FOREIGN_PAGES)
        return ST_EINVAL;
    if (n > ctx->seg_pages)
        return ST_ENOMEM;
    rc = st_va_reserve(ctx, n, 1, va);
    if (rc != ST_OK)
        return rc;
    rc = st_foreign_claim(ctx, f, slot);
    if (rc == ST_OK) {
        rc = st_foreign_publish(ctx, *va, f, *slot, n, writes);
        if (rc != ST_OK)
            st_foreign_unclaim(ctx, *slot);
    }
    if (rc != ST_OK)
        (void)st_va_free(ctx, *va, n);
    return rc;
}

/* Takes it away.  Peers let go when they come to the record, or at the next look. */
static inline int st_foreign_close(struct st_ctx *ctx, uint64_t va, uint64_t bytes, uint32_t slot)
{
    uint64_t n = (bytes + ST_PAGE_BYTES - 1) >> ST_PAGE_SHIFT;
    int rc = st_vmm_unmap(ctx, va, n);

    if (rc != ST_OK)
        return rc;
    ST_FAULT(FOREIGN_UNMAPPED);
    st_foreign_unclaim(ctx, slot);
    return st_va_free(ctx, va, n);
}

#endif
