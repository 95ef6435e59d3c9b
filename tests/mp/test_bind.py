"""Bound operations: the results, errors and order of calls, on whatever their arrays hold then."""

import functools

import numpy as np
import pytest
from collectives_play import OPERATIONS, Case, in_step, play

import strata
from strata import CollectiveMismatch


class Bound:
    """A group whose operations are bound, called on other contents first, and called again on what was given."""

    def __init__(self, group):
        self.group = group

    def __getattr__(self, name):
        found = getattr(self.group, name)
        return functools.partial(self.call, found) if name in OPERATIONS else found

    def call(self, operation, src, *args, async_op=False, **kwargs):
        kept = None if src is None else src.copy()
        op = operation.bind(src, *args, **kwargs)
        first = op()
        assert first is op.result
        if first is not None:
            first[...] = np.zeros((), first.dtype)
        if kept is not None and src.flags.writeable:
            src[...] = kept
        self.group.barrier()  # a mailbox may be read after its writer returned, arrays may not be
        result = op.start() if async_op else op()
        assert async_op or result is op.result
        return result


def cases(group, chosen):
    for case in chosen:
        play(Bound(group), case)
    in_step(group)


HOW = {
    "fabric": {},
    "asynchronous": {"async_op": True},
    "in place": {"in_place": True, "give_out": True},
    "allocated": {"give_out": False},
    "ordinary": {"fabric_src": False, "fabric_out": False},
    "strided": {"layout_src": "strided", "layout_out": "reversed"},
    "sdma": {"path": "mixed"},
}


@pytest.mark.parametrize("how", HOW)
def test_every_operation(small, how):
    """From lines, mailboxes and arrays; twice each, on contents that changed in between."""
    shapes = ((), (1,), (40,), (3000,)) if how not in ("strided", "in place") else ((3,), (3000,))
    chosen = [Case(op, shape=s, root=small.n - 1, **HOW[how]) for op in OPERATIONS for s in shapes
              if not (how == "sdma" and s == ())]  # fmt: skip
    if how in ("in place", "sdma"):
        chosen = [c for c in chosen if c.op != "all_to_all_v"]
    if how == "strided":
        chosen = [c for c in chosen if c.op != "broadcast"] + [Case("broadcast", shape=(3000,), layout_src="strided")]
    small.run(cases, chosen)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "bfloat16", "complex128", "float8_e4m3fn"])
def test_dtypes(pair, dtype):
    """Each dtype has a plan and a fingerprint of its own."""
    redop = "band" if dtype == "bool" else "sum"
    moved = [Case(op, dtype=dtype, shape=(s,)) for op in ("all_gather", "broadcast", "scatter") for s in (5, 9000)]
    summed = [Case(op, dtype=dtype, shape=(s,), redop=redop) for op in ("all_reduce", "reduce") for s in (5, 9000)]
    pair.run(cases, moved + summed)


def changed_contents(group, count):
    n, me = group.size, group.rank
    x, y = strata.zeros(count), strata.zeros((n, count))
    with group.all_reduce.bind(x, op="max") as reduce, group.all_gather.bind(x, y) as gather:
        for i in range(40):
            x[:] = (me + i) % n + i
            assert reduce() is x and (x == n - 1 + i).all()
            x[:] = me * i
            assert gather() is y and (y == np.arange(n)[:, None] * i).all()
        x[:] = me
        assert (group.all_reduce(x) == sum(range(n))).all()  # plain calls between
        assert (reduce() == sum(range(n))).all()
    barrier = group.barrier.bind()
    before = group.number
    assert barrier() is None and barrier.result is None and group.number == before + 1


@pytest.mark.parametrize("count", [1, 100, 3000])
def test_contents_may_change(dies, count):
    dies.run(changed_contents, count)


def messages(group, count, fabric, strided):
    n, me = group.size, group.rank
    step = 2 if strided else 1
    make = strata.zeros if fabric else np.zeros
    x, y = make(count * step)[::step], make(count * step)[::step]
    send, recv = group.send.bind(x, (me + 1) % n, tag=5), group.recv.bind(y, (me - 1) % n, tag=5)
    for i in range(5):
        x[:] = me + i
        work = send.start()
        assert recv() is y and (y == (me - 1) % n + i).all()
        assert work.wait() is None
    if count <= 500:  # eager: nobody need be there
        assert send() is None
    else:
        work = send.start()
    got = recv.start()
    assert got.wait() is y


@pytest.mark.parametrize("fabric", [True, False], ids=["fabric", "ordinary"])
@pytest.mark.parametrize("strided", [False, True], ids=["straight", "strided"])
def test_messages(small, fabric, strided):
    for count in (1, 500, 4000):
        small.run(messages, count, fabric, strided)


# ---- what members must agree on ---------------------------------------------------------------


def disagree_at_bind(group, odd, other):
    x, y = strata.full(64, 1.0), strata.zeros((group.size, 64))
    before = group.number
    with pytest.raises(CollectiveMismatch) as caught:
        if group.rank == odd:
            other(group, x, y)
        else:
            group.all_reduce.bind(x)
    assert group.number == before + 1
    in_step(group)
    assert (x == 1).all() and (y == 0).all()
    return str(caught.value)


OTHERS = {
    "count": (lambda g, x, y: g.all_reduce.bind(x[1:]), "bind of all_reduce sum of 63 float64"),
    "operator": (lambda g, x, y: g.all_reduce.bind(x, op="max"), "bind of all_reduce max"),
    "operation": (lambda g, x, y: g.all_gather.bind(x, y), "bind of all_gather"),
    "barrier": (lambda g, x, y: g.barrier.bind(), "bind of barrier"),
    "algorithm": (lambda g, x, y: g.all_reduce.bind(x, algorithm="ring"), "by ring"),
    "a call": (lambda g, x, y: g.all_reduce(x), ": all_reduce sum of 64 float64"),
}


@pytest.mark.reports("mismatch")
@pytest.mark.parametrize("what", OTHERS)
def test_members_that_bind_other_things(trio, what):
    """All hear of it when they bind, in the same words, and go on."""
    other, words = OTHERS[what]
    texts = trio.run(disagree_at_bind, 2, other)
    assert len(set(texts)) == 1
    assert "bind of all_reduce sum of 64 float64" in texts[0] and words in texts[0]


def disagree_at_call(group):
    n, me = group.size, group.rank
    x, y = strata.full(3000, me + 1.0), strata.zeros((n, 3000))
    one, two = group.all_reduce.bind(x), group.all_gather.bind(x, y)
    for _ in range(2):
        with pytest.raises(CollectiveMismatch) as caught:
            one() if me == 0 else two()
        assert "all_reduce" in str(caught.value) and "all_gather" in str(caught.value)
        assert (x == me + 1).all() and (y == 0).all()
    with pytest.raises(CollectiveMismatch):
        one() if me == 0 else group.barrier()
    assert (two() == np.arange(1, n + 1)[:, None]).all()
    assert (one() == n * (n + 1) / 2).all()
    # The same number of rows in all, by other counts.
    rows = strata.full((2 * n, 3), float(me))
    even = group.all_to_all_v.bind(rows, [2] * n, None, [2] * n)
    give = [1] * n if me % 2 else [3] * n
    if n % 2 == 0:
        other = group.all_to_all_v.bind(strata.zeros((3 * n, 3)), give)
        with pytest.raises(CollectiveMismatch, match="counts #"):
            even() if me == 0 else other()
    assert (even().reshape(n, 2, 3) == np.arange(n)[:, None, None]).all()


@pytest.mark.reports("mismatch")
def test_members_that_call_other_things(peers):
    peers.run(disagree_at_call)


def wrong(group):
    """Wrong on all, then on one alone, as in calls."""
    x, n = strata.zeros(4), group.size
    locked = strata.zeros(4)
    locked.flags.writeable = False
    for error, match, bind in (
        (TypeError, "numpy array", lambda: group.all_reduce.bind([1])),
        (ValueError, "op='mean'", lambda: group.all_reduce.bind(x, op="mean")),
        (ValueError, "read-only", lambda: group.all_reduce.bind(locked)),
        (ValueError, "root=", lambda: group.broadcast.bind(x, root=n)),
        (ValueError, "timeout", lambda: group.barrier.bind(timeout=-1)),
        (ValueError, "dst=", lambda: group.send.bind(x, n)),
        (TypeError, "start", lambda: group.all_gather.bind(x, async_op=True)),
        (TypeError, "argument", lambda: group.all_gather.bind(x, None, None, None)),
        (ValueError, "full", lambda: group.all_reduce.bind(x, algorithm="full")),
    ):
        before = group.number
        with pytest.raises(error, match=match):
            bind()
        if group.rank == 0:
            with pytest.raises(error, match=match):
                bind()
        assert group.number == before
    in_step(group)


def test_wrong_arguments(small):
    small.run(wrong)
