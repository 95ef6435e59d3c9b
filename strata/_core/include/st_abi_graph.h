/* What members of a group tell each other while they replay a graph.
 *
 * Each member has a line for every member in its own memory, which that member writes: a
 * gate on it is a look at own memory, and whoever writes rings the die that waits. */
#ifndef ST_ABI_GRAPH_H
#define ST_ABI_GRAPH_H

#include <stddef.h>
#include <stdint.h>

/* What `phase` grows by in a replay: operation k of the group begins at 2 k + 1 and ends at 2 k + 2. */
#define ST_GRAPH_SPAN (1ull << 20)

struct st_graph_line {
    uint64_t phase;  /* a flag */
    uint64_t closed; /* 1 + the replays that the member has begun, when it begins no more; 0: it may */
    uint64_t pad[6];
};
_Static_assert(offsetof(struct st_graph_line, closed) == 8, "abi");
_Static_assert(sizeof(struct st_graph_line) == 64, "abi");

#endif
