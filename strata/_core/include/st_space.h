/* The UB space: lay out, format, check, map. */
#ifndef ST_SPACE_H
#define ST_SPACE_H

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

#include "st_ctx.h"
#include "st_group_layout.h"
#include "st_live.h"

static inline uint64_t st_align(uint64_t x, uint64_t a) { return (x + a - 1) & ~(a - 1); }

/* Where the window may lie, in order of preference; base: there alone, unless it is 0. */
static inline void st_space_windows(struct st_header *h, uint64_t base)
{
    static const uint64_t bases[ST_NCANDIDATES] = {
        0x100000000000ull, 0x200000000000ull, 0x180000000000ull, 0x080000000000ull,
        0x300000000000ull, 0x010000000000ull, 0x400000000000ull, 0x600000000000ull,
        0x280000000000ull, 0x380000000000ull, 0x480000000000ull, 0x500000000000ull,
        0x0c0000000000ull, 0x140000000000ull, 0x1c0000000000ull,
        0x004000000000ull, /* for kernels with addresses of 39 bits, where no other one is */
    };
    uint32_t i;

    for (i = 0; i < ST_NCANDIDATES; i++)
        h->candidates[i] = base ? base : bases[i];
}

/* Computes the layout of a job into *h (magic not set).  trace_events: of a slice of a trace.  ST_EINVAL: sizes
 * that no window can hold. */
static inline int st_space_layout_of(struct st_header *h, uint32_t ndies, uint64_t hbm_bytes, uint64_t mailbox_bytes,
                                     uint64_t window_base, uint64_t trace_events)
{
    uint64_t at, seg, pages;

    if (ndies < 1 || ndies > ST_MAX_DIES || hbm_bytes < ST_PAGE_BYTES ||
        hbm_bytes > (1ull << 42) || hbm_bytes % ST_PAGE_BYTES)
        return ST_EINVAL;
    if (mailbox_bytes % ST_LINE || mailbox_bytes < ST_LINE || mailbox_bytes > (1u << 20))
        return ST_EINVAL;
    if (trace_events < ST_TRACE_LEAST || trace_events > ST_TRACE_MOST || trace_events & (trace_events - 1))
        return ST_EINVAL;
    memset(h, 0, sizeof *h);
    h->version = ST_ABI_VERSION;
    h->header_bytes = ST_HEADER_BYTES;
    h->ndies = ndies;
    h->page_shift = ST_PAGE_SHIFT;
    h->hbm_bytes = hbm_bytes;
    h->mailbox_bytes = mailbox_bytes;
    h->trace_events = trace_events;
    for (seg = ST_PAGE_BYTES; seg < 2 * hbm_bytes; seg <<= 1) {
    }
    h->seg_bytes = seg;
    if (seg > (0x500000000000ull / ndies)) /* 80 TiB: what a 47-bit address space has in one piece */
        return ST_EINVAL;
    if (window_base % ST_PAGE_BYTES)
        return ST_EINVAL;
    st_space_windows(h, window_base);
    pages = seg / ST_PAGE_BYTES;
    at = 0;
    h->dies_off = at;
    at = st_align(at + ndies * sizeof(struct st_die), 4096);
    h->cpus_off = at;
    at = st_align(at + ndies * 4, 4096);
    h->rendezvous_off = at;
    at = st_align(at + (uint64_t)ndies * ST_RENDEZVOUS_SLOTS * sizeof(struct st_rendezvous), 4096);
    h->cursors_off = at;
    at = st_align(at + (uint64_t)ndies * ndies * 8, 4096);
    h->exports_off = at;
    at = st_align(at + (uint64_t)ndies * ST_EXPORT_SLOTS * sizeof(struct st_export), 4096);
    h->foreign_off = at;
    at = st_align(at + (uint64_t)ndies * ST_FOREIGN_SLOTS * sizeof(struct st_foreign), 4096);
    h->flight_off = at;
    at = st_align(at + ndies * sizeof(struct st_flight), 4096);
    h->pins_off = at;
    at = st_align(at + (uint64_t)ndies * ST_PIN_SLOTS * 8, 4096);
    h->logs_off = at;
    at = st_align(at + (uint64_t)ndies * ST_LOG_RECORDS * sizeof(struct st_log_record), 4096);
    h->world_off = at;
    at = st_align(at + st_group_bytes(ndies, mailbox_bytes), 4096);
    h->tables_off = at;
    at = st_align(at + ndies * pages * 8, 4096);
    h->traces_off = at; /* behind all that is reserved from the start */
    at += ndies * st_trace_bytes(trace_events);
    h->control_offset = (uint64_t)ndies * hbm_bytes;
    h->control_bytes = at + ST_HEADER_BYTES;
    h->object_bytes = h->control_offset + h->control_bytes;
    return ST_OK;
}

static inline int st_space_layout(struct st_header *h, uint32_t ndies, uint64_t hbm_bytes, uint64_t mailbox_bytes,
                                  uint64_t window_base)
{
    return st_space_layout_of(h, ndies, hbm_bytes, mailbox_bytes, window_base, ST_TRACE_EVENTS);
}

/* The header of a formatted object.  Nothing in it is believed before it is checked against the object's real size. */
static inline int st_space_header(int fd, struct st_header *h)
{
    struct st_header want;
    struct stat st;
    uint32_t i;

    if (fstat(fd, &st) != 0)
        return ST_ESYS;
    if (st.st_size < (off_t)ST_HEADER_BYTES ||
        pread(fd, h, sizeof *h, st.st_size - (off_t)ST_HEADER_BYTES) != (ssize_t)sizeof *h)
        return ST_EABI;
    if (h->magic != ST_MAGIC || h->version != ST_ABI_VERSION || h->header_bytes != ST_HEADER_BYTES ||
        h->page_shift != ST_PAGE_SHIFT || h->object_bytes != (uint64_t)st.st_size)
        return ST_EABI;
    if (st_space_layout_of(&want, h->ndies, h->hbm_bytes, h->mailbox_bytes, 0, h->trace_events) != ST_OK ||
        want.object_bytes != h->object_bytes || want.control_offset != h->control_offset ||
        want.control_bytes != h->control_bytes || want.seg_bytes != h->seg_bytes ||
        want.dies_off != h->dies_off || want.tables_off != h->tables_off ||
        want.logs_off != h->logs_off || want.rendezvous_off != h->rendezvous_off ||
        want.world_off != h->world_off || want.cpus_off != h->cpus_off ||
        want.cursors_off != h->cursors_off || want.exports_off != h->exports_off ||
        want.foreign_off != h->foreign_off || want.flight_off != h->flight_off ||
        want.pins_off != h->pins_off || want.traces_off != h->traces_off)
        return ST_EABI;
    for (i = 0; i < ST_NCANDIDATES; i++)
        if (!h->candidates[i] || h->candidates[i] % ST_PAGE_BYTES || h->candidates[i] >> 56)
            return ST_EABI;
    return ST_OK;
}

/* Maps the control region of a formatted object. */
static inline int st_space_map(struct st_ctx *ctx, int fd)
{
    struct st_header h;
    void *p;
    int rc = st_space_header(fd, &h);

    if (rc != ST_OK)
        return rc;
    p = mmap(NULL, h.control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
             (off_t)h.control_offset);
    if (p == MAP_FAILED)
        return ST_ESYS;
    ST_SHARED(p, h.control_bytes);
    ctx->fd = fd;
    ctx->control = p;
    ctx->control_bytes = h.control_bytes;
    ctx->header = (struct st_header *)(ctx->control + h.control_bytes - ST_HEADER_BYTES);
    ctx->job = h;
    ctx->ndies = h.ndies;
    ctx->seg_bytes = h.seg_bytes;
    ctx->seg_shift = (uint32_t)__builtin_ctzll(h.seg_bytes);
    ctx->seg_pages = h.seg_bytes >> ST_PAGE_SHIFT;
    ctx->hbm_pages = h.hbm_bytes >> ST_PAGE_SHIFT;
    ctx->dies = (struct st_die *)(ctx->control + h.dies_off);
    ctx->tables = (uint64_t *)(ctx->control + h.tables_off);
    ctx->cursors = (uint64_t *)(ctx->control + h.cursors_off);
    ctx->exports = (struct st_export *)(ctx->control + h.exports_off);
    ctx->foreign = (struct st_foreign *)(ctx->control + h.foreign_off);
    ctx->pins = (uint64_t *)(ctx->control + h.pins_off);
    ctx->logs = (struct st_log_record *)(ctx->control + h.logs_off);
    ctx->spread.cpus = (uint32_t *)(ctx->control + h.cpus_off);
    ctx->spread.n = h.ndies;
    ctx->rendezvous = (struct st_rendezvous *)(ctx->control + h.rendezvous_off);
    memset(&ctx->traces, 0, sizeof ctx->traces);
    ctx->traces.mode = &ctx->dies[0].trace_mode; /* until it is a die */
    return ST_OK;
}

/* Sizes the object and writes the header and the world group's. */
static inline int st_space_format(int fd, const struct st_header *layout, uint64_t token0,
                                  uint64_t token1)
{
    struct st_header h = *layout;
    struct st_group_header g;
    uint32_t ranks[ST_MAX_DIES], i;
    off_t world = (off_t)(h.control_offset + h.world_off);

    if (ftruncate(fd, (off_t)h.object_bytes) != 0)
        return ST_ESYS;
    /* The control region is touched by all, all the time: reserve what is sure to be used. */
    if (fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)h.control_offset, (off_t)h.tables_off) != 0 ||
        fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)(h.object_bytes - ST_HEADER_BYTES),
                  ST_HEADER_BYTES) != 0)
        return errno == ENOSPC || errno == ENOMEM ? ST_ENOMEM : ST_ESYS;
    memset(&g, 0, sizeof g);
    g.magic = ST_MAGIC;
    g.id[0] = token0;
    g.id[1] = token1;
    g.nmembers = h.ndies;
    g.mailbox_bytes = h.mailbox_bytes;
    g.bytes = st_group_bytes(h.ndies, h.mailbox_bytes);
    for (i = 0; i < h.ndies; i++)
        ranks[i] = i;
    h.magic = ST_MAGIC;
    h.token[0] = token0;
    h.token[1] = token1;
    if (pwrite(fd, &g, sizeof g, world) != (ssize_t)sizeof g ||
        pwrite(fd, ranks, 4 * h.ndies, world + (off_t)st_group_ranks_off()) != 4 * h.ndies ||
        pwrite(fd, &h, sizeof h, (off_t)(h.object_bytes - ST_HEADER_BYTES)) != (ssize_t)sizeof h)
        return ST_ESYS;
    return ST_OK;
}

/* A page that reads 1 here and 0 in forked children. */
static inline void st_space_mark(struct st_ctx *ctx)
{
    uint32_t *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    ctx->mark = NULL;
    if (p == MAP_FAILED)
        return;
    if (madvise(p, 4096, MADV_WIPEONFORK) != 0) {
        munmap(p, 4096);
        return;
    }
    *p = 1;
    ctx->mark = p;
}

/* The next table of n bytes in a private mapping; p NULL: only counts. */
static inline void *st_space_table(uint8_t *p, uint64_t *at, uint64_t bytes)
{
    uint64_t here = *at;

    *at = st_align(here + bytes, 64);
    return p ? p + here : NULL;
}

static inline uint64_t st_space_tables(struct st_ctx *ctx, uint8_t *p)
{
    uint64_t at = 0;

    ctx->ready_words = (ctx->seg_pages + 63) / 64;
    ctx->shadow = st_space_table(p, &at, (uint64_t)ctx->ndies * ctx->seg_pages * 8);
    ctx->ready = st_space_table(p, &at, (uint64_t)ctx->ndies * ctx->ready_words * 8);
    ctx->readable = st_space_table(p, &at, ctx->ready_words * 8);
    ctx->follow = st_space_table(p, &at, ctx->ndies * sizeof(struct st_follow));
    ctx->frame_used = st_space_table(p, &at, (ctx->hbm_pages + 63) / 64 * 8);
    ctx->page_used = st_space_table(p, &at, ctx->ready_words * 8);
    ctx->kept = st_space_table(p, &at, (uint64_t)ctx->ndies * ctx->ready_words * 8);
    ctx->former = st_space_table(p, &at, ctx->ready_words * 8);
    ctx->frame_refs = st_space_table(p, &at, ctx->hbm_pages * 4);
    ctx->held = st_space_table(p, &at, ctx->hbm_pages * sizeof(struct st_held));
    ctx->imported = st_space_table(p, &at, (uint64_t)ctx->ndies * ST_EXPORT_SLOTS * sizeof(struct st_imported));
    return st_align(at, 4096);
}

/* Private tables, in one lazily touched mapping. */
static inline int st_space_private(struct st_ctx *ctx)
{
    uint32_t i;
    uint8_t *p;

    ctx->private_bytes = st_space_tables(ctx, NULL);
    p = mmap(NULL, ctx->private_bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return ST_ESYS;
    (void)madvise(p, ctx->private_bytes, MADV_NOHUGEPAGE); /* sparse: a touch must not cost 2 MiB */
    st_space_tables(ctx, p);
    ctx->frames_left = ctx->hbm_pages;
    st_space_mark(ctx);
    for (i = 0; i < ctx->ndies; i++)
        if (pthread_mutex_init(&ctx->follow[i].log_lock, NULL) != 0 ||
            pthread_mutex_init(&ctx->follow[i].map_lock, NULL) != 0)
            return ST_ESYS;
    return pthread_mutex_init(&ctx->lock, NULL) == 0 && pthread_mutex_init(&ctx->users_lock, NULL) == 0 ? ST_OK : ST_ESYS;
}

#endif
