"""What the launcher says about a job that did not go well: the root cause last, and alone."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from strata.launch.output import ERR, Tail

LINES = 20  # of the failed die's output
WIDTH = 2000  # bytes of a line that are shown
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: .*)?")
_LEFT = re.compile(r": ranks? ([\d, ]+) died \(or left the job\)")  # in a PeerDead, by failure.py
_ENDED_BY = ("PeerDead", "GroupBroken")  # what a die says that ended because another had


class Failure(NamedTuple):
    """A die that ended badly: ``status`` as os.waitstatus_to_exitcode has it, in order of time."""

    rank: int
    status: int

    @property
    def code(self) -> int:
        """As an exit status: 128 + signal if a signal ended it."""
        return self.status if self.status >= 0 else 128 - self.status


def signal_name(number: int) -> str:
    """ "SIGSEGV", or "signal 40" for those without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def ranks_text(ranks: list[int]) -> str:
    """ "rank 3" or "ranks 0-2, 5"."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"


def status_text(status: int) -> str:
    """How a process ended, from its status as os.waitstatus_to_exitcode gives it."""
    if status >= 0:
        return f"exit code {status}"
    text = f"killed by {signal_name(-status)}"
    if status == -signal.SIGKILL:
        text += " (not by strata-run; the kernel does this when memory runs out)"
    return text


def last_exception(tail: Tail | None) -> str:
    """The last line of the traceback with which a Python die ended, or ""."""
    lines = [line for line in tail.lines((ERR,)) if line.strip()] if tail else []
    if not lines or not any(line.startswith(b"Traceback (most recent") for line in lines):
        return ""
    # The exception's text may have several lines: go back to the one that names it.
    for line in reversed(lines):
        if line.startswith(b"  "):
            return ""
        text = line.decode(errors="backslashreplace")
        if _EXCEPTION.fullmatch(text):
            return text[:WIDTH]
    return ""


def _is_consequence(exception: str) -> bool:
    name = exception.partition(":")[0]
    return name.rpartition(".")[2] in _ENDED_BY


def root_cause(failures: list[Failure], exceptions: dict[int, str]) -> Failure:
    """The first failure that is not merely another's consequence; else the first."""
    for failure in failures:
        if not _is_consequence(exceptions.get(failure.rank, "")):
            return failure
    return failures[0]


def _left_well(exception: str, statuses: Mapping[int, int]) -> list[int]:
    """The ranks that a root cause waited for in vain, though they ended well."""
    found = _LEFT.search(exception) if _is_consequence(exception) else None
    ranks = [int(rank) for rank in found[1].replace(",", " ").split()] if found else []
    return [rank for rank in ranks if statuses.get(rank) == 0]


def failure_text(
    failures: list[Failure], tails: list[Tail], size: int, where: Callable[[int], list[str]] = lambda rank: [],
    restarted: int = 0, statuses: Mapping[int, int] = MappingProxyType({}),
) -> tuple[Failure, str]:
    """The root cause, and the report: other failures, the end of its output, ``where`` of its rank, then it alone."""
    exceptions = {f.rank: last_exception(tails[f.rank]) for f in failures}
    root = root_cause(failures, exceptions)
    lines: list[str] = []
    others: dict[str, list[int]] = {}
    for failure in failures:
        if failure is not root:
            said = exceptions[failure.rank].partition(":")[0]
            how = status_text(failure.status) + (f", {said}" if said else "")
            others.setdefault(how, []).append(failure.rank)
    if restarted:
        lines.append(f"strata-run: dies had been started again {restarted} time{'s' if restarted > 1 else ''} before")
    lines += [f"strata-run: {ranks_text(ranks)} failed too: {how}" for how, ranks in others.items()]
    tail = tails[root.rank].lines()[-LINES:]
    if tail:
        lines.append(f"strata-run: the end of what rank {root.rank} said:")
        lines += ["  | " + _shown(line) for line in tail]
    lines += where(root.rank)
    said = exceptions[root.rank]
    if left := _left_well(said, statuses):
        lines.append(f"strata-run: {ranks_text(left)} did not fail, but ended (exit code 0) or called finalize() while "
                     "others waited: all ranks must make the same calls, as often")
    lines.append(
        f"strata-run: rank {root.rank} of {size} failed{' first' if len(failures) > 1 else ''}: "
        + status_text(root.status)
        + (f": {said}" if said else "")
    )
    return root, "\n".join(lines) + "\n"


def _shown(line: bytes) -> str:
    text = line[:WIDTH].decode(errors="backslashreplace")
    return text + ("..." if len(line) > WIDTH else "")
