"""A process's part in a job, as users see it: join, leave, counters, reasons."""

from __future__ import annotations

import atexit
import sys
from typing import Any

from strata import bootstrap, clock, comm, sdma, streams, vmm
from strata._core import space
from strata.fabric import allocator

__all__ = ["finalize", "incarnation", "init", "initialized", "stats"]


def init(timeout: float | None = None) -> None:
    """Joins the job of strata-run or of another launcher; outside any job, a job of one die.

    Idempotent; the first array or group does it too.  ``timeout``: seconds to wait for
    the other dies (default: option timeout).  Raises CollectiveTimeout or PeerDead
    naming ranks that do not come, NotInJob in a forked child of a die, ConfigError.
    """
    bootstrap.init(timeout)


def finalize() -> None:
    """Leaves the job.  Idempotent, local, never waits for peers; also done at exit.

    Operations that are still in progress end with an error; peers that wait for this die
    get PeerDead.  Arrays stay usable in this process.
    """
    clock.close()
    if "strata.checking.dies" in sys.modules:  # this die is checked
        sys.modules["strata.checking.dies"].stop()
    if "strata.moe" in sys.modules:  # nobody else has rounds in progress
        from strata import moe

        moe.stop()
    streams.stop()
    comm.close()
    if bootstrap.initialized():
        sdma.stop(bootstrap.context())
    bootstrap.finalize()


def initialized() -> bool:
    """Whether this process is a die of a job now."""
    return bootstrap.initialized()


def incarnation() -> int:
    """How many processes were this die before this one (``strata-run --restarts``): 0 in the first.

    A process that ended before it had joined the job does not count, since nobody has known it.  Joins the job.
    """
    return int(bootstrap.context().incarnation)


atexit.register(finalize)


def stats() -> dict[str, Any]:
    """Counters of this die since it joined.

    ``operations``         collectives begun; of them ``mailbox_operations`` had a small payload
    ``plan_hits/misses``   plans found in, and made for, the table of a group
    ``staged_bytes``       copied between users' arrays and fabric memory, since the arrays were
                           not fabric arrays or were strided; 0 is the aim
    ``shadow_maps``        pages of peers that were mapped here, in ``shadow_map_calls`` calls;
                           ``registered_bytes`` says it in bytes, ``shadow_unmaps`` counts those let go
    ``log_records``        records (of pages mapped or given back) this die appended to its metadata log
    ``registration_lag``, ``lag_max``  records of peers' logs that are not mapped here yet: now, and at most
    ``registration_us``    microseconds from a peer's record to its pages mapped here: (median, 99 %), or None
    ``registrar_wakes``, ``registrar_errors``  times the registrar thread was rung, and could not map
    ``late_maps``, ``late_map_ns``     times an operation found pages that were not mapped yet (phase 2), and
                           nanoseconds that it then waited; what ``barrier`` maps is not counted
    ``rescans``            times this die read a page table since it had fallen behind a whole log
    ``quarantined_bytes``  memory given back that a peer may still have mapped; ``reclaimed`` counts pages
                           that came out, ``reclaimed_unread`` those of them whose reader did not answer
    ``former_bytes``       memory that a process which was this die before has left, and that peers still hold on to
    ``waits``              waits that were not over at the first look
    ``moves``              times this die left a CPU that it shared for an emptier one
    ``sends``, ``recvs``   point-to-point operations
    ``memory``             see ``memory_stats()``
    ``intercept``          of ``strata.intercept``: ``arrays`` and ``bytes`` of numpy's that became fabric
                           memory (also when resized), ``fallbacks`` and ``fallback_bytes`` for which
                           there was no room, so that numpy got ordinary memory
    ``registrations``      of ``strata.register``, by kind: see ``strata.registration.stats``
    ``vmm``                see ``strata.vmm.stats()``
    ``sdma``               see ``strata.sdma.stats()``
    """
    from strata import registration
    from strata._core import intercept, memory

    context = bootstrap.context()
    counters: dict[str, Any] = context.counters()
    counters["registration_lag"] = context.lag()
    counters["registered_bytes"] = counters["shadow_maps"] * space.PAGE_BYTES
    p50, p99 = context.latency_ns(0.5), context.latency_ns(0.99)
    counters["registration_us"] = None if p50 is None or p99 is None else (p50 / 1e3, p99 / 1e3)
    counters["memory"] = allocator.memory_stats()
    counters["registrations"] = registration.stats()
    counters["intercept"] = intercept.counters(memory.heap_of(context))
    counters["vmm"] = vmm.stats()
    counters["sdma"] = sdma.stats()
    return counters
