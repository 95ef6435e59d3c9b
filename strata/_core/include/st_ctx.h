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
#include "st_fault.h"
#include "st_kernels_api.h"
#include "st_status.h"
#include "st_tracer.h"
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
    uint64_t rescans;          /* a reader was lapped */
    uint64_t registrar_wakes;
    uint64_t registrar_errors; /* left to phase 2, which reports them */
    uint64_t lag_max;          /* most records that one peer was ahead */
    uint64_t late_maps;        /* phase 2 found pages that were not mapped yet */
    uint64_t late_map_ns;      /* and what mapping them took */
    uint64_t reclaimed;        /* frames that came out of quarantine */
    uint64_t reclaimed_unread; /* of them, without all readers: one was too slow */
    uint64_t waits; /* waits that outlasted the first look */
    uint64_t sends;
    uint64_t casts; /* made here */
    uint64_t recvs;
};

/* Where a reader of a peer's log is. */
struct st_position {
    uint64_t cursor;    /* records behind it */
    uint64_t part;      /* pages of the record at the cursor (or of a rescan) behind it */
    uint64_t rescan_to; /* nonzero: the table is gone through instead, up to this record */
};

/* What this die keeps of each peer's log and pages. */
struct st_follow {
    pthread_mutex_t log_lock; /* the positions; taken before a map_lock */
    pthread_mutex_t map_lock; /* shadow table, ready bits and mappings of the peer's segment */
    struct st_position at[2]; /* [0]: pages that are gone are unmapped up to here; [1]: new ones mapped, too */
    uint64_t passed;          /* the further of the two */
    uint64_t life;            /* incarnation of the peer whose pages these are */
    uint64_t kept;            /* pages of former ones that are still mapped here, since they are pinned */
};

/* Frames in quarantine: a list of runs, the entry at a run's first frame. */
struct st_held {
    uint64_t due; /* records of this die's log that all readers must have passed */
    uint64_t since_ns;
    uint32_t next; /* frame + 1 */
    uint32_t run;
};

/* What this die has of one slot of a peer's exports (st_export.h); the lock guards it. */
struct st_imported {
    uint64_t due; /* after the end: records of this die's log that its peers must have passed */
    uint64_t since_ns;
    uint32_t count;  /* imports that have not ended */
    uint32_t listed; /* in the list of those that have */
    uint32_t next;   /* index + 1 */
    uint32_t pad;
};

/* What of this die may be in the middle of something with other dies' pages: a group.  Its locks are held meanwhile. */
struct st_user {
    struct st_user *next;
    pthread_mutex_t *locks[2];
    const uint32_t *ranks;
    const uint32_t *lives; /* incarnations of these dies that it means */
    uint32_t n;
};

#define ST_LATENCIES 160u /* four to a power of two, from 1 ns */

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
    uint64_t *cursors; /* [owner][reader], shared */
    struct st_export *exports; /* [ndies][ST_EXPORT_SLOTS], shared */
    uint64_t *pins; /* [ndies][ST_PIN_SLOTS], shared */
    struct st_foreign *foreign; /* [ndies][ST_FOREIGN_SLOTS], shared */
    struct st_rendezvous *rendezvous;
    /* what the header said when it was checked: it is not read again */
    struct st_header job;
    uint64_t base; /* of the VA window, 0 until agreed */
    uint64_t seg_bytes;
    uint64_t seg_pages;
    uint64_t hbm_pages;
    uint32_t seg_shift;
    uint32_t huge; /* try to make frames huge pages */
    uint32_t shared_window; /* several dies in this process (tests): peers' pages are already here */
    /* private tables */
    uint64_t *shadow; /* [ndies][seg_pages]: page table word that is mapped here; own: what is to be published */
    uint64_t *ready;  /* [ndies][ready_words], bitmaps: mapped here, for reading and writing */
    uint64_t *readable; /* [ready_words], of own pages: those, and what may be read only */
    uint64_t ready_words;
    struct st_follow *follow; /* [ndies] */
    uint64_t *frame_used;     /* bitmap of own HBM, quarantine included */
    uint64_t *page_used;      /* bitmap of own VA segment, reservations included */
    uint64_t *kept;           /* [ndies][ready_words], bitmaps: pages of former processes that are pinned; see st_accept.h */
    uint64_t *former;         /* bitmap of own pages that a predecessor left and peers may still look at */
    uint32_t *frame_refs;     /* mappings and handles of each own frame */
    struct st_held *held;
    struct st_imported *imported; /* [ndies][ST_EXPORT_SLOTS] */
    uint64_t private_bytes;
    uint64_t frames_left;
    uint64_t quarantined_frames;
    uint32_t held_first, held_last; /* frame + 1 */
    uint64_t former_pages;          /* bits in former */
    uint64_t fresh;                 /* pages of the segment from here on had nothing under them in earlier processes */
    uint64_t quarantine_ns;         /* after that a frame comes free though somebody has not read; 0: never */
    pthread_mutex_t lock; /* own pages and frames; never held while waiting for a peer */
    uint32_t lazy;        /* just in time: peers' new pages are mapped at first use only */
    struct st_user *users; /* groups of this die; users_lock guards the list */
    pthread_mutex_t users_lock;
    uint32_t closing;     /* exports that wait for their importers */
    uint32_t leaving_first, leaving_last; /* imports that wait for this die's peers: index + 1 */
    uint32_t taking;      /* this process is to take over what another left (st_takeover.h) */
    uint32_t vmm;         /* handles have been made or imported: a frame may lie under several addresses */
    uint32_t latencies[ST_LATENCIES]; /* from a MAP record to its pages mapped here: a histogram */
    pthread_t registrar;
    uint32_t registrar_runs;
    uint32_t registrar_stop;
    struct st_wait_policy wait;
    struct st_counters count;
    struct st_spread spread;
    st_reduce_fn *reduce; /* the kernels are compiled once, elsewhere */
    st_reduce_partial_fn *reduce_partial;
    st_accumulate_fn *accumulate;
    struct st_hold *hold; /* ranges that the DMA thread is at; NULL: there is none */
    struct st_engine *engine; /* the DMA thread, its events and rings; NULL: not made yet */
    struct st_crew *crew; /* threads that run cores beside the caller; NULL: none */
    uint32_t workers;     /* that run an operation's cores, the caller included */
    struct st_flight *flight; /* where it writes down what it does, shared; NULL: it has not joined */
    struct st_traces traces;
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

static inline uint64_t *st_ready(const struct st_ctx *ctx, uint32_t die)
{
    return ctx->ready + (uint64_t)die * ctx->ready_words;
}

static inline uint64_t *st_cursor(const struct st_ctx *ctx, uint32_t owner, uint32_t reader)
{
    return ctx->cursors + (uint64_t)owner * ctx->ndies + reader;
}

static inline struct st_log_record *st_log(const struct st_ctx *ctx, uint32_t die)
{
    return ctx->logs + (uint64_t)die * ST_LOG_RECORDS;
}

static inline void st_ready_mark(uint64_t *ready, uint64_t page, int value)
{
    uint64_t *word = ready + (page >> 6), bit = 1ull << (page & 63), w = st_load_relaxed_64(word);

    st_store_release_64(word, value ? w | bit : w & ~bit); /* pairs with st_ready_range */
}

/* The ready bits of a die's pages; set under the lock that guards its mappings here. */
static inline void st_ready_set(const struct st_ctx *ctx, uint32_t die, uint64_t page, int value)
{
    st_ready_mark(st_ready(ctx, die), page, value);
}

static inline int st_ready_range(const uint64_t *ready, uint64_t first, uint64_t last)
{
    uint64_t k, want;

    for (k = first >> 6; k <= last >> 6; k++) {
        want = ~0ull;
        if (k == first >> 6)
            want &= ~0ull << (first & 63);
        if (k == last >> 6)
            want &= ~0ull >> (63 - (last & 63));
        if ((st_load_acquire_64(&ready[k]) & want) != want) /* pairs with st_ready_mark */
            return 0;
    }
    return 1;
}

static inline int st_ready_all(const struct st_ctx *ctx, uint32_t die, uint64_t first, uint64_t last)
{
    return st_ready_range(st_ready(ctx, die), first, last);
}

/* May own pages be touched?  By what this die has mapped, not by its table, where others could have written. */
static inline int st_ready_own(const struct st_ctx *ctx, uint64_t first, uint64_t last, int writes)
{
    return st_ready_range(writes ? st_ready(ctx, ctx->rank) : ctx->readable, first, last);
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
