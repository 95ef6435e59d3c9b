/* Flags of what has failed: whoever waits for more than they had come to hears of it. */
#ifndef ST_POISON_H
#define ST_POISON_H

#include "st_abi_sdma.h"
#include "st_atomic.h"
#include "st_status.h"

/* What a flag that holds `old` holds when it has been poisoned.  The value that it had come to stays: whoever waits for
 * no more than that has what it needs, however late it looks. */
static inline uint64_t st_flag_poisoned(uint64_t old, int status)
{
    uint64_t reached = old & ST_SDMA_POISON ? old >> 8 & ST_SDMA_REACHED : old;

    return ST_SDMA_POISON | (reached < ST_SDMA_REACHED ? reached : ST_SDMA_REACHED) << 8 | (uint64_t)status;
}

/* The status that a flag was poisoned with. */
static inline int st_flag_status(uint64_t value)
{
    return st_status_of(value & 0xff);
}

/* Has a flag that holds `now` come to a value?  ST_AGAIN: not yet; of a poisoned one that had not, its status. */
static inline int st_flag_look(uint64_t now, uint64_t value)
{
    if (!(now & ST_SDMA_POISON) || value & ST_SDMA_POISON)
        return now >= value ? ST_OK : ST_AGAIN;
    return (now >> 8 & ST_SDMA_REACHED) >= value ? ST_OK : st_flag_status(now);
}

/* Poisons a flag. */
static inline void st_flag_poison(uint64_t *flag, int status)
{
    uint64_t old;

    do
        old = st_load_acquire_64(flag); /* pairs with st_engine_flag */
    while (!st_cas_acq_rel_64(flag, old, st_flag_poisoned(old, status))); /* pairs with st_flag_look's callers */
    st_fence_seqcst(); /* before the look at sleepers */
}

#endif
