"""A UB space as a job leaves it, whose words a case writes over: what `strata top` and `strata dump` make of it.

Three dies that seem to run, made by hand: records in progress and over, two groups, DMA rings.  A case is a list of
pokes, 12 bytes each: an area, how many words of it, a word in it, a value.
"""

from __future__ import annotations

import io
import json
import os
import random
import struct
from contextlib import redirect_stdout
from typing import NamedTuple

from strata import bootstrap
from strata._core import tracing
from strata._core.inspector import Inspector
from strata.cli import dump
from strata.inspection import processes, snapshot, text

DIES, HBM = 3, 8 << 20
POKE = struct.Struct("<BBHQ")
MAGIC, SDMA = 0x3142552D41525453, 0x31474E5241445453
LIMITS = [0, 1, 2, 3, 7, 63, 64, 255, 256, 1023, 4096, 1 << 21, 1 << 31, 1 << 32, 1 << 40, 1 << 47, 1 << 62, 1 << 63]


class Area(NamedTuple):
    at: int  # in the object
    words: int


class Space:
    """The job, and how it is without a poke."""

    def __init__(self) -> None:
        self.job = bootstrap.create_job(DIES, HBM)
        self.size = os.fstat(self.job.fd).st_size
        self.header = struct.unpack("<41Q", self.read(self.size - 4096, 328))
        self.control = self.header[3]
        self.areas = self._made()
        self.whole = [self.read(area.at, 8 * area.words) for area in self.areas]

    def read(self, at: int, count: int) -> bytes:
        return os.pread(self.job.fd, count, at)

    def put(self, at: int, *words: int) -> int:
        os.pwrite(self.job.fd, struct.pack(f"<{len(words)}Q", *words), at)
        return at

    def _made(self) -> list[Area]:
        dies, tables, _, _, world = (self.control + offset for offset in self.header[9:14])
        flight, base = self.control + self.header[38], self.header[21]
        seg, me = self.header[6], processes.look(os.getpid())
        assert me is not None and self.read(world, 8) == struct.pack("<Q", MAGIC)
        namespace = os.stat(snapshot.OWN_NAMESPACE).st_ino
        made = [Area(self.size - 4096, 41), Area(dies, 32 * DIES), Area(dies, 32 * DIES)]
        for i in range(DIES):
            self.put(dies + 256 * i, 1 | me.pid << 32, me.start, namespace, 1)
            self.put(dies + 256 * i + 64, 7, 2)
            self.put(tables + 8 * (seg >> 21) * i, (HBM * i >> 21) << 32 | 5)
            made += [Area(tables + 8 * (seg >> 21) * i, 4), Area(self._flight(flight + 12416 * i, i, base + seg), 16)]
            made += [Area(flight + 12416 * i + 128, 16), Area(flight + 12416 * i + 4224, 48)]
            made += self._traced(i, self.control + self.header[39], dies + 256 * i + 136)
        os.pwrite(self.job.fd, self.read(world, 16384), HBM)  # a group in the memory of die 1
        self.put(HBM + 8, 77)
        self.put(dies + 96, base + 4096)  # die 0 has two rings
        self.put(4096, SDMA, 1 | 2 << 32)
        self.put(4096 + 256, base + 32768, base + 65536)
        for ring in (32768, 65536):
            self.put(ring, SDMA, 1, 16)
            self.put(ring + 72, 9)
            self.put(ring + 128, 4)
        groups = [Area(at, words) for at in (world, HBM) for words in (40, 120)]
        return [*made, Area(4096, 40), Area(32768, 32), *groups]

    def _flight(self, at: int, rank: int, va: int) -> int:
        """The recorder of a die: two groups, and a record of each kind, most of them in progress."""
        self.put(at, 20)
        self.put(at + 64, 1, 1, 0)
        self.put(at + 128, self.header[7], 0, DIES | rank << 32, int.from_bytes(b"world", "little"))
        self.put(at + 192, 77, va, DIES | rank << 32, int.from_bytes(b"other", "little"))
        for k in range(1, 17):
            group, over = 77 if k % 2 else self.header[7], k % 3 == 0
            state = k << 40 | (rank + 1) % DIES << 24 | k << 16 | (0 if over else 0xFF)
            self.put(at + 4224 + 64 * k, state, group, 5, 1, 4, 8, 1000 * k, 2000 * k if over else 0)
        return at

    def _traced(self, rank: int, traces: int, switch: int) -> list[Area]:
        """The trace of a die: a name, and events of two threads."""
        events = self.header[40] * 32
        at = traces + rank * (4096 + 65536 + 16 * events)
        self.put(switch, 1 | 1 << 32)
        self.put(at, 1, 6)
        os.pwrite(self.job.fd, b"\4\0name", at + 4096)
        for k in range(2):
            self.put(at + 64 + 64 * k, 5, 0, 0, 0, 100 + k | (1 + k) << 32)
            for n in range(5):
                self.put(at + 69632 + k * events + 32 * n, 1000 * n, 1000 * n + 10, 3 | 1 << 32, n)
        return [Area(at, 24), Area(at + 4096, 2), Area(at + 69632, 20), Area(switch, 2)]

    def look(self, data: bytes) -> str:
        """What is shown of it, after the pokes.  CorruptSpace, OSError."""
        try:
            for area, words, word, value in POKE.iter_unpack(data[: len(data) // 12 * 12]):
                at, room = self.areas[area % len(self.areas)]
                word %= room
                self.put(at + 8 * word, *[value] * min(1 + words % 4, room - word))
            seen = snapshot.take(Inspector(self.job.fd), "x", 1)
            assert all(0 <= rank < DIES for wait in seen["waits"] for rank in wait["for"])
            json.dumps(seen)
            for rank in range(DIES):
                trace = tracing.read(Inspector(self.job.fd), rank)
                assert all(one["role"] and len(one["events"]) <= self.header[40] for one in trace["slices"])
                assert trace["ns_per_tick"] > 0 and all(isinstance(name, str) for name in trace["names"])
            shown = io.StringIO()
            with redirect_stdout(shown):
                dump.show(seen, None)
            shown.write("\n".join(text.waits(seen)))
            lines = shown.getvalue().split("\n")
            assert all(line.isprintable() for line in lines), "a terminal would obey what is shown"
            return shown.getvalue()
        finally:
            for area, before in zip(self.areas, self.whole, strict=True):
                os.pwrite(self.job.fd, before, area.at)


def pokes(chance: random.Random, data: bytes) -> bytes:
    """Some pokes more, some fewer."""
    made = list(POKE.iter_unpack(data))
    for _ in range(chance.choice((1, 1, 2, 3, 12))):
        value = chance.choice((chance.getrandbits(64), chance.choice(LIMITS), -1 % (1 << 64) - chance.choice(LIMITS)))
        state = chance.randrange(256) << 40 | chance.randrange(4) << 24 | chance.randrange(18) << 16 | 0xFF
        value = chance.choice((value, value, state, chance.randrange(1 << 16) << 32 | value & 0xFFFFFFFF))
        made.append((chance.randrange(256), chance.choice((0, 0, 0, 3)), chance.randrange(1 << 16), value % (1 << 64)))
    chance.shuffle(made)
    return b"".join(POKE.pack(*poke) for poke in made[: chance.choice((3, 40))])
