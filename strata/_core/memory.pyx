"""Fabric memory as numpy arrays: a die's heap, and the blocks that arrays are views of."""

cimport cython
from cpython.buffer cimport PyBUF_RECORDS_RO, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.ref cimport Py_INCREF, PyObject
from libc.errno cimport errno
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memset
cimport numpy as cnp

from strata._core.abi cimport ST_AGAIN, ST_ENOMEM, ST_OK, st_ctx, st_owner
from strata._core.space cimport Context

import heapq

import numpy as np

from strata import errors
from strata._core import limits

cnp.import_array()


cdef extern from "Python.h":
    Py_ssize_t PyNumber_AsSsize_t(object o, object exc) except? -1


cdef extern from "numpy/arrayobject.h":
    bint PyDataType_REFCHK(cnp.dtype descr)
    object PyArray_NewFromDescr(type subtype, cnp.dtype descr, int nd, const cnp.npy_intp *dims,
                                const cnp.npy_intp *strides, void *data, int flags, PyObject *prototype)


cdef extern from "<sys/mman.h>" nogil:
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE
    void *MAP_FAILED
    void *mmap(void *addr, size_t length, int prot, int flags, int fd, long offset)
    int munmap(void *addr, size_t length)


cdef extern from "st_heap.h" nogil:
    size_t st_heap_arena_bytes(uint64_t segment_pages, uint64_t most_pages)
    int st_heap_init(void *arena, size_t arena_bytes, const st_heap_config *cfg, st_heap **out)
    int st_heap_take(st_heap *h, uint64_t bytes, uint64_t *va, int *fresh)
    int st_heap_grow(st_heap *h, uint64_t bytes, uint64_t *va, int *fresh)
    int st_heap_put(st_heap *h, uint64_t va)
    int st_heap_trim(st_heap *h, uint64_t keep)
    int st_heap_settle(st_heap *h)
    int st_heap_stats(st_heap *h, st_heap_stats_t *out)
    int st_heap_walk(st_heap *h, int (*visit)(void *, st_heap *, const st_heap_node *) noexcept nogil,
                     void *arg)
    int st_heap_collect(void *arg, st_heap *h, const st_heap_node *n)
    int st_heap_check(st_heap *h)


cdef extern from "st_heap_space.h" nogil:
    void st_heap_space_config(st_ctx *ctx, st_heap_config *cfg)


cdef enum:
    MAX_DIMS = 64
    BIG_FILL = 1 << 18  # bytes; zeroing more lets other threads run

KINDS = ("unused", "run", "cached", "chunk", "block", "hole")


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Block:
    """The memory of one fabric array, given back when the last view has gone.

    ``address`` and ``nbytes`` say which.  A forked child that drops its copy
    gives nothing back: the memory is the parent's.
    """

    cdef Heap heap
    cdef readonly uint64_t address
    cdef readonly uint64_t nbytes

    def __init__(self):
        raise TypeError("fabric memory comes from strata.empty() and its like")

    def __dealloc__(self):
        cdef st_heap *h
        if self.address:
            h = self.heap.h
            if st_heap_put(h, self.address) == ST_AGAIN:
                with nogil:
                    st_heap_settle(h)

    def __repr__(self):
        return f"<{self.nbytes} bytes of fabric memory at {self.address:#x}>"


cdef class Heap:
    """The allocator of a die's fabric memory (see st_heap.h); made by ``heap_of``."""

    def __init__(self):
        raise TypeError("use heap_of(context)")

    def __dealloc__(self):
        if self.arena:
            munmap(self.arena, self.arena_bytes)

    cdef uint64_t take(self, uint64_t nbytes, int *fresh) except 0:
        """Address of a new allocation; *fresh: it is known to be all zero."""
        cdef uint64_t va = 0
        cdef int rc = st_heap_take(self.h, nbytes, &va, fresh)
        return va if rc == ST_OK else self.grow(nbytes, fresh, rc)

    cdef uint64_t grow(self, uint64_t nbytes, int *fresh, int rc) except 0:
        """The same where pages must be mapped, or the reason why not is to be raised."""
        cdef uint64_t va = 0
        cdef int err = 0
        if rc == ST_AGAIN:
            if self.groups:
                self._look_ahead(nbytes)
            with nogil:
                rc = st_heap_grow(self.h, nbytes, &va, fresh)
                err = errno
            if rc == ST_OK:
                return va
        if rc == ST_ENOMEM:
            raise self._shortage(nbytes)
        raise errors.from_status(rc, f"cannot map {nbytes} bytes of fabric memory", errno=err)

    def _look_ahead(self, uint64_t nbytes):
        """Raises if a cgroup would kill a process for these pages; empties the cache before."""
        cdef uint64_t needed = pages_for(nbytes)
        for attempt in range(2):
            group = limits.cgroup_free(self.groups)
            if group is None or group.free >= needed:
                return
            if attempt == 0:
                self.trim()
        raise self._shortage(nbytes)

    def _shortage(self, uint64_t nbytes):
        if not isinstance(self.source, Context):
            return errors.FabricMemoryError(f"no room for {nbytes} bytes")
        cdef Context ctx = self.source
        live = [(r[1], r[0]) for r in self.walk() if r[3] in ("run", "block")]
        return limits.shortage(
            nbytes,
            pages_for(nbytes),
            rank=ctx.ctx.rank,
            hbm_free=ctx.ctx.frames_left * ST_HEAP_PAGE,
            hbm_total=ctx.ctx.hbm_pages * ST_HEAP_PAGE,
            fd=ctx.ctx.fd,
            groups=self.groups,
            holders=heapq.nlargest(3, live),
            held=(sum(size for size, _ in live), len(live)),
        )

    cdef object new_array(self, int nd, const cnp.npy_intp *dims, cnp.dtype descr, bint zero):
        """A C-ordered array of the heap's memory.  The dtype holds no references."""
        cdef uint64_t nbytes = array_bytes(nd, dims, descr)
        cdef int fresh = 0
        cdef Block block = Block.__new__(Block)
        cdef cnp.ndarray array
        block.heap = self
        block.nbytes = nbytes
        block.address = self.take(nbytes, &fresh)
        if zero and not fresh:
            fill_zero(block.address, nbytes)
        Py_INCREF(descr)  # the call takes a reference away
        array = PyArray_NewFromDescr(cnp.ndarray, descr, nd, dims, NULL, <void *><uintptr_t>block.address,
                                     cnp.NPY_ARRAY_CARRAY, NULL)
        cnp.set_array_base(array, block)
        return array

    def array(self, shape, dtype, bint zero=False):
        """A plain numpy array, C order, of memory that is zeroed if ``zero``.

        TypeError for dtypes with references; ValueError for a negative or
        unrepresentable shape; FabricMemoryError if there is no room.
        """
        cdef cnp.npy_intp dims[MAX_DIMS]
        cdef int nd = parse_shape(shape, dims)
        return self.new_array(nd, dims, parse_dtype(dtype), zero)

    def alloc(self, uint64_t nbytes):
        """(address, whether it is known to be all zero) of memory that free() must end."""
        cdef int fresh = 0
        va = self.take(nbytes, &fresh)
        return va, bool(fresh)

    def free(self, uint64_t va):
        """Ends what alloc() gave.  InvalidArgument if nothing begins at the address."""
        cdef int rc = st_heap_put(self.h, va)
        if rc == ST_AGAIN:
            with nogil:
                st_heap_settle(self.h)
        elif rc != ST_OK:
            raise errors.from_status(rc, f"no live allocation begins at {va:#x}")

    def trim(self, uint64_t keep=0):
        """Gives cached pages back until at most ``keep`` bytes of them are left."""
        cdef int rc, err
        with nogil:
            rc = st_heap_trim(self.h, keep)
            err = errno
        if rc != ST_OK:
            raise errors.from_status(rc, "pages could not be given back", errno=err)

    def stats(self):
        """Counters as a dict; all in bytes but live, allocations, maps, unmaps, flushes, *errors."""
        cdef st_heap_stats_t s
        cdef int rc = st_heap_stats(self.h, &s)
        if rc != ST_OK:
            raise errors.from_status(rc)
        return dict(s)

    def walk(self):
        """List of (address, bytes, bytes asked for, kind, fresh) of all ranges, by address.

        kind: "run" and "block" are live allocations, "hole" and "cached" are free,
        "chunk" is the page whose blocks and holes follow.
        """
        cdef st_heap_ranges out
        cdef st_heap_range *r
        cdef uint64_t i
        cdef int rc
        out.room = 256
        while True:
            out.count = 0
            out.item = <st_heap_range *>PyMem_Malloc(out.room * sizeof(st_heap_range))
            if out.item == NULL:
                raise MemoryError
            try:
                rc = st_heap_walk(self.h, st_heap_collect, &out)
                if rc != ST_OK:
                    raise errors.from_status(rc)
                if out.count <= out.room:
                    found = []
                    for i in range(out.count):
                        r = out.item + i
                        found.append((r.va, r.bytes, r.requested, KINDS[r.kind], bool(r.fresh)))
                    return found
            finally:
                PyMem_Free(out.item)
            out.room = out.count + 256  # other threads may add some before the next look

    def check(self):
        """0, or the line of st_heap_check.h whose invariant does not hold.  Linear; for tests."""
        return st_heap_check(self.h)


cdef inline uint64_t pages_for(uint64_t nbytes) noexcept nogil:
    """Bytes of the pages that a request takes when nothing is shared."""
    return (max(nbytes, <uint64_t>1) + ST_HEAP_PAGE - 1) // ST_HEAP_PAGE * ST_HEAP_PAGE


cdef void fill_zero(uint64_t va, uint64_t nbytes) noexcept:
    if nbytes >= BIG_FILL:
        with nogil:
            memset(<void *><uintptr_t>va, 0, nbytes)
    else:
        memset(<void *><uintptr_t>va, 0, nbytes)


cdef int parse_shape(object shape, cnp.npy_intp *dims) except -1:
    """Number of dimensions of an integer or a sequence of integers, as numpy takes them."""
    cdef int nd = 0
    if isinstance(shape, bool):
        raise TypeError(f"shape: an integer or a sequence of integers expected, not {shape}")
    if isinstance(shape, int):
        dims[0] = PyNumber_AsSsize_t(shape, ValueError)
        return 1
    if not isinstance(shape, (tuple, list)):
        try:
            shape = tuple(shape)
        except TypeError:
            shape = (shape,)
    if len(shape) > MAX_DIMS:
        raise ValueError(f"shape has {len(shape)} dimensions, and numpy allows {MAX_DIMS}")
    for item in shape:
        dims[nd] = PyNumber_AsSsize_t(item, ValueError)
        nd += 1
    return nd


cdef uint64_t array_bytes(int nd, const cnp.npy_intp *dims, cnp.dtype descr) except? 1:
    """Bytes of an array; ValueError if negative or beyond what numpy can index."""
    cdef uint64_t total = descr.itemsize
    cdef bint empty = False
    for i in range(nd):
        if dims[i] < 0:
            raise ValueError(f"negative dimensions are not allowed: {dims[i]} along axis {i}")
        if dims[i] == 0:
            empty = True
        elif total > (<uint64_t>1 << 63) // <uint64_t>dims[i]:
            raise ValueError("array is too big: its size in bytes does not fit into 63 bits")
        else:
            total *= <uint64_t>dims[i]
    if total >> 63:
        raise ValueError("array is too big: its size in bytes does not fit into 63 bits")
    return 0 if empty else total


cdef object parse_dtype(object dtype):
    cdef cnp.dtype descr = dtype if isinstance(dtype, cnp.dtype) else np.dtype(dtype)
    if PyDataType_REFCHK(descr):
        raise TypeError(f"dtype {descr} holds references to Python objects, which mean nothing on another die")
    if descr.itemsize == 0:
        descr = np.empty(0, descr).dtype  # numpy's rule: "S" is "S1"
    return descr


cdef Heap make_heap(const st_heap_config *config, object source, tuple groups):
    """A heap over a provider of pages that belongs to ``source``."""
    cdef Heap heap = Heap.__new__(Heap)
    cdef size_t size = st_heap_arena_bytes(config.segment_pages, config.most_pages)
    cdef void *arena
    cdef int rc
    if size == 0:
        raise errors.InvalidArgument(f"no heap of {config.most_pages} pages in a segment of {config.segment_pages}")
    arena = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    if arena == MAP_FAILED:
        raise errors.HostError(
            f"no {limits.human(size)} of address space for the heap's tables (nearly all of it stays unused); "
            "lower --hbm (STRATA_HBM), or raise `ulimit -v`, or allow overcommit (vm.overcommit_memory=0)",
            errno=errno,
        )
    heap.arena = arena
    heap.arena_bytes = size
    rc = st_heap_init(arena, size, config, &heap.h)
    if rc != ST_OK:
        raise errors.from_status(rc, "the heap cannot be set up", errno=errno)
    heap.source = source
    heap.groups = groups
    return heap


cpdef Heap heap_of(Context ctx):
    """The heap of a die that has joined its job; made at the first call."""
    cdef st_heap_config config
    cdef Heap heap
    if ctx.heap is not None:
        return <Heap>ctx.heap
    if not ctx.ctx.pid:
        raise errors.NotInJob("a viewer of the UB space has no memory in it: join first")
    st_heap_space_config(&ctx.ctx, &config)
    config.cache_bytes = ctx.config.cache_bytes
    heap = make_heap(&config, ctx, limits.cgroups())
    if ctx.heap is None:  # else another thread was faster: what we made has no pages yet
        ctx.heap = heap
    return <Heap>ctx.heap


cpdef object alloc_array(Context ctx, object shape, object dtype, bint zero=False):
    """Heap.array() of a die's own heap."""
    cdef cnp.npy_intp dims[MAX_DIMS]
    cdef int nd = parse_shape(shape, dims)
    return heap_of(ctx).new_array(nd, dims, parse_dtype(dtype), zero)


def pointer(x):
    """Address of the first element of an array, or of any object with a buffer; else None."""
    cdef Py_buffer view
    if isinstance(x, cnp.ndarray):
        return <uintptr_t>cnp.PyArray_DATA(<cnp.ndarray>x)
    if not PyObject_CheckBuffer(x) or isinstance(x, np.generic):
        return None
    try:
        PyObject_GetBuffer(x, &view, PyBUF_RECORDS_RO)
    except (BufferError, ValueError):
        return None
    va = <uintptr_t>view.buf
    PyBuffer_Release(&view)
    return va


def owner(Context ctx, x):
    """World rank of the die whose memory ``x`` points into; -1 if none."""
    va = pointer(x)
    return -1 if va is None else st_owner(&ctx.ctx, va)
