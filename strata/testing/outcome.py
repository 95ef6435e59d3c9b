"""What the owner of a pool gets to read when a call did not go well."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import NoReturn

from strata import errors
from strata.launch.report import Failure, ranks_text, root_cause, status_text
from strata.testing.warden import Reply

__all__ = ["raise_error"]


def raise_error(
    name: str,
    n: int,
    said: Mapping[int, Reply],
    dead: Mapping[int, int | None],
    late: Sequence[int],
    where: str,
) -> NoReturn:
    """Raises the error of a call of function ``name`` on ``n`` dies.

    ``said``   what dies said whose call raised, in order of rank
    ``dead``   dies that ended, and how
    ``late``   dies that did not answer; ``where`` they are, as text
    """
    __tracebackhide__ = True  # pytest shows the caller instead
    notes = []
    if dead:
        how = ", ".join(sorted({"ended" if s is None else status_text(s) for s in dead.values()}))
        notes.append(f"{ranks_text(list(dead))} of {n} died in {name} ({how})")
    if late:
        notes.append(f"{ranks_text(list(late))} of {n} did not come back from {name}")
    if dead or not said:
        notes += [f"rank {rank} raised {reply.line}" for rank, reply in said.items()]
        problem = errors.SpawnError("; ".join(notes), ranks=list(dead) or late)
        problem.traceback = where
        raise problem
    first = root_cause([Failure(rank, 1) for rank in said], {rank: reply.line for rank, reply in said.items()})
    reply = said[first.rank]
    same = [rank for rank, other in said.items() if other.line == reply.line and rank != first.rank]
    notes += [f"{ranks_text(same)} the same"] if same else []
    notes += [f"rank {rank}: {r.line}" for rank, r in said.items() if r.line != reply.line]
    problem = errors.SpawnError("; ".join([f"rank {first.rank} of {n}: {reply.line}", *notes]), ranks=[first.rank])
    problem.traceback = f"Traceback of rank {first.rank}:\n\n{reply.text}"
    if not reply.pickled:
        raise problem
    raise pickle.loads(reply.pickled) from problem
