"""What an algorithm costs, by a model: synchronisations, start-up, and bytes through ports and memory.

A stated estimate to choose by, not a simulation: a die's steps are added up, each with the wait for its
flags (where it waits for none, its farthest start-up), and its bytes at the rate that ports and cores allow.
Where one member serves many (broadcast, scatter and their like), its port is shared by those it serves.

By SDMA the die's engine moves the bytes, at its share of what ports and memory give, however few cores
submit; its first byte comes a hand-over and a descriptor later, and it ends no sooner than all are submitted.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from strata.plan.algorithms import Algorithm
from strata.plan.cost import NO_CAP, Cost
from strata.plan.records import NONE, NTIERS, PUSH, SYNC_SLICE
from strata.plan.schedule import LEAST_UNIT
from strata.plan.spec import ROOTED, Spec
from strata.plan.topology import SIO, Topology


@dataclass(frozen=True)
class Engine:
    """A die's SDMA engine.

    ``descriptor_us``  core time of building and submitting a descriptor
    ``handover_us``    from the doorbell to the first byte, beyond a core's own start-up
    ``share``          of the rate that cores reach at best, what the engine does
    ``block_bytes``    most bytes of one descriptor
    ``reduces``        it combines operands too; else it only moves
    """

    descriptor_us: float
    handover_us: float
    share: float = 1.0
    block_bytes: int = 1 << 20
    reduces: bool = True


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
    ``engine``     of SDMA; None: a die has none
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
    engine: Engine | None = None


# A common server, to begin with; `strata tune` measures the host at hand.  A: assumed.
HOST_MODEL = Model(
    "the host", 0.6, 1.0, (0.0,) * NTIERS, 0.0, 9.0, cpus=2, slice_us=0.15,
    # One DMA thread a die, which copies as a core does; bench/sdma.py: 64 bytes written, a sleeping thread woken
    engine=Engine(descriptor_us=0.05, handover_us=30.0),
)  # fmt: skip


def estimate(algorithm: Algorithm, spec: Spec, cores: int, topology: Topology, cost: Cost, model: Model,
             descriptors: int | None = None) -> float:  # fmt: skip
    """Microseconds that ``spec`` takes by ``algorithm``: the slowest of a few members.  With ``descriptors``, by the
    engine that a member submits so many to."""
    engine = None if descriptors is None else model.engine
    submission = descriptors * engine.descriptor_us if engine else 0.0
    found = max(_member(algorithm, spec, m, cores, topology, cost, model, engine, submission) for m in members(spec))
    if model.cpus or spec.operation not in ROOTED:
        return found
    ports: dict[tuple[int, int], int] = {}
    for (kind, _, peer), (nbytes, _) in _served(algorithm, spec, topology).items():
        ports[kind, peer] = ports.get((kind, peer), 0) + nbytes
    return max(found, model.entry_us + max(ports.values(), default=0) / (model.port_gbps * 1e3))


def members(spec: Spec) -> set[int]:
    """A few members, of which one has as much to do as any."""
    n = spec.nranks
    half = 1 << max(n - 1, 1).bit_length() - 1  # a binomial root's child with the most members below it
    return {spec.root, (spec.root + 1) % n, (spec.root - 1) % n, (spec.root + half) % n}


class _Step(NamedTuple):
    """What a member moves in one step: slices, peers, bytes, what those peers and a core give (GB/s), start-up, and
    how many cores can share it: units of a reduction are no smaller than ``LEAST_UNIT``."""

    moving: np.ndarray
    peers: int
    nbytes: int
    links: float
    core_gbps: float
    begins: float
    most_cores: int


def _member(algorithm: Algorithm, spec: Spec, rank: int, cores: int, topology: Topology, cost: Cost,
            model: Model, engine: Engine | None, submission: float) -> float:  # fmt: skip
    shape = _shape if spec.counts is None else _shape.__wrapped__
    moving, depth, steps = shape(algorithm, spec, rank, topology, cost, model)
    crowd = max(1.0, spec.nranks / model.cpus) if model.cpus else 1.0
    time = (model.entry_us + depth * model.sync_us) * crowd
    memory = model.memory_gbps * 1e3 * (engine.share if engine else 1.0)
    handover = engine.handover_us if engine else 0.0
    if model.cpus:  # which submit before they move
        return time + crowd * (handover + submission + len(moving) * model.slice_us + _touched(moving) / memory)
    served = _served(algorithm, spec, topology) if spec.operation in ROOTED else {}
    moves = sum(max(_step_us(step, cores, model, engine), _shared_us(step.moving, served, model)) for step in steps)
    moves *= max(1.0, (depth + 1) / max(len(steps), 1))  # other members' steps before its own
    if engine:
        time, moves = time + handover + engine.descriptor_us, max(moves, submission / cores)
    return time + moves + 2 * int(moving["bytes"][moving["peer"] == rank].sum()) / memory


@functools.lru_cache(8)
def _shape(algorithm: Algorithm, spec: Spec, rank: int, topology: Topology, cost: Cost,
           model: Model) -> tuple[np.ndarray, int, list[_Step]]:  # fmt: skip
    """What a member moves, SLICE_DTYPE; after how many synchronisations; what of it is far, by steps.  Kept while
    budgets of cores are compared."""
    slices = algorithm.slices(spec, rank, topology)
    depth = len(set(slices["step"][slices["wait_flag"] != NONE].tolist()))
    if algorithm.depth:
        depth = max(depth, (_depth if spec.counts is None else _depth.__wrapped__)(algorithm, spec, topology))
    moving = slices[slices["kind"] != SYNC_SLICE]
    if model.cpus:
        return moving, depth, []
    far = moving[moving["peer"] != rank]
    far = far[np.argsort(far["step"], kind="stable")]
    tier = np.asarray(topology.tiers(rank, far["peer"].astype(np.int64)))
    ends = np.flatnonzero(np.diff(far["step"].astype(np.int64))) + 1
    bounds = [0, *ends.tolist(), len(far)] if len(far) else []
    return moving, depth, [_step(far[a:b], tier[a:b].tolist(), cost, model) for a, b in itertools.pairwise(bounds)]


def _step(moving: np.ndarray, tier: list[int], cost: Cost, model: Model) -> _Step:
    first = dict(zip(moving["peer"].tolist(), tier, strict=True))
    tiers = set(tier)
    begins = 0.0 if (moving["wait_flag"] != NONE).all() else max(cost.alpha_us[t] for t in tiers)
    nbytes = int(moving["bytes"].sum())
    rates = np.array(cost.gbps)[tier]  # each counts as it has bytes
    core = nbytes / float((moving["bytes"] / rates).sum()) if nbytes else float(rates.min())
    cores = NO_CAP
    reducing = (moving["op"] != 0) & (moving["kind"] != PUSH)
    if reducing.any():  # operands of one target, and pushes of it, are one unit
        targets = np.unique(moving[reducing][["dst_buf", "dst", "bytes"]])
        cores = int(np.maximum(targets["bytes"] // LEAST_UNIT, 1).sum())
    links = sum(model.link_gbps[t] for t in first.values())
    return _Step(moving, len(first), nbytes, links, core, begins, cores)


@functools.lru_cache(64)
def _depth(algorithm: Algorithm, spec: Spec, topology: Topology) -> int:
    assert algorithm.depth is not None
    return algorithm.depth(spec, topology)


@functools.lru_cache(16)
def _served(algorithm: Algorithm, spec: Spec, topology: Topology) -> dict[tuple[int, int, int], tuple[int, int]]:
    """(Bytes, members) that the port of a member serves in a step, by (kind, step, member)."""
    found: dict[tuple[int, int, int], tuple[int, int]] = {}
    for rank in range(spec.nranks):
        slices = algorithm.slices(spec, rank, topology)
        tier = np.asarray(topology.tiers(rank, slices["peer"].astype(np.int64)))
        far = slices[(slices["kind"] != SYNC_SLICE) & (slices["peer"] != rank) & (tier > SIO)]
        mine: dict[tuple[int, int, int], int] = {}
        for kind, step, peer, nbytes in far[["kind", "step", "peer", "bytes"]].tolist():
            mine[kind, step, peer] = mine.get((kind, step, peer), 0) + nbytes
        for key, nbytes in mine.items():
            before, members = found.get(key, (0, 0))
            found[key] = before + nbytes, members + 1
    return found


def _shared_us(moving: np.ndarray, served: dict[tuple[int, int, int], tuple[int, int]], model: Model) -> float:
    """Until the busiest of a step's peers has served all that it serves."""
    time = 0.0
    for kind, step, peer in set(moving[["kind", "step", "peer"]].tolist()) if served else ():
        nbytes, members = served.get((kind, step, peer), (0, 0))
        if members > 1:
            time = max(time, nbytes / (_port_gbps(members, nbytes / members, model) * 1e3))
    return time


def _port_gbps(members: int, per_peer: float, model: Model) -> float:
    """What a port gives that is busy with so many peers."""
    loss = model.loss * float(np.log2(max(members, 1))) * per_peer / (per_peer + model.backlog_bytes)
    return model.port_gbps / (1 + loss)


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


def _step_us(step: _Step, cores: int, model: Model, engine: Engine | None) -> float:
    port = _port_gbps(min(step.peers, cores), step.nbytes / step.peers, model)
    rate = min(step.links, port)
    rate = rate * engine.share if engine else min(rate, min(cores, step.most_cores) * step.core_gbps)
    return float(step.begins + step.nbytes / (rate * 1e3))
