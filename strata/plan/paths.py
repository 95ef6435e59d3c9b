"""Paths: cores move an operation's bytes (mte), or the die's engine does from descriptors that cores submit (sdma).

What a path costs is time and cores.  *Exposed* is what the caller loses by it:

* with nothing else to do, the time;
* beside other work, of which is not known how long it lasts, core time / cores of the die, since so much later the
  work is done, and what the operation ends later than by the other path, as if nothing hid that.

The least exposed path is chosen, mte of equals.  Beside other work this is the least regret.  Of work that lasts
long, the path that takes less core time is ahead by the difference / cores of the die, and never by more; of work that
ends first, the earlier path is, by as much as it is earlier.  So whichever is taken, what might be lost by it is at
most the lesser of the two.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from strata.plan.algorithms import Algorithm
from strata.plan.build import build
from strata.plan.cost import Cost
from strata.plan.model import Model, estimate, members
from strata.plan.operations import remote
from strata.plan.plan import Plan
from strata.plan.records import NONE, REDUCE
from strata.plan.spec import Spec
from strata.plan.topology import Topology

ALONE = "nothing else is to be done meanwhile"


class Way(NamedTuple):
    """What a path costs, by the model.

    ``time_us``      the operation
    ``core_us``      all cores' microseconds that it holds them: of mte the whole time, of sdma submission
    ``exposed_us``   what the caller loses by it
    ``descriptors``  of the member that submits most; 0 of mte
    """

    time_us: float
    core_us: float
    exposed_us: float
    descriptors: int = 0


def moot(spec: Spec) -> str:
    """Why there is no path to choose, if there is none: cores copy the little that there is."""
    if spec.mode == "mailbox":
        return "small operations go by mailboxes, which cores copy"
    if spec.counts is None and not remote(spec):
        return "nothing leaves the die"
    return ""


def refusal(spec: Spec, model: Model) -> str:
    """Why sdma cannot carry ``spec`` out on the machine, if so."""
    if model.engine is None:
        return f"{model.name} has no SDMA engine"
    if spec.redop and not model.engine.reduces:
        return f"the SDMA engine of {model.name} moves bytes and does not reduce"
    return ""


def descriptors(plan: Plan, block_bytes: int) -> int:
    """That the die submits for a plan (as ``st_lower.h`` does): for each block of a unit one to each destination, of a
    reduction one with all its operands; one for a flag that a unit waits for, and one for a flag that it raises."""
    units = plan.units
    blocks = -(-units["bytes"].astype(np.int64) // block_bytes)
    targets = units["ndst"].astype(np.int64)
    targets[units["kind"] == REDUCE] = 1
    return int((blocks * targets).sum()) + sum(int((units[name] != NONE).sum()) for name in ("wait_flag", "post_flag"))


def ways(algorithm: Algorithm, spec: Spec, cores: int, of: int, overlap: bool, topology: Topology, cost: Cost,
         model: Model) -> dict[str, Way]:  # fmt: skip
    """What the paths that there are cost on ``cores`` of the ``of`` cores of a die."""
    mte = estimate(algorithm, spec, cores, topology, cost, model)
    found = {"mte": Way(mte, mte * cores, mte)}
    if model.engine is not None and not moot(spec) and not refusal(spec, model):
        plans = (build(spec, m, cores, algorithm=algorithm.name, cost=cost, topology=topology) for m in members(spec))
        number = max(descriptors(plan, model.engine.block_bytes) for plan in plans)
        sdma = estimate(algorithm, spec, cores, topology, cost, model, number)
        found["sdma"] = Way(sdma, number * model.engine.descriptor_us, sdma, number)
    if overlap:
        first = min(way.time_us for way in found.values())
        found = {p: w._replace(exposed_us=w.core_us / of + w.time_us - first) for p, w in found.items()}
    return found


def least(found: dict[str, Way], cores: int, of: int, overlap: bool) -> tuple[str, str]:
    """The path that is exposed least, and why in words."""
    mte, sdma = found["mte"], found["sdma"]
    path = "sdma" if sdma.exposed_us < mte.exposed_us else "mte"
    if not overlap:
        why = f"{ALONE}, and {path} is the faster: mte takes {mte.time_us:.1f} us, sdma {sdma.time_us:.1f} us"
        return path, f"{why}, as {cores} cores move less than the engine" if path == "sdma" else why
    held = f"mte holds {cores} of {of} cores for {mte.time_us:.1f} us, which costs other work {mte.core_us / of:.1f} us"
    late = sdma.time_us - mte.time_us
    end = f"ends {abs(late):.1f} us {'later' if late > 0 else 'earlier'}"
    why = f"{held}; sdma costs it {sdma.core_us / of:.1f} us and {end}, so less can be lost by {path}"
    if late > 0 and sdma.core_us < mte.core_us:
        alone = max(sdma.time_us - mte.core_us / of, 0.0)
        why += f" (sdma is ahead if that work alone takes {alone:.1f} us or more)"
    return path, why
