"""Arrays of fabric memory beside numpy's own: contents, dtypes, shapes, lifetime."""

import copy
import gc
import pickle
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from strata import bootstrap, errors
from strata._core import heap as heap_module
from strata._core import memory
from strata.fabric import allocator, arrays

PAGE = 1 << 21
LIKES = [arrays.empty_like, arrays.zeros_like, arrays.ones_like, lambda x, **k: arrays.full_like(x, 1, **k)]


@pytest.fixture(scope="module", autouse=True)
def job():
    """A job of one die in this process, that later tests do not see."""
    context = bootstrap.init()
    yield context
    bootstrap.finalize()
    bootstrap.forget()


@pytest.fixture(autouse=True)
def gives_all_back(job):
    """Whatever a test does, its memory is free after it, and the heap is sound."""
    heap = memory.heap_of(job)
    before = heap.stats()
    yield
    if heap.stats()["allocation.all.current"] != before["allocation.all.current"]:
        gc.collect()
    after = heap.stats()
    for name in ("allocation.all.current", "allocated_bytes.all.current", "requested_bytes.all.current", "bad_frees",
                 "unmap_errors"):
        assert after[name] == before[name], name
    assert heap.check() == 0


def plain(x, shape, dtype):
    """A C-ordered, writable ndarray that looks as numpy's own, in the fabric."""
    assert type(x) is np.ndarray
    assert x.dtype == dtype and x.shape == shape
    assert x.flags.c_contiguous and x.flags.aligned and x.flags.writeable and not x.flags.owndata
    assert type(x.base) is memory.Block
    assert arrays.is_fabric(x) and arrays.owner(x) == 0
    assert arrays.address(x) == x.__array_interface__["data"][0] == x.base.address
    return x


DTYPES = [
    np.dtype(d)
    for d in ("?", "b", "u1", "i2", "<u2", ">u2", "i4", "u8", "f2", "f4", "f8", ">f8", "g", "F", "D", "S5", "U3", "V7")
] + [
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e5m2),
    np.dtype([("a", "i4"), ("b", "f8", (2, 3)), ("c", "S3")]),
    np.dtype([("a", "u1"), ("b", "f8")], align=True),
    np.dtype("M8[ns]"),
    np.dtype("m8[us]"),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 4), (2, 0, 5), (1, 1, 1, 7)], ids=str)
def test_as_numpy(dtype, shape):
    plain(arrays.empty(shape, dtype), shape, dtype)
    assert plain(arrays.zeros(shape, dtype), shape, dtype).tobytes() == np.zeros(shape, dtype).tobytes()
    source = np.frombuffer(np.random.default_rng(1).bytes(1000 * dtype.itemsize), dtype)
    source = source[: int(np.prod(shape))].reshape(shape)
    made = plain(arrays.array(source), shape, dtype)
    for name in dtype.names or [...]:  # what pads a structure is not copied, as in numpy
        assert made[name].tobytes() == source[name].tobytes()
    if dtype.kind not in "SUVMm":
        assert np.array_equal(plain(arrays.ones(shape, dtype), shape, dtype), np.ones(shape, dtype))


@given(
    dtype=st.one_of(hnp.scalar_dtypes(), hnp.array_dtypes(), hnp.nested_dtypes(max_leaves=5)),
    shape=hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=6),
)
def test_any_dtype_and_shape(dtype, shape):
    if dtype.hasobject:
        with pytest.raises(TypeError):
            arrays.empty(shape, dtype)
        return
    want = np.zeros(shape, dtype)
    plain(arrays.zeros(shape, dtype), want.shape, want.dtype)


@pytest.mark.parametrize("dtype", ["S", "U", "S0", "U0", "V", ("f4", (2, 3)), None, float, "f4", np.int16])
def test_dtype_spelled_as_for_numpy(dtype):
    want = np.zeros((3, 2), dtype)
    plain(arrays.zeros((3, 2), dtype), want.shape, want.dtype)


@pytest.mark.parametrize(
    "shape", [5, np.int64(5), np.array(5), [2, 3], (2, np.uint8(3)), np.array([2, 3]), range(1, 4)]
)
def test_shape_spelled_as_for_numpy(shape):
    assert arrays.empty(shape).shape == np.empty(shape).shape


@pytest.mark.parametrize(
    "shape",
    [-1, (3, -1), (0, -1), 2**63, (2**62, 2), (2**40, 2**40), (2**32, 2**32, 2**32), 2**60, 2**64, (0, 2**62, 2**62),
     (1,) * 65],
    ids=lambda s: str(s)[:30],
)
def test_shapes_that_cannot_be(shape):
    with pytest.raises(ValueError):
        np.empty(shape)
    with pytest.raises(ValueError) as info:
        arrays.empty(shape)
    assert not isinstance(info.value, MemoryError)


@pytest.mark.parametrize("shape", [1.5, (2, 1.0), True, None, "3", (None,), object()], ids=str)
def test_shapes_of_the_wrong_type(shape):
    with pytest.raises(TypeError):
        arrays.empty(shape)


@pytest.mark.parametrize("nbytes", [1 << 45, 1 << 62, (1 << 63) - 1])
def test_too_large_for_the_share(job, nbytes):
    with pytest.raises(errors.FabricMemoryError, match="--hbm") as info:
        arrays.empty(nbytes, "u1")
    error = pickle.loads(pickle.dumps(info.value))
    assert isinstance(error, MemoryError) and error.ranks == (0,)
    assert error.needed_bytes == -(-nbytes // PAGE) * PAGE > error.available_bytes
    assert error.available_bytes == min(error.limits.values())
    assert error.limits["rank 0's HBM"] == job.frames_left * PAGE


@pytest.mark.parametrize("dtype", ["O", [("a", "i4"), ("b", "O")], ("O", (2,)), np.dtypes.StringDType()], ids=str)
def test_references_are_refused(dtype):
    for make in (arrays.empty, arrays.zeros, arrays.ones):
        with pytest.raises(TypeError, match="references"):
            make(3, dtype)
    with pytest.raises(TypeError, match="references"):
        arrays.array(np.empty(3, dtype))
    with pytest.raises(TypeError, match="references"):
        arrays.full(3, None)
    with pytest.raises(TypeError):
        arrays.empty(3, "no such type")


@pytest.mark.parametrize("order", ["F", "K", "A", "c", None, 1])
def test_order_is_c(order):
    x = np.ones((2, 3))
    for make in (arrays.empty, arrays.zeros, arrays.ones, lambda s, order: arrays.full(s, 1, order=order),
                 lambda s, order: arrays.array(x, order=order)):
        with pytest.raises(ValueError, match="C order"):
            make((2, 3), order=order)
    for make in LIKES:
        with pytest.raises(ValueError, match="C order"):
            make(x, order=order)


@pytest.mark.parametrize("make", LIKES)
def test_like(make):
    prototypes = [
        np.asfortranarray(np.arange(24, dtype="f4").reshape(2, 3, 4)),
        np.arange(24)[::-2],
        np.float32(3),
        [[1, 2], [3, 4]],
        np.ma.masked_array([1, 2, 3], [0, 1, 0]),
        np.arange(3.0).view(np.recarray),
        arrays.empty((3, 2), "u1"),
    ]
    for x in prototypes:
        want = np.asarray(x)
        plain(make(x), want.shape, want.dtype)
        plain(make(x, dtype="i2", shape=(5,)), (5,), np.dtype("i2"))
    assert np.array_equal(arrays.zeros_like(prototypes[0]), np.zeros((2, 3, 4)))
    assert np.array_equal(arrays.ones_like(prototypes[0]), np.ones((2, 3, 4)))
    assert np.array_equal(arrays.full_like(prototypes[0], 7.9, "i4"), np.full((2, 3, 4), 7))


def test_full():
    assert np.array_equal(plain(arrays.full(3, 7), (3,), np.full(3, 7).dtype), np.full(3, 7))
    assert np.array_equal(plain(arrays.full((2, 3), [1.5, 2, 3]), (2, 3), np.dtype("f8")), np.full((2, 3), [1.5, 2, 3]))
    assert np.array_equal(arrays.full((), 2, "u1"), 2)
    assert np.isnan(arrays.full(2, np.nan, ml_dtypes.bfloat16).astype("f4")).all()
    assert arrays.full(0, "abc").dtype == np.dtype("U3")
    with pytest.raises(ValueError):
        arrays.full((2, 3), [1, 2])  # and nothing is lost: the fixture counts
    with pytest.raises(ValueError):
        arrays.full(2, "word", "f8")


def test_array_copies():
    source = np.arange(6.0).reshape(2, 3)
    made = arrays.array(source.T)
    assert made.flags.c_contiguous and np.array_equal(made, source.T)
    made[0, 0] = 99
    assert source[0, 0] == 0
    again = arrays.array(made)
    assert not np.shares_memory(again, made)
    assert arrays.array(3, ndmin=3).shape == (1, 1, 1)
    assert np.array_equal(arrays.array([[1, 2], [3, 4]], "f4"), np.array([[1, 2], [3, 4]], "f4"))
    assert type(arrays.array(np.ma.masked_array([1, 2], [0, 1]))) is np.ndarray
    with pytest.raises(ValueError):
        arrays.array([[1, 2], [3]])


@pytest.mark.parametrize(
    ("nbytes", "alignment"),
    [(0, 64), (1, 64), (100_000, 64), ((1 << 20) - 1, 64), (1 << 20, 4096), (PAGE - 1, 4096), (PAGE, PAGE),
     (3 * PAGE + 5, PAGE)],
)
def test_alignment(nbytes, alignment):
    held = [arrays.empty(nbytes, "u1") for _ in range(5)]
    for x in held:
        assert arrays.address(x) % alignment == 0
    assert len({arrays.address(x) for x in held}) == 5


def test_zeros_of_used_memory():
    for nbytes in (64, 5000, 300_000, 1 << 20, 3 * PAGE):
        for _ in range(3):
            x = arrays.empty(nbytes, "u1")
            x[...] = 0xAA
            where = arrays.address(x)
            del x
            y = arrays.zeros(nbytes, "u1")
            assert arrays.address(y) == where  # else this tests nothing
            assert not y.any()
            del y


def test_recognised_by_pointer():
    x = arrays.zeros((4, 6), "i4")
    for view in (x[1:], x.T, x[::-1, ::2], x[0, 0], x[2:2], x[4:], x.reshape(-1)[5:5], x.view("u1"), x.ravel()[None],
                 np.asarray(memoryview(x)), memoryview(x), x.view(np.recarray), np.broadcast_to(x, (3, 4, 6))):
        if isinstance(view, np.generic):
            assert not arrays.is_fabric(view)  # a scalar is a copy
            continue
        assert arrays.is_fabric(view) and arrays.owner(view) == 0
        assert arrays.address(x) <= arrays.address(view) <= arrays.address(x) + x.nbytes
    for other in (np.zeros(3), x.copy(), x + 1, np.empty(0), b"bytes", memoryview(b"a"), [1], 1, None, "text",
                  np.float64(1)):
        assert not arrays.is_fabric(other)
        for ask in (arrays.owner, arrays.address):
            with pytest.raises(ValueError, match="not in fabric memory"):
                ask(other)


def test_copies_are_ordinary():
    x = arrays.array(np.arange(10.0))
    pickles = [pickle.loads(pickle.dumps(x, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    for y in (*pickles, copy.copy(x), copy.deepcopy(x), x.copy()):
        assert not arrays.is_fabric(y) and np.array_equal(x, y) and y.flags.writeable


def test_last_view_gives_back(job):
    heap = memory.heap_of(job)
    start = heap.stats()["allocation.all.current"]

    def live():
        return heap.stats()["allocation.all.current"] - start

    x = arrays.zeros((100, 100))
    views = [x[3:], x.T, memoryview(x), x.view("u1")[::7], iter(x), x.flat]
    del x
    while views:
        assert live() == 1
        views.pop()
        gc.collect()
    assert live() == 0
    cycle = [arrays.zeros(10)]
    cycle.append(cycle)
    gone = weakref.ref(cycle[0])
    del cycle
    gc.collect()
    assert gone() is None and live() == 0


def test_not_made_by_hand_nor_resized():
    for kind in (memory.Block, heap_module.Heap):
        with pytest.raises(TypeError):
            kind()
    with pytest.raises(TypeError):
        type("Mine", (memory.Block,), {})
    x = arrays.zeros(10)
    with pytest.raises(ValueError):
        x.resize(20, refcheck=False)
    assert "fabric memory" in repr(x.base) and x.base.nbytes == 80
    with pytest.raises(AttributeError):
        x.base.address = 1


def test_small_arrays_share_pages(job):
    heap = memory.heap_of(job)
    heap.trim()
    before = heap.stats()["reserved_bytes.all.current"]
    held = [arrays.full(100, i % 251, "u1") for i in range(10_000)]
    assert heap.stats()["reserved_bytes.all.current"] - before <= 2 * PAGE  # 1.28 MB
    assert all((x == i % 251).all() for i, x in enumerate(held))
    assert len({arrays.address(x) for x in held}) == len(held)


def test_a_thousand_cycles_leave_nothing(job):
    heap = memory.heap_of(job)
    heap.trim()
    start, frames = heap.stats(), job.frames_left
    rng = np.random.default_rng(7)
    for _ in range(1000):
        held = [arrays.empty(int(n), "u1") for n in rng.integers(0, 200_000, 5)]
        held += [arrays.empty(int(rng.integers(PAGE, 3 * PAGE)), "u1")]
        rng.shuffle(held)
        del held
    heap.trim()
    end = heap.stats()
    for name in ("allocation.all.current", "allocated_bytes.all.current", "reserved_bytes.all.current", "cached_bytes"):
        assert end[name] == start[name], name
    assert job.frames_left == frames
    peak = start["reserved_bytes.all.peak"]
    assert end["reserved_bytes.all.peak"] <= start["reserved_bytes.all.current"] + max(peak, 8 * PAGE)


def test_cache_keeps_pages_and_gives_them_back(job):
    allocator.empty_cache()
    first = arrays.empty(3 * PAGE, "u1")
    where, frames = arrays.address(first), job.frames_left
    del first
    assert job.frames_left == frames and allocator.memory_stats()["cached_bytes"] == 3 * PAGE
    again = arrays.empty(3 * PAGE, "u1")
    assert arrays.address(again) == where
    del again
    allocator.empty_cache()
    assert job.frames_left == frames + 3 and allocator.memory_stats()["cached_bytes"] == 0


def test_threads_allocate_and_free_each_others():
    stop = threading.Event()
    shared = [None] * 64
    failures = []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            for i in range(1500):
                n = int(rng.integers(0, 5000)) if i % 50 else int(rng.integers(0, 2 * PAGE))
                x = arrays.full(n, seed, "u1") if i % 2 else arrays.zeros(n, "u1")
                assert (x == (seed if i % 2 else 0)).all()
                k = int(rng.integers(0, len(shared)))
                shared[k] = x  # the one that was there dies here, whoever made it
        except BaseException as error:
            failures.append(error)
            stop.set()

    threads = [threading.Thread(target=work, args=(i + 1,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_collection_inside_an_allocation():
    """The collector may run, and free arrays, at any object that is made, also in empty()."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for i in range(2000):
            cycle = [arrays.empty(i), None]
            cycle[1] = cycle
    finally:
        gc.set_threshold(*before)
    del cycle
