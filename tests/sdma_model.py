"""Programs of random steps on descriptor rings, played by a die's engine without its thread, beside a plain model.

A program is a list of steps (tuples); any list is one, since a step says which ring, flag or submission it concerns
by a number modulo what there is.  After each step everything that can be seen is compared.

Rings are kept from waiting for each other in a circle: ring i raises only flag i of ``RAISED``, and waits only for
flags of the host and of rings before it.
"""

from typing import Any

import numpy as np

from strata import errors
from strata._core import descriptors as d

NRINGS, MEMORY = 4, 128
HOST, RAISED, COUNTERS, NFLAGS = 0, 2, 2 + NRINGS, 2 + 2 * NRINGS  # places among the flags
FIRSTS = (0, 1, 2**32 - 3, 2**63 - 2, 2**64 - 1, 2**64 - 4)
DEPTHS = (2, 4, 8)
NOWHERE = 0x1000
POISON = 1 << 63
MOST = POISON // 256 - 1  # the greatest value that a poisoned flag keeps
CODES = {status.name: code for code, status in enumerate(errors.STATUS)}
OK, INVAL, TIMEOUT, REG, CORRUPT, AGAIN, CANCELED = (
    CODES[f"ST_{name}"] for name in ("OK", "EINVAL", "ETIMEOUT", "EREG", "ECORRUPT", "AGAIN", "ECANCELED")
)
EMPTY, GATED, MORE = 0, 1, 2
SUM, MAX, U1, I4 = 1, 4, 3, 6
KINDS = ("copy", "reduce", "accumulate", "fill", "write", "add", "count", "gate", "nop", "bad", "nowhere", "call")


class Work:
    """A submission, as the model sees it."""

    def __init__(self, event):
        self.event = event  # it is notified, and can be cancelled
        self.status, self.index, self.cancel, self.ended = OK, 0, OK, False
        self.real: Any = None


def reached(flag):
    """The value that a flag had come to before it was poisoned, if it is."""
    return flag >> 8 & MOST if flag & POISON else flag


def poisoned(flag, status):
    return POISON | min(reached(flag), MOST) << 8 | status


class Item:
    """A descriptor: its fields, with places instead of addresses, and the submission that it belongs to."""

    def __init__(self, kind, src=0, dst=0, nbytes=0, value=0, flags=0, dtype=0, op=0, work=None, calls=()):
        self.kind, self.src, self.dst, self.nbytes, self.value = kind, src, dst, nbytes, value
        self.flags, self.dtype, self.op, self.work, self.calls = flags, dtype, op, work, calls

    def of(self, work, base=0):
        value = (self.value + base) % 2**64 if self.flags & d.RELATIVE else self.value
        return Item(self.kind, self.src, self.dst, self.nbytes, value, self.flags, self.dtype, self.op, work)


class ModelRing:
    def __init__(self, index, depth, first):
        self.index, self.depth, self.head, self.tail = index, depth, first, first
        self.queue = []  # (Item, whether a chain begins with it)
        self.status, self.done, self.gated = OK, 0, False
        self.real: Any = None


class Model:
    """What memory, flags, rings and submissions must be."""

    def __init__(self, turn):
        self.turn = turn  # index of the ring that comes first in the next round
        at = np.arange(MEMORY)
        self.memory = ((at * 7 + (at >> 4) * 13) & 0xFF).astype("u1")
        self.flags = [0] * NFLAGS
        self.rings = {}  # index -> ModelRing
        self.works = []
        self.active = set()
        self.count = dict.fromkeys(("descriptors", "failed", "notifies", "gates"), 0)

    def round(self):
        most, first = EMPTY, self.turn
        for index in sorted(self.active, key=lambda i: (i < first, i)):
            if index not in self.rings:  # closed with its last turn just behind it: it has none, and is not the first
                self.active.discard(index)
                continue
            turn = self.take_turn(self.rings[index])
            if turn == EMPTY:
                self.active.discard(index)
            most = max(most, turn)
            if self.turn == first:
                self.turn = (index + 1) % 1024
        return most

    def take_turn(self, ring):
        for k in range(64):
            if not ring.queue:
                return MORE if k else EMPTY
            item, begins = ring.queue[0]
            if begins and not ring.done and not ring.gated:
                ring.status = OK
            done = ring.done
            status = self.call(ring, item) if item.kind == d.CALL else self.do(ring, item)
            if status != AGAIN:
                ring.queue.pop(0)
                ring.head = (ring.head + 1) % 2**64
                ring.done, ring.gated = 0, False
                self.count["descriptors"] += 1
            elif ring.done == done:
                return MORE if k else GATED
        return MORE

    def call(self, ring, item):
        if ring.done == len(item.calls):
            return ring.status
        if self.do(ring, item.calls[ring.done].of(item.work, item.value)) == AGAIN:
            return AGAIN
        ring.gated = False
        ring.done += 1
        return AGAIN

    def fail(self, ring, work, status):
        ring.status = status
        self.count["failed"] += 1
        if work.event and not work.status:
            work.status, work.index = status, ring.head

    def do(self, ring, item):
        if ring.status == OK and item.work.event and item.work.cancel:
            self.fail(ring, item.work, item.work.cancel)
        if item.kind == d.NOTIFY:
            self.count["notifies"] += 1
            assert not item.work.ended
            item.work.ended = True
            return ring.status
        if item.kind in (d.WRITE, d.ADD, d.COUNT):
            self.raise_flag(ring.status, item)
            return OK
        if item.kind == d.NOP:
            return OK
        if item.kind not in (d.COPY, d.REDUCE, d.ACCUMULATE, d.FILL, d.GATE):
            status = INVAL
        elif ring.status:
            status = CANCELED
        else:
            status = self.gate(ring, item) if item.kind == d.GATE else self.move(item)
        if status not in (OK, AGAIN) and not ring.status:
            self.fail(ring, item.work, status)
        return status

    def raise_flag(self, status, item):
        if status:
            if not item.flags & d.SILENT:
                self.flags[item.dst] = poisoned(self.flags[item.dst], status)
        elif item.kind == d.WRITE:
            self.flags[item.dst] = item.value
        elif item.kind == d.ADD:
            if not self.flags[item.dst] & POISON:
                self.flags[item.dst] = (self.flags[item.dst] + item.value) % 2**64
        else:
            self.flags[item.src] += 1
            if self.flags[item.src] == item.nbytes:
                self.flags[item.dst] = item.value

    def gate(self, ring, item):
        value = self.flags[item.src]
        if value & POISON and not item.value & POISON:
            if reached(value) >= item.value:
                return OK
            status = value & 0xFF
            return status if 0 < status < len(errors.STATUS) and errors.STATUS[status].error else CORRUPT
        if value >= item.value:
            return OK
        expired = ring.gated and item.nbytes == 1
        self.count["gates"] += not ring.gated
        ring.gated = True
        return TIMEOUT if expired else AGAIN

    def move(self, item):
        size = {U1: 1, I4: 4, 0: 1}[item.dtype]
        if item.nbytes % size or (item.kind == d.ACCUMULATE and item.dst % size):
            return INVAL
        if not item.nbytes:
            return OK
        apart = item.src == item.dst or abs(item.src - item.dst) >= item.nbytes
        if item.kind != d.FILL and not apart:
            return INVAL
        if NOWHERE in (item.src, item.dst):
            return REG
        dst = self.memory[item.dst : item.dst + item.nbytes]
        src = self.memory[item.src : item.src + item.nbytes]
        if item.kind == d.COPY:
            dst[:] = src
        elif item.kind == d.FILL:
            pattern = np.frombuffer(item.value.to_bytes(8, "little"), "u1")
            dst[:] = np.resize(pattern, item.nbytes)
        elif item.dtype == U1:
            dst += src
        else:
            both = [np.frombuffer(x.tobytes(), "i4") for x in (dst, src)]
            dst[:] = np.frombuffer(np.maximum(*both).tobytes(), "u1")
        return OK
