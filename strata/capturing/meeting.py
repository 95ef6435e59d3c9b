"""The end of a capture: members compare what they have recorded, tell addresses, and make descriptors."""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

import numpy as np

from strata import config, errors, failure
from strata._core import graph, memory
from strata._core.engine import engine_of
from strata._core.spans import spanned
from strata.capturing.recording import Recording
from strata.comm import Group, world
from strata.streams import stream

__all__ = ["Meeting"]

MAGIC = 0x53545241544147  # of a record: members that do something else are no part of this
WORDS = 16
STATE, LENGTH, DIGEST, NAME = 1, 2, slice(3, 5), slice(8, WORDS)


def record(own: list[tuple[int, int]], why: BaseException | None) -> np.ndarray:
    """What a member says first: whether it goes on, and a digest of its fingerprints."""
    made = np.zeros(WORDS, np.int64)
    made[0], made[STATE], made[LENGTH] = MAGIC, why is not None, len(own)
    digest = hashlib.blake2b(np.array(own, np.uint64).tobytes(), digest_size=16).digest()
    made[DIGEST] = np.frombuffer(digest, np.int64)
    name = type(why).__name__.encode()[: 8 * (WORDS - NAME.start)]
    made[NAME].view(np.uint8)[: len(name)] = np.frombuffer(name, np.uint8)
    return made


class Meeting:
    """One capture's.  ``extra``: a group that meets in any case."""

    def __init__(self, recording: Recording, extra: Group | None, timeout: float | None) -> None:
        self.recording, self.timeout = recording, timeout
        self.extra = [] if extra is None else [extra]
        self.groups: list[Group] = []
        self.waiting: list[Group] | None = None  # whose members will still wait for this die; None: it has not begun
        self.why: BaseException | None = None  # this die has no graph
        self.tape: graph.Tape | None = None
        self.scratch = 0
        self.tables: dict[int, np.ndarray] = {}  # by part: each member's row of addresses

    @spanned("capture")
    def run(self) -> graph.Tape:
        """Two rounds, so that a member that fails in one group is no part of the graphs of others."""
        self.groups = self.recording.groups(self.extra)
        self.waiting = waiting = list(self.groups)
        try:
            self.prepare()
        except Exception as error:  # whatever it is: the others must not wait for this die
            self.why = error
        for step in (self.compare, self.exchange):
            for part, group in enumerate(self.groups):
                if group not in waiting:
                    continue
                try:
                    step(part, group)
                except errors.StrataError as error:
                    self.why = self.why or error
                    waiting.remove(group)
        waiting.clear()
        if self.why is None:
            self.lower()
        if self.why is not None:
            raise self.why
        assert self.tape is not None
        return self.tape

    @spanned("capture")
    def abandon(self, why: BaseException) -> None:
        """There is no graph: tells those who will wait for this die, and does not wait for them."""
        groups = self.waiting
        if groups is None:  # the block was left
            groups = self.recording.groups(self.extra) or ([] if self.extra else [world()])
        with stream(None):
            for group in groups:
                with contextlib.suppress(errors.StrataError):
                    group.all_gather(record([], why), async_op=True)
        if self.tape is not None:
            self.tape.leave(self.recording.keep)

    def prepare(self) -> None:
        """The memory that peers must know of: lines and flags, and scratch that serves one operation after another."""
        flags, scratch = dict.fromkeys(map(id, self.groups), 0), 0
        for e in self.recording.entries:
            if e.group is not None and e.handle is not None:
                flags[id(e.group)] = max(flags[id(e.group)], e.handle.flags)
                scratch = max(scratch, e.handle.scratch)
        self.tape = graph.Tape(engine_of(self.recording.context), self.groups, list(flags.values()))
        if scratch:
            lent = memory.alloc_array(self.recording.context, (scratch,), np.dtype(np.uint8), False)
            self.recording.keep.append(lent)
            self.scratch = memory.pointer(lent)

    def gather(self, group: Group, own: np.ndarray) -> np.ndarray:
        with stream(None):  # the host's own
            return group.all_gather(own, np.empty((group.size, *own.shape), own.dtype), timeout=self.timeout)

    def call(self, group: Group, own: list[tuple[int, int]]) -> np.ndarray:
        """All members' records; CollectiveMismatch if one has no graph, or does something else."""
        table = self.gather(group, record(own, self.why))
        gone = [m for m, row in enumerate(table) if row[0] != MAGIC or row[STATE]]
        if gone:
            names = [table[m][NAME].tobytes().rstrip(b"\0").decode(errors="replace") for m in gone]
            text = ", ".join(f"rank {group.ranks[m]} has given its capture up ({name})"
                             for m, name in zip(gone, names, strict=True))  # fmt: skip
            raise errors.CollectiveMismatch(f"{text}; there is no graph", ranks=sorted(group.ranks), group=group.name,
                                            operation="capture")  # fmt: skip
        return table

    def compare(self, part: int, group: Group) -> None:
        """Have all members captured the same?"""
        own = self.recording.fingerprints(group)
        table = self.call(group, own)
        if (table[:, LENGTH] == len(own)).all() and (table[:, DIGEST] == table[0, DIGEST]).all():
            return
        padded = np.zeros((int(table[:, LENGTH].max()), 2), np.uint64)
        padded[: len(own)] = np.array(own, np.uint64).reshape(-1, 2)
        raise mismatch(group, self.gather(group, padded), table[:, LENGTH])

    def exchange(self, part: int, group: Group) -> None:
        """Tells all members where this one's lines, flags and arrays are."""
        self.call(group, [])
        assert self.tape is not None
        arrays = [at for e in self.recording.entries if e.group is group for at in (e.src, e.out)]
        rows = self.gather(group, np.array([*self.tape.place(part), self.scratch, *arrays], np.uint64))
        self.tape.join(part, rows[:, 0], rows[:, 1])
        self.tables[part] = rows

    def lower(self) -> None:
        """Makes descriptors of all operations."""
        assert self.tape is not None
        parts = {id(g): k for k, g in enumerate(self.groups)}
        seen = dict.fromkeys(self.tables, 0)
        made: list[tuple[Any, ...]] = []
        for e in self.recording.entries:
            if e.group is None or e.group.size == 1:
                if e.nbytes:
                    made.append((-1, e.desc, None, (e.out, e.src, e.nbytes)))
                continue
            part = parts[id(e.group)]
            rows, at = self.tables[part], 3 + 2 * seen[part]
            bases = np.stack([rows[:, at], rows[:, at + 1], rows[:, 2]], axis=1)  # source, output, scratch
            made.append((part, e.desc, e.handle, np.ascontiguousarray(bases)))
            seen[part] += 1
        self.tape.lower(made, config.get().sdma_block // 64 * 64)


def mismatch(group: Group, theirs: np.ndarray, lengths: np.ndarray) -> errors.CollectiveMismatch:
    """Names the first difference; the same on every member."""
    for k in range(theirs.shape[1]):
        said: dict[str, list[int]] = {}
        for m in range(group.size):
            what = failure.describe(*map(int, theirs[m, k])) if k < lengths[m] else "nothing more"
            said.setdefault(what, []).append(group.ranks[m])
        if len(said) > 1:
            break
    text = "; ".join(f"{failure.people(ranks)}: {what}" for what, ranks in said.items())
    return errors.CollectiveMismatch(
        f"members captured different operations; operation {k + 1} of the group is, {text}",
        ranks=sorted(group.ranks), group=group.name, operation="capture",
    )  # fmt: skip
