from strata._core.transfer cimport Draft


cdef class Persistent(Draft):
    """What bind() returns."""
    cdef void *call           # its vectorcallfunc
    cdef bint busy            # a call of it is in progress, and has the request
    cdef bint over            # it was let go of
    cdef object operation     # its name

    cdef int check(self) except -1
    cdef int changed(self, object array, bint locked) except -1
    cdef object run(self)
    cdef object told(self, bint later)
    cdef object run_again(self, bint async_op)


cdef class Operation:
    """An operation, as the class of a group has it."""
    cdef void *call           # its vectorcallfunc
    cdef object function      # what is called, with the group first
    cdef Py_ssize_t at        # of that function's own vectorcallfunc
    cdef object owner         # class that has it, or None
    cdef object name


cdef class BoundOperation:
    """An operation of a group."""
    cdef void *call           # its vectorcallfunc
    cdef Operation operation
    cdef object group
