from libc.stdint cimport uint32_t, uint64_t

from strata._core.group cimport CoreGroup, st_group


cdef extern from "st_board.h" nogil:
    uint32_t ST_BOARD_ROUNDS
    uint32_t ST_BOARD_COLUMNS

    struct st_board_head:
        pass

    struct st_post:
        uint64_t epoch
        uint64_t desc
        uint64_t count
        uint64_t tokens
        uint64_t at[6]
        uint64_t bytes[6]
        uint64_t block
        uint64_t block_bytes

    struct st_boards:
        st_group *g
        st_board_head **at
        uint64_t mask[16]

    uint64_t st_board_bytes(uint64_t n)
    void st_board_format(void *memory, uint32_t n)
    int st_board_attach(st_boards *b, uint32_t j, uint64_t va)
    int st_board_masked(const st_boards *b, uint32_t j)
    void st_board_leave_out(st_boards *b, uint32_t j, int out)
    int st_board_post(st_boards *b, uint64_t round, const st_post *p, uint64_t timeout_ns, int masking, uint64_t *mask)
    int st_board_read(st_boards *b, uint64_t round, uint64_t timeout_ns, int masking, st_post *posts, uint64_t *waited,
                      uint64_t *mask)
    int st_board_done(st_boards *b, uint64_t round, int masking, uint64_t *mask)
    int st_board_drain(st_boards *b, uint64_t round, uint64_t timeout_ns, int masking, uint64_t *mask)
    int st_board_block(const st_boards *b, uint64_t round, uint32_t j, const st_post *p, void *to)
    void st_board_fail(st_boards *b, int status, uint64_t round)
    int st_board_failure(const st_boards *b, uint32_t j, uint64_t *round)


cdef class Board:
    """The boards of a group's members, as this die sees them."""
    cdef st_boards b
    cdef readonly CoreGroup group
    cdef readonly object memory  # array that keeps this member's own
    cdef bint closed

    cdef int check(self) except -1
    cdef object failed(self, int rc, uint64_t *mask, str what, uint64_t round)
