"""Slow is not dead; Ctrl-C and other signals during every kind of wait."""

import os
import random
import signal
import time

import faultlib
import numpy as np
import pytest
from faultlib import Job, check_group, died

import strata
from strata import errors
from strata._core import closing


def timed_out(caught, missing, operation=None):
    assert caught.kind == "CollectiveTimeout" and caught.ranks == tuple(missing), caught
    assert all(str(rank) in caught.text for rank in missing), caught
    assert operation is None or caught.operation == operation, caught


# ---- deadlines ------------------------------------------------------------------------------


def _late(die, missing):
    g = strata.world()
    g.barrier()
    x = strata.ones(1 << 16, "f4")
    if die.rank in missing:
        die.say("ready")
        die.hear()
        caught = die.catch(g.all_reduce, x)  # too late: the others have stopped waiting
        assert caught.kind == "GroupBroken" and set(caught.ranks) == set(missing), caught
    else:
        die.say("ready")
        caught = die.catch(g.all_reduce, x, timeout=0.3)
        timed_out(caught, missing, "all_reduce")
        assert caught.number == 2 and caught.group == "world"
        assert die.catch(g.barrier).kind == "GroupBroken"
    die.say("done")
    check_group(g.shrink(), range(4))


@pytest.mark.parametrize("missing", [[2], [0, 3]])
def test_timeout_names_who_is_missing_on_every_waiter(missing):
    with Job(_late, 4, missing) as job:
        waiters = [r for r in range(4) if r not in missing]
        job.all("done", waiters)
        job.tell(*missing)
        assert [job.reap(r) for r in range(4)] == [0] * 4


def _own_deadlines(die):
    g = strata.world()
    a, b = g.split(0), g.split(0)
    x = strata.ones(10)
    if die.rank == 0:
        timed_out(die.catch(a.barrier, timeout=0.2), [1], "barrier")
        began = time.monotonic()
        timed_out(die.catch(g.recv, x, 1, timeout=0.2), [1], "recv")
        big = strata.ones(1 << 17)
        timed_out(die.catch(g.send, big, 1, timeout=0.2), [1], "send")
        timed_out(die.catch(g.recv(x, 1, tag=5, timeout=0.2, async_op=True).wait), [1], "recv")
        caught = die.catch(b.all_reduce(x, timeout=0.2, async_op=True).wait)
        timed_out(caught, [1], "all_reduce")
        assert time.monotonic() - began < 15
        work = g.barrier(timeout=60, async_op=True)
        caught = die.catch(work.wait, 0.1)  # bounds the waiting, not the operation
        assert caught.kind == "CollectiveTimeout" and not work.done()
        die.say("done")
        work.wait()
        g.send(x, 1)
    else:
        die.hear()
        assert die.catch(a.barrier).kind == die.catch(b.all_reduce, x).kind == "GroupBroken"
        g.barrier()
        g.recv(x, 0)  # neither the big message nor anything else came before


def test_each_call_has_its_own_deadline():
    with Job(_own_deadlines, 2) as job:
        job.all("done", [0])
        job.tell(1)
        assert [job.reap(r) for r in range(2)] == [0, 0]


def _default_deadline(die):
    g = strata.world()
    if die.rank == 0:
        timed_out(die.catch(g.split(0).barrier), [1])
        timed_out(die.catch(g.subgroup, [1, 0]), [1])
        timed_out(die.catch(g.barrier), [1])
        die.say("done")
    else:
        g.split(0)
        die.hear()


@pytest.mark.reports("deadlock")
def test_the_option_reaches_every_group():
    with Job(_default_deadline, 2, env={"STRATA_TIMEOUT": "0.3"}) as job:
        job.all("done", [0])
        job.tell(1)
        assert [job.reap(r) for r in range(2)] == [0, 0]


# ---- stopped dies -----------------------------------------------------------------------------

PATTERN = 0x5A


def _stopped(die, nbytes):
    g = strata.world()
    x, y = strata.ones(nbytes, "u1"), strata.zeros(nbytes, "u1")
    g.barrier()
    die.say("ready")
    try:
        for _ in range(1 << 30):
            g.all_reduce(x, y, timeout=0.4 if die.rank else 30)
    except errors.StrataError as error:
        caught = faultlib.Caught.of(error)
    if die.rank == 0:  # it was stopped; its peers have given up
        assert caught.kind == "GroupBroken" and caught.ranks == (0,), caught
    else:
        timed_out(caught, [0], "all_reduce")
        safe = "no peer will write" in caught.text
        assert safe != ("may still write" in caught.text), caught
        if not safe:
            del x, y  # a late write goes there; nobody else may get this memory before
            y = strata.empty(nbytes, "u1")
        y[:] = PATTERN
        die.say("timed out", safe)
        die.hear()
        assert (y == PATTERN).all(), ("a late write", safe)
        closing.sweep()
        assert closing.kept() == 0, "the late writer has stopped long ago"
    die.say("done")
    check_group(g.shrink(), range(g.size), rounds=1)


@pytest.mark.parametrize("nbytes", [8, 1 << 18, 16 << 20])
def test_stopped_die_is_slow_and_never_writes_late(nbytes):
    with Job(_stopped, 3, nbytes) as job:
        job.all("ready")
        pause = random.uniform(0.02, 0.08)
        print(f"stopped after {pause:.4f} s")
        time.sleep(pause)
        job.kill(0, signal.SIGSTOP)
        seen = job.all("timed out", [1, 2])
        print("late writes excluded:", [e.data for e in seen.values()])
        job.kill(0, signal.SIGCONT)
        job.all("done", [0])
        time.sleep(0.2)
        job.tell(1, 2)
        job.all("done", [1, 2])
        assert [job.reap(r) for r in range(3)] == [0] * 3


def _stopped_receiver(die):
    g = strata.world()
    x = strata.ones(32 << 20, "u1")
    g.barrier()
    die.say("ready")
    if die.rank == 0:
        sent = 0
        try:
            while True:
                x[:] = sent % 256
                g.send(x, 1, timeout=0.4)
                sent += 1
        except errors.CollectiveTimeout:
            x[:] = 0xEE  # the message is withdrawn: nobody must get this
        die.say("timed out", sent)
        g.send(np.array([-1]), 1, tag=7)
        die.hear()  # one that leaves is dead to those who wait for it
    else:
        got = 0
        while True:
            try:
                g.recv(x, 0, timeout=1.0)
            except errors.CollectiveTimeout:
                break
            assert (x == got % 256).all()
            got += 1
        g.recv(np.array([0]), 0, tag=7)
        die.say("got", got)


def test_sender_does_not_wait_for_a_receiver_stopped_in_its_copy():
    """Whatever the moment, the receiver has whole messages, as many as were sent."""
    with Job(_stopped_receiver, 2) as job:
        job.all("ready")
        for pause in (0.11, 0.067, 0.2):
            time.sleep(pause)
            job.kill(1, signal.SIGSTOP)
            time.sleep(0.05)
            job.kill(1, signal.SIGCONT)
        time.sleep(0.05)
        job.kill(1, signal.SIGSTOP)
        sent = job.all("timed out", [0], bound=30)[0].data
        job.kill(1, signal.SIGCONT)
        assert job.all("got", [1])[1].data == sent
        job.tell(0)
        assert [job.reap(r) for r in range(2)] == [0, 0]


# ---- Ctrl-C ---------------------------------------------------------------------------------------


def _wait_of(kind, g):
    """A wait that ends only by the signal: rank 0 is in it, the others do not come."""
    x = strata.ones(1 << 16)
    if kind == "completion":  # the peer has arrived, and does not finish
        return lambda: [g.all_reduce(x) for _ in range(1 << 30)]
    return {
        "arrival": g.barrier,
        "recv": lambda: g.recv(x, 1),
        "send": lambda: g.send(x, 1),
        "work": lambda: g.all_reduce(x, async_op=True).wait(),
        "transfer": lambda: g.recv(x, 1, async_op=True).wait(),
        "split": lambda: g.split(0),
        "subgroup": lambda: g.subgroup([1, 0]),
        "shrink": g.shrink,
        "after async": lambda: (g.barrier(async_op=True), g.barrier()),
    }[kind]


def _interrupted(die, kind):
    if kind == "init" and die.rank == 1:
        die.say("ready")
        die.hear()
        return
    if kind == "init":
        die.say("ready")
        caught = die.catch(strata.init)
    else:
        g = strata.world()
        g.barrier()
        wait = _wait_of(kind, g)
        die.say("ready")
        if die.rank == 1:
            if kind == "completion":
                caught = die.catch(wait)
                died(caught, [0])  # PeerDead if the signal came between two operations
                return
            die.hear()
            if kind in ("arrival", "split"):
                caught = die.catch(g.barrier)
                assert caught.kind == "GroupBroken" and caught.ranks == (0,), caught
            return
        caught = die.catch(wait)
    die.say("caught", caught)
    if kind != "completion":
        die.hear()


KINDS = ("init", "arrival", "completion", "recv", "send", "work", "transfer", "split", "subgroup", "shrink",
         "after async")  # fmt: skip


@pytest.mark.reports(maybe=["leak", "mismatch", "deadlock"], why="what is interrupted is left")
@pytest.mark.parametrize("kind", KINDS)
def test_interrupt_ends_the_wait(kind):
    with Job(_interrupted, 2, kind) as job:
        job.all("ready")
        time.sleep(0.15)
        sent = job.kill(0, signal.SIGINT)
        event = job.all("caught", [0], bound=5)[0]
        assert event.data.kind == "KeyboardInterrupt", event
        assert event.data.time - sent < 1.0
        job.tell()
        assert [job.reap(r) for r in range(2)] == [0, 0]


def _handled(die):
    calls = []
    signal.signal(signal.SIGUSR2, lambda *_: calls.append(time.monotonic()))
    g = strata.world()
    g.barrier()
    die.say("ready")
    if die.rank == 1:
        die.hear()
    g.barrier()
    x = strata.ones(1 << 16)
    if die.rank == 0:
        g.recv(x, 1)
        die.say("signals", len(calls))
    else:
        die.hear()
        g.send(x, 0)
    check_group(g, [0, 1], rounds=1)


def test_handler_that_does_not_raise_leaves_the_wait():
    with Job(_handled, 2) as job:
        job.all("ready")
        for _ in range(2):
            time.sleep(0.2)
            job.kill(0, signal.SIGUSR2)
            time.sleep(0.2)
            job.tell(1)
        assert job.all("signals", [0])[0].data == 2
        assert [job.reap(r) for r in range(2)] == [0, 0]


def _storm(die):
    ticks = []
    signal.signal(signal.SIGALRM, lambda *_: ticks.append(0))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0003)
    g = strata.world()
    for k in range(6):
        big = strata.full(12 << 20, die.rank + k, "u1")  # fallocate, in 2 MiB steps
        out = g.all_gather(big)
        assert (out[:, 0] == np.arange(g.size) + k).all() and (out[:, -1] == np.arange(g.size) + k).all()
        del big, out
        x = np.full(30_000, 1.0)
        g.send(x, (die.rank + 1) % g.size, async_op=True)
        g.recv(x, (die.rank - 1) % g.size)
    check_group(g.split(0), range(g.size), rounds=2)
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert len(ticks) > 50


@pytest.mark.reports(maybe=["leak"], why="sends that nobody waits for")
def test_storm_of_signals():
    """A profiler's timer: every system call that waits or allocates is interrupted over and over."""
    with Job(_storm, 3, env={"STRATA_CACHE_BYTES": "0"}) as job:
        assert [job.reap(r, bound=60) for r in range(3)] == [0] * 3


def _signal_of_another_thread(die):
    """The threads of asynchronous operations take no signals: a sleep of the main thread ends."""
    g = strata.world()
    x = strata.ones(100)
    g.all_reduce(x, async_op=True).wait()
    work = g.recv(x, 0, tag=9, async_op=True)
    blocked = set()
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/status") as f:
            masks = dict(line.split(":", 1) for line in f)
        if int(task) != os.getpid() and int(masks["SigBlk"], 16) >> (signal.SIGINT - 1) & 1:
            blocked.add(task)
    late = "STRATA_WEAK_ORDER" in os.environ  # a thread of its own makes late stores
    assert len(blocked) == 2 + late, blocked
    g.send(x, 0, tag=9)
    work.wait()


def test_workers_take_no_signals():
    with Job(_signal_of_another_thread, 1) as job:
        assert job.reap(0) == 0


def _still_dead(die):
    g = strata.world()
    g.barrier()
    die.say("ready")
    if die.rank == 1:
        time.sleep(60)
    died(die.catch(g.barrier, timeout=60), [1])


def test_a_stopped_die_that_is_killed_is_dead():
    with Job(_still_dead, 2) as job:
        job.all("ready")
        job.kill(1, signal.SIGSTOP)
        time.sleep(0.2)
        job.kill(1)
        assert job.reap(0) == 0
