"""Who is in a group, and the memory by which they talk to each other."""

cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t

import numpy as np

from strata._core.abi cimport ST_ECORRUPT, ST_EDEAD, ST_EINTR, ST_ENOMEM, ST_ESYS, ST_OK, st_ctx, st_ensure_mapped
from strata._core.heap cimport ST_HEAP_GROUP
from strata._core.space cimport deadline_of, st_raise_pending

from strata import errors
from strata._core import closing

cnp.import_array()


cdef extern from "st_rendezvous.h" nogil:
    uint64_t st_group_bytes(uint64_t n, uint64_t mailbox_bytes)
    int st_group_bind(st_group *g, uint8_t *memory, uint64_t bytes)
    void st_group_format(uint8_t *memory, uint32_t n, uint64_t mailbox_bytes, const uint64_t *id,
                         const uint32_t *ranks)
    int st_rendezvous_publish(st_ctx *ctx, const uint64_t *key, uint64_t va, uint64_t bytes,
                              int status, uint32_t readers, uint64_t timeout_ns)
    int st_rendezvous_await(st_ctx *ctx, uint32_t leader, uint64_t life, const uint64_t *key, uint64_t timeout_ns,
                            uint64_t *va, uint64_t *bytes)
    void st_group_set_lives(uint8_t *memory, uint32_t n, const uint32_t *lives)
    int st_group_pin(st_group *g, uint64_t va, uint64_t bytes, uint64_t life)
    void st_group_found(st_group *g)


cdef extern from "st_flight.h" nogil:
    void st_flight_group_open(st_ctx *ctx, uint64_t id, uint64_t va, uint32_t n, uint32_t me, const char *name)


cdef class Membership:
    """The part of a group that finds its memory."""

    def _bind(self, size_t va, uint64_t nbytes):
        cdef uint32_t i
        cdef int rc = st_group_bind(&self.g, <uint8_t *>va, nbytes)
        if rc != ST_OK:
            raise errors.from_status(rc, f"the memory of group {self.name} is not what its members agreed on")
        for i in range(self.g.n):
            if self.g.lives[i] != self.lives[i]:
                raise errors.from_status(ST_EDEAD, f"a member of group {self.name} was started again meanwhile",
                                         ranks=(self.ranks[i],), group=self.name, operation="group")
        st_flight_group_open(self.g.ctx, self.g.id, self.g.va, self.g.n, self.g.me, self.name.encode())

    def _adopt(self, memory):
        """Memory that a group that grows has already."""
        cdef uint64_t nbytes, va
        cdef int rc
        if isinstance(memory, np.ndarray):
            self._memory = memory
            va, nbytes = <uint64_t>cnp.PyArray_DATA(<cnp.ndarray>memory), memory.nbytes
            self.g.va = va
        else:
            va, nbytes, life = memory
            rc = self._hold(va, nbytes, life)
            if rc != ST_OK:
                raise errors.from_status(
                    rc, f"the memory of group {self.name} went with the die that had it", errno=errno,
                    ranks=(self.context.owner(va),), group=self.name, operation="grow",
                )
        self._bind(va, nbytes)
        st_group_found(&self.g)

    cdef int _hold(self, uint64_t va, uint64_t nbytes, uint64_t life) noexcept:
        """Pins and maps memory that process ``life`` of another die has made."""
        cdef int rc
        with nogil:
            rc = st_group_pin(&self.g, va, nbytes, life)
            if rc == ST_OK:
                rc = st_ensure_mapped(self.g.ctx, va, nbytes, 1)
        return rc

    def _find_memory(self, bytes key, timeout):
        """The leader (first member) allocates and publishes, the others wait for it."""
        cdef uint64_t ns = deadline_of(timeout, self.context)
        cdef const uint64_t *id = <const uint64_t *>PyBytes_AS_STRING(key)
        cdef uint64_t nbytes = st_group_bytes(self.g.n, self.context.mailbox_bytes), va = 0, got = 0
        cdef uint32_t leader = self.g.ranks[0]
        cdef uint64_t life = self.lives[0]
        cdef cnp.ndarray lives = np.array(self.lives, np.uint32)
        cdef int rc, status = ST_OK
        cdef size_t at = 0
        if len(key) != 16:
            raise ValueError("16 bytes expected")
        closing.sweep()
        if self.g.me == 0:
            failure = None
            try:
                self._memory = self._allocate(nbytes, ST_HEAP_GROUP)
                at = <size_t>cnp.PyArray_DATA(<cnp.ndarray>self._memory)
                st_group_format(<uint8_t *>at, self.g.n, self.context.mailbox_bytes, id, self.g.ranks)
                st_group_set_lives(<uint8_t *>at, self.g.n, <const uint32_t *>cnp.PyArray_DATA(lives))
            except errors.FabricMemoryError as error:
                failure, status, at = error, ST_ENOMEM, 0
            except Exception as error:  # whatever it was: the others must not wait for this die
                failure, status, at = error, ST_ESYS, 0
            with nogil:
                rc = st_rendezvous_publish(self.g.ctx, id, at, nbytes, status, self.g.n - 1, ns)
            if failure is not None:
                raise failure
            va = at
        else:
            with nogil:
                rc = st_rendezvous_await(self.g.ctx, leader, life, id, ns, &va, &got)
            if rc == ST_OK:
                rc = self._hold(va, nbytes, life)
            if rc == ST_OK and got != nbytes:
                rc = ST_ECORRUPT
        if rc == ST_EINTR:
            st_raise_pending()
        if rc != ST_OK:
            raise errors.from_status(
                rc, f"cannot form group {self.name}: its first member, rank {leader}, has not made its memory"
                if self.g.me else f"cannot form group {self.name}: 64 earlier groups wait for members",
                errno=errno, ranks=(leader,), group=self.name, operation="group",
            )
        self.g.va = va
        self._bind(va, nbytes)
        st_group_found(&self.g)

    def _allocate(self, nbytes, int tag):
        """Zeroed fabric memory of this die, as a byte array that owns it."""
        from strata._core import memory
        return memory.alloc_array(self.context, (nbytes,), np.dtype(np.uint8), True, tag)
