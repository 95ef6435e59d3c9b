"""The three modes of registration, on dies that really map: who maps what, when, and what is counted."""

import os
import signal
import time

import numpy as np
import pytest
from faultlib import Job, all_stopped

import strata
from strata._core import space
from strata.testing import Pool

MIB = 1 << 20
MODES = ("on_allocation", "just_in_time", "pool")
BOUND = 60.0  # seconds that anything here may take on a busy machine


def until(condition, what):
    """Waits, bounded, for what happens in the background; what it waits for is named."""
    end = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < end, f"not within {BOUND:g} s: {what}"
        time.sleep(0.001)


def settled():
    s = strata.stats()
    return s["quarantined_bytes"] == 0 and s["registration_lag"] == 0


def addresses(group, array):
    """Every member's address, told by a small operation, which touches no page of the array."""
    mine = np.array([strata.address(array)], "i8")
    return [int(a) for a in group.all_gather(mine).ravel()]


def fresh_and_stale(g):
    context = space.current()
    mode = context.config.registration
    x = strata.full(24 * MIB, g.rank + 1, "u1")
    where = addresses(g, x)
    if mode != "just_in_time":
        nbytes = x.nbytes
        until(lambda: all(context.ready(a, nbytes) for a in where), "peers' arrays mapped in the background")
    late = strata.stats()["late_maps"]
    everything = g.all_gather(x)
    assert [int(part[0]) for part in everything] == [r + 1 for r in range(g.size)]
    assert all((part == part[0]).all() for part in everything)
    late = strata.stats()["late_maps"] - late
    assert late == 0 if mode != "just_in_time" or g.size == 1 else late > 0
    assert all(context.ready(a, x.nbytes) for a in where)
    g.barrier()
    del x, everything
    strata.empty_cache()
    g.barrier()
    for a in where:
        assert context.ready(a, MIB) == (mode == "pool")
        if mode == "pool":
            context.ensure(a, MIB)
        else:
            with pytest.raises(strata.RegistrationError):
                context.ensure(a, MIB)
    until(settled, "registrars to come to the end of the logs, and quarantine to end")
    g.barrier()
    return strata.stats()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_first_use_and_last(mode, n):
    with Pool(n, stateful=True, registration=mode, pool_bytes=256 * MIB) as dies:
        for _ in range(3):
            stats = dies.run(fresh_and_stale)
    for s in stats:
        assert s["registered_bytes"] == s["shadow_maps"] * 2 * MIB
        assert s["registrar_errors"] == s["rescans"] == s["reclaimed_unread"] == 0
        if mode == "pool":  # made at the start, once: nothing is ever given back
            assert s["log_records"] == 1 and s["reclaimed"] == 0
            assert s["shadow_maps"] == (n - 1) * 128
        elif mode == "on_allocation" and n > 1:
            assert s["late_maps"] == 0 and s["lag_max"] > 0
            assert s["registration_us"][0] <= s["registration_us"][1]


def stopped(g, pids):
    """Die 2 is stopped while the others give memory back."""
    x = strata.zeros(8 * MIB, "u1")
    g.barrier()
    few = g.split(0 if g.rank < 2 else None)
    g.barrier()
    if g.rank < 2:
        few.barrier()
        if g.rank == 0:
            os.kill(pids[2], signal.SIGSTOP)
            until(lambda: all_stopped(pids[2]), "the signal to reach every thread")
        try:
            few.barrier()
            del x
            strata.empty_cache()
            until(lambda: strata.stats()["quarantined_bytes"] == 0, "quarantine to end without die 2")
            few.barrier()
        finally:
            if g.rank == 0:
                os.kill(pids[2], signal.SIGCONT)
    fresh_and_stale(g)  # it catches up, and sees nothing old
    return strata.stats()["reclaimed_unread"]


def test_a_stopped_die_holds_frames_for_a_while_and_no_longer():
    with Pool(3, stateful=True, quarantine=0.5) as dies:
        pids = dies.run(lambda g: os.getpid())
        unread = dies.run(stopped, pids)
    assert unread[0] > 0 and unread[1] > 0, unread


def _gives_back_after_a_death(die):
    g = strata.world()
    x = strata.zeros(8 * MIB, "u1")
    g.barrier()
    if die.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    die.say("ready")
    die.hear()
    del x
    strata.empty_cache()
    until(lambda: strata.stats()["quarantined_bytes"] == 0, "quarantine to end without the dead")
    h = g.shrink()
    assert strata.stats()["reclaimed_unread"] == 0
    fresh_and_stale(h)


def test_a_dead_die_holds_no_frames():
    with Job(_gives_back_after_a_death, 3, env={"STRATA_QUARANTINE": "3600"}) as job:
        job.all("ready", ranks=[0, 1])
        job.gone(2)
        job.tell(0, 1)
        assert [job.reap(rank, bound=BOUND) for rank in range(3)] == [0, 0, -signal.SIGKILL]


def _leaves_and_returns(die):
    fresh_and_stale(strata.world())
    context, threads = space.current(), len(os.listdir("/proc/self/task"))
    if die.rank == 1:
        strata.finalize()
        assert len(os.listdir("/proc/self/task")) == threads - 1  # the registrar
        die.say("left")
        die.hear()
        strata.init()
        assert space.current() is context and len(os.listdir("/proc/self/task")) == threads
        die.say("back")
    else:
        x = strata.zeros(6 * MIB, "u1")
        die.hear()
        del x
        strata.empty_cache()
        until(lambda: strata.stats()["quarantined_bytes"] == 0, "quarantine to end without one that has left")
        die.say("freed")
        die.hear()
    fresh_and_stale(strata.world())


def test_finalize_ends_the_thread_and_init_starts_it_again():
    with Job(_leaves_and_returns, 2) as job:
        job.all("left", ranks=[1])
        job.tell(0)
        job.all("freed", ranks=[0])
        job.tell(1)
        job.all("back", ranks=[1])
        job.tell(0)
        assert [job.reap(rank, bound=BOUND) for rank in range(2)] == [0, 0]


def crowd(g):
    """More records than a log holds, and more pages than there are, while nobody asks for any."""
    context = space.current()
    left = context.frames_left
    for _ in range(700):
        x = strata.full(2 * MIB, g.rank, "u1")
        del x
        strata.empty_cache()
    x = strata.full(2 * MIB, 10 + g.rank, "u1")
    for a in addresses(g, x):
        context.ensure(a, x.nbytes)
        assert context.ready(a, x.nbytes)
    assert [int(part[-1]) for part in g.all_gather(x)] == [10 + r for r in range(g.size)]
    g.barrier()
    del x
    strata.empty_cache()
    until(settled, "registrars to come to the end of the logs, and quarantine to end")
    assert context.frames_left == left
    return strata.stats()["log_records"]


def test_more_records_than_a_log_holds():
    with Pool(2, hbm="64M") as dies:
        assert min(dies.run(crowd)) > 1024


def read_raw(g):
    """After a barrier a raw address may be read, whatever the mode."""
    mode = space.current().config.registration
    x = strata.full(5 * MIB, 100 + g.rank, "u1")
    where = addresses(g, x)
    g.barrier()
    import ctypes

    for rank, a in enumerate(where):
        seen = np.frombuffer((ctypes.c_uint8 * x.nbytes).from_address(a), "u1")
        assert (seen == 100 + rank).all(), (mode, rank)
    g.barrier()


@pytest.mark.parametrize("mode", MODES)
def test_barrier_is_a_fence_in_every_mode(mode):
    with Pool(3, registration=mode, pool_bytes=64 * MIB) as dies:
        dies.run(read_raw)
