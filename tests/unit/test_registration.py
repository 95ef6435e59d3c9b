"""Registration of foreign memory in one die: which memory is what, and counting."""

import gc
import mmap
import os
import weakref

import numpy as np
import pytest
from registering import PAGE, N, gives_all_back, memfd, run, shared_array, the_job, windows  # noqa: F401

import strata
from strata import registration
from strata._core import foreign, heap
from strata.errors import RegistrationError


def same_memory(context, x):
    """Whether the fabric shows an array's very bytes at another address."""
    view = registration.alias(context, x)
    assert view is not None and strata.is_fabric(view) and not strata.is_fabric(x)
    assert view.shape == x.shape and view.dtype == x.dtype
    flat, other = x.reshape(-1), view.reshape(-1)
    if flat.flags.writeable:
        flat[[0, -1]] = 3, 4
        assert other[0] == 3 and other[-1] == 4
        other[[0, -1]] = 5, 6
        assert flat[0] == 5 and flat[-1] == 6
    else:
        np.testing.assert_array_equal(flat, other)
    return True


# ---- kinds -----------------------------------------------------------------------------------


def private_file(tmp_path):
    path = tmp_path / "private"
    path.write_bytes(bytes(8 * N))
    return np.memmap(path, "f8", mode="c")


PRIVATE = {
    "small": lambda tmp_path: np.zeros(10),
    "large": lambda tmp_path: np.zeros(N),
    "bytearray": lambda tmp_path: bytearray(5000),
    "bytes": lambda tmp_path: b"x" * 5000,
    "copy on write": private_file,
    "private map": lambda tmp_path: np.frombuffer(mmap.mmap(-1, 8 * N, mmap.MAP_PRIVATE), "f8"),
    "view": lambda tmp_path: np.zeros((100, 100))[3:50, ::2].T,
}


@pytest.mark.parametrize("name", PRIVATE)
def test_private_memory_is_staged(tmp_path, name):
    x = PRIVATE[name](tmp_path)
    with strata.register(x) as r:
        assert (r.kind, r.count) == ("staged", 1)
        assert r.reason == "it is private memory of this process, which no other process can map"
        low, high = registration._range(x)
        assert r.nbytes == high - low >= memoryview(x).nbytes
        counts = strata.stats()["registrations"]
        assert (counts["staged"], counts["staged_bytes"], counts["shared"]) == (1, r.nbytes, 0)
        assert "staged" in repr(r) and "private" in repr(r)
    assert r.count == 0 and "over" in repr(r)


def on_tmpfs(tmp_path):
    path = f"/dev/shm/test.{os.getpid()}"
    try:
        return np.memmap(path, "f8", mode="w+", shape=(N,))
    finally:
        os.unlink(path)


def named(tmp_path, mode="r+"):
    path = tmp_path / "named"
    np.arange(N, dtype="f8").tofile(path)
    return np.memmap(path, "f8", mode=mode)


SHARED = {
    "memfd": lambda tmp_path: shared_array(),
    "memfd from within": lambda tmp_path: np.frombuffer(memfd(8 * N, 3 * mmap.PAGESIZE), "f8"),
    "two bytes": lambda tmp_path: shared_array(2, "u1"),
    "a page": lambda tmp_path: shared_array(PAGE, "u1"),
    "odd begin": lambda tmp_path: shared_array()[1001:-77],
    "two dimensions": lambda tmp_path: shared_array().reshape(300, 1000),
    "named file": named,
    "read only": lambda tmp_path: named(tmp_path, "r"),
    "unlinked": on_tmpfs,
}


@pytest.mark.parametrize("name", SHARED)
def test_shared_files_are_shared(tmp_path, job, name):
    x = SHARED[name](tmp_path)
    with strata.register(x) as r:
        assert (r.kind, r.reason, r.nbytes) == ("shared", "", x.nbytes)
        assert same_memory(job, x)
        if x.size > 100:
            assert same_memory(job, x[7:13])
        assert registration.lease(job, x) is None
        if name == "read only":
            assert not registration.alias(job, x).flags.writeable
    assert registration.alias(job, x) is None


def test_shared_memory_of_multiprocessing():
    got = run("""
        from multiprocessing import shared_memory
        block = shared_memory.SharedMemory(create=True, size=1 << 20)
        try:
            x = np.ndarray(1000, "f8", block.buf, 80)
            r = strata.register(x)
            with strata.register(block.buf) as whole:
                counts = strata.stats()["registrations"]
                print(r.kind, r.nbytes, whole.kind, whole.nbytes == block.size, counts["shared"])
            strata.deregister(x)
        finally:
            block.unlink()
            del x, r, whole
            block.close()
    """)
    assert got == "shared 8000 shared True 2\n"


def test_fabric_memory_needs_nothing(job):
    x = strata.zeros(1000)
    live = heap.heap_of(job).stats()["allocation.all.current"]
    for y in (x, x[10:20], x[::3], memoryview(x)):
        with strata.register(y) as r:
            assert (r.kind, r.reason) == ("fabric", "")
            assert heap.heap_of(job).stats()["allocation.all.current"] == live
    with strata.intercept():
        z = np.zeros(1000)
    with strata.register(z) as r:
        assert r.kind == "fabric"


@pytest.mark.parametrize("empty", [np.empty(0), np.empty((3, 0, 2), "i2"), bytearray()])
def test_empty_memory(job, empty):
    with strata.register(empty) as r, strata.register(empty):
        assert (r.kind, r.nbytes, r.reason, r.count) == ("staged", 0, "it has no bytes", 2)
        assert registration.alias(job, np.empty(0)) is None


@pytest.mark.parametrize("wrong", [[1, 2], "text", None, 5, np.float64(3), np.array([None])])
def test_what_has_no_memory_of_its_own(wrong):
    with pytest.raises(TypeError):
        strata.register(wrong)


def test_a_file_that_was_cut_is_staged():
    fd = os.memfd_create("cut")
    os.ftruncate(fd, 8 * N)
    x = np.frombuffer(mmap.mmap(fd, 8 * N), "f8")
    os.ftruncate(fd, 4 * N)
    with strata.register(x) as r:
        assert (r.kind, r.reason) == ("staged", "its file is shorter than the mapping")
    with strata.register(x[: N // 4]) as r:
        assert r.kind == "shared"
    os.close(fd)


def test_more_files_than_a_die_has_room_for():
    arrays = [shared_array(100) for _ in range(foreign.SLOTS + 2)]
    held = [strata.register(x) for x in arrays]
    assert [r.kind for r in held] == ["shared"] * foreign.SLOTS + ["staged"] * 2
    assert held[-1].reason == f"this die shares {foreign.SLOTS} other files already"
    strata.deregister(held[3])
    again = strata.register(arrays[3])
    assert again.kind == "shared"
    for r in (*held[:3], *held[4:], again):
        strata.deregister(r)


def test_no_other_die_can_open_the_files_of_a_process_that_hides(monkeypatch, job):
    monkeypatch.setattr(foreign, "reachable", lambda context: False)
    with strata.register(shared_array()) as r:
        assert r.kind == "staged" and "cannot open this process's files" in r.reason


def test_mapping_without_a_name_or_descriptor(monkeypatch):
    x = shared_array()  # the mapping's own descriptor is hidden from the search
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path=".": [] if path == "/proc/self/fd" else real(path))
    monkeypatch.setattr(registration, "_MAP_FILES", "/nonexistent")
    with strata.register(x) as r:
        assert r.kind == "staged" and "can no longer be opened" in r.reason


# ---- counting --------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: np.zeros(N), shared_array, lambda: strata.zeros(N)])
def test_each_register_needs_one_deregister(job, make):
    x = make()
    pool = heap.heap_of(job)
    first = strata.register(x)
    before = pool.stats()["allocation.all.current"], len(windows())
    assert strata.register(x) is first and strata.register(x[:]) is first and first.count == 3
    assert (pool.stats()["allocation.all.current"], len(windows())) == before
    strata.deregister(x)
    strata.deregister(first)
    assert first.count == 1 and strata.stats()["registrations"][first.kind] == 1
    strata.deregister(x)
    for what in (x, first):
        with pytest.raises(RegistrationError, match="not registered, or deregistered as often"):
            strata.deregister(what)
    second = strata.register(x)
    assert second is not first and second.count == 1
    with pytest.raises(RegistrationError):
        strata.deregister(first)  # over, though its memory is registered again
    strata.deregister(second)


def test_overlapping_registrations_are_apart(job):
    x = np.arange(10_000.0)
    whole, left, inner = strata.register(x), strata.register(x[:6000]), strata.register(x[2000:3000])
    with pytest.raises(RegistrationError):
        strata.deregister(x[1:6000])
    strata.deregister(whole)
    assert registration.lease(job, x) is None and registration.lease(job, x[:10]) is not None
    strata.deregister(left)
    assert registration.lease(job, x[:10]) is None and registration.lease(job, x[2500:2600]) is not None
    strata.deregister(inner)


def test_memory_lives_as_long_as_it_is_registered():
    class Mine(np.ndarray):
        pass

    x = np.zeros(1000).view(Mine)
    gone = weakref.ref(x)
    r = strata.register(x)
    del x
    gc.collect()
    assert gone() is not None
    strata.deregister(r)
    gc.collect()
    assert gone() is None


def test_the_block_ends_with_an_exception():
    x = np.zeros(100)
    with pytest.raises(KeyError), strata.register(x):
        raise KeyError
    with pytest.raises(RegistrationError):
        strata.deregister(x)
