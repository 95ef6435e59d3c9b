/* The part of st_abi.h that is about the flight recorder; include that.
 *
 * What a die does and has done last, in the control region, so that it can be read from another process whatever
 * has become of the die: one struct st_flight a die, written by the die alone, read by inspectors (st_inspect.h). */
#ifndef ST_ABI_FLIGHT_H
#define ST_ABI_FLIGHT_H

#include <stddef.h>
#include <stdint.h>

#define ST_FLIGHT_RECORDS 128u /* a power of two */
#define ST_FLIGHT_GROUPS 64u
#define ST_FLIGHT_NAME 40u
#define ST_FLIGHT_NOBODY 0xffffu /* a record's peer, where there is none */
#define ST_FLIGHT_OPEN 0xffu     /* a record's status while it is in progress */
#define ST_FLIGHT_LOST 0xfeu     /* the process ended before it did */

/* What a record is about, and what its words mean there. */
enum st_flight_kind {
    ST_FLIGHT_COLLECTIVE = 1, /* number: of the operation in its group */
    ST_FLIGHT_SEND = 2,       /* peer: the receiver; number: the tag */
    ST_FLIGHT_RECV = 3,       /* peer: the sender; number: the tag */
    ST_FLIGHT_POSTS = 4,      /* waits for members' posts of a round of MoE; count: those missing, a bit a member */
    ST_FLIGHT_DRAIN = 5,      /* waits until the members have read a round; count: as above */
    ST_FLIGHT_JOIN = 6,       /* waits for dies to join; peer: the first that is missing */
    ST_FLIGHT_GROUP = 7,      /* waits for a new group's memory; peer: who makes it */
    ST_FLIGHT_SHRINK = 8,     /* waits for members to agree on who lives; number: the round */
    ST_FLIGHT_LATE = 9,       /* maps a peer's pages, late; peer: whose; count: pages */
    ST_FLIGHT_SUBMIT = 10,    /* puts descriptors into a ring; peer: whose; number: ring; count: descriptors */
    ST_FLIGHT_EVENT = 11,     /* the host waits for a submission */
    ST_FLIGHT_FLAG = 12,      /* the host waits for a flag; number: its address; count: the value; peer: who raises it */
    ST_FLIGHT_STREAM = 13,    /* the host waits for a stream; number: of the item */
    ST_FLIGHT_WORK = 14,      /* the host waits for an asynchronous operation of this die */
    ST_FLIGHT_REPLAY = 15,    /* the host waits for a graph's replay */
    ST_FLIGHT_LOCK = 16,      /* waits for another thread of this die that uses the group */
    ST_FLIGHT_CAST = 17,      /* a bound broadcast; peer: the root, or for it a member that is late; number: of its casts */
    ST_FLIGHT_KINDS = 18,
    ST_FLIGHT_ASYNC = 0x80 /* added: by a thread of the group's, while the program may do something else */
};

struct st_flight_record {
    uint64_t state; /* ST_FLIGHT_STATE: the commit word; kind 0: nothing there, or being written */
    uint64_t group; /* first word of the group's id; 0: none */
    uint64_t number;
    uint64_t desc;  /* of collectives and messages: the fingerprint */
    uint64_t count;
    uint64_t bytes;
    uint64_t begin; /* ticks; 0: just now, or (when it is over) not known: all were there */
    uint64_t end;   /* ticks; 0: at once (it did not have to wait), or not over */
};
_Static_assert(sizeof(struct st_flight_record) == 64, "abi");

/* [63:40] index of the record: its slot, and how often that was used  [39:24] peer  [23:16] kind  [15:8] enum st_phase  [7:0] status */
#define ST_FLIGHT_STATE(index, peer, kind, phase, status)                              \
    ((uint64_t)(index) << 40 | (uint64_t)((peer) & 0xffffu) << 24 | (uint64_t)(kind) << 16 | \
     (uint64_t)(phase) << 8 | (uint64_t)(status))
#define ST_FLIGHT_STATUS(s) ((uint32_t)((s) & 0xffu))

/* A group that the die has open: where its members' lines are. */
struct st_flight_group {
    uint64_t id;  /* as in records; the commit word, 0: free */
    uint64_t va;  /* of its memory; 0: the world */
    uint32_t n;
    uint32_t me;
    char name[ST_FLIGHT_NAME];
};
_Static_assert(sizeof(struct st_flight_group) == 64, "abi");

struct st_flight {
    /* line 0 */
    uint64_t head; /* about where the next record goes */
    uint8_t pad0[56];
    /* line 1: ticks are turned into CLOCK_MONOTONIC by two moments, this one and the inspector's own */
    uint64_t ticks;
    uint64_t time_ns;
    uint32_t clock; /* enum st_flight_clock */
    uint32_t groups_lost; /* groups for which there was no slot */
    uint64_t late_maps;
    uint64_t late_map_ns;
    uint64_t cached_bytes; /* of the heap: mapped pages without a live allocation */
    uint64_t heap_bytes;   /* of its live allocations */
    uint64_t lost;         /* records for which there was no slot */
    struct st_flight_group groups[ST_FLIGHT_GROUPS];
    struct st_flight_record records[ST_FLIGHT_RECORDS];
};
_Static_assert(offsetof(struct st_flight, ticks) == 64, "abi");
_Static_assert(offsetof(struct st_flight, heap_bytes) == offsetof(struct st_flight, cached_bytes) + 8, "abi");
_Static_assert(offsetof(struct st_flight, groups) == 128, "abi");
_Static_assert(offsetof(struct st_flight, records) == 128 + 64 * ST_FLIGHT_GROUPS, "abi");
_Static_assert(sizeof(struct st_flight) == 128 + 64 * ST_FLIGHT_GROUPS + 64 * ST_FLIGHT_RECORDS, "abi");

enum st_flight_clock { ST_CLOCK_MONOTONIC = 0, ST_CLOCK_TICKS = 1 };

#endif
