"""Operations whose bytes the DMA engine moves: the bits of those that cores move, whatever the algorithm, the cores,
and the other members' path."""

import gc

import numpy as np
import pytest
from algorithms_play import DONE, FREE_ORDER, NAMES, count_of, exactly, run_all
from collectives_play import OPERATIONS, REDUCING, Case, in_step
from collectives_reference import allowed

import strata
from strata import errors

PATHS = ("sdma", "mixed")


def moved(group):
    """Bytes that this die's engine has moved, and descriptors that failed."""
    found = strata.stats()["sdma"]
    return found["bytes"], found["failed"]


# ---- bits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, op", DONE)
def test_sizes_and_places(dies, name, op):
    """From nothing to several descriptors; in place and not; every root; one core and three."""
    run_all(dies, [
        Case(op, "int32", (size,), root=(size + 1) % dies.n, salt=size, in_place=in_place, rows=3, algorithm=name,
             path=path, cores=cores)
        for size, cores, path in ((0, 1, "sdma"), (dies.n + 1, 1, "mixed"), (70_001, 1, "mixed"), (70_001, 3, "sdma"))
        for in_place in (False, True)
        if not (in_place and op == "all_to_all_v")
    ])  # fmt: skip


@pytest.mark.parametrize("name, op", [d for d in DONE if d[1] in REDUCING])
def test_dtypes_and_operators(corners, name, op):
    """Partial operands and means, too."""
    run_all(corners, [
        Case(op, dtype, (count_of(op, 9000, dtype, corners.n),), redop, root=corners.n - 1, salt=i, algorithm=name,
             path=PATHS[i % 2], cores=(1, 3)[i // 2 % 2])
        for i, dtype in enumerate(("int8", "uint64", "bool", "float16", "bfloat16", "float8_e4m3fn", "float32",
                                   "float64", "complex64", "complex128"))
        for redop in allowed(dtype) if name not in FREE_ORDER or exactly(Case(op, dtype, redop=redop))
    ])  # fmt: skip


def test_many_descriptors_for_one_ring(pair):
    """A plan with more descriptors than its ring has slots."""
    assert pair.run(long_plan) == [True, True]


def long_plan(group):
    @strata.algorithm("all_to_all", name="crumbs")
    def body(op, rank):
        for at in range(0, op.nbytes, 8):
            for m in range(op.ranks):
                yield op.pull(m, 8, src=op.src(rank * op.nbytes + at), dst=op.out(m * op.nbytes + at))

    x = strata.empty(3000, "i8")
    x[:] = np.arange(3000) + 3000 * group.rank
    before = strata.stats()["sdma"]["descriptors"]
    out = group.all_to_all(x, algorithm="crumbs", path="sdma")
    found = strata.stats()["sdma"]["descriptors"] - before
    in_step(group)
    part = np.arange(1500) + 1500 * group.rank
    return bool((out == np.concatenate([part, part + 3000])).all()) and found > 3000


# ---- memory that is not the fabric's ---------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_arrays_outside_the_fabric(trio, path):
    """Strided ones, and those that the engine cannot reach, are staged."""
    run_all(trio, [
        Case(op, "int16", (4000, 3), root=1, algorithm="full_mesh", fabric_src=src, fabric_out=out, layout_src=a,
             layout_out=b, path=path, async_op=async_op)
        for op in OPERATIONS for async_op in (False, True)
        for src, out, a, b in ((False, False, "C", "C"), (True, True, "strided", "reversed"), (True, False, "C", "C"))
    ])  # fmt: skip


def test_what_was_asked_for_is_done_and_counted(pair):
    assert pair.run(asked) == [True, True]


def asked(group):
    """Bytes moved by the engine, and bytes staged, of an all_gather into own memory and into the fabric's."""
    src, inside, outside = strata.ones(1 << 16, "u1"), strata.empty(2 << 16, "u1"), np.empty(2 << 16, "u1")

    def costs(**options):
        before, staged = moved(group)[0], strata.stats()["staged_bytes"]
        group.all_gather(src, **options)
        return moved(group)[0] - before, strata.stats()["staged_bytes"] - staged

    total = 2 << 16
    return (costs(out=inside, path="sdma") == (total, 0) and costs(out=outside, path="sdma") == (total, total)
            and costs(out=inside, path="mte") == (0, 0) and costs(out=outside, path="mte") == (0, 0)
            and costs(out=inside) == (0, 0))  # fmt: skip


# ---- the choice -------------------------------------------------------------------------------------


def test_asynchronous_operations_leave_the_cores_alone(pair):
    assert pair.run(overlapped) == [True, True]


def overlapped(group):
    src, inside, outside = strata.ones(4 << 20, "u1"), strata.empty(8 << 20, "u1"), np.empty(8 << 20, "u1")
    chosen = strata.explain("all_gather", 4 << 20, ranks=2, overlap=True)["path"]
    found = []
    for out in (inside, outside):
        before, staged = moved(group)[0], strata.stats()["staged_bytes"]
        group.all_gather(src, out, async_op=True).wait()
        assert (out == 1).all() and strata.stats()["staged_bytes"] == staged
        found.append(moved(group)[0] - before)
    # Nobody asked for a path: what the engine cannot write to, cores do.
    return found == [8 << 20 if chosen == "sdma" else 0, 0]


def test_option_path():
    """An option asks as a call does."""
    with strata.testing.Pool(2, path="sdma") as pool:
        assert pool.run(optional) == [True, True]


def optional(group):
    out, before = np.empty(2 << 16, "u1"), moved(group)[0]
    group.all_gather(strata.ones(1 << 16, "u1"), out)
    return bool((out == 1).all()) and moved(group)[0] - before == 2 << 16


# ---- what stays ------------------------------------------------------------------------------------------


def test_groups_give_back_what_they_took(trio):
    trio.run(many_groups)


def many_groups(group):
    """Rings, which each group has as many of as one of its plans had cores."""

    def rings():
        gc.collect()
        return strata.stats()["sdma"]["rings"]

    x = strata.ones(1 << 16, "i4")
    failed = moved(group)[1]  # other tests' in this pool
    group.all_reduce(x, path="sdma")
    before = rings()
    for _ in range(30):
        other = group.split(0)
        for cores in (1, 4, 2):
            other.all_reduce(x, path="sdma", cores=cores, op="max")
        assert rings() == before + 4
        del other
        assert rings() == before
    in_step(group)
    assert moved(group)[1] == failed


def test_arrays_may_be_dropped_while_an_operation_is_in_progress(pair):
    assert pair.run(dropped) == [True, True]


def dropped(group):
    """The work keeps them, and the result is right."""
    good = True
    for i in range(20):
        src = strata.empty(1 << 18, "i4")
        src[:] = i + group.rank
        work = group.all_reduce(src, strata.empty(1 << 18, "i4"), async_op=True, path="sdma")
        del src
        strata.empty(1 << 18, "i4")[:] = -1  # would take its place
        good = good and bool((work.wait() == 2 * i + 1).all())
        del work
    work = group.all_reduce(strata.ones(1 << 18, "i4"), async_op=True, path="sdma")
    del work  # nobody waits: it ends all the same
    in_step(group)
    return good


def test_several_groups_at_once(four):
    assert four.run(crossing) == [True] * 4


def crossing(group):
    """Rows and columns of a square, asynchronously: no group's gates stand before another's."""
    row, column = group.split(group.rank // 2), group.split(group.rank % 2)
    x, y = strata.empty(1 << 18, "i8"), strata.empty(1 << 18, "i8")
    good = True
    for i in range(10):
        x[:], y[:] = group.rank + i, group.rank
        order = (row, column) if (group.rank + i) % 2 else (column, row)
        works = {g: g.all_reduce(x if g is row else y, async_op=True, path="sdma", algorithm="ring") for g in order}
        for g in reversed(order):
            works[g].wait()
        good = good and x[0] == sum(row.ranks) + 2 * i and y[-1] == sum(column.ranks)
    return bool(good)


# ---- failures that the group survives -----------------------------------------------------------------------


def test_a_die_without_rings_abstains(pair):
    pair.run(no_rings)


def no_rings(group):
    other = group.split(0)
    x = strata.ones(1 << 16, "f4")
    taken = [strata.sdma.open_ring() for _ in range(1024 - strata.stats()["sdma"]["rings"])] if group.rank else []
    group.barrier()
    with pytest.raises(errors.RingFull if group.rank else errors.CollectiveMismatch):
        other.all_reduce(x, path="sdma")
    for ring in taken:
        ring.close()
    group.barrier()
    other.all_reduce(x, path="sdma")
    assert (x == 2).all()
    in_step(other)


def test_names_of_algorithms_on_the_engine(pair):
    """What an algorithm refuses, it refuses on this path, too."""
    pair.run(refused)


def refused(group):
    for name in NAMES:
        if "broadcast" not in strata.plan.algorithms.find(name).operations:
            with pytest.raises(ValueError):
                group.broadcast(strata.ones(1 << 16), algorithm=name, path="sdma")
    in_step(group)
