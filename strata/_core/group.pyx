"""A group's memory, plans and failures; the operations are in collective.pyx."""

cimport numpy as cnp
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

import sys

import numpy as np

from strata._core.abi cimport (
    ST_EBROKEN,
    ST_EINTR,
    ST_EMISMATCH,
    ST_ETIMEOUT,
    ST_OK,
    st_is_die,
)
from strata._core.brief cimport st_collective_within
from strata._core.heap cimport ST_HEAP_CHANNEL, ST_HEAP_GROUP
from strata._core.kernels cimport accumulate_fn, reduce_fn, reduce_partial_fn
from strata._core.membership cimport Membership
from strata._core.space cimport Context, deadline_of, st_raise_pending

from strata import errors
from strata._core import closing

cnp.import_array()

cdef object is_finalizing = sys.is_finalizing  # outlives the module's own dict


cdef extern from "st_abi.h" nogil:
    struct st_channel:
        pass


cdef extern from "st_rendezvous.h" nogil:
    uint64_t st_group_bytes(uint64_t n, uint64_t mailbox_bytes)
    uint8_t *st_world_memory(st_ctx *ctx)
    int st_group_failed(st_group *g)
    void st_group_list(st_group *g)
    void st_group_unlist(st_group *g)
    void st_group_unpin(st_group *g)
    int st_group_formed(st_group *g, uint64_t round, int ok, const uint64_t *mask, uint64_t timeout_ns)
    int st_group_survivors(st_group *g, uint64_t round, uint64_t timeout_ns, uint64_t *mask,
                           uint64_t *missing)


cdef extern from "st_item.h" nogil:
    int st_request_failed(st_group *g, st_request *r, int status)
    void st_channel_open(st_group *g, uint32_t dst, uint64_t va)
    uint32_t st_recv_others(st_group *g, uint32_t peer, int64_t *tags, uint32_t most)


cdef enum:
    ALONE = 1 << 15  # bytes that are moved without letting go of the interpreter
    SLOTS = 256
    MAX_PLANS = 1024
    SHOWN = 4  # tags of messages that nobody has asked for, in an error


cdef list members_of(const uint64_t *mask, uint32_t n):
    return [i for i in range(n) if mask[i >> 6] >> (i & 63) & 1]


cdef class CoreGroup(Membership):
    """Base of Group: everything but the operations and the texts of errors."""

    def __cinit__(self, *args, **kwargs):
        memset(&self.g, 0, sizeof(self.g))
        self.slots = <PlanSlot *>calloc(SLOTS, sizeof(PlanSlot))
        if self.slots == NULL:
            raise MemoryError
        self.formed = self.bound = False

    def __init__(self, Context context, ranks, str name, bytes key, timeout=None, lives=None, memory=None):
        """``ranks``: world ranks in the group's order; ``key``: 16 bytes that all members
        compute alike, empty for the world.  ``lives``: the members' incarnations, None: all first ones.
        ``memory``: of the group, if it is there already: an array of this die, or (address, bytes) of another's."""
        cdef uint32_t n = len(ranks), i
        cdef uint32_t *copy
        if not context.here:
            from strata._core import space
            space.current()  # raises, and says why
        self.context = context
        self.ranks = tuple(ranks)
        self.lives = (0,) * n if lives is None else tuple(lives)
        self.name = name
        self.size = n
        self.rank = self.ranks.index(context.rank)
        self._channels = {}
        self._plans = {}
        self._works = {}
        self.g.ctx = &context.ctx
        self.g.n = n
        self.g.me = self.rank
        self.g.alloc = malloc
        self.g.release = free
        self.g.bases = <st_base *>calloc(n, 64)
        self.g.p2p = <st_p2p *>calloc(n, 64)
        copy = <uint32_t *>malloc(4 * n)
        self.g.ranks = copy
        if copy == NULL or self.g.bases == NULL or self.g.p2p == NULL:
            raise MemoryError
        for i in range(n):
            copy[i] = self.ranks[i]
        context.ctx.reduce = reduce_fn()
        context.ctx.reduce_partial = reduce_partial_fn()
        context.ctx.accumulate = accumulate_fn()
        if memory is not None:
            self._adopt(memory)
        elif key:
            self._find_memory(key, timeout)
        else:
            self._bind(<size_t>st_world_memory(&context.ctx), st_group_bytes(n, context.mailbox_bytes))
        st_group_list(&self.g)
        st_worker_init(&self.collectives, &self.g, 0)
        st_worker_init(&self.transfers, &self.g, 1)
        self.formed = self.bound = True

    def __del__(self):
        if not self.formed or self.lent or not st_is_die(&self.context.ctx):
            return
        self.stop()
        st_group_unlist(&self.g)
        if self.g.va and not is_finalizing():  # later than that modules are half gone, and memory goes anyway
            self._left = closing.leave(<size_t>&self.g, self.context, self._memory, self._channels)
            self.lent = True  # graphs that end after this, with it in one collection, still look at the ranks

    def __dealloc__(self):
        free(self.slots)
        if self.lent:
            return
        if self.g.pin and st_is_die(self.g.ctx):
            st_group_unpin(&self.g)
        free(self.g.bases)
        free(self.g.p2p)
        free(<void *>self.g.ranks)

    def close(self):
        """Stops the group's threads.  Operations in progress end with GroupBroken, later ones
        with NotInJob."""
        self.stop()
        self.pending()  # lets go of those that have ended now, that is, of all

    cdef int stop(self) except -1:
        self.bound = False
        if self.formed:
            with nogil:
                st_worker_stop(&self.collectives)
                st_worker_stop(&self.transfers)
        self._lanes = None
        return 0

    def reopen(self):
        """After close(): the group can be used again."""
        if self.formed and not self.bound:
            st_worker_init(&self.collectives, &self.g, 0)
            st_worker_init(&self.transfers, &self.g, 1)
            self.bound = True

    cdef int check_here(self) except -1:
        if not self.bound:
            raise errors.NotInJob(
                "strata.finalize() has closed the group" if self.formed else "the group was never formed",
                group=self.name,
            )
        if not st_is_die(&self.context.ctx):
            raise errors.NotInJob(
                "this process was forked from a die and is not one itself: it cannot communicate", group=self.name
            )
        return 0

    # ---- captures ------------------------------------------------------------

    @property
    def recorder(self):
        """What takes this thread's operations down, instead of their being run; None: nothing does."""
        if self.context.recorders is None:
            return None
        return self.context.recorders.get(PyThread_get_thread_ident())

    def uncapturable(self, str what):
        """InvalidArgument if this thread captures."""
        if self.context.recorders is not None and self.recorder is not None:
            raise errors.InvalidArgument(
                f"{what} needs the host when it runs, so it cannot be captured: do it before or after the block",
                group=self.name, operation="capture",
            )

    # ---- plans ---------------------------------------------------------------

    cdef object find_plan(self, uint64_t desc, uint64_t count, uint64_t key):
        """The plan of a shape, or None.  Whoever runs it holds it: other threads may drop it from the table."""
        cdef PlanSlot *s = &self.slots[(desc * 0x9e3779b97f4a7c15ull ^ count * 0xc2b2ae3d27d4eb4full ^ key) >> 56]
        if s.handle != NULL and s.desc == desc and s.count == count and s.key == key:
            self.g.ctx.count.plan_hits += 1
            return <PlanHandle>s.handle
        return None

    cdef int install_plan(self, uint64_t desc, uint64_t count, uint64_t key, PlanHandle handle) except -1:
        """Remembers a plan under its shape; drops all others when there are too many."""
        cdef PlanSlot *s = &self.slots[(desc * 0x9e3779b97f4a7c15ull ^ count * 0xc2b2ae3d27d4eb4full ^ key) >> 56]
        if len(self._plans) >= MAX_PLANS:
            memset(self.slots, 0, SLOTS * sizeof(PlanSlot))
            self._plans.clear()
        self._plans[desc, count, key] = handle
        s.desc, s.count, s.key = desc, count, key
        s.handle = <PyObject *>handle
        return 0

    # ---- running ---------------------------------------------------------------

    cdef object lend(self, st_request *r, uint64_t nbytes):
        """Gives a request scratch, if it needs any: an array that its caller keeps.  One serves all
        operations, since they come one after another, until a larger one takes its place."""
        scratch = self._scratch
        if nbytes == 0:
            return None
        if scratch is None or scratch.nbytes < nbytes:
            from strata._core import memory
            scratch = self._scratch = None
            try:
                scratch = memory.alloc_array(self.context, (nbytes,), np.dtype(np.uint8), False, ST_HEAP_GROUP)
            except MemoryError:
                self.abstain(None)  # the others must not wait for this die
                raise
            self._scratch = scratch
        r.scratch = cnp.PyArray_DATA(<cnp.ndarray>scratch)
        return scratch

    cdef object run(self, st_request *r, object src, object out, object scratch, PlanHandle handle):
        """Runs a request on these arrays to its end; raises what went wrong.  ``handle``: of its plan, or None."""
        cdef int rc
        cdef bint brief = r.solo <= ALONE and (
            self.g.n == 1 or (self.g.ctx.wait.pauses and not r.fence and (r.plan == NULL or r.plan.mailbox)))
        if brief and st_group_take(&self.g, &self.g.ctx.wait):
            rc = st_collective_within(&self.g, r)
            if rc != ST_OK:
                self.failed(rc, r, (src, out, scratch))
            return None
        with nogil:
            rc = st_group_acquire(&self.g, &self.g.ctx.wait, r.timeout_ns)
            if rc == ST_OK:
                rc = st_collective(&self.g, r)
                st_group_release(&self.g)
        if rc != ST_OK:
            self.failed(rc, r, (src, out, scratch))
        return None

    cdef object failed(self, int status, st_request *r, object arrays):
        """Raises the error of a request.  _failed() of the subclass finds the words."""
        cdef st_request f = r[0]
        cdef uint32_t i
        for i in range((self.g.n + 63) >> 6, ST_MASK_WORDS):  # the fronts clear no more than that
            f.mask[i] = f.late[i] = 0
        memset(&r.phase, 0, sizeof(st_request) - (<char *>&r.phase - <char *>r))  # it may be used again
        if f.nlate:
            closing.quarantine(self, <size_t>&self.g, f.number, (<char *>f.late)[:sizeof(f.late)], arrays)
        lines = []
        if f.lines != NULL:
            lines = [(f.lines[2 * i], f.lines[2 * i + 1]) for i in range(self.g.n)]
            free(f.lines)
        elif status == ST_EMISMATCH:
            raise MemoryError
        if status == ST_EINTR:
            st_raise_pending()
        self._failed(status, {
            "desc": f.desc,
            "number": f.number,
            "phase": f.phase,
            "failed_number": f.failed_number,
            "failed_desc": f.failed_desc,
            "failed_by": f.failed_by,
            "members": members_of(f.mask, self.g.n),
            "late": members_of(f.late, self.g.n),
            "errno": f.err,
            "refused": (None, "input", "output")[f.refused],
            "lines": lines,
        })
        raise AssertionError("_failed must raise")

    cdef object transfer_failed(self, int status, st_transfer *t):
        """Raises the error of a send or receive."""
        cdef st_request r
        cdef int64_t[SHOWN] tags
        cdef uint32_t others = 0
        if status == ST_EINTR:
            st_raise_pending()
        memset(&r, 0, sizeof(r))
        st_request_failed(&self.g, &r, status)
        if t.receive and status == ST_ETIMEOUT:
            others = st_recv_others(&self.g, t.peer, tags, SHOWN)
        self._transfer_failed(status, {
            "members": members_of(r.mask, self.g.n),
            "receive": bool(t.receive), "peer": t.peer, "tag": t.tag, "errno": t.err, "refused": bool(t.refused),
            "tags": [tags[i] for i in range(others)],
            "mine": (t.desc, t.count, t.bytes), "theirs": (t.m.desc, t.m.count, t.m.bytes),
        })
        raise AssertionError("_transfer_failed must raise")

    cdef int open_channel(self, uint32_t peer) except -1:
        """The outgoing channel to a peer, made at first use."""
        if peer not in self._channels and peer != self.g.me:
            memory = self._allocate(sizeof(st_channel), ST_HEAP_CHANNEL)
            st_channel_open(&self.g, peer, <uint64_t>cnp.PyArray_DATA(<cnp.ndarray>memory))
            self._channels[peer] = memory
        return 0

    # ---- asynchronous operations ---------------------------------------------------

    cdef int remember(self, object work) except -1:
        """Keeps a work until its end.  Those that ended and were never asked are let go of on
        the way: two are looked at for each that comes, so that no more than are in progress stay."""
        if self._works:
            from strata._core.work import Work
        for _ in range(min(2, len(self._works))):
            oldest = next(iter(self._works))
            del self._works[oldest]
            if not Work.done(oldest):  # nobody has asked for it
                self._works[oldest] = None
        self._works[work] = None
        closing.hold(self)
        return 0

    cdef int forget(self, object work) except -1:
        self._works.pop(work, None)
        if not self._works:
            closing.release(self)
        return 0

    def pending(self):
        """How many asynchronous operations that began here are in progress."""
        from strata._core.work import Work
        for work in tuple(self._works):
            Work.done(work)
        return len(self._works)

    # ---- failure ----------------------------------------------------------------

    @property
    def number(self):
        """Of the last operation begun here."""
        return self.g.number

    @property
    def broken(self):
        """Whether an operation of the group has failed for good."""
        return st_group_failed(&self.g) != ST_OK

    def survivors(self, uint64_t round, timeout=None):
        """(members that called this for the ``round``-th time, members that neither did nor died)."""
        cdef uint64_t mask[16]
        cdef uint64_t missing[16]
        cdef uint64_t ns = deadline_of(timeout, self.context)
        cdef int rc
        self.check_here()
        with nogil:
            rc = st_group_survivors(&self.g, round, ns, mask, missing)
        if rc == ST_EINTR:
            st_raise_pending()
        return members_of(mask, self.g.n), members_of(missing, self.g.n)

    def agreed(self, uint64_t round, members, ok, timeout=None):
        """Tells ``members`` whether this one has the group of the ``round``-th shrink(), and hears that of them; False:
        one of them has not.  Who says nothing in time may have it."""
        cdef uint64_t mask[16]
        cdef uint64_t ns = deadline_of(timeout, self.context)
        cdef uint32_t m
        cdef int good = bool(ok), rc
        memset(mask, 0, sizeof(mask))
        for m in members:
            mask[m >> 6] |= <uint64_t>1 << (m & 63)
        with nogil:
            rc = st_group_formed(&self.g, round, good, mask, ns)
        if rc == ST_EINTR:
            st_raise_pending()
        return rc != ST_EBROKEN
