"""Sequences of operations on a few arrays, run by calls and from a graph: what tests of captures share."""

from __future__ import annotations

from typing import NamedTuple

from collectives_reference import allowed, data, dtype_of, same

import strata

ARRAYS = 3
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter",
              "barrier")  # fmt: skip


class Step(NamedTuple):
    """One operation: from array ``source`` to array ``target``; equal: in place."""

    op: str
    source: int = 0
    target: int = 1
    redop: str = "sum"
    root: int = 0
    algorithm: str | None = None
    group: int = 0  # which of the groups


def call(group, arrays, step: Step):
    """Calls an operation; every array has a multiple of the group's size of elements."""
    n, me = group.size, group.rank
    x, y = arrays[step.source % ARRAYS], arrays[step.target % ARRAYS]
    same_array, part, root = x is y, x.size // n, step.root % n
    own = slice(me * part, (me + 1) * part)
    how = {"algorithm": step.algorithm} if step.algorithm else {}
    if step.op == "barrier":
        return group.barrier()
    if step.op == "all_reduce":
        return group.all_reduce(x, None if same_array else y, step.redop, **how)
    if step.op == "all_gather":
        return group.all_gather(y[own] if same_array else x[:part], y, **how)
    if step.op == "reduce_scatter":
        return group.reduce_scatter(x, x[own] if same_array else y[:part], step.redop, **how)
    if step.op == "all_to_all":
        return group.all_to_all(x, y, **how)
    if step.op == "broadcast":
        return group.broadcast(x, root, **how)
    if step.op == "reduce":
        return group.reduce(x, y, root, step.redop, **how)
    if step.op == "gather":
        return group.gather(y[own] if same_array else x[:part], y, root, **how)
    out = x[own] if same_array and me == root else y[:part]
    return group.scatter(x if me == root else None, out, root, **how)


def made(dtype, size: int):
    """Arrays in the fabric."""
    return [strata.zeros(size, dtype_of(dtype)) for _ in range(ARRAYS)]


def fill(arrays, rank: int, salt: int) -> None:
    for k, a in enumerate(arrays):
        a[...] = data(a.shape, a.dtype, rank, salt * ARRAYS + k)


def compare(groups, steps, dtype, parts: int, replays: int = 3):
    """A graph gives, at every replay, what calls give.  ``groups``: the first contains all others' members."""
    world = groups[0]
    size = parts * 12  # of any group of up to four members
    called, captured = made(dtype, size), made(dtype, size)
    mine = [s for s in steps if groups[s.group] is not None]
    with strata.capture() as graph:
        for step in mine:
            call(groups[step.group], captured, step)
    assert graph.state == "ready"
    for salt in range(replays):
        fill(called, world.rank, salt)
        fill(captured, world.rank, salt)
        world.barrier()
        for step in mine:
            call(groups[step.group], called, step)
        assert graph.replay() is None
        for k in range(ARRAYS):
            assert same(captured[k], called[k]), f"array {k} after replay {salt}: {captured[k]} is not {called[k]}"
        world.barrier()
    assert graph.replays == replays
    graph.close()


def reducible(dtype, redop: str) -> bool:
    return redop in allowed(dtype)


