"""MSCCL++ JSON execution plans: threadblocks of operations on own and remote buffers.

The format as of MSCCL++ 0.8 and 0.9 (it carries no version; keys of others are errors).  Read as its
executor understands it: operations of a threadblock run in order; the k-th wait on a channel follows
the k-th signal on the peer's channel, where the k-th channel of one kind to a peer is the peer's
k-th of that kind back; a barrier joins threadblocks of a gpu; ``tbg_info`` cuts a transfer among
threadblocks.  A relaxed signal is read as a signal, and what an operation moves is complete when the
next begins.  Not read, and errors: packets (LL), switches, pipelines, semaphores.  num_threads_per_block,
buffer_alignment, message sizes and how scratch is reused are another machine's tuning, and ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import lcm
from os import PathLike
from typing import Any

from strata.errors import InvalidArgument
from strata.plan.algorithms.algorithm import Algorithm
from strata.plan.interchange.dataflow import Node
from strata.plan.interchange.msccl_values import MAX_FILE, File, Memory, Step, fail, load, understood

COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
COPIES = ("copy", "get", "put", "pws", "pwsf")
REDUCES = ("re", "res", "rre", "rres")
SIGNALS = ("signal", "rlxsignal", "pws", "pwsf")
WAITS = ("wait", "rlxwait")
TYPES = (*COPIES, *REDUCES, "signal", "rlxsignal", *WAITS, "barrier", "flush", "nop")
# Which sources and results lie in peers' memory: of the first, and of the others.
REMOTE_SRC = {"get": (True, True), "rre": (False, True), "rres": (False, True)}
PUTS = ("put", "pws", "pwsf")
REMOTE_DST = dict.fromkeys(PUTS, (True, True)) | dict.fromkeys(("res", "rres"), (False, True))

TUNING = {"num_threads_per_block", "buffer_alignment", "min_message_size", "max_message_size", "reuse_resources",
          "use_double_scratch_buffer"}  # fmt: skip
KEYS = {
    "plan": {"name", "collective", "protocol", "inplace", "gpus"} | TUNING,
    "gpu": {"id", "input_chunks", "output_chunks", "scratch_chunks", "threadblocks", "channels", "remote_buffers",
            "semaphores"},
    "threadblock": {"id", "ops", "channels", "remote_buffer_refs"},
    "op": {"name", "src_buff", "dst_buff", "channel_ids", "channel_type", "reduce_op", "tbg_info", "barrier_id",
           "num_threadblocks"},
}  # fmt: skip
MAX_GPUS, MAX_CHUNKS, MAX_OPS, MAX_IDS = 1024, 1 << 16, 1 << 18, 1 << 16


@dataclass(eq=False)
class Op(Step):
    """An operation: ``srcs`` and ``dsts`` are (gpu, buffer, first chunk); channels are (type, number on the gpu)."""

    srcs: list[tuple[int, str, int]] = field(default_factory=list)
    dsts: list[tuple[int, str, int]] = field(default_factory=list)
    channels: list[tuple[str, int]] = field(default_factory=list)
    barrier: tuple[int, int] = (-1, 0)


@dataclass(frozen=True)
class Gpu:
    """``peers``: of each channel, by type; ``buffers``: (rank, buffer) of each remote buffer; ``cut``: of a chunk."""

    rank: int
    peers: dict[str, list[int]]
    buffers: list[tuple[int, str]]
    cut: int


def read(file: str | PathLike[str]) -> Algorithm:
    """The algorithm in a file, for ``algorithms.register``; InvalidArgument says what is wrong where.

    What each member ends with is proved while reading.  It works for any count and dtype: a part
    is cut into the file's chunks at whole lines and elements, some of which may be empty.
    """
    return parse(load(file))


def parse(data: bytes) -> Algorithm:
    """``read`` of the file's bytes."""
    if len(data) > MAX_FILE:
        raise InvalidArgument(f"MSCCL++ JSON: more than {MAX_FILE} bytes")
    try:
        top = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"MSCCL++ JSON: {error}") from None
    order = "as in the MSCCL++ plan: the operation's sources in turn"
    return understood("MSCCL++ JSON", lambda: _file(top), _run, order)


def _keys(value: Any, where: str, kind: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        fail(where, f"a {kind} is an object, not {str(value)[:20]!r}")
    for key in value:
        if key not in KEYS[kind]:
            fail(where, f"{key!r} is not known in a {kind} of this format")
    return value


def _number(value: Any, where: str, what: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        fail(where, f"{what} is {str(value)[:20]!r}, not {low} to {high}")
    return int(value)


def _word(value: Any, key: str) -> str:
    """The text in an object; what is none, in words."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, str) else f"<{str(found)[:20]}>"


def _list(value: Any, where: str, what: str) -> list[Any]:
    if not isinstance(value, list):
        fail(where, f"{what} is {str(value)[:20]!r}, no list")
    return value


def _file(top: Any) -> File:
    plan = _keys(top, "top", "plan")
    name, coll = plan.get("name"), _word(plan, "collective")
    if not isinstance(name, str) or not name:
        fail("top", "it has no name")
    if coll not in COLLECTIVES:
        fail("top", f"collective is {coll!r}, not one of {', '.join(COLLECTIVES)}")
    if plan.get("protocol") != "Simple":
        fail("top", f"protocol is {plan.get('protocol')!r}; only Simple is read")
    if type(plan.get("inplace")) is not bool:
        fail("top", f"inplace is {plan.get('inplace')!r}, not true or false")
    gpus = [_keys(g, f"gpu {i}", "gpu") for i, g in enumerate(_list(plan.get("gpus"), "top", "gpus"))]
    if not 0 < len(gpus) <= MAX_GPUS:
        fail("top", f"there are {len(gpus)} gpus, not 1 to {MAX_GPUS}")
    cut, count = _cut(gpus)
    if count > MAX_OPS:
        fail("top", f"more than {MAX_OPS} operations")
    chunks = [_chunks(gpu, f"gpu {i}", cut) for i, gpu in enumerate(gpus)]
    operation, n = COLLECTIVES[coll], len(gpus)
    per = chunks[0]["i"] if operation in ("all_gather", "all_reduce") else chunks[0]["i"] // n
    wanted = (per if operation in ("all_gather", "all_reduce") else n * per,
              per if operation in ("all_reduce", "reduce_scatter") else n * per)  # fmt: skip
    for i, has in enumerate(chunks):
        if (has["i"], has["o"]) != wanted or not per:
            ins, outs = has["i"] // cut, has["o"] // cut
            fail(f"gpu {i}", f"{ins} input and {outs} output chunks do not make an {coll} of {n}")
    known = [_gpu(gpu, i, n, cut) for i, gpu in enumerate(gpus)]
    steps: list[Step] = []
    blocks = [_blocks(gpu, known[i], chunks) for i, gpu in enumerate(gpus)]
    _signals(blocks, known)
    for of_gpu in blocks:
        steps += [op for ops in of_gpu.values() for op in ops]
    return File(name, operation, n, plan["inplace"], per, chunks, steps)


def _cut(gpus: list[dict[str, Any]]) -> tuple[int, int]:
    """Pieces of a chunk, so that groups of threadblocks share whole ones; and how many operations there are."""
    cut, count = 1, 0
    for rank, gpu in enumerate(gpus):
        for block in _list(gpu.get("threadblocks"), f"gpu {rank}", "threadblocks"):
            where = f"gpu {rank} threadblock {block.get('id') if isinstance(block, dict) else '?'}"
            ops = _list(_keys(block, where, "threadblock").get("ops"), where, "ops")
            count += len(ops)
            for i, op in enumerate(ops):
                group = op.get("tbg_info") if isinstance(op, dict) else None
                if group is not None:
                    if not isinstance(group, dict) or set(group) != {"tb_id", "tbg_size"}:
                        fail(f"{where} op {i}", "tbg_info is not tb_id and tbg_size")
                    cut = lcm(cut, _number(group["tbg_size"], f"{where} op {i}", "tbg_size", 1, 64))
    if cut > 64:
        fail("top", f"groups of threadblocks cut chunks into {cut} pieces; at most 64 are read")
    return cut, count


def _chunks(gpu: dict[str, Any], where: str, cut: int) -> dict[str, int]:
    names = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}
    return {buf: cut * _number(gpu.get(name), where, name, 0, MAX_CHUNKS) for buf, name in names.items()}


def _gpu(gpu: dict[str, Any], rank: int, n: int, cut: int) -> Gpu:
    where = f"gpu {rank}"
    if gpu.get("id") != rank:
        fail(where, f"its id is {gpu.get('id')!r}")
    if _list(gpu.get("semaphores", []), where, "semaphores"):
        fail(where, "semaphores are not read")
    peers: dict[str, list[int]] = {"memory": [], "port": []}
    for channel in _list(gpu.get("channels"), where, "channels"):
        kind = _word(channel, "channel_type")
        if kind not in peers or set(channel) != {"channel_type", "connected_to"}:
            fail(where, f"a channel of type {kind!r} is not memory or port, connected_to peers")
        for peer in _list(channel["connected_to"], where, "connected_to"):
            if _number(peer, where, "connected_to", 0, n - 1) == rank:
                fail(where, "a channel is connected to its own gpu")
            peers[kind].append(peer)
    buffers = []
    for buffer in _list(gpu.get("remote_buffers"), where, "remote_buffers"):
        if not isinstance(buffer, dict) or set(buffer) != {"rank", "type", "access_channel_types"}:
            fail(where, "a remote buffer is not rank, type and access_channel_types")
        if buffer["type"] not in ("i", "o", "s"):
            fail(where, f"a remote buffer's type is {buffer['type']!r}, not i, o or s")
        buffers.append((_number(buffer["rank"], where, "a remote buffer's rank", 0, n - 1), buffer["type"]))
    return Gpu(rank, peers, buffers, cut)


def _blocks(gpu: dict[str, Any], known: Gpu, chunks: list[dict[str, int]]) -> dict[int, list[Op]]:
    """The operations of each threadblock, in order; barriers are two: arriving and leaving."""
    blocks: dict[int, list[Op]] = {}
    arrived: dict[tuple[int, int], list[Op]] = {}
    left: dict[tuple[int, int], list[Op]] = {}
    for block in gpu["threadblocks"]:
        at = _number(block.get("id"), f"gpu {known.rank}", "a threadblock's id", 0, MAX_IDS)
        where = f"gpu {known.rank} threadblock {at}"
        if at in blocks:
            fail(where, "it is there twice")
        ids, refs = _refs(block, where, known)
        ops = blocks[at] = []
        met: dict[int, int] = {}
        for i, given in enumerate(block["ops"]):
            op = _op(_keys(given, f"{where} op {i}", "op"), f"{where} op {i}", known, ids, refs, chunks)
            op.before += ops[-1:]
            ops.append(op)
            if op.type == "barrier":
                meeting = op.barrier[0], met.get(op.barrier[0], 0)
                met[op.barrier[0]] = meeting[1] + 1
                ops.append(Op(op.where, op.gpu, "nop", ("", 0), ("", 0), 0, before=[op]))
                arrived.setdefault(meeting, []).append(op)
                left.setdefault(meeting, []).append(ops[-1])
    for meeting, ones in arrived.items():
        for op in ones:
            if op.barrier[1] != len(ones):
                fail(op.where, f"barrier {op.barrier[0]} is of {op.barrier[1]} threadblocks; {len(ones)} come to it")
        for leaving in left[meeting]:
            leaving.before = list(ones)
    return blocks


def _refs(block: dict[str, Any], where: str, known: Gpu) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Channels of the gpu, and remote buffers, that the threadblock's own numbers stand for, by type."""
    found: list[dict[str, list[int]]] = []
    channels, buffers = {k: len(p) for k, p in known.peers.items()}, dict.fromkeys(known.peers, len(known.buffers))
    for key, kind_key, ids_key, limits in (
        ("channels", "channel_type", "channel_ids", channels),
        ("remote_buffer_refs", "access_channel_type", "remote_buffer_ids", buffers),
    ):
        mine: dict[str, list[int]] = {"memory": [], "port": []}
        for ref in _list(block.get(key, []), where, key):
            kind = _word(ref, kind_key)
            if kind not in mine or set(ref) != {kind_key, ids_key}:
                fail(where, f"{key}: {kind_key} is {kind!r}, not memory or port with {ids_key}")
            for one in _list(ref[ids_key], where, ids_key):
                mine[kind].append(_number(one, where, ids_key, 0, limits[kind] - 1))
        found.append(mine)
    return found[0], found[1]


def _op(op: dict[str, Any], where: str, gpu: Gpu, ids: dict[str, list[int]], refs: dict[str, list[int]],
        chunks: list[dict[str, int]]) -> Op:  # fmt: skip
    kind = _word(op, "name")
    if kind not in TYPES:
        fail(where, f"operation {kind!r} is not one of {', '.join(TYPES)}")
    where = f"{where} ({kind})"
    made = Op(where, gpu.rank, kind, ("", 0), ("", 0), 0)
    channel = _word(op, "channel_type")
    if kind in SIGNALS or kind in WAITS:
        if channel not in ids:
            fail(where, f"channel_type is {channel!r}, not memory or port")
        for one in _list(op.get("channel_ids"), where, "channel_ids"):
            made.channels.append((channel, ids[channel][_number(one, where, "channel_ids", 0, len(ids[channel]) - 1)]))
    if kind == "barrier":
        made.barrier = (_number(op.get("barrier_id"), where, "barrier_id", 0, MAX_IDS),
                        _number(op.get("num_threadblocks"), where, "num_threadblocks", 1, MAX_IDS))  # fmt: skip
    if kind not in COPIES and kind not in REDUCES:
        for key in ("src_buff", "dst_buff", "tbg_info", "reduce_op"):
            if key in op:
                fail(where, f"{key} is not for this operation")
        return made
    if op.get("reduce_op", "sum") != "sum":
        fail(where, f"reduce_op is {op['reduce_op']!r}; only sum is read, in whose place comes the caller's operator")
    sizes: set[int] = set()
    for key, places, remote in (("src_buff", made.srcs, REMOTE_SRC), ("dst_buff", made.dsts, REMOTE_DST)):
        for i, place in enumerate(_list(op.get(key), where, key)):
            far = refs.get(channel, []) if remote.get(kind, (False, False))[min(i, 1)] else None
            places.append(_place(place, f"{where} {key} {i}", gpu, far, op, chunks, sizes))
    _shape(made, where, sizes)
    return made


def _shape(op: Op, where: str, sizes: set[int]) -> None:
    """That sources and results fit the operation, and each other."""
    if len(sizes) != 1:
        fail(where, "sources and results are not of one size")
    (op.count,) = sizes
    sources, results = len(op.srcs), len(op.dsts)
    if op.type in COPIES:
        fits = sources == results and (op.type != "copy" or results == 1)
    else:
        fits = sources >= 2 and (results == 1 if op.type in ("re", "rre") else results >= 2)
    if not fits:
        fail(where, f"{sources} sources and {results} results do not make this operation")
    if op.type in ("pws", "pwsf") and len(op.channels) != results:
        fail(where, f"{len(op.channels)} channels for {results} results")


def _place(place: Any, where: str, gpu: Gpu, refs: list[int] | None, op: dict[str, Any], chunks: list[dict[str, int]],
           sizes: set[int]) -> tuple[int, str, int]:  # fmt: skip
    """An operand's gpu, buffer and first chunk; in ``refs`` if it is remote.  Adds its size to ``sizes``."""
    key = "type" if refs is None else "buffer_id"
    if not isinstance(place, dict) or set(place) != {key, "index", "size"}:
        fail(where, f"it is not {key}, index and size")
    rank, buf = gpu.rank, place[key]
    if refs is not None:
        rank, buf = gpu.buffers[refs[_number(place[key], where, key, 0, len(refs) - 1)]]
    elif buf not in ("i", "o", "s"):
        fail(where, f"type is {buf!r}, not i, o or s")
    at = gpu.cut * _number(place["index"], where, "index", 0, MAX_CHUNKS)
    size = gpu.cut * _number(place["size"], where, "size", 1, MAX_CHUNKS)
    if at + size > chunks[rank][buf]:
        has = chunks[rank][buf] // gpu.cut
        fail(where, f"buffer {buf} of gpu {rank} has {has} chunks, not up to {(at + size) // gpu.cut}")
    group = op.get("tbg_info")
    if group is not None:
        size //= group["tbg_size"]
        at += size * _number(group["tb_id"], where, "tb_id", 0, group["tbg_size"] - 1)
    sizes.add(size)
    return rank, buf, at


def _signals(blocks: list[dict[int, list[Op]]], gpus: list[Gpu]) -> None:
    """Each wait comes after the signal it takes."""
    given: dict[tuple[int, str, int], list[Op]] = {}
    taken: dict[tuple[int, str, int], list[Op]] = {}
    for gpu, of_gpu in zip(gpus, blocks, strict=True):
        for types, ends in ((SIGNALS, given), (WAITS, taken)):
            for block, ops in of_gpu.items():
                mine = [(channel, op) for op in ops if op.type in types for channel in op.channels]
                for kind, number in {channel for channel, _ in mine}:
                    if (gpu.rank, kind, number) in ends:
                        fail(f"gpu {gpu.rank} threadblock {block}",
                             f"another threadblock has {types[0]} on {kind} channel {number} as well")  # fmt: skip
                for (kind, number), op in mine:
                    ends.setdefault((gpu.rank, kind, number), []).append(op)
    for gpu in gpus:
        for kind, peers in gpu.peers.items():
            for number, peer in enumerate(peers):
                nth = peers[:number].count(peer)
                back = [i for i, p in enumerate(gpus[peer].peers[kind]) if p == gpu.rank]
                signals = given.get((gpu.rank, kind, number), [])
                waits = taken.get((peer, kind, back[nth]), []) if nth < len(back) else []
                if len(signals) != len(waits):
                    fail(f"gpu {gpu.rank} to gpu {peer}",
                         f"{len(signals)} signals on {kind} channel {number}, {len(waits)} waits for them")  # fmt: skip
                for signal, wait in zip(signals, waits, strict=True):
                    wait.before.append(signal)
    for (rank, kind, number), waits in taken.items():
        peer = gpus[rank].peers[kind][number]
        nth = gpus[rank].peers[kind][:number].count(peer)
        if nth >= gpus[peer].peers[kind].count(rank):
            fail(waits[0].where, f"gpu {peer} has no {kind} channel back that could signal")


def _run(step: Step, memory: Memory) -> None:
    """What an operation reads, computes and writes, chunk by chunk."""
    assert isinstance(step, Op)
    reads: dict[tuple[int, str, int], int] = {}
    held = []
    for i in range(step.count):
        places = [memory.place(gpu, buf, at + i) for gpu, buf, at in step.srcs]
        reads |= dict.fromkeys(places, i)
        held.append([memory.read(step, place) for place in places])
    for i, nodes in enumerate(held):
        if step.type in REDUCES:
            parts = [(gpu, chunk) for node in nodes for gpu, chunk in node.parts]
            if len(set(parts)) < len(parts) or len({chunk for _, chunk in parts}) > 1:
                fail(step.where, f"adds {[sorted(node.parts)[:3] for node in nodes][:4]} of (gpu, chunk)")
            made = Node(step.gpu, nodes, frozenset(parts))
            results = [made] + [Node(gpu, [made], made.parts) for gpu, _, _ in step.dsts[1:]]
        else:
            results = [Node(dst[0], [node], node.parts) for dst, node in zip(step.dsts, nodes, strict=True)]
        for (gpu, buf, at), node in zip(step.dsts, results, strict=True):
            place = memory.place(gpu, buf, at + i)
            if reads.get(place, i) != i:
                fail(step.where, "reads what it writes, at another place")
            memory.write(step, place, node)
