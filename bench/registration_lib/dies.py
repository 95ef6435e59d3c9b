"""What the dies of a standing job run: one function a question, all of them bounded in time.

Dies meet through ``meet`` (a payload of some bytes in mailboxes) and never through a barrier: a
barrier maps what its members have allocated, which is what is to be measured. Stamps are
CLOCK_MONOTONIC in nanoseconds, one clock for all processes of a host.
"""

import os
import time
from functools import cache

import numpy as np

import strata
from strata._core import space

PATIENCE = 60.0     # seconds that anything may take
ASLEEP = 0.02       # a waiting die yields for 5 ms, then it sleeps
BALLAST = 8 << 20    # bytes
SPIN = 300_000      # ns that a poller yields instead of sleeping

now = time.monotonic_ns


@cache
def _lines(group):
    """What meet() sends and receives. It stays, so that no page comes and goes with small arrays."""
    return strata.zeros(1, "i8"), strata.zeros((group.size, 1), "i8")


def meet(group, value=0):
    """All dies' numbers by rank; nobody is back before everybody has called."""
    mine, every = _lines(group)
    mine[0] = value
    return group.all_gather(mine, out=every)[:, 0].tolist()


def until(condition, what):
    """Polls: yielding at first, then at intervals that grow with the time waited."""
    begin = now()
    while not condition():
        waited = now() - begin
        if waited > PATIENCE * 1e9:
            raise TimeoutError(f"{what}: not so after {PATIENCE:g} s")
        if waited < SPIN:
            os.sched_yield()
        else:
            time.sleep(max(50e-6, waited / 1e11))


def settle(group, ctx):
    """Returns when the registrars have mapped all that any die has allocated; maps nothing itself."""
    meet(group)     # everybody's records are in the logs
    if ctx.config.registration != "just_in_time":
        until(lambda: ctx.lag() == 0, "the registrar has caught up")
    meet(group)


def give_back(group, ctx):
    """Returns when what was freed is unmapped everywhere and its frames are free again."""
    strata.empty_cache()
    meet(group)
    until(lambda: ctx.counters()["quarantined_bytes"] == 0, "the quarantine is empty")
    meet(group)


def held(stats):
    """(reserved, allocated, requested) bytes of memory_stats()."""
    return tuple(stats[f"{name}_bytes.all.current"] for name in ("reserved", "allocated", "requested"))


# ---- from allocation to mapped on all peers ------------------------------------------


def mapped(group, nbytes, repeats):
    """Die 0 allocates, sees its peers' cursors pass the record; then all peers check that it is true."""
    ctx, samples = space.current(), []
    for _ in range(repeats):
        meet(group)
        x, sample = None, None
        if group.rank == 0:
            time.sleep(ASLEEP)      # the peers are in meet(), asleep, and so are their registrars
            x, sample = _publish(group, ctx, nbytes)
        va = meet(group, strata.address(x) if x is not None else 0)[0]
        good = meet(group, int(ctx.ready(va, nbytes)))
        if sample:
            samples.append({**sample, "wrong": good.count(0)})
        del x
        give_back(group, ctx)
    return samples


def _publish(group, ctx, nbytes):
    seen = {}

    def all_there():
        late, stamp = ctx.behind(), now()
        for die, records in enumerate(late):
            if not records and die != group.rank:
                seen.setdefault(die, stamp)
        return not any(late)

    begin = now()
    x = strata.empty(nbytes, "u1")
    end = now()
    until(all_there, "all peers have mapped")
    return x, {"alloc_us": (end - begin) / 1e3, "first_us": (min(seen.values()) - begin) / 1e3,
               "all_us": (max(seen.values()) - begin) / 1e3}


# ---- the first collective on a fresh buffer --------------------------------------------


def first(group, op, nbytes, delay, repeats):
    """Per repeat: a fresh buffer used when ready, the same once more (warm), another one used at once.

    all_gather of ``nbytes`` per die into a warm output; all_reduce in place. Warm is the same memory and
    not another buffer: two buffers of 2 MiB may differ by half for their place in the caches alone. A
    few all_reduces of ``ballast`` go before each, so that caches and the dies' CPUs are in the same state.
    """
    ctx, count = space.current(), nbytes // 4
    out = np.zeros(0) if op == "all_reduce" else strata.zeros((group.size, count), "f4")
    ballast = strata.zeros(min(count, BALLAST // 4), "f4")
    for _ in range(2):      # the plan is made, the output touched
        _call(group, op, strata.empty(count, "f4"), out)
    found = {"warm": [], "ready": [], "at_once": []}
    for i in range(repeats):
        give_back(group, ctx)
        x = strata.empty(count, "f4")
        for how in ("ready", "warm"):
            found[how].append(_later(group, ctx, op, x, out, ballast, delay, i + len(how)))
        del x
        give_back(group, ctx)
        found["at_once"].append(_at_once(group, ctx, op, count, out, ballast))
    del out, ballast
    give_back(group, ctx)
    return found


def _limber(group, ballast):
    """Caches in one state, and dies that slept on one CPU apart again."""
    for _ in range(4):
        group.all_reduce(ballast)


def _call(group, op, x, out):
    if op == "all_reduce":
        group.all_reduce(x)
    else:
        group.all_gather(x, out=out)


def _later(group, ctx, op, x, out, ballast, delay, salt):
    """Fill, wait, use: {begin, end} in ns, wrong elements of a sample, times that a page was late."""
    x[:] = group.rank + 1 + salt
    time.sleep(delay)
    settle(group, ctx)
    _limber(group, ballast)
    late = ctx.counters()["late_maps"]
    meet(group)
    begin = now()
    _call(group, op, x, out)
    end = now()
    want = np.arange(1, group.size + 1, dtype="f4") + salt
    got = x[::1021] != want.sum() if op == "all_reduce" else out[:, ::1021] != want[:, None]
    return {"begin": begin, "end": end, "wrong": int(got.sum()), "late": ctx.counters()["late_maps"] - late}


def _at_once(group, ctx, op, count, out, ballast):
    """Allocate and use, timed together; the contents are arbitrary, so nothing is checked."""
    _limber(group, ballast)
    late = ctx.counters()["late_maps"]
    meet(group)
    begin = now()
    x = strata.empty(count, "f4")
    allocated = now()
    _call(group, op, x, out)
    return {"begin": begin, "allocated": allocated, "end": now(), "wrong": 0,
            "late": ctx.counters()["late_maps"] - late}


# ---- phase 2 ---------------------------------------------------------------------------


def check(group, nbytes, times):
    """Nanoseconds of one check of each peer's buffer that is ready."""
    ctx = space.current()
    x = strata.empty(nbytes, "u1")
    settle(group, ctx)
    found = []
    for die, va in enumerate(meet(group, strata.address(x))):
        if die != group.rank:
            ctx.ensure(va, nbytes)
            found.append(ctx.ensure_ns(va, nbytes, times) if group.rank == 0 else 0.0)
    meet(group)
    del x
    give_back(group, ctx)
    return found


# ---- from a record to a mapped page ----------------------------------------------------


def publish(group, repeats):
    """One page, seen by die 1, which polls ``ready`` at the address where die 0 will have it.

    Returns, of each repeat, {begin, returned} on die 0 and {seen} on die 1; and the histogram's words.
    """
    ctx, found = space.current(), []
    x = strata.empty(space.PAGE_BYTES, "u1")
    va = meet(group, strata.address(x))[0]
    del x
    give_back(group, ctx)
    for _ in range(repeats):
        meet(group)
        if group.rank == 0:
            time.sleep(ASLEEP / 2)
            begin = now()
            x = strata.empty(space.PAGE_BYTES, "u1")
            returned = now()
            if strata.address(x) != va:
                raise RuntimeError(f"a page came to lie at {strata.address(x):#x} instead of {va:#x}")
            found.append({"begin": begin, "returned": returned})
        elif group.rank == 1:
            until(lambda: ctx.ready(va, space.PAGE_BYTES), "die 0's page is mapped")
            found.append({"seen": now()})
        meet(group)
        x = None
        give_back(group, ctx)
    return found, [ctx.latency_ns(0.5), ctx.latency_ns(0.99)]


# ---- the registrar's own costs -----------------------------------------------------------


def _others():
    """(CPU nanoseconds, voluntary context switches) of all threads of this process but the calling one."""
    cpu = switches = 0
    me = os.getpid()
    for name in os.listdir("/proc/self/task"):
        if int(name) == me:
            continue
        cpu += time.clock_gettime_ns(~int(name) << 3 | 6)      # the clock of a thread: pthread_getcpuclockid
        with open(f"/proc/self/task/{name}/status") as file:
            switches += sum(int(line.split()[1]) for line in file if line.startswith("voluntary"))
    return cpu, switches


def idle(group, seconds):
    """What the threads beside the main one do while nothing happens."""
    meet(group)
    time.sleep(0.1)
    cpu, switches = _others()
    time.sleep(seconds)
    after = _others()
    meet(group)
    return {"threads": len(os.listdir("/proc/self/task")) - 1, "cpu_us_per_s": (after[0] - cpu) / 1e3 / seconds,
            "switches_per_s": (after[1] - switches) / seconds}


def mapping_cpu(group, nbytes):
    """CPU seconds a GiB of the registrar: mapping what die 0 allocates, and letting go of it."""
    ctx, scale = space.current(), nbytes / 2**30 * 1e9
    meet(group)
    before = _others()[0]
    x = strata.empty(nbytes, "u1") if group.rank == 0 else None
    settle(group, ctx)
    there = _others()[0]
    del x
    give_back(group, ctx)
    return {"map_s": (there - before) / scale, "unmap_s": (_others()[0] - there) / scale}
