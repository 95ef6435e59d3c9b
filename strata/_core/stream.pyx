"""Streams: the order of what is queued on them, and what becomes of it."""

cimport numpy as cnp
from libc.stdint cimport uint64_t

import collections
import threading
import time
import weakref

import numpy as np

from strata._core.abi cimport (
    ST_EINTR,
    ST_ENOJOB,
    ST_ETIMEOUT,
    ST_OK,
    st_ctx,
    st_is_die,
    st_wait_policy,
)
from strata._core.engine cimport Engine, st_engine
from strata._core.group cimport st_item, st_progress
from strata._core.heap cimport ST_HEAP_SDMA
from strata._core.space cimport st_raise_pending, timeout_to_ns

from strata import errors
from strata._core import sdma
from strata._core.descriptors import DESCRIPTOR, GATE, HOST, WRITE
from strata._core.memory import alloc_array

cnp.import_array()


cdef extern from "st_stream.h" nogil:
    uint64_t ST_PROGRESS_WAKE
    uint64_t st_stream_done(const st_progress *p)
    void st_stream_reset(st_progress *p)
    int st_stream_wait(st_engine *e, st_progress *p, uint64_t number, const st_wait_policy *policy,
                       uint64_t timeout_ns)


cdef enum:
    QUEUED = 256   # items of a stream in progress at most: whoever queues more waits
    LINE = 64      # bytes of a struct st_progress
    LINES = 64     # of them are made at once


_lines = weakref.WeakKeyDictionary()  # Context -> addresses of struct st_progress in no use, arrays that all lie in
_local = threading.local()
FOREVER = np.uint64(0xffffffffffffffff)  # timeout of gates: what they wait for has its own
cdef object _Work = None  # strata._core.work.Work, which imports this
cdef int _current = 0  # `with strata.stream(s)` blocks in progress, of all threads


cdef object current():
    """This thread's current stream, a CoreStream, or None."""
    return getattr(_local, "stream", None) if _current else None


def enter(CoreStream stream):
    """Makes a stream (None: none) this thread's; returns the one before."""
    global _current
    before = getattr(_local, "stream", None)
    _local.stream = stream
    _current += 1
    return before


def leave(before):
    """Undoes enter()."""
    global _current
    _local.stream = before
    _current -= 1


def current_stream():
    """This thread's current stream, or None."""
    return current()


cdef class Progress:

    def __init__(self, Engine engine, str name):
        """Made by streams, each time that they begin anew."""
        cdef size_t at = 0
        self.engine, self.name = engine, name
        self.entries = collections.deque()
        with engine.lock:
            self.free, memory = _lines.setdefault(engine.context, ([], []))
            if not self.free:
                array = alloc_array(engine.context, (LINE * LINES,), np.dtype(np.uint8), True, ST_HEAP_SDMA)
                memory.append(array)
                at = <size_t>cnp.PyArray_DATA(<cnp.ndarray>array)
                self.free.extend(range(at, at + LINE * LINES, LINE))
            at = self.free.pop()
        self.c = <st_progress *>at
        st_stream_reset(self.c)

    def __del__(self):
        # Items keep their Progress until they have ended, so nothing raises this flag any more.
        if self.c != NULL:
            self.free.append(<size_t>self.c)
            self.c = NULL

    @property
    def flag(self):
        """Address of the flag, which counts the items that have ended."""
        return <size_t>self.c + 4 * ST_PROGRESS_WAKE

    def settle(self):
        """Lets go of items that have ended, oldest first, and takes the first error over."""
        while self.entries:
            first = self.entries[0]
            if not _done(first[1]):
                return
            self.judge(first[0], _error(first[1]), first[2])
            if self.entries and self.entries[0] is first:  # no other thread has
                self.entries.popleft()

    cdef int judge(self, uint64_t number, object error, object other) except -1:
        """Item ``number`` has ended so."""
        if error is None or self.error is not None:
            return 0
        cause = None if other is None or isinstance(error, errors.NotInJob) else (<Progress>other).cause()
        if cause is not None:
            what = errors.Cancelled(f"{self.name} waits for {(<Progress>other).name}, which failed: {cause}",
                                    ranks=getattr(cause, "ranks", ()), operation="stream")
            what.__cause__ = cause
            error = what
        self.failed, self.error = number, error
        return 0

    def cause(self, uint64_t before=<uint64_t>-1):
        """The error of the first item that failed, of those before number ``before``; None if none is known to have."""
        for number, handle, other in tuple(self.entries):  # others may settle it meanwhile
            if self.error is not None or self.over or number >= before or st_stream_done(self.c) < number:
                break
            _ended(handle, 1.0)  # at once: the flag is raised just before
            self.judge(number, _error(handle), other)
        return self.error

    def cancelled(self, str operation, str group="", number=None, uint64_t turn=<uint64_t>-2):
        """The error of an operation that was not carried out, item ``turn`` + 1."""
        cause = self.cause(turn + 1)
        error = errors.Cancelled(
            f"{operation} was not carried out, since something before it on {self.name} had failed"
            + (f": {cause}" if cause is not None else ""), ranks=getattr(cause, "ranks", ()), group=group,
            operation=operation, number=number or None)
        error.__cause__ = cause
        return error

    def ended(self, uint64_t number):
        """Whether item ``number`` has ended, well or not.  Never waits."""
        return st_stream_done(self.c) >= number

    def idle(self):
        """Whether all that was queued has ended, well or not.  Never waits."""
        self.settle()
        return not self.entries or st_stream_done(self.c) == self.issued

    def wait(self, uint64_t number, object timeout):
        """Waits for item ``number``.  Raises CollectiveTimeout and NotInJob; returns whether it went well, and all
        before it."""
        cdef uint64_t ns = timeout_to_ns(float("inf") if timeout is None else timeout, 0.0)
        cdef st_ctx *ctx = &self.engine.context.ctx
        cdef int rc
        with nogil:
            rc = st_stream_wait(self.engine.e, self.c, number, &ctx.wait, ns)
        if rc == ST_EINTR:
            st_raise_pending()
        if rc == ST_ETIMEOUT:
            raise errors.CollectiveTimeout(f"{self.name} has not come to item {number} within {timeout} s; it is at "
                                           f"{st_stream_done(self.c)}, and goes on", operation="stream")
        if rc == ST_ENOJOB:
            raise errors.NotInJob(f"strata.finalize() has ended what was queued on {self.name}", operation="stream")
        if rc == ST_OK:
            while self.entries and self.entries[0][0] <= number:
                _ended(self.entries[0][1], 1.0)  # at once: the flag is raised just before
                self.settle()
            return True
        self.cause()
        return number == 0 or number < self.failed

    def drain(self, timeout):
        """Waits until all that was queued has ended.  CollectiveTimeout: that takes longer than ``timeout``."""
        cdef double until = float("inf") if timeout is None else time.monotonic() + timeout
        for _, handle, _ in tuple(self.entries):
            if not _ended(handle, None if timeout is None else max(0.0, until - time.monotonic())):
                raise errors.CollectiveTimeout(f"{self.name} has failed, and what was queued on it has not ended "
                                               f"within {timeout} s", operation="stream")
        self.settle()

    def __len__(self):
        """Items in progress."""
        return len(self.entries)


cdef object _plain(handle):
    """The class whose methods look at a handle, and tell nobody (strata._core.clocked) that it was waited for."""
    global _Work
    if _Work is None:
        from strata._core.work import Work
        _Work = Work
    return _Work if isinstance(handle, _Work) else type(handle)


cdef bint _done(handle) except -1:
    return _plain(handle).done(handle)


cdef object _error(handle):
    return _plain(handle).exception(handle)


def _ended(handle, timeout):
    """Waits until a Work or Submission has ended, however it did.  Whether it has."""
    if not _done(handle):
        try:
            _plain(handle).wait(handle, timeout)
        except errors.StrataError:
            pass
    return _done(handle)


cdef class CoreStream:

    def __cinit__(self, *args, **kwargs):
        self.lock = threading.RLock()

    def _open(self, Engine engine, str name, depth):
        """Takes a ring and a flag."""
        self.progress = Progress(engine, name)
        self.ring = sdma.open_ring(engine, depth)

    def _check(self):
        """Raises NotInJob unless the stream may be used."""
        if self.progress is None or not st_is_die(&self.progress.engine.context.ctx):
            raise errors.NotInJob("this process was forked from a die and is not one itself", operation="stream")
        if self.ring is None:
            raise errors.NotInJob(f"{self.progress.name} has been closed", operation="stream")
        recorders = self.progress.engine.context.recorders
        if recorders is not None and threading.get_ident() in recorders:
            raise errors.InvalidArgument("what is queued on a stream, and waiting for it, cannot be captured: do it "
                                         "before or after the block", operation="capture")

    cdef int begin(self, st_item *item) except -1:
        """Gives an operation its turn, and takes the stream until end().  Waits if very much is queued."""
        self.lock.acquire()
        try:
            self._check()
            self._make_room(QUEUED)
        except BaseException:
            self.lock.release()
            raise
        item.stream = self.progress.c
        item.turn = self.progress.issued
        item.cancelled = self.progress.torn
        return 0

    cdef int end(self, object work) except -1:
        """The operation has been handed to its worker, or (None) it has not."""
        cdef Progress p = self.progress
        if work is not None:
            p.issued += not p.torn
            p.entries.append((p.issued, work, None))
        self.lock.release()
        return 0

    def _make_room(self, uint64_t most):
        """Waits until fewer than ``most`` items are in progress."""
        cdef Progress p = self.progress
        p.settle()
        while <uint64_t>len(p.entries) >= most:
            _ended(p.entries[0][1], None)
            p.settle()

    def _queue(self, descriptors, keep, Progress after=None, uint64_t number=0):
        """Queues descriptors as the stream's next item; after item ``number`` of ``after``, too, if that is given."""
        cdef Progress p
        cdef uint64_t n = len(descriptors), gates
        with self.lock:
            self._check()
            self._make_room(QUEUED)
            p = self.progress
            if p.torn:
                raise p.cancelled("what was queued", "", 0)
            gates = 1 if after is None else 2
            d = np.zeros(n + gates + 1, DESCRIPTOR)
            d["type"][:gates] = GATE
            d["bytes"][:gates], d["flags"][:gates] = FOREVER, HOST
            d["src"][0], d["value"][0] = p.flag, p.issued
            if after is not None:
                d["src"][1], d["value"][1] = after.flag, number
            if n:
                d[gates : gates + n] = descriptors
            last = d[n + gates :]
            last["type"], last["dst"], last["value"], last["wake"] = WRITE, p.flag, p.issued + 1, ST_PROGRESS_WAKE
            handle = self._put(d, (keep, p, after))
            p.issued += 1
            p.entries.append((p.issued, handle, after))

    def _put(self, d, keep):
        """Submits a chain; waits while the ring is full."""
        cdef Progress p = self.progress
        cdef bint whole = len(d) < self.ring.depth
        while True:
            before = self.ring.tail
            try:
                return self.ring.submit(d, keep=keep, wait=not whole)
            except errors.RingFull:
                if not p.entries:
                    raise
                self._make_room(len(p.entries))
            except BaseException as error:
                if self.ring.tail != before:
                    p.cause()
                    p.judge(p.issued + 1, error, None)
                    p.torn = True
                raise

    def _give_up(self):
        """The stream is closed; returns its ring."""
        ring, self.ring = self.ring, None
        return ring

    def _stop(self):
        """The job ends: nothing can be queued any more, and nobody waits for a first error."""
        self.progress.over = True
        return self._give_up()

    def _renew(self, Progress failed):
        """After a failure, and when all has drained: begins anew."""
        with self.lock:
            if self.progress is failed:
                failed.drain(None)
                self.progress = Progress(failed.engine, failed.name)
