"""What a die keeps of groups and operations that it has let go of, until nobody can use it any more."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from strata._core.abi cimport st_ctx, st_is_die
from strata._core.membership cimport st_group


cdef extern from "st_rendezvous.h" nogil:
    enum:
        ST_LEFT_CLOSED
        ST_LEFT_GONE
    void st_group_leave(st_group *g, uint64_t how)
    int st_group_deserted(st_group *g, uint64_t how)
    void st_rendezvous_forget(st_group *g)
    void st_group_unpin(st_group *g)
    int st_group_writing(st_group *g, uint64_t number, const uint64_t *mask)


cdef extern from "st_flight.h" nogil:
    void st_flight_group_close(st_ctx *ctx, uint64_t id, uint64_t va)


cdef class Closing:
    """The channels that a closed group sends through and, in the leader, the group's memory."""
    cdef st_group g
    cdef object context, memory, channels

    def over(self):
        """Whether they may be freed: nobody looks at them any more."""
        if not self.context.here:
            return False
        if self.memory is not None:
            if not st_group_deserted(&self.g, ST_LEFT_GONE):
                return False
            st_rendezvous_forget(&self.g)
            return True
        if not st_group_deserted(&self.g, ST_LEFT_CLOSED):
            return False
        st_group_leave(&self.g, ST_LEFT_GONE)
        return True

    def __dealloc__(self):
        if self.g.pin and st_is_die(self.g.ctx):
            st_group_unpin(&self.g)
        free(self.g.bases)
        free(self.g.p2p)
        free(<void *>self.g.ranks)


cdef class Late:
    """Arrays that members which did not stop in time may still write to."""
    cdef object group, arrays
    cdef st_group *g
    cdef uint64_t number
    cdef uint64_t mask[16]

    def over(self):
        """Whether the last of those members has stopped, or is dead."""
        return self.group.context.here and not st_group_writing(self.g, self.number, self.mask)


_kept = []
_busy = set()


def leave(size_t group, context, memory, channels):
    """For a group that its die lets go of: a copy of the st_group at this address, whose private
    memory now belongs to the copy, and its arrays are kept for as long as peers need them.  Returns what has both."""
    cdef Closing kept = Closing.__new__(Closing)
    kept.g = (<st_group *>group)[0]
    kept.context, kept.memory, kept.channels = context, memory, channels
    st_flight_group_close(kept.g.ctx, kept.g.id, kept.g.va)
    st_group_leave(&kept.g, ST_LEFT_GONE if memory is None and not channels else ST_LEFT_CLOSED)
    if memory is not None or channels:
        _kept.append(kept)
    return kept


def quarantine(group, size_t g, uint64_t number, bytes mask, arrays):
    """Keeps an operation's arrays from being reused while members in ``mask`` may write to them."""
    cdef Late late = Late.__new__(Late)
    late.group, late.arrays = group, arrays
    late.g, late.number = <st_group *>g, number
    memcpy(late.mask, <const char *>mask, sizeof(late.mask))
    _kept.append(late)


def hold(group):
    """Keeps a group that has asynchronous operations in progress, whoever else does: without it
    they would end with the group, and break it for its other members."""
    _busy.add(group)


def release(group):
    """Undoes hold()."""
    _busy.discard(group)


def sweep():
    """Frees what nobody can use any more."""
    for group in tuple(_busy):
        if not group.pending():
            _busy.discard(group)
    _kept[:] = [kept for kept in _kept if not kept.over()]


def kept():
    """How many groups and operations keep memory."""
    return len(_kept)
