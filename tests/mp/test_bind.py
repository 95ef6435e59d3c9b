"""Bound operations: the results, errors and order of calls, on whatever their arrays hold then."""

import functools
import gc
import mmap
import os
import weakref

import numpy as np
import pytest
from collectives_play import OPERATIONS, Case, in_step, play, side_by_side
from faultlib import Job, check_group, died

import strata
from strata import CollectiveMismatch, CollectiveTimeout, GroupBroken, NotInJob, RegistrationError, vmm
from strata.errors import InvalidArgument


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


@pytest.mark.parametrize("what", OTHERS)
def test_members_that_bind_other_things(small, what):
    """All hear of it when they bind, in the same words, and go on."""
    if small.n == 1:
        return
    other, words = OTHERS[what]
    texts = small.run(disagree_at_bind, small.n - 1, other)
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


# ---- arrays that change, groups that end -----------------------------------------------------


def arrays_that_change(group):
    for count in (4, 3000):
        x, y = strata.ones(count), np.zeros(count)
        op = group.all_reduce.bind(x, y)
        y.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            op()
        with pytest.raises(ValueError, match="read-only"):
            op.start()
        y.flags.writeable = True
        assert (op() == group.size).all()
        z = np.ones(count)
        op = group.all_reduce.bind(z)
        z.resize(4 * count, refcheck=False)
        with pytest.raises(InvalidArgument, match="bind again"):
            op()
        z = strata.ones(count)
        op = group.all_reduce.bind(z)
        z.dtype = "i8"
        with pytest.raises(InvalidArgument, match="bind again"):
            op()
        with op:
            pass
        for call in (op, op.start):
            with pytest.raises(InvalidArgument, match="freed"):
                call()
        assert op.result is None
        op.free()
    in_step(group)


def test_arrays_that_change(small):
    small.run(arrays_that_change)


def memory_that_goes(group):
    """An error of a call is an error of a bound call, never an operation on what is there now."""
    n, size = group.size, vmm.granularity()
    for count in (8, 5000):
        handle = vmm.create_handle(size)
        span = vmm.reserve_address(size)
        span.map(handle)
        span.set_access("read_write")
        x = strata.from_address(span.address, (count,), "f8")  # does not keep the memory, as vmm.array does
        x[:] = 1
        op = group.all_reduce.bind(x)
        assert (op() == n).all()
        for take, back in ((lambda: span.set_access("none"), None), (span.unmap, span.map)):  # noqa: B023
            group.barrier()
            take()
            texts = []
            for call in (op, op.start, lambda: group.all_reduce(x)):  # noqa: B023
                with pytest.raises(RegistrationError, match="array is fabric memory") as caught:
                    done = call()
                    done.wait()
                texts.append(str(caught.value).partition(" [")[0])
            assert len(set(texts)) == 1
            group.barrier()
            if back:
                back(handle)
            span.set_access("read_write")
            x[:] = 2
            assert (op() == 2 * n).all()
        keeper = group.all_reduce.bind(span.array((count,), "f8"))
        with pytest.raises(InvalidArgument, match="alive"):
            span.unmap()
        keeper.free()
        gc.collect()
        span.unmap()
    in_step(group)


def test_memory_that_goes(small):
    small.run(memory_that_goes)


def registered(group):
    """What is registered is used where it lies; afterwards it is staged, as in a call."""
    n = group.size
    fd = os.memfd_create("bound")
    os.ftruncate(fd, 1 << 20)
    with mmap.mmap(fd, 1 << 20) as memory:
        os.close(fd)
        x = np.frombuffer(memory, "f8")
        x[:] = 1.0
        strata.register(x)
        with group.all_reduce.bind(x) as op:
            assert (op() == n).all()
            strata.deregister(x)
            x[:] = 2.0
            assert (op() == 2 * n).all()
            strata.register(x)
            x[:] = 3.0
            assert (op() == 3 * n).all()
            strata.deregister(x)
        del x, op
        gc.collect()


def test_memory_of_others(small):
    small.run(registered)


def closed(group):
    h = group.subgroup(range(group.size))
    x, big = strata.ones(4), strata.ones(30_000)
    y = strata.zeros(4)
    small, large = h.all_reduce.bind(x), h.all_reduce.bind(big, path="sdma")
    send, recv = h.send.bind(x, h.rank), h.recv.bind(y, h.rank)
    for op in (small, large, send, recv):
        op()
    group.barrier()
    h.close()
    for op in (small, large, send, recv):
        for call in (op, op.start):
            with pytest.raises(NotInJob):
                call()
    with pytest.raises(NotInJob):
        h.barrier.bind()
    h.reopen()
    group.barrier()
    x[:] = big[:] = 1
    assert (small() == h.size).all() and (large() == h.size).all()
    send(), recv()


def test_a_group_that_is_closed(small):
    small.run(closed)


def kept(group):
    """A bound operation keeps its arrays and its group, and nothing keeps it."""
    x = strata.ones(3000)
    op = group.all_reduce.bind(x)
    dead, array = weakref.ref(x), x.ctypes.data
    del x
    gc.collect()
    assert dead() is not None and op() is dead() and op.result.ctypes.data == array
    work = op.start()
    op.free()
    assert (work.wait() == float(group.size) ** 2).all()
    del op, work
    group.pending()
    gc.collect()
    assert dead() is None
    h = group.subgroup(range(group.size))
    op = h.barrier.bind()
    group_dead = weakref.ref(h)
    h.circle = op  # a cycle
    del h
    op()
    assert group_dead() is op.group
    del op
    gc.collect()
    assert group_dead() is None
    group.barrier()


def test_what_is_kept(small):
    small.run(kept)


# ---- mixed with everything else ----------------------------------------------------------------


def streams(group):
    n = group.size
    x, y = strata.full(3000, 1.0), strata.zeros((n, 3000))
    one, two = group.all_reduce.bind(x), group.all_gather.bind(x, y)
    ordinary = group.all_reduce.bind(np.ones(3000))
    with strata.Stream() as s:
        with strata.stream(s):
            assert one() is x
            assert two() is y
            work = one.start()
            with pytest.raises(InvalidArgument, match="on a stream"):
                ordinary()
        s.synchronize()
        assert work.wait() is x
    assert (y == n).all() and (x == n * n).all()
    works = [one.start() for _ in range(3)]
    assert one() is x  # after those that were begun
    assert all(work.done() for work in works) and (x == float(n) ** 6).all()


def test_on_streams_and_after_asynchronous_ones(small):
    small.run(streams)


def captured(group):
    n = group.size
    x, y = strata.full(3000, 1.0), strata.zeros((n, 3000))
    parts = strata.full((n, 2), float(group.rank))
    ops = [group.all_reduce.bind(x), group.all_gather.bind(x, y), group.all_to_all.bind(parts, parts)]
    root = group.scatter.bind(parts if group.rank == 0 else None, out=strata.zeros(2))
    timed = group.all_reduce.bind(x, timeout=30)
    with strata.capture() as graph:
        for op in ops:
            assert op() is op.result
        root()
        for refused in (ops[0].start, timed, lambda: group.barrier.bind()):
            with pytest.raises(InvalidArgument):
                refused()
    assert (x == 1).all()
    graph.replay()
    group.barrier()
    assert (x == n).all() and (y == n).all()
    assert (parts == np.arange(n)[:, None]).all() and (root.result == 0).all()
    assert ops[0]() is x and (x == n * n).all()


def test_in_captures(small):
    small.run(captured)


def threads(group):
    """One bound operation in several threads: each call is one, whoever makes it."""
    x = strata.ones(4)
    op = group.all_reduce.bind(x, op="max")
    side_by_side(3, lambda k: [op() for _ in range(30)])
    assert (x == 1).all()
    in_step(group)


def test_several_threads(pair):
    pair.run(threads)


# ---- failure -----------------------------------------------------------------------------------


def late(group):
    h = group.subgroup(range(group.size))
    x = strata.ones(4)
    op = h.all_reduce.bind(x, timeout=0.05)
    if h.rank == 0:
        with pytest.raises(CollectiveTimeout) as caught:
            op()
        assert caught.value.ranks == tuple(range(1, h.size)) and caught.value.operation == "all_reduce"
        assert (x == 1).all()
    group.barrier()
    for call in (op, lambda: op.start().wait(), lambda: h.barrier.bind()):
        with pytest.raises(GroupBroken if h.rank else (GroupBroken, CollectiveTimeout)):
            call()
    k = h.shrink()
    op = k.all_reduce.bind(x)
    assert (op() == k.size).all()


def test_timeout(peers):
    peers.run(late)


def _dies(die):
    g = strata.world()
    x, big = strata.ones(4, "f4"), strata.ones(1 << 15, "f4")
    ops = [g.all_reduce.bind(x), g.all_gather.bind(big), g.barrier.bind(), g.recv.bind(x, 1)]
    ops[0]()
    g.barrier()
    die.say("ready")
    if die.rank == 1:
        die.hear()  # until it is killed
    for op in ops:
        died(die.catch(op), [1])
    died(die.catch(lambda: g.all_reduce.bind(x)), [1])
    h = g.shrink()
    check_group(h, [0, 2])
    x[:] = 1
    with h.all_reduce.bind(x) as op:
        assert (op() == 2).all() and (op() == 4).all()


def test_death():
    """Errors of bound calls on the old group, and operations bound on the survivors'."""
    with Job(_dies, 3) as job:
        job.all("ready")
        job.kill(1)
        assert [job.reap(r) for r in (0, 2)] == [0, 0]
