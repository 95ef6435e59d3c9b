"""From a spec to a plan, and a cache of plans."""

from __future__ import annotations

import operator
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import numpy as np

from strata.errors import InvalidArgument
from strata.plan import algorithms
from strata.plan import cost as costs
from strata.plan import topology as topologies
from strata.plan.frontends import frontend, frontends
from strata.plan.operations import remote
from strata.plan.plan import Plan
from strata.plan.schedule import POLICIES, Units, schedule, schedule_all
from strata.plan.spec import Spec, normal

MAX_CORES = 4096
PATHS = ("mte", "sdma")  # cores move the bytes; the die's DMA engine does
_INT64 = np.dtype(np.int64)


def build(
    spec: Spec,
    rank: int,
    cores: int = 1,
    *,
    algorithm: str | None = None,
    path: str | None = None,
    policy: str = "balanced",
    cost: costs.Cost = costs.HOST,
    topology: topologies.Topology = topologies.HOST,
    local_first: bool = False,
) -> Plan:
    """The plan of member ``rank`` for ``spec``, on ``cores`` of its cores.

    ``algorithm``: None is full_mesh (``plan.select.choose`` chooses).  ``path``: "mte" (None) or
    "sdma", who moves the bytes; the units are the same.  ``policy``: "balanced" or "naive", how units
    are shared among cores.  ``topology`` and ``cost`` describe the machine;
    the defaults, one host.  ``local_first``: the die's own part before its peers' (default
    after).  InvalidArgument (a ValueError) for anything that does not exist.
    """
    spec, chosen = _asked(spec, (rank,), cores, algorithm, path, policy, topology)
    # What does not leave a member needs no algorithm, and no flags.
    moved = remote(spec)
    slices = chosen.slices(spec, rank, topology) if moved else frontend(spec, rank)
    made = schedule(
        slices, spec, rank, cores,
        policy=policy, cost=cost, tiers=topology.seen(rank, spec.nranks), local_first=local_first,
    )  # fmt: skip
    return _plan(spec, rank, chosen, path, policy, cores, moved, chosen.scratch(spec, rank, topology), slices, made)


def build_all(
    spec: Spec,
    cores: int = 1,
    *,
    ranks: Iterable[int] | None = None,
    algorithm: str | None = None,
    path: str | None = None,
    policy: str = "balanced",
    cost: costs.Cost = costs.HOST,
    topology: topologies.Topology = topologies.HOST,
    local_first: bool = False,
) -> list[Plan]:
    """``build(spec, rank, cores, ...)`` for each of ``ranks`` (None: all members), in their order.

    The same plans, in a fraction of the time: what members have in common is done once.  ``spec`` is
    every member's, ``in_place`` too.  Arrays of several plans lie in one piece of memory (16 MiB or
    more, and that of ``slices``), which is kept while any of them is; ``copy.deepcopy`` of a plan is apart.
    """
    members = None if ranks is None else [operator.index(rank) for rank in ranks]
    spec, chosen = _asked(spec, members or (), cores, algorithm, path, policy, topology)
    numbers = np.arange(spec.nranks) if members is None else np.array(members, np.int64)
    if not len(numbers):
        return []
    moved = remote(spec)
    slices = chosen.slices_of(spec, numbers, topology) if moved else frontends(spec, numbers)
    every = schedule_all(
        slices, spec, numbers, cores,
        policy=policy, cost=cost, tiers=[topology.seen(rank, spec.nranks) for rank in numbers.tolist()],
        local_first=local_first,
    )  # fmt: skip
    return [
        _plan(spec, rank, chosen, path, policy, cores, moved, chosen.scratch(spec, rank, topology), mine, made)
        for rank, mine, made in zip(numbers.tolist(), slices, every, strict=True)
    ]


def _asked(
    spec: Spec,
    ranks: Iterable[int],
    cores: int,
    algorithm: str | None,
    path: str | None,
    policy: str,
    topology: topologies.Topology,
) -> tuple[Spec, algorithms.Algorithm]:
    """The spec in its normal form, and the algorithm; InvalidArgument for what does not exist."""
    spec = normal(spec)
    chosen = algorithms.get(algorithm or "full_mesh", spec, topology)
    if path not in (None, *PATHS):
        raise InvalidArgument(f"path {path!r} is not available; there is {', '.join(PATHS)}")
    for rank in ranks:
        if not 0 <= rank < spec.nranks:
            raise InvalidArgument(f"rank is {rank} of {spec.nranks} members", operation=spec.operation)
    if not 1 <= cores <= MAX_CORES:
        raise InvalidArgument(f"cores is {cores}, not 1 to {MAX_CORES}", operation=spec.operation)
    if policy not in POLICIES:
        raise InvalidArgument(f"policy is {policy!r}, not one of {', '.join(POLICIES)}")
    return spec, chosen


def _plan(
    spec: Spec,
    rank: int,
    chosen: algorithms.Algorithm,
    path: str | None,
    policy: str,
    cores: int,
    moved: bool,
    scratch: int,
    slices: np.ndarray,
    made: Units,
) -> Plan:
    return Plan(
        spec=spec,
        rank=int(rank),
        algorithm=chosen.name,
        path=path or PATHS[0],
        policy=policy,
        cores=int(cores),
        needs_done=spec.mode == "zero_copy" and moved,
        scratch=scratch,
        slices=slices,
        units=made.units,
        operands=made.operands,
        core_begin=made.core_begin,
        buffer_bytes=made.buffer_bytes,
        makespan_ps=made.makespan_ps,
        bound_ps=made.bound_ps,
    )


class _Data(bytes):
    """A matrix's bytes as a part of a key: hashed by a sample of them, compared by all."""

    def __hash__(self) -> int:
        return hash(self[::61])  # prime: no place within elements is left out


class PlanCache:
    """Plans by shape, the least recently used dropped first.  May be used by several threads.

    Bounded by what the plans' arrays take (``max_bytes``), and by number, since small plans
    cost more in objects than in arrays.
    """

    def __init__(self, max_bytes: int = 8 << 20, max_plans: int = 1024) -> None:
        self.max_bytes, self.max_plans = max_bytes, max_plans
        self.nbytes = self.hits = self.misses = 0
        self._plans: OrderedDict[Any, Plan] = OrderedDict()
        self._last: Plan | None = None  # at the end of _plans, if it is there
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._plans)

    def get(
        self,
        spec: Spec,
        rank: int,
        cores: int = 1,
        *,
        algorithm: str | None = None,
        path: str | None = None,
        policy: str = "balanced",
        cost: costs.Cost = costs.HOST,
        topology: topologies.Topology = topologies.HOST,
        local_first: bool = False,
    ) -> Plan:
        """``build(spec, rank, cores, ...)``, or the same plan as last time."""
        given: Any = spec
        if spec.counts is not None:
            if type(spec.counts) is not np.ndarray or spec.counts.dtype != _INT64:
                spec = normal(spec)
            given = (spec[:8], spec.in_place, spec.counts.shape, _Data(spec.counts.tobytes()))
        key = (given, rank, cores, algorithm, path, policy, cost, topology, local_first)
        with self._lock:
            plan = self._plans.get(key)
            if plan is not None:
                if plan is not self._last:  # hashing the key once more is what costs
                    self._plans.move_to_end(key)
                    self._last = plan
                self.hits += 1
                return plan
            self.misses += 1
        plan = build(spec, rank, cores, algorithm=algorithm, path=path, policy=policy, cost=cost, topology=topology,
                     local_first=local_first)  # fmt: skip
        with self._lock:
            if key not in self._plans:
                self._plans[key] = self._last = plan
                self.nbytes += plan.nbytes
                while len(self._plans) > 1 and (self.nbytes > self.max_bytes or len(self._plans) > self.max_plans):
                    self.nbytes -= self._plans.popitem(last=False)[1].nbytes
        return plan

    def clear(self) -> None:
        """Forgets every plan."""
        with self._lock:
            self._plans.clear()
            self._last = None
            self.nbytes = 0
