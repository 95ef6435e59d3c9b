/* Dies that are processes, and really map: of a job whose object is `fd`. */
#ifndef PROCESSES_H
#define PROCESSES_H

#include "dies.h"

static inline void await(const uint64_t *word, uint64_t least)
{
    while (st_load_acquire_64(word) < least)
        sched_yield();
}

/* This process becomes a die, or (`again`) takes the place of one that has died. */
static inline struct st_ctx *enter_as(int fd, uint32_t rank, int again)
{
    struct st_ctx *c = calloc(1, sizeof *c);
    uint32_t missing;

    CHECK(c);
    CHECK_IS(st_space_map(c, fd), ST_OK);
    CHECK_IS(st_space_private(c), ST_OK);
    c->wait = (struct st_wait_policy){.sleep_ns = 1000000, .poll_ns = 2000000};
    if (again)
        c->quarantine_ns = 5000000000ull;
    CHECK_IS(st_space_join_as(c, rank, again), ST_OK);
    CHECK_IS(st_space_agree(c, 60000000000ull, &missing), ST_OK);
    return c;
}

static inline struct st_ctx *enter(int fd, uint32_t rank) { return enter_as(fd, rank, 0); }

#endif
