"""What arrays of a checked die tell of themselves: the bytes that are really read and written."""

import numpy as np
import pytest

import strata
from strata._core import memory
from strata.checking import ranges, recorder, traced
from strata.checking.recorder import joined


class Told:
    """Stands for a recorder: keeps what it is told, as sets of addresses."""

    def __init__(self, array):
        self.low = memory.pointer(array)
        self.high = self.low + array.nbytes
        self.read, self.written = set(), set()

    def inside(self, lo):
        return self.low <= lo < self.high

    def access(self, found, write, what, view=-1):
        for lo, hi, *rows in found:
            n, step = rows or (1, 0)
            for k in range(n):
                (self.written if write else self.read).update(range(lo + k * step, hi + k * step))

    def elements(self, addresses, size=8):
        found = {a - self.low for a in addresses}
        assert all({size * (a // size) + i for i in range(size)} <= found for a in found), "whole elements"
        return {a // size for a in found}


@pytest.fixture
def x(monkeypatch):
    base = np.arange(48.0).reshape(6, 8)
    told = Told(base)
    monkeypatch.setattr(recorder, "_current", told)
    array = base.view(traced.Traced)
    return array, told


KEYS = [
    np.s_[2], np.s_[-1], np.s_[1, 3], np.s_[:], np.s_[...], np.s_[1:3], np.s_[:, 2], np.s_[::2, ::3], np.s_[::-1],
    np.s_[4:1:-1, 5], np.s_[..., 0], np.s_[None, 2], np.s_[[0, 2]], np.s_[[0, 2], [1, 1]], np.s_[:, [7, 0]],
    np.s_[np.arange(48).reshape(6, 8) % 5 == 0], np.s_[np.array([1, 4])], np.s_[6:], np.s_[np.int64(3), np.int64(-2)],
]  # fmt: skip


def meant(key):
    return set(np.arange(48).reshape(6, 8)[key].ravel().tolist())


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_writes_are_exact(x, key):
    array, told = x
    array[key] = -1.0
    assert told.elements(told.written) == meant(key)
    assert not told.read
    assert set(np.flatnonzero(np.asarray(array).ravel() == -1.0).tolist()) == meant(key)


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_reads_are_exact_and_views_are_none(x, key):
    array, told = x
    found = array[key]
    if isinstance(found, traced.Traced):
        assert not told.read
        found.sum()
    assert told.elements(told.read) == meant(key)
    assert not told.written


@pytest.mark.parametrize("use", [
    lambda a: a + 1, lambda a: np.add(a, a), lambda a: a.sum(), lambda a: a.tolist(), lambda a: a.copy(),
    lambda a: np.sum(a), lambda a: np.array_equal(a, a), lambda a: a.mean(axis=0), lambda a: repr(a),
    lambda a: np.concatenate([a, a]), lambda a: a.astype("f4"), lambda a: a.max(), lambda a: a @ a.T,
    lambda a: np.where(a > 3, a, 0), lambda a: a.tobytes(), lambda a: [list(row) for row in a], lambda a: a == a,
    lambda a: a.argsort(), lambda a: np.dot(a, a.T), lambda a: a.flatten(), lambda a: np.copy(a),
])  # fmt: skip
def test_what_reads_all(x, use):
    array, told = x
    use(array)
    assert told.elements(told.read) == set(range(48))
    assert not told.written


@pytest.mark.parametrize("use", [
    lambda a: a.fill(1), lambda a: np.copyto(a, 1), lambda a: a.__setitem__(slice(None), 2),
    lambda a: np.multiply(2, 3, out=a), lambda a: np.full((6, 8), 1.0).sum(axis=None) and np.copyto(a, np.ones((6, 8))),
    lambda a: np.clip(np.ones((6, 8)), 0, 2, out=a),
])  # fmt: skip
def test_what_writes_all(x, use):
    array, told = x
    use(array)
    assert told.elements(told.written) == set(range(48))
    assert not told.read


def in_place(a):
    a += 1


@pytest.mark.parametrize("use", [in_place, lambda a: a.sort(), lambda a: np.exp(a * 0, out=a)])
def test_what_reads_and_writes(x, use):
    array, told = x
    use(array)
    assert told.elements(told.written) == told.elements(told.read) == set(range(48))


def test_results_are_numpys_own_arrays(x):
    array, _ = x
    for found in (array + 1, array.copy(), array[[0, 1]], np.sum(array, axis=0), array.astype("f4"), np.stack([array])):
        assert type(found) is np.ndarray
    for found in (array[1:], array.T, array.reshape(-1), array.ravel(), np.reshape(array, -1), array[0]):
        assert type(found) is traced.Traced
    assert type(array.__reduce__()) is tuple
    array[0] += 1
    out = np.add(array, 1, out=array)
    assert out is array


def test_shapes_are_no_accesses(x):
    array, told = x
    assert np.shape(array) == (6, 8)
    assert np.shares_memory(array, array[2:])
    assert len(array) == 6
    np.zeros_like(array)
    np.broadcast_to(array, (2, 6, 8))
    assert not told.read
    assert not told.written


def test_ufunc_at_tells_the_elements(x):
    array, told = x
    np.add.at(array, ([0, 1], [2, 2]), 5)
    assert told.elements(told.written) == told.elements(told.read) == {2, 10}


def test_ranges_of_strided_views():
    rng = np.random.default_rng(7)
    base = np.zeros((9, 10, 11), np.int32)
    for _ in range(200):
        key = []
        for n in base.shape:
            begin, end = sorted(rng.integers(0, n + 1, 2))
            step = int(rng.integers(1, 4)) * (1 if rng.random() < 0.6 else -1)
            key.append(slice(int(begin), int(end), step) if step > 0 else slice(int(end), None, step))
        view = base[tuple(key)].transpose(rng.permutation(3))
        meant = np.zeros_like(base)
        meant[tuple(key)] = 1
        got = np.zeros(base.nbytes, np.uint8)
        low = memory.pointer(base)
        for lo, hi, *rows in ranges.of(view):
            n, step = rows or (1, 0)
            for k in range(n):
                got[lo + k * step - low : hi + k * step - low] += 1
        assert (got == np.repeat(meant.ravel(), 4)).all(), key


def test_ranges_that_touch_are_joined():
    assert list(joined([(8, 16), (0, 8), (20, 24), (22, 30)])) == [(0, 16), (20, 30)]


# ---- from_address --------------------------------------------------------------------------------


def test_from_address_is_the_memory():
    x = strata.zeros((4, 4), np.int32)
    y = strata.from_address(strata.address(x), (4, 4), np.int32)
    y[1, 2] = 5
    assert x[1, 2] == 5
    assert strata.owner(y) == 0
    assert not strata.from_address(strata.address(x), 16, np.int32, writeable=False).flags.writeable
    assert strata.from_address(strata.address(x[2]), (2, 4), np.int32).shape == (2, 4)
    assert strata.from_address(strata.address(x), (0, 7)).size == 0


@pytest.mark.parametrize(("address", "shape", "dtype", "error", "text"), [
    ("x", 4, "f8", TypeError, "whole number"),
    (4096, 4, "f8", ValueError, "no address in the fabric"),
    (-1, 4, "f8", ValueError, "no address in the fabric"),
    (1 << 70, 4, "f8", ValueError, "no address in the fabric"),
    (4, 4, "f8", ValueError, "multiple of 8"),
    (0, -4, "f8", ValueError, "negative"),
    (0, 1 << 60, "f8", ValueError, "beyond the memory"),
    (0, 4, "O", TypeError, "Python objects"),
    (0, 1 << 30, "u1", strata.RegistrationError, "nothing is allocated"),
])  # fmt: skip
def test_from_address_refuses(address, shape, dtype, error, text):
    x = strata.zeros(4)
    if isinstance(address, int) and 0 <= address < 8:
        address += strata.address(x)
    with pytest.raises(error, match=text):
        strata.from_address(address, shape, dtype)
