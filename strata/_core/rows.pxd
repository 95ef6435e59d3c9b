from libc.stdint cimport uint32_t, uint64_t

from strata._core.group cimport CoreGroup, st_group
from strata._core.kernels cimport st_weigh_fn
from strata._core.planned cimport PlanHandle, st_plan


cdef extern from "st_rows.h" nogil:
    uint32_t ST_ROWS_COLUMNS

    struct st_column:
        uint32_t row
        uint32_t dtype
        const uint64_t *src
        const uint64_t *limit
        unsigned char *out
        uint64_t out_bytes
        const void *bias[2]
        const float *weights

    struct st_rows:
        const st_column *columns
        uint32_t ncolumns
        uint32_t nt
        st_weigh_fn *weigh

    int st_rows_check(const st_plan *p, const st_rows *r)


cdef extern from "st_crew.h" nogil:
    int st_exec_rows(st_group *g, const st_plan *p, const st_rows *rows)


cdef class Columns:
    """The columns of one run, as C takes them, and what keeps their arrays."""
    cdef st_column c[8]
    cdef st_rows rows
    cdef list kept

    cdef int fill(self, CoreGroup group, PlanHandle handle, object columns) except -1
    cdef int add(self, CoreGroup group, object column, uint64_t rows, uint64_t total) except -1
    cdef object failed(self, int rc, CoreGroup group)
