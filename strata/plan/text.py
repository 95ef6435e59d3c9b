"""Plans as text: title, the whole of it, and what two of them differ in."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

from strata.plan.records import (
    BUFFER_NAMES,
    COMBINE,
    DTYPE_NAMES,
    NO_ROW,
    NONE,
    OP_NAMES,
    PARTIAL,
    PUSH,
    ROW_BITS,
    SYNC_SLICE,
    TIER_NAMES,
    UNIT_NAMES,
)


def title(plan: Any) -> str:
    """The plan in one line."""
    s = plan.spec
    what = f"{s.operation} {s.mode} die {plan.rank} of {s.nranks}, {plan.algorithm} {plan.path}"
    kind = f"{s.count} x {s.itemsize} B" if s.counts is None else f"counts x {s.itemsize} B"
    kind += f" {DTYPE_NAMES[s.dtype]}" + (f" {OP_NAMES[s.redop]}" if s.redop else "")
    return f"{what}: {kind}, {len(plan.units)} units on {plan.cores} cores"


def pretty(plan: Any, limit: int = 32) -> str:
    """The plan as text: title, slices and each core's units, at most ``limit`` lines of each."""
    lines = [title(plan)]
    bound = f"{plan.makespan_ps / 1e6:.1f} us expected, bound {plan.bound_ps / 1e6:.1f} us"
    done = "closing synchronisation" if plan.needs_done else "no closing synchronisation"
    lines.append(f"  {plan.policy} partition, {bound}; {done}; {plan.hash()[:16]}")
    lines += _some((f"  slice {i}: {_slice(s)}" for i, s in enumerate(plan.slices)), limit)
    for core in range(plan.cores):
        begin, end = plan.core_begin[core : core + 2].tolist()
        lines.append(f"  core {core}: {end - begin} units")
        lines += _some((f"    {i}: {_unit(plan, i)}" for i in range(begin, end)), limit)
    return "\n".join(lines)


def diff(a: Any, b: Any, limit: int = 32) -> str:
    """What ``a`` and ``b`` differ in: header fields, then records, at most ``limit`` lines of each array.

    Empty exactly when the plans are equal (have one hash).
    """
    one, other = a.header(), b.header()
    lines = []
    for where, left, right in (("", one, other), ("spec.", one["spec"], other["spec"])):
        lines += [f"{where}{k}: {left[k]} -> {right[k]}" for k in left if k != "spec" and left[k] != right[k]]
    for name, arrays in (("counts", (a.spec.counts, b.spec.counts)), ("rows", (a.rows, b.rows))):
        lines += _some(_table(name, *(np.zeros(0) if array is None else array for array in arrays)), limit)
    for name in ("slices", "units", "operands", "core_begin", "buffer_bytes"):
        lines += _some(_table(name, getattr(a, name), getattr(b, name)), limit)
    return "\n".join(lines)


def _table(name: str, a: np.ndarray, b: np.ndarray):
    if a.shape != b.shape:
        yield f"{name}: shape {a.shape} -> {b.shape}"
    for i in range(min(len(a), len(b))):
        if a[i].tobytes() == b[i].tobytes():
            continue
        if a.dtype.names is None:
            yield f"{name}[{i}]: {a[i].tolist()} -> {b[i].tolist()}"
            continue
        changed = [
            f"{field} {a[i][field].tolist()} -> {b[i][field].tolist()}"
            for field in a.dtype.names
            if (a[i][field] != b[i][field]).any()
        ]
        yield f"{name}[{i}]: {', '.join(changed)}"


def _unit(plan: Any, index: int) -> str:
    unit = plan.units[index]
    src = plan.operands[unit["src_first"] :][: unit["nsrc"]]
    dst = plan.operands[unit["dst_first"] :][: unit["ndst"]]
    name = UNIT_NAMES[int(unit["kind"])] + (f" {OP_NAMES[unit['op']]}" if unit["op"] else "")
    tier = TIER_NAMES[unit["tier"]]
    if unit["row"]:
        return f"{name} {_rows(plan, unit)}, {_operands(dst)} <- {_operands(src)}  {tier}{_order(unit)}"
    if not len(src):
        return f"{name}{_order(unit)}"
    return f"{name} {unit['bytes']} B, {_operands(dst)} <- {_operands(src)}  {tier}{_order(unit)}"


def _rows(plan: Any, unit: np.void, limit: int = 6) -> str:
    """What a unit of rows moves: how many, and the first entries."""
    rows, total = int(unit["bytes"]) // int(unit["row"]), max(int(unit["total"]), 1)
    shown = [int(entry) for entry in plan.rows[int(unit["index"]) :][: min(rows * total, limit)]]
    if unit["kind"] == COMBINE:
        mask = (1 << ROW_BITS) - 1
        names = ["-" if entry == NO_ROW else f"{entry >> ROW_BITS}:{entry & mask}" for entry in shown]
        what = f"{rows} sums of {total} {DTYPE_NAMES[unit['dtype']]} rows"
    else:
        names, what = [str(entry) for entry in shown], f"{rows} rows"
    more = " ..." if rows * total > len(shown) else ""
    return f"{what} of {unit['row']} B [{' '.join(names)}{more}]"


def _some(lines, limit: int) -> list[str]:
    """The first ``limit`` lines, and how many more there are."""
    every = iter(lines)
    shown = list(islice(every, limit))
    more = sum(1 for _ in every)
    return [*shown, f"    ... {more} more"] if more else shown


def _order(record: np.void) -> str:
    """The flags of a unit or slice."""
    text = "" if record["wait_flag"] == NONE else f"  after {record['wait_peer']}.flag{record['wait_flag']}"
    return text if record["post_flag"] == NONE else f"{text}  posts flag{record['post_flag']}"


def _operands(operands: np.ndarray) -> str:
    shown = [
        f"{o['member']}.{BUFFER_NAMES[o['buf']]}{'~' if o['flags'] & PARTIAL else ''}+{o['offset']}"
        for o in operands[:4]
    ]
    return " ".join(shown) + (f" ... {len(operands) - 4} more" if len(operands) > 4 else "")


def _slice(s: np.void) -> str:
    src, dst = BUFFER_NAMES[s["src_buf"]], BUFFER_NAMES[s["dst_buf"]]
    op = f" {OP_NAMES[s['op']]}" if s["op"] else ""
    if s["kind"] == SYNC_SLICE:
        return f"sync{_order(s)}"
    if s["kind"] == PUSH:
        return f"push{op} {s['bytes']} B, {s['peer']}.{dst}+{s['dst']} <- own {src}+{s['src']}{_order(s)}"
    return f"pull{op} {s['bytes']} B, own {dst}+{s['dst']} <- {s['peer']}.{src}+{s['src']}{_order(s)}"
