"""Captures: what they do not take, and members that have not captured the same."""

import threading

import numpy as np
import pytest

import strata
from strata import errors

# ---- what is refused ---------------------------------------------------------------------


def refused(group):
    n, me = group.size, group.rank
    x, far, stream = strata.ones(12), np.ones(12), strata.Stream()
    with strata.capture() as graph:
        before = group.number
        for words, wrong in (
            ("source is not fabric memory", lambda: group.all_reduce(far)),
            ("output is not fabric memory", lambda: group.all_gather(x, np.empty((n, 12)))),
            ("strided", lambda: group.all_reduce(x[::2])),
            ("async_op=True", lambda: group.all_reduce(x, async_op=True)),
            ("async_op=True", lambda: group.barrier(async_op=True)),
            ("timeout of its own", lambda: group.all_reduce(x, timeout=1)),
            ("one list of descriptors", lambda: group.all_reduce(x, path="mte")),
            ("one list of descriptors", lambda: group.all_reduce(x, cores=3)),
            ("one list of descriptors", lambda: group.all_reduce(x, partition="naive")),
            ("all_to_all_v", lambda: group.all_to_all_v(x, [0] * n)),
            ("send", lambda: group.send(x, me)),
            ("recv", lambda: group.recv(x, me)),
            ("split", lambda: group.split(0)),
            ("subgroup", lambda: group.subgroup([me])),
            ("shrink", group.shrink),
            ("on a stream", stream.synchronize),
            ("on a stream", lambda: stream.fill(x, 0)),
            ("do not nest", lambda: strata.capture().__enter__()),
            ("after the block", graph.replay),
            ("after the block", graph.close),
            ("op=", lambda: group.all_reduce(x, op="no")),
        ):
            with pytest.raises(ValueError, match=words):
                wrong()
        if me:
            with pytest.raises(ValueError, match="give out"):
                group.scatter(None)
        assert group.number == before
        group.all_reduce(x)
    assert len(graph.operations) == 1
    graph.replay()
    assert (x == n).all()
    with strata.capture():
        with pytest.raises(ValueError, match="cannot be captured"):
            graph.replay()
    for wrong in (graph, stream, 0):
        with pytest.raises(TypeError, match="capture: a strata.Group or None is expected, not "):
            strata.capture(wrong).__enter__()
    stream.close()


def test_what_cannot_be_captured(small):
    small.run(refused)


def other_threads(group):
    """A capture takes what its own thread calls; others' operations run, or are captured for themselves."""
    x, y, z = strata.ones(4), strata.ones(4), strata.ones(4)
    graphs = []

    def beside():
        group.all_reduce(y)
        with strata.capture() as graph:
            group.all_reduce(z)
        graphs.append(graph)

    with strata.capture() as graph:
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
        group.all_reduce(x)
    assert (x == 1).all() and (z == 1).all() and (y == group.size).all()
    graph.replay()
    graphs[0].replay()
    assert (x == group.size).all() and (z == group.size).all()


def test_threads(small):
    small.run(other_threads)


# ---- what does not agree ----------------------------------------------------------------------


def in_step(group):
    x = strata.full(3, group.rank)
    assert (group.all_reduce(x) == sum(range(group.size))).all()


def different(group, what):
    n, last = group.size, group.size - 1
    x, odd = strata.ones(12), group.rank == last
    with pytest.raises(errors.CollectiveMismatch) as caught:
        with strata.capture() as graph:
            group.all_reduce(x)
            if what == "order":
                steps = [lambda: group.broadcast(x, root=0), lambda: group.all_gather(x)]
                for step in steps[::-1] if odd else steps:
                    step()
            elif what == "count":
                group.all_gather(x[:5] if odd else x)
            elif what == "more" and odd:
                group.broadcast(x)
            elif what == "algorithm":
                group.all_gather(x, algorithm="ring" if odd else "full_mesh")
    text = str(caught.value)
    others = "ranks " + ", ".join(map(str, range(last))) if n > 2 else "rank 0"
    assert "operation 2 of the group" in text and f"rank {last}: " in text and f"{others}: " in text, text
    if what == "more":
        assert "nothing more" in text and "broadcast of 12 float64 with root 0" in text
    assert caught.value.ranks == tuple(range(n)) and caught.value.group == "world"
    assert graph.state == "abandoned"
    with pytest.raises(errors.GroupBroken, match="its block failed"):
        graph.replay()
    in_step(group)
    assert not group.broken
    return text


def nothing_captured(group):
    x = strata.ones(12)
    with pytest.raises(errors.CollectiveMismatch, match="operation 1 .*rank 0: nothing more; .*: all_reduce sum of 12"):
        with strata.capture(group):
            if group.rank:
                group.all_reduce(x)
    in_step(group)


def test_a_member_that_captures_nothing(peers):
    peers.run(nothing_captured)


@pytest.mark.parametrize("what", ["order", "count", "more", "algorithm"])
def test_members_that_capture_different_operations(peers, what):
    if peers.n <= 4:
        assert len(set(peers.run(different, what))) == 1


def left_early(group, when):
    """One leaves its block by an exception, the others hear of it and do not hang."""
    x = strata.ones(12)
    if group.rank == group.size - 1:
        with pytest.raises(ZeroDivisionError):
            with strata.capture() as graph:
                if when == "later":
                    group.all_reduce(x)
                print(1 // 0)
        assert graph.state == "abandoned"
    else:
        with pytest.raises(errors.CollectiveMismatch, match=f"rank {group.size - 1} has given .*ZeroDivisionError"):
            with strata.capture():
                group.all_reduce(x)
                group.all_reduce(x)
    in_step(group)


@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_block_that_is_left_early(peers, when):
    if peers.n <= 4:
        peers.run(left_early, when)


def in_one_of_two(world):
    """A difference in one group is none of another group's affairs, but of the die that is in both."""
    pair = world.subgroup([0, 1]) if world.rank < 2 else None
    other = world.subgroup([1, 2]) if world.rank else None
    x = strata.ones(6)
    with pytest.raises(errors.CollectiveMismatch):
        with strata.capture():
            if pair:
                pair.all_reduce(x, op="max" if world.rank else "min")
            if other:
                other.all_reduce(x)
    in_step(world)


def test_a_difference_in_one_of_two_groups(trio):
    trio.run(in_one_of_two)


def closes(group):
    """A member closes its graph; the others' next replay says so."""
    x = strata.ones(6)
    with strata.capture() as graph:
        group.all_reduce(x)
    graph.replay()
    if group.rank == 0:
        graph.close()
    else:
        with pytest.raises(errors.GroupBroken, match="closed its graph after fewer replays") as caught:
            graph.replay()
        assert caught.value.ranks == (0,)
        with pytest.raises(errors.GroupBroken, match="a replay has failed"):
            graph.replay()
        assert graph.state == "failed"
    in_step(group)


def test_a_member_closes_its_graph(pair):
    pair.run(closes)
