"""The hooks that the checked core calls, and how they are set."""

import os

from libc.stdint cimport uint32_t, uint64_t


cdef extern from "st_hooks.h" nogil:
    enum: ST_FP_COUNT
    enum: ST_FAULT_NOTHING, ST_FAULT_KILL, ST_FAULT_STOP, ST_FAULT_SLEEP
    struct st_fault_plan:
        uint32_t point
        uint32_t action
        uint64_t nth
        uint64_t sleep_ns
        uint64_t *reached
        uint64_t since
    st_fault_plan plan "st_armed"
    const char *const *st_fault_names
    enum: ST_WEAK_COUNTS
    void st_weak_begin(uint64_t seed, uint32_t rank, const char *broken)
    void st_weak_counted(uint64_t *counts)
    void st_hook_drain()


POINTS = tuple(st_fault_names[i].decode() for i in range(ST_FP_COUNT))
ACTIONS = ("nothing", "kill", "stop", "sleep")


def arm(str point, uint64_t nth, str action, uint64_t sleep_ns=0):
    """From now on: what happens when a fault point (None: any) is reached for the nth time.

    ValueError for a name that there is not.
    """
    cdef uint32_t number = ST_FP_COUNT if point is None else POINTS.index(point)
    cdef uint32_t what = ACTIONS.index(action)
    plan.action = ST_FAULT_NOTHING
    plan.point = number
    plan.nth = nth
    plan.sleep_ns = sleep_ns
    plan.since = 0
    plan.action = what


def reached():
    """How often each fault point has been reached since the process began, by name."""
    return {POINTS[i]: plan.reached[i] for i in range(ST_FP_COUNT)}


# ---- weak order: the rules are in st_weak_buffer.h ----------------------------------------

_WEAK_COUNTS = ("late", "overtook", "stale", "pieces", "turns", "pauses")
cdef bytes _broken = b""  # the C core keeps its address


def weaken(uint64_t seed, uint32_t rank, str broken=""):
    """From now on stores are late and loads early, by dice that seed (not 0) and rank begin.

    ``broken``: a function of the C core of which the memory orders are taken out ("": none).
    """
    global _broken
    st_weak_begin(0, 0, NULL)
    _broken = broken.encode()
    st_weak_begin(seed, rank, <const char *>_broken if _broken else NULL)


def weak_counts():
    """What has happened in this process, by name.

    Late stores, and those that overtook earlier ones; loads of an old value; pieces of large copies; draws for
    the DMA thread's turns; pauses.
    """
    cdef uint64_t counts[ST_WEAK_COUNTS]
    st_weak_counted(counts)
    return {name: counts[i] for i, name in enumerate(_WEAK_COUNTS)}


def drain():
    """All that this thread has stored takes effect."""
    st_hook_drain()


def _begin():
    """What the environment asks for, before the die knows its rank; config.py says what is wrong with it."""
    seed = os.environ.get("STRATA_WEAK_ORDER", "").strip()
    rank = os.environ.get("STRATA_RANK", "").strip()
    if seed.isdigit() and 0 < int(seed) < 1 << 63:
        weaken(int(seed), int(rank) if rank.isdigit() and int(rank) < 1 << 20 else 0,
               os.environ.get("STRATA_WEAK_BREAK", "").strip())


_begin()
