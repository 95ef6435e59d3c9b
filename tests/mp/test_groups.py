"""Groups of some dies: how they are made and numbered, that they do not meet, that they leave nothing."""

import gc
import itertools
import os
import threading

import numpy as np
import psutil
import pytest
from collectives_play import OPERATIONS, Case, in_step, play

import strata


def every_operation(group, salt):
    for op in OPERATIONS:
        for count in (3, 3000):
            play(group, Case(op, "int32", (count,), root=salt % group.size, salt=salt))


def halves(world):
    group = world.split(world.rank % 2, key=-world.rank)
    expected = sorted((r for r in range(world.size) if r % 2 == world.rank % 2), reverse=True)
    assert list(group.ranks) == expected
    assert group.size == len(expected) and group.ranks[group.rank] == world.rank
    every_operation(group, world.rank % 2)
    in_step(world)


def test_split_orders_by_key(dies):
    dies.run(halves)


def equal_keys(world):
    assert list(world.split(5).ranks) == list(range(world.size))
    keys = [2, 1, 2, 1, 2, 1, 2, 1]
    expected = sorted(range(world.size), key=lambda r: (keys[r], r))
    assert list(world.split(-3, keys[world.rank]).ranks) == expected


def test_split_orders_equal_keys_by_rank(dies):
    dies.run(equal_keys)


def some_abstain(world):
    group = world.split(None if world.rank == 0 else 1)
    assert (group is None) == (world.rank == 0)
    if group is not None:
        assert list(group.ranks) == list(range(1, world.size))
        every_operation(group, 4)
    alone = world.split(world.rank)
    assert alone.ranks == (world.rank,)
    every_operation(alone, 1)
    in_step(world)


def test_split_without_a_color_and_with_one_for_each(dies):
    dies.run(some_abstain)


def every_order(world):
    for order in itertools.permutations(range(world.size)):
        group = world.subgroup(order)
        assert group.ranks == order and group.rank == order.index(world.rank)
        gathered = group.all_gather(strata.array([world.rank]))
        assert gathered.ravel().tolist() == list(order)
        x = strata.full(3000, world.rank)
        group.broadcast(x, root=group.size - 1)
        assert (x == order[-1]).all()
    in_step(world)


def test_subgroup_keeps_the_order_given(trio):
    trio.run(every_order)


def nested(world):
    if world.rank == 0:
        return
    outer = world.subgroup([3, 1, 2])
    assert outer.ranks == (3, 1, 2)
    if outer.rank != 1:
        inner = outer.subgroup([2, 0])  # numbers in outer
        assert inner.ranks == (2, 3)
        every_operation(inner, 8)
    every_operation(outer, 9)
    part = outer.split(0 if outer.rank < 2 else 1)
    assert part.ranks == ((3, 1) if outer.rank < 2 else (2,))


def test_numbers_are_the_group_s_own(four):
    four.run(nested)


def overlapping(world):
    """Each pair is a group; operations go round in an order that each pair keeps."""
    pairs = [p for p in itertools.combinations(range(world.size), 2) if world.rank in p]
    groups = {pair: world.subgroup(pair) for pair in pairs}
    for turn in range(30):
        for pair in pairs:
            count = (1, 7, 2500)[turn % 3]
            x = strata.full(count, world.rank + turn)
            groups[pair].all_reduce(x)
            assert (x == sum(pair) + 2 * turn).all()
    in_step(world)
    assert len({group.name for group in groups.values()}) == len(groups)


def test_overlapping_groups(peers):
    peers.run(overlapping)


def numbers(world):
    """An operation of one group does not count in another."""
    before = world.number
    group = world.subgroup([0, 1]) if world.rank < 2 else None
    if group is not None:
        for _ in range(3):
            group.barrier()
        assert group.number == 3
    assert world.number == before
    in_step(world)


def test_each_group_counts_for_itself(trio):
    trio.run(numbers)


def crossing_threads(world):
    """Two groups of the same members, used in opposite order by threads of two dies."""
    a, b = world.subgroup(range(world.size)), world.subgroup(range(world.size))
    assert a.name != b.name
    failed = []

    def use(group, add):
        try:
            for i in range(60):
                x = strata.full((3, 2000)[i % 2], world.rank + add)
                group.all_reduce(x)
                assert (x == sum(range(world.size)) + add * world.size).all()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=use, args=(a, 1)), threading.Thread(target=use, args=(b, 100))]
    for thread in threads if world.rank % 2 else reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]


def test_groups_in_several_threads(peers):
    peers.run(crossing_threads)


def make_and_drop(world, rounds):
    for i in range(rounds):
        group = world.subgroup(range(world.size)) if i % 2 else world.split(0)
        group.all_reduce(np.ones(3))
        if i % 7 == 0:
            group.send(np.ones(4), (group.rank + 1) % group.size)
            group.recv(np.empty(4), (group.rank - 1) % group.size)
        if i % 11 == 0:
            group.all_reduce(strata.ones(3000), async_op=True).wait()
        del group
    gc.collect()
    world.barrier()


def footprint():
    me = psutil.Process()
    return {
        "files": me.num_fds(), "threads": me.num_threads(), "maps": len(me.memory_maps(grouped=False)),
        "resident": me.memory_info().rss, "live": strata.memory_stats()["allocation.all.current"],
        "reserved": strata.memory_stats()["reserved_bytes.all.current"],
    }  # fmt: skip


def growth(world, rounds):
    make_and_drop(world, rounds // 4)
    before = footprint()
    make_and_drop(world, rounds)
    after = footprint()
    return {key: after[key] - before[key] for key in before}


@pytest.mark.parametrize("n", [2, 3])
def test_groups_made_and_dropped_leave_nothing(n):
    pool = strata.testing.pool(n)
    for grown in pool.run(growth, 2000 // n):
        assert grown["files"] == grown["threads"] == 0, grown
        assert grown["live"] <= 8 and grown["reserved"] <= 2 << 20, grown
        assert grown["maps"] <= 4 and grown["resident"] < 4 << 20, grown


def many_at_once(world):
    groups = [world.subgroup(range(world.size)) for _ in range(100)]
    for group in reversed(groups):
        in_step(group)
    for i, group in enumerate(groups):
        every = group.all_gather(np.array([i]))
        assert (every == i).all()


def test_a_hundred_groups_at_once(pair):
    pair.run(many_at_once)


def absent(world):
    """A member that does not call subgroup() is waited for and named; it may come later."""
    if world.rank == 1:
        for _ in range(2):
            with pytest.raises(strata.CollectiveTimeout, match="rank 0"):
                world.subgroup([0, 1], timeout=0.2)
    in_step(world)
    in_step(world.subgroup([0, 1]))
    in_step(world.subgroup([0, 1]))


@pytest.mark.reports(maybe=["deadlock"], why="it is one until the timeout")
def test_a_first_member_that_does_not_come(pair):
    pair.run(absent)


def forked(world):
    """A child that a die forks is no die, and the die goes on."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = []
        for call in (
            lambda: world.barrier(), lambda: world.all_reduce(np.ones(3)), lambda: world.send(np.ones(3), 0),
            lambda: world.subgroup([world.rank]), lambda: strata.ones(3), strata.world, strata.init,
        ):  # fmt: skip
            try:
                call()
                said.append("nothing")
            except strata.NotInJob as error:
                said.append("NotInJob" if "fork" in str(error) else str(error))
            except BaseException as error:
                said.append(repr(error))
        os.write(write, "; ".join(said).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    assert os.waitpid(pid, 0)[1] == 0
    assert said == "; ".join(["NotInJob"] * 7)
    in_step(world)


def test_a_forked_child_is_told_that_it_is_no_die(pair):
    pair.run(forked)


def subprocess_in_die(world):
    import subprocess

    done = subprocess.run(["true"], capture_output=True, check=True)
    in_step(world)
    return done.stderr


def test_a_subprocess_is_harmless(pair):
    assert pair.run(subprocess_in_die) == [b"", b""]


def colors(world):
    wrong = (("red", 0, TypeError), (1.5, 0, TypeError), (1 << 63, 0, ValueError), (0, None, TypeError))
    for color, key, kind in wrong:
        with pytest.raises(kind, match="(color|key)=.*integer"):
            world.split(color, key)
    assert world.split(None) is None
    in_step(world)


def test_a_color_is_an_integer(pair):
    pair.run(colors)
