"""Each statistic of the allocator beside a plain model of it."""

import random

import pytest

from strata import errors
from strata._core.fakepages import FakePages

MIB = 1 << 20
PAGE = 2 * MIB


def rounded(nbytes):
    unit = 64 if nbytes <= 4096 else 512 if nbytes < MIB else 4096 if nbytes < PAGE else PAGE
    return max(unit, -(-nbytes // unit) * unit)


class Figure:
    """One statistic of the model: what it is after each step gives its peak and its sums."""

    def __init__(self):
        self.now = self.peak = self.added = 0

    def set(self, value):
        self.added += max(0, value - self.now)
        self.now = value
        self.peak = max(self.peak, value)

    def expect(self, stats, name):
        assert stats[name + ".current"] == self.now, name
        assert stats[name + ".peak"] == self.peak, name
        assert stats[name + ".allocated"] == self.added, name
        assert stats[name + ".freed"] == self.added - self.now, name


class Model:
    """Statistics from the live allocations and the walk, in plain Python, after every step.

    The walk says which pages are mapped, which no list of allocations tells; that the walk is
    right is what tests/model/test_heap_model.py is for.
    """

    NAMES = ("allocation", "allocated_bytes", "requested_bytes", "reserved_bytes", "segment", "inactive_split",
             "inactive_split_bytes")  # fmt: skip

    def __init__(self, heap):
        self.heap = heap
        self.live = {}
        self.figures = {f"{n}.{p}": Figure() for n in self.NAMES for p in ("small_pool", "large_pool", "all")}

    def look(self):
        now = dict.fromkeys(self.figures, 0)
        for nbytes in self.live.values():
            pool = "small_pool" if rounded(nbytes) < PAGE else "large_pool"
            now[f"allocation.{pool}"] += 1
            now[f"allocated_bytes.{pool}"] += rounded(nbytes)
            now[f"requested_bytes.{pool}"] += nbytes
        end = None
        for va, size, _, kind, _, _ in self.heap.walk():
            if kind == "chunk":
                now["segment.small_pool"] += 1
                now["reserved_bytes.small_pool"] += size
                now["inactive_split_bytes.small_pool"] += size
                end = None
            elif kind in ("run", "cached"):
                now["segment.large_pool"] += va != end
                now["reserved_bytes.large_pool"] += size
                end = va + size
            else:
                now["inactive_split.small_pool"] += kind == "hole"
        now["inactive_split_bytes.small_pool"] -= now["allocated_bytes.small_pool"]
        for name in self.NAMES:
            now[f"{name}.all"] = now[f"{name}.small_pool"] + now[f"{name}.large_pool"]
        for name, value in now.items():
            self.figures[name].set(value)

    def expect(self):
        stats = self.heap.stats()
        for name, figure in self.figures.items():
            figure.expect(stats, name)
        for pool in ("small_pool", "large_pool", "all"):
            for what in ("current", "peak", "allocated", "freed"):
                assert stats[f"active.{pool}.{what}"] == stats[f"allocation.{pool}.{what}"]
                assert stats[f"active_bytes.{pool}.{what}"] == stats[f"allocated_bytes.{pool}.{what}"]


@pytest.mark.parametrize("seed", range(6))
def test_every_figure_against_a_model(seed):
    """One mapping or giving back at most in a step, so that a look after it sees every change."""
    rng = random.Random(seed)
    pages = FakePages(512, 64)
    heap = pages.heap(1000 * PAGE)
    model = Model(heap)
    for _ in range(400):
        step = rng.random()
        if step < 0.55:
            nbytes = rng.choice([0, 1, 64, 5000, 100_000, MIB, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, rng.randrange(PAGE)])
            try:
                va = heap.alloc(nbytes)[0]
            except errors.FabricMemoryError:
                continue
            model.live[va] = nbytes
        elif step < 0.93 and model.live:
            va = rng.choice(list(model.live))
            heap.free(va)
            del model.live[va]
        elif step < 0.97:
            cached = heap.stats()["cached_bytes"]
            heap.trim(max(0, cached - PAGE))
        else:
            heap.reset_peaks()
            for figure in model.figures.values():
                figure.peak = figure.now
        if heap.stats()["num_alloc_retries"]:
            break  # a whole cache went in one step
        model.look()
        model.expect()
        assert heap.check() == 0
    stats = heap.stats()
    assert stats["num_device_alloc"] > 10 and stats["remaps"] > 0  # else this has shown little
    assert pages.extended * PAGE == stats["remapped_bytes"]


def test_counters_of_the_provider():
    pages = FakePages(64, 8)
    heap = pages.heap(100 * PAGE)
    a, b = heap.alloc(4 * PAGE)[0], heap.alloc(PAGE)[0]
    heap.free(a)
    assert heap.alloc(2 * PAGE)[0] == a
    heap.free(a)
    heap.trim()
    stats = heap.stats()
    assert (stats["num_device_alloc"], stats["num_device_free"], stats["remaps"]) == (2, 1, 0)
    heap.alloc(7 * PAGE)
    with pytest.raises(errors.FabricMemoryError):
        heap.alloc(1 << 40)
    with pytest.raises(errors.FabricMemoryError):
        heap.alloc(PAGE)
    heap.free(b)
    heap.alloc(100)  # from the cache
    stats = heap.stats()
    assert (stats["num_ooms"], stats["num_alloc_retries"], stats["num_device_alloc"]) == (2, 0, 3)
    with pytest.raises(errors.InvalidArgument):
        heap.free(b + 64 * 100)
    assert heap.stats()["bad_frees"] == 1


def test_retries_are_counted():
    heap = FakePages(64, 4).heap(100 * PAGE)
    held = [heap.alloc(PAGE)[0] for _ in range(4)]
    heap.free(held[0])
    heap.free(held[2])
    heap.alloc(2 * PAGE)
    stats = heap.stats()
    assert (stats["num_alloc_retries"], stats["num_device_free"], stats["num_ooms"]) == (1, 2, 0)
