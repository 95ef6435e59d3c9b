"""Waits for the flags of a plan, with one thread, with a crew, and by the DMA engine: stopped peers, deadlines,
Ctrl-C; and dies that lack the scratch, or the thread, to take part."""

import contextlib
import errno
import os
import resource
import signal
import threading
import time

import numpy as np
import pytest
from faultlib import BOUND, Job, check_group

import strata
from strata import errors

N, VICTIM = 3, 1
COUNT = 200_003


@pytest.fixture(params=["mte 1", "mte 2", "sdma 1"])
def env(request):
    """Options of dies whose operations have several cores, run by one thread, by two, or by the DMA engine."""
    path, workers = request.param.split()
    return {"STRATA_PATH": path, "STRATA_WORKERS": workers, "STRATA_CORES": "4"}


def threads():
    return len(os.listdir("/proc/self/task"))


def ring(g, **options):
    """An all_reduce round the ring, in which members wait for each other's flags; its result is checked."""
    x = strata.empty(COUNT, "i8")
    x[:] = np.arange(COUNT) * (g.rank + 1)
    y = strata.zeros(COUNT, "i8")
    g.all_reduce(x, y, algorithm="ring", **options)
    assert (y == np.arange(COUNT) * (g.size * (g.size + 1) // 2)).all()


def crewed(g):
    """Runs an operation; asserts that the die then has as many threads more as its options say."""
    before = threads()
    ring(g)
    assert threads() - before == int(os.environ["STRATA_WORKERS"]) - 1 + (os.environ["STRATA_PATH"] == "sdma")


def wait_inside(job, rank, number):
    """Until a die waits in the group's operation of that number: there a handler runs, between two looks."""
    end = time.monotonic() + BOUND
    while time.monotonic() < end:
        job.kill(rank, signal.SIGUSR2)
        if job.all("inside", [rank])[rank].data == number:
            return
        time.sleep(0.002)  # a handler that has spoken should end before the next comes
    raise AssertionError(f"die {rank} has not come to operation {number}")


def _begin(die):
    """The world group, ready for an operation whose number the test knows."""
    g = strata.world()
    crewed(g)
    signal.signal(signal.SIGUSR2, lambda *_: die.say("inside", g.number))
    g.barrier()
    die.say("ready", g.number + 1)
    if die.rank != VICTIM:
        die.hear()
    return g


def _stop(job):
    """Stops the victim where it has arrived at the operation, and lets the others come: all that they lack is what
    it has to do.  The operation's number."""
    number = job.all("ready")[VICTIM].data
    wait_inside(job, VICTIM, number)
    job.kill(VICTIM, signal.SIGSTOP)
    others = [r for r in range(N) if r != VICTIM]
    job.tell(*others)
    return number, others


def _end(die, g):
    """After a failure the survivors' group works, and so does the crew."""
    die.say("failed as it should")
    rest = g.shrink()
    check_group(rest, range(N), rounds=1)
    before = threads()
    ring(rest)
    assert threads() == before, "the crew is still there, and free"


# ---- stopped is slow, not dead ----------------------------------------------------------------


def _patient(die):
    g = _begin(die)
    ring(g)
    die.say("went on")
    ring(g)
    check_group(g, range(N), rounds=1)


def test_a_stopped_die_is_waited_for(env):
    with Job(_patient, N, env=env) as job:
        number, others = _stop(job)
        for _ in range(5):  # each time they have looked whether the victim lives
            for rank in others:
                wait_inside(job, rank, number)
        assert not [e for e in job.events if e.name != "inside"], "somebody went on without the victim"
        job.kill(VICTIM, signal.SIGCONT)
        job.all("went on")
        assert [job.reap(r) for r in range(N)] == [0] * N


# ---- deadlines --------------------------------------------------------------------------------


def _impatient(die):
    g = _begin(die)
    caught = die.catch(ring, g, timeout=0.4 if die.rank == 0 else None)
    # Who waits for flags has not finished either: the first whose time is over names all but itself.
    assert caught.kind == ("CollectiveTimeout" if die.rank == 0 else "GroupBroken") and caught.ranks == (1, 2), caught
    if die.rank == 0:
        assert "ranks 1, 2 have not finished in time, and are not dead" in caught.text, caught
        assert "1 may still write" not in caught.text, "the victim had not begun"
    _end(die, g)


def test_a_deadline_ends_the_wait_for_flags(env):
    with Job(_impatient, N, env=env) as job:
        _, others = _stop(job)
        job.all("failed as it should", others)
        job.kill(VICTIM, signal.SIGCONT)
        job.all("failed as it should", [VICTIM])
        assert [job.reap(r) for r in range(N)] == [0] * N


# ---- Ctrl-C -----------------------------------------------------------------------------------


def _interrupted(die):
    g = _begin(die)
    caught = die.catch(ring, g)
    if die.rank == 0:
        assert caught.kind == "KeyboardInterrupt", caught
    else:
        assert caught.kind == "GroupBroken" and caught.ranks == (0,) and "interrupted" in caught.text, caught
    _end(die, g)


def test_an_interrupt_ends_the_wait_for_flags(env):
    with Job(_interrupted, N, env=env) as job:
        number, others = _stop(job)
        for rank in others:
            wait_inside(job, rank, number)
        job.kill(0, signal.SIGINT)
        job.all("failed as it should", others)
        job.kill(VICTIM, signal.SIGCONT)
        job.all("failed as it should", [VICTIM])
        assert [job.reap(r) for r in range(N)] == [0] * N


# ---- no scratch -------------------------------------------------------------------------------

HALVES = 1 << 20  # float16: 2 MiB, whose partial sums take 4 MiB


def _hoard():
    """All memory of this die but less than 2 MiB."""
    kept = []
    with pytest.raises(errors.FabricMemoryError):
        while True:
            kept.append(strata.empty(2 << 20, "u1"))
    return kept


def _no_scratch(die, poor, async_op):
    g = strata.world()
    x, y = strata.ones(HALVES, "f2"), strata.zeros(HALVES, "f2")

    def halves(name):
        done = g.all_reduce(x, y, algorithm=name, async_op=async_op)
        assert ((done.wait() if async_op else done) == N).all()
        y[:] = 0

    g.barrier()
    kept = _hoard() if die.rank in poor else []
    for _ in range(2):
        caught = die.catch(halves, "ring")
        if die.rank in poor:
            assert caught.kind == "FabricMemoryError" and "HBM" in caught.text, caught
        else:
            assert caught.kind == "CollectiveMismatch" and caught.ranks == (0, 1, 2), caught
            assert f"{'ranks' if len(poor) > 1 else 'rank'} {', '.join(map(str, poor))}: nothing" in caught.text, caught
        assert (y == 0).all() and (x == 1).all()
    halves("full_mesh")  # needs none
    kept.clear()
    halves("ring")
    check_group(g, range(N), rounds=1)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("poor", [[1], [0, 2], [0, 1, 2]])
def test_a_die_without_scratch_tells_the_others(poor, async_op):
    with Job(_no_scratch, N, poor, async_op, hbm=32 << 20) as job:
        assert [job.reap(r) for r in range(N)] == [0] * N


# ---- no thread --------------------------------------------------------------------------------


@contextlib.contextmanager
def _last_thread():
    """This process can make no further thread, as if the host had no more."""
    before, done = resource.getrlimit(resource.RLIMIT_AS), threading.Event()
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    idle = []
    try:
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), before[1]))  # less than a stack takes
        with pytest.raises(RuntimeError, match="thread"):
            while True:  # stacks of threads that have ended are kept for others
                thread = threading.Thread(target=done.wait)
                thread.start()
                idle.append(thread)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        done.set()
        for thread in idle:
            thread.join()


def _no_thread(die, poor):
    g = strata.world()
    x = strata.ones(COUNT, "i4")
    g.all_reduce(strata.ones(COUNT, "i4"))
    with _last_thread() if die.rank in poor else contextlib.nullcontext():
        caught = die.catch(lambda: g.all_reduce(x, async_op=True).wait())
    if die.rank in poor:
        assert caught.kind == "HostError" and "no thread could be made" in caught.text, caught
        assert os.strerror(errno.EAGAIN) in caught.text, caught
    else:
        assert caught.kind == "CollectiveMismatch" and "nothing (it failed)" in caught.text, caught
    assert (x == 1).all()
    g.all_reduce(x, async_op=True).wait()
    assert (x == N).all()
    check_group(g, range(N), rounds=1)


@pytest.mark.parametrize("poor", [[1], [0, 1, 2]])
def test_a_die_that_can_make_no_thread_tells_the_others(poor):
    with Job(_no_thread, N, poor) as job:
        assert [job.reap(r) for r in range(N)] == [0] * N
