from strata._core.collective cimport Collectives
from strata._core.group cimport st_request
from strata._core.work cimport Work


cdef class TimedWork(Work):
    """A Work that tells when somebody has waited for it."""
    cdef object told             # an Item of strata.clock, or of strata.checking


cdef class Clocked(Collectives):
    """Operations of a die that has a virtual clock, or is checked.  Other groups are not of this class, so that they
    pay nothing for it."""
    cdef public object track     # Track of the group, of strata.clock or strata.checking
    cdef object next             # Item of the work that is made next

    cdef object tell(self, st_request *r, object handle, object stream, bint handed, object src, object out)
