"""send and recv: tags, sizes, many at once, and what a timeout leaves."""

import numpy as np
import pytest
from collectives_play import in_step
from collectives_reference import MOVED, NUMBERS, data, same

import strata
from strata import CollectiveMismatch, CollectiveTimeout

SIZES = (0, 1, 40, 4095, 4096, 4097, 10_000, 3_000_000)  # bytes; up to 4096 travel with the message


def ring(group, dtype, counts, fabric):
    n, me = group.size, group.rank
    to, of = (me + 1) % n, (me - 1) % n
    make = strata.empty if fabric else np.empty
    for count in counts:
        src, out = make(count, dtype), make(count, dtype)
        src[...] = data((count,), dtype, me)
        work = group.send(src, to, async_op=True)
        assert group.recv(out, of) is out
        work.wait()
        assert same(out, data((count,), dtype, of))
        assert same(src, data((count,), dtype, me))
    assert group.pending() == 0


@pytest.mark.parametrize("fabric", [True, False], ids=["fabric", "numpy"])
def test_sizes(dies, fabric):
    dies.run(ring, "uint8", SIZES, fabric)


def every_dtype(group):
    from collectives_reference import dtype_of

    for dtype in (*NUMBERS, *MOVED):
        ring(group, dtype_of(dtype), (3, 1500), True)


def test_dtypes(pair):
    pair.run(every_dtype)


def staged(group):
    peer = 1 - group.rank
    for fabric_src, fabric_out, count in [(True, True, 5000), (True, False, 5000), (False, False, 500)]:
        before = strata.stats()["staged_bytes"]
        src = strata.ones(count) if fabric_src else np.ones(count)
        out = strata.empty(count) if fabric_out else np.empty(count)
        work = group.send(src, peer, async_op=True)
        group.recv(out, peer)
        work.wait()
        assert (out == 1).all()
        assert strata.stats()["staged_bytes"] == before
    before = strata.stats()
    work = group.send(np.ones(5000), peer, async_op=True)
    group.recv(strata.empty(5000), peer)
    work.wait()
    after = strata.stats()
    assert after["staged_bytes"] - before["staged_bytes"] == 40_000
    assert (after["sends"] - before["sends"], after["recvs"] - before["recvs"]) == (1, 1)


def test_only_large_sources_outside_the_fabric_are_copied(pair):
    pair.run(staged)


def layouts(group):
    peer = 1 - group.rank
    for shape in ((6, 5), (60, 50)):
        mine, theirs = (data(shape, "f8", m) for m in (group.rank, peer))
        whole = strata.zeros((2 * shape[0], 2 * shape[1]))
        whole[::2, 1::2] = mine
        out = np.zeros(shape[::-1]).T
        work = group.send(whole[::2, 1::2], peer, async_op=True)
        assert group.recv(out[::-1], peer).base is not None
        work.wait()
        assert same(np.ascontiguousarray(out[::-1]), theirs)
        work = group.send(np.asfortranarray(mine), peer, async_op=True)
        gaps = strata.full(whole.shape, -1.0)
        group.recv(gaps[1::2, ::2], peer, async_op=True).wait()
        work.wait()
        assert same(gaps[1::2, ::2].copy(), theirs)
        assert (gaps[::2] == -1).all() and (gaps[:, 1::2] == -1).all()
        read_only = strata.array(mine)
        read_only.flags.writeable = False
        work = group.send(read_only, peer, async_op=True)
        group.recv(gaps[: shape[0], : shape[1]], peer)
        work.wait()
    x = strata.array(group.rank + 0.5)  # 0-d
    y = strata.empty(())
    work = group.send(x, peer, async_op=True)
    group.recv(y, peer)
    work.wait()
    assert y == peer + 0.5


def test_layouts(pair):
    pair.run(layouts)


def tags(group, count):
    """Messages are matched by tag, in the order sent within a tag, whatever order they are asked for in."""
    order = [5, 0, 5, 123456, 0, 7]
    if group.rank == 0:
        works = [group.send(np.full(count, i), 1, tag=tag, async_op=True) for i, tag in enumerate(order)]
        for work in works:
            work.wait()
    if group.rank == 1:
        for wanted in (3, 1, 0, 5, 2, 4):
            out = strata.empty(count, "i8")
            group.recv(out, 0, tag=order[wanted])
            assert (out == wanted).all()


@pytest.mark.parametrize("count", [4, 4000])
def test_tags_in_any_order(pair, count):
    pair.run(tags, count)


def to_self(group):
    me = group.rank
    for count in (0, 3, 5000):
        for first in ("send", "recv"):
            src, out = strata.full(count, me + 1.0), strata.zeros(count)
            if first == "send":
                work = group.send(src, me, tag=3, async_op=True)
                group.recv(out, me, tag=3)
            else:
                work = group.recv(out, me, tag=3, async_op=True)
                group.send(src, me, tag=3)
            work.wait()
            assert (out == me + 1).all()


def test_a_die_sends_to_itself(dies):
    dies.run(to_self)


def small_sends_do_not_wait(group):
    """Both send first: messages that travel at once need no receiver yet."""
    peer = 1 - group.rank
    for i in range(3):
        group.send(np.full(8, group.rank + i), peer)
    for i in range(3):
        assert (group.recv(np.empty(8, "i8"), peer) == peer + i).all()


def test_both_send_first(pair):
    pair.run(small_sends_do_not_wait)


def outstanding(group, count, each):
    """Many messages in both directions at once, received in the opposite order by tag."""
    peer = 1 - group.rank
    sends = [group.send(strata.full(count, group.rank * 1000 + i), peer, tag=i, async_op=True) for i in range(each)]
    outs = [strata.empty(count, "i8") for _ in range(each)]
    recvs = [group.recv(outs[i], peer, tag=i, async_op=True) for i in reversed(range(each))]
    for work in (*recvs, *sends):
        work.wait()
    for i, out in enumerate(outs):
        assert (out == peer * 1000 + i).all()
    assert group.pending() == 0


@pytest.mark.parametrize("count", [2, 2000])
def test_forty_outstanding(pair, count):
    pair.run(outstanding, count, 40)


def everyone_to_everyone(group):
    n, me = group.size, group.rank
    works, outs = [], {}
    for peer in range(n):
        for tag, count in ((0, 3), (1, 3000)):
            outs[peer, tag] = np.zeros(count, "i8")
            works.append(group.recv(outs[peer, tag], peer, tag=tag, async_op=True))
            works.append(group.send(np.full(count, 10 * me + tag), peer, tag=tag, async_op=True))
    for work in works:
        work.wait()
    for (peer, tag), out in outs.items():
        assert (out == 10 * peer + tag).all()


def test_everyone_to_everyone(dies):
    for _ in range(3):
        dies.run(everyone_to_everyone)


def among_collectives(group):
    """Messages and collectives of a group do not hinder each other."""
    peer = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    for i in range(10):
        out = strata.empty(600)
        works = [group.recv(out, peer[1], async_op=True), group.all_reduce(strata.ones(2000), async_op=True)]
        group.barrier()
        works.append(group.send(strata.full(600, group.rank + i, "f8"), peer[0], async_op=True))
        for work in works:
            work.wait()
        assert (out == peer[1] + i).all()


def test_messages_among_collectives(peers):
    peers.run(among_collectives)


def nothing_comes(group):
    me = group.rank
    if me == 0:
        out = strata.full(10, -1.0)
        with pytest.raises(CollectiveTimeout, match="recv from rank 1, tag 9: nothing came") as caught:
            group.recv(out, 1, tag=9, timeout=0.05)
        assert caught.value.ranks == (1,) and caught.value.operation == "recv"
        assert (out == -1).all()
    group.barrier()
    if me == 1:
        group.send(np.ones(10), 0, tag=9)  # late, but it is not lost
    else:
        assert (group.recv(out, 1, tag=9) == 1).all()
    assert not group.broken
    in_step(group)


def test_recv_times_out(pair):
    pair.run(nothing_comes)


def nobody_receives(group):
    if group.rank == 0:
        large = strata.ones(5000)
        with pytest.raises(CollectiveTimeout, match="send to rank 1, tag 4: nobody received it in time; .* withdrawn"):
            group.send(large, 1, tag=4, timeout=0.05)
        with pytest.raises(CollectiveTimeout):
            group.send(large, 1, tag=4, timeout=0.05, async_op=True).wait()
        large[:] = 3
        group.barrier()
        group.send(large, 1, tag=4)
    else:
        group.barrier()
        out = strata.zeros(5000)
        group.recv(out, 0, tag=4)
        assert (out == 3).all()  # not the withdrawn ones
        with pytest.raises(CollectiveTimeout):
            group.recv(out, 0, tag=4, timeout=0.05)
    in_step(group)


def test_send_times_out_and_is_withdrawn(pair):
    pair.run(nobody_receives)


def unlike(group, sent, asked):
    if group.rank == 0:
        if sent[0] * np.dtype(sent[1]).itemsize > 4096:
            with pytest.raises(CollectiveMismatch) as caught:
                group.send(strata.ones(*sent), 1)
            text = str(caught.value)
        else:
            group.send(np.ones(*sent), 1)
            text = ""
    else:
        out = strata.full(asked[0], -1, asked[1])
        with pytest.raises(CollectiveMismatch) as caught:
            group.recv(out, 0)
        assert (out == -1).all()
        text = str(caught.value)
    if text:
        kinds = (np.dtype(sent[1]), np.dtype(asked[1]))
        assert f"rank 0 sent {sent[0]} {kinds[0]} and rank 1 asked for {asked[0]} {kinds[1]}" in text
    group.barrier()
    peer = 1 - group.rank
    work = group.send(np.array([7]), peer, async_op=True)
    assert group.recv(np.array([0]), peer) == [7]
    work.wait()
    in_step(group)


@pytest.mark.parametrize(
    ("sent", "asked"),
    [((3, "f8"), (2, "f8")), ((2, "f8"), (3, "f8")), ((4, "f4"), (4, "i4")), ((3000, "f8"), (2000, "f8")),
     ((3000, "i8"), (3000, "f8")), ((0, "f8"), (1, "f8")), ((3000, "f8"), (0, "f8"))]
)  # fmt: skip
def test_mismatch(pair, sent, asked):
    pair.run(unlike, sent, asked)


def subgroups(world):
    """A tag of one group is not that of another."""
    if world.rank > 1:
        return
    a, b = world.subgroup([0, 1]), world.subgroup([1, 0])
    if world.rank == 0:
        a.send(np.array([1]), 1)
        b.send(np.array([2]), 0)
    else:
        assert b.recv(np.array([0]), 1) == [2]
        assert a.recv(np.array([0]), 0) == [1]


def test_messages_belong_to_their_group(trio):
    trio.run(subgroups)


def wrong_tag(group):
    x = strata.full(3, group.rank)
    if group.rank == 0:
        for tag in (5, -7, 5, 8):
            group.send(x, 1, tag)
    group.barrier()
    if group.rank == 1:
        with pytest.raises(CollectiveTimeout, match="in time, but of rank 0 there is a message of tag 5, -7, 8"):
            group.recv(x, 0, 4, timeout=0.05)
        for tag in (8, 5, 5, -7):
            group.recv(x, 0, tag)
        with pytest.raises(CollectiveTimeout, match=r"nothing came in time \["):
            group.recv(x, 0, 4, timeout=0.05)


def test_a_message_of_another_tag_is_told_of(pair):
    pair.run(wrong_tag)
