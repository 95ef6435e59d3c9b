"""What fabric memory must hold, in plain Python: the model that ``registration_play`` checks dies against.

It knows no addresses but those that it is told, and nothing of how the library does things.
Bytes are never kept: memory holds ``pattern(serial)``, and each write has a serial of its own.
"""

import itertools
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

PAGE = 1 << 21
ACCESS = ("read_write", "read_write", "read", "none")
KINDS = ("empty", "empty", "zeros", "intercepted", "grown", "private", "shared", "plain")
SIZES = (8, 64, 1000, 4096, 65_536, 1 << 20, PAGE - 8, PAGE, PAGE + 4096, 2 * PAGE, 3 * PAGE + 8, 5 * PAGE)
WORDS = np.arange(max(SIZES) // 8, dtype="u8") * np.uint64(0x9E3779B97F4A7C15)


def pattern(serial, nbytes, offset=0):
    """The bytes of one write, from an offset (a multiple of 8) on; serial 0: memory that nobody has written."""
    if serial == 0:
        return np.zeros(nbytes, "u1")
    words = WORDS[offset // 8 : offset // 8 + -(-nbytes // 8)] + np.uint64(serial * 0xD1B54A32D192ED03 & (1 << 64) - 1)
    return words.view("u1")[:nbytes]


@dataclass(eq=False)
class Block:
    """An array, or memory that is registered."""

    name: int
    owner: int
    kind: str
    nbytes: int
    serial: int
    address: int = 0  # 0: peers have none


@dataclass(eq=False)
class Hand:
    """Physical memory: what each page holds, and which dies have a handle of it."""

    name: int
    owner: int
    serials: list[int]
    holders: set[int]


class Page(NamedTuple):
    """What is mapped at a page of a range."""

    hand: Hand
    at: int
    access: str


@dataclass(eq=False)
class Range:
    name: int
    owner: int
    pages: list[Page | None]
    address: int = 0

    def free(self, first, n):
        """Whether nothing is mapped at pages [first, first + n)."""
        return first + n <= len(self.pages) and not any(self.pages[first : first + n])

    def mapped(self, first):
        """How many pages from ``first`` on are mapped without a gap."""
        return len(list(itertools.takewhile(bool, self.pages[first:])))


@dataclass(frozen=True)
class Run:
    """Pages [first, last) of a range, which can all be read."""

    range: Range
    first: int
    last: int

    @property
    def nbytes(self):
        return (self.last - self.first) * PAGE

    @property
    def owner(self):
        return self.range.owner


@dataclass(eq=False)
class Model:
    """All that the dies of a group have."""

    n: int
    blocks: list[Block] = field(default_factory=list)
    hands: list[Hand] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)

    def __post_init__(self):
        self._names, self._serials = itertools.count(1), itertools.count(1)

    def name(self):
        return next(self._names)

    def serial(self):
        return next(self._serials)

    def block(self, rank, kind, nbytes):
        made = Block(self.name(), rank, kind, nbytes, self.serial())
        self.blocks.append(made)
        return made

    def hand(self, rank, npages):
        made = Hand(self.name(), rank, [0] * npages, {rank})
        self.hands.append(made)
        return made

    def range(self, rank, npages):
        made = Range(self.name(), rank, [None] * npages)
        self.ranges.append(made)
        return made

    def blocks_of(self, rank):
        return [block for block in self.blocks if block.owner == rank]

    def ranges_of(self, rank):
        return [span for span in self.ranges if span.owner == rank]

    def held_by(self, rank):
        return [hand for hand in self.hands if rank in hand.holders]

    def sweep(self):
        """Forgets physical memory that is neither held nor mapped anywhere."""
        mapped = {page.hand for span in self.ranges for page in span.pages if page}
        self.hands = [hand for hand in self.hands if hand.holders or hand in mapped]

    def frames(self, rank):
        """Frames of a die's HBM that handles and mappings, wherever, refer to."""
        self.sweep()
        return sum(len(hand.serials) for hand in self.hands if hand.owner == rank)

    def sources(self, rank):
        """What a die can read: its blocks, and runs of pages of its ranges."""
        found = self.blocks_of(rank)
        for span in self.ranges_of(rank):
            for first in range(len(span.pages)):
                able = itertools.takewhile(lambda p: p and p.access != "none", span.pages[first:])
                last = first + len(list(able))
                if last > first and (first == 0 or first % 2):
                    found.append(Run(span, first, last))
        return found

    def content(self, source, offset, nbytes):
        """The bytes of a part of a source."""
        if isinstance(source, Block):
            return pattern(source.serial, nbytes, offset)
        parts = []
        while nbytes:
            page = source.range.pages[source.first + offset // PAGE]
            n = min(nbytes, PAGE - offset % PAGE)
            parts.append(pattern(page.hand.serials[page.at], n, offset % PAGE))
            offset, nbytes = offset + n, nbytes - n
        return np.concatenate(parts)

    def places(self, writable=False):
        """What has an address for all dies: blocks, and single pages of ranges as runs."""
        kinds = ("read_write",) if writable else ("read_write", "read")
        found = [block for block in self.blocks if block.address]
        for span in self.ranges:
            found += [Run(span, i, i + 1) for i, page in enumerate(span.pages) if page and page.access in kinds]
        return found

    def where(self, place):
        """(address, bytes, serial of what is there)."""
        if isinstance(place, Block):
            return place.address, place.nbytes, place.serial
        page = place.range.pages[place.first]
        return place.range.address + place.first * PAGE, PAGE, page.hand.serials[page.at]

    def written(self, place, serial):
        if isinstance(place, Block):
            place.serial = serial
        else:
            page = place.range.pages[place.first]
            page.hand.serials[page.at] = serial
