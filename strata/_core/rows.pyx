"""Plans of units that move rows: what MoE dispatch and combine run.  st_rows.h says what they do."""

cimport numpy as cnp
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from collections import namedtuple

import numpy as np

from strata._core.abi cimport ST_EINVAL, ST_EREG, ST_EUNSUPPORTED, ST_OK, st_ctx, st_ensure_mapped
from strata._core.array cimport Array, look
from strata._core.kernels cimport weigh_fn

from strata import errors

cnp.import_array()


cdef extern from "st_ready.h" nogil:
    int st_ensure_own(st_ctx *ctx, const void *p, uint64_t bytes, int writes)

cdef extern from "st_plan.h":
    enum:
        ST_UNIT_COMBINE


# One array of each member, and what becomes of its rows here.  Rows of a plan have the bytes of all columns' together.
#   src      u64 (members,): address of each member's array;  limit: its length in bytes
#   out      (rows, ...): C-contiguous, of this die; its trailing shape and dtype are those of the members' rows
#   bias     of sums: arrays like out, or None, that are added first
#   weights  of sums: f32 (rows, entries of a row), in the order of the entries; None: each is 1
Column = namedtuple("Column", "src limit out bias weights", defaults=((None, None), None), module=__name__)


def rows_handle(plan, uint32_t members, uint32_t ndies=0):
    """A plan of units of rows, checked, as run_rows() takes it; one run at a time.  ``ndies``: as of PlanHandle."""
    return PlanHandle(plan, members, 0, False, ndies)


cdef class Columns:

    def __cinit__(self):
        memset(self.c, 0, sizeof(self.c))
        self.kept = []

    cdef int fill(self, CoreGroup group, PlanHandle handle, object columns) except -1:
        cdef uint64_t rows = 0, total = 0
        cdef int rc
        if not 0 < len(columns) <= <int>ST_ROWS_COLUMNS:
            raise errors.InvalidArgument(f"{len(columns)} columns: 1 to {ST_ROWS_COLUMNS} are possible")
        if handle.shape[0] != group.size:
            raise errors.InvalidArgument(f"a plan for {handle.shape[0]} members in a group of {group.size}")
        units = handle.plan.units
        totals = np.unique(units["total"][units["kind"] == ST_UNIT_COMBINE])
        if totals.size > 1:
            raise errors.InvalidArgument(f"sums of {totals.tolist()} entries in one plan: one number is expected, "
                                         "since weights lie by rows")
        total = totals[0] if totals.size else 0
        for k, column in enumerate(columns):
            if k == 0:
                rows = len(column.out)
            self.add(group, column, rows, total)
            self.rows.ncolumns = k + 1
        self.rows.columns = self.c
        self.rows.nt = handle.c.nt
        self.rows.weigh = weigh_fn()
        rc = st_rows_check(&handle.c, &self.rows)
        if rc == ST_EUNSUPPORTED:
            raise errors.UnsupportedType("sums are of float16, bfloat16, float32 and float64, not of "
                                         + ", ".join(str(c.out.dtype) for c in columns))
        if rc != ST_OK:
            have = ", ".join(str(self.c[k].row) for k in range(len(columns)))
            raise errors.InvalidArgument(f"columns of {have} bytes a row do not go with the plan: its units must all "
                                         f"move rows, of {int(units['row'].max(initial=0))} bytes, and use no flags")
        return 0

    cdef int add(self, CoreGroup group, object column, uint64_t rows, uint64_t total) except -1:
        cdef st_column *c = &self.c[self.rows.ncolumns]
        cdef Array a, b
        cdef cnp.ndarray src = np.ascontiguousarray(column.src, np.uint64)
        cdef cnp.ndarray limit = np.ascontiguousarray(column.limit, np.uint64)
        cdef uint64_t row
        cdef int k
        look(column.out, &a)
        if (<object>src).shape != (group.size,) or (<object>limit).shape != (group.size,):
            raise errors.InvalidArgument(f"src {(<object>src).shape}, limit {(<object>limit).shape}: one of each of "
                                         f"{group.size} members is expected")
        if not a.contiguous or not a.writeable or column.out.ndim < 1 or <uint64_t>len(column.out) != rows:
            raise errors.InvalidArgument(f"out of shape {column.out.shape}: contiguous arrays that can be written, of "
                                         f"{rows} rows, are expected")
        row = a.itemsize
        for size in column.out.shape[1:]:
            row *= size
        if not 0 < row < 1 << 32:
            raise errors.InvalidArgument(f"rows of {row} bytes")
        c.row, c.dtype = row, a.dtype
        c.src = <const uint64_t *>cnp.PyArray_DATA(src)
        c.limit = <const uint64_t *>cnp.PyArray_DATA(limit)
        c.out, c.out_bytes = <unsigned char *>a.data, a.nbytes
        for k, bias in enumerate(column.bias):
            if bias is None:
                continue
            look(bias, &b)
            if bias.shape != column.out.shape or b.dtype != a.dtype or not b.contiguous:
                raise errors.InvalidArgument(f"a bias of shape {bias.shape} and {bias.dtype}: a contiguous one of "
                                             f"{column.out.shape} and {column.out.dtype} is expected")
            c.bias[k] = b.data
        if column.weights is not None:
            look(column.weights, &b)
            if column.weights.shape != (rows, total) or column.weights.dtype != np.float32 or not b.contiguous:
                raise errors.InvalidArgument(f"weights of shape {column.weights.shape} and {column.weights.dtype}: "
                                             f"contiguous ones of {(rows, total)} and float32 are expected")
            c.weights = <const float *>b.data
        self.kept.append((src, limit, column))
        if st_ensure_own(group.g.ctx, a.data, a.nbytes, 1) != ST_OK:
            raise errors.from_status(ST_EREG, "the output is fabric memory that this die may not write to")
        return 0

    cdef object failed(self, int rc, CoreGroup group):
        """Raises the error of a run."""
        cdef uint32_t j, k
        if rc != ST_EREG:
            raise errors.from_status(rc, "a plan of rows does not go with its columns" if rc == ST_EINVAL else None,
                                     group=group.name, operation="moe")
        bad = [j for j in range(group.g.n) for k in range(self.rows.ncolumns)
               if j != group.g.me
               and st_ensure_mapped(group.g.ctx, self.c[k].src[j], self.c[k].limit[j], 0) != ST_OK]
        ranks = sorted({group.ranks[j] for j in bad})
        what = (f"the rows of {', '.join(f'rank {r}' for r in ranks)} cannot be read: they were given back, or never "
                "allocated" if ranks else "a plan reads or writes rows beyond an array's end")
        raise errors.from_status(rc, what, ranks=ranks, group=group.name, operation="moe")


def run_rows(CoreGroup group, PlanHandle handle, columns):
    """Runs a plan of rows on this die's cores.  ``columns``: Column each.  Waits for nobody.

    RegistrationError: rows cannot be read; ``ranks`` whose.
    """
    cdef Columns c = Columns()
    cdef int rc
    group.check_here()
    c.fill(group, handle, columns)
    with nogil:
        rc = st_exec_rows(&group.g, &handle.c, &c.rows)
    if rc != ST_OK:
        c.failed(rc, group)
