"""What ports allow: bytes through each die's ports by their rate.

Partition goes by cores alone.  A plan takes at least what its slowest core takes, and at least what
its dies' ports take: from some number of cores on, ports are what an operation waits for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strata.plan.cost import Cost
from strata.plan.plan import Plan
from strata.plan.topology import SIO, Topology
from strata.plan.wellformed import operand_bytes, spread

SIO_PORT, UB_PORT = 0, 1
IN, OUT = 0, 1


def traffic(plans: Sequence[Plan], topology: Topology) -> np.ndarray:
    """Bytes through ports, i64 (nranks, 2, 2): [die, SIO_PORT or UB_PORT, IN or OUT].

    Of the whole operation if ``plans`` are all members'; of some members', what these move.
    An accumulation counts what it sends; its reading back is the peer's memory's work.
    """
    found = np.zeros((plans[0].spec.nranks, 2, 2), np.int64)
    for plan in plans:
        tiers = np.asarray(topology.seen(plan.rank, plan.spec.nranks), np.int64)
        for first, number, own in (("src_first", "nsrc", IN), ("dst_first", "ndst", OUT)):
            member, nbytes = _operands(plan, first, number)
            moved = np.bincount(member, nbytes, plan.spec.nranks).astype(np.int64)
            for port, through in ((SIO_PORT, tiers == SIO), (UB_PORT, tiers > SIO)):
                found[plan.rank, port, own] += moved[through].sum()
                found[through, port, 1 - own] += moved[through]
    return found


def _operands(plan: Plan, first: str, number: str) -> tuple[np.ndarray, np.ndarray]:
    """Member and bytes of all units' operands on one side."""
    unit, which = spread(plan.units[first].astype(np.int64), plan.units[number].astype(np.int64))
    operands = plan.operands[which]
    return operands["member"].astype(np.int64), operand_bytes(plan.units[unit], operands).astype(np.int64)


def port_ps(plans: Sequence[Plan], cost: Cost, topology: Topology) -> np.ndarray:
    """Picoseconds that each die's busiest port needs, i64 (nranks); 0 where ports have no limit."""
    per_byte = np.array([1e3 / rate if rate else 0.0 for rate in (cost.sio_gbps, cost.ub_gbps)])
    return np.ceil(traffic(plans, topology).max(axis=2) * per_byte).max(axis=1).astype(np.int64)


def predicted_ps(plans: Sequence[Plan], cost: Cost, topology: Topology) -> int:
    """Picoseconds that an operation takes at least: the slowest core of any die, or the busiest port."""
    return max(int(port_ps(plans, cost, topology).max()), *(plan.makespan_ps for plan in plans))
