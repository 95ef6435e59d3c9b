"""Wrong arguments raise at once, on the die that gave them, and leave the group in step."""

import numpy as np
import pytest
from collectives_play import in_step

import strata


def wrong(group, call, error, match):
    """Every member gives the wrong arguments; then one alone does, while the others do nothing."""
    before = group.number
    with pytest.raises(error, match=match):
        call(group)
    if group.rank == 0:
        with pytest.raises(error, match=match):
            call(group)
    assert group.number == before
    in_step(group)


def f4(*shape):
    return strata.zeros(shape, "f4")


def read_only(*shape):
    made = strata.zeros(shape, "f4")
    made.flags.writeable = False
    return made


WRONG = {
    "list": (lambda g: g.all_reduce([1, 2]), TypeError, "numpy array is expected, not list"),
    "scalar": (lambda g: g.all_gather(np.float32(1)), TypeError, "numpy array is expected"),
    "none": (lambda g: g.broadcast(None), TypeError, "numpy array is expected"),
    "objects": (lambda g: g.all_gather(np.array([None])), TypeError, "object"),
    "out list": (lambda g: g.all_gather(f4(2), [1]), TypeError, "out must be a numpy array"),
    "operator": (lambda g: g.all_reduce(f4(2), op="mean"), ValueError, "op='mean'"),
    "operator None": (lambda g: g.all_reduce(f4(2), op=None), ValueError, "op=None"),
    "algorithm": (lambda g: g.all_reduce(f4(2), algorithm="full"), ValueError, "full"),
    "path": (lambda g: g.all_gather(f4(2), path="dma"), ValueError, "dma"),
    "root": (lambda g: g.broadcast(f4(2), root=g.size), ValueError, "root="),
    "negative root": (lambda g: g.reduce(f4(2), root=-1), ValueError, "root=-1"),
    "root of gather": (lambda g: g.gather(f4(2), root=99), ValueError, "root=99"),
    "root of scatter": (lambda g: g.scatter(f4(g.size), root=99), ValueError, "root=99"),
    "root between": (lambda g: g.broadcast(f4(2), root=0.5), TypeError, "root=0.5: .* no float"),
    "root between scattered": (lambda g: g.scatter(f4(g.size), root=0.5), TypeError, "root=0.5"),
    "root bound": (lambda g: g.reduce.bind(f4(2), root=np.float64(0)), TypeError, "no float64"),
    "root None": (lambda g: g.gather(f4(2), root=None), TypeError, "root=None: a number in the group"),
    "source between": (lambda g: g.recv(f4(2), 0.5), TypeError, "src=0.5"),
    "destination name": (lambda g: g.send(f4(2), "0"), TypeError, "dst='0'"),
    "destination": (lambda g: g.send(f4(2), g.size), ValueError, "dst="),
    "source": (lambda g: g.recv(f4(2), -1), ValueError, "src=-1"),
    "read-only in place": (lambda g: g.all_reduce(read_only(2)), ValueError, "read-only"),
    "read-only out": (lambda g: g.all_reduce(f4(2), read_only(2)), ValueError, "read-only"),
    "read-only gathered": (lambda g: g.all_gather(f4(2), read_only(g.size, 2)), ValueError, "read-only"),
    "read-only scattered": (lambda g: g.reduce_scatter(f4(g.size, 2), read_only(2)), ValueError, "read-only"),
    "read-only exchanged": (lambda g: g.all_to_all(f4(g.size), read_only(g.size)), ValueError, "read-only"),
    "read-only received": (lambda g: g.recv(read_only(2), 0), ValueError, "read-only"),
    "read-only rows": (
        lambda g: g.all_to_all_v(f4(g.size), [1] * g.size, read_only(g.size)), ValueError, "read-only"),
    "shape": (lambda g: g.all_reduce(f4(2), f4(3)), ValueError, "shape"),
    "dtype": (lambda g: g.all_reduce(f4(2), strata.zeros(2, "f8")), ValueError, "float64"),
    "gathered shape": (lambda g: g.all_gather(f4(2), f4(g.size, 3)), ValueError, "shape"),
    "gathered dtype": (lambda g: g.all_gather(f4(2), strata.zeros((g.size, 2), "i4")), ValueError, "dtype"),
    "0-d parts": (lambda g: g.reduce_scatter(f4()), ValueError, "divisible"),
    "0-d exchange": (lambda g: g.all_to_all(f4()), ValueError, "divisible"),
    "part shape": (lambda g: g.reduce_scatter(f4(g.size, 2), f4(3)), ValueError, "shape"),
    "number of counts": (lambda g: g.all_to_all_v(f4(9), [1] * (g.size + 1)), ValueError, "counts"),
    "negative count": (lambda g: g.all_to_all_v(f4(9), [-1] * g.size), ValueError, "none negative"),
    "too many rows": (lambda g: g.all_to_all_v(f4(1), [2] * g.size), ValueError, "rows"),
    "0-d rows": (lambda g: g.all_to_all_v(f4(), [0] * g.size), TypeError, "dimension"),
    "timeout": (lambda g: g.all_reduce(f4(2), timeout=-1), ValueError, "timeout"),
    "timeout word": (lambda g: g.barrier(timeout="long"), (TypeError, ValueError), ""),
    "not a number": (lambda g: g.barrier(timeout=float("nan")), ValueError, "timeout"),
    "subgroup twice": (lambda g: g.subgroup([0, 0]), ValueError, "distinct"),
    "subgroup outside": (lambda g: g.subgroup([g.size]), ValueError, "distinct numbers"),
    "empty subgroup": (lambda g: g.subgroup([]), ValueError, "distinct"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_argument(pair, name):
    pair.run(wrong, *WRONG[name])


@pytest.mark.parametrize("name", ["operator", "root", "read-only gathered", "shape", "negative count"])
def test_wrong_argument_in_a_group_of_any_size(dies, name):
    dies.run(wrong, *WRONG[name])


def indivisible(group):
    for op in ("reduce_scatter", "all_to_all"):
        with pytest.raises(ValueError, match="divisible"):
            getattr(group, op)(f4(2 * group.size + 1))
    if group.rank == 0:
        with pytest.raises(ValueError, match="divisible"):
            group.scatter(f4(2 * group.size + 1))
    in_step(group)


def test_axis_that_cannot_be_shared_out(peers):
    peers.run(indivisible)


def one_is_wrong(group):
    """The others wait meanwhile, and the operation goes on when it is given the right arguments."""
    x = strata.ones(3000, "f4")
    if group.rank == 1:
        with pytest.raises(ValueError, match="op="):
            group.all_reduce(x, op="plus")
    group.all_reduce(x)
    assert (x == group.size).all()


def test_one_member_may_try_again(peers):
    peers.run(one_is_wrong)


def overlaps(group, fabric):
    n = group.size
    make = strata.zeros if fabric else np.zeros
    base = make(6000 * n + 6000, "f4")
    base[:] = np.arange(base.size)
    for count in (8, 3000):
        whole = base[: count * n].reshape(n, count)
        calls = [
            lambda count=count: group.all_reduce(base[:count], base[1 : count + 1]),
            lambda count=count: group.all_reduce(base[1 : count + 1], base[:count]),
            lambda count=count: group.all_reduce(base[:count], base[:count][::-1]),
            lambda count=count: group.all_gather(base[1 : count + 1], base[: count * n].reshape(n, count)),
            lambda count=count: group.gather(base[1 : count + 1], base[: count * n].reshape(n, count), group.rank),
            lambda count=count: group.reduce_scatter(base[: count * n].reshape(n, count), base[1 : count + 1]),
            lambda count=count: group.all_to_all(base[: count * n], base[1 : count * n + 1]),
            lambda count=count: group.reduce(base[:count], base[1 : count + 1], group.rank),
            lambda count=count: group.scatter(base[: count * n].reshape(n, count), base[1 : count + 1], group.rank),
            lambda count=count: group.all_to_all_v(base[:count], [1] * n, base[: count + n]),
        ]
        if n > 1:  # a part of another member, which is only natural for that one
            part = (group.rank + 1) % n
            calls += [
                lambda whole=whole, part=part: group.all_gather(whole[part], whole),
                lambda whole=whole, part=part: group.reduce_scatter(whole, whole[part]),
            ]
        number = group.number
        for call in calls:
            with pytest.raises(ValueError, match="overlap"):
                call()
        assert group.number == number
    assert (base == np.arange(base.size)).all()
    in_step(group)


@pytest.mark.parametrize("fabric", [True, False], ids=["fabric", "numpy"])
def test_partial_overlap_raises_before_any_byte_moves(dies, fabric):
    dies.run(overlaps, fabric)


def interleaved(group):
    """Arrays whose extents overlap but which share no byte are apart."""
    base = strata.zeros((4000, 2), "f4")
    base[:, 0] = group.rank + 1
    group.all_reduce(base[:, 0], base[:, 1])
    assert (base[:, 1] == sum(range(1, group.size + 1))).all()
    assert (base[:, 0] == group.rank + 1).all()


def test_interleaved_arrays_do_not_overlap(peers):
    peers.run(interleaved)
