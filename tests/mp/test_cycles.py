"""Many cycles of allocation and free leave a die's memory, and the file system, as they were.

The whole of it: ``python tools/soak.py --cycles 1000 --bytes 256M``.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from registration_cycles import cycles, measure, moe

from strata import testing

SOAK = Path(__file__).parents[2] / "tools" / "soak.py"
SLACK = 2 << 20  # bytes: what Python itself may keep


def play(pool, fn, *args):
    """(before, after), by die, of a loop; it has run a little before."""
    pool.run(fn, *args)
    pool.run(measure)
    before = pool.run(measure)
    pool.run(fn, *args)
    after = pool.run(measure)
    print(*zip(before, after, strict=True), sep="\n")
    return before, after


def check(before, after):
    for old, new in zip(before, after, strict=True):
        assert new["rss"] <= old["rss"] + SLACK and new["pss"] <= old["pss"] + SLACK
        for key in ("space", "descriptors", "mappings", "window", "frames"):
            assert new[key] <= old[key], key


@pytest.mark.parametrize("cache", [0, 1 << 28])
def test_allocating_and_freeing(cache):
    with testing.Pool(4, cache_bytes=cache) as pool:
        before, after = play(pool, cycles, 40, 16 << 20)
    check(before, after)
    grown = [new["log"] - old["log"] for old, new in zip(before, after, strict=True)]
    assert min(grown) >= (80 if cache == 0 else 1)  # it did map and unmap


@pytest.mark.parametrize("mode", ["just_in_time", "pool"])
def test_other_modes(mode):
    with testing.Pool(4, registration=mode, pool_bytes=256 << 20) as pool:
        check(*play(pool, cycles, 8, 16 << 20))


def test_sizes_that_change():
    with testing.Pool(4) as pool:
        check(*play(pool, moe, 5, 60))


def test_the_soak():
    """Some seconds of what runs for an hour, in which Python itself may still grow."""
    command = [sys.executable, SOAK, "--minutes", "0.05", "--every", "0.5", "--warm", "3", "--length", "40", "-n", "2",
               "--slack", "16"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    print(done.stdout, done.stderr)
    assert done.returncode == 0 and "nothing has grown" in done.stdout


def test_the_soak_sees_growth():
    spec = importlib.util.spec_from_file_location("soak", SOAK)
    soak = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(soak)
    flat = [dict.fromkeys(soak.COLUMNS, 100.0) for _ in range(12)]
    assert soak.grown(flat, 2, 2.0) == []
    for key in (*soak.BYTES, *soak.EXACT):
        step = 2.0 if key in (*soak.BYTES, "mappings") else 0.2
        lines = [{**line, key: 100 + step * k} for k, line in enumerate(flat)]
        assert [problem.split(":")[0] for problem in soak.grown(lines, 2, 2.0)] == [key]
