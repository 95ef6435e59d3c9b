"""Thousands of calls that never ask twice in a row for the same leave a die's memory as it was."""

import numpy as np
import pytest
from collectives_play import in_step
from registration_cycles import measure

import strata
from strata._core.array import dtype_code
from strata.dtypes import OP_CODES
from strata.plan import algorithms
from strata.plan.spec import Spec
from strata.plan.topology import HOST
from strata.testing import Pool

CALLS = 2_500
SHAPES = 1100  # more than a group's tables hold
SLACK = 3 << 20  # bytes: what Python itself may keep, and how far the tables are filled; 1200 bytes a call


def ways(n):
    """Operations, each with the library's choice and every algorithm that can do it."""
    found = []
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather"):
        spec = Spec(op, 64, 4, dtype_code(np.dtype("f4")), OP_CODES["sum"] if "reduce" in op else 0, 0, n)
        found += [(op, name) for name in (None, *(a.name for a in algorithms.available(spec, HOST)))]
    return found


def call(group, op, name, count, root):
    """One operation; asserts how its result begins and ends."""
    n, rooted = group.size, op in ("broadcast", "reduce", "gather")
    y = getattr(group, op)(strata.full(count * n, group.rank + 1, "f4"), algorithm=name,
                           **({"root": root} if rooted else {}))  # fmt: skip
    ends = (1, n) if op in ("all_gather", "all_to_all", "gather") else (root + 1,) * 2
    if "reduce" in op:
        ends = (n * (n + 1) / 2,) * 2
    if not rooted or op == "broadcast" or group.rank == root:
        assert (y.ravel()[0], y.ravel()[-1]) == ends, (op, name, count)


def alternate(group, calls):
    """``calls`` operations, other ones and other shapes each time; scratch and counts that grow and shrink."""
    kinds = ways(group.size)
    for i in range(calls):
        shape = i % SHAPES
        op, name = kinds[shape % len(kinds)]
        count = 20_000 + shape if shape % 97 == 0 else 1 + shape
        call(group, op, name, count, shape % group.size)
        if i % 10 == 0:
            counts = np.random.default_rng(i % SHAPES).integers(0, 50, (group.size, group.size))
            rows = group.all_to_all_v(strata.ones(int(counts[group.rank].sum())), counts[group.rank])
            assert rows.size == counts[:, group.rank].sum() and (rows == 1).all()
    in_step(group)


@pytest.mark.parametrize("options", [{}, {"workers": 2, "cores": 3}], ids=["one thread", "a crew"])
def test_calls_that_alternate_leave_nothing(options):
    with Pool(3, timeout=110, **options) as pool:
        pool.run(alternate, 2 * SHAPES)  # fills what is bounded: tables, the plans' cache, scratch
        pool.run(measure)
        before = pool.run(measure)
        pool.run(alternate, CALLS)
        after = pool.run(measure)
    print(*zip(before, after, strict=True), sep="\n")
    for old, new in zip(before, after, strict=True):
        assert new["rss"] <= old["rss"] + SLACK
        for key in ("space", "descriptors", "mappings", "window", "frames"):
            assert new[key] <= old[key], key
