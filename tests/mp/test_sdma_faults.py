"""Failures while the DMA engine carries operations out: deaths, late writers, and the end of the job."""

import os
import random
import signal
import time

import faulttrials
import pytest
from faultlib import BOUND, Job, all_stopped

import strata
from strata import errors

TRIALS = 4
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather",
              "scatter", "all_to_all_v", "background", "in_place", "plain_arrays", "split", "shrink")  # fmt: skip


# ---- death ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["sdma", "mixed"])
def test_random_kills(path):
    """A die is killed in the middle: its engine with it, and the others' engines stop."""
    seed = random.SystemRandom().randrange(1 << 31)
    for k in range(TRIALS):
        trial = faulttrials.Trial.draw(seed + k, path, OPERATIONS, faulttrials.SIZES[-3:])
        print(trial)
        faulttrials.run(trial)


# ---- nothing is written late --------------------------------------------------------------------

COUNT = 4 << 20  # bytes


def _give_up(die, path):
    """Runs operations until one fails; from then on nobody touches the arrays, whatever the others' engines do."""
    g = strata.world()
    src, out = strata.empty(COUNT, "u1"), strata.empty(COUNT * g.size, "u1")
    src[:], path = die.rank, ("sdma", "mte")[die.rank % 2] if path == "mixed" else path
    g.all_gather(src, out, algorithm="ring", path=path, cores=3)
    die.say("going")
    try:
        while True:
            g.all_gather(src, out, algorithm="ring", path=path, cores=3, timeout=0.3 if die.rank == 0 else None)
    except errors.StrataError as error:
        late = "may still write" in str(error)
        die.say("failed as it should", (type(error).__name__, late))
    if late:  # the error says so: then the arrays are kept, and the memory is not given out
        kept = out.ctypes.data
        del out
        assert strata.empty(COUNT * g.size, "u1").ctypes.data != kept
        die.say("quiet")
        return
    out[:] = 0xEE
    die.say("given back")
    die.hear()
    assert (out == 0xEE).all(), "bytes came after the error"
    die.say("quiet")


@pytest.mark.parametrize("path", ["sdma", "mixed"])
def test_a_die_that_is_stopped_in_the_middle(path):
    """It is slow, not dead: the others give up, and say whether it may write when it goes on."""
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with Job(_give_up, 3, path) as job:
        job.all("going")
        time.sleep(0.02 * rng.random())
        job.kill(2, signal.SIGSTOP)
        failed = job.all("failed as it should", [0, 1])
        assert failed[0].data[0] in ("CollectiveTimeout", "GroupBroken"), failed
        job.kill(2, signal.SIGCONT)
        failed.update(job.all("failed as it should", [2]))
        patient = [r for r in range(3) if not failed[r].data[1]]
        job.all("given back", patient)
        job.tell(*patient)
        job.all("quiet")
        assert [job.reap(r) for r in range(3)] == [0] * 3


# ---- the end -----------------------------------------------------------------------------------------


def _threads():
    return len(os.listdir("/proc/self/task"))


def _finalize(die):
    """One ends the job while its engine stands at a gate on a flag of the other, which has arrived and is stopped."""
    before = _threads()
    g = strata.world()
    x = strata.ones(1 << 20, "f4")
    g.all_reduce(x, path="sdma", algorithm="ring")
    if die.rank == 1:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGSTOP))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        die.say("arrives")
        caught = die.catch(g.all_reduce, x, path="sdma", algorithm="ring")
        assert caught.kind in ("PeerDead", "GroupBroken"), caught
        return
    die.hear()
    gates = strata.stats()["sdma"]["gates"]
    works = [g.all_reduce(x, path="sdma", algorithm="ring", async_op=True), g.all_gather(x, async_op=True)]
    end = time.monotonic() + BOUND
    while strata.stats()["sdma"]["gates"] == gates:
        assert time.monotonic() < end
        time.sleep(0.001)
    strata.finalize()
    for work in works:
        assert isinstance(work.exception(), errors.StrataError)
    assert _threads() == before
    die.say("over")


@pytest.mark.reports("leak", why="works in progress at the end")
def test_the_end_of_the_job_with_work_in_progress():
    with Job(_finalize, 2) as job:
        job.all("arrives", [1])
        end = time.monotonic() + BOUND
        while not all_stopped(job.processes[1].pid):
            assert time.monotonic() < end
            time.sleep(0.002)
        job.tell(0)
        job.all("over", [0])
        job.kill(1, signal.SIGCONT)
        assert [job.reap(r) for r in range(2)] == [0] * 2


def _again(die):
    """A die that leaves and comes back has new rings, and as many."""
    for _ in range(2):
        g = strata.world()
        x = strata.ones(1 << 16, "i4")
        h = g.split(0)
        for group in (g, h):
            group.all_reduce(x, path="sdma", algorithm="ring")
        assert (h.all_reduce(x, path="sdma", async_op=True).wait() == 8).all()
        assert strata.stats()["sdma"]["rings"] == 2
        g.barrier()
        strata.finalize()
        strata.init()


def test_rings_end_with_the_job():
    with Job(_again, 2) as job:
        assert [job.reap(r) for r in range(2)] == [0] * 2


# ---- an exception of the caller's ---------------------------------------------------------------------


def _interrupted(die):
    g = strata.world()
    x = strata.ones(1 << 20, "f4")
    g.all_reduce(x, path="sdma")
    if die.rank == 1:
        die.hear()  # the other one waits, and is interrupted
        caught = die.catch(g.all_reduce, x, path="sdma")
        assert caught.kind == "GroupBroken" and "interrupted" in caught.text, caught
        return
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        g.all_reduce(x, path="sdma")
    assert time.monotonic() - begin < BOUND and g.broken
    die.say("interrupted")


def test_ctrl_c():
    with Job(_interrupted, 2) as job:
        job.all("interrupted", [0])
        job.tell(1)
        assert [job.reap(r) for r in range(2)] == [0] * 2
