from libc.stdint cimport uint32_t, uint64_t

from strata._core.abi cimport st_ctx
from strata._core.engine cimport Engine, st_descriptor, st_engine
from strata._core.group cimport st_base, st_group
from strata._core.planned cimport st_plan
from strata._core.sdma cimport Ring, st_lane


cdef extern from "st_graph_lower.h" nogil:
    struct st_lowering:
        st_ctx *ctx
        const st_plan *p
        const st_base *bases
        const uint64_t *flag_at
        uint64_t lists
        uint64_t room
        uint64_t listed
        uint64_t block
        uint32_t me

    struct st_graph_op:
        st_lowering l
        const uint64_t *line_at
        uint32_t n
        uint32_t follows
        uint32_t followed
        uint64_t ordinal

    struct st_graph_line:
        pass

    uint64_t ST_GRAPH_SPAN
    uint64_t st_graph_room(const st_graph_op *o, uint64_t *operands)
    int st_graph_lower(st_graph_op *o, st_descriptor *d, uint64_t *done)
    uint64_t st_graph_copy(const st_ctx *ctx, uint64_t dst, uint64_t src, uint64_t bytes, uint64_t block,
                           st_descriptor *d)
    uint64_t st_graph_farewell(const st_ctx *ctx, const uint64_t *line_at, uint32_t n, uint32_t me, st_descriptor *d)

cdef extern from "st_graph.h" nogil:
    struct st_graph_part:
        st_group *g
        st_graph_line *lines
        uint32_t joined

    struct st_graph_step:
        uint64_t first
        uint64_t desc
        uint32_t part

    struct st_graph:
        st_engine *e
        st_lane lane
        const st_descriptor *list
        const st_graph_part *parts
        const st_graph_step *steps
        uint64_t length
        uint64_t begun
        uint32_t nparts
        uint32_t nsteps
        uint32_t event

    uint32_t ST_GRAPH_NOBODY
    int st_graph_replay(st_graph *g, uint64_t timeout_ns)
    int st_graph_close(st_graph *g, const st_descriptor *farewell, uint64_t count)
    int st_graph_gone(const st_graph *g)

cdef extern from "st_graph_wait.h" nogil:
    enum:
        ST_GRAPH_HERE
        ST_GRAPH_DECLARED
        ST_GRAPH_CLOSED
        ST_GRAPH_ENGINE

    struct st_graph_end:
        int status
        uint32_t cause
        uint32_t part
        uint32_t step
        uint32_t stuck
        uint32_t nlate
        uint64_t replay
        uint64_t mask[16]
        uint64_t late[16]

    int st_graph_look(const st_graph *g, uint64_t count, int rc, st_graph_end *end)
    int st_graph_wait(const st_graph *g, uint64_t count, uint64_t timeout_ns, st_graph_end *end)
    void st_graph_failed(const st_graph *g, st_graph_end *end)
    void st_graph_give_up(const st_graph *g, st_graph_end *end)


cdef class Tape:
    """What a graph is made of: a list of descriptors, a ring of its own, and memory that peers write to."""
    cdef st_graph g
    cdef st_graph_part *parts
    cdef st_graph_step *steps
    cdef st_graph_end end         # why it was given up
    cdef readonly Engine engine
    cdef readonly tuple groups    # with more than one member
    cdef Ring ring
    cdef object board             # array: lines, flags of plans, farewell
    cdef object memory            # array: the list, operands of reductions
    cdef list flags               # by group: where the flags of its plans begin
    cdef list places              # by group: (lines of all members, flags of all members)
    cdef uint64_t farewell
    cdef uint64_t next_look
    cdef object operations        # whose plans the list was made of
    cdef object keep              # what a late peer may still write to
    cdef bint open

    cdef int prepare(self, st_graph_op *ops, object operations, uint64_t block) except -1
    cdef int fill(self, st_graph_op *ops, object operations, uint64_t block, uint64_t total,
                  uint64_t operands) except -1
    cdef int outcome(self, uint64_t count) noexcept nogil
