"""What peers that live hear of a stream that has failed since a die is dead: who died, not who brings the news."""

import time

import pytest
from faultlib import Job, check_group, died

import strata

SMALL, LARGE = 5, 100_000  # float64: in the message itself, and fetched by the receiver


def _told(die):
    """Rank 0 and 1 have a group without the dead die, and rank 0 a stream that needs it."""
    g = strata.world()
    pair = g.subgroup([0, 1]) if die.rank < 2 else None
    x, y = strata.ones(LARGE), strata.full(LARGE, 2.0)
    g.barrier()
    die.say("ready")
    if die.rank == 2:
        time.sleep(60)
    if die.rank == 0:
        s, t = strata.Stream(), strata.Stream()
        with strata.stream(s):
            g.all_reduce(x)
            works = [pair.send(x[:SMALL], 1, tag=1, async_op=True), pair.send(x, 1, tag=2, async_op=True),
                     pair.recv(y, 1, tag=3, async_op=True), pair.all_reduce(y, async_op=True)]  # fmt: skip
            event = s.record_event()
        t.wait_event(event)
        with strata.stream(t):
            works.append(pair.send(x, 1, tag=4, async_op=True))
            works.append(g.send(x, 1, tag=5, async_op=True))
        for work in works:
            assert die.catch(work.wait).kind == "Cancelled"
        for stream in (s, t):
            caught = die.catch(stream.synchronize)
            assert caught.ranks == (2,), caught
    else:
        calls = [(pair.recv, x[:SMALL], 0, 1), (pair.recv, x, 0, 2), (pair.send, y, 0, 3), (pair.all_reduce, y),
                 (pair.recv, x, 0, 4)]  # fmt: skip
        for fn, *args in calls:
            caught = die.catch(fn, *args)
            assert (caught.kind, caught.ranks, caught.group) == ("PeerDead", (2,), pair.name), caught
            assert "rank 2 died" in caught.text and "stream" in caught.text and "rank 0" in caught.text, caught
        died(die.catch(g.recv, x, 0, 5), [2])
    assert not pair.broken
    check_group(pair, [0, 1])  # it is whole, and in step
    died(die.catch(g.barrier), [2])
    check_group(g.shrink(), [0, 1])


def test_who_waits_for_a_failed_stream_is_told_who_died():
    with Job(_told, 3) as job:
        job.all("ready")
        job.kill(2)
        assert [job.reap(r) for r in range(2)] == [0, 0]


def _passed_on(die):
    """Rank 0 has a stream that needs the dead die, rank 1 streams that need rank 0, and rank 2 needs rank 1."""
    g = strata.world()
    first, second = (g.subgroup(r) if die.rank in r else None for r in ([0, 1], [1, 2]))
    x = strata.ones(LARGE)
    g.barrier()
    die.say("ready")
    if die.rank == 3:
        time.sleep(60)
    if die.rank < 2:
        s, t = strata.Stream(), strata.Stream()
        with strata.stream(s):
            if die.rank == 0:
                g.all_reduce(x)
            (first.send if die.rank == 0 else first.recv)(x, 1 - die.rank)
            if die.rank == 1:
                second.send(x[:SMALL], 1)
        t.wait_event(s.record_event())  # rank 1 has two ways to it
        with strata.stream(t):
            first.all_reduce(x)
            if die.rank == 1:
                second.all_reduce(x)
        for stream in (s, t):
            caught = die.catch(stream.synchronize)
            assert caught.ranks == (3,), caught
    else:
        for fn, *args in ((second.recv, x[:SMALL], 0), (second.all_reduce, x)):
            caught = die.catch(fn, *args)
            assert (caught.kind, caught.ranks, caught.group) == ("PeerDead", (3,), second.name), caught
    for group in (first, second):
        assert group is None or not group.broken
    check_group(g.shrink(), [0, 1, 2])


@pytest.mark.reports(maybe=["leak", "race"], why="a stream's operations on an array that all of them have")
def test_it_is_passed_on_from_stream_to_stream():
    with Job(_passed_on, 4) as job:
        job.all("ready")
        job.kill(3)
        assert [job.reap(r) for r in range(3)] == [0, 0, 0]
