"""Every algorithm on real dies gives the bits of the reference executor; movement is exact anyway."""

import numpy as np
import pytest
from algorithms_play import DONE, FREE_ORDER, NAMES, count_of, exactly, run_all
from collectives_play import OPERATIONS, REDUCING, Case, in_step
from collectives_reference import allowed

import strata
from strata import errors


@pytest.mark.parametrize("name, op", DONE)
def test_sizes_and_places(dies, name, op):
    """From nothing to several units; in place and not; every root."""
    run_all(dies, [
        Case(op, "int32", (size,), root=(size + 1) % dies.n, salt=size, in_place=in_place, rows=3, algorithm=name)
        for size in (0, 1, dies.n - 1, dies.n + 1, 1000, 70_001) for in_place in (False, True)
        if not (in_place and op == "all_to_all_v")
    ])  # fmt: skip


@pytest.mark.parametrize("name, op", [d for d in DONE if d[1] in REDUCING])
def test_dtypes_and_operators(small, name, op):
    run_all(small, [
        Case(op, dtype, (count_of(op, 2500, dtype, small.n),), redop, root=small.n - 1, salt=i, algorithm=name)
        for i, dtype in enumerate(("int8", "uint64", "bool", "float16", "bfloat16", "float8_e4m3fn", "float32",
                                   "float64", "complex64", "complex128"))
        for redop in allowed(dtype) if name not in FREE_ORDER or exactly(Case(op, dtype, redop=redop))
    ])  # fmt: skip


@pytest.mark.parametrize("name, op", [d for d in DONE if d[0] in FREE_ORDER])
def test_sums_in_free_order_are_near(peers, name, op):
    case = Case(op, "float32", (3001,), root=1, algorithm=name)
    assert all(peers.run(near, case))


def near(group, case):
    src = np.arange(group.size * 3001, dtype="f4") % 127 / 8 + group.rank
    src = src if case.op == "reduce_scatter" else src[:3001]
    everyone = group.all_gather(src)
    got = {
        "all_reduce": lambda: group.all_reduce(src.copy(), algorithm=case.algorithm),
        "reduce": lambda: group.reduce(src, root=1, algorithm=case.algorithm),
        "reduce_scatter": lambda: group.reduce_scatter(src, algorithm=case.algorithm),
    }[case.op]()
    total = everyone.astype("f8").sum(axis=0)
    if case.op == "reduce_scatter":
        total = total[group.rank * 3001 :][:3001]
    return got is None or np.allclose(got, total, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_cores_and_partitions(four, name):
    """Bits do not depend on how many cores run a plan, or how it is shared among them."""
    run_all(four, [
        Case(op, "float32", (3,) if op == "all_to_all_v" else (count_of(op, 1 << 20, "float32", 4) + 3,),
             algorithm=name, cores=cores, partition=partition, rows=9999)
        for op in OPERATIONS if (name, op) in DONE and (name not in FREE_ORDER or op not in REDUCING)
        for cores, partition in ((1, None), (3, "balanced"), (4, "naive"))
    ])  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_memory_that_is_not_the_fabrics(trio, name):
    """Arrays outside the fabric and strided ones are staged, whatever the algorithm."""
    run_all(trio, [
        Case(op, "int16", (4000, 3), root=1, algorithm=name, fabric_src=src, fabric_out=out, layout_src=a, layout_out=b)
        for op in OPERATIONS if (name, op) in DONE
        for src, out, a, b in ((False, False, "C", "C"), (True, True, "strided", "reversed"), (True, False, "C", "C"))
    ])  # fmt: skip


@pytest.mark.reports("mismatch")
def test_members_that_choose_differently_are_told(trio):
    texts = trio.run(differ)
    assert len(set(texts)) == 1 and "by ring" in texts[0] and "rank 1" in texts[0]


def differ(group):
    x = strata.ones(1 << 15, "f4")
    try:
        group.all_reduce(x, algorithm="ring" if group.rank == 1 else "full_mesh")
    except errors.CollectiveMismatch as error:
        in_step(group)
        return str(error)
    raise AssertionError("no error")


def test_what_there_is_not_is_refused_at_once(pair):
    pair.run(refused)


def refused(group):
    x = strata.ones(4, "f4")
    for wrong in ({"algorithm": "no_such"}, {"path": "cable"}, {"cores": 0}, {"partition": "fair"}):
        with pytest.raises(ValueError, match="there is|from 1 to"):
            group.all_reduce(x, **wrong)
    in_step(group)


def test_operations_may_be_asynchronous(pair):
    run_all(pair, [
        Case(op, "float64", (9000,), algorithm=name, async_op=True, cores=2)
        for name, op in DONE if name not in FREE_ORDER or op not in REDUCING
    ])  # fmt: skip


def test_an_algorithm_of_ones_own_may_write_into_any_array(trio):
    assert trio.run(pushed) == [True] * 3


def pushed(group):
    @strata.algorithm("all_to_all_v", name="pushed")
    def body(op, rank):
        counts = op.spec.counts * op.itemsize
        for m in range(op.ranks):
            to = op.out(counts[:rank, m].sum())
            yield op.push(m, counts[rank, m], src=op.src(counts[rank, :m].sum()), dst=to)

    src = np.full(3 * 9000, group.rank, "i4")
    out = np.full(3 * 9000 + 5, -1, "i4")
    group.all_to_all_v(src, [9000] * 3, out, algorithm="pushed")
    in_step(group)
    return bool((out[:-5].reshape(3, 9000) == np.arange(3)[:, None]).all() and (out[-5:] == -1).all())
