/* The part of st_abi.h that is about messages; include that. */
#ifndef ST_ABI_P2P_H
#define ST_ABI_P2P_H

#include <stddef.h>
#include <stdint.h>

/* ---- point to point: one channel per ordered pair, made at first use ---------
 * Lives in the sender's HBM.  The sender writes slots, the receiver writes
 * tail and reply; both write ack, by compare-and-swap. */

#define ST_CHANNEL_SLOTS 32u
#define ST_CHANNEL_REPLIES 128u /* large messages on their way at a time */
#define ST_EAGER_BYTES 4096u

enum st_message_kind { ST_MSG_EAGER = 1, ST_MSG_RENDEZVOUS = 2 };

struct st_message {
    uint64_t seq; /* index + 1; the commit word */
    uint64_t desc;
    uint64_t count;
    uint64_t bytes;
    uint64_t va; /* rendezvous: where the bytes are */
    int64_t tag;
    uint32_t kind;
    uint32_t reply; /* rendezvous: which reply is this message's */
    uint64_t pad;
};
_Static_assert(sizeof(struct st_message) == 64, "abi");

/* Low byte of an ack; the rest is the message's seq.  A reply is free when its
 * ack is 0, cancelled or collected. */
enum st_ack {
    ST_ACK_POSTED = 0,
    ST_ACK_CLAIMED = 1,
    ST_ACK_DONE = 2,
    ST_ACK_REFUSED = 3, /* the receiver asked for something else */
    ST_ACK_CANCELLED = 4,
    ST_ACK_FAILED = 5, /* the receiver could not reach the bytes */
    ST_ACK_COLLECTED = 6 /* the sender has read the outcome */
};

struct st_reply {
    uint64_t ack;
    uint64_t pad;
    uint64_t desc; /* what the receiver of a refused message asked for */
    uint64_t count;
};
_Static_assert(sizeof(struct st_reply) == 32, "abi");

struct st_channel {
    uint64_t magic; /* the sender's, once the rest is ready */
    uint64_t pad0;
    uint64_t tail; /* messages the receiver has taken out of the slots */
    uint8_t pad1[40];
    struct st_message slot[ST_CHANNEL_SLOTS];
    struct st_reply reply[ST_CHANNEL_REPLIES];
    uint8_t eager[ST_CHANNEL_SLOTS][ST_EAGER_BYTES];
};
_Static_assert(offsetof(struct st_channel, slot) == 64, "abi");
_Static_assert(offsetof(struct st_channel, reply) == 64 + 64 * 32, "abi");
_Static_assert(offsetof(struct st_channel, eager) == 64 + 64 * 32 + 32 * 128, "abi");

/* ---- one to all: the cast ring of a member, made when it first binds a broadcast ------
 * Lives in the member's HBM.  It writes slots; each of the others writes its line of `taken`. */

#define ST_CAST_SLOTS 16u
#define ST_CAST_BYTES 65536u
#define ST_CAST_INLINE 32u

struct st_cast_slot {
    uint64_t seq; /* index + 1; the commit word */
    uint64_t desc;
    uint64_t count;
    uint32_t bytes;
    uint32_t number; /* of the group's casts, whoever's, by the root's count: readers have the same, or other orders */
    uint8_t data[ST_CAST_INLINE]; /* what fits here is nowhere else */
};
_Static_assert(sizeof(struct st_cast_slot) == 64, "abi");

struct st_cast_taken {
    uint64_t count; /* slots that the reader has done with */
    uint8_t pad[56];
};

struct st_cast {
    uint64_t magic; /* once the rest is ready */
    uint32_t nmembers;
    uint8_t pad[52];
    struct st_cast_slot slot[ST_CAST_SLOTS];
    uint8_t data[ST_CAST_SLOTS][ST_CAST_BYTES];
    struct st_cast_taken taken[]; /* [nmembers] */
};
_Static_assert(offsetof(struct st_cast, slot) == 64, "abi");
_Static_assert(offsetof(struct st_cast, data) == 64 + 64 * ST_CAST_SLOTS, "abi");
_Static_assert(sizeof(struct st_cast) == 64 + ST_CAST_SLOTS * (64 + ST_CAST_BYTES), "abi");

#endif
