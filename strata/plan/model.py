"""What an algorithm costs, by a model: synchronisations, start-up, and bytes through ports and memory.

A stated estimate to choose by, not a simulation: a die's steps are added up, each with the wait for its
flags (where it waits for none, its farthest start-up), and its bytes at the rate that ports and cores allow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strata.plan.algorithms import Algorithm
from strata.plan.cost import Cost
from strata.plan.records import NONE, NTIERS, PUSH, SYNC_SLICE
from strata.plan.spec import Spec
from strata.plan.topology import Topology

GB = 1e9


@dataclass(frozen=True)
class Model:
    """Figures of a machine that selection goes by.

    ``sync_us``    from the end of one die's transfer to the begin of another's that waits for it, start-up included
    ``entry_us``   arrival and closing of an operation, both
    ``link_gbps``  one die from one other, by tier
    ``port_gbps``  one die from all others together; 0: no limit but memory
    ``memory_gbps`` reads and writes of a die's own memory together; of one CPU if ``cpus``
    ``loss``, ``backlog_bytes``  fan-out: a port with F busy peers gives port / (1 + loss log2(F) x),
                   x = m / (m + backlog_bytes), m bytes per peer
    ``cpus``       that all dies share; 0: a die has its own cores
    ``slice_us``   what each slice costs to start
    """

    name: str
    sync_us: float
    entry_us: float
    link_gbps: tuple[float, ...]
    port_gbps: float
    memory_gbps: float
    loss: float = 0.0
    backlog_bytes: float = 0.0
    cpus: int = 0
    slice_us: float = 0.0


# A common server, to begin with; `strata tune` measures the host at hand.
HOST_MODEL = Model("the host", 0.6, 1.0, (0.0,) * NTIERS, 0.0, 9.0, cpus=2, slice_us=0.15)

# Tiers and rates: StrataCL, observation 3 (measured, second-hand).  sync, entry, loss and backlog are fitted to
# the paper's ring against full mesh (4.5 times at 64 KiB, even at 16 MiB, 6 % at 1 GiB): a fit, no validation.
CM384_MODEL = Model(
    "cm384", 1.463, 0.6, (800.0, 210.0, 170.0, 150.0), 196.0, 1600.0, loss=0.0785, backlog_bytes=3.4 * (1 << 20)
)


def estimate(
    algorithm: Algorithm, spec: Spec, cores: int, topology: Topology, cost: Cost, model: Model
) -> float:
    """Microseconds that ``spec`` takes by ``algorithm``: the slowest of a few members."""
    n = spec.nranks
    members = {spec.root, (spec.root + 1) % n, (spec.root - 1) % n}
    return max(_member(algorithm, spec, m, cores, topology, cost, model) for m in members)


def _member(algorithm: Algorithm, spec: Spec, rank: int, cores: int, topology: Topology, cost: Cost,
            model: Model) -> float:  # fmt: skip
    slices = algorithm.slices(spec, rank, topology)
    moving = slices[slices["kind"] != SYNC_SLICE]
    waits = len(set(slices["step"][slices["wait_flag"] != NONE].tolist()))
    depth = max(waits, algorithm.depth(spec, topology)) if algorithm.depth else waits
    crowd = max(1.0, spec.nranks / model.cpus) if model.cpus else 1.0
    time = (model.entry_us + depth * model.sync_us) * crowd
    if model.cpus:
        return time + crowd * (len(moving) * model.slice_us + _touched(moving) / (model.memory_gbps * 1e3))
    tier = np.asarray(topology.tiers(rank, moving["peer"].astype(np.int64)))
    for step in np.unique(moving["step"]):
        here = moving["step"] == step
        time += _step_us(moving[here], tier[here], rank, cores, cost, model)
    stretch = (depth - waits) / max(waits, 1)  # a pipeline that fills: other members' steps before this one's
    return time * (1 + stretch) if stretch > 0 else time


def _touched(moving: np.ndarray) -> int:
    """Bytes read and written; a reduction writes its destination once."""
    read = int(moving["bytes"].sum())
    reducing = (moving["op"] != 0) & (moving["kind"] != PUSH)
    written = int(moving["bytes"][~reducing].sum())
    if reducing.any():
        targets = np.unique(moving[reducing][["dst_buf", "dst", "bytes", "step"]])
        written += int(targets["bytes"].sum())
        pushes = moving["kind"] == PUSH  # of a value that is at hand: written only
        read -= int(moving["bytes"][pushes].sum())
    return read + written


def _step_us(moving: np.ndarray, tier: np.ndarray, rank: int, cores: int, cost: Cost, model: Model) -> float:
    far = moving["peer"] != rank
    local = int(moving["bytes"][~far].sum())
    peers = np.unique(moving["peer"][far])
    nbytes = int(moving["bytes"][far].sum())
    time = 2 * local / (model.memory_gbps * 1e3)
    if not len(peers):
        return time
    tiers = np.unique(tier[far])
    first = {int(p): int(t) for p, t in zip(moving["peer"][far], tier[far], strict=True)}
    links = sum(model.link_gbps[t] for t in first.values())
    per_peer = nbytes / len(peers)
    loss = model.loss * np.log2(max(min(len(peers), cores), 1)) * per_peer / (per_peer + model.backlog_bytes)
    rate = min(links, model.port_gbps / (1 + loss), cores * max(cost.gbps[t] for t in tiers))
    begins = 0.0 if (moving["wait_flag"][far] != NONE).all() else max(cost.alpha_us[t] for t in tiers)
    return float(time + begins + nbytes / (rate * 1e3))
