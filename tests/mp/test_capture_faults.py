"""Graphs of which a member dies, stays away, is interrupted, or takes memory back: errors that say so, and no hang."""

import gc
import os
import random
import signal
import threading
import time

import numpy as np
import pytest
from faultlib import BOUND, Job, check_group, died
from vmmplay import raw

import strata
from strata import errors, sdma, vmm


def made(g, count=50_000, steps=4):
    """A graph, and its array."""
    x = strata.full(count, g.rank + 1.0)
    with strata.capture() as graph:
        for _ in range(steps):
            g.all_reduce(x, op="max")
        g.barrier()
    graph.replay()
    assert (x == g.size).all()
    return graph, x


def again(die, graph, kind, ranks):
    """Further replays say that there is no graph any more."""
    caught = die.catch(graph.replay)
    assert caught.kind == kind and "a replay has failed" in caught.text and set(caught.ranks) <= set(ranks), caught
    assert graph.state == "failed"


def _stays_away(die, how):
    g = strata.world()
    graph, x = made(g)
    if die.rank == 2:
        die.say("ready")
        time.sleep(60)
    if how == "queued":
        works = [graph.replay(async_op=True) for _ in range(5)]
        die.say("ready")
        for work in works:
            died(die.catch(work.wait), [2])
    elif how == "polled":
        work = graph.replay(async_op=True)
        die.say("ready")
        while not work.done():
            os.sched_yield()
        assert isinstance(work.exception(), (errors.PeerDead, errors.GroupBroken))
    else:
        die.say("ready")
        caught = die.catch(graph.replay)
        died(caught, [2])
        assert caught.kind == "PeerDead" and caught.operation == "replay" and caught.number == 2, caught
        assert "operation 1 of a graph (all_reduce max of 50000 float64" in caught.text, caught
    again(die, graph, "PeerDead", [2])
    assert g.broken
    died(die.catch(g.all_reduce, x), [2])
    died(die.catch(g.barrier), [2])
    graph.close()
    rest = g.shrink()
    check_group(rest, [0, 1, 3])
    graph, _ = made(rest)
    graph.replay()


@pytest.mark.parametrize("how", ["waited", "queued", "polled"])
def test_death_before_a_replay(how):
    with Job(_stays_away, 4, how) as job:
        job.all("ready")
        job.kill(2)
        assert [job.reap(r, 40) for r in (0, 1, 3)] == [0, 0, 0]


def _busy(die):
    g = strata.world()
    graph, x = made(g, 1 << 16, 6)
    die.say("ready")
    caught = None
    while caught is None:
        try:
            graph.replay()
        except errors.StrataError:
            caught = die.catch(graph.replay)
    died(caught, [1])
    died(die.catch(g.all_reduce, x), [1])
    die.say("seen")
    check_group(g.shrink(), [0, 2])


def test_death_in_replays():
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(3):
        with Job(_busy, 3) as job:
            job.all("ready")
            end = time.monotonic() + 0.05 * rng.random()
            while time.monotonic() < end:
                os.sched_yield()
            job.kill(1)
            job.all("seen", [0, 2])
            assert [job.reap(r) for r in (0, 2)] == [0, 0]


def _two_groups(die):
    """0 and 1 share a group with 2, who dies; 0 has another one with 3, in the same graph."""
    g = strata.world()
    left = g.subgroup([0, 1, 2]) if die.rank < 3 else None
    right = g.subgroup([0, 3]) if die.rank in (0, 3) else None
    x, y = strata.ones(1000), strata.ones(1000)
    with strata.capture() as graph:
        if left:
            left.all_reduce(x)
        if right:
            right.all_reduce(y)
    graph.replay()
    die.say("ready")
    if die.rank == 2:
        time.sleep(60)
    caught = die.catch(graph.replay)
    if die.rank == 3:
        assert caught.kind == "GroupBroken" and caught.ranks == (0,) and caught.group == right.name, caught
    else:
        died(caught, [2])
        assert caught.group == left.name and left.broken
    if right:  # nobody of it is dead
        check_group(right, [0, 3])


def test_death_in_one_of_two_groups():
    with Job(_two_groups, 4) as job:
        job.all("ready")
        job.kill(2)
        assert [job.reap(r) for r in (0, 1, 3)] == [0, 0, 0]


def _late(die):
    g = strata.world()
    graph, x = made(g)
    if die.rank == 1:
        die.say("ready")
        die.hear()
        caught = die.catch(graph.replay)
        assert caught.kind == "GroupBroken" and "stopped waiting for this die" in caught.text, caught
    else:
        work = graph.replay(async_op=True)
        short = die.catch(work.wait, 0.05)
        assert short.kind == "CollectiveTimeout" and "goes on" in short.text
        caught = die.catch(graph.replay, timeout=0.3) if die.rank == 2 else die.catch(graph.replay)
        assert caught.kind == "CollectiveTimeout" and caught.ranks == (1,), caught
        assert "rank 1 has not come in time, and is not dead, at operation 1 of a graph" in caught.text, caught
        assert isinstance(work.exception(), errors.CollectiveTimeout)
    again(die, graph, "GroupBroken", [1])
    x[:] = 7  # nobody writes to it any more
    die.say("done")
    assert die.catch(g.barrier).kind in ("GroupBroken", "CollectiveTimeout")
    check_group(g.shrink(), range(3))
    assert (x == 7).all()


def test_a_member_that_does_not_replay():
    with Job(_late, 3) as job:
        job.all("done", [0, 2])
        job.tell(1)
        assert [job.reap(r) for r in range(3)] == [0, 0, 0]


def _interrupted(die):
    g = strata.world()
    graph, x = made(g)
    if die.rank == 0:
        while graph.state == "ready":  # until it comes to where the replay is waited for

            def interrupt(begun):
                while graph.replays == begun:
                    os.sched_yield()
                os.kill(os.getpid(), signal.SIGINT)

            threading.Thread(target=interrupt, args=(graph.replays,)).start()
            caught = die.catch(graph.replay)
            assert caught.kind == "KeyboardInterrupt", caught
        again(die, graph, "GroupBroken", [0])
        die.say("done")
    else:
        die.hear()
        caught = die.catch(graph.replay)
        assert caught.kind == "GroupBroken" and caught.ranks == (0,), caught
        again(die, graph, "GroupBroken", [0])
    check_group(g.shrink(), [0, 1])


def test_interrupt():
    with Job(_interrupted, 2) as job:
        job.all("done", [0])
        job.tell(1)
        assert [job.reap(r) for r in range(2)] == [0, 0]


def _interrupted_capture(die):
    g = strata.world()
    x = strata.ones(6)
    if die.rank == 0:
        try:
            with strata.capture():
                g.all_reduce(x)
                die.say("ready")
        except KeyboardInterrupt:
            die.say("done")
    else:
        die.say("ready")
        die.hear()
        try:
            with strata.capture():
                g.all_reduce(x)
        except errors.StrataError as error:
            # Interrupted where it waited for this die, or before.
            assert isinstance(error, errors.GroupBroken | errors.CollectiveMismatch), error
    check_group(g.shrink(), [0, 1])


@pytest.mark.reports(maybe=["leak"], why="what is interrupted is left")
def test_interrupt_at_the_end_of_the_block():
    with Job(_interrupted_capture, 2) as job:
        job.all("ready")
        job.kill(0, signal.SIGINT)
        job.all("done", [0])
        job.tell(1)
        assert [job.reap(r) for r in range(2)] == [0, 0]


def _taken_back(die):
    g = strata.world()
    span = vmm.reserve_address(2 << 20)
    span.map(vmm.create_handle(2 << 20))
    span.set_access("read_write")
    y = raw(span.address, 8000).view("f8")  # of which strata.vmm knows nothing
    y[:] = die.rank
    with strata.capture() as graph:
        g.all_gather(y)
    graph.replay()
    g.barrier()
    if die.rank == 0:
        span.set_access("none")
    g.barrier()
    caught = die.catch(graph.replay)
    if caught.kind == "RegistrationError":
        assert "copy of 8000 bytes" in caught.text and "operation 1 of a graph" in caught.text, caught
    else:
        assert caught.kind == "GroupBroken", caught
    die.say("caught", caught.kind)
    assert graph.state == "failed"
    check_group(g.shrink(), [0, 1])


@pytest.mark.reports(maybe=["leak"], why="its range is left to the end of the job")
def test_memory_that_is_not_there_any_more():
    with Job(_taken_back, 2) as job:
        kinds = {e.data for e in job.all("caught").values()}
        assert "RegistrationError" in kinds
        assert [job.reap(r) for r in range(2)] == [0, 0]


LARGE = 64 << 20  # bytes, that a DMA thread fills in one go


def _shut(number, work):
    """Waits until this die's DMA thread has come to so many gates that were shut, or has done the work."""
    end = time.monotonic() + BOUND
    while strata.stats()["sdma"]["gates"] < number and not work.done():
        assert time.monotonic() < end
        os.sched_yield()


def _gone(die):
    """0 has the most to do, and is gone when its replay has ended; 1's DMA thread is elsewhere then."""
    g = strata.world()
    x = strata.ones(LARGE // 8)
    with strata.capture() as graph:
        g.reduce(x, root=0)
    graph.replay()
    if die.rank == 0:
        work = graph.replay(async_op=True)
        g.barrier()
        work.wait()
        die.say("left")
        os._exit(0)
    before = strata.stats()["sdma"]["gates"]
    large, flag = strata.empty(LARGE, "u1"), sdma.flag()
    works = [sdma.open_ring(4).submit(sdma.Batch(LARGE).gate(flag, 1).fill(large, k)) for k in range(32)]
    _shut(before + len(works), works[-1])
    g.barrier()
    work = graph.replay(async_op=True)
    _shut(before + len(works) + 1, work)  # the last one of the replay
    sdma.write(flag, 1)
    work.wait()
    die.say("ended", sum(not w.done() for w in works))


@pytest.mark.reports(maybe=["race"], why="fills that take time, of one array")
def test_a_member_that_is_gone_after_the_last_replay():
    """It is not missed: what it had to do is done, and the other one's DMA thread goes on by itself."""
    with Job(_gone, 2) as job:
        left, ended = job.all("left", [0])[0], job.all("ended", [1])[1]
        print(f"left {ended.time - left.time:.3f} s before the other one's replay ended, {ended.data} fills later")
        assert [job.reap(r) for r in range(2)] == [0, 0]


def _finalized(die, pending):
    g = strata.world()
    graph, _ = made(g)
    if pending and die.rank == 0:
        work = graph.replay(async_op=True)
        strata.finalize()
        assert die.catch(work.wait).kind == "NotInJob"
        assert work.done()
        die.say("left")
    elif pending:
        die.hear()
        died(die.catch(graph.replay), [0])
    strata.finalize()
    assert die.catch(graph.replay).kind in ("NotInJob", "PeerDead")
    cycle: list[object] = [graph]
    cycle.append(cycle)
    del graph, cycle
    gc.collect()


@pytest.mark.reports(maybe=["leak"], why="one that is replayed at the end of the job")
@pytest.mark.parametrize("pending", [False, True])
def test_finalize_with_graphs(pending):
    with Job(_finalized, 2, pending) as job:
        if pending:
            job.all("left", [0])
            job.tell(1)
        assert [job.reap(r) for r in range(2)] == [0, 0]


def _forked(die):
    g = strata.world()
    graph, x = made(g)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert die.catch(graph.replay).kind == "NotInJob"
            graph.close()
            del graph
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    g.barrier()
    graph.replay()
    assert np.isfinite(x).all()


def test_forked_child():
    with Job(_forked, 2) as job:
        assert [job.reap(r) for r in range(2)] == [0, 0]
