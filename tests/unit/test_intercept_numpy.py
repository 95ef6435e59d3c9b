"""numpy's own behaviours, on arrays that are fabric memory without its knowing."""

import gc
import io
import pickle
import tracemalloc
import weakref

import numpy as np
import pytest
from intercepting import gives_all_back, job  # noqa: F401

import strata

KIB = 1 << 10


def numbers(n=5000):
    return np.random.default_rng(7).normal(size=n)


def saved(x):
    file = io.BytesIO()
    np.save(file, x)
    file.seek(0)
    return np.load(file)


def many_loaded():
    file = io.BytesIO()
    np.savez_compressed(file, a=numbers(), b=np.arange(3000))
    file.seek(0)
    with np.load(file) as found:
        return np.concatenate([found["a"], found["b"]])


def text_loaded():
    file = io.StringIO("\n".join(f"{i} {i * 0.5}" for i in range(4000)))
    return np.loadtxt(file)


def structured():
    x = np.zeros(3000, [("key", "i4"), ("value", "f8", (3,)), ("name", "S5")])
    x["key"] = np.arange(3000) % 7
    x["value"] = np.arange(9000).reshape(-1, 3)
    x["name"] = b"abc"
    return x[np.argsort(x["key"], kind="stable")]


def masked():
    x = np.ma.masked_less(numbers(), 0.0)
    x[3] = np.ma.masked
    return (x * 2 + np.ma.ones(5000)).filled(-1)


def objects():
    x = np.array([[i, str(i)] for i in range(2000)], dtype=object)
    x = np.sort(np.concatenate([x[:, 0], x[::-1, 0]]))
    x[5] = None
    return x


def setitem():
    x = numbers()
    x[x > 0] = np.clip(x[x > 0], 0, 1)
    x[[1, 2, 3]] += 1
    return np.insert(np.delete(x, slice(0, 50)), 10, numbers(1000))


BEHAVIOURS = {
    "sort": lambda: np.sort(numbers()[::2]),
    "sort axis": lambda: np.sort(numbers(6000).reshape(60, 100), axis=0),
    "argsort": lambda: np.argsort(numbers().reshape(2, -1).T, axis=0, kind="stable"),
    "partition": lambda: np.sort(np.partition(numbers(), 700)[:700]),
    "searchsorted": lambda: np.searchsorted(np.sort(numbers()), numbers(3000)[::-1]),
    "concatenate": lambda: np.concatenate([numbers(), numbers(3000)[::-1]]),
    "stack": lambda: np.vstack([numbers(), numbers()]).T.copy(order="K"),
    "fft": lambda: np.fft.irfft(np.fft.rfft(numbers(4096))),
    "linalg": lambda: np.linalg.solve(np.eye(100) * 2, numbers(100)) @ numbers(10_000).reshape(100, 100),
    "einsum": lambda: np.einsum("ij,jk->ki", numbers(2500).reshape(50, 50), np.eye(50)),
    "unique": lambda: np.unique(np.round(numbers(), 2), return_counts=True)[1],
    "astype": lambda: numbers().astype("f2").astype(">f4").byteswap(),
    "pickle": lambda: pickle.loads(pickle.dumps(numbers(), protocol=2)),
    "pickle out of band": lambda: pickle.loads(pickle.dumps(numbers(), protocol=5)),
    "pickle swapped": lambda: pickle.loads(pickle.dumps(numbers().astype(">f8"), protocol=2)),
    "pickle objects": lambda: pickle.loads(pickle.dumps(objects())),
    "save and load": lambda: saved(numbers()),
    "load structured": lambda: saved(structured()),
    "load many": many_loaded,
    "loadtxt": text_loaded,
    "fromiter": lambda: np.fromiter((i * i for i in range(30_000)), dtype="i8"),
    "fromiter counted": lambda: np.fromiter(range(30_000), dtype="i8", count=30_000),
    "fromstring": lambda: np.fromstring(" ".join(map(str, range(20_000))), sep=" "),
    "frombuffer": lambda: np.frombuffer(numbers().tobytes()).copy(),
    "structured": structured,
    "masked": masked,
    "objects": objects,
    "strings": lambda: np.array([f"word {i}" for i in range(3000)]),
    "bytes": lambda: np.char.upper(np.array([b"ab", b"c"] * 2000)),
    "long strings": lambda: np.array([f"word {i}" for i in range(3000)], dtype=np.dtypes.StringDType()),
    "dates": lambda: np.arange("2020-01", "2400-01", dtype="M8[M]"),
    "setitem": setitem,
    "cumulated": lambda: np.cumsum(np.add.outer(numbers(100), numbers(60)), axis=1),
    "where": lambda: np.where(numbers() > 0, 1, numbers()),
    "random": lambda: np.random.default_rng(3).permutation(np.arange(20_000)),
    "histogram": lambda: np.histogram(numbers(), bins=2000)[0],
    "nothing": lambda: np.zeros((0, 3)).sum(axis=1),
    "scalars": lambda: np.array(5.0) + np.float64(3),
    "padded": lambda: np.pad(numbers(2500).reshape(50, 50), 3, mode="reflect"),
    "nditer": lambda: np.array([x.sum() for x in np.nditer(numbers(), flags=["external_loop", "buffered"])]),
}


@pytest.mark.parametrize("least", [0, KIB])
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_numpy_behaves_as_ever(name, least):
    want = BEHAVIOURS[name]()
    with strata.intercept(least):
        got = BEHAVIOURS[name]()
        again = BEHAVIOURS[name]()  # in memory that has been used
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(again, want)


def test_objects_keep_their_references():
    class Thing:
        pass

    things = [Thing() for _ in range(1000)]
    alive = [weakref.ref(thing) for thing in things]
    with strata.intercept(0):
        x = np.empty(1000, dtype=object)
        assert strata.is_fabric(x) and x[0] is None  # memory as it came would be wild pointers
        x[:] = things
        things.clear()
        x[500:] = None
        assert all(ref() is thing for ref, thing in zip(alive, x, strict=False))
        assert [ref() is not None for ref in alive] == [True] * 500 + [False] * 500
    del x
    assert not any(ref() for ref in alive)
    with strata.intercept(0), pytest.raises(TypeError, match="Python objects"):
        strata.world().all_reduce(np.empty(1000, dtype=object))


def test_subclasses_and_views_live_as_long_as_they_are_used():
    class Mine(np.ndarray):
        pass

    with strata.intercept():
        x = np.arange(30_000.0).view(Mine)
        view = np.lib.stride_tricks.sliding_window_view(x, 3)[5::7]
        raw = memoryview(np.arange(10_000))
    del x
    gc.collect()
    assert view[0, 0] == 5 and raw[9_999] == 9_999


def test_files_are_read_without_the_lock(tmp_path):
    file = tmp_path / "numbers.txt"
    file.write_text(" ".join(map(str, range(200_000))))
    want = np.arange(200_000.0)
    for least in (0, KIB, 1 << 18, 1 << 20, 1 << 30):  # resized in the fabric, into it, below it
        with strata.intercept(least):
            got = np.fromfile(file, sep=" ")
        assert strata.is_fabric(got) == (got.nbytes >= least)
        np.testing.assert_array_equal(got, want)


def test_tracemalloc_sees_intercepted_arrays():
    domain = np.lib.tracemalloc_domain
    tracemalloc.start()
    try:
        with strata.intercept():
            x = np.zeros(100_000)
            x.resize(200_000, refcheck=False)
        found = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, domain)])
        assert max(t.size for t in found.traces) == x.nbytes
        del x
        found = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, domain)])
        assert all(t.size < 1_600_000 for t in found.traces)
    finally:
        tracemalloc.stop()
