from strata._core.casting cimport Casts


cdef class Collectives(Casts):
    cdef int check_root(self, object root, const char *what) except -1
