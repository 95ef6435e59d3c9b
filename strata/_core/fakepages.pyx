"""A page provider without a job, for tests of the heap (st_heap_fake.h)."""

from libc.stdint cimport UINT64_MAX, uint64_t, uintptr_t
from libc.string cimport memset

from strata._core.heap cimport ST_HEAP_PAGE, make_heap, st_heap_config

from strata import errors


cdef extern from "<sys/mman.h>" nogil:
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE
    void *MAP_FAILED
    void *mmap(void *addr, size_t length, int prot, int flags, int fd, long offset)
    int munmap(void *addr, size_t length)


cdef extern from "st_heap_fake.h" nogil:
    uint64_t ST_FAKE_PAGES
    struct st_fake_pages:
        uint64_t base
        uint64_t npages
        uint64_t share
        uint64_t mapped
        uint64_t extended
        uint64_t calls
        uint64_t fail_at
        int failure
    int st_fake_map(void *arg, uint64_t n, uint64_t *va) noexcept
    int st_fake_extend(void *arg, uint64_t va, uint64_t n) noexcept
    int st_fake_unmap(void *arg, uint64_t va, uint64_t n) noexcept


cdef class FakePages:
    """``pages`` of private memory, of which ``share`` may be mapped at once."""

    cdef st_fake_pages fake
    cdef void *memory
    cdef size_t memory_bytes

    def __cinit__(self, uint64_t pages, uint64_t share):
        memset(&self.fake, 0, sizeof(self.fake))
        if not 0 < share <= pages <= ST_FAKE_PAGES:
            raise ValueError(f"1 to {ST_FAKE_PAGES} pages, and a share of them")
        self.memory_bytes = (pages + 1) * ST_HEAP_PAGE
        self.memory = mmap(NULL, self.memory_bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        if self.memory == MAP_FAILED:
            self.memory = NULL
            raise MemoryError
        self.fake.base = (<uintptr_t>self.memory + ST_HEAP_PAGE - 1) // ST_HEAP_PAGE * ST_HEAP_PAGE
        self.fake.npages = pages
        self.fake.share = share

    def __dealloc__(self):
        if self.memory:
            munmap(self.memory, self.memory_bytes)

    def heap(self, uint64_t cache_bytes, uint64_t limit=UINT64_MAX):
        """A heap that takes its pages from here, and at most ``limit`` bytes."""
        cdef st_heap_config config
        config.base = self.fake.base
        config.segment_pages = self.fake.npages
        config.most_pages = self.fake.share
        config.cache_bytes = cache_bytes
        config.limit_bytes = limit
        config.map = st_fake_map
        config.extend = st_fake_extend
        config.unmap = st_fake_unmap
        config.arg = &self.fake
        return make_heap(&config, self, ())

    def fail(self, uint64_t at, name):
        """The ``at``-th call from now on (1: the next; 0: none) fails: "ST_ENOMEM", "ST_ESYS", ..."""
        self.fake.fail_at = at
        self.fake.failure = [status.name for status in errors.STATUS].index(name)

    base = property(lambda self: (<FakePages>self).fake.base)
    mapped = property(lambda self: (<FakePages>self).fake.mapped)
    extended = property(lambda self: (<FakePages>self).fake.extended)
    calls = property(lambda self: (<FakePages>self).fake.calls)
