/* Status codes of the C core.  0 is success; every function that can fail
 * returns one of these.  strata/errors.py maps each to an exception class. */
#ifndef ST_STATUS_H
#define ST_STATUS_H

#include <stdint.h>

enum st_status {
    ST_OK = 0,
    ST_EINVAL = 1,       /* an argument is out of range */
    ST_ENOMEM = 2,       /* the UB space (HBM share, /dev/shm, cgroup) is full */
    ST_ESYS = 3,         /* a system call failed; errno holds why */
    ST_EDEAD = 4,        /* a peer died */
    ST_ETIMEOUT = 5,     /* a deadline passed */
    ST_EMISMATCH = 6,    /* members asked for different operations */
    ST_EBROKEN = 7,      /* the group failed earlier */
    ST_EINTR = 8,        /* a Python signal handler raised */
    ST_EREG = 9,         /* an address is not mapped, stale, or out of bounds */
    ST_ENOJOB = 10,      /* not attached, or a forked child */
    ST_EABI = 11,        /* shared memory does not hold what it should */
    ST_ECORRUPT = 12,    /* a value read from shared memory is out of bounds */
    ST_EUNSUPPORTED = 13,/* dtype and operator do not go together */
    ST_AGAIN = 14,       /* not done yet; call again */
    ST_EMAPS = 15,       /* the kernel refuses another mapping */
    ST_EFILE = 16,       /* a file that a peer has registered cannot be opened here */
    ST_ECANCELED = 17,   /* not executed: given up, or what it depends on has failed */
    ST_EDEADLOCK = 18,   /* gates of rings wait for each other */
    ST_EFULL = 19,       /* a ring is full, or there are as many as there may be */
    ST_NSTATUS = 20
};

/* A status that was read from shared memory: of what failed, so ST_OK is none. */
static inline int st_status_of(uint64_t value)
{
    return value && value < ST_NSTATUS && value != ST_AGAIN && value != ST_EINTR ? (int)value : ST_ECORRUPT;
}

#endif
