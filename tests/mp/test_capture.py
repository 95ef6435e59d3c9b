"""Graphs: what was captured is replayed, with the results of calls."""

import gc
import os
import random
import time

import captures
import numpy as np
import pytest
from captures import OPERATIONS, Step

import strata
from strata._core import graph as tapes

DTYPES = ("float32", "float16", "bfloat16", "int64", "uint8", "complex64")
SIZES = (1, 100, 3000)  # twelfths of an array: in the arrival line, in a mailbox, and beyond


def runs(group, steps, dtype, parts):
    captures.compare([group], steps, dtype, parts)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", SIZES)
def test_every_operation(small, dtype, parts):
    """One after another in one graph, and in place as well."""
    root = small.n - 1
    steps = [Step(op, 0, to, root=root) for to in (1, 0) for op in OPERATIONS]
    steps += [Step("all_reduce", 2, 1, redop) for redop in ("max", "avg") if captures.reducible(dtype, redop)]
    small.run(runs, steps, dtype, parts)


ALGORITHMS = {
    "all_reduce": ("full_mesh", "ring", "rhd", "staged"),
    "all_gather": ("full_mesh", "ring", "pat", "staged"),
    "reduce_scatter": ("ring", "staged"),
    "broadcast": ("ring", "binomial"),
}


@pytest.mark.parametrize("op", ALGORITHMS)
def test_algorithms(small, op):
    """Those that wait for flags in between, too."""
    names = [a for a in ALGORITHMS[op] if a != "rhd" or small.n in (2, 4)]
    steps = [Step(op, 0, to, root=1, algorithm=name) for name in names for to in (0, 2)]
    for parts in SIZES:
        small.run(runs, steps, "float32", parts)


def random_steps(rng, groups, count=8, dtype="float32"):
    redops = [op for op in ("sum", "max", "min", "prod") if captures.reducible(dtype, op)]
    return [
        Step(rng.choice(OPERATIONS), rng.randrange(3), rng.randrange(3), rng.choice(redops), rng.randrange(4),
             None, rng.randrange(groups))
        for _ in range(count)
    ]  # fmt: skip


def several(world, steps, dtype, parts):
    """Groups that overlap: the world, itself in another order, and its first and last members."""
    order = list(range(world.size))[::-1]
    ends = sorted({0, world.size - 1})
    groups = [world, world.subgroup(order), world.subgroup(ends) if world.rank in ends else None]
    captures.compare(groups, steps, dtype, parts)


def test_several_groups_in_one_graph(small):
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for dtype in ("float32", "int32"):
        small.run(several, random_steps(rng, 3, dtype=dtype), dtype, rng.choice(SIZES))


def in_subgroups(world):
    """Halves of the world capture for themselves, and do not wait for each other."""
    half = world.split(world.rank % 2)
    x = strata.full(100, world.rank + 1.0)
    with strata.capture() as graph:
        half.all_reduce(x)
    for _ in range(3 if world.rank % 2 else 5):
        x[:] = world.rank + 1.0
        graph.replay()
        assert (x == sum(r + 1.0 for r in half.ranks)).all()
    world.barrier()


def test_subgroups_capture_for_themselves(four):
    four.run(in_subgroups)


def outputs(group):
    """Outputs that calls allocate are filled by replays, and live as long as the graph."""
    n, me = group.size, group.rank
    x = strata.full(500, float(me))
    with strata.capture() as graph:
        y = group.all_gather(x)
        z = group.reduce_scatter(y.reshape(-1)[: 500 // n * n])
        w = group.all_to_all(y)
        v = group.reduce(x, root=0)
        nothing = group.gather(x, root=n - 1)
    assert y.shape == (n, 500) and strata.is_fabric(y) and (v is None) == (me != 0)
    assert (nothing is None) == (me != n - 1)
    for salt in range(3):
        x[:] = me + salt
        graph.replay()
        assert (y == (np.arange(n) + salt)[:, None]).all()
        assert (w == me + salt).all()
        assert z.shape == (500 // n,)
        if me == 0:
            assert (v == sum(range(n)) + n * salt).all()
    del x, y, z, w, v, nothing
    graph.replay()
    assert len(graph.operations) == 5 and "all_gather of 500 float64" in graph.operations[0]
    assert repr(graph) == "<strata.Graph ready, 5 operations, 4 replays>"


def test_outputs(small):
    small.run(outputs)


def queue(group, count):
    """Replays that nobody waits for are in order; more than the ring holds wait for room."""
    x = strata.ones(40)
    with strata.capture() as graph:
        group.all_reduce(x, op="max")
        group.all_reduce(x)
    works = [graph.replay(async_op=True) for _ in range(count)]
    works[-1].wait()
    assert all(w.done() and w.exception() is None for w in works)
    assert "done" in repr(works[0]) and works[0].wait() is None
    assert (x == float(group.size) ** count).all() or group.size == 1
    x[:] = 1
    group.barrier()
    for _ in range(3):
        graph.replay(async_op=True)  # nobody keeps it
    graph.replay()
    assert (x == float(group.size) ** 4).all()
    for _ in range(5):
        graph.replay(async_op=True)
    del graph  # while it is in progress
    gc.collect()
    group.barrier()


def test_replays_behind_each_other(small):
    small.run(queue, 200)


def many(group):
    """Thousands of them; flags are never reset."""
    x = strata.zeros(5, "i8")
    with strata.capture() as graph:
        group.all_reduce(x)
        group.broadcast(x, root=group.size - 1)
    for k in range(3000):
        x[:] = k + group.rank
        graph.replay()
        assert x[0] == group.size * k + sum(range(group.size))


def test_many_replays(pair):
    pair.run(many)


def mixed(group):
    """Replays, calls and asynchronous calls in turn; two graphs in turn."""
    x, y = strata.ones(2000), strata.ones(3)
    with strata.capture() as one:
        group.all_reduce(x)
    with strata.capture() as two:
        group.all_reduce(y)
        group.all_reduce(x, op="max")
    for _ in range(10):
        x[:] = 1
        y[:] = 1
        one.replay()
        work = group.all_reduce(y, async_op=True)
        group.all_reduce(x)
        work.wait()
        two.replay()
        assert (x == group.size**2).all() and (y == group.size**2).all()


def test_between_calls(small):
    small.run(mixed)


def empty(group):
    with strata.capture() as graph:
        pass
    assert graph.operations == () and graph.state == "ready"
    graph.replay()
    graph.replay(async_op=True).wait()
    with strata.capture(group) as graph:  # everybody comes to it
        pass
    graph.replay()
    x = strata.empty((0, 3))
    with strata.capture() as graph:
        group.all_reduce(x)
        group.all_gather(x)
    graph.replay()
    graph.close()
    graph.close()
    with pytest.raises(ValueError, match="closed"):
        graph.replay()
    assert "closed" in repr(graph)


def test_empty(small):
    small.run(empty)


# ---- what it takes ---------------------------------------------------------------------------------


def again(group):
    """Captures come and go; neither memory nor rings grow."""
    x = strata.ones(5000)

    def once(close):
        with strata.capture() as graph:
            group.all_gather(x)
            group.all_reduce(x, op="max", algorithm="ring")
        graph.replay()
        if close:
            graph.close()

    def now():
        group.barrier()  # all have closed theirs; their farewells are on the way
        end = time.monotonic() + 20
        while tapes.left() and time.monotonic() < end:
            os.sched_yield()
            tapes.sweep()
        return strata.memory_stats()["allocation.all.current"], strata.sdma.stats()["rings"], tapes.left()

    for _ in range(3):
        once(True)
    gc.collect()
    before = now()
    for k in range(60):
        once(k % 2)
    gc.collect()
    after = now()
    assert after[1:] == before[1:] and after[2] == 0 and after[0] <= before[0] + 2, (before, after)


def test_memory_does_not_grow(small):
    small.run(again)
