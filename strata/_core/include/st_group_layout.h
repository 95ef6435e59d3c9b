/* Where things lie in a group's memory. */
#ifndef ST_GROUP_LAYOUT_H
#define ST_GROUP_LAYOUT_H

#include "st_abi.h"

static inline uint64_t st_group_ranks_off(void) { return sizeof(struct st_group_header); }

/* Incarnations of the members when the group was made. */
static inline uint64_t st_group_lives_off(uint64_t n) { return st_group_ranks_off() + 4 * n; }

static inline uint64_t st_group_arrivals_off(uint64_t n)
{
    return (st_group_lives_off(n) + 4 * n + 127) / 128 * 128;
}

static inline uint64_t st_group_members_off(uint64_t n)
{
    return st_group_arrivals_off(n) + 2 * n * sizeof(struct st_arrival);
}

static inline uint64_t st_group_flags_off(uint64_t n)
{
    return st_group_members_off(n) + n * sizeof(struct st_member);
}

static inline uint64_t st_group_channels_off(uint64_t n)
{
    return st_group_flags_off(n) + n * ST_GROUP_FLAGS * 8;
}

static inline uint64_t st_group_mailboxes_off(uint64_t n)
{
    return (st_group_channels_off(n) + n * n * 8 + 127) / 128 * 128;
}

static inline uint64_t st_group_bytes(uint64_t n, uint64_t mailbox_bytes)
{
    return st_group_mailboxes_off(n) + n * 2 * mailbox_bytes;
}

/* Does a payload travel by mailbox?  That saves the second synchronisation and
 * costs copies: the payload into the mailbox, and for a reduction that every
 * member does for itself n - 1 more readings (`extra` in all).  Measured on two
 * cores, a synchronisation is worth about 1 KiB of such copies per member. */
static inline int st_mailbox_fits(uint64_t nbytes, uint64_t extra, uint32_t n, uint64_t mailbox_bytes)
{
    uint64_t worth = (uint64_t)n * 1024 < mailbox_bytes ? (uint64_t)n * 1024 : mailbox_bytes;

    return nbytes <= mailbox_bytes && nbytes * extra <= worth;
}

#endif
