from libc.stdint cimport uint32_t, uint64_t


cdef extern from "st_plan.h" nogil:
    struct st_unit:
        pass

    struct st_operand:
        pass


cdef extern from "st_exec_plan.h" nogil:
    struct st_plan:
        const st_unit *units
        const st_operand *operands
        uint64_t nunits
        uint64_t noperands
        const uint64_t *buffer_bytes
        const uint64_t *rows
        uint64_t nrows
        const uint32_t *core_begin
        uint64_t mail_bytes
        uint64_t staged_bytes
        uint32_t cores
        uint32_t nflags
        uint32_t max_operands
        uint32_t needs_done
        uint32_t nt
        uint32_t mailbox
        uint32_t by_rows
        uint32_t *posts
        uint32_t *left
        uint64_t *next

    uint32_t ST_GROUP_FLAGS
    int st_plan_check(st_plan *p, uint32_t n)


cdef class PlanHandle:
    """A plan, checked, as the C executor takes it."""
    cdef st_plan c
    cdef readonly object plan
    cdef object arrays
    cdef readonly uint64_t digest      # of the algorithm, 15 bits, for the fingerprint
    cdef readonly bint exposes_out     # peers touch the members' output arrays
    cdef readonly uint32_t flags       # of a member
    cdef readonly uint64_t scratch     # bytes that this member lends to the operation
    cdef readonly tuple shape          # members, buffers of each
    cdef readonly bint sdma            # the DMA thread carries it out, if this member's arrays are in the fabric;
    cdef public bint insists           # and if they are not, copies that are
    cdef readonly uint64_t listed      # operands in the lists of its reductions
