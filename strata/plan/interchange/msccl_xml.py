"""MSCCL XML: threadblocks of steps that send, receive, copy and reduce chunks.

Read as msccl-tools writes it and MSCCL's runtime understands it: a threadblock's steps run in
order, a step after the one it names by depid and deps; the k-th send on a (sender, receiver,
channel) goes to the k-th receive; what a send carries is what its chunk holds then.  Reductions
combine the step's own operand (srcbuf, srcoff; of ``re``: dstbuf, dstoff) with what arrives, that
of the lowest member first.  proto, nchannels, minBytes and maxBytes are another machine's tuning,
and ignored.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from os import PathLike

from strata.errors import InvalidArgument
from strata.plan.algorithms.algorithm import Algorithm
from strata.plan.interchange.msccl_values import (
    MAX_FILE,
    RECEIVES,
    REDUCES,
    SENDS,
    STORES,
    TYPES,
    File,
    Step,
    fail,
    load,
    understood,
)

OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
MAX_GPUS, MAX_CHUNKS, MAX_STEPS = 1024, 1 << 16, 1 << 18


def read(file: str | PathLike[str]) -> Algorithm:
    """The algorithm in a file, for ``algorithms.register``; InvalidArgument says what is wrong where.

    What each member ends with is proved while reading.  It works for any count and dtype: a part
    is cut into the file's chunks at whole lines and elements, some of which may be empty.
    """
    return parse(load(file))


def parse(data: bytes) -> Algorithm:
    """``read`` of the file's bytes."""
    if len(data) > MAX_FILE or b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise InvalidArgument(f"MSCCL XML: more than {MAX_FILE} bytes, or a document type")
    try:
        top = ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise InvalidArgument(f"MSCCL XML: {error}") from None
    order = "as in the MSCCL XML file; the lowest member's operand first"
    return understood("MSCCL XML", lambda: _file(top), None, order)


def _number(element: ElementTree.Element, name: str, where: str, low: int, high: int,
            default: int | None = None) -> int:  # fmt: skip
    text = element.get(name)
    if text is None and default is not None:
        return default
    if text is None or not re.fullmatch("-?[0-9]{1,9}", text):
        fail(where, f"{name} is {text if text is None else text[:20]!r}, no number")
    value = int(text)
    if not low <= value <= high:
        fail(where, f"{name} is {value}, not {low} to {high}")
    return value


def _file(top: ElementTree.Element) -> File:
    if top.tag != "algo":
        fail("top", f"the element is <{top.tag}>, not <algo>")
    name, coll = top.get("name") or "", top.get("coll") or ""
    if not name:
        fail("algo", "it has no name")
    if coll not in OPERATIONS:
        fail("algo", f"coll is {coll!r}, not one of {', '.join(OPERATIONS)}")
    ngpus = _number(top, "ngpus", "algo", 1, MAX_GPUS)
    in_place = bool(_number(top, "inplace", "algo", 0, 1))
    total = _number(top, "nchunksperloop", "algo", 1, MAX_CHUNKS)
    operation = OPERATIONS[coll]
    if operation != "all_reduce" and total % ngpus:
        fail("algo", f"nchunksperloop {total} is no multiple of ngpus {ngpus}")
    per = total if operation == "all_reduce" else total // ngpus
    gpus = {_number(g, "id", "gpu", 0, ngpus - 1): g for g in top}
    if sorted(gpus) != list(range(ngpus)) or len(top) != ngpus:
        fail("algo", f"there are gpus {sorted(gpus)}, not each of 0 to {ngpus - 1} once")
    chunks, steps = [], []
    for rank, gpu in sorted(gpus.items()):
        where = f"gpu {rank}"
        has_in = total if operation != "all_gather" else per
        has_out = total if operation != "reduce_scatter" else per
        chunks.append({"i": has_in, "o": has_out, "s": _number(gpu, "s_chunks", where, 0, MAX_CHUNKS, 0)})
        steps += _gpu(gpu, rank, ngpus, chunks[-1])
        if len(steps) > MAX_STEPS:
            fail(where, f"more than {MAX_STEPS} steps")
    _connect(steps, top)
    return File(name, operation, ngpus, in_place, per, chunks, steps)


def _gpu(gpu: ElementTree.Element, rank: int, ngpus: int, chunks: dict[str, int]) -> list[Step]:
    blocks: dict[int, list[Step]] = {}
    elements: dict[int, ElementTree.Element] = {}
    for tb in gpu:
        at = _number(tb, "id", f"gpu {rank}", 0, 1 << 20)
        where = f"gpu {rank} tb {at}"
        if tb.tag != "tb" or at in blocks:
            fail(where, f"<{tb.tag}> is no threadblock, or is there twice")
        peers = {side: _number(tb, side, where, -1, ngpus - 1) for side in ("send", "recv")}
        _number(tb, "chan", where, -1, 1 << 20)
        blocks[at], elements[at] = [], tb
        for number, element in enumerate(tb):
            step = _step(element, f"{where} step {number}", rank, number, peers, chunks)
            step.before += blocks[at][-1:]
            blocks[at].append(step)
    for at, tb in elements.items():
        for step, element in zip(blocks[at], tb, strict=True):
            dep = _number(element, "depid", step.where, -1, 1 << 20, -1)
            number = _number(element, "deps", step.where, -1, 1 << 20, -1)
            if dep >= 0 and number >= 0:
                if dep not in blocks or number >= len(blocks[dep]):
                    fail(step.where, f"depends on tb {dep} step {number}, which there is not")
                step.before.append(blocks[dep][number])
    return [step for block in blocks.values() for step in block]


def _step(element: ElementTree.Element, where: str, rank: int, number: int, peers: dict[str, int],
          chunks: dict[str, int]) -> Step:  # fmt: skip
    if element.tag != "step" or _number(element, "s", where, 0, MAX_STEPS) != number:
        fail(where, f"<{element.tag} s={element.get('s')!r}> is not step {number}")
    kind = element.get("type") or ""
    if kind not in TYPES:
        fail(where, f"type is {kind!r}, not one of {', '.join(sorted(TYPES))}")
    if kind == "nop":
        return Step(where, rank, kind, ("i", 0), ("i", 0), 0)
    for side, types in (("send", SENDS), ("recv", RECEIVES)):
        if kind in types and peers[side] in (-1, rank):
            fail(where, f"type {kind}, but the threadblock's {side} is {peers[side]}")
    count = _number(element, "cnt", where, 1, MAX_CHUNKS)
    own = {"src": kind in ("s", "cpy") or kind in REDUCES, "dst": kind in STORES}
    places = []
    for side, used in own.items():
        buf = element.get(f"{side}buf") or ""
        at = _number(element, f"{side}off", where, -1, MAX_CHUNKS, -1)
        if used and (buf not in chunks or at < 0 or at + count > chunks[buf]):
            fail(where, f"{side}buf {buf!r} has no chunks {at} to {at + count - 1} (it has {chunks.get(buf, 0)})")
        places.append((buf, at))
    return Step(where, rank, kind, places[0], places[1], count)


def _connect(steps: list[Step], top: ElementTree.Element) -> None:
    """Matches sends with receives, in order, by (sender, receiver, channel)."""
    ends: dict[tuple[int, int, int], tuple[list[Step], list[Step]]] = {}
    by_name = {step.where: step for step in steps}
    for gpu in top:
        rank = int(gpu.get("id", "0"))
        used: set[tuple[str, int, int]] = set()
        for tb in gpu:
            where = f"gpu {rank} tb {int(tb.get('id', '0'))}"
            chan = int(tb.get("chan", "0"))
            mine = [by_name[f"{where} step {i}"] for i in range(len(tb))]
            for side, types, at in (("send", SENDS, 0), ("recv", RECEIVES, 1)):
                peer = int(tb.get(side, "-1"))
                acting = [step for step in mine if step.type in types]
                if not acting:
                    continue
                if (side, peer, chan) in used:
                    fail(where, f"another threadblock has {side}={peer} on channel {chan}")
                used.add((side, peer, chan))
                key = (rank, peer, chan) if at == 0 else (peer, rank, chan)
                ends.setdefault(key, ([], []))[at].extend(acting)
    for (sender, receiver, chan), (sends, receives) in ends.items():
        if len(sends) != len(receives):
            fail(f"gpu {sender} to gpu {receiver} on channel {chan}", f"{len(sends)} sends, {len(receives)} receives")
        for send, receive in zip(sends, receives, strict=True):
            if send.count != receive.count:
                fail(receive.where, f"takes {receive.count} chunks; {send.where} sends {send.count}")
            receive.sender = send
