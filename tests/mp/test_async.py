"""Asynchronous operations: their handles, their order, what they keep alive, and their errors."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest
from collectives_play import OPERATIONS, Case, in_step, play, side_by_side

import strata
from strata import CollectiveMismatch, CollectiveTimeout


def handles(group):
    x = strata.full(3000, group.rank + 1.0)
    work = group.all_reduce(x, async_op=True)
    assert isinstance(work, strata.Work)
    assert work.wait() is x and work.wait(timeout=0) is x
    assert work.done() and work.exception() is None
    assert (x == sum(range(1, group.size + 1))).all()
    assert "done" in repr(work)
    assert group.barrier(async_op=True).wait() is None
    out = group.all_gather(x, async_op=True).wait()
    assert out.shape == (group.size, 3000)
    root = group.size - 1
    got = group.reduce(x, root=root, async_op=True).wait()
    assert (got is None) == (group.rank != root)
    with pytest.raises(TypeError):
        strata.Work()


def test_what_a_handle_tells(dies):
    dies.run(handles)


def many(group, ops, count):
    """All are begun before the first is waited for, and end in the order of their begin."""
    n, me = group.size, group.rank
    works = []
    for i in range(30):
        x = strata.full(count, me + i)
        op = ops[i % len(ops)]
        if op == "all_reduce":
            works.append((i, op, group.all_reduce(x, async_op=True)))
        elif op == "all_gather":
            works.append((i, op, group.all_gather(x, async_op=True)))
        else:
            works.append((i, op, group.broadcast(x, root=i % n, async_op=True)))
    order = works[::-1] if me % 2 else works
    for i, op, work in order:
        y = work.wait()
        if op == "all_reduce":
            assert (y == sum(range(n)) + n * i).all()
        elif op == "all_gather":
            assert (y == np.arange(n)[:, None] + i).all()
        else:
            assert (y == i % n + i).all()
    assert group.pending() == 0
    in_step(group)


@pytest.mark.parametrize("count", [2, 3000])
def test_several_outstanding(dies, count):
    dies.run(many, ["all_reduce", "all_gather", "broadcast"], count)


def after_async(group):
    """A synchronous operation begun after an asynchronous one comes after it on every member."""
    n = group.size
    for count in (3, 5000):
        x = strata.full(count, 1.0)
        works = [group.all_reduce(x, async_op=True) for _ in range(4)]
        group.all_reduce(x)
        assert (x == float(n) ** 5).all()
        assert all(work.done() for work in works)


def test_sync_after_async_keeps_the_order(dies):
    dies.run(after_async)


def one_sync_one_async(group):
    """Members need not agree on how they wait."""
    for i in range(20):
        x = strata.full(1000 if i % 2 else 4, group.rank)
        work = group.all_reduce(x, async_op=(group.rank + i) % 2 == 0)
        if isinstance(work, strata.Work):
            work.wait()
        assert (x == sum(range(group.size))).all()


def test_some_members_wait_and_others_do_not(peers):
    peers.run(one_sync_one_async)


def dropped(group):
    """The handle and every array are dropped at once; nobody frees what is still read."""
    n, me = group.size, group.rank
    outs = []
    for i in range(40):
        src = strata.full(20_000, me + i)
        out = strata.empty((n, 20_000), "i8")
        group.all_gather(src, out, async_op=True)
        outs.append(out)
        del src
        junk = [strata.full(20_000, -1) for _ in range(3)]  # would take the memory of what was freed
        del junk
    group.barrier()
    for i, out in enumerate(outs):
        assert (out == np.arange(n)[:, None] + i).all()


def test_dropped_handles_keep_their_arrays(peers):
    peers.run(dropped)


def released(group):
    """When it has ended, nothing is kept, whether anybody waited or not."""
    freed = []
    for count in (4, 5000):
        for wait in (True, False):
            x = strata.ones(count)
            holder = np.lib.stride_tricks.as_strided(x)
            freed.append(weakref.ref(holder))
            work = group.all_reduce(holder, async_op=True)
            if wait:
                work.wait()
            del work, holder, x
    group.barrier()
    for _ in range(3):
        group.barrier(async_op=True).wait()
    gc.collect()
    assert group.pending() == 0
    assert [ref() for ref in freed] == [None] * 4
    before = strata.memory_stats()["allocation.all.current"]
    for _ in range(500):
        group.all_reduce(strata.ones(3), async_op=True)
    group.barrier()
    assert group.pending() == 0
    assert strata.memory_stats()["allocation.all.current"] <= before + 2


def test_ended_operations_keep_nothing(pair):
    pair.run(released)


def slow(group):
    if group.rank == 0:
        x = strata.ones(3000)
        work = group.all_reduce(x, async_op=True)
        assert not work.done() and work.exception() is None
        assert "running" in repr(work)
        begin = time.monotonic()
        with pytest.raises(CollectiveTimeout, match="goes on"):
            work.wait(timeout=0.05)
        assert time.monotonic() - begin < 10
        assert not work.done()
        group.send(np.ones(1), 1)
        work.wait()
        assert (x == 2).all()
    else:
        group.recv(np.ones(1), 0)
        group.all_reduce(strata.ones(3000))
    in_step(group)


def test_waiting_has_its_own_limit(pair):
    pair.run(slow)


def errors(group):
    """The error comes from wait() and stays; what was begun after it goes on."""
    me = group.rank
    bad = group.all_reduce(np.ones(3 if me else 4), async_op=True)
    good = group.all_gather(strata.full(2000, me), async_op=True)
    for _ in range(2):
        with pytest.raises(CollectiveMismatch, match="of 4 float64"):
            bad.wait()
    assert bad.done() and isinstance(bad.exception(), CollectiveMismatch)
    assert "failed" in repr(bad)
    assert (good.wait() == np.arange(group.size)[:, None]).all()
    with pytest.raises(ValueError, match="op="):
        group.all_reduce(np.ones(3), op="no", async_op=True)
    group.all_reduce(np.ones(2 + (me == 0)), async_op=True)  # dropped together with its error
    in_step(group)


@pytest.mark.reports("mismatch")
def test_errors_of_asynchronous_operations(peers):
    peers.run(errors)


def across_groups(world, count):
    """Operations of several groups, begun in another order on each die, end all the same."""
    groups = [world.subgroup(range(world.size)) for _ in range(4)]
    for turn in range(10):
        order = np.random.default_rng([turn, world.rank]).permutation(4)
        works = {}
        for k in order:
            works[k] = groups[k].all_reduce(strata.full(count, int(k) + turn), async_op=True)
        for k in range(4):
            assert (works[k].wait() == (k + turn) * world.size).all()


@pytest.mark.parametrize("count", [3, 4000])
def test_concurrent_groups_in_any_order(peers, count):
    peers.run(across_groups, count)


def waiters(group):
    """Several threads wait for one operation, and begin operations of one group in turn."""
    seen = []
    x = strata.full(3000, 1.0)
    work = group.all_reduce(x, async_op=True)
    threads = [threading.Thread(target=lambda: seen.append(work.wait() is x)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 4
    in_step(group)


def test_several_threads_wait_for_one_operation(peers):
    peers.run(waiters)


def loads(group):
    """Threads of one die use one group at once: each call is whole, and in some order."""
    def use(_):
        for _ in range(25):
            x = strata.ones(5)
            group.all_reduce(x)
            assert (x == group.size).all()

    side_by_side(3, use)
    in_step(group)


def test_threads_share_a_group(peers):
    peers.run(loads)


def new_shapes(group):
    """Threads that ask for one new shape at the same time: each runs the plan that it found or made."""
    together = threading.Barrier(3)

    def use(_):
        try:
            for count in range(30):
                together.wait(60)
                x = strata.ones(count + 1)
                group.all_reduce(x)
                assert (x == group.size).all()
        except BaseException:
            together.abort()
            raise

    side_by_side(3, use)
    in_step(group)


def test_threads_that_need_one_new_plan(peers):
    peers.run(new_shapes)


def every_operation(group):
    for op in OPERATIONS:
        for count in (3, 3000):
            for fabric in (True, False):
                for layout in ("C", "strided"):
                    case = Case(op, "float32", (count,), salt=1, async_op=True, fabric_src=fabric,
                                fabric_out=fabric, layout_src=layout, layout_out=layout)  # fmt: skip
                    play(group, case)


def test_every_operation(dies):
    dies.run(every_operation)
