"""Members that disagree all get the same error, and nothing has moved."""

import numpy as np
import pytest
from collectives_play import in_step

import strata
from strata import CollectiveMismatch

COUNTS = (5, 5000)  # by the mailbox, and by a plan


def disagree(group, odd, count, call):
    """The member ``odd`` calls something else; returns the error's text and fields."""
    me = group.rank
    src = strata.array(np.arange(count, dtype="f4") + me)
    out = strata.full((group.size, count), -7, "f4")
    before = group.number
    with pytest.raises(CollectiveMismatch) as caught:
        call(group, me == odd, src, out)
    assert (out == -7).all()
    assert (src == np.arange(count) + me).all()
    in_step(group)
    error = caught.value
    assert error.ranks == tuple(sorted(group.ranks))
    assert error.group == group.name
    assert error.number == before + 1
    return str(error)


def other_count(group, odd, src, out):
    group.all_gather(src[1:] if odd else src, out[:, 1:].copy() if odd else out)


def other_dtype(group, odd, src, out):
    group.all_gather(src.view("i4") if odd else src, out.view("i4") if odd else out)


def other_operator(group, odd, src, out):
    group.all_reduce(src, out[0], op="max" if odd else "sum")


def other_operation(group, odd, src, out):
    if odd:
        group.all_reduce(src, out[0])
    else:
        group.all_gather(src, out)


def barrier_instead(group, odd, src, out):
    if odd:
        group.barrier()
    else:
        group.all_gather(src, out)


def other_root(group, odd, src, out):
    group.gather(src, out, root=1 if odd else 0)


def broadcast_root(group, odd, src, out):
    copy = src.copy()
    try:
        group.broadcast(src, root=1 if odd else 0)
    finally:
        assert (src == copy).all()


def zero_count(group, odd, src, out):
    group.all_gather(src[:0] if odd else src, out[:, :0] if odd else out)


def asynchronous(group, odd, src, out):
    work = group.all_reduce(src, out[0], op="prod" if odd else "sum", async_op=odd)
    work.wait()
    raise AssertionError("not reached: the others have raised already" if odd else "no error")


EXPECTED = {
    other_count: ("all_gather of {count} float32", "all_gather of {less} float32"),
    other_dtype: ("all_gather of {count} float32", "all_gather of {count} int32"),
    other_operator: ("all_reduce sum of {count} float32", "all_reduce max of {count} float32"),
    other_operation: ("all_gather of {count} float32", "all_reduce sum of {count} float32"),
    barrier_instead: ("all_gather of {count} float32", "barrier"),
    other_root: ("gather of {count} float32 with root 0", "gather of {count} float32 with root 1"),
    broadcast_root: ("broadcast of {count} float32 with root 0", "broadcast of {count} float32 with root 1"),
    zero_count: ("all_gather of {count} float32", "all_gather of 0 float32"),
    asynchronous: ("all_reduce sum of {count} float32", "all_reduce prod of {count} float32"),
}


@pytest.mark.reports("mismatch")
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("call", EXPECTED, ids=lambda call: call.__name__)
def test_all_members_raise_the_same(peers, call, count):
    odd = peers.n - 1
    texts = peers.run(disagree, odd, count, call)
    assert len(set(texts)) == 1, texts
    for what, who in zip(EXPECTED[call], (range(odd), [odd]), strict=True):
        ranks = ("rank " if len(who) == 1 else "ranks ") + ", ".join(map(str, who))
        assert f"{ranks}: {what.format(count=count, less=count - 1)}" in texts[0]


def every_member_asks_otherwise(group):
    src = np.zeros(group.rank + 1)
    with pytest.raises(CollectiveMismatch) as caught:
        group.all_reduce(src)
    in_step(group)
    return str(caught.value)


@pytest.mark.reports("mismatch")
def test_each_version_is_listed(four):
    texts = four.run(every_member_asks_otherwise)
    assert len(set(texts)) == 1
    for rank in range(4):
        assert f"rank {rank}: all_reduce sum of {rank + 1} float64" in texts[0]


def unlike_rows(group):
    """Equal counts and bytes, but structured types with other fields."""
    kind = np.dtype([("a", "<i4"), ("b", "<i4")]) if group.rank == 0 else np.dtype([("a", "<i4"), ("c", "<i4")])
    with pytest.raises(CollectiveMismatch):
        group.all_gather(np.zeros(3, kind))
    with pytest.raises(CollectiveMismatch):
        group.broadcast(np.zeros(3, ">i4" if group.rank == 0 else "<i4"))
    in_step(group)


@pytest.mark.reports("mismatch")
def test_types_that_only_move_are_compared_too(pair):
    pair.run(unlike_rows)


def counts_disagree(group, which):
    n, me = group.size, group.rank
    send, recv = np.full(n, 2), np.full(n, 2)
    src, out = strata.ones((2 * n, 3)), strata.full((2 * n, 3), -7.0)
    odd = n - 1
    if which == "sent" and me == odd:
        send[0] = 1
    elif which == "expected" and me == odd:
        recv[0] = 3
        out = strata.full((2 * n + 1, 3), -7.0)
    elif which == "room" and me == odd:
        out = strata.full((2 * n - 1, 3), -7.0)
    elif which == "row" and me == odd:
        src, out = strata.ones((2 * n, 4)), strata.full((2 * n, 4), -7.0)
    elif which == "dtype" and me == odd:
        src, out = src.view("i8"), out.view("i8")
    filled = out.copy()
    with pytest.raises(CollectiveMismatch) as caught:
        group.all_to_all_v(src, send, out, None if which == "room" else recv)
    assert (out == filled).all()
    in_step(group)
    return str(caught.value)


@pytest.mark.reports(maybe=["mismatch"], why="counts of rows are no bytes in the fabric")
@pytest.mark.parametrize("which", ["sent", "expected", "room", "row", "dtype"])
def test_counts_that_disagree(peers, which):
    texts = peers.run(counts_disagree, which)
    n = peers.n
    assert len(set(texts)) == 1, texts
    expected = {
        "sent": f"rank {n - 1} sends 1 rows to rank 0, which expects 2",
        "expected": f"rank 0 sends 2 rows to rank {n - 1}, which expects 3",
        "room": f"rank {n - 1} receives {2 * n} rows, but its out has {2 * n - 1}",
        "row": f"32 bytes on rank {n - 1}",
        "dtype": "int64",
    }
    assert expected[which] in texts[0]


def scatter_disagrees(group, which):
    me, n = group.rank, group.size
    src = strata.ones((n, 4)) if me == 0 else None
    out = strata.full(4, -7.0)
    if me == n - 1:
        out = strata.full(5, -7.0) if which == "shape" else out.view("i8")
    filled = out.copy()
    with pytest.raises(CollectiveMismatch) as caught:
        group.scatter(src, out)
    assert (out == filled).all()
    in_step(group)
    return str(caught.value)


@pytest.mark.parametrize("which", ["shape", "dtype"])
def test_parts_of_scatter_that_disagree(peers, which):
    texts = peers.run(scatter_disagrees, which)
    assert len(set(texts)) == 1, texts


def mismatch_in_subgroup(group):
    if group.rank == 0:
        return
    other = group.subgroup(range(1, group.size))
    for _ in range(20):
        with pytest.raises(CollectiveMismatch) as caught:
            other.all_reduce(np.zeros(3 + other.rank))
        assert caught.value.ranks == tuple(range(1, group.size))
        in_step(other)


@pytest.mark.reports("mismatch")
def test_errors_carry_world_ranks(trio):
    trio.run(mismatch_in_subgroup)
