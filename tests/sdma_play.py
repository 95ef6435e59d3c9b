"""Plays a program of steps on a die's rings and on the model of them, and compares."""

import numpy as np
from sdma_model import (
    CANCELED,
    COUNTERS,
    DEPTHS,
    EMPTY,
    FIRSTS,
    I4,
    KINDS,
    MAX,
    MEMORY,
    MORE,
    NFLAGS,
    NOWHERE,
    NRINGS,
    POISON,
    RAISED,
    SUM,
    U1,
    Item,
    Model,
    ModelRing,
    Work,
)

import strata
from strata import bootstrap, errors, sdma
from strata._core import descriptors as d
from strata._core.engine import manual


class Play:
    def __init__(self):
        context = bootstrap.context()
        self.engine = context.engine or manual(context)
        self.model = Model(self.begin())
        self.memory, self.flags = strata.array(self.model.memory), sdma.flag(NFLAGS)
        self.before = self.engine.counters()
        self.kept = []  # lists of calls, also of chains that nobody is told of

    def begin(self):
        """Index of the ring that comes first in the next round: the same one, whatever was played before."""
        ring = sdma.open_ring(2)
        nop = np.zeros(1, sdma.DESCRIPTOR)
        nop["type"] = d.NOP
        ring.submit(nop, notify=False)
        assert (self.engine.step(), self.engine.step()) == (MORE, EMPTY)
        ring.close()
        return ring.index + 1

    # ---- descriptors

    def item(self, ring, drawn, inner=False):
        """A descriptor of a ring, from numbers."""
        name, a, b, n, v, bits = drawn
        name = "nop" if inner and name == "call" else name
        place, other = a % (MEMORY - 40), b % (MEMORY - 40)
        own = {"dst": RAISED + ring, "flags": (bits & 1) * d.SILENT | (bits >> 1 & 1) * d.RELATIVE * inner}
        if name == "copy":
            return Item(d.COPY, place, other, n)
        if name in ("reduce", "accumulate"):
            kind = d.REDUCE if name == "reduce" else d.ACCUMULATE
            dtype, op = ((U1, SUM), (I4, MAX))[bits & 1]
            return Item(kind, place, other & ~3 if bits & 2 else other, n & ~3 if bits & 4 else n, dtype=dtype, op=op)
        if name == "fill":
            return Item(d.FILL, 0, other, n, v * 0x0123456789ABCDEF % 2**64)
        if name in ("write", "add"):
            return Item(d.WRITE if name == "write" else d.ADD, value=v, **own)
        if name == "count":
            return Item(d.COUNT, src=COUNTERS + ring, nbytes=n % 4 + 1, value=v, **own)
        if name == "gate":
            return Item(d.GATE, src=a % (RAISED + ring), nbytes=bits & 1, value=v)
        if name == "nowhere":
            return Item(d.COPY, *((NOWHERE, other) if bits & 1 else (place, NOWHERE)), n)
        if name == "call":
            drawn = [(KINDS[(b + k) % len(KINDS)], a + k, b, n, v, bits + k) for k in range(n % 4)]
            return Item(d.CALL, value=v, calls=[self.item(ring, x, True) for x in drawn])
        return Item(d.NOP if name == "nop" else (0, 55)[bits & 1])

    def made(self, items, keep):
        """The items as descriptors."""
        memory, flags = strata.address(self.memory), strata.address(self.flags)
        found = np.zeros(len(items), sdma.DESCRIPTOR)
        for k, item in enumerate(items):
            row = found[k]
            row["type"], row["op"], row["dtype"], row["flags"] = item.kind, item.op, item.dtype, item.flags
            row["bytes"], row["value"] = item.nbytes, item.value
            if item.kind == d.GATE and item.nbytes == 0:
                row["bytes"] = d.FOREVER
            if item.kind == d.CALL:
                table = strata.zeros(max(1, len(item.calls)), sdma.DESCRIPTOR)
                table[: len(item.calls)] = self.made(item.calls, keep)
                keep.append(table)
                row["src"], row["bytes"] = strata.address(table), len(item.calls)
            elif item.kind in (d.WRITE, d.ADD, d.COUNT, d.GATE):
                row["src"], row["dst"] = flags + 8 * item.src, flags + 8 * item.dst
            elif item.kind in (d.COPY, d.REDUCE, d.ACCUMULATE, d.FILL):
                row["src"], row["dst"] = (x if x == NOWHERE else memory + x for x in (item.src, item.dst))
        sdma.seal(found)
        return found

    # ---- steps

    def open(self, depth, first, *_):
        if len(self.model.rings) == NRINGS:
            return
        ring = sdma.open_ring(DEPTHS[depth % len(DEPTHS)], first=FIRSTS[first % len(FIRSTS)])
        assert ring.index == min(set(range(NRINGS)) - set(self.model.rings))
        made = ModelRing(ring.index, ring.depth, FIRSTS[first % len(FIRSTS)])
        made.real = ring
        self.model.rings[ring.index] = made

    def close(self, which, *_):
        ring = self.ring(which)
        if ring is None or ring.queue:
            return
        ring.real.close()
        del self.model.rings[ring.index]

    def ring(self, which):
        indices = sorted(self.model.rings)
        return self.model.rings[indices[which % len(indices)]] if indices else None

    def submit(self, which, notify, drawn):
        ring = self.ring(which)
        if ring is None:
            return
        work, keep = Work(bool(notify)), []
        items = [self.item(ring.index, x) for x in drawn]
        found = self.made(items, keep)
        items += [Item(d.NOTIFY)] * bool(notify)
        if (ring.depth - len(ring.queue)) < len(items):
            try:
                ring.real.submit(found, notify=bool(notify), wait=False)
            except errors.RingFull:
                return
            raise AssertionError("RingFull expected")
        made = ring.real.submit(found, notify=bool(notify), wait=False, keep=keep)
        self.kept.append(keep)
        if notify:
            work.real = made
            self.model.works.append(work)
            assert made.first == ring.tail and made.count == len(items)
        else:
            assert made == ring.tail
        for k, item in enumerate(items):
            item.work = work
            ring.queue.append((item, k == 0))
        ring.tail = (ring.tail + len(items)) % 2**64
        if items:
            self.model.active.add(ring.index)

    def cancel(self, which, *_):
        works = self.model.works
        if works:
            work = works[-1 - which % len(works)]
            work.real.cancel()
            if not work.ended:
                work.cancel = CANCELED

    def host(self, flag, value, *_):
        number, flag = flag // NFLAGS, flag % NFLAGS
        if value % 7 == 6:  # as a chain that has failed does
            value = POISON | number % 23  # what is no status, too
            self.flags[flag] = value
        else:
            sdma.write(self.flags[flag : flag + 1], value)
        self.model.flags[flag] = value

    def step(self, *_):
        turn = self.engine.step()
        assert turn == self.model.round(), turn

    # ---- comparison

    def check(self):
        model = self.model
        assert self.memory.tobytes() == model.memory.tobytes(), "memory"
        assert self.flags.tolist() == model.flags, "flags"
        for ring in model.rings.values():
            assert (ring.real.head, ring.real.tail) == (ring.head, ring.tail)
            assert len(ring.queue) == (ring.tail - ring.head) % 2**64 <= ring.depth
        for work in model.works:
            assert work.real.done() == work.ended
            error = work.real.exception()
            if not work.ended or not work.status:
                assert error is None, error
            else:
                assert type(error) is errors.STATUS[work.status].error, (error, work.status)
                assert f"descriptor {work.index} of ring " in str(error)
        assert self.engine.pending == sum(not work.ended for work in model.works)
        now = self.engine.counters()
        assert {name: now[name] - self.before[name] for name in model.count} == model.count
        assert now["rings"] == len(model.rings)

    def end(self):
        """Opens all gates: everything ends."""
        for flag in range(NFLAGS):
            self.host(flag, POISON - 1)
        for _ in range(200):
            self.step()
            self.check()
            for flag in range(NFLAGS):  # a ring may have written less
                self.host(flag, POISON - 1)
            if not any(ring.queue for ring in self.model.rings.values()) and not self.model.active:
                break
        assert all(work.ended for work in self.model.works)
        for _ in range(len(self.model.rings)):
            self.close(0)
        assert not self.model.rings, "a ring is not empty"
        self.check()


def play(group, program):
    """In a die: plays a program, a list of (kind, *numbers)."""
    del group
    it = Play()
    for kind, *args in program:
        getattr(it, kind)(*args)
        it.check()
    it.end()
    return len(it.model.works)
