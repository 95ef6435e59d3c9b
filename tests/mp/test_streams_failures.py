"""What becomes of a stream, of those that wait for it and of the peers when something on it fails."""

import gc
import signal
import time
import warnings

import pytest
from collectives_play import in_step
from faultlib import Job, check_group, died
from streaming import COUNT, gated

import strata
from strata import Cancelled, CollectiveMismatch, CollectiveTimeout, sdma


def mismatch(group):
    """The first error is raised; what came after it was not carried out; all is usable afterwards."""
    n, me = group.size, group.rank
    s, t = strata.Stream(name="first"), strata.Stream(name="second")
    x, y = strata.full(COUNT, 1.0), strata.full(COUNT, 5.0)
    with strata.stream(s):
        group.all_reduce(x)
        group.all_reduce(strata.ones(3 if me else 4))
        after = group.all_reduce(y, async_op=True)
        s.fill(y, 6)
        group.all_reduce(y)
    t.wait_stream(s)
    t.fill(y, 7)
    for _ in range(2):
        with pytest.raises(Cancelled, match="all_reduce was not carried out.*first had failed.*of 4 float64") as caught:
            after.wait()
    assert isinstance(caught.value.__cause__, CollectiveMismatch)
    with pytest.raises(CollectiveMismatch, match="of 4 float64"):
        s.synchronize()
    with pytest.raises(Cancelled, match="second waits for first, which failed") as caught:
        t.synchronize()
    assert isinstance(caught.value.__cause__, CollectiveMismatch)
    assert (x == n).all() and (y == 5).all()
    for stream in (s, t):
        stream.synchronize()
        with strata.stream(stream):
            group.all_reduce(y)
        stream.synchronize()
    assert (y == 5 * n * n).all()
    s.close()
    t.close()
    in_step(group)


def test_a_failed_item_stops_the_stream(peers):
    peers.run(mismatch)


def one_die(group):
    """A die whose stream has failed stands in for its operations, and so its peers hear of it."""
    n, me = group.size, group.rank
    s = strata.Stream()
    x = strata.full(COUNT, 1.0)
    never = sdma.flag()
    with strata.stream(s):
        if me == 0:
            s.submit(sdma.Batch().gate(never, 1, timeout=0.01).fill(x, 3))
        event = s.record_event()
        group.all_reduce(x)
        group.barrier()
    with pytest.raises(CollectiveTimeout if me == 0 else CollectiveMismatch, match="gate" if me == 0 else "it failed"):
        s.synchronize()
    if me == 0:
        with pytest.raises(CollectiveTimeout, match="gate"):
            event.synchronize()
    else:  # it was before what failed here
        event.synchronize()
    assert (x == 1).all()
    group.all_reduce(x)
    assert (x == n).all()
    s.close()
    in_step(group)


def test_the_failure_of_one_die_is_heard_by_all(peers):
    peers.run(one_die)


def lost_messages(group):
    """A message of a stream that has failed is nothing, in its place; the next one is the next one's."""
    me = group.rank
    s = strata.Stream()
    for count in (5, 5000):
        if me == 0:
            s.submit(sdma.Batch().gate(sdma.flag(), 1, timeout=0.001))
            with strata.stream(s):
                group.send(strata.ones(count), 1)
                work = group.recv(strata.ones(count), 1, tag=2, async_op=True)
            with pytest.raises(Cancelled, match="recv was not carried out"):
                work.wait()
            with pytest.raises(CollectiveTimeout, match="gate"):
                s.synchronize()
            group.send(strata.full(count, 2.0), 1)
            x = strata.zeros(count)
            group.recv(x, 1, tag=2)
            assert (x == 4).all()
        else:
            x = strata.zeros(count)
            with pytest.raises(CollectiveMismatch):
                group.recv(x, 0)
            if count < 5000:
                group.send(strata.full(count, 3.0), 0, tag=2)  # gone before anybody looks
            else:
                with pytest.raises(CollectiveMismatch):
                    group.send(strata.full(count, 3.0), 0, tag=2)
            group.recv(x, 0)
            assert (x == 2).all()
            group.send(strata.full(count, 4.0), 0, tag=2)
    s.close()
    in_step(group)


def test_messages_of_a_failed_stream(pair):
    pair.run(lost_messages)


def freed(group):
    """Memory that is gone when a descriptor's turn comes is an error, and what named it by array is not gone."""
    s = strata.Stream()
    flag = gated(s)
    x, y = strata.full(1 << 19, 1.0), strata.zeros(1 << 19)
    where = strata.address(x)
    s.copy(y, x)
    del x
    strata.empty_cache()
    z = strata.full(1 << 19, 2.0)  # elsewhere: x is still there
    assert strata.address(z) != where
    sdma.write(flag, 1)
    s.synchronize()
    assert (y == 1).all()
    flag = gated(s)
    with strata.stream(s):
        group.all_reduce(strata.ones(1 << 19), y)
    junk = [strata.full(1 << 19, -1.0) for _ in range(3)]
    sdma.write(flag, 1)
    s.synchronize()
    assert (y == group.size).all() and len(junk) == 3
    s.close()


def test_queued_items_keep_their_arrays(peers):
    peers.run(freed)


def unasked(group):
    """An error that nobody asks for is a warning when the stream goes."""
    never = sdma.flag()

    def fail(seen):
        s = strata.Stream(name="careless")
        s.submit(sdma.Batch().gate(never, 1, timeout=0.001))
        if seen:
            with pytest.raises(CollectiveTimeout):
                s.record_event().synchronize()
        event = s.record_event()
        while not event.query():
            time.sleep(0.001)
        del s, event
        gc.collect()
        strata.Stream().close()  # looks after what was left

    with pytest.warns(RuntimeWarning, match="careless failed, and nobody called synchronize.*gate"):
        fail(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fail(True)
    with pytest.raises(KeyError), strata.Stream() as s:
        s.submit(sdma.Batch().gate(never, 1, timeout=0.001))
        raise KeyError


def test_errors_that_nobody_asks_for(pair):
    pair.run(unasked)


def _killed(die):
    g = strata.world()
    pair = g.split(die.rank % 2)
    s, t = strata.Stream(), strata.Stream()
    x, y = strata.ones(1 << 17, "f4"), strata.ones(1 << 17, "f4")
    g.barrier()
    die.say("ready")
    if die.rank == 2:
        time.sleep(60)
    with strata.stream(s):
        for _ in range(3):
            g.all_reduce(x)
        s.fill(x, 3)
    if die.rank % 2:
        with strata.stream(t):
            pair.all_reduce(y)
        t.synchronize()
        assert (y == 2).all()
    died(die.catch(s.synchronize), [2])
    with strata.stream(s):
        g.barrier()
    died(die.catch(s.synchronize), [2])
    die.say("dead")
    with strata.stream(s):
        h = g.shrink()
        y[:] = 1
        h.all_reduce(y)
    s.synchronize()
    assert (y == 3).all()
    check_group(h, [0, 1, 3])


def test_a_peer_dies():
    with Job(_killed, 4) as job:
        job.all("ready")
        job.kill(2)
        job.all("dead", [0, 1, 3])
        for rank in (0, 1, 3):
            assert job.reap(rank) == 0


def _late(die):
    g = strata.world()
    g.barrier()
    x = strata.ones(COUNT)
    if die.rank == 0:
        s = strata.Stream()
        with strata.stream(s):
            g.all_reduce(x, timeout=0.05)
            g.all_reduce(x)
        caught = die.catch(s.synchronize)
        assert caught.kind == "CollectiveTimeout" and caught.ranks == (1,), caught
        die.say("timed out")
    else:
        die.hear()
        caught = die.catch(g.all_reduce, x)
        assert caught.kind == "GroupBroken", caught
    assert (x == 1).all() and g.broken
    check_group(g.shrink(), [0, 1])


def test_a_peer_is_late():
    with Job(_late, 2) as job:
        job.all("timed out", [0])
        job.tell(1)
        for rank in (0, 1):
            assert job.reap(rank) == 0


def _interrupted(die, wait):
    g = strata.world()
    x = strata.full(3, 1.0 + die.rank)
    g.barrier()
    queued = 256 if wait == "room" else 2
    if die.rank == 0:
        s, t = strata.Stream(), strata.Stream()
        with strata.stream(s):
            for _ in range(queued):
                g.all_reduce(x, op="max")
        event = s.record_event()
        call = {
            "stream": s.synchronize,
            "event": event.synchronize,
            "close": s.close,
            "room": lambda: s.fill(x, 0),
            "host": lambda: g.all_reduce(x, op="max"),
        }[wait]
        die.say("ready")
        caught = die.catch(call)
        assert caught.kind == "KeyboardInterrupt", caught
        die.say("caught")
        t.wait_event(event)
        t.copy(y := strata.zeros(3), x)
        t.synchronize()
        assert (y == 2).all() and s.query()
        s.close()
    else:
        die.say("ready")
        die.hear()
        for _ in range(queued + (wait == "host")):
            g.all_reduce(x, op="max")
    g.barrier()
    assert (x == 2).all()


@pytest.mark.reports(maybe=["leak", "race"], why="what was interrupted goes on")
@pytest.mark.parametrize("wait", ["stream", "event", "close", "room", "host"])
def test_an_interrupt_ends_the_wait_and_nothing_else(wait):
    with Job(_interrupted, 2, wait) as job:
        job.all("ready")
        time.sleep(0.15)  # not that it must be waiting by now: but that is what is meant
        job.kill(0, signal.SIGINT)
        job.all("caught", [0])
        job.tell(1)
        assert [job.reap(r) for r in range(2)] == [0, 0]
