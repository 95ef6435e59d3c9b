/* A die: everything it holds outside shared memory.
 *
 * A die is this struct, not the process: nothing in the core is global, so a
 * test can run several dies as threads over one mapping.
 */
#ifndef ST_CTX_H
#define ST_CTX_H

#include <pthread.h>
#include <stdint.h>

#include "st_abi.h"
#include "st_atomic.h"
#include "st_kernels_api.h"
#include "st_status.h"
#include "st_wait.h"

struct st_counters {
    uint64_t operations;
    uint64_t mailbox_operations;
    uint64_t plan_hits;
    uint64_t plan_misses;
    uint64_t staged_bytes;
    uint64_t log_records;
    uint64_t pages_mapped;   /* own */
    uint64_t pages_unmapped; /* own */
    uint64_t shadow_maps;    /* peers' pages mapped here */
    uint64_t shadow_map_calls;
    uint64_t shadow_unmaps;
    uint64_t rescans;
    uint64_t waits; /* waits that outlasted the first look */
    uint64_t sends;
    uint64_t recvs;
};

struct st_ctx {
    int fd;
    uint32_t rank;
    uint32_t ndies;
    uint32_t pid; /* of the process that attached; a forked child is not the die */
    const uint32_t *mark; /* 1 in that process, 0 in its forked children; NULL: compare pids */
    uint8_t *control;
    uint64_t control_bytes;
    struct st_header *header;
    struct st_die *dies;
    uint64_t *tables; /* [ndies][seg_pages], shared */
    struct st_log_record *logs;
    struct st_rendezvous *rendezvous;
    uint64_t base; /* of the VA window, 0 until agreed */
    uint64_t held; /* bit i: candidate i is reserved here (until one is agreed) */
    uint64_t seg_bytes;
    uint64_t seg_pages;
    uint64_t hbm_pages;
    uint32_t seg_shift;
    uint32_t huge; /* try to make frames huge pages */
    uint32_t shared_window; /* several dies in this process (tests): peers' pages are already here */
    /* private tables */
    uint64_t *shadow;      /* [ndies][seg_pages]: page table word that is mapped here */
    uint64_t *log_cursor;  /* [ndies] */
    uint64_t *frame_used;  /* bitmap of own HBM */
    uint64_t *page_used;   /* bitmap of own VA segment */
    uint64_t private_bytes;
    uint64_t frames_left;
    pthread_mutex_t lock; /* own pages, shadow table, cursors; never held while waiting for a peer */
    struct st_wait_policy wait;
    struct st_counters count;
    struct st_spread spread;
    st_reduce_fn *reduce; /* the kernels are compiled once, elsewhere */
    /* tests replace this */
    int (*alive)(struct st_ctx *ctx, uint32_t die);
};

/* Is this process the die, and not a child that it forked?  Without a system
 * call where the kernel can wipe a page in children. */
static inline int st_is_die(const struct st_ctx *ctx)
{
    return ctx->mark ? *(const volatile uint32_t *)ctx->mark != 0
                     : (uint32_t)getpid() == ctx->pid;
}

/* Counters are for people: threads of one die may lose each other's counts,
 * but nothing worse. */
static inline void st_count(uint64_t *counter, uint64_t by)
{
    st_store_relaxed_64(counter, st_load_relaxed_64(counter) + by);
}

static inline uint64_t *st_table(const struct st_ctx *ctx, uint32_t die)
{
    return ctx->tables + (uint64_t)die * ctx->seg_pages;
}

static inline uint64_t *st_shadow(const struct st_ctx *ctx, uint32_t die)
{
    return ctx->shadow + (uint64_t)die * ctx->seg_pages;
}

static inline struct st_log_record *st_log(const struct st_ctx *ctx, uint32_t die)
{
    return ctx->logs + (uint64_t)die * ST_LOG_RECORDS;
}

/* World rank of the die whose segment holds va, or -1. */
static inline int64_t st_owner(const struct st_ctx *ctx, uint64_t va)
{
    uint64_t die;

    if (!ctx->base || va < ctx->base)
        return -1;
    die = (va - ctx->base) >> ctx->seg_shift;
    return die < ctx->ndies ? (int64_t)die : -1;
}

static inline uint64_t st_segment(const struct st_ctx *ctx, uint32_t die)
{
    return ctx->base + ((uint64_t)die << ctx->seg_shift);
}

#endif
