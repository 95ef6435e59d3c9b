/* The part of st_abi.h that is about traces; include that.
 *
 * What the threads of a die did, and when: events of 32 bytes in slices of one thread each, in the control region, so
 * that they can be read from another process, also after the die's end.  A die's area is
 *
 *     [ struct st_trace, to 4096 | names, ST_TRACE_NAMES | ST_TRACE_SLICES slices of trace_events events ]
 *
 * No page of it is touched before an event or a name is written there.  The switch stands in the die table. */
#ifndef ST_ABI_TRACE_H
#define ST_ABI_TRACE_H

#include <stddef.h>
#include <stdint.h>

#define ST_TRACE_SLICES 16u
#define ST_TRACE_NAMES (64u << 10)
#define ST_TRACE_NAME_MOST 1024u   /* bytes of a name */
#define ST_TRACE_LEAST 64u         /* events of a slice, a power of two; */
#define ST_TRACE_MOST (1u << 20)   /* at most, */
#define ST_TRACE_EVENTS (1u << 14) /* and usually */
#define ST_TRACE_NOBODY 0xffffu    /* an event's peer, where there is none */

enum st_trace_mode {
    ST_TRACE_OFF = 0,
    ST_TRACE_RING = 1, /* the newest events stay */
    ST_TRACE_STOP = 2  /* the oldest stay: what does not fit is lost */
};

/* What an event is about.  Spans are written when they end; begin == end: an instant.  Times are ticks of the clock that
 * the flight recorder has. */
enum st_trace_kind {
    ST_TRACE_CALL = 1,        /* of Python; index: id of its name; arg: bytes.  Followed by */
    ST_TRACE_CALL_MORE = 2,   /* begin: group id; end: operation's number; index: id of the site; arg: id of tags */
    ST_TRACE_PROBE = 3,       /* of the program; index: id of its name; arg: id of tags */
    ST_TRACE_ARRIVE = 4,      /* is there for operation `arg`; index: the group's id, its lower half.  Of a core's thread: begins it */
    ST_TRACE_WAIT = 5,        /* peer: the last that came (where all were there, there is no wait); index: enum st_trace_why; arg: operation */
    ST_TRACE_CHECK = 6,       /* own arrays are looked up; arg: their bytes */
    ST_TRACE_MAP = 7,         /* peer: whose pages; index: pages; arg: bytes.  Own: an allocation.  Of the registrar: ahead of
                               * use, arg: ns since they were logged.  Else late, on first use */
    ST_TRACE_COPY = 8,        /* COPY, REDUCE, ACCUMULATE: index: ST_TRACE_UNIT; arg: bytes of each operand; peer: whose memory */
    ST_TRACE_REDUCE = 9,
    ST_TRACE_ACCUMULATE = 10,
    ST_TRACE_FLAG_SET = 11,   /* arg: ST_TRACE_FLAG, index: the group's id, its lower half; or arg: address, index 0 */
    ST_TRACE_FLAG_WAIT = 12,  /* the same; peer: who raises it */
    ST_TRACE_SUBMIT = 13,     /* peer: whose ring; index: ring; arg: descriptors */
    ST_TRACE_DOORBELL = 14,   /* the same */
    ST_TRACE_DMA = 15,        /* core: enum st_sdma_type; index: ring; arg: bytes, of flags and gates their address; peer: whose memory */
    ST_TRACE_NOTIFY = 16,     /* arg: the event.  Of the DMA thread: it happens, index: ring.  Else: was waited for */
    ST_TRACE_SEND = 17,       /* peer; arg: bytes; index: the group's id, its lower half */
    ST_TRACE_RECV = 18,
    ST_TRACE_MAILBOX = 19,    /* as COPY, out of a mailbox or line; peer NOBODY: into this die's own */
    ST_TRACE_SAMPLE = 20,
    ST_TRACE_IDLE = 21,       /* nothing to do */
    ST_TRACE_KINDS = 22
};

enum st_trace_why {
    ST_TRACE_ARRIVAL = 0,    /* of all members */
    ST_TRACE_EXECUTION = 1,
    ST_TRACE_COMPLETION = 2, /* all members no longer touch each other's buffers */
    ST_TRACE_POSTS = 3,      /* of a round of MoE */
    ST_TRACE_DRAIN = 4,      /* a round has been read */
    ST_TRACE_WORK = 5,       /* an asynchronous operation of this die */
    ST_TRACE_STREAM = 6,
    ST_TRACE_MESSAGE = 7,    /* a sender, or a receiver */
    ST_TRACE_LOCK = 8        /* another thread of this die that uses the group */
};

/* What a slice's thread is. */
enum st_trace_role {
    ST_TRACE_NO_ROLE = 0,
    ST_TRACE_CALLER = 1,
    ST_TRACE_CORE = 2,      /* of the crew; index: its first core */
    ST_TRACE_WORKER = 3,    /* runs a group's asynchronous collectives */
    ST_TRACE_TRANSFERS = 4, /* drives a group's messages */
    ST_TRACE_ENGINE = 5,    /* the DMA thread */
    ST_TRACE_REGISTRAR = 6,
    ST_TRACE_OTHER = 7,
    ST_TRACE_ROLES = 8
};

struct st_trace_event {
    uint64_t begin;
    uint64_t end;
    uint64_t what; /* ST_TRACE_WHAT */
    uint64_t arg;
};
_Static_assert(sizeof(struct st_trace_event) == 32, "abi");

/* [63:32] index  [31:16] peer's world rank  [15:8] core  [7:0] enum st_trace_kind */
#define ST_TRACE_WHAT(kind, core, peer, index)                                             \
    ((uint64_t)(kind) | (uint64_t)((core) & 0xffu) << 8 | (uint64_t)((peer) & 0xffffu) << 16 | \
     (uint64_t)(uint32_t)(index) << 32)

/* Of units: their number in the plan, and how many of their operands are in other dies' memory (255: or more). */
#define ST_TRACE_UNIT(unit, remote) \
    ((uint32_t)((unit) & 0xffffffu) | (uint32_t)((remote) < 255 ? (remote) : 255) << 24)

/* Of a plan's flags: the operation, and the number among the member's flags. */
#define ST_TRACE_FLAG(number, flag) ((uint64_t)(number) << 16 | (uint64_t)((flag) & 0xffff))

struct st_trace_slice {
    uint64_t head; /* events ever written; the commit word */
    uint64_t from; /* of them, those that are not shown: cleared, or of another thread before */
    uint64_t lost; /* that were not written */
    uint64_t lost_from;
    uint32_t tid;
    uint32_t role; /* enum st_trace_role; 0: nobody has been here */
    uint32_t index;
    uint32_t life; /* which process of the die */
    uint8_t pad[16];
};
_Static_assert(sizeof(struct st_trace_slice) == 64, "abi");

struct st_trace {
    uint32_t names;      /* there are; the commit word */
    uint32_t names_lost;
    uint32_t names_used; /* bytes of the names' part: of each name its length in 2 bytes, then UTF-8 */
    uint8_t pad[52];
    struct st_trace_slice slices[ST_TRACE_SLICES];
};
_Static_assert(offsetof(struct st_trace, slices) == 64, "abi");
_Static_assert(sizeof(struct st_trace) <= 4096, "abi");

#define ST_TRACE_NAMES_AT 4096ull
#define ST_TRACE_EVENTS_AT (ST_TRACE_NAMES_AT + ST_TRACE_NAMES)

static inline uint64_t st_trace_bytes(uint64_t events)
{
    return ST_TRACE_EVENTS_AT + ST_TRACE_SLICES * ((events * sizeof(struct st_trace_event) + 4095) & ~4095ull);
}

#endif
