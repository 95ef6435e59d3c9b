from strata._core.front cimport Front


cdef class Collectives(Front):
    cdef int check_root(self, object root, const char *what) except -1
