from libc.stdint cimport uint64_t

from strata._core.engine cimport Engine
from strata._core.group cimport st_item, st_progress
from strata._core.sdma cimport Ring


cdef class Progress:
    """The items of a stream, up to its first failure: how many there are, and what is kept of those in progress."""
    cdef st_progress *c
    cdef readonly Engine engine
    cdef readonly str name        # of the stream
    cdef readonly uint64_t issued
    cdef readonly uint64_t failed  # number of the item that failed first; 0: none is known
    cdef readonly object error    # and its error
    cdef public bint raised       # somebody has got it
    cdef public bint over         # the job ends: what is in progress has no first failure
    cdef readonly bint torn       # an item did not come into the ring as a whole: nothing is carried out any more
    cdef list free                # addresses of lines in no use
    cdef object entries           # (number, Work or Submission, Progress that it waits for or None), oldest first

    cdef int judge(self, uint64_t number, object error, object other) except -1


cdef class CoreStream:
    """Base of Stream: a ring, a flag, and the order of the items."""
    cdef readonly Ring ring       # None: closed
    cdef readonly Progress progress
    cdef readonly object lock
    cdef object __weakref__

    cdef int begin(self, st_item *item) except -1
    cdef int end(self, object work) except -1


cdef object current()
