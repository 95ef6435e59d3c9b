"""Captured operations as descriptors, and their replays: what strata.capturing is made of."""

cimport cython
cimport numpy as cnp
from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

import numpy as np

from strata._core.abi cimport ST_AGAIN, ST_ECANCELED, ST_EINTR, ST_ENOJOB, ST_ETIMEOUT, ST_OK, st_ctx, st_is_die
from strata._core.engine cimport Engine, st_descriptor, st_engine
from strata._core.group cimport CoreGroup, st_base, st_group, st_request
from strata._core.heap cimport ST_HEAP_SDMA
from strata._core.planned cimport PlanHandle
from strata._core.sdma cimport st_lane
from strata._core.space cimport deadline_of, st_raise_pending, timeout_to_ns

from strata import errors
from strata._core.descriptors import DESCRIPTOR
from strata._core.memory import alloc_array
from strata._core.sdma import open_ring

cnp.import_array()


cdef extern from "st_group.h" nogil:
    int st_group_failed(st_group *g)

cdef extern from "st_collective.h" nogil:
    int st_request_failed(st_group *g, st_request *r, int status)

cdef extern from "st_engine.h" nogil:
    uint32_t st_event_take(st_engine *e, uint32_t *also_word, uint32_t *also_sleepers)
    void st_event_give(st_engine *e, uint32_t event)
    uint64_t st_event_count(const st_engine *e, uint32_t event)
    int st_event_status(const st_engine *e, uint32_t event)

cdef extern from "st_sdma.h" nogil:
    int st_lane_open(st_ctx *ctx, const st_lane *lane)
    uint64_t st_now_ns()


cdef enum:
    DEPTH = 128  # of a graph's ring: two descriptors a replay

LINE = sizeof(st_graph_line)
SPAN = ST_GRAPH_SPAN
CAUSES = ("here", "declared", "closed", "poisoned", "engine")


cdef uint64_t address(object array) noexcept:
    return <uint64_t>cnp.PyArray_DATA(<cnp.ndarray>array)


cdef tuple ranks_in(const uint64_t *mask, uint32_t n):
    return tuple([i for i in range(n) if mask[i >> 6] >> (i & 63) & 1])


@cython.no_gc_clear  # __dealloc__ needs the engine, also of one that was part of a cycle
cdef class Tape:

    def __cinit__(self):
        memset(&self.g, 0, sizeof(self.g))

    def __init__(self, Engine engine, groups, flags):
        """A ring, an event, and the memory that peers write to.

        ``groups``: of more than one member, each once; ``flags``: that their plans have.
        FabricMemoryError, RingFull.
        """
        cdef CoreGroup group
        cdef uint64_t at = 0
        self.engine, self.groups = engine, tuple(groups)
        self.places = [None] * len(self.groups)
        self.parts = <st_graph_part *>calloc(len(self.groups) + 1, sizeof(st_graph_part))
        if self.parts == NULL:
            raise MemoryError("no ordinary memory for a graph: ulimit -v, or a memory cgroup")
        lines = sum(LINE * g.size for g in self.groups)
        room = [(<uint64_t>n * 8 + 63) // 64 * 64 for n in flags]
        farewell = sum(g.size - 1 for g in self.groups) * DESCRIPTOR.itemsize
        self.board = alloc_array(engine.context, (lines + sum(room) + farewell + 64,), np.dtype(np.uint8), True,
                                 ST_HEAP_SDMA)
        at = (address(self.board) + 63) // 64 * 64
        self.flags = []
        for i, group in enumerate(self.groups):
            self.parts[i].g = &group.g
            self.parts[i].lines = <st_graph_line *>at
            at += LINE * group.size
        for n in room:
            self.flags.append(at)
            at += <uint64_t>n
        self.farewell = at
        self.g.parts, self.g.nparts = self.parts, len(self.groups)
        self.g.e = engine.e
        self.ring = open_ring(engine, DEPTH)
        self.g.lane = self.ring.lane
        self.g.event = st_event_take(engine.e, NULL, NULL)
        if self.g.event == 0:
            self.ring.close()
            raise errors.RingFull("no event is free: too many submissions are in progress", operation="capture")
        self.open = True

    def __dealloc__(self):
        if self.g.event and st_is_die(&self.engine.context.ctx):
            st_event_give(self.engine.e, self.g.event)
        free(self.parts)
        free(self.steps)

    def place(self, uint32_t part):
        """Addresses of this die's lines and of its plans' flags in a group."""
        return <uint64_t>self.parts[part].lines, self.flags[part]

    def join(self, uint32_t part, lines, flags):
        """Where all members of a group have them."""
        self.places[part] = (np.ascontiguousarray(lines, np.uint64), np.ascontiguousarray(flags, np.uint64))
        self.parts[part].joined = 1

    # ---- from operations to descriptors --------------------------------------------------

    def lower(self, operations, uint64_t block):
        """Makes the list that replays call.

        ``operations``: (part, fingerprint, PlanHandle or None, addresses): the addresses of each member's three
        buffers (uint64, n x 3); or, with part -1, those of a copy: (dst, src, bytes).
        """
        cdef uint64_t count = len(operations), i, total = 1, operands = 0, few = 0
        cdef st_graph_op *ops = <st_graph_op *>calloc(count + 1, sizeof(st_graph_op))
        self.steps = <st_graph_step *>calloc(count + 1, sizeof(st_graph_step))
        if ops == NULL or self.steps == NULL:
            free(ops)
            raise MemoryError("no ordinary memory for a graph: ulimit -v, or a memory cgroup")
        self.steps[0].part = ST_GRAPH_NOBODY
        try:
            self.prepare(ops, operations, block)
            for i in range(count):
                if ops[i].n:
                    total += st_graph_room(&ops[i], &few)
                    operands += few
                else:
                    total += operations[i][3][2] // block + 1
            self.memory = alloc_array(self.engine.context, (total * 64 + operands * 16 + 64,), np.dtype(np.uint8), True,
                                      ST_HEAP_SDMA)
            self.fill(ops, operations, block, total, operands)
        finally:
            free(ops)
        self.operations = operations  # whose arrays the plans are

    cdef int prepare(self, st_graph_op *ops, object operations, uint64_t block) except -1:
        """What each operation's lowering needs to know."""
        cdef uint64_t i
        cdef PlanHandle handle
        cdef CoreGroup group
        cdef int part, last = -1
        seen = [0] * len(self.groups)
        for i in range(len(operations)):
            part, _, plan, addresses = operations[i]
            if part >= 0:
                group = self.groups[part]
                lines, flags = self.places[part]
                ops[i].n = group.g.n
                ops[i].line_at = <const uint64_t *>address(lines)
                ops[i].ordinal = seen[part]
                ops[i].l.ctx = group.g.ctx
                ops[i].l.me = group.g.me
                ops[i].l.flag_at = <const uint64_t *>address(flags)
                ops[i].l.bases = <const st_base *>address(addresses)
                ops[i].l.block = block
                seen[part] += 1
                if plan is not None:
                    handle = plan
                    ops[i].l.p = &handle.c
                if i and last == part:
                    ops[i].follows = ops[i - 1].followed = 1
            last = part
        if seen and 2 * max(seen) + 2 >= SPAN:
            raise errors.InvalidArgument(f"a graph holds at most {SPAN // 2 - 1} operations of a group; use several")
        return 0

    cdef int fill(self, st_graph_op *ops, object operations, uint64_t block, uint64_t total,
                  uint64_t operands) except -1:
        cdef uint64_t base = (address(self.memory) + 63) // 64 * 64, at = 0, listed = 0, done = 0, i
        cdef st_descriptor *d = <st_descriptor *>base
        cdef int rc = ST_OK
        for i in range(len(operations)):
            part, desc, _, addresses = operations[i]
            self.steps[i].first = at
            self.steps[i].desc = desc
            self.steps[i].part = part if part >= 0 else ST_GRAPH_NOBODY
            if part < 0:
                at += st_graph_copy(&self.engine.context.ctx, addresses[0], addresses[1], addresses[2], block, &d[at])
                continue
            ops[i].l.lists, ops[i].l.room, ops[i].l.listed = base + 64 * total, operands, listed
            with nogil:
                rc = st_graph_lower(&ops[i], &d[at], &done)
            if rc != ST_OK:
                raise errors.from_status(rc, "a plan cannot be made descriptors of", operation="capture")
            listed = ops[i].l.listed
            at += done
        self.g.list, self.g.length = d, at
        self.g.steps, self.g.nsteps = self.steps, len(operations)
        return 0

    def descriptors(self):
        """A copy of the list."""
        cdef cnp.ndarray copy = np.empty(self.g.length, DESCRIPTOR)
        if self.g.length:
            memcpy(cnp.PyArray_DATA(copy), self.g.list, self.g.length * sizeof(st_descriptor))
        return copy

    # ---- replays ------------------------------------------------------------------------------

    @property
    def begun(self):
        """Replays so far."""
        return self.g.begun

    @property
    def ended(self):
        """Replays that have ended, well or not."""
        return st_event_count(self.engine.e, self.g.event)

    @property
    def room(self):
        """Whether another replay can begin now."""
        return self.g.begun - st_event_count(self.engine.e, self.g.event) < DEPTH // 2 - 1

    def begin(self, timeout):
        """Begins a replay: one descriptor and its notification, one doorbell."""
        cdef uint64_t ns = deadline_of(timeout, self.engine.context)
        cdef int rc = ST_ENOJOB
        if self.engine.running and st_is_die(&self.engine.context.ctx):
            with nogil:
                rc = st_graph_replay(&self.g, ns)
        if rc == ST_EINTR:
            st_raise_pending()
        if rc == ST_ENOJOB:
            raise errors.NotInJob("strata.finalize() has ended the graph, or this process is not its die",
                                  operation="replay")
        if rc != ST_OK:
            raise errors.from_status(rc, "the graph's descriptor ring cannot be used", errno=errno, operation="replay")

    def broken(self):
        """Whether a group of the graph has failed."""
        cdef uint32_t i
        for i in range(self.g.nparts):
            if st_group_failed(self.parts[i].g) != ST_OK:
                memset(&self.end, 0, sizeof(self.end))
                self.end.status, self.end.part = st_group_failed(self.parts[i].g), i
                self.end.cause, self.end.replay = ST_GRAPH_DECLARED, self.g.begun + 1
                return True
        return False

    def wait(self, uint64_t count, timeout, bint final):
        """Waits for the end of the first ``count`` replays.

        "ended"; "goes on" after ``timeout`` if it is not ``final``; "failed": the graph has been given up, and
        verdict() says why, as it does after an exception.
        """
        cdef uint64_t ns = deadline_of(timeout, self.engine.context) if final else timeout_to_ns(timeout, 0.0)
        cdef st_graph_end end
        cdef bint failed = False
        cdef int rc
        with nogil:
            rc = st_graph_wait(&self.g, count, ns, &end)
            if rc == ST_OK and self.outcome(count) != ST_OK:
                st_graph_failed(&self.g, &end)
                failed = True
            elif rc != ST_OK:
                failed = final or rc != ST_ETIMEOUT or end.cause != ST_GRAPH_HERE
            if failed:
                st_graph_give_up(&self.g, &end)
        if not failed:
            return "ended" if rc == ST_OK else "goes on"
        self.end = end
        if rc == ST_EINTR:
            st_raise_pending()
        return "failed"

    cdef int outcome(self, uint64_t count) noexcept nogil:
        """The status of the first ``count`` replays, which have ended."""
        cdef int status = st_event_status(self.engine.e, self.g.event)
        return status if self.engine.e.events[self.g.event].index // 2 < count else ST_OK

    def told(self, uint64_t count):
        """How the first ``count`` replays have ended: "well" or "failed"; None: they go on.  Never waits."""
        if st_event_count(self.engine.e, self.g.event) < count:
            return None
        return "well" if self.outcome(count) == ST_OK else "failed"

    def poll(self, uint64_t count):
        """The same as wait, and never waits: "goes on" if they have not ended."""
        cdef st_graph_end end
        cdef uint64_t now
        cdef bint gone = False
        if st_event_count(self.engine.e, self.g.event) >= count:
            return self.wait(count, 0, False)
        now = st_now_ns()
        if now < self.next_look:
            return "goes on"
        self.next_look = now + self.engine.context.ctx.wait.poll_ns
        with nogil:
            gone = st_graph_look(&self.g, count, ST_AGAIN, &end) != ST_OK
        return self.wait(count, 0, False) if gone else "goes on"

    def verdict(self):
        """Why the graph was given up, as a dict; ranks are those of the world."""
        cdef st_graph_end *end = &self.end
        cdef uint32_t n = self.engine.context.ndies
        cdef st_request r
        cdef CoreGroup group
        found = {"status": end.status, "cause": CAUSES[end.cause], "step": end.step, "part": None, "by": None,
                 "replay": end.replay, "ranks": ranks_in(end.mask, n), "late": ranks_in(end.late, n),
                 "stuck": bool(end.stuck), "failed": b""}
        if end.part < self.g.nparts:
            found["part"] = end.part
        if end.cause == ST_GRAPH_DECLARED:
            group = self.groups[end.part]
            memset(&r, 0, sizeof(r))
            st_request_failed(&group.g, &r, end.status)
            found["ranks"] = tuple([group.ranks[m] for m in ranks_in(r.mask, group.g.n)])
            found["by"] = group.ranks[r.failed_by]
        elif end.cause == ST_GRAPH_ENGINE:
            found["failed"] = (<char *>&self.engine.e.events[self.g.event].failed)[:DESCRIPTOR.itemsize]
        return found

    # ---- the end ----------------------------------------------------------------------------------

    def leave(self, keep):
        """No replay comes any more.  What is in progress is given up; peers hear of it.  What they, or the DMA
        thread, may still use is kept until they do not: the memory, and ``keep`` if a peer is late."""
        cdef st_descriptor *d = <st_descriptor *>self.farewell
        cdef uint64_t count = 0
        cdef uint32_t i
        if not self.open or not st_is_die(&self.engine.context.ctx):
            return
        self.open = False
        if self.g.begun > st_event_count(self.engine.e, self.g.event):
            memset(&self.end, 0, sizeof(self.end))
            self.end.status, self.end.cause = ST_ECANCELED, ST_GRAPH_CLOSED
            with nogil:
                st_graph_give_up(&self.g, &self.end)
        self.keep = keep if self.end.nlate or self.end.stuck else None
        for i in range(self.g.nparts):
            if self.parts[i].joined:
                lines = self.places[i][0]
                count += st_graph_farewell(&self.engine.context.ctx, <const uint64_t *>address(lines),
                                           self.parts[i].g.n, self.parts[i].g.me, &d[count])
        if count and self.engine.running:
            st_graph_close(&self.g, d, count)
        if not self.over():
            _left.append(self)

    def over(self):
        """Whether nobody can use its memory any more."""
        if not st_is_die(&self.engine.context.ctx):
            return False
        if self.engine.running and st_lane_open(&self.engine.context.ctx, &self.g.lane) == ST_OK:
            if not self.engine.remove_ring(self.g.lane.index, self.g.lane.depth):
                return False
        return st_graph_gone(&self.g)


_left = []


def sweep():
    """Frees what graphs that were closed have left, and nobody can use any more."""
    _left[:] = [tape for tape in _left if not tape.over()]


def left():
    """How many closed graphs keep memory."""
    return len(_left)
