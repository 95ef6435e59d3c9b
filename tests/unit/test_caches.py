"""From which size on plans are written past the caches."""

import numpy as np
import pytest

from strata._core import caches
from strata._core import cpus as cpus_of
from strata._core.caches import FALLBACK, cache_bytes, past_caches


def level(folder, index, level, size):
    at = folder / f"index{index}"
    at.mkdir()
    (at / "level").write_text(f"{level}\n")
    (at / "size").write_text(f"{size}\n")


@pytest.mark.parametrize("size, expected", [("2048K", 2 << 20), ("1M", 1 << 20), ("4096", 4096), ("0K", FALLBACK),
                                            ("", FALLBACK), ("much", FALLBACK)])  # fmt: skip
def test_cache_as_the_kernel_shows_it(tmp_path, size, expected):
    level(tmp_path, 0, 1, "48K")
    level(tmp_path, 2, 2, size)
    level(tmp_path, 3, 3, "266240K")
    assert cache_bytes(str(tmp_path)) == expected


def test_a_kernel_that_shows_no_cache(tmp_path):
    assert cache_bytes(str(tmp_path)) == FALLBACK == cache_bytes(str(tmp_path / "none"))


def units(*items):
    return np.array(list(items), [("bytes", "u4"), ("nsrc", "u2"), ("ndst", "u2")])


SHARES = [(2, 2, None, 1), (3, 2, None, 2), (8, 2, None, 4), (8, 64, None, 1), (8, 64, 2.5, 4), (8, 64, 0.5, 8),
          (0, 4, None, 0)]  # fmt: skip


@pytest.mark.parametrize("dies, cpus, granted, share", SHARES)
def test_what_is_moved_is_compared_with_a_dies_part_of_the_cache(monkeypatch, dies, cpus, granted, share):
    monkeypatch.setattr(caches.os, "cpu_count", lambda: cpus)
    monkeypatch.setattr(cpus_of, "quota", lambda: granted)
    caches.dies_per_cpu.cache_clear()
    try:
        assert caches.dies_per_cpu(dies) == share
        most = cache_bytes() // share if share else 1 << 31
        assert not past_caches(units((most // 4, 2, 1), (most // 16, 1, 3)), dies)
        assert past_caches(units((most // 2, 1, 1), (1, 1, 1)), dies) is bool(share)
    finally:
        caches.dies_per_cpu.cache_clear()
