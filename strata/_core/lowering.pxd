from libc.stdint cimport uint8_t, uint32_t, uint64_t

from strata._core.abi cimport st_ctx
from strata._core.planned cimport st_plan, st_unit


cdef extern from "st_lower.h" nogil:
    enum:
        ST_SDMA_BLOCK

    struct st_base:
        pass

    struct st_descriptor:
        pass

    struct st_lowering:
        const st_ctx *ctx
        const st_plan *p
        const st_base *bases
        const uint64_t *flag_at
        uint64_t wake_at
        uint64_t number
        uint64_t counters
        uint64_t lists
        uint64_t room
        uint64_t listed
        uint64_t block
        uint32_t me
        uint32_t event
        uint8_t flag_bits

    uint64_t st_lower_operands(const st_plan *p, uint64_t block, uint64_t *descriptors)
    uint64_t st_lower_pieces(const st_unit *u, uint64_t block)
    int st_lower(st_lowering *l, const st_unit *u, uint64_t k, st_descriptor *d)
