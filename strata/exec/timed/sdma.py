"""The path by the die's engine: cores submit descriptors and are free, rings move the bytes.

A core builds the descriptors of its units one after the other.  Its ring does them in their order, each unit once
its descriptors are submitted and its flag is seen: the distance, a hand-over for each descriptor of its data, then
the bytes, at what ports, pairs and the engine give.  The engine reaches its share of each port's rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strata.errors import InvalidArgument
from strata.machine.description import Machine
from strata.plan import paths
from strata.plan.plan import Plan


def moot(plan: Plan) -> str:
    """Why cores carry an operation out whatever the path, if so."""
    return paths.moot(plan.spec)


def check(plans: Sequence[Plan], machine: Machine) -> None:
    """InvalidArgument unless the machine's engine can carry the plans out."""
    spec = plans[0].spec
    why = paths.refusal(spec, machine.model)
    if why:
        raise InvalidArgument(f"{why}: path mte does", operation=spec.operation)
    most = max(plan.cores for plan in plans)
    if most > queues(machine):
        raise InvalidArgument(f"a plan is for {most} cores, and a die of {machine.name} has {queues(machine)} SDMA "
                              "queues", operation=spec.operation)  # fmt: skip


def queues(machine: Machine) -> int:
    """Rings of a die."""
    return machine.sdma.queues if machine.sdma else 0


def figures(machine: Machine) -> dict[str, Any]:
    """The engine's constants as ``Translation.measure`` takes them."""
    engine, die = machine.sdma, machine.die
    if engine is None:
        return {"descriptor_ps": 0, "handover_ps": 0, "block": 1, "reduces": False, "engine": [0.0] * 4,
                "stream": [1.0] * 4}
    ports = (die.hbm_gbps * die.hbm_efficiency / 2, die.sio_gbps, die.ub_gbps, die.ub_gbps)
    return {
        "descriptor_ps": round(engine.descriptor_us * 1e6),
        "handover_ps": round(engine.handover_us * 1e6),
        "block": engine.block_bytes,
        "reduces": engine.reduces,
        "engine": [die.ub_gbps / port if port else 0.0 for port in ports],
        "stream": [min(tier.read_gbps, engine.share * (port or tier.read_gbps)) / 1e3
                   for tier, port in zip(machine.tiers, ports, strict=True)],
    }
