/* Every struct that lives in shared memory, and nothing else.
 *
 * Layout of the UB space (one POSIX shared-memory object):
 *
 *     [ HBM of die 0 | HBM of die 1 | ... | control region | header page ]
 *
 * so that a physical address is die * hbm_bytes + offset, and a process that
 * only holds the file descriptor finds the header in the last page.  Fixed
 * widths, explicit pads, offsets instead of pointers.
 */
#ifndef ST_ABI_H
#define ST_ABI_H

#include <stddef.h>
#include <stdint.h>

#define ST_MAGIC 0x3142552d41525453ull /* "STRA-UB1" */
#define ST_ABI_VERSION 4u
#define ST_LINE 64u
#define ST_PAGE_SHIFT 21u
#define ST_PAGE_BYTES (1ull << ST_PAGE_SHIFT)
#define ST_HEADER_BYTES 4096u
#define ST_MAX_DIES 1024u
#define ST_NCANDIDATES 16u
#define ST_LOG_RECORDS 1024u
#define ST_RENDEZVOUS_SLOTS 64u
#define ST_EXPORT_SLOTS 64u
#define ST_FOREIGN_SLOTS 64u
#define ST_INLINE_BYTES 40u
#define ST_GROUP_FLAGS 1024u
#define ST_PIN_SLOTS 128u

/* ---- the job --------------------------------------------------------- */

struct st_header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_bytes;
    uint64_t object_bytes;
    uint64_t control_offset; /* of the control region in the object */
    uint64_t control_bytes;  /* header page included */
    uint64_t hbm_bytes;      /* per die */
    uint64_t seg_bytes;      /* VA segment per die, a power of two */
    uint64_t token[2];       /* random; names the job */
    uint64_t dies_off;       /* offsets in the control region */
    uint64_t tables_off;
    uint64_t logs_off;
    uint64_t rendezvous_off;
    uint64_t world_off;
    uint64_t cpus_off; /* u32 per die: the CPU it waits on, for st_spread.h */
    uint64_t cursors_off;
    uint64_t exports_off;
    uint64_t foreign_off;
    uint64_t pins_off;      /* [ndies][ST_PIN_SLOTS]: memory of others that a die holds on to, for st_pin.h */
    uint64_t mailbox_bytes; /* per member and parity, in every group */
    uint32_t ndies;
    uint32_t page_shift;
    uint64_t candidates[ST_NCANDIDATES]; /* window bases, in order of preference */
    uint32_t wake_word;                  /* futex: somebody joined or died */
    uint32_t sleepers;
    uint64_t flight_off; /* struct st_flight of each die, in the control region */
    uint64_t traces_off; /* of st_trace_bytes(trace_events) for each die */
    uint64_t trace_events;
};
_Static_assert(offsetof(struct st_header, token) == 56, "abi");
_Static_assert(offsetof(struct st_header, ndies) == 160, "abi");
_Static_assert(offsetof(struct st_header, candidates) == 168, "abi");
_Static_assert(offsetof(struct st_header, wake_word) == 296, "abi");
_Static_assert(offsetof(struct st_header, flight_off) == 304, "abi");
_Static_assert(offsetof(struct st_header, traces_off) == 312, "abi");
_Static_assert(sizeof(struct st_header) == 328, "abi");

/* ---- one die ------------------------------------------------------------ */

enum st_die_state {
    ST_DIE_ABSENT = 0,
    ST_DIE_JOINED = 1,
    ST_DIE_LEFT = 2 /* finalized: gone on purpose */
};

struct st_die {
    /* line 0: written by the die before it joins; state is the commit word */
    uint32_t state;
    uint32_t pid;
    uint64_t start_time;  /* field 22 of /proc/pid/stat */
    uint64_t pid_ns;      /* inode of its pid namespace */
    uint64_t window_mask; /* bit i: candidate i is free in its address space */
    uint64_t incarnation; /* processes that were this die before */
    uint64_t settled;     /* the incarnation that has taken over what its predecessor left; see st_takeover.h */
    uint64_t taken;       /* records that its log had then: who reads on lets go of the predecessor's pages first */
    uint32_t pins_more;   /* pins beyond the table's: it may hold on to anything */
    uint8_t pad0[4];
    /* line 1: written by the die */
    uint64_t log_head;       /* records ever appended to its metadata log */
    uint64_t pages_reserved; /* pages of HBM in use */
    uint64_t pages_top;      /* entries of its page table that have memory under them */
    uint64_t reclaim_due;    /* log records that readers must pass before it can reuse frames; 0: none */
    uint64_t sdma;           /* address of its struct st_sdma; 0: it takes no descriptors */
    uint64_t times;          /* address of its struct st_times; 0: it has no virtual clock */
    uint8_t pad1[16];
    /* line 2: written by whoever sees it */
    uint64_t dead; /* incarnation + 1 of the process that is known to be dead; 0: none has died */
    uint32_t trace_mode; /* enum st_trace_mode */
    uint32_t trace_made; /* by the die: its trace has memory under its first part */
    uint64_t trace_lost; /* by the die: events of threads that found no slice, or no memory */
    uint8_t pad2[16];
    /* a newcomer's place in a group that grows: see st_invite.h */
    uint64_t invite; /* ST_INVITE: state, and who has claimed the newcomer */
    uint64_t invite_va;
    uint64_t invite_bytes;
    /* line 3: its registrar sleeps here; rung by whoever has appended to a log */
    uint32_t bell;
    uint32_t bell_sleepers;
    uint8_t pad3[56];
};
_Static_assert(offsetof(struct st_die, log_head) == 64, "abi");
_Static_assert(offsetof(struct st_die, sdma) == 96, "abi");
_Static_assert(offsetof(struct st_die, times) == 104, "abi");
_Static_assert(offsetof(struct st_die, dead) == 128, "abi");
_Static_assert(offsetof(struct st_die, trace_mode) == 136, "abi");
_Static_assert(offsetof(struct st_die, invite) == 168, "abi");
_Static_assert(offsetof(struct st_die, bell) == 192, "abi");
_Static_assert(sizeof(struct st_die) == 256, "abi");

/* ---- page table word ------------------------------------------------------
 * [63:32] frame in the whole object, in pages  [31:2] generation  [1:0] state */

enum st_page_state {
    ST_PAGE_FREE = 0,
    ST_PAGE_MAPPED = 1,
    ST_PAGE_READ = 2, /* mapped for reading only, on every die */
    ST_PAGE_HELD = 3  /* a frame is there, but nobody has access */
};

#define ST_PTE_STATE(w) ((uint32_t)((w) & 3u))
#define ST_PTE_GEN(w) ((uint32_t)(((w) >> 2) & 0x3fffffffu))
#define ST_PTE_FRAME(w) ((uint64_t)((w) >> 32))
#define ST_PTE(frame, gen, state) \
    (((uint64_t)(frame) << 32) | ((uint64_t)((gen) & 0x3fffffffu) << 2) | (uint64_t)(state))

/* ---- metadata log -----------------------------------------------------------
 * One ring per die, written by its owner alone.  A reader that is lapped
 * rescans the page table, which is authoritative: nobody waits for readers.
 * How far each reader has come stands in cursors[owner][reader] (u64), written
 * by the reader: a frame is free when all have passed the record that let it go. */

enum st_log_kind { ST_LOG_MAP = 1, ST_LOG_UNMAP = 2 };

struct st_log_record {
    uint64_t seq; /* index + 1; the commit word */
    uint32_t kind;
    uint32_t npages;
    uint64_t va;
    uint64_t time_ns; /* CLOCK_MONOTONIC when appended */
};
_Static_assert(sizeof(struct st_log_record) == 32, "abi");

/* ---- exported physical memory: frames of a die that others may map ----------
 * The frames stand in the exporter's page table at `va`, without access. */

struct st_export {
    uint64_t state; /* use number << 2 | enum st_export_state; the commit word */
    uint64_t va;
    uint64_t npages;
    uint64_t pad[5];
    uint64_t importers[ST_MAX_DIES / 64]; /* dies that may have it mapped; each sets its own bit */
};
_Static_assert(sizeof(struct st_export) == 192, "abi");

enum st_export_state { ST_EXPORT_FREE = 0, ST_EXPORT_OPEN = 1, ST_EXPORT_CLOSING = 2, ST_EXPORT_ENDING = 3 };

/* ---- foreign memory: files of others that a die has in its segment -----------
 * Written by the die before the page table words that name the slot. */

struct st_foreign {
    uint64_t device, inode;
    uint64_t offset; /* in the file, of the first page of the segment */
    uint64_t bytes;  /* 0: free */
    uint32_t fd;     /* of the die's process */
    uint8_t pad[28];
};
_Static_assert(sizeof(struct st_foreign) == 64, "abi");

/* ---- rendezvous: how the members of a new group find its memory ------------
 * A slot belongs to the die in whose table it stands (the group's first
 * member), which alone writes all but `attached`. */

struct st_rendezvous {
    uint64_t key[2];
    uint64_t state; /* 0: being written; else a number that grows with each use; the commit word */
    uint64_t va;    /* of the group's memory, 0: the leader failed */
    uint64_t bytes;
    uint64_t attached; /* members that have read it */
    uint64_t status;   /* st_status when va is 0 */
    uint64_t readers;  /* members that will read it */
};
_Static_assert(sizeof(struct st_rendezvous) == 64, "abi");

/* ---- a group -----------------------------------------------------------------
 * Group memory: header, world ranks, their incarnations, arrival lines [2][n], member lines [n],
 * flags [n][ST_GROUP_FLAGS], channel table [n][n], mailboxes [n][2]. */

enum st_failure_state { ST_FAIL_NONE = 0, ST_FAIL_CLAIMED = 1, ST_FAIL_PUBLISHED = 2 };
#define ST_FAIL_CLAIM(member) ((uint32_t)ST_FAIL_CLAIMED | (uint32_t)(member) << 8)

struct st_group_header {
    uint64_t magic;
    uint64_t id[2]; /* rendezvous key, or the job's token for the world */
    uint32_t nmembers;
    uint32_t pad0;
    uint64_t mailbox_bytes;
    uint64_t bytes;
    uint8_t pad1[16];
    /* line 1: the first failure; read at every operation */
    uint32_t fail_state; /* the commit word */
    uint32_t fail_status;
    uint32_t fail_by;    /* member that declared it */
    uint32_t fail_phase; /* 0 arrival, 1 execution, 2 completion */
    uint64_t fail_number;
    uint64_t fail_desc;
    uint8_t pad2[32];
    /* line 2: sleep */
    uint32_t wake_word;
    uint32_t sleepers;
    uint8_t pad3[56];
    /* lines 3, 4: members the failure names */
    uint64_t fail_mask[ST_MAX_DIES / 64];
};
_Static_assert(offsetof(struct st_group_header, fail_state) == 64, "abi");
_Static_assert(offsetof(struct st_group_header, wake_word) == 128, "abi");
_Static_assert(offsetof(struct st_group_header, fail_mask) == 192, "abi");
_Static_assert(sizeof(struct st_group_header) == 320, "abi");

/* A member's arrival at one operation.  Lines alternate by the operation
 * number's parity: a member reuses a line only after it has seen everybody
 * arrive at the operation between, that is, after everybody has read it. */
struct st_arrival {
    uint64_t epoch; /* operation number; the commit word */
    uint64_t desc;  /* fingerprint: ST_DESC */
    uint64_t count; /* fingerprint: elements */
    union {
        struct {
            uint64_t src;
            uint64_t out;
            uint64_t log_head; /* barrier: what this member had logged */
            uint64_t scratch;  /* what this member lends to the operation */
            uint64_t spare;
        } at;
        uint8_t data[ST_INLINE_BYTES]; /* the payload itself */
    } u;
};
_Static_assert(sizeof(struct st_arrival) == 64, "abi");

#define ST_DESC(op, redop, dtype, root, mode)                                           \
    ((uint64_t)(op) | ((uint64_t)(redop) << 8) | ((uint64_t)(dtype) << 16) |            \
     ((uint64_t)(root) << 32) | ((uint64_t)(mode) << 48))
#define ST_DESC_OP(d) ((uint32_t)((d) & 0xffu))
#define ST_DESC_REDOP(d) ((uint32_t)(((d) >> 8) & 0xffu))
#define ST_DESC_DTYPE(d) ((uint32_t)(((d) >> 16) & 0xffffu))
#define ST_DESC_ROOT(d) ((uint32_t)(((d) >> 32) & 0xffffu))
#define ST_DESC_MODE(d) ((uint32_t)(((d) >> 48) & 0xffffu))

struct st_member {
    uint64_t done;   /* last operation whose buffers it no longer touches */
    uint64_t began;  /* last operation in which it began to touch buffers */
    uint64_t shrink; /* times it has called shrink() on this group */
    uint64_t left;   /* enum st_left */
    uint64_t found;  /* 1: it has the group's memory */
    uint64_t formed; /* the shrink() of which it knows the outcome, twice, and 1 if it has the new group */
    uint8_t pad[16];
};
_Static_assert(sizeof(struct st_member) == 64, "abi");

#include "st_abi_p2p.h"
#include "st_abi_times.h"
#include "st_abi_flight.h"
#include "st_abi_trace.h"

#endif
