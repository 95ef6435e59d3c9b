"""The UB space: make one, attach to it, agree on a window, see who is there."""

from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from strata._core.abi cimport (
    ST_EABI,
    ST_EDEAD,
    ST_EINTR,
    ST_EINVAL,
    ST_EREG,
    ST_ESYS,
    ST_ETIMEOUT,
    ST_OK,
    ST_PAGE_BYTES,
    st_ctx,
    ST_LATENCIES,
    st_ensure_mapped,
    st_is_die,
    st_is_ready,
    st_latency_of,
    st_log_head,
    st_log_reached,
    st_owner,
    st_segment,
    st_spread_leave,
    st_shadow_follow,
)

import time

from strata import errors
from strata._core import formatting, limits
from strata._core.cpus import job_cpus


cdef extern from *:
    int PyErr_CheckSignals() noexcept


cdef extern from "st_space.h" nogil:
    int st_space_map(st_ctx *ctx, int fd)
    int st_space_private(st_ctx *ctx)
    int st_space_unmap(st_ctx *ctx)


cdef extern from "st_join.h" nogil:
    int st_space_join_as(st_ctx *ctx, uint32_t rank, int again)
    int st_space_agree(st_ctx *ctx, uint64_t timeout_ns, uint32_t *missing)
    int st_space_leave(st_ctx *ctx)
    int st_space_return(st_ctx *ctx)
    void st_space_mark_dead(st_ctx *ctx, uint32_t die)
    void st_takeover_settle(st_ctx *ctx)
    void st_space_die(const st_ctx *ctx, uint32_t die, uint64_t *values)


cdef extern from "st_wait.h" nogil:
    uint64_t st_now_ns()


cdef extern from "st_registrar.h" nogil:
    int st_registrar_begin(st_ctx *ctx)
    void st_registrar_end(st_ctx *ctx)


cdef extern from "st_live.h" nogil:
    int st_die_alive(st_ctx *ctx, uint32_t die)
    uint64_t st_die_life(const st_ctx *ctx, uint32_t die)


DIE_STATES = ("absent", "joined", "left")
PAGE_BYTES = ST_PAGE_BYTES
layout, format_space = formatting.layout, formatting.format_space


cdef int _poll_signals(void *arg) noexcept with gil:
    """Runs Python's signal handlers; nonzero: one raised, and its exception is set."""
    return PyErr_CheckSignals() != 0


cdef uint64_t deadline_of(object timeout, Context context) except? 1:
    """timeout_to_ns with the option's default, which is computed once."""
    return context.timeout_ns if timeout is None else timeout_to_ns(timeout, 0.0)


cdef uint64_t timeout_to_ns(object timeout, double default) except? 1:
    """Nanoseconds, at least 1; 0 stands for no deadline (infinity)."""
    cdef double seconds = default if timeout is None else float(timeout)
    if seconds != seconds or seconds < 0:
        raise ValueError(f"timeout={timeout!r}: seconds, 0 or more, expected (None: the default)")
    if seconds > 9e9:
        return 0
    return <uint64_t>(seconds * 1e9) + 2


cdef class Context:
    """A die (or, before it joins, a viewer) of one UB space.

    Made by ``attach``.  Lives as long as the process: arrays refer to its memory.
    """

    def __cinit__(self):
        memset(&self.ctx, 0, sizeof(self.ctx))
        self.ctx.fd = -1
        self.attached = False
        self.published = False

    def __init__(self):
        raise TypeError("use Context.attach(fd, config)")

    @staticmethod
    def attach(int fd, config):
        """Maps the control region behind ``fd``, which the context then owns.

        CorruptSpace if it is no UB space of this version.
        """
        cdef Context self = Context.__new__(Context)
        cdef int rc = st_space_map(&self.ctx, fd)
        if rc != ST_OK:
            what = ("the inherited descriptor is not a UB space of this version of strata" if rc == ST_EABI
                    else "cannot map the UB space's control region")
            raise errors.from_status(rc, what, errno=errno)
        self.attached = True
        self.config = config
        self.token = (self.ctx.job.token[0].to_bytes(8, "little")
                      + self.ctx.job.token[1].to_bytes(8, "little")).hex()
        self.ctx.wait.poll = _poll_signals
        self.ctx.wait.arg = NULL
        self.ctx.wait.poll_ns = <uint64_t>(config.poll_ms * 1e6)
        self.ctx.wait.sleep_ns = <uint64_t>(config.yield_ms * 1e6)
        self.ctx.wait.pauses = 0
        self.timeout_ns = timeout_to_ns(None, config.timeout)
        return self

    def __dealloc__(self):
        # A die that has joined keeps its mappings: arrays may outlive every handle.
        if self.attached and not self.ctx.pid:
            st_space_unmap(&self.ctx)

    def join(self, uint32_t rank, timeout=None, bint again=False):
        """Becomes die ``rank``; returns when all dies are there and a window is agreed.

        ``again``: another process may have been this die; if it is gone, this one takes over what it left.

        Raises CollectiveTimeout naming a missing rank, PeerDead, RegistrationError
        when the dies' address spaces have no window in common.  It has then left, and may retry.
        """
        cdef uint64_t ns = timeout_to_ns(timeout, self.config.timeout)
        if rank >= self.ctx.ndies:
            raise errors.InvalidArgument(f"rank {rank} in a job of {self.ctx.ndies} dies")
        if self.published:
            st_space_return(&self.ctx)
        else:
            self._publish(rank, ns, again)
        try:
            if not self.ctx.base:
                self._agree(ns)
            with nogil:
                st_takeover_settle(&self.ctx)
            self._register()
        except BaseException:
            self.leave()  # peers must not wait for it
            raise

    def _publish(self, uint32_t rank, uint64_t ns, bint again):
        cdef int rc = st_space_private(&self.ctx)
        if rc != ST_OK:
            raise errors.from_status(rc, "no address space for this die's private tables", errno=errno)
        self.ctx.wait.pauses = self.spin_budget()
        self.ctx.huge = self.config.huge_pages
        self.ctx.lazy = self.config.registration == "just_in_time"
        self.ctx.quarantine_ns = <uint64_t>(self.config.quarantine * 1e9)
        self.ctx.spread.me = rank
        if self.config.spread:
            self.ctx.wait.spread = &self.ctx.spread
        rc = st_space_join_as(&self.ctx, rank, again)
        end = time.monotonic() + ns / 1e9
        while rc == ST_EINVAL and again and (ns == 0 or time.monotonic() < end):
            time.sleep(0.005)  # the process before may be on its way out
            rc = st_space_join_as(&self.ctx, rank, again)
        if rc != ST_OK:
            raise errors.from_status(
                rc if rc == ST_ESYS else ST_EABI,
                f"rank {rank} of job {self.token} is or was another process; each rank joins once",
                errno=errno, ranks=(rank,),
            )
        self.published = True

    def _agree(self, uint64_t ns):
        cdef uint32_t missing = 0
        cdef int rc
        with nogil:
            rc = st_space_agree(&self.ctx, ns, &missing)
        if rc == ST_EINTR:
            st_raise_pending()
        if rc in (ST_ETIMEOUT, ST_EDEAD):
            raise errors.from_status(
                rc,
                f"rank {missing} " + ("ended before it joined the job" if rc == ST_EDEAD else
                                      "has not joined the job: is it still starting, or stuck before init()?"),
                ranks=(missing,), operation="init",
            )
        if rc == ST_EREG:
            raise limits.no_window(self.ctx.seg_bytes * self.ctx.ndies, missing if missing < self.ctx.ndies else None)
        if rc != ST_OK:
            raise errors.from_status(rc, "init failed", errno=errno)

    def _register(self):
        """Starts the thread that follows the peers' metadata logs."""
        if self.ctx.ndies > 1 and st_registrar_begin(&self.ctx) != ST_OK:
            raise errors.from_status(ST_ESYS, "no thread for the registrar; raise `ulimit -u`", errno=errno)

    def spin_budget(self):
        """Pauses before a waiter yields: some only if every die has a CPU of its own."""
        if self.config.spin >= 0:
            return self.config.spin
        return 100 if self.ctx.ndies <= job_cpus() else 0

    def leave(self):
        """Leaves the job on purpose; mappings stay.  Peers that wait for this die get PeerDead."""
        with nogil:
            st_registrar_end(&self.ctx)
        st_space_leave(&self.ctx)
        st_spread_leave(&self.ctx.spread)

    def rejoin(self):
        """Undoes leave() in the same process."""
        self._register()
        st_space_return(&self.ctx)

    def mark_dead(self, uint32_t die):
        """What a launcher says of a process that ended before it joined."""
        if die >= self.ctx.ndies:
            raise errors.InvalidArgument(f"die {die} of {self.ctx.ndies}")
        st_space_mark_dead(&self.ctx, die)

    def die_info(self, uint32_t die):
        """dict of a die: state ("absent", "joined", "left"), pid, alive, pages_reserved, log_head."""
        cdef uint64_t v[8]
        if die >= self.ctx.ndies:
            raise errors.InvalidArgument(f"die {die} of {self.ctx.ndies}")
        st_space_die(&self.ctx, die, v)
        return {
            "state": DIE_STATES[v[0]] if v[0] < 3 else f"invalid ({v[0]})",
            "pid": v[1],
            "start_time": v[2],
            "alive": bool(st_die_alive(&self.ctx, die)) if v[0] else False,
            "pages_reserved": v[3],
            "log_head": v[4],
        }

    def owner(self, uint64_t va):
        """World rank of the die whose segment holds the address, or -1."""
        return st_owner(&self.ctx, va)

    def follow(self, uint32_t die):
        """Maps all that a peer has allocated so far."""
        cdef int rc
        if die >= self.ctx.ndies:
            raise errors.InvalidArgument(f"die {die} of {self.ctx.ndies}")
        with nogil:
            rc = st_shadow_follow(&self.ctx, die, st_log_head(&self.ctx, die), 1)
        if rc != ST_OK:
            raise errors.from_status(rc, f"cannot map the pages of die {die}", errno=errno, ranks=(die,))

    def ensure(self, uint64_t va, uint64_t nbytes, bint writes=False):
        """Phase 2 of registration: maps what of the range is not mapped here yet.

        RegistrationError if it is not, or no longer, allocated.
        """
        cdef int rc
        with nogil:
            rc = st_ensure_mapped(&self.ctx, va, nbytes, writes)
        if rc != ST_OK:
            raise errors.from_status(rc, f"{nbytes} bytes at {va:#x} are not fabric memory that may be "
                                     + ("written" if writes else "read") if rc == ST_EREG else None, errno=errno)

    def ensure_ns(self, uint64_t va, uint64_t nbytes, uint32_t times):
        """Nanoseconds of one check of phase 2, the mean of many in a loop: for benchmarks."""
        cdef uint64_t begin
        cdef uint32_t _
        cdef int rc = ST_OK
        with nogil:
            begin = st_now_ns()
            for _ in range(times):
                rc |= st_ensure_mapped(&self.ctx, va, nbytes, 0)
            begin = st_now_ns() - begin
        if rc != ST_OK:
            raise errors.from_status(ST_EREG)
        return begin / times

    def ready(self, uint64_t va, uint64_t nbytes):
        """Whether the range is mapped on this die now.  Maps nothing, waits for nothing."""
        return bool(st_is_ready(&self.ctx, va, nbytes))

    def lag(self):
        """Records of peers' metadata logs that this die has not followed yet."""
        cdef uint32_t die
        cdef uint64_t total = 0, head, passed
        for die in range(self.ctx.ndies):
            if die != self.ctx.rank:
                passed = self.ctx.follow[die].passed
                head = st_log_head(&self.ctx, die)
                total += head - min(head, passed)
        return total

    def behind(self):
        """How many records of this die's own metadata log each peer has not followed yet, by world
        rank.  All 0, in mode on_allocation: what this die allocated is mapped on all peers."""
        cdef uint32_t die
        cdef uint64_t head = st_log_head(&self.ctx, self.ctx.rank), passed
        found = []
        for die in range(self.ctx.ndies):
            passed = head if die == self.ctx.rank else st_log_reached(&self.ctx, self.ctx.rank, die)
            found.append(head - min(head, passed))
        return found

    def latency_ns(self, double share):
        """Time from a peer's MAP record to its pages mapped here that ``share`` of all records
        stayed below, in nanoseconds (of the bucket: within a quarter); None: no record yet."""
        cdef uint64_t total = 0, count = 0
        cdef uint32_t k
        for k in range(ST_LATENCIES):
            total += self.ctx.latencies[k]
        if total == 0:
            return None
        for k in range(ST_LATENCIES):
            count += self.ctx.latencies[k]
            if count >= share * total and count:
                return st_latency_of(k + 1)
        return st_latency_of(ST_LATENCIES)

    def counters(self):
        """The C core's counters as a dict."""
        counters = dict(self.ctx.count)
        counters["moves"] = self.ctx.spread.moves
        counters["quarantined_bytes"] = self.ctx.quarantined_frames * ST_PAGE_BYTES
        counters["former_bytes"] = self.ctx.former_pages * ST_PAGE_BYTES
        return counters

    @property
    def here(self):
        """False in a forked child: it is not the die."""
        return bool(st_is_die(&self.ctx))

    incarnation = property(lambda self: st_die_life(&(<Context>self).ctx, (<Context>self).ctx.rank))
    rank = property(lambda self: (<Context>self).ctx.rank)
    ndies = property(lambda self: (<Context>self).ctx.ndies)
    hbm_bytes = property(lambda self: (<Context>self).ctx.job.hbm_bytes)
    base = property(lambda self: (<Context>self).ctx.base)
    segment_bytes = property(lambda self: (<Context>self).ctx.seg_bytes)
    control_bytes = property(lambda self: (<Context>self).ctx.control_bytes)
    mailbox_bytes = property(lambda self: (<Context>self).ctx.job.mailbox_bytes)
    frames_left = property(lambda self: (<Context>self).ctx.frames_left)
    segment = property(lambda self: st_segment(&(<Context>self).ctx, (<Context>self).ctx.rank))


cdef Context _current = None


cpdef Context current():
    """The context of this die.  NotInJob before init() and in a forked child."""
    if _current is None:
        raise errors.NotInJob("strata.init() has not been called in this process")
    if not _current.here:
        raise errors.NotInJob(
            "this process was forked from a die and is not one itself: arrays it inherited can be read, "
            "but it cannot allocate or communicate; start dies with strata-run or strata.spawn"
        )
    return _current


def set_current(Context context):
    """Makes ``context`` (or None) the die of this process."""
    global _current
    _current = context
