/* The records of a plan, as C sees them: twins of the numpy dtypes in
 * strata/plan/records.py (tests/unit/test_plan_records.py compares every offset).
 *
 * A plan of one die is three arrays: units in per-core order, operands, and
 * core_begin[cores + 1], where core c runs units[core_begin[c]] up to
 * units[core_begin[c + 1]], in that order.  Unit u reads operands
 * [src_first, src_first + nsrc) and writes operands [dst_first, dst_first + ndst),
 * `bytes` bytes at each.
 *
 * Order between units of different cores and dies is made by flags.  Flag f of a
 * member is raised, once in an operation, when all units of that member's plan
 * whose post_flag is f are done; a unit with wait_flag f begins after flag f of
 * member wait_peer (which may be its own) is raised, and sees what those units wrote.
 *
 * A partial operand holds accumulators in place of elements: float32 for smaller
 * floats, 64-bit sums for a mean of integers (two for those of 64 bits: of their low
 * and of their high halves), else the dtype itself; a partial mean is a sum.  `bytes` counts the dtype's bytes all the same: element i of a
 * partial operand is at offset + i * (bytes of an accumulator).
 *
 * Plans are files too: append, never renumber. */
#ifndef ST_PLAN_H
#define ST_PLAN_H

#include <stddef.h>
#include <stdint.h>

#define ST_PLAN_VERSION 2

/* A member's buffers in one operation.  In mailbox mode SRC is the member's mailbox. */
enum st_buf {
    ST_BUF_SRC = 0,
    ST_BUF_OUT = 1,
    ST_BUF_SCRATCH = 2, /* fabric memory that lasts as long as the operation */
    ST_NBUFS = 3
};

/* Zero is no kind: a zeroed record is an error, not a copy. */
enum st_slice_kind {
    ST_SLICE_PULL = 1, /* read the peer's src_buf, write own dst_buf */
    ST_SLICE_PUSH = 2, /* read own src_buf, write the peer's dst_buf */
    ST_SLICE_SYNC = 3  /* no bytes: all that follows waits; post_flag tells that all before it is done */
};

enum st_slice_flags {
    /* The destination is a value on its way to pushes of the same range;
     * a scheduler that fuses them with this slice does not store it. */
    ST_SLICE_TRANSIENT = 1,
    ST_SLICE_ATOMIC = 2, /* dst = dst op src, element by element, whoever else does so at the same time */
    ST_SLICE_PARTIAL_SRC = 4, /* the source is, the destination becomes a partial operand */
    ST_SLICE_PARTIAL_DST = 8
};

enum st_unit_kind {
    ST_UNIT_COPY = 1,  /* nsrc == 1; each destination receives the source's bytes */
    ST_UNIT_REDUCE = 2, /* combine nsrc operands in their order by `op`, write each
                         * destination once; AVG divides by `total` (0: by nsrc) where a
                         * destination is not partial.  A destination may be the very
                         * range of a source, never a shifted one */
    ST_UNIT_SYNC = 3,   /* no operands, no bytes: waits, posts, or both */
    ST_UNIT_ACCUMULATE = 4, /* nsrc == 1; each destination = destination op source, by atomic
                            * read-modify-write of each element; not AVG, nothing partial */
    ST_UNIT_ROWS = 5, /* nsrc == ndst == 1; row i of the destination is the source's row rows[index + i]; the
                       * offsets are where the source's row 0 and the first row written lie */
    ST_UNIT_COMBINE = 6 /* ndst == 1; row i of the destination is the weighted sum, in their order, of the rows that
                         * rows[index + i * total ...] name, `total` entries of which any may be none; operands are
                         * the members read from, once each, at their row 0.  Weights come with the call */
};

/* Entries of a plan's rows: a row number at the source; of ST_UNIT_COMBINE, the operand's number in the unit above it. */
#define ST_ROW_NONE (~0ull)
#define ST_ROW_BITS 32
#define ST_ROW_MOST 64u /* entries of a row of ST_UNIT_COMBINE */

enum st_operand_flags { ST_OPERAND_PARTIAL = 1 };

enum st_tier {
    ST_TIER_LOCAL = 0,
    ST_TIER_SIO = 1,
    ST_TIER_L1 = 2,
    ST_TIER_L2 = 3,
    ST_NTIERS = 4
};

/* One remote transfer as a frontend states it.  For reductions (op != 0) pulls
 * with one destination and step are the operands, in the order of the list. */
struct st_slice {
    int32_t peer; /* member index in the group */
    uint8_t kind; /* enum st_slice_kind */
    uint8_t op;   /* enum st_op; ST_OP_NONE is a copy */
    uint8_t src_buf;
    uint8_t dst_buf;
    uint64_t src; /* byte offsets in the buffers */
    uint64_t dst;
    uint64_t bytes;
    int32_t wait_peer; /* flags, as in st_unit; -1 none */
    int32_t wait_flag;
    int32_t post_flag;
    uint16_t flags; /* enum st_slice_flags */
    uint16_t step;  /* never falls along the list; slices of one step may run in any order */
};

struct st_operand {
    int32_t member; /* whose buffer */
    uint8_t buf;    /* enum st_buf */
    uint8_t flags;  /* enum st_operand_flags */
    uint8_t pad[2]; /* zero */
    uint64_t offset;
};

struct st_unit {
    uint8_t kind; /* enum st_unit_kind */
    uint8_t op;   /* enum st_op; ST_OP_NONE for copies */
    uint8_t dtype; /* enum st_dtype; what a reduction's elements are */
    uint8_t tier; /* enum st_tier, the farthest operand's */
    uint16_t core;
    uint16_t stripe;   /* its place in the order of the die's cores together */
    uint16_t nsrc;
    uint16_t ndst;
    uint32_t src_first; /* indices in the operand array */
    uint32_t dst_first;
    uint32_t flags; /* zero */
    uint64_t bytes; /* per operand; whole elements in a reduction; zero in ST_UNIT_SYNC alone */
    int32_t wait_peer; /* -1: waits for nothing */
    int32_t wait_flag;
    int32_t post_flag; /* -1: posts nothing */
    uint32_t slice; /* the (first) slice it was cut from, for messages */
    uint16_t total; /* operands of the mean, of which some are in partial ones; of ST_UNIT_COMBINE, entries of a row */
    uint16_t step;  /* of its slices */
    uint32_t row;   /* bytes of a row; zero in units without rows, as index is */
    uint64_t index; /* its first entry in the plan's rows */
};

_Static_assert(sizeof(struct st_slice) == 48, "st_slice");
_Static_assert(offsetof(struct st_slice, peer) == 0, "st_slice.peer");
_Static_assert(offsetof(struct st_slice, kind) == 4, "st_slice.kind");
_Static_assert(offsetof(struct st_slice, op) == 5, "st_slice.op");
_Static_assert(offsetof(struct st_slice, src_buf) == 6, "st_slice.src_buf");
_Static_assert(offsetof(struct st_slice, dst_buf) == 7, "st_slice.dst_buf");
_Static_assert(offsetof(struct st_slice, src) == 8, "st_slice.src");
_Static_assert(offsetof(struct st_slice, dst) == 16, "st_slice.dst");
_Static_assert(offsetof(struct st_slice, bytes) == 24, "st_slice.bytes");
_Static_assert(offsetof(struct st_slice, wait_peer) == 32, "st_slice.wait_peer");
_Static_assert(offsetof(struct st_slice, wait_flag) == 36, "st_slice.wait_flag");
_Static_assert(offsetof(struct st_slice, post_flag) == 40, "st_slice.post_flag");
_Static_assert(offsetof(struct st_slice, flags) == 44, "st_slice.flags");
_Static_assert(offsetof(struct st_slice, step) == 46, "st_slice.step");

_Static_assert(sizeof(struct st_operand) == 16, "st_operand");
_Static_assert(offsetof(struct st_operand, member) == 0, "st_operand.member");
_Static_assert(offsetof(struct st_operand, buf) == 4, "st_operand.buf");
_Static_assert(offsetof(struct st_operand, flags) == 5, "st_operand.flags");
_Static_assert(offsetof(struct st_operand, pad) == 6, "st_operand.pad");
_Static_assert(offsetof(struct st_operand, offset) == 8, "st_operand.offset");

_Static_assert(sizeof(struct st_unit) == 64, "st_unit");
_Static_assert(offsetof(struct st_unit, kind) == 0, "st_unit.kind");
_Static_assert(offsetof(struct st_unit, op) == 1, "st_unit.op");
_Static_assert(offsetof(struct st_unit, dtype) == 2, "st_unit.dtype");
_Static_assert(offsetof(struct st_unit, tier) == 3, "st_unit.tier");
_Static_assert(offsetof(struct st_unit, core) == 4, "st_unit.core");
_Static_assert(offsetof(struct st_unit, stripe) == 6, "st_unit.stripe");
_Static_assert(offsetof(struct st_unit, nsrc) == 8, "st_unit.nsrc");
_Static_assert(offsetof(struct st_unit, ndst) == 10, "st_unit.ndst");
_Static_assert(offsetof(struct st_unit, src_first) == 12, "st_unit.src_first");
_Static_assert(offsetof(struct st_unit, dst_first) == 16, "st_unit.dst_first");
_Static_assert(offsetof(struct st_unit, flags) == 20, "st_unit.flags");
_Static_assert(offsetof(struct st_unit, bytes) == 24, "st_unit.bytes");
_Static_assert(offsetof(struct st_unit, wait_peer) == 32, "st_unit.wait_peer");
_Static_assert(offsetof(struct st_unit, wait_flag) == 36, "st_unit.wait_flag");
_Static_assert(offsetof(struct st_unit, post_flag) == 40, "st_unit.post_flag");
_Static_assert(offsetof(struct st_unit, slice) == 44, "st_unit.slice");
_Static_assert(offsetof(struct st_unit, total) == 48, "st_unit.total");
_Static_assert(offsetof(struct st_unit, step) == 50, "st_unit.step");
_Static_assert(offsetof(struct st_unit, row) == 52, "st_unit.row");
_Static_assert(offsetof(struct st_unit, index) == 56, "st_unit.index");

#endif
