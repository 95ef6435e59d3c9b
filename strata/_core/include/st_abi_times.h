/* The part of st_abi.h that is about virtual times; include that. */
#ifndef ST_ABI_TIMES_H
#define ST_ABI_TIMES_H

#include <stddef.h>
#include <stdint.h>

/* ---- virtual times: what a die tells its peers of when it came to operations ----
 * In the die's own HBM: a header, then for each die of the job a lane: a line that the
 * reader writes, and a ring of `depth` records that the owner writes. */

struct st_times {
    uint64_t magic;
    uint32_t ndies;
    uint32_t depth; /* records of a lane, a power of two */
    uint8_t pad[48];
};
_Static_assert(sizeof(struct st_times) == 64, "abi");

struct st_times_lane {
    uint64_t taken; /* records that the reader has taken out */
    uint8_t pad[56];
};
_Static_assert(sizeof(struct st_times_lane) == 64, "abi");

struct st_times_record {
    uint64_t seq;     /* index + 1; the commit word */
    uint64_t channel; /* digest of group, kind and tag */
    uint64_t number;  /* of the operation in its channel */
    int64_t begin_ps; /* when the die came to it */
    uint64_t way;     /* cores, path, partition, in place: strata/clock/ways.py */
    uint64_t pad[3];
};
_Static_assert(sizeof(struct st_times_record) == 64, "abi");

#endif
