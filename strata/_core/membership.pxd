from libc.stdint cimport uint32_t, uint64_t

from strata._core.abi cimport st_ctx
from strata._core.space cimport Context


cdef extern from "st_group.h" nogil:
    uint64_t ST_MASK_WORDS

    struct st_base:
        pass

    struct st_p2p:
        pass

    struct st_group:
        st_ctx *ctx
        uint64_t mailbox_bytes
        uint32_t n
        uint32_t me
        uint64_t number
        uint64_t va
        uint64_t id
        const uint32_t *ranks
        const uint32_t *lives
        uint32_t pin
        st_base *bases
        st_p2p *p2p
        void *(*alloc)(size_t)
        void (*release)(void *)

    uint64_t ST_DESC(uint64_t op, uint64_t redop, uint64_t dtype, uint64_t root, uint64_t mode)


cdef class Membership:
    cdef st_group g
    cdef readonly Context context
    cdef readonly tuple ranks
    cdef readonly tuple lives    # incarnations of the members
    cdef readonly str name
    cdef readonly int rank
    cdef readonly int size
    cdef object _memory          # array that keeps own group memory, or None

    cdef int _hold(self, uint64_t va, uint64_t nbytes, uint64_t life) noexcept
