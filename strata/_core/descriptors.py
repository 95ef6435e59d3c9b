"""Descriptors as data, and in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from strata import errors
from strata.dtypes import OPS

# Twins of the structs in st_abi_sdma.h; a test compares them.
DESCRIPTOR = np.dtype(
    [
        ("commit", "u8"), ("type", "u1"), ("op", "u1"), ("dtype", "u1"), ("flags", "u1"), ("event", "u4"),
        ("src", "u8"), ("dst", "u8"), ("bytes", "u8"), ("value", "u8"),
        ("src_gen", "u4"), ("dst_gen", "u4"), ("wake", "u4"), ("status", "u4"),
    ]
)  # fmt: skip
OPERAND = np.dtype([("va", "u8"), ("generation", "u4"), ("flags", "u4")])

COPY, REDUCE, ACCUMULATE, FILL, WRITE, ADD, COUNT, GATE, NOTIFY, NOP, CALL = range(1, 12)
TYPES = ("nothing", "copy", "reduce", "accumulate", "fill", "write", "add", "count", "gate", "notify", "nop", "call")
BEGIN, RELATIVE, NT, WORLD, LIST, SILENT, HOST = 1, 2, 4, 8, 16, 32, 64
BLOCK = 1 << 20
MOST = 64 << 20
POISON = 1 << 63
FOREVER = (1 << 64) - 1  # as a gate's timeout


def describe(d: Any) -> str:
    """A descriptor (a record of DESCRIPTOR) in words."""
    kind = int(d["type"])
    name = TYPES[kind] if kind < len(TYPES) else f"type {kind}"
    src, dst, nbytes, value = (int(d[k]) for k in ("src", "dst", "bytes", "value"))
    if kind == COPY:
        return f"copy of {nbytes} bytes from {src:#x} to {dst:#x}"
    if kind == FILL:
        return f"fill of {nbytes} bytes at {dst:#x}"
    if kind in (REDUCE, ACCUMULATE):
        op = OPS[int(d["op"])] if int(d["op"]) < len(OPS) else f"op {int(d['op'])}"
        return f"{name} ({op}) of {nbytes} bytes from {src:#x} to {dst:#x}"
    if kind in (WRITE, ADD, COUNT):
        return f"{name} of flag {dst:#x}, value {value}"
    if kind == GATE:
        return f"gate on flag {src:#x}, which is to come to {value}"
    if kind == CALL:
        return f"call of {nbytes} descriptors at {src:#x}"
    return name


def phrase(status: int) -> str:
    """What a status means, of descriptors."""
    name, kind, text = errors.STATUS[status]
    if name == "ST_ENOJOB":
        return "the die has left the job (strata.finalize), which ends its DMA thread"
    if name == "ST_EREG":
        return ("memory that it names is not there, may not be written to, or has been given back since the batch "
                "was built: keep its arrays, and a peer's, until it has ended")  # fmt: skip
    return text or (kind.phrase if kind is not None else name)


def _limit(ns: int) -> str:
    """A gate's timeout, and how to have another."""
    return f"{ns / 1e9:g} s by the gate's timeout=" if ns else "by option timeout; gate(..., timeout=) is another limit"


def failure(status: int, rank: int, ring: int, index: int, failed: bytes, cycle: list[tuple[int, int, int, int]],
            poisoned: bool = False) -> errors.StrataError:  # fmt: skip
    """The error of a submission that failed with ``status`` at descriptor ``index`` of ``ring``.

    ``failed``: the 64 bytes of the descriptor; ``cycle``: (rank, ring, flag, value) of gates that wait for each other;
    ``poisoned``: it is a gate whose flag is.
    """
    d = np.frombuffer(failed, DESCRIPTOR)[0]
    where = f"descriptor {index} of ring {ring} of rank {rank}, {describe(d)}"
    ranks: list[int] = sorted({c[0] for c in cycle}) or [rank]
    if cycle:
        gates = "; ".join(f"ring {r} of rank {die} waits for flag {va:#x} to come to {value}"
                          for die, r, va, value in cycle)  # fmt: skip
        text = f"{where}: {errors.Deadlock.phrase}, each behind another: {gates}"
    elif poisoned:
        text = f"{where}: it is poisoned, since what was to raise it has failed: {phrase(status)}"
    elif int(d["type"]) == GATE and errors.STATUS[status].name == "ST_ETIMEOUT":
        text = f"{where}: the flag did not come to it in time, {_limit(int(d['bytes']))}"
    elif not 0 < int(d["type"]) < len(TYPES):
        text = f"{where}: there is no such type"
    else:
        text = f"{where}: {phrase(status)}"
    return errors.from_status(status, text, ranks=ranks, operation="sdma")
