"""The hooks that the checked core calls, and how they are set."""

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
