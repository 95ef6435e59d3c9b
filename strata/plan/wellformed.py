"""Whether a plan is well formed: executing it then touches nothing beyond ``buffer_bytes``."""

from __future__ import annotations

from typing import Any

import numpy as np

from strata.plan.records import (
    ACCUMULATE,
    COMBINE,
    COPY,
    DTYPE_BYTES,
    DTYPE_NAMES,
    MAX_ENTRIES,
    MAX_FLAGS,
    NBUFS,
    NO_ROW,
    NONE,
    OP_NAMES,
    PARTIAL,
    PULL,
    PUSH,
    REDUCE,
    ROW_BITS,
    ROWS,
    SLICE_FLAGS,
    SYNC,
    SYNC_SLICE,
    TIER_NAMES,
    partial_bytes,
)


def problem(plan: Any) -> str | None:
    """What is malformed in a plan, or None."""
    units, operands, n = plan.units, plan.operands, plan.spec.nranks
    for name in ("rank", "cores", "scratch", "makespan_ps", "bound_ps"):
        if type(getattr(plan, name)) is not int or not 0 <= getattr(plan, name) < 1 << 62:
            return f"{name} is {str(getattr(plan, name))[:40]}"
    if not plan.rank < n or not plan.cores:
        return f"die {plan.rank} of {n} on {plan.cores} cores"
    begin = plan.core_begin.astype(np.int64)
    if begin.shape != (plan.cores + 1,) or begin[0] or begin[-1] != len(units):
        return "core_begin does not span the units"
    if (np.diff(begin) < 0).any():
        return "core_begin falls"
    if plan.buffer_bytes.shape != (n, NBUFS):
        return f"buffer_bytes has shape {plan.buffer_bytes.shape}, not {(n, NBUFS)}"
    kind = units["kind"]
    copies, reduces, syncs, adds, moves, sums = (
        kind == k for k in (COPY, REDUCE, SYNC, ACCUMULATE, ROWS, COMBINE)
    )
    nsrc, ndst = units["nsrc"].astype(np.int64), units["ndst"].astype(np.int64)
    src, dst = units["src_first"].astype(np.int64), units["dst_first"].astype(np.int64)
    mean = units["op"] == OP_NAMES.index("avg")
    wrong = {
        "an unknown kind": ~(copies | reduces | syncs | adds | moves | sums),
        "an operator that does not go with its kind": (units["op"] != 0) != (reduces | adds),
        "an unknown operator": units["op"] >= len(OP_NAMES),
        "a mean that is accumulated atomically": adds & mean,
        "an unknown dtype": units["dtype"] >= len(DTYPE_NAMES),
        "an unknown tier": units["tier"] >= len(TIER_NAMES),
        "other than one source": (copies | adds | moves) & (nsrc != 1),
        "other than one destination": (moves | sums) & (ndst != 1),
        "no operands": ~syncs & (((nsrc == 0) & ~sums) | (ndst == 0)),
        "operands beyond the table": np.maximum(src + nsrc, dst + ndst) > len(operands),
        "no bytes": ~syncs & (units["bytes"] == 0),
        "operands or bytes, though it only synchronises": syncs & ((nsrc + ndst != 0) | (units["bytes"] != 0)),
        "split elements": (reduces | adds | sums) & _splits(units, units["bytes"]),
        "split rows": (moves | sums) & ((units["row"] == 0) | (units["bytes"] % np.maximum(units["row"], 1) != 0)),
        "elements split by rows": sums & _splits(units, units["row"]),
        "a number of entries out of range": sums & ((units["total"] == 0) | (units["total"] > MAX_ENTRIES)),
        "too many bytes": units["bytes"] >= 1 << 60,
        "another core's number": units["core"] != np.repeat(np.arange(plan.cores), np.diff(begin)),
        "flags": units["flags"] != 0,
        "rows that go with another kind": ~(moves | sums) & ((units["row"] != 0) | (units["index"] != 0)),
        "a total that is no mean's": (units["total"] != 0) & ~mean & ~sums,
        "wait_flag or wait_peer without the other": (units["wait_flag"] == NONE) != (units["wait_peer"] == NONE),
        "wait_peer out of the group": (units["wait_peer"] < NONE) | (units["wait_peer"] >= n),
        "a flag out of range": np.maximum(units["wait_flag"], units["post_flag"]) >= MAX_FLAGS,
        "a negative flag": np.minimum(units["wait_flag"], units["post_flag"]) < NONE,
    }
    for what, where in wrong.items():
        if where.any():
            return f"unit {int(where.argmax())} has {what}"
    return _operand_problem(plan, src, dst, nsrc, ndst) or _row_problem(plan, moves | sums) or _slice_problem(plan)


def _slice_problem(plan: Any) -> str | None:
    """Slices are not executed; they are shown, compared and exported."""
    s, n = plan.slices, plan.spec.nranks
    sync = s["kind"] == SYNC_SLICE
    wrong = {
        "an unknown kind": ~((s["kind"] == PULL) | (s["kind"] == PUSH) | sync),
        "an unknown operator": s["op"] >= len(OP_NAMES),
        "an unknown buffer": np.maximum(s["src_buf"], s["dst_buf"]) >= NBUFS,
        "a peer out of the group": ~sync & ((s["peer"] < 0) | (s["peer"] >= n)),
        "unknown flags": s["flags"] & ~np.uint16(SLICE_FLAGS) != 0,
        "bytes, though it only synchronises, or none, though it transfers": (s["bytes"] == 0) != sync,
        "too many bytes": np.maximum(np.maximum(s["src"], s["dst"]), s["bytes"]) >= 1 << 62,
        "wait_flag or wait_peer without the other": (s["wait_flag"] == NONE) != (s["wait_peer"] == NONE),
        "wait_peer out of the group": (s["wait_peer"] < NONE) | (s["wait_peer"] >= n),
        "a flag out of range": np.maximum(s["wait_flag"], s["post_flag"]) >= MAX_FLAGS,
        "a negative flag": np.minimum(s["wait_flag"], s["post_flag"]) < NONE,
    }
    for what, where in wrong.items():
        if where.any():
            return f"slice {int(where.argmax())} has {what}"
    return "the slices' steps fall" if (np.diff(s["step"].astype(np.int64)) < 0).any() else None


def _splits(units: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Where a length is not whole elements of the unit's dtype; raw bytes are no elements."""
    size = np.array(DTYPE_BYTES, np.uint64)[np.minimum(units["dtype"], len(DTYPE_BYTES) - 1)]
    return (size == 0) | (length % np.maximum(size, np.uint64(1)) != 0)


def _row_problem(plan: Any, mine: np.ndarray) -> str | None:
    """What is wrong with the rows that units ``mine`` name."""
    if plan.rows is None:
        return "units move rows, and the plan lists none" if mine.any() else None
    if plan.rows.ndim != 1 or plan.rows.dtype != np.dtype("<u8"):
        return f"rows are {plan.rows.dtype} of shape {plan.rows.shape}"
    if not mine.any():
        return "the plan lists rows, and no unit moves any" if len(plan.rows) else None
    units, operands = plan.units[mine], plan.operands
    numbers, row = np.flatnonzero(mine), units["row"].astype(np.int64)
    length = units["bytes"].astype(np.int64) // row
    sums = units["kind"] == COMBINE
    length[sums] *= units["total"][sums]
    index = units["index"]
    if (index >= len(plan.rows)).any() or (index.astype(np.int64) + length > len(plan.rows)).any():
        beyond = (index >= len(plan.rows)) | (index + length.astype(np.uint64) > len(plan.rows))
        return f"unit {numbers[beyond.argmax()]} has entries beyond the plan's rows"
    first = operands["offset"][units["dst_first"]].astype(np.int64) % row
    if first.any():
        return f"unit {numbers[first.argmax()]} begins within a row of its destination"
    owner, which = spread(units["src_first"].astype(np.int64), units["nsrc"].astype(np.int64))
    first = operands["offset"][which].astype(np.int64) % row[owner]
    if first.any():
        return f"unit {numbers[owner[first.argmax()]]} has a source that begins within a row"
    unit, where = spread(index.astype(np.int64), length)
    entry = plan.rows[where]
    named = np.flatnonzero(~(sums[unit] & (entry == NO_ROW)))
    unit, entry = unit[named], entry[named]
    which = np.where(sums[unit], entry >> np.uint64(ROW_BITS), 0).astype(np.int64)
    entry = np.where(sums[unit], entry & np.uint64((1 << ROW_BITS) - 1), entry)
    stray = which >= units["nsrc"][unit]
    if stray.any():
        return f"unit {numbers[unit[stray.argmax()]]} has an entry of an operand that it does not have"
    source = operands[units["src_first"][unit].astype(np.int64) + which]
    room = plan.buffer_bytes.reshape(-1)[source["member"].astype(np.int64) * NBUFS + source["buf"]]
    rows = (room - np.minimum(source["offset"], room)) // row[unit].astype(np.uint64)
    beyond = entry >= rows
    return f"unit {numbers[unit[beyond.argmax()]]} names a row beyond buffer_bytes" if beyond.any() else None


def _operand_problem(plan: Any, src, dst, nsrc, ndst) -> str | None:
    units, operands, n = plan.units, plan.operands, plan.spec.nranks
    wrong = (operands["member"] < 0) | (operands["member"] >= n) | (operands["buf"] >= NBUFS)
    wrong |= operands["pad"].any(axis=1) | (operands["offset"] >= 1 << 62) | (operands["flags"] > PARTIAL)
    if wrong.any():
        return f"operand {int(wrong.argmax())} is no place of a member's buffer"
    place = operands["member"].astype(np.int64) * NBUFS + operands["buf"]
    room = plan.buffer_bytes.reshape(-1)
    for first, number in ((src, nsrc), (dst, ndst)):
        unit, which = spread(first, number)
        stray = (operands["flags"][which] != 0) & (units["kind"][unit] != REDUCE)
        if stray.any():
            return f"unit {int(unit[stray.argmax()])} has a partial operand, though it does not reduce"
        length = operand_bytes(units[unit], operands[which])
        if number is nsrc:  # of rows, which may be any, ``_row_problem`` looks at each
            length = np.where(units["row"][unit] != 0, 0, length).astype(np.uint64)
        beyond = operands["offset"][which] + length > room[place[which]]
        if beyond.any():
            return f"unit {int(unit[beyond.argmax()])} reaches beyond buffer_bytes"
    return None


def spread(first: np.ndarray, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The operands [first, first + number) of all units, int64: the unit of each, and where in the table it is."""
    unit = np.repeat(np.arange(len(number)), number)
    return unit, np.arange(len(unit)) - np.repeat(np.cumsum(number) - number - first, number)


def operand_bytes(units: np.ndarray, operands: np.ndarray) -> np.ndarray:
    """Bytes of each operand, u64; ``units``: that of each."""
    whole = units["bytes"]
    wide = whole // _ELEMENT[units["dtype"]] * _WIDE[units["dtype"], units["op"]]
    return np.where(operands["flags"] & PARTIAL, wide, whole)


_ELEMENT = np.array([max(size, 1) for size in DTYPE_BYTES], np.uint64)
_WIDE = np.array([[partial_bytes(d, o) for o in range(len(OP_NAMES))] for d in range(len(DTYPE_NAMES))], np.uint64)
