"""The allocator of a die's fabric memory: addresses, statistics, and reasons why there is no room."""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport errno
from libc.stdint cimport UINT64_MAX, uint64_t, uintptr_t

from strata._core.abi cimport ST_AGAIN, ST_ENOMEM, ST_OK, st_ctx
from strata._core.space cimport Context

import heapq
import os
import threading

import numpy

from strata import errors
from strata._core import limits


cdef extern from "<sys/mman.h>" nogil:
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE
    void *MAP_FAILED
    void *mmap(void *addr, size_t length, int prot, int flags, int fd, long offset)
    int munmap(void *addr, size_t length)


cdef extern from *:
    """
    /* Exported by every CPython from 3.7 on, but private: without it, no places are known. */
    PyAPI_FUNC(PyObject *) _PyTraceMalloc_GetTraceback(unsigned int, uintptr_t) __attribute__((weak));

    static PyObject *st_traceback(unsigned int domain, uintptr_t va)
    {
        if (!_PyTraceMalloc_GetTraceback)
            Py_RETURN_NONE;
        return _PyTraceMalloc_GetTraceback(domain, va);
    }
    """
    object st_traceback(unsigned int domain, uintptr_t va)


cdef extern from "st_heap.h" nogil:
    size_t st_heap_arena_bytes(uint64_t segment_pages, uint64_t most_pages)
    int st_heap_init(void *arena, size_t arena_bytes, const st_heap_config *cfg, st_heap **out)
    int st_heap_take_as(st_heap *h, uint64_t bytes, int tag, uint64_t *va, int *fresh)
    int st_heap_grow_as(st_heap *h, uint64_t bytes, int tag, uint64_t *va, int *fresh)
    int st_heap_put(st_heap *h, uint64_t va)
    int st_heap_trim(st_heap *h, uint64_t keep)
    int st_heap_settle(st_heap *h)
    int st_heap_set_limit(st_heap *h, uint64_t bytes)
    int st_heap_fill_pool(st_heap *h, uint64_t pages)
    int st_heap_reset_peaks(st_heap *h)
    void st_heap_refused(st_heap *h)
    int st_heap_stats(st_heap *h, st_heap_stats_t *out)
    int st_heap_walk(st_heap *h, int (*visit)(void *, st_heap *, const st_heap_node *) noexcept nogil,
                     void *arg)
    int st_heap_collect(void *arg, st_heap *h, const st_heap_node *n)
    int st_heap_check(st_heap *h)


cdef extern from "st_heap_space.h" nogil:
    void st_heap_space_config(st_ctx *ctx, st_heap_config *cfg)
    void st_heap_space_show(st_heap *h, const st_ctx *ctx)


KINDS = ("unused", "run", "cached", "chunk", "block", "hole")
# What an allocation is for, by its tag: one of them, several of them.
TAGS = (
    ("array", "arrays"), ("group memory", "group memories"),
    ("channel", "channels"),
    ("staging copy", "staging copies"),
    ("intercepted allocation", "intercepted allocations"),
    ("raw allocation", "raw allocations"),
    ("memory of the DMA engine", "memories of the DMA engine"),
)
ARRAY, GROUP, CHANNEL, STAGING, FOREIGN, RAW, SDMA = range(ST_HEAP_TAGS)
POOLS = ("small_pool", "large_pool", "all")
DOMAIN = TRACE_DOMAIN
_PACKAGES = tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in (errors.__file__, numpy.__file__))
_making = threading.Lock()


cdef list _names(str name):
    return [tuple(f"{name}.{pool}.{what}" for what in ("current", "peak", "allocated", "freed")) for pool in POOLS]


_COUNT, _ACTIVE, _SEGMENT, _HOLES = map(_names, ("allocation", "active", "segment", "inactive_split"))
_ALLOCATED, _ACTIVE_BYTES, _REQUESTED, _RESERVED, _HOLE_BYTES = map(
    _names, ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes", "inactive_split_bytes")
)


cdef int _enter(dict found, list names, const st_heap_stat *s) except -1:
    cdef int pool
    for pool in range(3):
        current, peak, added, taken = names[pool]
        found[current] = s.now[pool]
        found[peak] = s.peak[pool]
        found[added] = s.added[pool]
        found[taken] = s.added[pool] - s.now[pool]
    return 0


cdef class Heap:
    """The allocator of a die's fabric memory (see st_heap.h); made by ``heap_of``."""

    def __init__(self):
        raise TypeError("use heap_of(context)")

    def __dealloc__(self):
        if self.arena:
            munmap(self.arena, self.arena_bytes)

    cdef uint64_t take(self, uint64_t nbytes, int tag, int *fresh) except 0:
        """Address of a new allocation; *fresh: it is known to be all zero."""
        cdef uint64_t va = 0
        cdef int rc = st_heap_take_as(self.h, nbytes, tag, &va, fresh)
        if rc != ST_OK:
            va = self.grow(nbytes, tag, fresh, rc)
        PyTraceMalloc_Track(TRACE_DOMAIN, va, nbytes)  # nothing, unless tracemalloc is tracing
        return va

    cdef uint64_t grow(self, uint64_t nbytes, int tag, int *fresh, int rc) except 0:
        """The same where pages must be mapped, or the reason why not is to be raised."""
        cdef uint64_t va = 0
        cdef int err = 0
        if rc == ST_AGAIN:
            if self.groups and not self.h.pool_pages:
                self._look_ahead(nbytes)
            with nogil:
                rc = st_heap_grow_as(self.h, nbytes, tag, &va, fresh)
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
        st_heap_refused(self.h)
        raise self._shortage(nbytes)

    def _shortage(self, uint64_t nbytes):
        """The error that says what there is, and who holds it."""
        if not isinstance(self.source, Context):
            return errors.FabricMemoryError(f"no room for {nbytes} bytes")
        cdef Context ctx = self.source
        stats = self.stats()
        live = [(bytes_, va, tag) for va, bytes_, _, kind, _, tag in self.walk() if kind in ("run", "block")]
        kinds = {}
        for size, _, tag in live:
            total, count = kinds.get(tag, (0, 0))
            kinds[tag] = total + size, count + 1
        return limits.shortage(
            nbytes,
            pages_for(nbytes),
            limits.Held(
                kinds=[(total, count, TAGS[tag][count > 1]) for tag, (total, count) in kinds.items()],
                largest=[limits.Holder(size, va, TAGS[tag][0], self.place(va))
                         for size, va, tag in heapq.nlargest(5, live)],
                cached=stats["cached_bytes"],
                piece=stats["largest_free_bytes"],
                reserved=stats["reserved_bytes.all.current"],
                frames=limits.enough_frames(),
            ),
            rank=ctx.ctx.rank,
            hbm_free=ctx.ctx.frames_left * ST_HEAP_PAGE,
            hbm_total=ctx.ctx.hbm_pages * ST_HEAP_PAGE,
            fd=ctx.ctx.fd,
            groups=self.groups,
            limit=self.limit,
            pool=self.h.pool_pages * ST_HEAP_PAGE,
            quarantined=ctx.ctx.quarantined_frames * ST_HEAP_PAGE,
        )

    def alloc(self, uint64_t nbytes, int tag=ST_HEAP_RAW):
        """(address, whether it is known to be all zero) of memory that free() must end.

        ``tag``: what for, an index into TAGS.  FabricMemoryError if there is no room.
        """
        cdef int fresh = 0
        if not 0 <= tag < ST_HEAP_TAGS:
            raise ValueError(f"tag={tag}: 0 to {ST_HEAP_TAGS - 1} expected")
        va = self.take(nbytes, tag, &fresh)
        return va, bool(fresh)

    def free(self, uint64_t va):
        """Ends what alloc() gave.  InvalidArgument if nothing begins at the address."""
        PyTraceMalloc_Untrack(TRACE_DOMAIN, va)
        cdef int rc = st_heap_put(self.h, va)
        if rc == ST_AGAIN:
            with nogil:
                st_heap_settle(self.h)
        elif rc != ST_OK:
            raise errors.from_status(rc, f"no live allocation begins at {va:#x}")

    def trim(self, uint64_t keep=0):
        """Gives cached pages back until at most ``keep`` bytes of them are left; nothing in pool mode."""
        cdef int rc, err
        with nogil:
            rc = st_heap_trim(self.h, keep)
            err = errno
        if rc != ST_OK:
            raise errors.from_status(rc, "pages could not be given back", errno=err)

    def set_limit(self, nbytes):
        """From now on at most ``nbytes`` are reserved (None: what the source has).

        What is in use beyond it stays; cached pages go as far as they must.
        InvalidArgument in pool mode, ValueError for a negative number.
        """
        cdef uint64_t most
        cdef int rc, err
        if nbytes is not None and not 0 <= nbytes < 1 << 63:
            raise ValueError(f"limit={nbytes}: bytes, 0 or more, expected (None: no limit)")
        if self.h.pool_pages:
            raise errors.InvalidArgument("registration=pool: the pool is the limit, and is set by STRATA_POOL")
        most = UINT64_MAX if nbytes is None else nbytes
        self.limit = nbytes
        with nogil:
            rc = st_heap_set_limit(self.h, most)
            err = errno
        if rc != ST_OK:
            raise errors.from_status(rc, "pages could not be given back", errno=err)

    def fill_pool(self, uint64_t pages):
        """Maps all the pages that this heap, which has none yet, will ever have."""
        cdef int rc, err
        if self.groups:
            self._look_ahead(pages * ST_HEAP_PAGE)
        with nogil:
            rc = st_heap_fill_pool(self.h, pages)
            err = errno
        if rc == ST_ENOMEM:
            raise self._shortage(pages * ST_HEAP_PAGE)
        if rc != ST_OK:
            raise errors.from_status(rc, f"no pool of {pages} pages", errno=err)

    def reset_peaks(self):
        """All peaks are what there is now."""
        cdef int rc = st_heap_reset_peaks(self.h)
        if rc != ST_OK:
            raise errors.from_status(rc)

    def stats(self):
        """Counters as a flat dict; strata.memory_stats() says what they mean."""
        cdef st_heap_stats_t s
        cdef dict found = {}
        cdef int rc = st_heap_stats(self.h, &s)
        if rc != ST_OK:
            raise errors.from_status(rc)
        _enter(found, _COUNT, &s.count)
        _enter(found, _ACTIVE, &s.count)  # what is freed is free at once
        _enter(found, _ALLOCATED, &s.allocated)
        _enter(found, _ACTIVE_BYTES, &s.allocated)
        _enter(found, _REQUESTED, &s.requested)
        _enter(found, _RESERVED, &s.reserved)
        _enter(found, _SEGMENT, &s.segments)
        _enter(found, _HOLES, &s.holes)
        _enter(found, _HOLE_BYTES, &s.hole_bytes)
        found["num_alloc_retries"] = s.flushes
        found["num_ooms"] = s.refusals
        found["num_device_alloc"] = s.maps
        found["num_device_free"] = s.unmaps
        found["remaps"] = s.remaps
        found["remapped_bytes"] = s.remapped_pages * ST_HEAP_PAGE
        found["cached_bytes"] = s.cached_bytes
        found["largest_free_bytes"] = s.largest_free
        found["pool_bytes"] = self.h.pool_pages * ST_HEAP_PAGE
        found["bad_frees"] = s.bad_frees
        found["unmap_errors"] = s.unmap_errors
        return found

    def walk(self):
        """List of (address, bytes, bytes asked for, kind, fresh, tag) of all ranges, by address.

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
                        found.append((r.va, r.bytes, r.requested, KINDS[r.kind], bool(r.fresh), r.tag))
                    return found
            finally:
                PyMem_Free(out.item)
            out.room = out.count + 256  # other threads may add some before the next look

    def frames(self, uint64_t va):
        """Where an allocation was made: ((file, line), ...), innermost first; None if tracemalloc did not trace it."""
        return st_traceback(TRACE_DOMAIN, va) or st_traceback(NUMPY_DOMAIN, va)

    def place(self, uint64_t va):
        """Where an allocation was made, as "file:line" of the first frame outside strata and numpy; or None."""
        frames = self.frames(va)
        if not frames:
            return None
        for file, line in frames:
            if not file.startswith(_PACKAGES):
                return f"{file}:{line}"
        return f"{file}:{line}"

    def check(self):
        """0, or the line of st_heap_check.h whose invariant does not hold.  Linear; for tests."""
        return st_heap_check(self.h)


cdef inline uint64_t pages_for(uint64_t nbytes) noexcept nogil:
    """Bytes of the pages that a request takes when nothing is shared."""
    return (max(nbytes, <uint64_t>1) + ST_HEAP_PAGE - 1) // ST_HEAP_PAGE * ST_HEAP_PAGE


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
    heap.source, heap.groups = source, groups
    return heap


cpdef Heap heap_of(Context ctx):
    """The heap of a die that has joined its job; made, with the pool in pool mode, at the first call.

    ConfigError if the pool does not fit; FabricMemoryError if there is no room for it.
    """
    if ctx.heap is None:
        if not ctx.ctx.pid:
            raise errors.NotInJob("a viewer of the UB space has no memory in it: join first")
        with _making:
            if ctx.heap is None:  # else another thread was faster
                ctx.heap = _make_heap_of(ctx)
    return <Heap>ctx.heap


cdef Heap _make_heap_of(Context ctx):
    cdef st_heap_config config
    cdef Heap heap
    options = ctx.config
    pool = options.pool_bytes if options.registration == "pool" else 0
    hbm = ctx.ctx.hbm_pages * ST_HEAP_PAGE
    if pool > hbm:
        raise errors.ConfigError(
            f"STRATA_POOL: a pool of {limits.human(pool)} does not fit into an HBM of {limits.human(hbm)}; "
            "lower STRATA_POOL, or raise --hbm (STRATA_HBM)"
        )
    limit = options.memory_limit
    if limit < pool:
        raise errors.ConfigError(
            f"STRATA_MEMORY_LIMIT: {limits.human(limit)} does not allow the pool of "
            f"{limits.human(pool)} (STRATA_POOL)"
        )
    st_heap_space_config(&ctx.ctx, &config)
    config.cache_bytes = options.cache_bytes
    config.limit_bytes = limit
    heap = make_heap(&config, ctx, limits.cgroups())
    st_heap_space_show(heap.h, &ctx.ctx)
    heap.limit = None if limit >= hbm else limit
    if pool:
        heap.fill_pool(pool // ST_HEAP_PAGE)
    return heap
