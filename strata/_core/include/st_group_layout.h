/* Where things lie in a group's memory. */
#ifndef ST_GROUP_LAYOUT_H
#define ST_GROUP_LAYOUT_H

#include "st_abi.h"

static inline uint64_t st_group_ranks_off(void) { return sizeof(struct st_group_header); }

static inline uint64_t st_group_arrivals_off(uint64_t n)
{
    return (st_group_ranks_off() + 4 * n + 127) / 128 * 128;
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

#endif
