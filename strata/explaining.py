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
from strata.plan.paths import ways
from strata.plan.select import Ask, Candidate, Choice, Settings, choose
from strata.plan.spec import PARTED, REDUCTIONS, normal

__all__ = ["Explanation", "explain"]


class Explanation(dict[str, Any]):
    """What ``explain`` found, as a dict; prints as a text."""

    def __str__(self) -> str:
        width = max(map(len, self))
        lines = []
        for key, value in self.items():
            if key == "paths":
                rows = [f"{name}: {_way(way)}" for name, way in value.items()]
            elif isinstance(value, dict):
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
            partition: str | None = None, machine: str = "host", overlap: bool = False) -> Explanation:  # fmt: skip
    """How an operation of ``nbytes`` per rank would be carried out, and why; nothing is run.

    ``ranks``    members (default: the world's)
    ``machine``  "host": this one, with its options and table; "cm384": CloudMatrix384, or what else
                 ``strata.machine.load`` knows
    ``algorithm``, ``path``, ``cores``, ``partition``  as of the collectives: None leaves it to the library
    ``overlap``  other work is to be done meanwhile, as with async_op=True

    Returns a dict: ``algorithm``, ``path``, ``mode``, ``partition``, ``cores``, ``rank``, the one whose
    plan is described: the busiest of first, last and root; ``units`` of its cores,
    ``synchronisations`` of the group as a whole, ``steps``, ``flags``, ``scratch_bytes``; ``makespan_us`` of the
    slowest core by the partition's own model and ``bound_us``, which no partition can beat; ``why``, a list;
    ``candidates``: microseconds by algorithm, measured or by the cost model; ``paths``: of each path, by the cost
    model, ``time_us``, ``core_us`` that it holds cores (all together), ``exposed_us``, what the caller loses by it
    (``plan.paths``), and of sdma ``descriptors`` and ``submission_us``.  InvalidArgument (a ValueError) for
    what does not exist, or does not go together.
    """
    spec = spec_of(operation, nbytes, ranks, np.dtype(dtype), op, root)
    ask = Ask(algorithm, path, cores, partition)
    settings = selection.machine(machine)
    mailbox = False
    if machine == "host":
        mailbox = front.mailbox_fits(operation, nbytes, spec.nranks, bootstrap.mailbox_bytes(spec.nranks))
        direct = selection.Selector(spec.nranks).number(operation, *ask) & 1
        spec = spec._replace(mode="mailbox" if mailbox and not direct else "zero_copy")
    choice = choose(spec, ask, settings, overlap)
    plans = [build(spec, r, choice.cores, algorithm=choice.algorithm.name, path=choice.path, policy=choice.partition,
                   cost=settings.cost, topology=settings.topology)
             for r in sorted({0, root, spec.nranks - 1})]  # fmt: skip
    plan = max(plans, key=lambda p: p.makespan_ps)  # of a few bytes, only the last has a share to reduce
    units = np.diff(plan.core_begin.astype(np.int64)).tolist()
    flags = plan.units[["wait_flag", "post_flag"]]
    return Explanation(
        operation=operation, ranks=spec.nranks, nbytes=nbytes, machine=machine, overlap=bool(overlap),
        algorithm=plan.algorithm, path=plan.path, mode=spec.mode, synchronisations=2 if plan.needs_done else 1,
        steps=len(np.unique(plan.units["step"])),
        flags=len(set(flags["post_flag"].tolist()) - {-1}),
        scratch_bytes=plan.scratch, cores=plan.cores, partition=plan.policy, rank=plan.rank, units=units,
        makespan_us=plan.makespan_ps / 1e6, bound_us=plan.bound_ps / 1e6,
        order=choice.algorithm.order if spec.redop else "",
        why=_why(spec, nbytes, choice, mailbox, machine),
        candidates={c.name: c.us for c in _all(spec, ask, settings, choice)},
        paths=_paths(spec, settings, choice, overlap),
    )  # fmt: skip


def spec_of(operation: str, nbytes: int, ranks: int | None, kind: np.dtype, op: str, root: int,
            done: str = "explained") -> Spec:  # fmt: skip
    """The operation of ``nbytes`` per rank; InvalidArgument for what there is not, or is not whole elements."""
    if operation not in OPERATIONS or operation == "all_to_all_v":
        there = ", ".join(o for o in OPERATIONS if o != "all_to_all_v")
        raise InvalidArgument(f"operation {operation!r} cannot be {done} by a size alone; there are {there}")
    for name, value in (("nbytes", nbytes), ("ranks", ranks), ("root", root)):
        if not isinstance(value, (int, np.integer)) and (name, value) != ("ranks", None):
            raise InvalidArgument(f"{name}={value!r}: a whole number is expected")
    if nbytes < 0:
        raise InvalidArgument(f"nbytes={nbytes}: 0 or more is expected")
    n = bootstrap.context().ndies if ranks is None else int(ranks)
    if kind.itemsize == 0 or nbytes % kind.itemsize:
        raise InvalidArgument(f"nbytes={nbytes} is not a whole number of {kind} elements")
    parts = n if operation in PARTED else 1
    if nbytes % (kind.itemsize * max(parts, 1)):
        raise InvalidArgument(f"nbytes={nbytes}: {n} equal parts of whole elements are expected")
    reduces = operation in REDUCTIONS
    if reduces and op not in OP_CODES:
        raise InvalidArgument(f"op={op!r}: one of {', '.join(OP_CODES)} is expected")
    return normal(Spec(
        operation, nbytes // kind.itemsize // parts, kind.itemsize, codes.dtype_code(kind) if reduces else 0,
        OP_CODES[op] if reduces else 0, root, n,
    ))  # fmt: skip


def _all(spec: Spec, ask: Ask, settings: Settings, choice: Choice) -> list[Candidate]:
    """What the algorithms cost, also when one was asked for by name."""
    if choice.candidates or ask.algorithm is None:
        return choice.candidates
    return choose(spec, ask._replace(algorithm=None), settings).candidates


def _paths(spec: Spec, settings: Settings, choice: Choice, overlap: bool) -> dict[str, dict[str, float]]:
    """What each path would cost."""
    found = {}
    for path, way in ways(choice.algorithm, spec, choice.cores, max(settings.cores, choice.cores), overlap,
                          settings.topology, settings.cost, settings.model).items():  # fmt: skip
        figures: dict[str, float] = way._asdict()
        if path == "sdma":
            figures["submission_us"] = way.core_us / choice.cores
        else:
            del figures["descriptors"]
        found[path] = figures
    return found


def _way(way: dict[str, float]) -> str:
    text = f"{way['time_us']:.1f} us, {way['exposed_us']:.1f} us exposed, {way['core_us']:.1f} us of cores' time"
    if "descriptors" in way:
        text += f" ({way['descriptors']} descriptors, submitted in {way['submission_us']:.1f} us)"
    return text


def _why(spec: Spec, nbytes: int, choice: Choice, mailbox: bool, machine: str) -> list[str]:
    ways = "copied to mailboxes with one synchronisation", "read where they lie with two synchronisations"
    better, worse = ways if spec.mode == "mailbox" else ways[::-1]
    why = []
    if mailbox and spec.mode != "mailbox":
        why.append(f"{choice.algorithm.name} does not work from mailboxes")
    elif machine == "host":
        why.append(f"{nbytes} bytes are cheaper {better} than {worse}")
    why.append(f"{choice.algorithm.name}: {choice.algorithm_why}")
    why.append(f"{choice.path}: {choice.path_why}")
    return why


def _counts(units: list[int]) -> str:
    """[3, 3, 3, 2] as text that stays short at 48 cores."""
    if len(units) <= 8:
        return str(units)
    return f"{min(units)} to {max(units)} on each of {len(units)} cores"
