"""Plans as GOAL, the schedules of LogGOPSim and ATLAHS: a block for each rank, of send, recv, calc and requires."""

from __future__ import annotations

from collections.abc import Sequence

from strata.errors import InvalidArgument
from strata.plan.interchange import messages
from strata.plan.plan import Plan

MAX_CPU = 255  # a byte, in the binary form


def write(plans: Sequence[Plan], *, gbps: float = 10.0) -> str:
    """The plans of all members as text; ``messages`` says what becomes of a unit.

    ``gbps``: bytes that a core reads and writes, by which computations are nanoseconds.  InvalidArgument names what
    cannot be said: fewer plans than members, mailboxes, more cores than GOAL numbers.
    """
    if not 0 < gbps < 1e9:
        raise InvalidArgument(f"gbps is {gbps}: bytes of a core by nanoseconds, more than 0, are expected")
    ranks = messages.ranks(plans, "GOAL schedules")
    most = max((node.cpu for nodes in ranks for node in nodes), default=0)
    if most > MAX_CPU:
        raise InvalidArgument(f"GOAL numbers CPUs from 0 to {MAX_CPU}, and these plans need {most}: give fewer cores")
    lines = [f"num_ranks {len(ranks)}"]
    for rank, nodes in enumerate(ranks):
        lines += ["", f"rank {rank} {{"]
        lines += [f"l{i + 1}: {_step(node, gbps)} cpu {node.cpu}" for i, node in enumerate(nodes)]
        lines += [f"l{i + 1} requires l{before + 1}" for i, node in enumerate(nodes) for before in node.after]
        lines.append("}")
    return "\n".join(lines) + "\n"


def _step(node: messages.Node, gbps: float) -> str:
    if node.kind == messages.CALC:
        return f"calc {round(node.nbytes / gbps)}"
    return f"{node.kind} {node.nbytes}b {'to' if node.kind == messages.SEND else 'from'} {node.peer} tag {node.tag}"
