"""The plan of one die for one operation: immutable data that every executor takes."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from strata.errors import StrataError
from strata.plan import files, text
from strata.plan.records import COPY, OPERAND_DTYPE, PLAN_VERSION, SCRATCH, SLICE_DTYPE, UNIT_DTYPE
from strata.plan.spec import Spec
from strata.plan.wellformed import problem

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
                      units is faster (average load, largest unit, and of one balanced step what
                      some core must take together)
    ``rows``          u64: the entries of units that move rows (``records.ROW_BITS``); None if there are none
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
    rows: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ARRAYS:
            getattr(self, name).setflags(write=False)
        if self.rows is not None:
            self.rows.setflags(write=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles go through the constructor, so that a copy's arrays are read-only too."""
        return Plan, tuple(getattr(self, field.name) for field in fields(self))

    @property
    def digest(self) -> int:
        """Of the algorithm, for fingerprints: 15 bits, 0 for full mesh.  Path, cores and partition are each
        member's own affair, since flags are raised and waited for alike."""
        from strata.plan import algorithms

        return algorithms.digest(self.algorithm)

    @property
    def exposes_out(self) -> bool:
        """Whether peers touch members' OUT in a way that full mesh does not (see ``Algorithm``)."""
        from strata.plan import algorithms

        return algorithms.exposes_out(self.algorithm)

    @property
    def staged_bytes(self) -> int:
        """Bytes that the die copies between its own SRC or OUT and its own scratch."""
        copies = self.units[self.units["kind"] == COPY]
        ends = [self.operands[copies[first].astype(np.int64)] for first in ("src_first", "dst_first")]
        own = (ends[0]["member"] == self.rank) & (ends[1]["member"] == self.rank)
        across = (ends[0]["buf"] == SCRATCH) != (ends[1]["buf"] == SCRATCH)
        return int(copies["bytes"][own & across].sum())

    @property
    def nbytes(self) -> int:
        """Bytes that the arrays take in memory."""
        counts = self.spec.counts
        own = sum(getattr(self, n).nbytes for n in ARRAYS) + (0 if counts is None else counts.nbytes)
        return own + (0 if self.rows is None else self.rows.nbytes)

    def header(self) -> dict[str, Any]:
        """Everything but the arrays, as plain values."""
        spec = {name: value for name, value in self.spec._asdict().items() if name != "counts"}
        return {"version": self.version, "spec": spec, **{n: getattr(self, n) for n in SCALARS}}

    def hash(self) -> str:
        """sha256 of header and arrays, in hexadecimal: equal plans, equal hashes, on every host."""
        import hashlib

        found = hashlib.sha256(json.dumps(self.header(), sort_keys=True).encode())
        arrays = [getattr(self, name) for name in ARRAYS] + [self.spec.counts, self.rows]
        for array in (array for array in arrays if array is not None):
            found.update(str(array.shape).encode())
            found.update(array.tobytes())
        return found.hexdigest()

    def check(self) -> Plan:
        """Itself if it is well formed, so that executing it touches nothing beyond
        ``buffer_bytes``; else PlanError.  Says nothing of whether it delivers the operation."""
        wrong = problem(self)
        if wrong:
            raise PlanError(wrong, ranks=[self.rank], operation=self.spec.operation)
        return self

    def save(self, file: files.File, format: str | None = None) -> None:
        """Writes the plan as npz or JSON; see ``files.save``."""
        files.save(self, file, format)

    @classmethod
    def load(cls, file: files.File) -> Plan:
        """Reads what ``save`` wrote; see ``files.load``."""
        return files.load(file)

    def __repr__(self) -> str:
        return f"<Plan {text.title(self)}>"

    def pretty(self, limit: int = 32) -> str:
        """The plan as text: title, slices and each core's units, at most ``limit`` lines of each."""
        return text.pretty(self, limit)
