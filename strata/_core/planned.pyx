"""A plan as the C executor takes it."""

cimport numpy as cnp
from libc.stdint cimport uint32_t, uint64_t

import numpy as np

from strata import errors
from strata._core.caches import past_caches

cnp.import_array()

cdef extern from "st_lower.h" nogil:
    uint64_t ST_SDMA_BLOCK
    int ST_OK
    uint64_t st_lower_operands(const st_plan *p, uint64_t block, uint64_t *descriptors)


cdef class PlanHandle:

    def __init__(self, plan, uint32_t nranks, uint64_t mail_bytes, bint mailbox, uint32_t ndies):
        """Checks every index and offset.  ``plan``: strata.plan.Plan of this member.  ``ndies``: of the job, by which
        it is known what stays in caches; 0: all does."""
        units = np.ascontiguousarray(plan.units)
        operands = np.ascontiguousarray(plan.operands)
        sizes = np.ascontiguousarray(plan.buffer_bytes, dtype=np.uint64)
        begin = np.ascontiguousarray(plan.core_begin, dtype=np.uint32)
        if sizes.shape != (nranks, 3):
            raise errors.InvalidArgument(f"plan for {sizes.shape[0]} members in a group of {nranks}")
        if begin.size < 2:
            raise errors.InvalidArgument(f"core_begin has {begin.size} entries; one more than cores is expected, and "
                                         "a plan is on one core at least")
        flags = max(int(units["post_flag"].max(initial=-1)), int(units["wait_flag"].max(initial=-1))) + 1
        if flags > <int>ST_GROUP_FLAGS:
            raise errors.InvalidArgument(f"the plan has {flags} flags, and a member has {ST_GROUP_FLAGS}: "
                                         "use fewer pieces in the pipeline")
        rows = np.zeros(0, np.uint64) if getattr(plan, "rows", None) is None else plan.rows
        rows = np.ascontiguousarray(rows, dtype=np.uint64)
        room = np.zeros((2, flags), np.uint32)
        at = np.zeros(begin.size, np.uint64)
        self.plan = plan
        self.shape = (<object>sizes).shape
        self.digest = plan.digest
        self.exposes_out = plan.exposes_out
        self.scratch = plan.scratch
        self.flags = flags
        self.arrays = (units, operands, sizes, begin, room, at, rows)
        self.c.units = <const st_unit *>cnp.PyArray_DATA(<cnp.ndarray>units)
        self.c.operands = <const st_operand *>cnp.PyArray_DATA(<cnp.ndarray>operands)
        self.c.nunits = units.size
        self.c.noperands = operands.size
        self.c.buffer_bytes = <const uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>sizes)
        self.c.rows = <const uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>rows)
        self.c.nrows = rows.size
        self.c.core_begin = <const uint32_t *>cnp.PyArray_DATA(<cnp.ndarray>begin)
        self.c.cores = begin.size - 1
        self.c.nflags = flags
        self.c.posts = <uint32_t *>cnp.PyArray_DATA(<cnp.ndarray>room)
        self.c.left = self.c.posts + <uint32_t>flags
        self.c.next = <uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>at)
        self.c.mail_bytes = mail_bytes
        self.c.staged_bytes = plan.staged_bytes
        self.c.needs_done = bool(plan.needs_done)
        self.c.mailbox = mailbox
        self.c.nt = past_caches(units, ndies)
        cdef int rc = st_plan_check(&self.c, nranks)
        if rc != ST_OK:
            raise errors.from_status(rc, "a plan has an index or offset out of bounds")
        cdef uint64_t descriptors = 0
        self.sdma = not mailbox and plan.path == "sdma"
        self.listed = st_lower_operands(&self.c, ST_SDMA_BLOCK, &descriptors)
