from strata._core.collective cimport Collectives
from strata._core.group cimport st_request
from strata._core.work cimport Work


cdef class TimedWork(Work):
    """A Work whose wait() moves the die's clock."""
    cdef object told             # strata.clock's side of it: an Item


cdef class Clocked(Collectives):
    """Operations of a die that has a virtual clock.  Groups without one are not of this class, so that they
    pay nothing for it."""
    cdef public object track     # strata.clock.track.Track of the group
    cdef object next             # Item of the work that is made next

    cdef object tell(self, st_request *r, object handle, object stream)
