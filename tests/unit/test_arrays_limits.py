"""Limits of a host: memory cgroups of both versions, as files say them, and what an error says."""

import os
import tempfile

import pytest

from strata import bootstrap, errors
from strata._core import limits, memory, space
from strata.fabric import arrays

PAGE = 1 << 21


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))


def look(root, proc):
    (root / "proc").write_text(proc)
    return limits.cgroups(str(root / "proc"), str(root))


def test_version_2_itself_and_ancestors(tmp_path):
    tree(tmp_path, {
        "memory.max": "max\n", "memory.current": "900\n",
        "a/memory.max": "1000\n", "a/memory.current": "700\n", "a/memory.stat": "anon 1\ninactive_file 50\n",
        "a/b/memory.max": "800\n", "a/b/memory.current": "300\n",
    })  # fmt: skip
    groups = look(tmp_path, "0::/a/b\n")
    assert [os.path.relpath(g.limit, tmp_path) for g in groups] == ["a/b/memory.max", "a/memory.max"]
    free = limits.cgroup_free(groups)
    assert (free.free, free.total) == (350, 1000) and "a/memory.max" in free.name
    (tmp_path / "a/b/memory.current").write_text("790")
    assert limits.cgroup_free(groups).free == 10
    (tmp_path / "a/b/memory.current").write_text("900")  # over: the limit was lowered
    assert limits.cgroup_free(groups).free == 0
    (tmp_path / "a/b/memory.max").write_text("max")
    assert limits.cgroup_free(groups).total == 1000
    (tmp_path / "a/memory.max").unlink()
    assert limits.cgroup_free(groups) is None


def test_version_2_in_a_container(tmp_path):
    """The group's own files are at the root, under another path than the process is told."""
    tree(tmp_path, {"memory.max": 5000, "memory.current": 1000})
    assert limits.cgroup_free(look(tmp_path, "0::/../../kubepods/pod1\n")).free == 4000
    assert limits.cgroup_free(look(tmp_path, "0::/docker/0123\n")).free == 4000


def test_version_1(tmp_path):
    tree(tmp_path, {
        "memory/memory.limit_in_bytes": 9223372036854771712, "memory/memory.usage_in_bytes": 5,
        "memory/job/memory.limit_in_bytes": 2000, "memory/job/memory.usage_in_bytes": 1500,
        "memory/job/memory.stat": "inactive_file 1\ntotal_inactive_file 300\n",
    })  # fmt: skip
    groups = look(tmp_path, "9:cpu:/job\n4:memory,hugetlb:/job\n0::/\n")
    assert len(groups) == 1 and limits.cgroup_free(groups).free == 800


def test_no_cgroups(tmp_path):
    assert look(tmp_path, "0::/\n") == () and limits.cgroup_free(()) is None
    assert limits.cgroups(str(tmp_path / "nothing"), str(tmp_path)) == ()
    limits.cgroups()  # this host's, whatever they are


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.00 KiB"), (3 << 20, "3.00 MiB"), (5 << 29, "2.50 GiB"),
     (1 << 55, "32768.00 TiB")],
)
def test_human(nbytes, text):
    assert limits.human(nbytes) == text


def shortage(needed, hbm_free, groups=(), held=(), **more):
    with tempfile.TemporaryFile() as f:
        return limits.shortage(
            needed, needed, limits.Held(**dict(held)), rank=3, hbm_free=hbm_free, hbm_total=1 << 40, fd=f.fileno(),
            groups=groups, **more,
        )  # fmt: skip


def test_message_names_each_limit_that_is_short(tmp_path):
    tree(tmp_path, {"memory.max": 5 * PAGE, "memory.current": 3 * PAGE})
    groups = look(tmp_path, "0::/\n")
    error = shortage(3 * PAGE, 2 * PAGE, groups)
    assert "--hbm" in str(error) and "MemoryMax" in str(error) and "remount" not in str(error)
    assert error.available_bytes == 2 * PAGE and error.ranks == (3,) and "rank 3's HBM" in str(error)
    assert "--hbm" not in str(shortage(3 * PAGE, 3 * PAGE, groups))
    assert "MemoryMax" not in str(shortage(2 * PAGE, PAGE, groups))
    assert "remount" in str(shortage(1 << 60, 1 << 61))
    assert "try again" in str(shortage(PAGE, PAGE, groups))  # none of the limits explains it
    error = shortage(3 * PAGE, 9 * PAGE, limit=8 * PAGE, held={"reserved": 7 * PAGE, "cached": PAGE})
    assert error.limits["this die's limit"] == error.available_bytes == 2 * PAGE
    assert "STRATA_MEMORY_LIMIT" in str(error) and "--hbm" not in str(error)
    assert "2.00 MiB more are free pages of the cache" in str(error)
    assert "STRATA_MEMORY_LIMIT" not in str(shortage(3 * PAGE, 9 * PAGE, limit=8 * PAGE))
    assert "6.00 MiB are freed, and wait for peers" in str(shortage(PAGE, 0, quarantined=3 * PAGE))


def test_message_names_the_holders():
    held = {
        "kinds": [(PAGE, 2, "channels"), (6 * PAGE, 1, "array")],
        "largest": [limits.Holder(6 * PAGE, 0x1000, "array", "train.py:7"), limits.Holder(PAGE, 0x2000, "channel")],
    }
    error = shortage(PAGE, 0, held=held)
    assert "this die holds 14.00 MiB: 12.00 MiB in 1 array, 2.00 MiB in 2 channels; the largest 12.00 MiB of array " \
           "at 0x1000 from train.py:7, 2.00 MiB of channel at 0x2000; " in str(error)  # fmt: skip
    assert error.holders == [(6 * PAGE, 0x1000, "array", "train.py:7"), (PAGE, 0x2000, "channel", None)]
    assert "run with PYTHONTRACEMALLOC=10 to see" in str(error) and "too few frames" not in str(error)
    assert "PYTHONTRACEMALLOC" not in str(shortage(PAGE, 0, held=held | {"frames": True}))
    assert "too few frames now" in str(shortage(PAGE, 0, held=held | {"frames": False}))
    assert "holds" not in str(shortage(PAGE, 0)) and "PYTHONTRACEMALLOC" not in str(shortage(PAGE, 0))


def test_message_of_a_pool():
    error = shortage(5 * PAGE, 1 << 40, pool=16 * PAGE, held={"cached": 6 * PAGE, "piece": 4 * PAGE})
    assert "the pool of 32.00 MiB (registration=pool) has 12.00 MiB in free pages" in str(error)
    assert "the largest free piece is 8.00 MiB" in str(error) and "STRATA_POOL" in str(error)
    assert "--hbm" not in str(error) and "/dev/shm" not in str(error)
    assert error.limits == {"the pool": 4 * PAGE} and error.available_bytes == 4 * PAGE


def test_too_many_mappings(monkeypatch):
    monkeypatch.setattr(limits, "_mappings", lambda: (65_000, 65_530))
    assert "max_map_count" in str(shortage(PAGE, PAGE))
    monkeypatch.undo()
    now, most = limits._mappings()
    assert 10 < now < most


def test_cgroup_is_looked_at_before_pages_are_taken(tmp_path, monkeypatch):
    """Its limit would kill where others refuse, so it must not come to that."""
    tree(tmp_path, {"memory.max": 100 * PAGE, "memory.current": 97 * PAGE})
    groups = look(tmp_path, "0::/\n")
    monkeypatch.setattr(limits, "cgroups", lambda: groups)
    context = bootstrap.init()
    try:
        heap = memory.heap_of(context)
        assert context.heap is heap and space.current() is context
        frames = context.frames_left
        x = arrays.empty(3 * PAGE, "u1")  # an exact fit
        with pytest.raises(errors.FabricMemoryError, match="MemoryMax") as info:
            arrays.empty(3 * PAGE + 1, "u1")
        assert info.value.available_bytes == 3 * PAGE and context.frames_left == frames - 3
        (tmp_path / "memory.current").write_text(str(100 * PAGE))
        with pytest.raises(errors.FabricMemoryError):
            arrays.empty(1)
        del x
        assert heap.stats()["cached_bytes"] == 3 * PAGE
        y = arrays.empty(10)  # from the cache: no look, nothing taken
        with pytest.raises(errors.FabricMemoryError):
            arrays.empty(PAGE * 3)  # the cache is given back before it is refused
        assert heap.stats()["cached_bytes"] == 0
        (tmp_path / "memory.max").write_text("max")
        z = arrays.empty(50 * PAGE)
        del y, z
        assert heap.check() == 0
    finally:
        bootstrap.finalize()
        bootstrap.forget()
