/* The structs of SDMA in shared memory: descriptors, rings, and what a die's DMA thread sleeps on.
 *
 * A ring is [struct st_ring][depth descriptors], in the HBM of the die whose DMA thread
 * reads it.  Indices are 64 bits wide and never go back; descriptor i lies in slot
 * i & (depth - 1).  `tail` is the doorbell: what lies before it may be read.
 *
 * Descriptors of one ring are executed in order, those of different rings in any.  A
 * *chain* is what one submission puts into a ring: it begins with ST_SDMA_BEGIN.  After a
 * descriptor that fails nothing more of its chain is executed: data is left alone, flags
 * are poisoned, so that whoever waits for them hears of it, and the event is notified with
 * the status.  A poisoned flag has its top bit set, the status in the lowest 8 bits, and
 * between them the value that it had come to. */
#ifndef ST_ABI_SDMA_H
#define ST_ABI_SDMA_H

#include <stddef.h>
#include <stdint.h>

#define ST_SDMA_MAGIC 0x31474e5241445453ull /* "STDARNG1" */
#define ST_SDMA_RINGS 1024u                 /* of a die, at most */
#define ST_SDMA_BLOCK (1u << 20)            /* bytes of a copy, unless the submitter says otherwise */
#define ST_SDMA_MOST (64u << 20)            /* bytes of one descriptor, at most */
#define ST_SDMA_POISON (1ull << 63)
#define ST_SDMA_REACHED (ST_SDMA_POISON / 256 - 1)  /* the greatest value that a poisoned flag can keep */

/* Zero is no type: a zeroed descriptor is an error, not a copy. */
enum st_sdma_type {
    ST_SDMA_COPY = 1,       /* dst = src */
    ST_SDMA_REDUCE = 2,     /* dst = dst op src; with ST_SDMA_LIST see there */
    ST_SDMA_ACCUMULATE = 3, /* the same, by atomic read-modify-write of each element */
    ST_SDMA_FILL = 4,       /* the 8 bytes of value, over and over */
    ST_SDMA_WRITE = 5,      /* flag dst = value */
    ST_SDMA_ADD = 6,        /* flag dst += value, atomically */
    ST_SDMA_COUNT = 7,      /* add 1 to the counter src; when it has come to `bytes`, flag dst = value */
    ST_SDMA_GATE = 8,       /* nothing more of this ring until flag src >= value; `bytes`: timeout in ns, or
                             * 0: the die's, or UINT64_MAX: none */
    ST_SDMA_NOTIFY = 9,     /* the event happens */
    ST_SDMA_NOP = 10,
    ST_SDMA_CALL = 11       /* `bytes` descriptors at src, which are no calls themselves; `value` is added to
                             * the value of those with ST_SDMA_RELATIVE */
};

enum st_sdma_flags {
    ST_SDMA_BEGIN = 1,    /* a chain begins: what failed before is forgotten */
    ST_SDMA_RELATIVE = 2, /* see ST_SDMA_CALL */
    ST_SDMA_NT = 4,       /* non-temporal stores */
    ST_SDMA_WORLD = 8,    /* the flag (src of a gate, else dst) is an offset in the world group's memory */
    ST_SDMA_LIST = 16,    /* of a reduction: src is an array of struct st_sdma_operand, value is
                           * ST_SDMA_OPERANDS: nsrc sources, then ndst targets, each written once, and the
                           * count that a mean is divided by, 0: nsrc.  Operands as in st_plan.h */
    ST_SDMA_SILENT = 32,  /* a flag that stays as it is when the chain has failed */
    ST_SDMA_HOST = 64     /* of a gate: CPUs raise its flag, too, so it is on no cycle of gates (st_cycle.h) */
};

#define ST_SDMA_OPERANDS(nsrc, ndst, total) ((uint64_t)(nsrc) | (uint64_t)(ndst) << 16 | (uint64_t)(total) << 32)
#define ST_SDMA_NSRC(v) ((uint32_t)((v) & 0xffffu))
#define ST_SDMA_NDST(v) ((uint32_t)((v) >> 16 & 0xffffu))
#define ST_SDMA_TOTAL(v) ((uint32_t)((v) >> 32 & 0xffffu))

struct st_descriptor {
    uint64_t commit; /* index + 1 */
    uint8_t type;    /* enum st_sdma_type */
    uint8_t op;      /* enum st_op, of reductions */
    uint8_t dtype;   /* enum st_dtype, of reductions */
    uint8_t flags;   /* enum st_sdma_flags */
    uint32_t event;  /* of the ring's die, that the chain belongs to; 0: none */
    uint64_t src;
    uint64_t dst;
    uint64_t bytes;
    uint64_t value;
    uint32_t src_gen; /* st_sdma_generation of the source and of the target when submitted; */
    uint32_t dst_gen; /* 0: any */
    uint32_t wake;    /* a futex word and its sleepers lie so many 4-byte words before the flag; 0: none */
    uint32_t status;  /* enum st_status, when `head` has passed it */
};
_Static_assert(sizeof(struct st_descriptor) == 64, "abi");
_Static_assert(offsetof(struct st_descriptor, type) == 8, "abi");
_Static_assert(offsetof(struct st_descriptor, event) == 12, "abi");
_Static_assert(offsetof(struct st_descriptor, src) == 16, "abi");
_Static_assert(offsetof(struct st_descriptor, value) == 40, "abi");
_Static_assert(offsetof(struct st_descriptor, src_gen) == 48, "abi");
_Static_assert(offsetof(struct st_descriptor, wake) == 56, "abi");
_Static_assert(offsetof(struct st_descriptor, status) == 60, "abi");

struct st_sdma_operand {
    uint64_t va;
    uint32_t generation; /* as src_gen */
    uint32_t flags;      /* enum st_operand_flags */
};
_Static_assert(sizeof(struct st_sdma_operand) == 16, "abi");

enum st_ring_state { ST_RING_CLOSED = 0, ST_RING_OPEN = 1 };

struct st_ring {
    /* line 0: written by the ring's die */
    uint64_t magic;
    uint64_t opened; /* which opening this is, of all of the die's rings; the commit word, 0: closed */
    uint32_t depth;  /* a power of two */
    uint32_t index;  /* among the die's rings */
    uint8_t pad0[40];
    /* line 1: written by producers */
    uint32_t lock; /* 1 + world rank of the producer that fills slots; 0: nobody */
    uint32_t pad1;
    uint64_t tail;
    uint8_t pad2[48];
    /* line 2: written by the DMA thread */
    uint64_t head;
    uint64_t failed;       /* descriptors that have failed so far */
    uint64_t failed_index; /* the last of them */
    uint64_t called;       /* while the descriptor at head is a call: those of its list that are done */
    uint64_t gated_ns;     /* CLOCK_MONOTONIC when the gate that it is at was found shut; 0: it is at none */
    uint32_t failed_status;
    uint8_t pad3[20];
    /* line 3: producers sleep here for room */
    uint32_t room_word;
    uint32_t room_sleepers;
    uint8_t pad4[56];
};
_Static_assert(offsetof(struct st_ring, lock) == 64, "abi");
_Static_assert(offsetof(struct st_ring, tail) == 72, "abi");
_Static_assert(offsetof(struct st_ring, head) == 128, "abi");
_Static_assert(offsetof(struct st_ring, room_word) == 192, "abi");
_Static_assert(sizeof(struct st_ring) == 256, "abi");

/* A die's rings, in its HBM; its address is in the die table. */
struct st_sdma {
    uint64_t magic;
    uint32_t open; /* it takes descriptors */
    uint32_t top;  /* rings beyond have never been there */
    uint32_t pad0[12];
    uint32_t bell; /* the DMA thread sleeps here */
    uint32_t bell_sleepers;
    uint32_t pad1[14];
    uint64_t pending[ST_SDMA_RINGS / 64]; /* rings that have been rung since it looked */
    uint64_t rings[ST_SDMA_RINGS];        /* addresses; 0: none */
};
_Static_assert(offsetof(struct st_sdma, bell) == 64, "abi");
_Static_assert(offsetof(struct st_sdma, pending) == 128, "abi");
_Static_assert(offsetof(struct st_sdma, rings) == 256, "abi");
_Static_assert(sizeof(struct st_sdma) == 256 + 8 * ST_SDMA_RINGS, "abi");

/* How far a stream has come, in its die's HBM.  `done` is a flag, and `wake_word` the futex before it: descriptors
 * that raise it say wake = ST_PROGRESS_WAKE. */
struct st_progress {
    uint32_t wake_word;
    uint32_t sleepers;
    uint64_t done; /* items of the stream that have ended; poisoned by the first that failed */
    uint8_t pad[48];
};
#define ST_PROGRESS_WAKE 2u /* 4-byte words from wake_word to done */
_Static_assert(offsetof(struct st_progress, done) == 4 * ST_PROGRESS_WAKE, "abi");
_Static_assert(sizeof(struct st_progress) == 64, "abi");

static inline uint64_t st_ring_bytes(uint32_t depth)
{
    return sizeof(struct st_ring) + (uint64_t)depth * sizeof(struct st_descriptor);
}

static inline struct st_descriptor *st_ring_slot(struct st_ring *r, uint32_t depth, uint64_t index)
{
    return (struct st_descriptor *)(void *)(r + 1) + (index & (depth - 1));
}

#endif
