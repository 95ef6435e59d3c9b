"""How an operation would be carried out, why, and what the other ways would cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from strata import bootstrap, selection
from strata._core import array as codes
from strata._core import front
from strata.dtypes import OP_CODES
from strata.errors import InvalidArgument
from strata.plan import OPERATIONS, Spec, build
from strata.plan.select import Ask, Candidate, Choice, Settings, choose
from strata.plan.spec import PARTED, REDUCTIONS

__all__ = ["Explanation", "explain"]


class Explanation(dict[str, Any]):
    """What ``explain`` found, as a dict; prints as a text."""

    def __str__(self) -> str:
        width = max(map(len, self))
        lines = []
        for key, value in self.items():
            if isinstance(value, dict):
                rows = [f"{name}: {us:.1f} us" for name, us in value.items()]
            elif key == "units":
                rows = _counts(value)
            elif isinstance(value, float):
                rows = f"{value:.3f}{NOTES.get(key, '')}"
            else:
                rows = value
            for i, row in enumerate(rows if isinstance(rows, list) else [rows] if rows != "" else []):
                lines.append(f"{'' if i else key:{width}}  {row}")
        return "\n".join(lines)


# The partition's model and that of the candidates are two: what each leaves out is said where they meet.
NOTES = {
    "makespan_us": " (units of the slowest core alone; synchronisations, ports and crowded CPUs: see candidates)",
    "bound_us": " (no partition of these slices is faster)",
}


def explain(operation: str, nbytes: int, ranks: int | None = None, *, dtype: Any = "u1", op: str = "sum",
            root: int = 0, algorithm: str | None = None, path: str | None = None, cores: int | None = None,
            partition: str | None = None, machine: str = "host") -> Explanation:  # fmt: skip
    """How an operation of ``nbytes`` per rank would be carried out, and why; nothing is run.

    ``ranks``    members (default: the world's)
    ``machine``  "host": this one, with its options and table; "cm384": CloudMatrix384
    ``algorithm``, ``path``, ``cores``, ``partition``  as of the collectives: None leaves it to the library

    Returns a dict: ``algorithm``, ``path``, ``mode``, ``partition``, ``cores``, ``rank``, the one whose
    plan is described: the busiest of first, last and root; ``units`` of its cores,
    ``synchronisations`` of the group as a whole, ``steps``, ``flags``, ``scratch_bytes``; ``makespan_us`` of the
    slowest core by the partition's own model and ``bound_us``, which no partition can beat; ``why``, a list;
    ``candidates``: microseconds by algorithm, measured or by the cost model.  InvalidArgument (a ValueError) for
    what does not exist, or does not go together.
    """
    spec = _spec(operation, nbytes, ranks, np.dtype(dtype), op, root)
    ask = Ask(algorithm, path, cores, partition)
    settings = selection.machine(machine)
    mailbox = False
    if machine == "host":
        mailbox = front.mailbox_fits(operation, nbytes, spec.nranks, bootstrap.mailbox_bytes(spec.nranks))
        direct = selection.Selector(spec.nranks).number(operation, *ask) & 1
        spec = spec._replace(mode="mailbox" if mailbox and not direct else "zero_copy")
    choice = choose(spec, ask, settings)
    plans = [build(spec, r, choice.cores, algorithm=choice.algorithm.name, path=choice.path, policy=choice.partition,
                   cost=settings.cost, topology=settings.topology)
             for r in sorted({0, root, spec.nranks - 1})]  # fmt: skip
    plan = max(plans, key=lambda p: p.makespan_ps)  # of a few bytes, only the last has a share to reduce
    units = np.diff(plan.core_begin.astype(np.int64)).tolist()
    flags = plan.units[["wait_flag", "post_flag"]]
    return Explanation(
        operation=operation, ranks=spec.nranks, nbytes=nbytes, machine=machine, algorithm=plan.algorithm,
        path=plan.path, mode=spec.mode, synchronisations=2 if plan.needs_done else 1,
        steps=len(np.unique(plan.units["step"])),
        flags=len(set(flags["post_flag"].tolist()) - {-1}),
        scratch_bytes=plan.scratch, cores=plan.cores, partition=plan.policy, rank=plan.rank, units=units,
        makespan_us=plan.makespan_ps / 1e6, bound_us=plan.bound_ps / 1e6,
        order=choice.algorithm.order if spec.redop else "",
        why=_why(spec, nbytes, choice, mailbox, machine),
        candidates={c.name: c.us for c in _all(spec, ask, settings, choice)},
    )  # fmt: skip


def _spec(operation: str, nbytes: int, ranks: int | None, kind: np.dtype, op: str, root: int) -> Spec:
    if operation not in OPERATIONS or operation == "all_to_all_v":
        there = ", ".join(o for o in OPERATIONS if o != "all_to_all_v")
        raise InvalidArgument(f"operation {operation!r} cannot be explained by a size alone; there are {there}")
    if nbytes < 0:
        raise InvalidArgument(f"nbytes={nbytes}: 0 or more is expected")
    n = bootstrap.context().ndies if ranks is None else int(ranks)
    if kind.itemsize == 0 or nbytes % kind.itemsize:
        raise InvalidArgument(f"nbytes={nbytes} is not a whole number of {kind} elements")
    parts = n if operation in PARTED else 1
    if nbytes % (kind.itemsize * parts):
        raise InvalidArgument(f"nbytes={nbytes}: {n} equal parts of whole elements are expected")
    reduces = operation in REDUCTIONS
    if reduces and op not in OP_CODES:
        raise InvalidArgument(f"op={op!r}: one of {', '.join(OP_CODES)} is expected")
    return Spec(
        operation, nbytes // kind.itemsize // parts, kind.itemsize, codes.dtype_code(kind) if reduces else 0,
        OP_CODES[op] if reduces else 0, root, n,
    )  # fmt: skip


def _all(spec: Spec, ask: Ask, settings: Settings, choice: Choice) -> list[Candidate]:
    """What the algorithms cost, also when one was asked for by name."""
    if choice.candidates or ask.algorithm is None:
        return choice.candidates
    return choose(spec, ask._replace(algorithm=None), settings).candidates


def _why(spec: Spec, nbytes: int, choice: Choice, mailbox: bool, machine: str) -> list[str]:
    ways = "copied to mailboxes with one synchronisation", "read where they lie with two synchronisations"
    better, worse = ways if spec.mode == "mailbox" else ways[::-1]
    why = []
    if mailbox and spec.mode != "mailbox":
        why.append(f"{choice.algorithm.name} does not work from mailboxes")
    elif machine == "host":
        why.append(f"{nbytes} bytes are cheaper {better} than {worse}")
    why.append(f"{choice.algorithm.name}: {choice.why}")
    why.append(f"{choice.path}: the cores move the bytes; it is the only path so far")
    return why


def _counts(units: list[int]) -> str:
    """[3, 3, 3, 2] as text that stays short at 48 cores."""
    if len(units) <= 8:
        return str(units)
    return f"{min(units)} to {max(units)} on each of {len(units)} cores"
