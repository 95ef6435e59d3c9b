"""Traces of dies that work together: the phases of operations, by cores, the DMA engine and messages."""

import time

import numpy as np
import pytest

import strata
from strata import sdma
from strata._core import space, tracing
from strata.testing import Pool

BOUND = 60.0  # seconds that anything here may take on a busy machine
K = {name: number for number, name in enumerate(tracing.KINDS)}


class traced:
    """What this die, or another one, has traced in a block."""

    def __init__(self, group, mode=tracing.RING):
        self.group, self.mode, self.context = group, mode, space.current()

    def __enter__(self):
        self.group.barrier()
        tracing.clear(self.context, self.context.rank)
        self.begin = tracing.ticks(self.context)
        tracing.set_mode(self.context, self.mode, self.context.rank)
        self.group.barrier()  # all are traced from here on
        return self

    def __exit__(self, *_):
        self.group.barrier()
        tracing.set_mode(self.context, tracing.OFF, self.context.rank)
        self.end = tracing.ticks(self.context)
        self.group.barrier()

    def slices(self, role, rank=None):
        seen = tracing.read(self.context, self.context.rank if rank is None else rank)
        assert seen["lost"] == 0 and all(s["lost"] == 0 for s in seen["slices"])
        for one in seen["slices"]:
            events = one["events"] = one["events"][one["events"]["kind"] != tracing.MORE]  # which has no times
            assert np.all(np.diff(events["end"].astype("i8")) >= 0), "an order of ends"
            if rank is None:
                assert np.all((self.begin <= events["begin"]) & (events["end"] <= self.end))
        return [s["events"] for s in seen["slices"] if s["role"] == role]

    def events(self, *kinds, role="caller", rank=None):
        found = self.slices(role, rank)
        found = np.concatenate(found) if found else np.empty(0, tracing.EVENT)
        return found[np.isin(found["kind"], [K[kind] for kind in kinds])] if kinds else found


def remote(events):
    """How many operands of each unit are other dies'."""
    return events["index"] >> 24


# ---- cores ------------------------------------------------------------------------------------


def gathered(group):
    x = strata.full(100_000, group.rank, "f4")
    out = strata.zeros((group.size, x.size), "f4")
    group.all_gather(x, out, path="mte")
    with traced(group) as t:
        group.all_gather(x, out, path="mte", algorithm="full_mesh", cores=3)
    copies = t.events("copy")
    assert set(copies["core"]) <= {0, 1, 2} and len(set((copies["index"] & 0xFFFFFF).tolist())) == len(copies)
    far = copies[remote(copies) > 0]
    assert copies["arg"].sum() == group.size * x.nbytes and far["arg"].sum() == (group.size - 1) * x.nbytes
    for rank in range(group.size):
        assert copies["arg"][copies["peer"] == rank].sum() == x.nbytes
    assert np.all(remote(far) == 1) and np.all(far["peer"] != group.rank)
    # The phases of each operation follow one another: barrier, all_gather, barrier.
    numbers = t.events("arrive")["arg"].tolist()
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    every = t.events()
    first = every[(every["kind"] == K["arrive"]) & (every["arg"] == numbers[1])]["begin"][0]
    last = every[(every["kind"] == K["arrive"]) & (every["arg"] == numbers[2])]["begin"][0]
    inside = every[(every["begin"] >= first) & (every["end"] <= last)]
    kinds = [tracing.KINDS[k] for k in inside["kind"].tolist()]
    assert [kind for kind in dict.fromkeys(kinds) if kind != "wait"][:2] == ["arrive", "copy"]
    waits = inside[inside["kind"] == K["wait"]]
    assert waits["index"].tolist() in ([], [0], [2], [0, 2]), "arrival, completion, where not all were there"
    assert np.all(waits["arg"] == numbers[1]) and group.rank not in waits["peer"].tolist()
    assert np.all(inside["begin"][1:] >= inside["end"][:-1]), "spans of a thread do not overlap"
    checked = every[every["kind"] == K["check"]]
    assert x.nbytes + out.nbytes in checked["arg"].tolist()
    return True


def test_copies_of_cores(peers):
    assert all(peers.run(gathered))


def reduced(group):
    x = strata.ones(30_000, "f4")
    group.all_reduce(x)
    with traced(group) as t:
        group.all_reduce(x, path="mte", algorithm="full_mesh")
    reduces = t.events("reduce")
    assert len(reduces) and t.events("copy").size + reduces.size == len(
        set((t.events("copy", "reduce")["index"] & 0xFFFFFF).tolist()))
    assert np.all(remote(reduces) >= group.size - 1)  # sources, and where it writes to
    small = np.ones(2, "f4")
    with traced(group) as t:
        group.all_reduce(small)
    mail = t.events("mailbox")
    assert mail["arg"].tolist() == [8] and mail["peer"].tolist() == [tracing.NOBODY] and t.events("reduce").size == 1
    return True


def test_reductions_and_mailboxes(peers):
    assert all(peers.run(reduced))


def flagged(group):
    x = strata.ones(200_000, "f4")
    group.all_reduce(x, algorithm="ring", path="mte")
    with traced(group) as t:
        for _ in range(20):
            group.all_reduce(x, algorithm="ring", path="mte")
    rate = tracing.read(t.context, 0)["ns_per_tick"]
    sets = {}
    for rank in range(group.size):
        for e in t.events("flag set", rank=rank):
            assert (rank, int(e["index"]), int(e["arg"])) not in sets
            sets[rank, int(e["index"]), int(e["arg"])] = int(e["begin"])
    waits = t.events("flag wait")
    assert sets and np.all(waits["peer"] < group.size)
    for e in waits:  # the clocks of dies agree: no flag is seen before it was raised, but for a microsecond
        raised = sets[int(e["peer"]), int(e["index"]), int(e["arg"])]
        assert (int(e["end"]) - raised) * rate > -1000
    group.barrier()
    return len(waits)


def test_flags_tell_of_causes(four):
    assert sum(four.run(flagged)) > 0


def crewed(group):
    x = strata.ones(300_000, "f4")
    out = strata.zeros((group.size, x.size), "f4")
    group.all_gather(x, out, cores=6, path="mte")
    with traced(group) as t:
        group.all_gather(x, out, cores=6, path="mte", algorithm="full_mesh")
    crew = t.slices("core")
    assert len(crew) == 2 and all((events["kind"] == K["arrive"]).sum() == 1 for events in crew)
    copies = np.concatenate([t.events("copy"), t.events("copy", role="core")])
    assert copies["arg"].sum() == group.size * x.nbytes and set(copies["core"]) == set(range(6))
    for k, events in enumerate(crew, 1):
        copied = events[events["kind"] == K["copy"]]
        assert set(copied["core"] % 3) in ({k}, {3 - k})
    return True


def test_threads_of_cores_have_slices():
    with Pool(2, workers=3, cores=6) as pool:
        assert all(pool.run(crewed))


# ---- who is late -----------------------------------------------------------------------------------


def late(group, who):
    """The last member comes only when it has seen in the others' traces that they are there."""
    with traced(group) as t:
        if group.rank == who:
            end = time.monotonic() + BOUND
            for rank in set(range(group.size)) - {who}:  # the barrier in traced() is the first
                while t.events("arrive", rank=rank).size < 2:
                    assert time.monotonic() < end, f"die {rank} does not arrive"
        group.barrier()
    number = t.events("arrive")["arg"][1]
    arrived = [int(t.events("arrive", rank=rank)["end"][1]) for rank in range(group.size)]
    group.barrier()
    assert arrived.index(max(arrived)) == who
    waits = t.events("wait")
    assert group.rank not in waits["peer"].tolist(), "nobody waits for itself"
    mine = waits[(waits["arg"] == number) & (waits["index"] == 0)]
    return group.rank == who or mine["peer"].tolist() == [who]


def test_the_last_to_come_is_named(trio):
    """At once by when it came; by whom the others waited for unless it came while they had no CPU to look."""
    for who in range(3):
        assert any(all(trio.run(late, who)) for _ in range(100))


def mapped(group):
    """A page of a peer's that is touched for the first time."""
    out = strata.zeros((group.size, 3 << 20), "u1")
    with traced(group) as t:  # whose barriers are fences, which map
        x = strata.full(3 << 20, group.rank + 1, "u1")
        group.all_gather(x, out, path="mte")
    maps = t.events("map")
    ahead = t.events("map", role="registrar")
    others = maps[maps["peer"] != group.rank]
    with traced(group) as again:
        group.all_gather(x, out, path="mte")
    assert again.events("map").size == 0
    with traced(group) as t:
        own = strata.empty(64 << 20, "u1")
    made = t.events("map")  # besides those of the peers', for which the barrier is a fence
    assert own.nbytes == 64 << 20 and made["arg"][made["peer"] == group.rank].sum() >= 62 << 20
    return others["peer"].tolist(), int(others["arg"].sum()), ahead.size


def test_pages_that_are_mapped_on_first_use():
    with Pool(3, registration="just_in_time") as pool:
        for rank, (peers, nbytes, ahead) in enumerate(pool.run(mapped)):
            assert set(peers) == {0, 1, 2} - {rank} and nbytes >= 2 * (2 << 20) and ahead == 0


# ---- the engine, messages, asynchronous operations ---------------------------------------------------


def submitted(group):
    x = strata.ones(500_000, "f4")
    out = strata.zeros((group.size, x.size), "f4")
    group.all_gather(x, out, path="sdma")
    with traced(group) as t:
        group.all_gather(x, out, path="sdma", algorithm="full_mesh")
    dma = t.events("dma", role="engine")
    moved = dma[dma["core"] == tracing.DESCRIPTORS.index("copy")]
    assert moved["arg"].sum() == group.size * x.nbytes
    for rank in range(group.size):
        assert moved["arg"][moved["peer"] == rank].sum() == x.nbytes
    assert t.events("notify", role="engine").size > 0
    assert t.events("submit").size == t.events("doorbell").size > 0
    flag = sdma.flag()
    with traced(group) as t:
        ring = sdma.open_ring()
        work = ring.submit(sdma.Batch().gate(flag, 1).copy(out[0], x).write(flag, 7))
        sdma.write(flag, 1)
        sdma.wait(flag, 7)
        work.wait()
        ring.close()
    dma = t.events("dma", role="engine")
    names = [tracing.DESCRIPTORS[e["core"]] for e in dma[np.argsort(dma["end"])]]
    assert names == ["gate", "copy", "copy", "write"]  # a block is 1 MiB
    assert t.events("flag set").size == 1 and t.events("flag wait").size == 1
    assert t.events("flag set")["arg"][0] == t.events("flag wait")["arg"][0] == dma["arg"][0] == dma["arg"][3]
    return True


def test_descriptors(pair):
    assert all(pair.run(submitted))


def sent(group):
    other = 1 - group.rank
    small, large = strata.ones(10, "f4"), strata.ones(1 << 18, "f4")
    with traced(group) as t:
        for x in (small, large):
            if group.rank:
                group.send(x, other)
            else:
                group.recv(x, other)
        works = [group.send(large, other, tag=3, async_op=True) if group.rank
                 else group.recv(large, other, tag=3, async_op=True)]
        work = group.all_reduce(large, path="mte", async_op=True)
        for one in (*works, work):
            one.wait()
    kind = "send" if group.rank else "recv"
    messages = t.events("send", "recv")
    assert set(messages["kind"]) == {K[kind]} and set(messages["peer"]) == {other}
    assert messages["arg"].tolist() == [small.nbytes, large.nbytes]
    later = t.events("send", "recv", role="transfers")
    assert later["arg"].tolist() == [large.nbytes] and later["kind"].tolist() == [K[kind]]
    assert t.events("arrive", role="worker").size == 1 and t.events("reduce", role="worker").size
    waits = t.events("wait")
    assert tracing.WHYS.index("work") in waits["index"].tolist()
    return True


def test_messages_and_asynchronous_operations(pair):
    assert all(pair.run(sent))


def kept(group):
    """Nothing is lost without being counted, whatever the mode."""
    x = strata.ones(4, "f4")
    found = []
    for mode in (tracing.STOP, tracing.RING):
        with traced(group, mode) as t:
            for _ in range(100):
                group.all_reduce(x)
        one, = (s for s in tracing.read(t.context, group.rank)["slices"] if s["role"] == "caller")
        timed = one["events"][one["events"]["kind"] != tracing.MORE]
        found.append((len(one["events"]), one["lost"], int(timed["end"][-1])))
    (full, lost, early), (ring, over, latest) = found
    # Of an operation: check, mailbox, arrive, reduce, a wait or none, and two of the call.
    written = [full + lost, ring + over]
    assert full == 256 and ring == 255 and all(600 <= n <= 730 for n in written), written
    return early < latest


def test_stop_and_ring():
    with Pool(2, trace_events=256) as pool:
        assert all(pool.run(kept))


@pytest.mark.parametrize("flips", [40])
def test_the_switch_is_thrown_from_elsewhere(trio, flips):
    """While operations run; the results are right, and what is read makes sense."""
    assert all(trio.run(thrown, flips))


def thrown(group, flips):
    context = space.current()
    x = strata.array(np.arange(5000, dtype="f4"))
    for k in range(flips):
        tracing.set_mode(context, k % 3)  # of all dies, by each of them
        for algorithm in ("ring", "full_mesh"):
            total = group.all_reduce(x, np.empty_like(x), algorithm=algorithm)
            assert (total == group.size * x).all()
        seen = tracing.read(context, (group.rank + 1) % group.size)
        for one in seen["slices"]:
            timed = one["events"][one["events"]["kind"] != tracing.MORE]
            assert np.all(timed["begin"] <= timed["end"])
        if k % 7 == 0:
            tracing.clear(context)
    group.barrier()
    tracing.set_mode(context, tracing.OFF)
    group.barrier()
    return True
