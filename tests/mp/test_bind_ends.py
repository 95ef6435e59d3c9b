"""Bound operations among everything else: arrays that change, streams, captures, threads, failures, ends."""

import gc
import mmap
import os
import weakref

import numpy as np
import pytest
from collectives_play import in_step, side_by_side
from faultlib import Job, check_group, died

import strata
from strata import CollectiveTimeout, GroupBroken, NotInJob, RegistrationError, testing, vmm
from strata.errors import InvalidArgument

# ---- arrays that change, groups that end -----------------------------------------------------


def arrays_that_change(group):
    for count in (4, 3000):
        x, y = strata.ones(count), np.zeros(count)
        op = group.all_reduce.bind(x, y)
        y.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            op()
        with pytest.raises(ValueError, match="read-only"):
            op.start()
        y.flags.writeable = True
        assert (op() == group.size).all()
        z = np.ones(count)
        op = group.all_reduce.bind(z)
        z.resize(4 * count, refcheck=False)
        with pytest.raises(InvalidArgument, match="bind again"):
            op()
        z = strata.ones(count)
        op = group.all_reduce.bind(z)
        z.dtype = "i8"
        with pytest.raises(InvalidArgument, match="bind again"):
            op()
        with op:
            pass
        for call in (op, op.start):
            with pytest.raises(InvalidArgument, match="freed"):
                call()
        assert op.result is None
        op.free()
    in_step(group)


def test_arrays_that_change(small):
    small.run(arrays_that_change)


def memory_that_goes(group):
    """An error of a call is an error of a bound call, never an operation on what is there now."""
    n, size = group.size, vmm.granularity()
    for count in (8, 5000):
        handle = vmm.create_handle(size)
        span = vmm.reserve_address(size)
        span.map(handle)
        span.set_access("read_write")
        x = strata.from_address(span.address, (count,), "f8")  # does not keep the memory, as vmm.array does
        x[:] = 1
        op = group.all_reduce.bind(x)
        assert (op() == n).all()
        for take, back in ((lambda: span.set_access("none"), None), (span.unmap, span.map)):  # noqa: B023
            group.barrier()
            take()
            texts = []
            for call in (op, op.start, lambda: group.all_reduce(x)):  # noqa: B023
                with pytest.raises(RegistrationError, match="array is fabric memory") as caught:
                    done = call()
                    done.wait()
                texts.append(str(caught.value).partition(" [")[0])
            assert len(set(texts)) == 1
            group.barrier()
            if back:
                back(handle)
            span.set_access("read_write")
            x[:] = 2
            assert (op() == 2 * n).all()
        keeper = group.all_reduce.bind(span.array((count,), "f8"))
        with pytest.raises(InvalidArgument, match="alive"):
            span.unmap()
        keeper.free()
        gc.collect()
        span.unmap()
    in_step(group)


def test_memory_that_goes(small):
    small.run(memory_that_goes)


def registered(group):
    """What is registered is used where it lies; afterwards it is staged, as in a call."""
    n = group.size
    fd = os.memfd_create("bound")
    os.ftruncate(fd, 1 << 20)
    with mmap.mmap(fd, 1 << 20) as memory:
        os.close(fd)
        x = np.frombuffer(memory, "f8")
        x[:] = 1.0
        strata.register(x)
        with group.all_reduce.bind(x) as op:
            assert (op() == n).all()
            strata.deregister(x)
            x[:] = 2.0
            assert (op() == 2 * n).all()
            strata.register(x)
            x[:] = 3.0
            assert (op() == 3 * n).all()
            strata.deregister(x)
        del x, op
        gc.collect()


def test_memory_of_others(small):
    small.run(registered)


def closed(group):
    h = group.subgroup(range(group.size))
    x, big = strata.ones(4), strata.ones(30_000)
    y = strata.zeros(4)
    small, large = h.all_reduce.bind(x), h.all_reduce.bind(big, path="sdma")
    send, recv = h.send.bind(x, h.rank), h.recv.bind(y, h.rank)
    for op in (small, large, send, recv):
        op()
    group.barrier()
    h.close()
    for op in (small, large, send, recv):
        for call in (op, op.start):
            with pytest.raises(NotInJob):
                call()
    with pytest.raises(NotInJob):
        h.barrier.bind()
    h.reopen()
    group.barrier()
    x[:] = big[:] = 1
    assert (small() == h.size).all() and (large() == h.size).all()
    send(), recv()


def test_a_group_that_is_closed(small):
    small.run(closed)


def kept(group):
    """A bound operation keeps its arrays and its group, and nothing keeps it."""
    x = strata.ones(3000)
    op = group.all_reduce.bind(x)
    dead, array = weakref.ref(x), x.ctypes.data
    del x
    gc.collect()
    assert dead() is not None and op() is dead() and op.result.ctypes.data == array
    work = op.start()
    op.free()
    assert (work.wait() == float(group.size) ** 2).all()
    del op, work
    group.pending()
    gc.collect()
    assert dead() is None
    h = group.subgroup(range(group.size))
    op = h.barrier.bind()
    group_dead = weakref.ref(h)
    h.circle = op  # a cycle
    del h
    op()
    assert group_dead() is op.group
    del op
    gc.collect()
    assert group_dead() is None
    group.barrier()


def test_what_is_kept(small):
    small.run(kept)


# ---- mixed with everything else ----------------------------------------------------------------


def streams(group):
    n = group.size
    x, y = strata.full(3000, 1.0), strata.zeros((n, 3000))
    one, two = group.all_reduce.bind(x), group.all_gather.bind(x, y)
    ordinary = group.all_reduce.bind(np.ones(3000))
    with strata.Stream() as s:
        with strata.stream(s):
            assert one() is x
            assert two() is y
            work = one.start()
            with pytest.raises(InvalidArgument, match="on a stream"):
                ordinary()
        s.synchronize()
        assert work.wait() is x
    assert (y == n).all() and (x == n * n).all()
    works = [one.start() for _ in range(3)]
    assert one() is x  # after those that were begun
    assert all(work.done() for work in works) and (x == float(n) ** 6).all()


def test_on_streams_and_after_asynchronous_ones(small):
    small.run(streams)


def captured(group):
    n = group.size
    x, y = strata.full(3000, 1.0), strata.zeros((n, 3000))
    parts = strata.full((n, 2), float(group.rank))
    ops = [group.all_reduce.bind(x), group.all_gather.bind(x, y), group.all_to_all.bind(parts, parts)]
    root = group.scatter.bind(parts if group.rank == 0 else None, out=strata.zeros(2))
    timed = group.all_reduce.bind(x, timeout=30)
    with strata.capture() as graph:
        for op in ops:
            assert op() is op.result
        root()
        for refused in (ops[0].start, timed, lambda: group.barrier.bind()):
            with pytest.raises(InvalidArgument):
                refused()
    assert (x == 1).all()
    graph.replay()
    group.barrier()
    assert (x == n).all() and (y == n).all()
    assert (parts == np.arange(n)[:, None]).all() and (root.result == group.rank).all()
    assert ops[0]() is x and (x == n * n).all()


def test_in_captures(small):
    small.run(captured)


def threads(group):
    """One bound operation in several threads: each call is one, whoever makes it."""
    x = strata.ones(4)
    op = group.all_reduce.bind(x, op="max")
    side_by_side(3, lambda k: [op() for _ in range(30)])
    assert (x == 1).all()
    in_step(group)


def test_several_threads(pair):
    pair.run(threads)


def clocked(group):
    x, y = strata.ones(3000), strata.zeros(3000)
    before = strata.clock.now()
    op = group.all_reduce.bind(x)
    bound = strata.clock.now()
    op()
    once = strata.clock.now()
    op.start().wait()
    me, n = group.rank, group.size
    send, recv = group.send.bind(x, (me + 1) % n), group.recv.bind(y, (me - 1) % n)
    work = send.start()
    recv()
    work.wait()
    assert before < bound < once < strata.clock.now()
    group.all_reduce(x)
    return once - bound, strata.clock.now()


@pytest.mark.unchecked("a job is checked or timed, not both")
def test_with_a_clock():
    """A bound call takes what a call takes, on every die's clock."""
    with testing.Pool(2, clock="cm384") as pool:
        (took, end), (same, _) = pool.run(clocked)
        assert took > 0 and took == same and end > 0


# ---- failure -----------------------------------------------------------------------------------


def late(group):
    h = group.subgroup(range(group.size))
    x = strata.ones(4)
    op = h.all_reduce.bind(x, timeout=0.05)
    if h.rank == 0:
        with pytest.raises(CollectiveTimeout) as caught:
            op()
        assert caught.value.ranks == tuple(range(1, h.size)) and caught.value.operation == "all_reduce"
        assert (x == 1).all()
    group.barrier()
    for call in (op, lambda: op.start().wait(), lambda: h.barrier.bind()):
        with pytest.raises(GroupBroken if h.rank else (GroupBroken, CollectiveTimeout)):
            call()
    k = h.shrink()
    op = k.all_reduce.bind(x)
    assert (op() == k.size).all()


@pytest.mark.reports(maybe=["deadlock", "mismatch"], why="it waits for others until its timeout")
def test_timeout(peers):
    peers.run(late)


def _dies(die):
    g = strata.world()
    x, big = strata.ones(4, "f4"), strata.ones(1 << 15, "f4")
    ops = [g.all_reduce.bind(x), g.all_gather.bind(big), g.barrier.bind(), g.recv.bind(x, 1)]
    ops[0]()
    g.barrier()
    die.say("ready")
    if die.rank == 1:
        die.hear()  # until it is killed
    for op in ops:
        died(die.catch(op), [1])
    died(die.catch(lambda: g.all_reduce.bind(x)), [1])
    h = g.shrink()
    check_group(h, [0, 2])
    x[:] = 1
    with h.all_reduce.bind(x) as op:
        assert (op() == 2).all() and (op() == 4).all()


def test_death():
    """Errors of bound calls on the old group, and operations bound on the survivors'."""
    with Job(_dies, 3) as job:
        job.all("ready")
        job.kill(1)
        assert [job.reap(r) for r in (0, 2)] == [0, 0]
