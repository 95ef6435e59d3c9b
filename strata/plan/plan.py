"""The plan of one die for one operation: immutable data that every executor takes."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from itertools import islice
from os import PathLike
from typing import IO, Any

import numpy as np

from strata.errors import StrataError
from strata.plan.records import (
    ACCUMULATE,
    BUFFER_NAMES,
    COPY,
    DTYPE_BYTES,
    DTYPE_NAMES,
    MAX_FLAGS,
    NBUFS,
    NONE,
    OP_NAMES,
    OPERAND_DTYPE,
    PARTIAL,
    PLAN_VERSION,
    PUSH,
    REDUCE,
    SLICE_DTYPE,
    SYNC,
    SYNC_SLICE,
    TIER_NAMES,
    UNIT_DTYPE,
    UNIT_NAMES,
    partial_bytes,
)
from strata.plan.spec import Spec, normal

ARRAYS = {
    "slices": SLICE_DTYPE,
    "units": UNIT_DTYPE,
    "operands": OPERAND_DTYPE,
    "core_begin": np.dtype("<u4"),
    "buffer_bytes": np.dtype("<u8"),
}
SCALARS = ("rank", "algorithm", "path", "policy", "cores", "needs_done", "scratch", "makespan_ps", "bound_ps")


class PlanError(StrataError, ValueError):
    """A plan is not one: malformed, of another version, or not delivering its operation."""

    phrase = "a plan is wrong"


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Plan:
    """One die's part of an operation.

    ``units``         UNIT_DTYPE, in per-core order: core c runs [core_begin[c], core_begin[c + 1])
    ``operands``      OPERAND_DTYPE, which units index
    ``core_begin``    u32, cores + 1
    ``buffer_bytes``  u64 (nranks, 3): how far the plan reaches into SRC, OUT and SCRATCH of each
                      member; an executor that has compared them with the real sizes need not
                      look at offsets again
    ``slices``        SLICE_DTYPE: the slice map it was made from
    ``needs_done``    peers read or write members' own arrays, so the operation ends with a
                      second synchronisation; the same on all dies
    ``scratch``       bytes of fabric memory that the die lends to the operation
    ``makespan_ps``   when the model's last core is done; ``bound_ps``: no partition of these
                      units is faster (average load, largest unit)
    """

    spec: Spec
    rank: int
    algorithm: str
    path: str
    policy: str
    cores: int
    needs_done: bool
    scratch: int
    slices: np.ndarray
    units: np.ndarray
    operands: np.ndarray
    core_begin: np.ndarray
    buffer_bytes: np.ndarray
    makespan_ps: int
    bound_ps: int
    version: int = PLAN_VERSION

    def __post_init__(self) -> None:
        for name in ARRAYS:
            getattr(self, name).setflags(write=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles go through the constructor, so that a copy's arrays are read-only too."""
        return Plan, tuple(getattr(self, field.name) for field in fields(self))

    @property
    def digest(self) -> int:
        """Of algorithm and path, for fingerprints: 15 bits, 0 for full mesh by cores."""
        from strata.plan import algorithms

        return algorithms.digest(self.algorithm, self.path)

    @property
    def exposes_out(self) -> bool:
        """Whether peers touch members' OUT in a way that full mesh does not (see ``Algorithm``)."""
        from strata.plan import algorithms

        return algorithms.exposes_out(self.algorithm)

    @property
    def nbytes(self) -> int:
        """Bytes that the arrays take in memory."""
        counts = self.spec.counts
        return sum(getattr(self, n).nbytes for n in ARRAYS) + (0 if counts is None else counts.nbytes)

    def header(self) -> dict[str, Any]:
        """Everything but the arrays, as plain values."""
        spec = {name: value for name, value in self.spec._asdict().items() if name != "counts"}
        return {"version": self.version, "spec": spec, **{n: getattr(self, n) for n in SCALARS}}

    def hash(self) -> str:
        """sha256 of header and arrays, in hexadecimal: equal plans, equal hashes, on every host."""
        import hashlib

        found = hashlib.sha256(json.dumps(self.header(), sort_keys=True).encode())
        arrays = [getattr(self, name) for name in ARRAYS]
        if self.spec.counts is not None:
            arrays.append(self.spec.counts)
        for array in arrays:
            found.update(str(array.shape).encode())
            found.update(array.tobytes())
        return found.hexdigest()

    def check(self) -> Plan:
        """Itself if it is well formed, so that executing it touches nothing beyond
        ``buffer_bytes``; else PlanError.  Says nothing of whether it delivers the operation."""
        problem = _problem(self)
        if problem:
            raise PlanError(problem, ranks=[self.rank], operation=self.spec.operation)
        return self

    def save(self, file: str | PathLike[str] | IO[bytes]) -> None:
        """Writes the plan as an npz archive."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        if self.spec.counts is not None:
            arrays["counts"] = self.spec.counts
        header = np.frombuffer(json.dumps(self.header()).encode(), np.uint8)
        if isinstance(file, (str, PathLike)):
            with open(file, "wb") as out:  # numpy would add .npz to the name
                np.savez(out, header=header, **arrays)
        else:
            np.savez(file, header=header, **arrays)

    @classmethod
    def load(cls, file: str | PathLike[str] | IO[bytes]) -> Plan:
        """Reads what ``save`` wrote; PlanError if it is not a well-formed plan of this version."""
        try:
            with np.load(file, allow_pickle=False) as archive:
                found = {name: archive[name] for name in archive.files}
            header = json.loads(found.pop("header").tobytes())
            version = header.pop("version")
        except OSError:
            raise
        except Exception as error:
            raise PlanError(f"not a plan: {error}") from error
        if version != PLAN_VERSION:
            raise PlanError(f"the plan has version {version}, and this strata reads {PLAN_VERSION}")
        try:
            counts = found.pop("counts", None)
            spec = normal(Spec(**header.pop("spec"), counts=counts))
            for name, dtype in ARRAYS.items():
                if found[name].dtype != dtype:
                    raise PlanError(f"{name} are records of another layout")
            return cls(spec=spec, **header, **found, version=version).check()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PlanError(f"not a well-formed plan: {error}") from error

    def __repr__(self) -> str:
        return f"<Plan {self._title()}>"

    def _title(self) -> str:
        s = self.spec
        what = f"{s.operation} {s.mode} die {self.rank} of {s.nranks}, {self.algorithm} {self.path}"
        kind = f"{s.count} x {s.itemsize} B" if s.counts is None else f"counts x {s.itemsize} B"
        kind += f" {DTYPE_NAMES[s.dtype]}" + (f" {OP_NAMES[s.redop]}" if s.redop else "")
        return f"{what}: {kind}, {len(self.units)} units on {self.cores} cores"

    def pretty(self, limit: int = 32) -> str:
        """The plan as text: title, slices and each core's units, at most ``limit`` lines of each."""
        lines = [self._title()]
        bound = f"{self.makespan_ps / 1e6:.1f} us expected, bound {self.bound_ps / 1e6:.1f} us"
        done = "closing synchronisation" if self.needs_done else "no closing synchronisation"
        lines.append(f"  {self.policy} partition, {bound}; {done}; {self.hash()[:16]}")
        lines += _some((f"  slice {i}: {_slice(s)}" for i, s in enumerate(self.slices)), limit)
        for core in range(self.cores):
            begin, end = self.core_begin[core : core + 2].tolist()
            lines.append(f"  core {core}: {end - begin} units")
            lines += _some((f"    {i}: {self._unit(i)}" for i in range(begin, end)), limit)
        return "\n".join(lines)

    def _unit(self, index: int) -> str:
        unit = self.units[index]
        src = self.operands[unit["src_first"] :][: unit["nsrc"]]
        dst = self.operands[unit["dst_first"] :][: unit["ndst"]]
        name = UNIT_NAMES[int(unit["kind"])] + (f" {OP_NAMES[unit['op']]}" if unit["op"] else "")
        tier = TIER_NAMES[unit["tier"]]
        if not len(src):
            return f"{name}{_order(unit)}"
        return f"{name} {unit['bytes']} B, {_operands(dst)} <- {_operands(src)}  {tier}{_order(unit)}"


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


def _problem(plan: Plan) -> str | None:
    """What is malformed in a plan, or None."""
    units, operands, n = plan.units, plan.operands, plan.spec.nranks
    for name in ("rank", "cores", "scratch", "makespan_ps", "bound_ps"):
        if type(getattr(plan, name)) is not int or getattr(plan, name) < 0:
            return f"{name} is {getattr(plan, name)!r}"
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
    copies, reduces, syncs, adds = (kind == k for k in (COPY, REDUCE, SYNC, ACCUMULATE))
    nsrc, ndst = units["nsrc"].astype(np.int64), units["ndst"].astype(np.int64)
    src, dst = units["src_first"].astype(np.int64), units["dst_first"].astype(np.int64)
    mean = units["op"] == OP_NAMES.index("avg")
    wrong = {
        "an unknown kind": ~(copies | reduces | syncs | adds),
        "an operator that does not go with its kind": (units["op"] != 0) != (reduces | adds),
        "an unknown operator": units["op"] >= len(OP_NAMES),
        "a mean that is accumulated atomically": adds & mean,
        "an unknown dtype": units["dtype"] >= len(DTYPE_NAMES),
        "an unknown tier": units["tier"] >= len(TIER_NAMES),
        "other than one source": (copies | adds) & (nsrc != 1),
        "no operands": ~syncs & ((nsrc == 0) | (ndst == 0)),
        "operands beyond the table": np.maximum(src + nsrc, dst + ndst) > len(operands),
        "no bytes": ~syncs & (units["bytes"] == 0),
        "operands or bytes, though it only synchronises": syncs & ((nsrc + ndst != 0) | (units["bytes"] != 0)),
        "split elements": (reduces | adds) & _splits(units),
        "too many bytes": units["bytes"] >= 1 << 60,
        "another core's number": units["core"] != np.repeat(np.arange(plan.cores), np.diff(begin)),
        "reserved bits set": (units["flags"] != 0) | units["reserved"].any(axis=1),
        "a total that is no mean's": (units["total"] != 0) & ~mean,
        "wait_flag or wait_peer without the other": (units["wait_flag"] == NONE) != (units["wait_peer"] == NONE),
        "wait_peer out of the group": (units["wait_peer"] < NONE) | (units["wait_peer"] >= n),
        "a flag out of range": np.maximum(units["wait_flag"], units["post_flag"]) >= MAX_FLAGS,
        "a negative flag": np.minimum(units["wait_flag"], units["post_flag"]) < NONE,
    }
    for what, where in wrong.items():
        if where.any():
            return f"unit {int(where.argmax())} has {what}"
    return _operand_problem(plan, src, dst, nsrc, ndst)


def _splits(units: np.ndarray) -> np.ndarray:
    """Where a unit is not whole elements of its dtype; raw bytes are no elements."""
    size = np.array(DTYPE_BYTES, np.uint64)[np.minimum(units["dtype"], len(DTYPE_BYTES) - 1)]
    return (size == 0) | (units["bytes"] % np.maximum(size, 1) != 0)


def _operand_problem(plan: Plan, src, dst, nsrc, ndst) -> str | None:
    units, operands, n = plan.units, plan.operands, plan.spec.nranks
    wrong = (operands["member"] < 0) | (operands["member"] >= n) | (operands["buf"] >= NBUFS)
    wrong |= operands["pad"].any(axis=1) | (operands["offset"] >= 1 << 62) | (operands["flags"] > PARTIAL)
    if wrong.any():
        return f"operand {int(wrong.argmax())} is no place of a member's buffer"
    place = operands["member"].astype(np.int64) * NBUFS + operands["buf"]
    room = plan.buffer_bytes.reshape(-1)
    element = np.array([max(size, 1) for size in DTYPE_BYTES], np.uint64)[units["dtype"]]
    wide = _WIDE[units["dtype"], units["op"]]
    for first, number in ((src, nsrc), (dst, ndst)):
        unit = np.repeat(np.arange(len(number)), number)
        which = np.arange(len(unit)) - np.repeat(np.cumsum(number) - number - first, number)
        partial = operands["flags"][which] != 0
        stray = partial & (units["kind"][unit] != REDUCE)
        if stray.any():
            return f"unit {int(unit[stray.argmax()])} has a partial operand, though it does not reduce"
        length = np.where(partial, units["bytes"][unit] // element[unit] * wide[unit], units["bytes"][unit])
        beyond = operands["offset"][which] + length > room[place[which]]
        if beyond.any():
            return f"unit {int(unit[beyond.argmax()])} reaches beyond buffer_bytes"
    return None


_WIDE = np.array([[partial_bytes(d, o) for o in range(len(OP_NAMES))] for d in range(len(DTYPE_NAMES))], np.uint64)
