from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from strata._core.abi cimport st_ctx, st_wait_policy
from strata._core.planned cimport PlanHandle, st_plan
from strata._core.membership cimport ST_DESC, ST_MASK_WORDS, Membership, st_base, st_group, st_p2p
from strata._core.space cimport Context


cdef extern from "st_collective.h" nogil:
    struct st_request:
        uint64_t desc
        uint64_t count
        const st_plan *plan
        const void *src
        void *out
        void *scratch
        void *sdma  # struct st_lanes: strata._core.lanes
        uint64_t payload
        uint64_t solo
        uint64_t src_bytes
        uint64_t out_bytes
        uint64_t timeout_ns
        uint32_t fence
        uint32_t phase
        uint64_t number
        uint64_t failed_number
        uint64_t failed_desc
        uint32_t failed_by
        uint32_t nlate
        int err
        uint32_t refused
        uint64_t *lines
        uint64_t mask[16]
        uint64_t late[16]

    int st_collective(st_group *g, st_request *r)


cdef extern from "st_worker.h" nogil:
    struct st_progress:
        pass

    struct st_message:
        uint64_t desc
        uint64_t count
        uint64_t bytes

    struct st_transfer:
        uint32_t receive
        uint32_t peer
        uint32_t cast
        int err
        uint32_t refused
        st_message m
        int64_t tag
        uint64_t desc
        uint64_t count
        uint64_t bytes
        void *buf

    struct st_item:
        int status
        uint64_t deadline_ns
        uint64_t timeout_ns
        st_progress *stream
        uint64_t turn
        uint32_t cancelled
        st_request request
        st_transfer transfer

    struct st_worker:
        uint32_t started

    int st_worker_init(st_worker *w, st_group *g, uint32_t transfers)
    int st_worker_submit(st_worker *w, st_item *item)
    void st_worker_stop(st_worker *w)
    int st_worker_idle(const st_worker *w)
    int st_item_wait(st_item *item, const st_wait_policy *policy, uint64_t timeout_ns)
    int st_item_done(const st_item *item)
    bint st_group_take(st_group *g, const st_wait_policy *policy)
    int st_group_acquire(st_group *g, const st_wait_policy *policy, uint64_t timeout_ns)
    void st_group_release(st_group *g)
    uint64_t st_now_ns()


cdef struct PlanSlot:
    uint64_t desc
    uint64_t count
    uint64_t key
    PyObject *handle             # of _plans, which keeps it; NULL: none


cdef class CoreGroup(Membership):
    cdef st_worker collectives
    cdef st_worker transfers
    cdef bint formed             # it has memory and threads
    cdef bint bound              # and may be used
    cdef dict _channels          # peer -> array that keeps the outgoing channel
    cdef object _left            # once it was let go of: what has its private memory now
    cdef bint lent               # and that this is so
    cdef dict _plans             # key -> PlanHandle
    cdef PlanSlot *slots
    cdef object __weakref__
    cdef dict _works
    cdef object _scratch         # array that is lent to operations
    cdef object _lanes           # what the DMA engine's operations need: strata._core.lanes

    cdef int stop(self) except -1
    cdef int check_here(self) except -1
    cdef object find_plan(self, uint64_t desc, uint64_t count, uint64_t key)
    cdef object run(self, st_request *r, object src, object out, object scratch, PlanHandle handle)
    cdef object lend(self, st_request *r, uint64_t nbytes)
    cdef object failed(self, int status, st_request *r, object arrays)
    cdef object transfer_failed(self, int status, st_transfer *t)
    cdef int install_plan(self, uint64_t desc, uint64_t count, uint64_t key, PlanHandle handle) except -1
    cdef int open_channel(self, uint32_t peer) except -1
    cdef int remember(self, object work) except -1
    cdef int forget(self, object work) except -1
