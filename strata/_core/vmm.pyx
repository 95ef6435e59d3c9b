"""Virtual memory management: frames without addresses, addresses without frames (see st_vmm.h)."""

cimport cython
from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free as c_free, malloc

from strata._core.abi cimport ST_AGAIN, ST_ENOMEM, ST_EREG, ST_OK, ST_PAGE_BYTES, st_ctx
from strata._core.space cimport Context

from strata import errors


cdef extern from "st_abi.h" nogil:
    uint32_t ST_EXPORT_SLOTS
    uint64_t ST_PTE_FRAME(uint64_t word)
    uint32_t ST_PTE_STATE(uint64_t word)


cdef extern from "st_export.h" nogil:
    int st_va_reserve(st_ctx *ctx, uint64_t npages, uint64_t align_pages, uint64_t *va)
    int st_va_free(st_ctx *ctx, uint64_t va, uint64_t npages)
    int st_handle_create(st_ctx *ctx, uint64_t npages, uint64_t *words)
    int st_handle_release(st_ctx *ctx, const uint64_t *words, uint64_t npages)
    int st_vmm_map(st_ctx *ctx, uint64_t va, const uint64_t *words, uint64_t npages)
    int st_vmm_unmap(st_ctx *ctx, uint64_t va, uint64_t npages)
    int st_vmm_access(st_ctx *ctx, uint64_t va, uint64_t npages, uint32_t state, uint64_t *done)
    int st_export_open(st_ctx *ctx, const uint64_t *words, uint64_t npages, uint32_t *slot, uint64_t *use)
    void st_export_close(st_ctx *ctx, uint32_t slot, uint64_t use)
    int st_import(st_ctx *ctx, uint32_t die, uint32_t slot, uint64_t use, uint64_t npages, uint64_t *words)
    void st_import_end(st_ctx *ctx, uint32_t die, uint32_t slot)


cdef extern from "st_alias.h" nogil:
    uint64_t st_page_word(const st_ctx *ctx, uint64_t va)
    bint st_alias_frame(uint64_t word)


ACCESS = ("free", "read_write", "read", "none")  # in the order of enum st_page_state
EXPORT_SLOTS = ST_EXPORT_SLOTS


@cython.final
@cython.no_gc
cdef class Frames:
    """Pages of physical memory, made here or imported.  They are let go of when the last
    reference, of a handle or a mapping, has gone.

    ``npages``, ``die`` (world rank of the HBM they are in), ``imported``; ``handles`` counts
    the handles that hold them; ``offer``: (slot, use) of an open export or of the import, or None.
    """

    cdef Context context
    cdef uint64_t *words
    cdef object __weakref__
    cdef readonly uint64_t npages
    cdef readonly uint32_t die
    cdef readonly bint imported
    cdef bint offered
    cdef uint32_t slot
    cdef uint64_t use
    cdef readonly int handles

    def __init__(self):
        raise TypeError("frames come from create() and take()")

    @property
    def offer(self):
        return (self.slot, self.use) if self.offered else None

    def of(self, context):
        """Whether they are in the job of a context."""
        return self.context is context

    def export(self):
        """Opens an export, once.  RegistrationError if all slots of this die are taken."""
        cdef int rc, err
        if self.offered:
            return self.offer
        with nogil:
            rc = st_export_open(&self.context.ctx, self.words, self.npages, &self.slot, &self.use)
            err = errno
        if rc == ST_AGAIN:
            raise errors.RegistrationError(
                f"all {ST_EXPORT_SLOTS} exports of this die are in use: release exported handles (an export lasts "
                "until the dies that imported it have let go of it, too)", ranks=(self.context.ctx.rank,))
        if rc == ST_ENOMEM and err == 0:
            raise errors.FabricMemoryError(
                f"no free range of {self.npages} pages of addresses, which an export takes: free address ranges")
        if rc != ST_OK:
            raise errors.from_status(rc, None, errno=err)
        self.offered = True
        return self.offer

    @property
    def identity(self):
        """What names the memory: equal for imports of one export."""
        return (self.die, self.slot, self.use) if self.imported else self

    def hand(self):
        """One more handle holds them."""
        self.handles += 1

    def unhand(self):
        """One less.  With the last the export ends: what is imported stays until its importers let go."""
        self.handles -= 1
        if self.handles == 0 and self.offered and not self.imported:
            self.offered = False
            with nogil:
                st_export_close(&self.context.ctx, self.slot, self.use)

    def __dealloc__(self):
        if self.words == NULL:
            return
        with nogil:
            if self.imported:
                st_import_end(&self.context.ctx, self.die, self.slot)
            else:
                if self.offered:
                    st_export_close(&self.context.ctx, self.slot, self.use)
                st_handle_release(&self.context.ctx, self.words, self.npages)
            c_free(self.words)


cdef Frames _new(Context context, uint64_t npages):
    cdef Frames frames = Frames.__new__(Frames)
    frames.context = context
    frames.npages = npages
    return frames


def create(Context context, uint64_t npages):
    """Zeroed frames of this die's HBM; None: there is no room."""
    cdef Frames frames = _new(context, npages)
    cdef uint64_t *words
    cdef int rc, err
    if npages > context.ctx.hbm_pages:
        return None
    words = <uint64_t *>malloc(8 * npages)
    if words == NULL:
        raise MemoryError
    with nogil:
        rc = st_handle_create(&context.ctx, npages, words)
        err = errno
    if rc != ST_OK:
        c_free(words)
        if rc == ST_ENOMEM:
            return None
        raise errors.from_status(rc, None, errno=err)
    frames.words = words
    frames.die = context.ctx.rank
    return frames


def take(Context context, uint32_t die, uint32_t slot, uint64_t use, uint64_t npages):
    """Frames that another die exports."""
    cdef Frames frames = _new(context, npages)
    cdef uint64_t *words
    cdef int rc
    if npages == 0 or npages > context.ctx.hbm_pages:
        raise errors.InvalidArgument(f"an export of {npages} pages cannot be")
    words = <uint64_t *>malloc(8 * npages)
    if words == NULL:
        raise MemoryError
    with nogil:
        rc = st_import(&context.ctx, die, slot, use, npages, words)
    if rc != ST_OK:
        c_free(words)
        raise errors.from_status(rc, f"rank {die} has released the handle, or has never exported it: "
                                 "its export is over" if rc == ST_EREG else None, ranks=(die,))
    frames.words = words
    frames.die = die
    frames.slot = slot
    frames.use = use
    frames.imported = frames.offered = True
    return frames


def reserve(Context context, uint64_t npages, uint64_t align_pages):
    """Addresses with nothing under them; 0: the segment has no such range."""
    cdef uint64_t va = 0
    cdef int rc, err
    with nogil:
        rc = st_va_reserve(&context.ctx, npages, align_pages, &va)
        err = errno
    if rc == ST_ENOMEM and err == 0:
        return 0
    if rc != ST_OK:
        raise errors.from_status(rc, "/dev/shm has no room for the page table of these addresses"
                                 if rc == ST_ENOMEM else None, errno=err)
    return va


cdef int refuse(int rc, int err, str what, uint64_t va, uint64_t npages) except -1:
    if rc != ST_OK:
        text = errors.STATUS[rc].phrase or f"{what} {npages * ST_PAGE_BYTES} bytes at {va:#x} failed"
        raise errors.from_status(rc, text, errno=err)
    return 0


def free(Context context, uint64_t va, uint64_t npages):
    """Gives reserved addresses back, under which there is nothing."""
    refuse(st_va_free(&context.ctx, va, npages), 0, "freeing", va, npages)


def map(Context context, uint64_t va, Frames frames, uint64_t first, uint64_t npages):
    """Puts frames [first, first + npages) under reserved addresses, without access."""
    if first > frames.npages or npages > frames.npages - first:
        raise errors.InvalidArgument(f"frames {first} to {first + npages} of {frames.npages}")
    refuse(st_vmm_map(&context.ctx, va, frames.words + first, npages), 0, "mapping", va, npages)


def unmap(Context context, uint64_t va, uint64_t npages):
    """Takes the frames away; all of the pages have one."""
    cdef int rc, err
    with nogil:
        rc = st_vmm_unmap(&context.ctx, va, npages)
        err = errno
    refuse(rc, err, "unmapping", va, npages)


def access(Context context, uint64_t va, uint64_t npages, str kind):
    """Changes the access (one of ACCESS but "free") of mapped pages, here and on all peers."""
    cdef uint32_t state = ACCESS.index(kind)
    cdef uint64_t done = 0
    cdef int rc, err
    with nogil:
        rc = st_vmm_access(&context.ctx, va, npages, state, &done)
        err = errno
    if rc != ST_OK and done:
        raise errors.from_status(rc, f"only the first {done * ST_PAGE_BYTES} of {npages * ST_PAGE_BYTES} bytes at "
                                 f"{va:#x} have access {kind!r} now; "
                                 + (errors.STATUS[rc].phrase or "a system call failed"), errno=err)
    refuse(rc, err, "changing access to", va, npages)


def look(Context context, uint64_t va):
    """(access, address in the UB space) of what is at va; access "free": nothing; address None:
    nothing, or a file that is not the UB space's (strata.register)."""
    cdef uint64_t word = st_page_word(&context.ctx, va)
    where = ST_PTE_FRAME(word) * ST_PAGE_BYTES + va % ST_PAGE_BYTES if st_alias_frame(word) else None
    return ACCESS[ST_PTE_STATE(word)], where


def closing(Context context):
    """Exports of this die that are over but for importers which have not let go."""
    return context.ctx.closing


@cython.final
cdef class View:
    """Memory that arrays are made on: a buffer that keeps ``holder`` alive."""

    cdef readonly object holder
    cdef readonly uint64_t address, nbytes
    cdef readonly bint readonly
    cdef object __weakref__
    cdef Py_ssize_t shape

    def __init__(self, holder, uint64_t address, uint64_t nbytes, bint readonly):
        self.holder, self.address, self.nbytes, self.readonly = holder, address, nbytes, readonly
        self.shape = nbytes

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        cdef char *format = b"B"
        if flags & 1 and self.readonly:  # PyBUF_WRITABLE
            raise BufferError("this range of addresses may only be read")
        buffer.buf = <void *><uintptr_t>self.address
        buffer.obj = self
        buffer.len = self.nbytes
        buffer.itemsize = 1
        buffer.readonly = self.readonly
        buffer.format = format if flags & 4 else NULL
        buffer.ndim = 1
        buffer.shape = &self.shape
        buffer.strides = &buffer.itemsize
        buffer.suboffsets = NULL
        buffer.internal = NULL
