"""The heap against a plain model: every step, every byte, every counter."""

import ctypes

import hypothesis.strategies as st
import pytest
from hypothesis import note
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from strata import errors
from strata._core.fakepages import FakePages

MIB = 1 << 20
PAGE = 2 * MIB
SHARE = 12
PAGES = 256  # more than SHARE * (SHARE + 1): a free run of any length is always there


def rounded(nbytes):
    if nbytes <= 4096:
        unit = 64
    elif nbytes < MIB:
        unit = 512
    elif nbytes < PAGE:
        unit = 4096
    else:
        unit = PAGE
    return max(unit, -(-nbytes // unit) * unit)


def alignment(size):
    return PAGE if size >= PAGE else 4096 if size >= MIB else 64


def probes(nbytes):
    """Where contents are looked at: all of a small allocation, both ends of a large one."""
    n = min(nbytes, 600)
    return ((0, n), (nbytes - n, n))


def pattern(serial, at, n):
    """Bytes that tell allocations and positions in them apart."""
    return bytes((serial * 37 + i * 11 + (i >> 8)) & 0xFF for i in range(at, at + n))


sizes = st.one_of(
    st.integers(0, 300),
    st.integers(0, 20_000),
    st.sampled_from([0, 1, 64, 4096, 4097, MIB - 1, MIB, MIB + 1, PAGE - 4096, PAGE - 1, PAGE, PAGE + 1]),
    st.integers(MIB // 2, PAGE),
    st.integers(0, (SHARE + 2) * PAGE),
)


class HeapMachine(RuleBasedStateMachine):
    allocations = Bundle("allocations")

    def __init__(self):
        super().__init__()
        self.live = {}  # address -> (bytes asked for, serial)
        self.dead = set()
        self.serial = 0
        self.peak = 0
        self.made = 0
        self.bad = 0
        self.armed = None  # provider's calls before the one that is to fail
        self.limit = PAGES * PAGE
        self.refused = 0

    @rule(cache=st.sampled_from([0, 1, PAGE, 3 * PAGE, 100 * PAGE]), pool=st.sampled_from([0, 0, 0, 5, SHARE]))
    @precondition(lambda self: not hasattr(self, "heap"))
    def begin(self, cache, pool):
        self.pages = FakePages(PAGES, SHARE)
        self.cache = cache
        self.pool = pool
        self.heap = self.pages.heap(cache)
        if pool:
            self.heap.fill_pool(pool)

    def started(self):
        return hasattr(self, "heap")

    # ---- what the model knows ----

    def gaps(self):
        """Free (address, size) ranges in pages that small allocations share."""
        found = []
        small = sorted((va, rounded(n)) for va, (n, _) in self.live.items() if rounded(n) < PAGE)
        for page in sorted({va // PAGE for va, _ in small}):
            at = page * PAGE
            for va, size in [x for x in small if x[0] // PAGE == page] + [((page + 1) * PAGE, 0)]:
                if va > at:
                    found.append((at, va - at))
                at = va + size
        return found

    def used_pages(self):
        used = set()
        for va, (n, _) in self.live.items():
            used.update(range(va // PAGE, (va + rounded(n) - 1) // PAGE + 1))
        return len(used)

    def lost_pages(self):
        """Pages that the provider kept when it was made to refuse an unmapping."""
        return self.pages.mapped - self.heap.stats()["reserved_bytes.all.current"] // PAGE

    def cached(self):
        """Pages of each cached run."""
        return [n // PAGE for _, n, _, kind, _, _ in self.heap.walk() if kind == "cached"]

    def room(self):
        """Pages that an allocation may have, if they must be mapped for it."""
        if self.pool:
            return 0
        return min(SHARE - self.lost_pages() - self.used_pages(), self.limit // PAGE - self.used_pages())

    def fired(self):
        return self.armed is not None and self.pages.calls > self.armed

    def fits(self, size):
        """Sizes of the gaps with room for it at its alignment."""
        a = alignment(size)
        return [n for at, n in self.gaps() if -(-at // a) * a + size <= at + n]

    # ---- steps ----

    @precondition(started)
    @rule(target=allocations, nbytes=sizes)
    def alloc(self, nbytes):
        size = rounded(nbytes)
        gaps = self.fits(size) if size < PAGE else []
        gap_at = self.gaps()
        before, calls, cached = self.heap.stats(), self.pages.calls, self.cached()
        mapped, wanted = self.pages.mapped, -(-size // PAGE)
        room = max(self.room(), *cached, 0)
        try:
            va, fresh = self.heap.alloc(nbytes)
        except errors.StrataError as error:
            note(f"alloc {nbytes} -> {error!r}")
            self.refused += isinstance(error, errors.FabricMemoryError)
            if self.fired():
                self.armed = None
            else:
                assert isinstance(error, errors.FabricMemoryError)
                assert not gaps and wanted > room
            return -1
        assert gaps or wanted <= room
        after = self.heap.stats()
        if after["remaps"] > before["remaps"]:  # a cached run is longer now, and only what it lacked is new
            assert after["remaps"] == before["remaps"] + 1 and not fresh
            new = (after["remapped_bytes"] - before["remapped_bytes"]) // PAGE
            assert 0 < wanted - new <= max(cached)
        elif wanted <= max(cached, default=0) or gaps:
            assert self.pages.mapped == mapped and self.pages.calls == calls
        assert va % alignment(size) == 0
        assert self.pages.base <= va and va + size <= self.pages.base + PAGES * PAGE
        if gaps:  # the best of them, and nothing mapped
            assert self.pages.calls == calls
            assert min(gaps) == next(n for at, n in gap_at if at <= va < at + n)
        if before["largest_free_bytes"] >= size + 4096:
            assert self.pages.calls == calls
        if fresh:
            for at, n in probes(size):
                assert ctypes.string_at(va + at, n) == bytes(n)
        self.serial += 1
        for at, n in probes(nbytes):
            ctypes.memmove(va + at, pattern(self.serial, at, n), n)
        assert va not in self.live
        self.live[va] = (nbytes, self.serial)
        self.dead.discard(va)
        self.made += 1
        self.peak = max(self.peak, sum(rounded(n) for n, _ in self.live.values()))
        self.verify(va)
        return va

    def verify(self, va):
        nbytes, serial = self.live[va]
        for at, n in probes(nbytes):
            assert ctypes.string_at(va + at, n) == pattern(serial, at, n), f"contents of {va:#x}"

    @precondition(started)
    @rule(va=allocations)
    def free(self, va):
        if va in self.live:
            self.verify(va)
            self.heap.free(va)
            del self.live[va]
            self.dead.add(va)
            assert self.pool or self.heap.stats()["cached_bytes"] <= self.cache
        else:
            self.bad_free(va & (1 << 64) - 1)

    def bad_free(self, va):
        with pytest.raises(errors.InvalidArgument):
            self.heap.free(va)
        self.bad += 1

    @precondition(started)
    @rule(va=allocations, offset=st.sampled_from([-PAGE, -64, 1, 8, 64, 128, 4096, PAGE, 3 * PAGE]))
    def free_near(self, va, offset):
        if va > 0 and va + offset not in self.live:
            self.bad_free(va + offset)

    @precondition(started)
    @rule(page=st.integers(-1, PAGES), offset=st.integers(0, PAGE - 1))
    def free_anywhere(self, page, offset):
        va = self.pages.base + page * PAGE + offset
        if va not in self.live:
            self.bad_free(va)

    @precondition(started)
    @rule(keep=st.sampled_from([0, 1, PAGE, 2 * PAGE, 50 * PAGE]))
    def trim(self, keep):
        before = self.heap.stats()["cached_bytes"]
        try:
            self.heap.trim(keep)
        except errors.StrataError:
            assert self.fired()
            self.armed = None
        after = self.heap.stats()["cached_bytes"]
        assert after == (before if self.pool else min(before, keep // PAGE * PAGE))

    @precondition(started)
    @rule(nbytes=st.one_of(st.none(), st.integers(0, SHARE + 1).map(lambda n: n * PAGE), st.integers(0, SHARE * PAGE)))
    def set_limit(self, nbytes):
        before = self.heap.stats()
        try:
            self.heap.set_limit(nbytes)
        except errors.InvalidArgument:
            assert self.pool
            return
        except errors.StrataError:
            assert self.fired()
            self.armed = None
        assert not self.pool and self.heap.limit == nbytes
        self.limit = PAGES * PAGE if nbytes is None else nbytes
        after = self.heap.stats()
        over = max(0, before["reserved_bytes.all.current"] - self.limit)
        gone = before["reserved_bytes.all.current"] - after["reserved_bytes.all.current"]
        assert gone == min(before["cached_bytes"], -(-over // PAGE) * PAGE)  # what it must, and no more

    @precondition(started)
    @rule()
    def reset_peaks(self):
        self.heap.reset_peaks()
        self.peak = sum(rounded(n) for n, _ in self.live.values())

    @precondition(started)
    @rule(at=st.integers(1, 3), name=st.sampled_from(["ST_ENOMEM", "ST_ESYS"]))
    def provider_will_fail(self, at, name):
        self.pages.fail(at, name)
        self.armed = self.pages.calls + at - 1

    @precondition(started)
    @rule(va=allocations)
    def look(self, va):
        if va in self.live:
            self.verify(va)

    # ---- after every step ----

    @invariant()
    def sound(self):
        if not self.started():
            return
        assert self.heap.check() == 0, "st_heap_check.h: the condition of this line"
        stats = self.heap.stats()
        ranges = sorted((va, va + rounded(n)) for va, (n, _) in self.live.items())
        assert all(a[1] <= b[0] for a, b in zip(ranges, ranges[1:], strict=False))
        assert stats["allocation.all.current"] == len(self.live)
        assert stats["requested_bytes.all.current"] == sum(n for n, _ in self.live.values())
        assert stats["allocated_bytes.all.current"] == sum(b - a for a, b in ranges)
        assert stats["allocated_bytes.all.peak"] == self.peak
        assert stats["allocation.all.allocated"] == self.made
        assert stats["bad_frees"] == self.bad
        assert stats["reserved_bytes.all.current"] == self.used_pages() * PAGE + stats["cached_bytes"]
        assert stats["reserved_bytes.all.current"] <= stats["reserved_bytes.all.peak"] <= SHARE * PAGE
        assert stats["num_ooms"] == self.refused and stats["remapped_bytes"] == self.pages.extended * PAGE
        if self.pool:
            assert self.pages.mapped == self.pool and self.pages.calls == 1
        assert (self.lost_pages() > 0) <= (stats["unmap_errors"] > 0)
        walk = self.heap.walk()
        assert [(va, n) for va, _, n, kind, _, _ in walk if kind in ("run", "block")] == sorted(
            (va, n) for va, (n, _) in self.live.items()
        )
        assert [(va, n) for va, n, _, kind, _, _ in walk if kind == "hole"] == self.gaps()
        assert sum(n for _, n, _, kind, _, _ in walk if kind == "cached") == stats["cached_bytes"]
        free = [n for _, n, _, kind, _, _ in walk if kind in ("hole", "cached")]
        assert stats["largest_free_bytes"] == max(free, default=0)

    def teardown(self):
        if not self.started():
            return
        for va in list(self.live):
            self.verify(va)
        for va in list(self.live):
            self.heap.free(va)
            assert self.heap.check() == 0
        lost_before = self.lost_pages()
        try:
            self.heap.trim()
        except errors.StrataError:
            assert self.armed is not None
        stats = self.heap.stats()
        for name in ("allocation", "allocated_bytes", "requested_bytes", "inactive_split_bytes"):
            assert stats[f"{name}.all.current"] == 0
        assert stats["reserved_bytes.all.current"] == stats["cached_bytes"] == self.pool * PAGE
        assert self.armed is not None or self.pages.mapped == lost_before + self.pool


TestHeap = pytest.mark.hard_timeout(3600)(HeapMachine.TestCase)  # 10,000 examples take minutes
