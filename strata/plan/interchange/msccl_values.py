"""What the steps of an MSCCL or MSCCL++ file compute: they are followed in the file's order, chunk by chunk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from typing import NoReturn

from strata.errors import InvalidArgument
from strata.plan.algorithms.algorithm import Algorithm
from strata.plan.interchange import dataflow
from strata.plan.interchange.dataflow import Node, Program

SENDS = frozenset(("s", "rcs", "rrs", "rrcs"))
RECEIVES = frozenset(("r", "rcs", "rrc", "rrs", "rrcs"))
REDUCES = frozenset(("rrc", "rrs", "rrcs", "re"))
STORES = frozenset(("r", "rcs", "rrc", "rrcs", "cpy", "re"))
TYPES = SENDS | RECEIVES | REDUCES | STORES | {"nop"}


MAX_FILE = 64 << 20


def load(file: str | PathLike[str]) -> bytes:
    """A file's bytes, as many as are read; more are refused by whoever parses them."""
    with open(file, "rb") as opened:
        return opened.read(MAX_FILE + 1)


def understood(kind: str, make: Callable[[], File], run: Callable[[Step, Memory], None] | None,
               order: str) -> Algorithm:  # fmt: skip
    """The algorithm in a file of this kind, proved; ``make`` reads its structure, ``run`` as in ``evaluate``."""
    try:
        found = make()
        program = evaluate(found, run)
    except InvalidArgument as error:
        raise InvalidArgument(f"{kind}, {error}") from None
    return dataflow.algorithm(found.name, program, order)


def fail(where: str, why: str) -> NoReturn:
    """Raises InvalidArgument."""
    raise InvalidArgument(f"{where}: {why}")


@dataclass(eq=False)
class Step:
    """A step of a threadblock: ``before`` are steps it comes after, ``sent`` what it sends."""

    where: str
    gpu: int
    type: str
    src: tuple[str, int]
    dst: tuple[str, int]
    count: int
    before: list[Step] = field(default_factory=list)
    sender: Step | None = None
    sent: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class File:
    """What a file says; ``per``: chunks of a part, ``chunks``: of each buffer of each gpu."""

    name: str
    operation: str
    ngpus: int
    in_place: bool
    per: int
    chunks: list[dict[str, int]]
    steps: list[Step]


def _sorted(steps: list[Step]) -> list[Step]:
    after: dict[int, list[Step]] = {id(s): [] for s in steps}
    left = {}
    for step in steps:
        before = step.before + ([step.sender] if step.sender else [])
        left[id(step)] = len(before)
        for b in before:
            after[id(b)].append(step)
    ready, done = deque(s for s in steps if not left[id(s)]), []
    while ready:
        step = ready.popleft()
        done.append(step)
        for later in after[id(step)]:
            left[id(later)] -= 1
            if not left[id(later)]:
                ready.append(later)
    if len(done) < len(steps):
        fail(next(s for s in steps if left[id(s)]).where, "it waits for itself, by way of others")
    return done


class Memory:
    """What each chunk holds, and that accesses to it are ordered by the file."""

    def __init__(self, found: File, steps: list[Step]) -> None:
        self.file = found
        self.known: dict[int, int] = {}  # step -> bits of all steps before it
        self.number = {id(s): i for i, s in enumerate(steps)}
        self.holds: dict[tuple[int, str, int], Node] = {}
        self.last: dict[tuple[int, str, int], tuple[Step | None, list[Step]]] = {}
        for gpu in range(found.ngpus):
            for chunk in range(found.chunks[gpu]["i"]):
                place = self.place(gpu, "i", chunk)
                self.holds[place] = Node(gpu, [], frozenset(((gpu, chunk),)), chunk)

    def place(self, gpu: int, buf: str, at: int) -> tuple[int, str, int]:
        """Input chunks by their place in the output, where the file works in place, and both exist."""
        if self.file.in_place:
            own, per = gpu * self.file.per, self.file.per
            if buf == "i" and self.file.operation == "all_gather":
                return gpu, "o", own + at
            if buf == "o" and self.file.operation == "reduce_scatter":
                return gpu, "i", own + at
            if buf == "o" and self.file.operation != "all_gather" and per:
                return gpu, "i", at
        return gpu, buf, at

    def enter(self, step: Step) -> None:
        bits = 0
        for b in step.before + ([step.sender] if step.sender else []):
            bits |= self.known[id(b)] | 1 << self.number[id(b)]
        self.known[id(step)] = bits

    def read(self, step: Step, place: tuple[int, str, int]) -> Node:
        if place not in self.holds:
            fail(step.where, f"reads {place[1]} chunk {place[2]}, which nothing was written to")
        writer, readers = self.last.setdefault(place, (None, []))
        self._ordered(step, writer)
        readers.append(step)
        return self.holds[place]

    def write(self, step: Step, place: tuple[int, str, int], node: Node) -> None:
        writer, readers = self.last.get(place, (None, []))
        for other in [writer, *readers]:
            self._ordered(step, other)
        self.last[place] = step, []
        self.holds[place] = node

    def done(self, gpu: int) -> int:
        """Bits of all steps that have ended when the gpu's own have."""
        bits = 0
        for step in self.file.steps:
            if step.gpu == gpu:
                bits |= self.known[id(step)] | 1 << self.number[id(step)]
        return bits

    def _ordered(self, step: Step, other: Step | None) -> None:
        if other is not None and other is not step and not self.known[id(step)] >> self.number[id(other)] & 1:
            fail(step.where, f"touches a chunk that {other.where} touches as well, in no order")


def evaluate(found: File, run: Callable[[Step, Memory], None] | None = None) -> Program:
    """The file's values; InvalidArgument if they are not those that the operation promises.

    ``run``: what a step does, if other than MSCCL's.
    """
    steps = _sorted(found.steps)
    memory = Memory(found, steps)
    for step in steps:
        memory.enter(step)
        (run or _run)(step, memory)
    ends = _ends(found, memory)
    nodes = dataflow.needed(ends)
    dataflow.fold(nodes)
    nodes = dataflow.needed(ends)
    _share(found, nodes, ends)
    nodes = dataflow.needed(ends)
    dataflow.order(_before(nodes))
    count = [0] * found.ngpus
    waited = {id(o) for n in nodes for o in n.operands + n.after if not o.source}
    for node in nodes:
        if id(node) in waited:
            node.flag = count[node.gpu]
            count[node.gpu] += 1
    return Program(found.operation, found.ngpus, found.per, nodes)


def _run(step: Step, memory: Memory) -> None:
    for i in range(step.count):
        def place(end: tuple[str, int], i: int = i) -> tuple[int, str, int]:
            return memory.place(step.gpu, end[0], end[1] + i)

        node: Node | None = None
        if step.sender:
            node = step.sender.sent[i]
        elif step.type != "nop":
            node = memory.read(step, place(step.src))
        if node is None or step.type == "s":
            step.sent += [node] if node else []
            continue
        if step.type in REDUCES:
            own = memory.read(step, place(step.dst if step.type == "re" else step.src))
            twice = own.parts & node.parts
            if twice or len({chunk for _, chunk in own.parts | node.parts}) > 1:
                fail(step.where, f"adds chunks {sorted(own.parts)[:3]} and {sorted(node.parts)[:3]} of (gpu, chunk)")
            # Exchanged sums are added in one order on both sides, so that all members get the same bits.
            both = sorted((own, node), key=lambda n: min(n.parts))
            made = Node(step.gpu, both, own.parts | node.parts)
        else:
            made = Node(step.gpu, [node], node.parts)
        if step.type in STORES:
            memory.write(step, place(step.dst), made)
        step.sent.append(made)


def _ends(found: File, memory: Memory) -> list[Node]:
    """The nodes that OUT ends with, which must be what the operation promises."""
    ends = []
    for gpu in range(found.ngpus):
        done = memory.done(gpu)
        for out in range(found.chunks[gpu]["o"]):
            node = memory.holds.get(memory.place(gpu, "o", out))
            wanted = _promise(found, gpu, out)
            if node is None or node.parts != wanted:
                held = "nothing" if node is None else f"{sorted(node.parts)[:4]}"
                fail(f"gpu {gpu}", f"output chunk {out} ends with {held}, not {sorted(wanted)[:4]} of (gpu, chunk)")
            writer = memory.last.get(memory.place(gpu, "o", out), (None, []))[0]
            if writer is not None and not done >> memory.number[id(writer)] & 1:
                fail(writer.where, f"writes output chunk {out} of gpu {gpu}, which does not wait for it")
            if node.source or node.gpu != gpu or node.out >= 0:
                node = Node(gpu, [node], node.parts)
            node.out = out
            ends.append(node)
    return ends


def _promise(found: File, gpu: int, out: int) -> frozenset[tuple[int, int]]:
    per = found.per
    if found.operation == "all_gather":
        return frozenset(((out // per, out % per),))
    if found.operation == "all_to_all":
        return frozenset(((out // per, gpu * per + out % per),))
    chunk = out if found.operation == "all_reduce" else gpu * per + out
    return frozenset((g, chunk) for g in range(found.ngpus))


def _share(found: File, nodes: list[Node], ends: list[Node]) -> None:
    """What is written to OUT comes after readers of SRC there, or, where they need it, by way of a slot."""
    moved: dict[int, Node] = {}
    readers: dict[tuple[int, int], list[Node]] = {}
    for node in nodes:
        for operand in node.operands:
            if operand.source:
                readers.setdefault((operand.gpu, operand.chunk), []).append(node)
    for i, end in enumerate(ends):
        there = dataflow.shared(found.operation, end.gpu, found.per, end.out)
        after = [n for n in readers.get((end.gpu, there), ()) if n is not end]
        reads = any(o.source and (o.gpu, o.chunk) != (end.gpu, there) for o in end.operands)
        if after and (end.uses or reads):  # others may wait for it that it would wait for
            moved[id(end)] = Node(end.gpu, end.operands, end.parts)
            ends[i] = Node(end.gpu, [end], end.parts, out=end.out)
        ends[i].after = after
    for node in [*nodes, *moved.values(), *ends]:
        node.operands = [moved.get(id(o), o) for o in node.operands]
    for end in ends:
        end.after = [moved.get(id(n), n) for n in end.after]


def _before(nodes: list[Node]) -> list[Node]:
    """Nodes in an order that has operands and ``after`` first."""
    return sorted(nodes, key=lambda n: bool(n.after))
