"""Plans as MSCCL XML: every transfer a send and a receive, in a threadblock for each pair of members and direction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn
from xml.sax.saxutils import quoteattr

import numpy as np

from strata.errors import InvalidArgument
from strata.plan.plan import Plan
from strata.plan.records import ATOMIC, NONE, PULL, SYNC_SLICE, TRANSIENT, partial_bytes

COLLECTIVES = {
    "all_gather": "allgather",
    "all_to_all": "alltoall",
    "all_reduce": "allreduce",
    "reduce_scatter": "reduce_scatter",
}
LETTERS = "ios"
PULLED, PUSHED = 0, 1  # channels

Place = tuple[int, int]  # buffer, byte offset


@dataclass(eq=False)
class _Step:
    """A step; ``after``: others of its gpu that come before it."""

    gpu: int
    kind: str
    src: Place | None
    dst: Place | None
    bytes: int
    after: list[_Step] = field(default_factory=list)
    block: tuple[int, int, int] = (-1, -1, 0)  # send, recv, chan
    number: int = -1


class _Writer:
    def __init__(self, plans: Sequence[Plan]) -> None:
        self.plans, self.spec = plans, plans[0].spec
        self.blocks: list[dict[tuple[int, int, int], list[_Step]]] = [{} for _ in plans]
        self.posted: dict[tuple[int, int], list[_Step]] = {}
        self.waits: list[tuple[_Step, _Step, tuple[int, int], str]] = []  # sender, receiver, flag, where

    def add(self, step: _Step, send: int = -1, recv: int = -1, chan: int = 0) -> _Step:
        step.block = (send, recv, chan)
        block = self.blocks[step.gpu].setdefault(step.block, [])
        step.number = len(block)
        block.append(step)
        return step

    def transfer(self, sender: int, receiver: int, src: Place, step: _Step, chan: int) -> _Step:
        """The sender's half of ``step``."""
        half = _Step(sender, "s", src, None, step.bytes)
        self.add(half, send=receiver, chan=chan)
        self.add(step, recv=sender, chan=chan)
        return half

    def die(self, plan: Plan) -> None:
        """All slices of a member, in their order."""
        held: list[tuple[int, int]] = []  # flags of sync slices: all that follows waits
        done: list[_Step] = []
        fused: dict[tuple[int, ...], list[tuple[int, Any]]] = {}
        for number, s in enumerate(plan.slices):
            if s["op"]:
                fused.setdefault(_whole(s, "dst"), []).append((number, s))
        made: dict[tuple[int, ...], _Step] = {}
        for number, s in enumerate(plan.slices):
            where = f"die {plan.rank} slice {number}"
            if s["flags"] & (ATOMIC | TRANSIENT):
                _fail(where, "atomic and transient slices cannot be written")
            if s["kind"] == SYNC_SLICE:
                held += [_flag(s)] if s["wait_flag"] != NONE else []
                self.post(plan.rank, s, list(done))
                continue
            if s["op"]:
                group = fused[_whole(s, "dst")]
                if number != group[-1][0]:
                    continue  # the last of its operands makes it
                steps = self.reduction(plan.rank, group, held)
                made[_whole(s, "dst")] = steps[-1]
            else:
                steps = [self.copy(plan.rank, s, held, where, made)]
            done += steps
            for _, each in fused[_whole(s, "dst")] if s["op"] else [(number, s)]:
                self.post(plan.rank, each, steps[-1:])

    def post(self, rank: int, s: Any, steps: list[_Step]) -> None:
        if s["post_flag"] != NONE:
            found = self.posted.setdefault((rank, int(s["post_flag"])), [])
            found += [step for step in steps if step not in found]

    def copy(self, rank: int, s: Any, held: list[tuple[int, int]], where: str,
             made: dict[tuple[int, ...], _Step]) -> _Step:  # fmt: skip
        peer, pull = int(s["peer"]), s["kind"] == PULL
        sender, receiver = (peer, rank) if pull else (rank, peer)
        src, dst = _place(s, "src"), _place(s, "dst")
        nbytes = int(s["bytes"])
        if sender == receiver:
            half = step = self.add(_Step(rank, "cpy", src, dst, nbytes))
        else:
            step = _Step(receiver, "r", None, dst, nbytes)
            half = self.transfer(sender, receiver, src, step, PULLED if pull else PUSHED)
        if not pull and (before := made.get(_whole(s, "src"))) is not None:
            half.after.append(before)
        self.wait(half, step, s, held, where)
        return step

    def reduction(self, rank: int, group: list[tuple[int, Any]], held: list[tuple[int, int]]) -> list[_Step]:
        """Own operands first, then what arrives, one after the other, into the destination."""
        first = group[0][1]
        dst, nbytes = _place(first, "dst"), int(first["bytes"])
        own = [(k, s) for k, s in group if int(s["peer"]) == rank]
        far = [(k, s) for k, s in group if int(s["peer"]) != rank]
        steps: list[_Step] = []

        def then(step: _Step, half: _Step, s: Any, number: int) -> None:
            step.after += steps[-1:]
            self.wait(half, step, s, held, f"die {rank} slice {number}")
            steps.append(step)

        base = _place(own[0][1], "src") if own else None
        for i, (number, s) in enumerate(own):
            if i == 0 and (len(own) > 1 or not far):
                step = self.add(_Step(rank, "cpy", base, dst, nbytes))
                then(step, step, s, number)
                base = dst
            elif i:
                step = self.add(_Step(rank, "re", _place(s, "src"), dst, nbytes))
                then(step, step, s, number)
        for number, s in far:
            step = _Step(rank, "r" if base is None else "rrc", base, dst, nbytes)
            half = self.transfer(int(s["peer"]), rank, _place(s, "src"), step, PULLED)
            then(step, half, s, number)
            base = dst
        if len(own) == 1 and far:  # its wait goes with the step that takes it
            self.wait(steps[0], steps[0], own[0][1], [], f"die {rank} slice {own[0][0]}")
        return steps

    def wait(self, sender: _Step, receiver: _Step, s: Any, held: list[tuple[int, int]], where: str) -> None:
        flags = [*held, _flag(s)] if s["wait_flag"] != NONE else held
        self.waits += [(sender, receiver, flag, where) for flag in flags]

    def order(self) -> None:
        """Waits become dependences of the half that is on the poster's gpu."""
        for sender, receiver, flag, where in self.waits:
            for poster in self.posted.get(flag, []):
                half = next((h for h in (receiver, sender) if h.gpu == poster.gpu), None)
                if half is None:
                    _fail(where, f"waiting for gpu {poster.gpu}, neither end of the transfer, cannot be written")
                if half is not poster and poster not in half.after:
                    half.after.append(poster)

    def chunk(self) -> int:
        """Bytes that divide every offset and length."""
        sizes = [self.spec.part]
        for plan in self.plans:
            for name in ("src", "dst", "bytes"):
                sizes += np.unique(plan.slices[name]).tolist()
        return math.gcd(*(int(size) for size in sizes))


def write(plans: Sequence[Plan]) -> str:
    """The plans of all members as XML, from their slices; chunks are as large as all offsets allow.

    A pull or push is a send and a receive (pulls on channel 0, pushes on 1), a reduction a chain of
    receives that reduce, a flag a dependence.  InvalidArgument names what cannot be said: other
    operations, mailboxes, members in place, accumulation, partial operands that are wider than
    elements, and waiting for a member that is neither end of the transfer.
    """
    spec = plans[0].spec
    n, part = spec.nranks, spec.part
    if spec.operation not in COLLECTIVES:
        raise InvalidArgument(f"MSCCL XML is written of {', '.join(COLLECTIVES)}, not of {spec.operation}")
    if [p.rank for p in plans] != list(range(n)) or any(p.spec != spec for p in plans):
        raise InvalidArgument("MSCCL XML is of the plans of all members for one spec, in rank order")
    if spec.mode != "zero_copy" or spec.in_place or not part:
        raise InvalidArgument("MSCCL XML is not written of mailboxes, work in place, or no bytes")
    if spec.redop and partial_bytes(spec.dtype, spec.redop) != spec.itemsize:
        raise InvalidArgument("MSCCL XML has no partial operands: write a plan of float32, which is read for any dtype")
    writer = _Writer(plans)
    for plan in plans:
        writer.die(plan)
    writer.order()
    return _text(writer, writer.chunk())


def _text(writer: _Writer, chunk: int) -> str:
    spec = writer.spec
    per, n = spec.part // chunk, spec.nranks
    total = per if spec.operation == "all_reduce" else per * n
    scratch = max((plan.scratch for plan in writer.plans), default=0)
    head = f'proto="Simple" nchannels="2" nchunksperloop="{total}" ngpus="{n}" coll="{COLLECTIVES[spec.operation]}"'
    lines = [f"<algo name={quoteattr(writer.plans[0].algorithm + '_msccl')} {head} inplace=\"0\" outofplace=\"1\">"]
    inputs = per if spec.operation == "all_gather" else total
    outputs = per if spec.operation == "reduce_scatter" else total
    for rank, blocks in enumerate(writer.blocks):
        lines.append(f'  <gpu id="{rank}" i_chunks="{inputs}" o_chunks="{outputs}" s_chunks="{-(-scratch // chunk)}">')
        numbers, lists = _numbered(blocks)
        named = {(numbers[s.block], s.number) for steps in lists.values() for s in steps for s in s.after}
        for block, steps in lists.items():
            send, recv, chan = block
            lines.append(f'    <tb id="{numbers[block]}" send="{send}" recv="{recv}" chan="{chan}">')
            for step in steps:
                lines.append(f"      {_line(step, numbers, chunk, (numbers[block], step.number) in named)}")
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>"]) + "\n"


def _numbered(blocks: dict[tuple[int, int, int], list[_Step]]):
    """Numbers of the threadblocks, and their steps with a nop for each dependence but one."""
    numbers = {block: i for i, block in enumerate(blocks)}
    lists: dict[tuple[int, int, int], list[_Step]] = {}
    for block, steps in blocks.items():
        out = lists[block] = []
        for step in steps:
            needed = [a for a in step.after if a.block != block or a.number > step.number]
            out += [_Step(step.gpu, "nop", None, None, 0, [a], block) for a in needed[:-1]]
            step.after = needed[-1:]
            out.append(step)
    for out in lists.values():
        for i, step in enumerate(out):
            step.number = i
    return numbers, lists


def _line(step: _Step, numbers: dict[tuple[int, int, int], int], chunk: int, named: bool) -> str:
    def at(side: str, place: Place | None) -> str:
        buf, offset = place or (0, -chunk)
        return f'{side}buf="{LETTERS[buf]}" {side}off="{offset // chunk}"'

    after = step.after[0] if step.after else None
    dep = f'depid="{numbers[after.block]}" deps="{after.number}"' if after else 'depid="-1" deps="-1"'
    count = max(step.bytes // chunk, 1)
    return (
        f'<step s="{step.number}" type="{step.kind}" {at("src", step.src)} {at("dst", step.dst)} '
        f'cnt="{count}" {dep} hasdep="{int(named)}"/>'
    )


def _place(s: Any, side: str) -> Place:
    return int(s[f"{side}_buf"]), int(s[side])


def _whole(s: Any, side: str) -> tuple[int, ...]:
    """What slices share that are one reduction, or its pushes."""
    return int(s[f"{side}_buf"]), int(s[side]), int(s["bytes"]), int(s["step"])


def _flag(s: Any) -> tuple[int, int]:
    return int(s["wait_peer"]), int(s["wait_flag"])


def _fail(where: str, why: str) -> NoReturn:
    raise InvalidArgument(f"{where}: {why} as MSCCL XML")
