"""Streams and events: order, independence, the current stream, and what they refuse."""

import threading

import numpy as np
import pytest
from collectives_play import in_step, side_by_side
from streaming import COUNT, gated

import strata
from strata import CollectiveTimeout, NotInJob, sdma, testing
from strata.errors import InvalidArgument

# ---- order ---------------------------------------------------------------------------------


def mixed(group, count, path=None):
    """Collectives, copies and fills of one stream, each of which needs the one before."""
    n, me = group.size, group.rank
    x, y = strata.full(count, me + 1.0), strata.zeros(count)
    parts, total = strata.empty((n, count)), n * (n + 1) / 2
    with strata.Stream() as s:
        with strata.stream(s):
            assert group.all_gather(x, parts, path=path) is parts
            s.copy(y, parts[n - 1])
            assert group.all_reduce(x, path=path) is x
            assert group.barrier() is None
            out = group.all_gather(x)
            s.fill(x, -1)
            group.broadcast(y, root=0)
            scattered = group.scatter(parts if me == 0 else None)
            turned = group.all_to_all(parts, path=path)
            assert group.all_to_all(turned, turned, path=path) is turned
            rows = group.all_to_all_v(turned, [1] * n, path=path)
            got = group.reduce(y, root=n - 1, path=path)
        assert (got is None) == (me != n - 1)
        s.synchronize()
        assert s.query() and len(s.progress) == 0
        assert (parts == np.arange(1, n + 1)[:, None]).all()
        assert (x == -1).all() and (out == total).all() and (y == n).all()
        assert (scattered == me + 1).all()
        assert (turned == np.arange(1, n + 1)[:, None]).all()  # twice
        assert (rows == me + 1).all() and rows.shape == (n, count) and (got is None or (got == n * n).all())
    in_step(group)


@pytest.mark.parametrize("count, path", [(3, None), (COUNT, None), (COUNT, "mte"), (COUNT, "sdma")])
def test_one_after_another(dies, count, path):
    dies.run(mixed, count, path)


def returns_at_once(group):
    """Rank 0 queues all and goes on; its peers come when it says so."""
    n, me = group.size, group.rank
    talk = group.subgroup(range(n))
    x, y = strata.full(COUNT, me + 1.0), strata.full(COUNT, float(me))
    s = strata.Stream()
    if me == 0:
        with strata.stream(s):
            group.all_reduce(x)
            work = group.all_reduce(y, async_op=True)
            s.copy(y, x)
        event = s.record_event()
        assert not s.query() and not event.query() and not work.done()
        assert "queued" in repr(s) and "to come" in repr(event) and "running" in repr(work)
        for wait, seconds in ((s.synchronize, 0.01), (event.synchronize, 0.3)):  # the DMA thread looks for cycles
            with pytest.raises(CollectiveTimeout, match="goes on"):
                wait(timeout=seconds)
        for peer in range(1, n):
            talk.send(np.ones(1), peer)
        event.synchronize()
        assert work.done() and work.wait() is y
        assert (y == x).all()
    else:
        talk.recv(np.ones(1), 0)
        with strata.stream(s):
            group.all_reduce(x)
            group.all_reduce(y)
    s.synchronize()
    assert (x == n * (n + 1) / 2).all()
    s.close()
    in_step(group)


def test_the_caller_goes_on(peers):
    peers.run(returns_at_once)


def two_groups(group):
    """A stream whose group waits for a peer does not hold up another's."""
    me = group.rank
    other = group.subgroup(range(group.size))
    a, b = strata.Stream(), strata.Stream()
    x, y = strata.full(COUNT, 1.0), strata.full(COUNT, 1.0)
    if me == 0:
        with strata.stream(a):
            group.all_reduce(x)
    with strata.stream(b):
        other.all_reduce(y)
    b.synchronize()
    assert (y == group.size).all()
    if me == 0:
        assert not a.query()
    other.barrier()
    if me:
        with strata.stream(a):
            group.all_reduce(x)
    a.synchronize()
    assert (x == group.size).all()
    a.close()
    b.close()


def test_streams_are_independent(peers):
    peers.run(two_groups)


def events(group):
    n, me = group.size, group.rank
    a, b, c = (strata.Stream(name=name) for name in "abc")
    x, y, z = strata.zeros(COUNT), strata.zeros(COUNT), strata.zeros(COUNT)
    never = strata.Event()
    assert never.query() and "happened" in repr(never)
    never.synchronize()
    b.wait_event(never)
    assert a.record_event().query()  # of nothing
    for turn in range(1, 6):
        flag = gated(a)
        a.fill(x, turn + me)
        with strata.stream(a):
            group.all_reduce(x)
            event = strata.Event()
            event.record()
        b.wait_event(event)
        b.copy(y, x)
        event.record(b)  # again: what waits for the first is not concerned
        with strata.stream(c):
            event.wait()
            c.copy(z, y)
        assert not event.query() and not b.query() and not c.query()
        a.wait_event(event)
        a.wait_stream(a)
        a.fill(x, 0)
        sdma.write(flag, 1)
        c.synchronize()
        assert (z == n * turn + n * (n - 1) / 2).all()
        a.wait_stream(c)
        a.wait_stream(b)
        event.synchronize()
    for s in (a, b, c):
        s.synchronize()
    assert (x == 0).all()
    outside = strata.Event()
    outside.record()
    outside.wait()
    assert outside.query()
    for s in (a, b, c):
        s.close()
        assert "closed" in repr(s)


def test_events_between_streams(dies):
    dies.run(events)


def host_waits(group):
    """Without a stream, it is the host that waits for an event."""
    s = strata.Stream()
    x = strata.zeros(COUNT)
    flag = gated(s)
    s.fill(x, 3)
    event = s.record_event()
    threading.Timer(0.01, sdma.write, (flag, 1)).start()
    event.wait()
    assert (x == 3).all()
    s.close()


def test_the_host_waits_for_an_event(pair):
    pair.run(host_waits)


def one_group_many_streams(group):
    """Operations of a group stay in the order of their calls, whatever streams they are on."""
    n, me = group.size, group.rank
    streams = [strata.Stream() for _ in range(3)]
    arrays = [strata.full(COUNT if k % 2 else 4, me + k) for k in range(30)]
    for k, x in enumerate(arrays):
        with strata.stream(streams[(k * 7 + me) % 3]):  # not the same on all members
            group.all_reduce(x)
    last = strata.ones(COUNT)
    group.all_reduce(last)  # without a stream: after all of them
    assert (last == n).all()
    for k, x in enumerate(arrays):
        assert (x == n * k + n * (n - 1) / 2).all()
    for s in streams:
        assert s.query()
        s.close()


def test_a_group_keeps_its_order(dies):
    dies.run(one_group_many_streams)


def messages(group):
    n, me = group.size, group.rank
    right, left = (me + 1) % n, (me - 1) % n
    s, t = strata.Stream(), strata.Stream()
    for count in (5, 5000):  # eager; pulled, so that sends wait for receivers and both ways need two streams
        for turn in range(5):
            x, y, z = strata.zeros(count), strata.zeros(count), strata.zeros(count)
            with strata.stream(s):
                s.fill(x, me + turn)
                work = group.send(x, right, tag=turn % 2, async_op=True)
                s.fill(x, -1)
            with strata.stream(t if count > 5 else s):
                strata.current_stream().fill(y, 8)
                assert group.recv(y, left, tag=turn % 2) is y
                strata.current_stream().copy(z, y)
            if turn % 2:
                t.synchronize()
                s.synchronize()
                assert work.done() and (x == -1).all()
                assert (z == left + turn).all()
        s.synchronize()
        t.synchronize()
    s.close()
    t.close()
    in_step(group)


def test_send_and_recv(dies):
    dies.run(messages)


# ---- the current stream ------------------------------------------------------------------------


def current(group):
    a, b = strata.Stream(), strata.Stream()
    seen = []
    assert strata.current_stream() is None
    with strata.stream(a) as got:
        assert got is a and strata.current_stream() is a
        with strata.stream(b):
            assert strata.current_stream() is b
            with strata.stream(None):
                assert strata.current_stream() is None
                x = strata.ones(COUNT)
                group.all_reduce(x)
                assert (x == group.size).all()
            assert strata.current_stream() is b
        assert strata.current_stream() is a
        thread = threading.Thread(target=lambda: seen.append(strata.current_stream()))
        thread.start()
        thread.join()
        with pytest.raises(KeyError), strata.stream(b):
            raise KeyError
        assert strata.current_stream() is a
    assert strata.current_stream() is None and seen == [None]
    with pytest.raises(TypeError, match="Stream"):
        strata.stream(3)
    with pytest.raises(TypeError, match="wait_stream: a strata.Stream is expected, not Event"):
        a.wait_stream(strata.Event())
    again = strata.stream(a)
    with again, again:
        assert strata.current_stream() is a
    a.close()
    b.close()
    with pytest.raises(NotInJob, match="closed"), strata.stream(a):
        pass
    for call in (a.synchronize, a.query, a.record_event, lambda: a.fill(strata.ones(3), 1)):
        with pytest.raises(NotInJob, match="closed"):
            call()
    a.close()


def test_the_current_stream(pair):
    pair.run(current)


def in_threads(group):
    """Threads, each with a stream and a group of its own, and one group that all share."""
    n = group.size
    own = [group.subgroup(range(n)) for _ in range(4)]

    def use(k):
        with strata.Stream() as s:
            x = strata.full(COUNT if k % 2 else 6, 1.0)
            with strata.stream(s):
                for _ in range(20):
                    own[k].all_reduce(x)
                    s.fill(x, k + 1)
                    own[k].all_reduce(x)
                    s.submit(sdma.Batch().nop())
                    s.fill(x, k)
                group.all_reduce(strata.ones(5))
                own[k].all_reduce(x)
            s.synchronize()
            assert (x == k * n).all()

    side_by_side(4, use)
    in_step(group)


def test_threads_have_streams_of_their_own(peers):
    peers.run(in_threads)


def shared(group):
    """Threads that share a stream and its groups: one order of the stream, and one of each group."""
    groups = [group, group.subgroup(range(group.size))]
    s = strata.Stream()

    def use(k):
        with strata.stream(s):
            for turn in range(40):
                x = strata.ones(COUNT)
                groups[(turn + k) % 2].all_reduce(x, timeout=60)
                s.fill(x, k)
                event = s.record_event()
                if turn % 8 == 0:
                    event.synchronize()
                    assert (x == k).all()

    side_by_side(4, use)
    s.synchronize()
    s.close()
    in_step(group)


def test_threads_share_a_stream():
    testing.pool(1).run(shared)  # of several dies, each would have another order


# ---- what is refused --------------------------------------------------------------------------


def refused(group):
    n, me = group.size, group.rank
    s = strata.Stream()
    good = strata.ones((n, COUNT))
    plain, strided = np.ones((n, COUNT)), strata.ones((n, 2 * COUNT))[:, ::2]
    with strata.stream(s):
        if me == 0:  # on one member alone: the others do not hear of it
            for bad, why in ((plain, "fabric memory"), (strided, "contiguous"), (plain[:, :1].copy(), "fabric")):
                for call in (group.all_reduce, group.all_gather, group.all_to_all, group.broadcast, group.reduce,
                             lambda a: group.all_to_all(a, a), lambda a: group.all_reduce(good, a),
                             lambda a: group.all_to_all_v(a, [1] * n), lambda a: group.scatter(a, root=0),
                             lambda a: group.send(a, 0), lambda a: group.recv(a, 0)):  # fmt: skip
                    with pytest.raises(ValueError, match="on a stream|out must be"):
                        call(bad)
                with pytest.raises(ValueError, match=why):
                    group.all_reduce(bad)
            with pytest.raises(ValueError, match="op="):
                group.all_reduce(good, op="no")
        with pytest.raises(InvalidArgument, match="one dtype and shape"):
            s.copy(good, good[0])
        with pytest.raises(ValueError):
            s.copy(good, plain)
        for call in (lambda: s.fill(strata.ones(3, "c16"), 1), lambda: s.fill(3, 1), lambda: s.copy(good, 1),
                     lambda: s.submit(good), lambda: s.wait_event(s), lambda: s.wait_event(None)):  # fmt: skip
            with pytest.raises(TypeError):
                call()
        assert s.query()
        group.all_reduce(good)
    s.synchronize()
    assert (good == n).all()
    with pytest.raises(ValueError):
        strata.Stream(depth=3)
    s.close()
    in_step(group)


def test_arrays_that_would_need_a_copy(dies):
    dies.run(refused)
