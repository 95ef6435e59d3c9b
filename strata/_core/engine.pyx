"""The DMA engine of a die: its thread, its rings, its events."""

cimport numpy as cnp
from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

import threading

import numpy as np

from strata._core.abi cimport ST_AGAIN, ST_OK, st_is_die
from strata._core.heap cimport ST_HEAP_SDMA
from strata._core.kernels cimport accumulate_fn, reduce_fn, reduce_partial_fn
from strata._core.space cimport Context

from strata import errors
from strata._core.memory import alloc_array

cnp.import_array()


cdef extern from "st_sdma.h" nogil:
    struct st_ring:
        pass

    uint32_t ST_SDMA_RINGS
    uint64_t st_ring_bytes(uint32_t depth)

cdef extern from "st_engine_thread.h" nogil:
    struct st_sdma:
        pass

    size_t st_engine_bytes()
    int st_engine_init(st_engine *e, st_ctx *ctx, uint64_t timeout_ns)
    void st_engine_open(st_engine *e, st_sdma *shared)
    int st_engine_start(st_engine *e)
    void st_engine_end(st_engine *e)
    int st_engine_round(st_engine *e)
    int st_engine_add(st_engine *e, st_ring *r, uint32_t depth, uint64_t first, uint32_t *index)
    int st_engine_remove(st_engine *e, uint32_t index)


cdef enum:
    FLAGS = 1024  # that submissions to other dies' rings have between them


cdef class Engine:

    def __init__(self, Context context):
        """Made by engine_of(): a die has one, for as long as its context lives."""
        cdef st_ctx *ctx = &context.ctx
        self.context = context
        self.lock = threading.RLock()
        self.e = <st_engine *>ctx.engine
        if self.e == NULL:
            self.e = <st_engine *>calloc(1, st_engine_bytes())
            if self.e == NULL:
                raise MemoryError("no ordinary memory for what the DMA engine keeps: ulimit -v, or a memory cgroup")
            if st_engine_init(self.e, ctx, context.timeout_ns) != ST_OK:
                free(self.e)
                raise errors.HostError("no lock could be made", errno=errno)
            ctx.engine = self.e
        ctx.reduce = reduce_fn()
        ctx.reduce_partial = reduce_partial_fn()
        ctx.accumulate = accumulate_fn()
        self.rings, self.spare, self.live, self.orphans = {}, {}, {}, []

    cdef int start(self, bint thread) except -1:
        """Opens the engine for descriptors; without a thread, step() executes them."""
        if self.running:
            return 0
        if self.shared is None:
            self.shared = alloc_array(self.context, (1 << 14,), np.dtype(np.uint8), True, ST_HEAP_SDMA)
        st_engine_open(self.e, <st_sdma *>cnp.PyArray_DATA(<cnp.ndarray>self.shared))
        if thread and st_engine_start(self.e) != ST_OK:
            st_engine_end(self.e)
            raise errors.HostError("no DMA thread could be made (raise `ulimit -u` or `ulimit -v`)", errno=errno)
        self.running = True
        return 0

    def stop(self):
        """Ends the thread.  What is in the rings, and whoever waits for it, ends with NotInJob."""
        with self.lock:
            if not self.running or not st_is_die(&self.context.ctx):
                return
            with nogil:
                st_engine_end(self.e)
            self.running = False
            for memory in self.rings.values():  # it stays a ring's: peers may still look whether that is open
                self.spare[(memory.size - st_ring_bytes(0)) // (st_ring_bytes(1) - st_ring_bytes(0))].append(memory)
            self.rings.clear()
        self.reap(len(self.live))

    def step(self):
        """Without a thread: a turn for each ring.  0: nothing is to be done; 1: gates are shut; 2: there is more."""
        cdef int turn
        with nogil:
            turn = st_engine_round(self.e)
        return turn

    def add_ring(self, depth=None, uint64_t first=0):
        """Index of a new ring of ``depth`` descriptors (a power of two), whose first has index ``first``.

        RingFull: there are as many as a die can have; FabricMemoryError.
        """
        cdef uint32_t index = 0, size
        if depth is None:
            depth = self.context.config.sdma_depth
        if not 2 <= depth <= 1 << 20 or depth & (depth - 1):
            raise errors.InvalidArgument(f"depth={depth}: a power of two from 2 to {1 << 20} is expected")
        size = depth
        with self.lock:
            spare = self.spare.setdefault(depth, [])
            memory = spare.pop() if spare else alloc_array(
                self.context, (st_ring_bytes(size),), np.dtype(np.uint8), True, ST_HEAP_SDMA)
            rc = st_engine_add(self.e, <st_ring *>cnp.PyArray_DATA(<cnp.ndarray>memory), size, first, &index)
            if rc != ST_OK:
                spare.append(memory)
                raise errors.from_status(rc, f"a die has at most {ST_SDMA_RINGS} descriptor rings; close some")
            self.rings[index] = memory
        return index

    cdef int reap(self, int most) except -1:
        """Lets go of submissions that have ended, whether anybody asked for them or not."""
        with self.lock:
            if self.orphans:
                left = [o for o in self.orphans if not self.flags[o[0]]]
                self.free_flags += [o[0] for o in self.orphans if self.flags[o[0]]]
                self.orphans = left
            for _ in range(min(most, len(self.live))):
                oldest = next(iter(self.live))
                if not oldest.done():  # which takes it out
                    del self.live[oldest]
                    self.live[oldest] = None
        return 0

    def remove_ring(self, uint32_t index, uint32_t depth):
        """Closes an empty ring.  False: it is not empty."""
        cdef int rc
        if not self.running:
            return True
        rc = st_engine_remove(self.e, index)
        if rc == ST_OK:
            with self.lock:
                self.spare[depth].append(self.rings.pop(index))
        return rc != ST_AGAIN

    cdef object take_flag(self):
        """(Place, address) of a zero flag of this die; None: all are in use."""
        if self.flags is None:
            self.flags = alloc_array(self.context, (FLAGS,), np.dtype(np.uint64), True, ST_HEAP_SDMA)
            self.free_flags = list(range(FLAGS))
        if not self.free_flags:
            return None
        place = self.free_flags.pop()
        self.flags[place] = 0
        return place, <uint64_t>cnp.PyArray_DATA(<cnp.ndarray>self.flags) + 8 * <uint64_t>place

    @property
    def pending(self):
        """Submissions that have not ended."""
        self.reap(len(self.live))
        return len(self.live)

    def counters(self):
        """What the DMA thread has done so far."""
        cdef st_engine_counters *c = &self.e.count
        return {"descriptors": c.descriptors, "bytes": c.bytes, "failed": c.failed, "sleeps": c.sleeps,
                "gates": c.gates, "notifies": c.notifies, "rings": len(self.rings)}


cpdef Engine engine_of(Context context):
    """A die's engine, started at first use."""
    if not st_is_die(&context.ctx):
        raise errors.NotInJob("this process was forked from a die and is not one itself", operation="sdma")
    cdef Engine e = context.engine
    if e is None:
        with _making:
            if context.engine is None:
                context.engine = Engine(context)
        e = context.engine
    if not e.running:
        with e.lock:
            e.start(True)
    return e


_making = threading.Lock()


def manual(Context context):
    """An engine without a thread, for tests: step() executes."""
    context.engine = Engine(context)
    (<Engine>context.engine).start(False)
    return context.engine
