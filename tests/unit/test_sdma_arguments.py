"""Arguments that strata.sdma refuses, and says why."""

import numpy as np
import pytest

import strata
from strata import errors, sdma


@pytest.fixture
def ring():
    ring = sdma.open_ring(16)
    yield ring
    ring.close()


def test_arrays_that_no_descriptor_takes():
    x, y = strata.zeros(100, "u1"), strata.zeros(100, "u1")
    foreign = np.zeros(100, "u1")
    fixed = strata.zeros(100, "u1")
    fixed.flags.writeable = False
    square = strata.zeros((10, 10), "u1")
    batch = sdma.Batch()
    for pair in ((foreign, x), (x, foreign)):
        with pytest.raises(ValueError, match="not in fabric memory"):
            batch.copy(*pair)
    for pair in ((square[:, :5], x[:50]), (x[:50], square[:, :5]), (x[::2], y[::2]), (square.T, x)):
        with pytest.raises(ValueError, match="is strided"):
            batch.copy(*pair)
    with pytest.raises(ValueError, match="dst is read-only"):
        batch.copy(fixed, x)
    with pytest.raises(ValueError, match="dst is read-only"):
        batch.fill(fixed, 1)
    with pytest.raises(ValueError, match="dst has 100 bytes and src 99"):
        batch.copy(x, y[1:])
    for pair in ((x[1:], x[:-1]), (x[:-1], x[1:]), (x[:60], x[40:])):
        with pytest.raises(ValueError, match="overlap"):
            batch.copy(*pair)
        with pytest.raises(ValueError, match="overlap"):
            batch.reduce(pair[0].view("u1"), pair[1].view("u1"))
    with pytest.raises(ValueError, match="has 100 bytes, and nbytes is 101"):
        batch.copy(x, y, 101)
    for wrong in ("x", 1.5, None):
        with pytest.raises(TypeError):
            batch.copy(x, wrong)
    with pytest.raises(TypeError, match="nbytes=1.0: a whole number"):
        batch.copy(x, y, 1.0)
    with pytest.raises(ValueError, match="nbytes=-1"):
        batch.copy(x, y, -1)
    assert len(batch) == 0
    batch.copy(x, fixed)  # to read is allowed


def test_addresses():
    x = strata.zeros(100, "u1")
    at = strata.address(x)
    batch = sdma.Batch()
    with pytest.raises(TypeError, match="dst: an address needs nbytes"):
        batch.copy(at, at)
    for wrong in (0, 1, 2**64 - 1, np.zeros(1).ctypes.data):
        with pytest.raises(ValueError, match="no address in the fabric"):
            batch.copy(at, wrong, 8)
    for wrong in (-1, 2**64):
        with pytest.raises(ValueError, match="is expected"):
            batch.copy(wrong, at, 8)
    with pytest.raises(ValueError, match="beyond the memory of their die"):
        batch.copy(at, at, 1 << 60)
    with pytest.raises(ValueError, match="src has|dst has"):
        batch.copy(at, x, 101)
    assert len(batch) == 0
    assert len(batch.copy(np.uint64(at), at + 50, 50)) == 1
    assert len(batch.copy(at, x)) == 2  # as many as the array has


def test_flags_that_are_none():
    x = strata.zeros(4, "u8")
    fixed = strata.zeros(1, "u8")
    fixed.flags.writeable = False
    uses = [
        sdma.read,
        lambda f: sdma.write(f, 1),
        lambda f: sdma.poll(f, 1),
        lambda f: sdma.wait(f, 1, timeout=1),
        lambda f: sdma.Batch().write(f, 1),
        lambda f: sdma.Batch().add(f, 1),
        lambda f: sdma.Batch().gate(f, 1),
    ]
    for use in uses:
        with pytest.raises(TypeError, match=r"not 4 of uint64; of an array of flags take flags\[i:i\+1\]"):
            use(x)
        for dtype in ("i8", "f8", ">u8"):
            with pytest.raises(TypeError, match="a flag is one uint64"):
                use(x.view(dtype)[:1])
        with pytest.raises(ValueError, match="not in fabric memory"):
            use(np.zeros(1, "u8"))
        with pytest.raises(ValueError, match="no multiple of 8"):
            use(x.view("u1")[4:12].view("u8"))
        with pytest.raises(ValueError, match="no multiple of 8"):
            use(strata.address(x) + 1)
        with pytest.raises(ValueError, match="no address in the fabric"):
            use(8)
        with pytest.raises(TypeError, match="a whole number is expected"):
            use("x")
    for use in (uses[1], *uses[4:6]):
        with pytest.raises(ValueError, match="read-only"):
            use(fixed)
    assert sdma.read(fixed) == 0
    assert sdma.flag().shape == (1,) and sdma.flag(3).dtype == np.uint64 and not sdma.flag(3).any()


@pytest.mark.parametrize("value", [-1, 2**63, 2**64, 1.0, "1", None])
def test_values_that_no_flag_has(value):
    f = sdma.flag()
    for use in (sdma.write, sdma.poll, sdma.wait, sdma.Batch().write, sdma.Batch().add, sdma.Batch().gate):
        with pytest.raises((ValueError, TypeError), match=r"value \(of a flag\)"):
            use(f, value)
    assert sdma.read(f) == 0
    sdma.write(f, 2**63 - 1)
    assert sdma.poll(f, 2**63 - 1) and sdma.poll(f, np.int64(5))


def test_numbers_that_are_out_of_range(ring):
    for depth in (0, 1, 3, 12, -8, 1 << 21):
        with pytest.raises(ValueError, match=f"depth={depth}: a power of two from 2"):
            sdma.open_ring(depth)
    for first in (-1, 2**64):
        with pytest.raises(ValueError, match=f"first={first}"):
            sdma.open_ring(2, first=first)
    with pytest.raises(ValueError, match="rank=1: 0 to 0 is expected"):
        sdma.ring(ring.index, 1)
    with pytest.raises(ValueError, match="rank=-1"):
        sdma.wait(sdma.flag(), 1, rank=-1)
    with pytest.raises(ValueError, match="index=-1"):
        sdma.ring(-1)
    with pytest.raises(errors.NotInJob, match="rank 0 has no open descriptor ring 900"):
        sdma.ring(900)
    with pytest.raises(errors.NotInJob, match="no open descriptor ring 5000"):
        sdma.ring(5000)
    for block in (0, (64 << 20) + 1, -5):
        with pytest.raises(ValueError, match=f"block={block}"):
            sdma.Batch(block)
    with pytest.raises(TypeError):
        sdma.Batch(1.5)
    for timeout in (-1, float("nan")):
        for use in (
            sdma.Batch().gate,
            lambda f, v, timeout: ring.submit(sdma.Batch().nop(), timeout=timeout),
            sdma.wait,
        ):
            with pytest.raises(ValueError, match="timeout="):
                use(sdma.flag(), 1, timeout=timeout)


def test_classes_that_are_not_made_by_hand():
    with pytest.raises(TypeError, match="open_ring"):
        sdma.Ring()
    with pytest.raises(TypeError, match="Ring.submit"):
        sdma.Submission()


def test_what_is_no_batch(ring):
    for wrong in (None, [sdma.Batch()], "x"):
        with pytest.raises(TypeError, match="a Batch or an array"):
            ring.submit(wrong)
    with pytest.raises(TypeError, match="not of uint8"):
        ring.submit(np.zeros(64, "u1"))
    with pytest.raises(TypeError):
        sdma.seal(np.zeros(64, "u1"))
    with pytest.raises(TypeError, match="contiguous"):
        sdma.seal(np.zeros(4, sdma.DESCRIPTOR)[::2])
    fixed = np.zeros(2, sdma.DESCRIPTOR)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        sdma.seal(fixed)
    for wrong in (np.zeros(64, "u1"), strata.zeros(64, "u1")):
        with pytest.raises(TypeError, match=r"an array of strata.sdma.DESCRIPTOR"):
            sdma.Batch().call(wrong)
    with pytest.raises(ValueError, match="not in fabric memory"):
        sdma.Batch().call(np.zeros(2, sdma.DESCRIPTOR))
    assert sdma.stats()["rings"] >= 1


def test_descriptors_made_by_hand_name_no_event():
    """One that did could end somebody else's submission."""
    ring = sdma.open_ring(8)
    forged = np.zeros(1, sdma.DESCRIPTOR)
    forged["type"], forged["event"] = 9, 1
    for notify in (True, False):
        with pytest.raises(ValueError, match="event is for submit"):
            ring.submit(forged, notify=notify)
    ring.close()
