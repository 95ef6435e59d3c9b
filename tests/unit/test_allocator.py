"""The allocator as users see it: statistics, snapshot, limit, pool, and who holds what."""

import os
import subprocess
import sys
import textwrap
import tracemalloc

import numpy as np
import pytest

import strata
from strata import bootstrap, errors
from strata._core import heap as heaps
from strata.fabric import allocator, arrays

MIB = 1 << 20
PAGE = 2 * MIB


@pytest.fixture(scope="module")
def job():
    """A job of one die in this process, that later tests do not see."""
    context = bootstrap.init()
    yield context
    bootstrap.finalize()
    bootstrap.forget()


def rounded(nbytes):
    unit = 64 if nbytes <= 4096 else 512 if nbytes < MIB else 4096 if nbytes < PAGE else PAGE
    return max(unit, -(-nbytes // unit) * unit)


def test_memory_stats(job):
    allocator.empty_cache()
    before = strata.memory_stats()
    x = arrays.empty(1000, "u1")
    stats = strata.memory_stats()

    def grown(name):
        return stats[name] - before[name]

    assert grown("requested_bytes.all.current") == grown("requested_bytes.small_pool.current") == 1000
    assert grown("allocated_bytes.all.current") == grown("active_bytes.small_pool.allocated") == 1024
    assert grown("allocation.all.current") == grown("active.all.allocated") == 1
    assert strata.memory_allocated() == stats["allocated_bytes.all.current"]
    assert strata.memory_reserved() == stats["reserved_bytes.all.current"]
    assert strata.max_memory_allocated() == stats["allocated_bytes.all.peak"] >= strata.memory_allocated()
    assert strata.max_memory_reserved() == stats["reserved_bytes.all.peak"] >= strata.memory_reserved()
    assert stats["hbm_bytes"] == stats["limit_bytes"] == job.hbm_bytes and stats["pool_bytes"] == 0
    assert stats["hbm_free_bytes"] == job.frames_left * PAGE
    assert stats["cache_limit_bytes"] == job.config.cache_bytes and stats["quarantined_bytes"] == 0
    for name in stats:
        assert f"``{name.split('.')[0]}``" in allocator.memory_stats.__doc__, name
    del x
    y = arrays.empty(3 * PAGE, "u1")
    del y
    assert strata.max_memory_allocated() >= 3 * PAGE
    strata.reset_peak_memory_stats()
    assert strata.max_memory_allocated() == strata.memory_allocated() < 3 * PAGE
    assert strata.stats()["memory"].keys() == stats.keys()
    strata.empty_cache(PAGE)
    assert strata.memory_stats()["cached_bytes"] == PAGE
    strata.empty_cache()
    assert strata.memory_stats()["cached_bytes"] == 0
    with pytest.raises(ValueError):
        strata.empty_cache(-1)
    with pytest.raises(TypeError, match="keep='2M': a whole number of bytes"):
        strata.empty_cache("2M")


def test_snapshot(job):
    strata.empty_cache()
    held = [arrays.empty(n, "u1") for n in (100, 5000, MIB, 3 * PAGE, PAGE + 1, 70)]
    del held[1], held[2]  # of 5000 bytes, and of 3 pages
    stats, segments = strata.memory_stats(), strata.memory_snapshot()
    assert len(segments) == stats["segment.all.current"]
    assert [s["address"] for s in segments] == sorted(s["address"] for s in segments)
    blocks = {}
    for segment in segments:
        at = segment["address"]
        assert segment["device"] == 0 and segment["is_expandable"] == (segment["segment_type"] == "large")
        for block in segment["blocks"]:
            assert block["address"] == at and "frames" not in block
            assert block["state"] in ("active_allocated", "inactive")
            assert ("kind" in block) == (block["state"] == "active_allocated") == (block["requested_size"] > 0)
            at += block["size"]
            blocks[block["address"]] = block
        assert at == segment["address"] + segment["total_size"]
        live = [b for b in segment["blocks"] if b["state"] == "active_allocated"]
        assert segment["allocated_size"] == segment["active_size"] == sum(b["size"] for b in live)
        assert segment["requested_size"] == sum(b["requested_size"] for b in live)
    for name, total in (("total_size", "reserved_bytes"), ("allocated_size", "allocated_bytes"),
                        ("requested_size", "requested_bytes")):  # fmt: skip
        for pool in ("small", "large"):
            found = sum(s[name] for s in segments if s["segment_type"] == pool)
            assert found == stats[f"{total}.{pool}_pool.current"]
    for x in held:
        block = blocks[arrays.address(x)]
        assert block["requested_size"] == x.nbytes and block["size"] == rounded(x.nbytes) and block["kind"] == "array"


def test_summary(job):
    x = arrays.empty(3 * PAGE, "u1")
    text = strata.memory_summary()
    assert "rank 0" in text and "64.00 GiB" in text and "allocated" in text and "mappings" in text
    assert max(map(len, text.splitlines())) < 110
    del x


def test_limit(job):
    strata.empty_cache()
    start = strata.memory_reserved()
    strata.set_limit(start + 4 * PAGE)
    try:
        assert strata.memory_stats()["limit_bytes"] == start + 4 * PAGE
        x = arrays.empty(4 * PAGE, "u1")  # an exact fit
        with pytest.raises(errors.FabricMemoryError, match="STRATA_MEMORY_LIMIT") as info:
            arrays.empty(PAGE, "u1")
        assert info.value.limits["this die's limit"] == info.value.available_bytes == 0
        assert "set_limit()" in str(info.value) and "--hbm" not in str(info.value)
        strata.set_limit(0)  # what is in use stays
        x[:] = 7
        del x
        assert strata.memory_stats()["cached_bytes"] == 4 * PAGE
        y = arrays.empty(4 * PAGE, "u1")  # and what is mapped may be used
        del y
        strata.set_limit(start + 2 * PAGE)
        assert strata.memory_reserved() == start + 2 * PAGE
        for wrong in (-1, 1 << 63):
            with pytest.raises(ValueError):
                strata.set_limit(wrong)
        for wrong in ("16G", 1.5):
            with pytest.raises(TypeError, match="a whole number of bytes is expected, such as 16 << 30"):
                strata.set_limit(wrong)
        assert strata.memory_stats()["limit_bytes"] == start + 2 * PAGE
    finally:
        strata.set_limit(None)
    assert strata.memory_stats()["limit_bytes"] == job.hbm_bytes
    arrays.empty(8 * PAGE, "u1")


def test_extension_keeps_addresses_and_frames(job):
    """What a cached run has stays mapped; only what is missing is taken from the HBM."""
    strata.empty_cache()
    x = arrays.full(3 * PAGE, 5, "u1")
    where, frames, before = arrays.address(x), job.frames_left, strata.memory_stats()
    del x
    y = arrays.empty(8 * PAGE, "u1")
    after = strata.memory_stats()
    assert arrays.address(y) == where and job.frames_left == frames - 5
    assert after["remaps"] - before["remaps"] == 1
    assert after["remapped_bytes"] - before["remapped_bytes"] == 5 * PAGE
    assert (y[: 3 * PAGE] == 5).all() and not y[3 * PAGE :].any()
    del y
    z = arrays.zeros(9 * PAGE, "u1")  # old pages and new ones
    assert arrays.address(z) == where and not z.any()
    del z
    strata.empty_cache()
    assert job.frames_left == frames + 3 and strata.memory_stats()["unmap_errors"] == 0


def test_where_allocations_were_made(job):
    tracemalloc.start(10)
    try:
        x = arrays.empty(5 * PAGE, "u1")
        line = sys._getframe().f_lineno - 1
        y = np.arange(10.0)
        z = strata.array(y)
        block = next(b for s in strata.memory_snapshot() for b in s["blocks"] if b["address"] == arrays.address(x))
        places = [(f["filename"], f["line"]) for f in block["frames"]]
        assert places[0][0].endswith("arrays.py") and (__file__, line) in places
        heap = heaps.heap_of(job)
        assert heap.place(arrays.address(x)) == f"{__file__}:{line}"
        assert heap.place(arrays.address(z)) == f"{__file__}:{line + 3}"
        with pytest.raises(errors.FabricMemoryError) as info:
            arrays.empty(1 << 50, "u1")
        assert f"10.00 MiB of array at {arrays.address(x):#x} from {__file__}:{line}" in str(info.value)
        assert info.value.holders[0] == (5 * PAGE, arrays.address(x), "array", f"{__file__}:{line}")
        assert "PYTHONTRACEMALLOC" not in str(info.value)
        held = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, heaps.DOMAIN)])
        assert sum(t.size for t in held.traces) == x.nbytes + z.nbytes
        address = arrays.address(x)
        del x, z
        held = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, heaps.DOMAIN)])
        assert not held.traces and heap.frames(address) is None
    finally:
        tracemalloc.stop()
    x = arrays.empty(10)
    assert heap.frames(arrays.address(x)) is None
    with pytest.raises(errors.FabricMemoryError, match="PYTHONTRACEMALLOC=10 to see where"):
        arrays.empty(1 << 50, "u1")


def test_where_intercepted_arrays_were_made(job):
    tracemalloc.start(10)
    try:
        with strata.intercept():
            x = np.ones(1_000_000)
            line = sys._getframe().f_lineno - 1
        assert heaps.heap_of(job).place(x.ctypes.data) == f"{__file__}:{line}"
        with pytest.raises(errors.FabricMemoryError) as info:
            arrays.empty(1 << 50, "u1")
        assert (8 * MIB, x.ctypes.data, "intercepted allocation", f"{__file__}:{line}") in info.value.holders
    finally:
        tracemalloc.stop()


def test_kinds_of_holders(job):
    heap = heaps.heap_of(job)
    va = heap.alloc(3 * PAGE, heaps.CHANNEL)[0]
    more = heap.alloc(PAGE, heaps.CHANNEL)[0]
    with pytest.raises(errors.FabricMemoryError) as info:
        arrays.empty(1 << 50, "u1")
    assert "8.00 MiB in 2 channels" in str(info.value) and f"6.00 MiB of channel at {va:#x}" in str(info.value)
    heap.free(va)
    heap.free(more)
    assert len(heaps.TAGS) == heaps.SDMA + 1
    for tag in (-1, len(heaps.TAGS)):
        with pytest.raises(ValueError):
            heap.alloc(1, tag)


# ---- whole processes -------------------------------------------------------------


def run(code, **environ):
    env = {k: v for k, v in os.environ.items() if not k.startswith("STRATA_")} | environ
    prelude = "import strata\nfrom strata import errors\nfrom strata.fabric import arrays\nPAGE = 1 << 21\n"
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", prelude + textwrap.dedent(code)],
        env=env, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def test_pool():
    run("""
        strata.init()
        context = strata.bootstrap.context()
        assert context.die_info(0)["pages_reserved"] == 8  # at start-up, before anybody asks
        x = strata.zeros(3 * PAGE, "u1")
        first = strata.memory_stats()
        assert first["pool_bytes"] == first["limit_bytes"] == strata.memory_reserved() == 8 * PAGE
        y, z = strata.zeros(2 * PAGE, "u1"), strata.zeros(100, "u1")
        last = strata.zeros(2 * PAGE, "u1")
        assert not x.any() and not last.any()
        del y
        try:
            strata.empty(3 * PAGE, "u1")
            raise AssertionError
        except errors.FabricMemoryError as error:
            text = str(error)
            assert "the pool of 16.00 MiB" in text and "has 4.00 MiB in free pages" in text, text
            assert "largest free piece is 4.00 MiB" in text and "make the pool larger (STRATA_POOL)" in text, text
            assert "6.00 MiB of array" in text and "--hbm" not in text and "cgroup" not in text, text
            assert error.limits == {"the pool": 2 * PAGE} and error.needed_bytes == 3 * PAGE
        del x, z, last
        strata.empty_cache()
        everything = strata.zeros(8 * PAGE, "u1")
        assert not everything.any()
        for s in strata.memory_snapshot():
            assert not s["is_expandable"]
        try:
            strata.set_limit(PAGE)
            raise AssertionError
        except errors.InvalidArgument as error:
            assert "STRATA_POOL" in str(error)
        end = strata.memory_stats()
        for name in ("num_device_alloc", "num_device_free", "hbm_free_bytes", "reserved_bytes.all.current"):
            assert end[name] == first[name], name
        assert end["num_device_alloc"] == 1 and end["num_ooms"] == 1
    """, STRATA_REGISTRATION="pool", STRATA_POOL="16M", STRATA_HBM="64M", STRATA_CACHE_BYTES="0")


@pytest.mark.parametrize(("environ", "words"), [
    ({"STRATA_HBM": "64M"}, ("a pool of 1.00 GiB does not fit into an HBM of 64.00 MiB", "lower STRATA_POOL")),
    ({"STRATA_POOL": "3M", "STRATA_MEMORY_LIMIT": "2M"}, ("STRATA_MEMORY_LIMIT", "the pool of 4.00 MiB")),
])  # fmt: skip
def test_pool_that_cannot_be(environ, words):
    run(f"""
        for ask in (strata.init, lambda: strata.empty(3)):
            try:
                ask()
                raise AssertionError
            except errors.ConfigError as error:
                assert all(word in str(error) for word in {words!r}), error
    """, STRATA_REGISTRATION="pool", **environ)


def test_limit_from_the_environment():
    run("""
        x = strata.empty(3 * PAGE, "u1")
        assert strata.memory_stats()["limit_bytes"] == 4 * PAGE
        try:
            strata.empty(2 * PAGE, "u1")
            raise AssertionError
        except MemoryError as error:
            assert "STRATA_MEMORY_LIMIT" in str(error) and error.available_bytes == PAGE
        strata.set_limit(5 * PAGE)
        y = strata.empty(2 * PAGE, "u1")
    """, STRATA_MEMORY_LIMIT="8M")


def test_tracing_from_the_environment():
    run("""
        x = strata.empty(3 * PAGE, "u1")
        try:
            strata.empty(1 << 50, "u1")
        except MemoryError as error:
            assert "from <string>:6" in str(error) and "PYTHONTRACEMALLOC" not in str(error), error
    """, PYTHONTRACEMALLOC="10")
    run("""
        x = strata.empty(3 * PAGE, "u1")
        try:
            strata.empty(1 << 50, "u1")
        except MemoryError as error:
            assert "PYTHONTRACEMALLOC=10" in str(error) and "too few frames" in str(error), error
    """, PYTHONTRACEMALLOC="1")
