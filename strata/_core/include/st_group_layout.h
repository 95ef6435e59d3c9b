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

/* Does a payload travel by mailbox?  Every member reads all of them, so that
 * many members make do with less. */
static inline int st_mailbox_fits(uint64_t nbytes, uint32_t n, uint64_t mailbox_bytes)
{
    return nbytes <= mailbox_bytes && nbytes * n <= (1u << 20);
}

#endif
