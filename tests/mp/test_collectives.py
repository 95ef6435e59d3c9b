"""Every operation at every number of dies, against plain numpy, bit for bit."""

import numpy as np
import pytest
from collectives_play import LAYOUTS, OPERATIONS, REDUCING, ROOTED, Case, in_step, play
from collectives_reference import MOVED, NUMBERS, allowed, dtype_of

SIZES = (0, 1, 39, 40, 41, 1000, 8191, 8192, 8193, 70_001)  # bytes: the inline limit and the mailbox's between


def run_all(pool, cases):
    """Plays cases on all dies; those results that all share must have the same bits everywhere."""
    for digests in zip(*pool.run(play_all, cases), strict=True):
        assert len(set(digests)) == 1


def play_all(group, cases):
    found = []
    for case in cases:
        try:
            found.append(play(group, case))
        except Exception as error:
            raise AssertionError(f"{case}: {error!r}") from error
    return found


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("op", REDUCING)
def test_dtypes_and_operators(corners, op, dtype):
    """Both by the mailbox and by a plan."""
    run_all(corners, [
        Case(op, dtype, (count,), redop, root=corners.n - 1, salt=count)
        for redop in allowed(dtype) for count in (17, above_mailbox(op, dtype, corners.n))
    ])  # fmt: skip


def above_mailbox(op, dtype, n):
    """Elements that need a plan, and no more than that."""
    count = 8192 // dtype_of(dtype).itemsize + 9
    return -(-count // n) if op in ("reduce_scatter", "all_to_all", "scatter") else count


@pytest.mark.parametrize("op", [op for op in OPERATIONS if op not in REDUCING])
def test_any_dtype_moves(dies, op):
    run_all(dies, [
        Case(op, dtype, (count,), root=0, salt=3, rows=2)
        for dtype in (*NUMBERS, *MOVED) for count in (5, above_mailbox(op, dtype, dies.n))
    ])  # fmt: skip


@pytest.mark.parametrize("op", OPERATIONS)
def test_sizes_around_the_limits(dies, op):
    run_all(dies, [
        Case(op, "uint8", (size,), root=size % dies.n, salt=size, in_place=in_place, rows=3)
        for size in SIZES for in_place in (False, True) if not (in_place and op == "all_to_all_v")
    ])  # fmt: skip


@pytest.mark.parametrize("op", OPERATIONS)
def test_sizes_around_the_unit(trio, op):
    """Units are cut at 512 KiB; a slice may be that large."""
    edge = 512 << 10
    run_all(trio, [Case(op, "float64", (size // 8,), salt=size, rows=1) for size in (edge - 8, edge, edge + 8)])


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (2, 3, 4), (1, 1, 1, 1, 5)], ids=str)
def test_shapes(dies, shape):
    run_all(dies, [
        Case(op, dtype, shape, root=dies.n // 2, salt=len(shape), give_out=give_out)
        for op in OPERATIONS for dtype in ("float32", "int16") for give_out in (True, False)
    ])  # fmt: skip


@pytest.mark.parametrize("root", [0, 1, -1])
@pytest.mark.parametrize("op", ROOTED)
def test_roots(peers, op, root):
    run_all(peers, [
        Case(op, "int32", (count,), root=root % peers.n, salt=7, in_place=in_place)
        for count in (3, 3000) for in_place in (False, True)
    ])  # fmt: skip


@pytest.mark.parametrize("fabric", [True, False], ids=["fabric", "numpy"])
@pytest.mark.parametrize("op", OPERATIONS)
def test_layouts(dies, op, fabric):
    run_all(dies, [
        Case(op, "float32", shape, root=0, salt=5, layout_src=layout, layout_out=other, fabric_src=fabric,
             fabric_out=fabric, read_only=layout == other, recv_counts=fabric)
        for shape in ((3, 5), (60, 50)) for layout in LAYOUTS for other in ("C", layout)
    ])  # fmt: skip


@pytest.mark.parametrize("op", [op for op in OPERATIONS if op != "all_to_all_v"])
def test_in_place(dies, op):
    run_all(dies, [
        Case(op, "float64", shape, "sum", root=dies.n - 1, salt=9, in_place=True, layout_src=layout, layout_out=layout,
             fabric_src=fabric, fabric_out=fabric, async_op=fabric)
        for shape in ((4,), (30, 70)) for layout in LAYOUTS for fabric in (True, False)
    ])  # fmt: skip


@pytest.mark.parametrize("op", OPERATIONS)
def test_memory_of_both_kinds_mixed(dies, op):
    run_all(dies, [
        Case(op, "int64", (count,), salt=2, fabric_src=src, fabric_out=not src, async_op=async_op)
        for count in (4, 4000) for src in (True, False) for async_op in (True, False)
    ])  # fmt: skip


def unlike(group, op):
    """Each member has its arrays elsewhere and in another layout: nobody else needs to know."""
    me = group.rank
    for count in (6, 6000):
        play(group, Case(op, "float32", (count,), salt=count, fabric_src=me % 2 == 0, fabric_out=me % 3 != 0,
                         layout_src=LAYOUTS[me % 5], layout_out=LAYOUTS[-me % 5], async_op=me % 2 == 1,
                         give_out=me != 1, recv_counts=me == 0))  # fmt: skip
    in_step(group)


@pytest.mark.parametrize("op", OPERATIONS)
def test_members_may_pass_unlike_arrays(peers, op):
    peers.run(unlike, op)


def rules(group):
    """api.md's rules of numbers, spelled out."""
    n, me = group.size, group.rank
    for count in (1, 5000):
        least = np.full(count, -1 if me == 0 else 0, "i4")
        assert (group.all_reduce(least, op="avg") == (-1 if n > 1 or me == 0 else 0)).all()
        top = np.full(count, 127, "i1")
        assert (group.all_reduce(top.copy(), op="avg") == 127).all()
        assert (group.all_reduce(top, op="sum") == np.array(127 * n).astype("i1")).all()
        truth = np.full(count, me == n - 1)
        assert group.all_reduce(truth.copy(), op="sum").all()
        assert group.all_reduce(truth, op="prod").any() == (n == 1)
        for dtype in ("f2", "f4", "f8"):
            for op in ("min", "max"):
                x = np.full(count, np.nan if me == n - 1 else me, dtype)
                assert np.isnan(group.all_reduce(x, op=op)).all()
        half = np.full(count, 2048 if me == 0 else 1, "f2")  # 2048 + 1 is 2048 in float16
        assert (group.all_reduce(half) == np.float16(2048 + n - 1)).all()


def test_rules_of_numbers(dies):
    dies.run(rules)


def refused(group, dtype, op):
    x = np.zeros(3, dtype_of(dtype))
    with pytest.raises(TypeError, match=f"{op}"):
        group.all_reduce(x, op=op)
    with pytest.raises(TypeError):
        group.reduce_scatter(np.zeros(group.size, dtype_of(dtype)), op=op)
    with pytest.raises(TypeError):
        group.reduce(x, op=op)
    in_step(group)


@pytest.mark.parametrize(
    ("dtype", "op"),
    [(d, op) for d in (*NUMBERS, *MOVED) for op in ("sum", "max", "avg", "band") if op not in allowed(d)]
)  # fmt: skip
def test_undefined_pairs_raise_type_error(pair, dtype, op):
    pair.run(refused, dtype, op)


def broadcast_from_a_file(group, path):
    """The root's source may be memory that cannot be written, whichever way the bytes go."""
    for nbytes in (1, 40, 41, 8000, 100_000):
        wanted = np.arange(nbytes, dtype="u1")
        if group.rank == 1:
            wanted.tofile(path)
        x = np.memmap(path, "u1", mode="r") if group.rank == 1 else np.zeros(nbytes, "u1")
        for later in (False, True):
            work = group.broadcast(x, root=1, async_op=later)
            assert ((work.wait() if later else work) == wanted).all()
        del x, work


def test_broadcast_of_read_only_memory(peers, tmp_path):
    peers.run(broadcast_from_a_file, str(tmp_path / "file"))
