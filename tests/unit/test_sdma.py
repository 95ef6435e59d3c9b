"""strata.sdma on one die: rings, and what becomes of submissions."""

import gc
import threading
import weakref

import numpy as np
import pytest

import strata
from strata import bootstrap, errors, sdma
from strata._core import descriptors as d

BOUND = 30.0  # seconds in which anything that a test waits for must have happened


@pytest.fixture
def ring():
    ring = sdma.open_ring(16)
    yield ring
    ring.close()


@pytest.fixture
def shut(ring):
    """A ring that is held up at a gate; calling it opens the gate."""
    gate = sdma.flag()
    work = ring.submit(sdma.Batch().gate(gate, 1))
    yield lambda: sdma.write(gate, 1)
    sdma.write(gate, 1)
    work.wait(BOUND)


def made(n=1, **fields):
    """Descriptors by hand."""
    found = np.zeros(n, sdma.DESCRIPTOR)
    for name, value in fields.items():
        found[name] = value
    return found


def ends(work, kind, *texts):
    """Asserts that a submission ends with an error of this kind, the same whoever asks, that says these texts."""
    with pytest.raises(kind) as caught:
        work.wait(BOUND)
    assert work.done() and work.exception() is caught.value
    assert caught.value.ranks == (0,) and caught.value.operation == "sdma"
    assert "failed" in repr(work)
    for text in texts:
        assert text in str(caught.value), caught.value


# ---- rings -----------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 5, 2**32 - 3, 2**63 - 3, 2**64 - 3, 2**64 - 1])
def test_indices_go_on_past_any_bound(first):
    ring = sdma.open_ring(4, first=first)
    out = strata.zeros(40, "u1")
    assert ring.head == ring.tail == first and ring.depth == 4 and ring.rank == 0
    works = [ring.submit(sdma.Batch().fill(out[k : k + 1], k + 1)) for k in range(20)]  # waits for room
    assert [w.first for w in works] == [(first + 2 * k) % 2**64 for k in range(20)]
    ring.drain(BOUND)
    assert ring.head == ring.tail == (first + 40) % 2**64
    for work in works:
        work.wait(BOUND)
        assert work.exception() is None and work.count == 2
    assert (out[:20] == np.arange(1, 21)).all() and not out[20:].any()
    gate = sdma.flag()
    work = ring.submit(sdma.Batch().gate(gate, 1))
    assert not work.done()
    threading.Timer(0.05, sdma.write, (gate, 1)).start()
    ring.close()  # waits
    assert work.done()


def test_rings_are_found_by_their_number():
    a, b = sdma.open_ring(4), sdma.open_ring(8)
    assert a.index != b.index
    same = sdma.ring(b.index)
    assert (same.index, same.depth, same.rank) == (b.index, 8, 0)
    assert repr(same) == f"<descriptor ring {b.index} of rank 0, 8 deep>"
    same.submit(sdma.Batch().nop()).wait(BOUND)
    assert b.tail == 2
    b.close()
    b.close()  # again is nothing
    for use in (
        lambda: same.submit(sdma.Batch().nop()),
        lambda: same.tail,
        same.check,
        same.drain,
        lambda: sdma.ring(same.index),
        lambda: b.submit(sdma.Batch().nop()),
    ):
        with pytest.raises(errors.NotInJob, match="closed|no open"):
            use()
    new = sdma.open_ring(8)
    assert new.index == b.index  # in its place, and not the one that was
    with pytest.raises(errors.NotInJob):
        same.submit(sdma.Batch().nop())
    same.close()  # closes none but its own
    new.submit(sdma.Batch().nop()).wait(BOUND)
    a.close()
    new.close()


def test_as_many_rings_as_there_can_be():
    rings = []
    before = sdma.stats()["rings"]
    with pytest.raises(errors.RingFull, match="at most 1024 descriptor rings"):
        while True:
            rings.append(sdma.open_ring(2))
    assert len(rings) + before == 1024
    works = [ring.submit(sdma.Batch()) for ring in rings]
    for work in works:
        work.wait(BOUND)
    for ring in rings:
        ring.close()
    assert sdma.stats()["rings"] == before


def test_full_rings(ring, shut):
    batch = sdma.Batch()
    for _ in range(5):
        batch.nop()
    two = [ring.submit(batch) for _ in range(2)]  # 2 of the gate, 12
    with pytest.raises(errors.RingFull, match=f"ring {ring.index} of rank 0 has no room for 6 descriptors") as caught:
        ring.submit(batch, wait=False)
    assert caught.value.ranks == (0,)
    with pytest.raises(errors.RingFull):
        ring.submit(batch, wait=False, notify=False)
    assert ring.tail - ring.head <= 14
    some = strata.zeros(8, "u1")
    with pytest.raises(errors.CollectiveTimeout, match="stayed full, and only 2 of 5 descriptors are in it"):
        ring.submit(sdma.Batch(1).copy(some[:4], strata.ones(4, "u1")), timeout=0.02)
    with pytest.raises(errors.CollectiveTimeout, match="stayed full, or another"):
        ring.submit(sdma.Batch().nop(), timeout=0.02)
    shut()
    for work in two:
        work.wait(BOUND)
    ring.drain(BOUND)
    assert not some.any()  # what had come into the ring of it was given up
    ring.submit(batch, wait=False).wait(BOUND)


def test_a_batch_deeper_than_the_ring(ring):
    out = strata.zeros(200, "u1")
    batch = sdma.Batch(block=1).fill(out, 5)
    for _ in range(24):
        batch.nop()
    with pytest.raises(errors.RingFull):
        ring.submit(batch, wait=False)
    work = ring.submit(batch)
    work.wait(BOUND)
    assert work.count == len(batch) + 1 == 50 and (out == 5).all()


def test_wait_for_room_ends_when_there_is_some(ring, shut):
    for _ in range(14):
        ring.submit(sdma.Batch().nop(), notify=False)
    threading.Timer(0.05, shut).start()
    ring.submit(sdma.Batch().nop(), timeout=BOUND).wait(BOUND)


# ---- submissions -----------------------------------------------------------------


def test_submissions_say_what_they_are(ring, shut):
    work = ring.submit(sdma.Batch().nop().nop())
    assert not work.done() and work.exception() is None and work.count == 3
    assert repr(work) == f"<Submission in progress, 3 descriptors from {work.first} on in ring {ring.index} of rank 0>"
    with pytest.raises(errors.CollectiveTimeout, match="has not ended within 0.01 s; it goes on"):
        work.wait(0.01)
    with pytest.raises(errors.CollectiveTimeout):
        work.wait(0)
    assert not work.done()
    assert ring.submit(sdma.Batch().nop(), notify=False) == work.first + 3
    assert ring.submit(made(0), notify=False) == work.first + 4
    with pytest.raises(errors.CollectiveTimeout, match="not drained within"):
        ring.drain(0.01)
    shut()
    work.wait(BOUND)
    work.wait()
    assert work.done() and work.exception() is None and "Submission done" in repr(work)
    work.cancel()  # too late, and no error
    work.wait()


def test_empty_batches(ring):
    work = ring.submit(sdma.Batch())
    work.wait(BOUND)
    assert work.count == 1
    ring.submit(made(6, type=d.NOP).reshape(2, 3)).wait(BOUND)
    ring.submit(made(6, type=d.NOP)[::2]).wait(BOUND)


def test_cancel(ring, shut):
    x = strata.zeros(8, "u1")
    raised = sdma.flag()
    work = ring.submit(sdma.Batch().fill(x, 1).write(raised, 3))
    after = ring.submit(sdma.Batch().fill(x[4:], 2))
    work.cancel()
    shut()
    ends(work, errors.Cancelled, f"descriptor {work.first} of ring {ring.index} of rank 0, fill of 8 bytes")
    after.wait(BOUND)
    assert (x == [0, 0, 0, 0, 2, 2, 2, 2]).all()
    for use in (sdma.wait, sdma.poll):
        with pytest.raises(errors.Cancelled, match="is poisoned, since what was to raise it has failed"):
            use(raised, 1)


def test_cancel_at_a_gate(ring):
    gate = sdma.flag()
    work = ring.submit(sdma.Batch().gate(gate, 1, timeout=float("inf")))
    work.cancel()
    ends(work, errors.Cancelled, "gate on flag")


def test_arrays_live_as_long_as_they_are_needed(ring, shut):
    out = strata.zeros(1000, "u2")
    src = strata.array(np.arange(1000, dtype="u2"))
    seen = []
    weakref.finalize(src, seen.append, 1)
    ring.submit(sdma.Batch().copy(out, src))  # neither the batch nor the submission is kept
    keep = type("Kept", (), {})()
    weakref.finalize(keep, seen.append, 2)
    last = ring.submit(sdma.Batch().nop(), keep=keep)
    del src, keep
    gc.collect()
    spoil = [strata.zeros(1000, "u2") for _ in range(50)]
    assert not seen
    shut()
    last.wait(BOUND)
    assert (out == np.arange(1000)).all() and len(spoil) == 50
    for _ in range(4):
        ring.submit(sdma.Batch()).wait(BOUND)  # looks at what has ended
    gc.collect()
    assert sorted(seen) == [1, 2]


def test_two_thousand_in_flight_and_ten_thousand_kept():
    ring, gate = sdma.open_ring(8192), sdma.flag()
    out = strata.zeros(2000, "u2")
    engine = bootstrap.context().engine
    before = engine.pending
    ring.submit(sdma.Batch().gate(gate, 1))
    works = [ring.submit(sdma.Batch().fill(out[k : k + 1], k)) for k in range(2000)]
    assert engine.pending == before + 2001 and not works[0].done()
    sdma.write(gate, 1)
    for work in reversed(works):
        work.wait(BOUND)
    assert (out == np.arange(2000)).all()
    works += [ring.submit(sdma.Batch().nop()) for _ in range(10_000)]  # ended ones need no event
    works[-1].wait(BOUND)
    assert all(w.exception() is None for w in works)
    assert engine.pending == before
    ring.close()


def test_more_submissions_than_events():
    ring, gate = sdma.open_ring(1 << 15), sdma.flag()
    works = [ring.submit(sdma.Batch().gate(gate, 1))]
    with pytest.raises(errors.RingFull, match="too many submissions are in progress"):
        while len(works) < 10_000:
            works.append(ring.submit(sdma.Batch()))
    assert len(works) > 8000
    ring.submit(sdma.Batch(), notify=False)
    sdma.write(gate, 1)
    for work in works:
        work.wait(BOUND)
    ring.submit(sdma.Batch()).wait(BOUND)
    ring.close()


def test_threads_wait_for_one_submission(ring):
    for _ in range(20):
        gate = sdma.flag()
        work = ring.submit(sdma.Batch().gate(gate, 1))
        ended = []
        threads = [threading.Thread(target=lambda w=work, e=ended: e.append(w.wait(BOUND))) for _ in range(4)]
        for thread in threads:
            thread.start()
        sdma.write(gate, 1)
        others = [ring.submit(sdma.Batch()) for _ in range(3)]
        for thread in threads:
            thread.join(BOUND)
        assert ended == [None] * 4
        for other in others:
            other.wait(BOUND)


def test_threads_submit_to_one_ring(ring):
    out = strata.zeros((4, 300), "u2")

    def produce(k):
        for i in range(300):
            ring.submit(sdma.Batch().fill(out[k, i : i + 1], k * 1000 + i).nop(), notify=i % 50 == 49)

    threads = [threading.Thread(target=produce, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    ring.drain(BOUND)
    assert (out == np.arange(4)[:, None] * 1000 + np.arange(300)).all()
