/* A C test of which the stores are late: included before its first line by ctest.py --mode weak.
 *
 * ST_WEAK_SEED is where the dice come from (drawn and printed if it is not there), ST_WEAK_BREAK a function of the core
 * of which the memory orders are taken out.
 */
#ifndef WEAK_H
#define WEAK_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "st_hooks.h"

/* The tests' own synchronisation. */
#define pthread_barrier_wait(b) (st_hook_drain(), (pthread_barrier_wait)(b))

static __attribute__((constructor)) void weak_begin(void)
{
    const char *given = getenv("ST_WEAK_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 2654435761u + (uint64_t)getpid();

    seed = seed ? seed : 1;
    printf("weak order: seed %llu\n", (unsigned long long)seed);
    st_weak_begin(seed, 0, getenv("ST_WEAK_BREAK"));
}

#endif
