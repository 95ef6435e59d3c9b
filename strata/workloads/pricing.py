"""What kernels and collectives take, alone and beside each other, asked of the timing plane and remembered."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from strata.dtypes import OP_CODES
from strata.errors import InvalidArgument
from strata.exec.timed import Program, Stage
from strata.machine.description import Machine
from strata.plan import Spec
from strata.plan.build import build_all
from strata.plan.operations import sizes
from strata.plan.paths import refusal
from strata.plan.plan import Plan
from strata.plan.records import DTYPE_BYTES, DTYPE_NAMES
from strata.plan.select import Ask, Settings, choose
from strata.plan.spec import PARTED, REDUCTIONS
from strata.workloads.description import Practice
from strata.workloads.routing import counts
from strata.workloads.steps import Collective, Kernel
from strata.workloads.switches import JUST_IN_TIME, ON_ALLOCATION, Switches, Way

GIB = 1 << 30
FEW = 16  # dies on which a collective is run beside a kernel
LEVELS = 8  # steps of a kernel's share of memory bandwidth
EXACT = 32_000  # dies x peers x cores up to which a collective is simulated exactly; beyond, but for rings,
WINDOW_US = 0.2  # what happens within it is handled together (a ring's many steps would add that up)
RINGS = 32, 48  # members of the rings that longer all_gathers are extended from
RING = "zerocopy_ring"
PEAKS = {"f16": "f16_tflops", "bf16": "bf16_tflops", "i8": "int8_tflops", "f32": "f32_tflops"}


class Price(NamedTuple):
    """Of a collective: microseconds of its slowest die, and how it is carried out."""

    us: float
    algorithm: str
    path: str
    cores: int
    window_us: float


def placed(machine: Machine, stride: int) -> Machine:
    """The machine as a group sees it whose members are ``stride`` dies apart.  InvalidArgument if packages and nodes
    do not divide evenly."""
    place = machine.topology
    package, node = place.dies_per_package, place.dies_per_package * place.packages_per_node
    for size in (package, node):
        if size % stride and stride % size:
            raise InvalidArgument(f"dies {stride} apart do not divide packages of {package} and nodes of {node} evenly")
    inner, outer = max(1, package // stride), max(1, node // stride)
    nodes = max(1, min(place.dies // max(stride, 1) // outer, 1 << 16))
    return machine.replace(**{"topology.dies_per_package": inner, "topology.packages_per_node": outer // inner,
                              "topology.nodes": nodes})  # fmt: skip


def roofline(machine: Machine, kernel: Kernel) -> tuple[float, float]:
    """(Microseconds alone, of them the share that its bytes need)."""
    if kernel.dtype not in PEAKS:
        raise InvalidArgument(f"kernel of {kernel.dtype!r}; there are {', '.join(PEAKS)}")
    computes = kernel.flops / (getattr(machine.compute, PEAKS[kernel.dtype]) * machine.compute.efficiency * 1e6)
    moves = kernel.nbytes / (machine.die.hbm_gbps * machine.die.hbm_efficiency * 1e3)
    us = max(computes, moves) + kernel.start_us
    return us, moves / us if us else 0.0


def mapping_us(machine: Machine, peers: int, nbytes: int) -> float:
    """Just in time: what a die takes to map ``nbytes`` of each of so many peers, one by one, and first to be told."""
    r = machine.registration
    pages = -(-nbytes // r.page_bytes) * r.page_bytes
    return r.announce_us + peers * (r.map_us + r.map_us_per_gib * pages / GIB)


class Prices:
    """Of one machine, with one setting of the switches."""

    def __init__(self, machine: Machine, switches: Switches, practice: Practice) -> None:
        self.machine, self.switches, self.practice = machine, switches, practice

    def kernel_us(self, kernel: Kernel) -> float:
        """A kernel alone."""
        return roofline(self.machine, kernel)[0]

    def registration_us(self, collective: Collective) -> float:
        """Before a collective, what registering its buffers takes in the die's own time."""
        if not collective.dynamic:
            return 0.0
        whole = mapping_us(self.machine, collective.ranks - 1, collective.dynamic)
        if self.switches.registration == JUST_IN_TIME:
            return self.practice.new_share * whole
        if self.switches.registration == ON_ALLOCATION:
            return self.practice.check_us + self.practice.remap_share * whole
        return 0.0

    def collective(self, collective: Collective) -> Price:
        """A collective alone; one of tokens with the barriers within its operator."""
        found = _alone(self.machine, *self._means(collective), replace(collective, dynamic=0))
        return found._replace(us=found.us + self.practice.exchange_us) if _of_tokens(collective) else found

    def beside(self, kernel: Kernel, collective: Collective) -> tuple[float, float]:
        """(Rate of a kernel, rate of a collective) while both run, of what each has alone."""
        share = round(roofline(self.machine, kernel)[1] * LEVELS) / LEVELS
        few = _few(replace(collective, dynamic=0))
        means = self._means(few)
        cube, vector = (_together(self.machine, *means, few, share, all_cores) for all_cores in (False, True))
        v = self.practice.vector_share
        rate = 0.0 if not min(cube[0], vector[0]) else 1.0 / ((1.0 - v) / cube[0] + v / vector[0])
        return rate, (1.0 - v) * cube[1] + v * vector[1]

    def _means(self, collective: Collective) -> tuple[Way, int]:
        """How, and by how many cores.  To the engine all that have a queue submit, since they are not held for long,
        but one, which is left to kernels of matrix units."""
        way, of = self.switches.way(collective.operation), self.machine.die.cores
        engine = self.machine.sdma
        if way.path == "sdma" and engine is not None and (engine.reduces or collective.operation not in REDUCTIONS):
            return way, min(engine.queues, max(1, of - 1))
        return way, min(self.practice.comm_cores, of)


def _few(collective: Collective) -> Collective:
    """The same on a few dies, each of which moves about as many bytes."""
    n = min(collective.ranks, FEW)
    more = collective.ranks / n
    routing = collective.routing
    if routing is not None:
        routing = replace(routing, seed=0)  # one draw does for all
    if routing is not None and routing.model == "tables":
        routing = replace(routing, rows=max(1, round(routing.rows * more)), parts=max(1, round(routing.parts / more)))
    nbytes = collective.nbytes
    if collective.operation == "all_gather":
        nbytes = round(nbytes * more)
    unit = n * (DTYPE_BYTES[DTYPE_NAMES.index(collective.dtype)] if collective.operation in REDUCTIONS else 1)
    return replace(collective, ranks=n, nbytes=-(-nbytes // unit) * unit, routing=routing)


def _of_tokens(collective: Collective) -> bool:
    """Whether tokens go to experts, or back."""
    return collective.routing is not None and collective.routing.model == "experts"


def _spec(collective: Collective) -> Spec:
    name, n = collective.operation, collective.ranks
    if collective.routing is not None:
        return Spec(name, 0, collective.routing.row_bytes, nranks=n, counts=counts(collective.routing, n))
    reduces = name in REDUCTIONS
    code = DTYPE_NAMES.index(collective.dtype) if reduces else 0
    size = DTYPE_BYTES[code] if reduces else 1
    parts = n if name in PARTED else 1
    return Spec(name, -(-collective.nbytes // (size * parts)), size, code, OP_CODES["sum"] if reduces else 0, nranks=n)


@functools.lru_cache(256)
def _settings(machine: Machine, cores: int) -> Settings:
    return Settings(machine.place, machine.cost, machine.model, cores=cores)


def _plans(machine: Machine, way: Way, cores: int, collective: Collective) -> list[Plan]:
    """All members' plans, as the library makes them; by cores where the engine cannot do it."""
    spec = _spec(collective)
    path = way.path if not refusal(spec, machine.model) else "mte"
    ask = Ask(way.algorithm, path, cores, way.partition)
    settings = _settings(machine, cores)
    cost = settings.cost
    if _of_tokens(collective):  # cut as plan.moe cuts them: what one die sends to one expert
        r = collective.routing
        assert r is not None
        window = -(-r.rows * r.topk // r.parts) * r.row_bytes
        cost = replace(cost, unit_bytes=tuple(min(window, u) for u in cost.unit_bytes))
    try:
        choice = choose(spec, ask, settings)
    except InvalidArgument:
        if not way.named:
            raise
        choice = choose(spec, ask._replace(algorithm=None), settings)  # what the named one cannot do
    return build_all(spec, choice.cores, algorithm=choice.algorithm.name, path=choice.path, policy=choice.partition,
                     cost=cost, topology=settings.topology)  # fmt: skip


@functools.lru_cache(4096)
def _alone(machine: Machine, way: Way, cores: int, collective: Collective) -> Price:
    seen = placed(machine, collective.stride)
    if collective.ranks > seen.topology.dies:
        raise InvalidArgument(f"{collective.ranks} dies {collective.stride} apart are more than {machine.name} has, "
                              f"which is {machine.topology.dies} in all")  # fmt: skip
    if collective.ranks == 1:
        return Price(0.0, "none", "mte", 0, 0.0)
    if way.algorithm == RING and _whole(collective, seen):
        return _extended(machine, way, cores, collective)
    plans = _plans(seen, way, cores, collective)
    long = collective.ranks * collective.ranks * cores > EXACT and plans[0].algorithm != RING
    window = WINDOW_US if long else 0.0
    program = Program(seen, collective.ranks)
    _stages(program, way, cores, plans)
    first = plans[0]
    return Price(float(program.run(window_us=window).end_us), first.algorithm, first.path, first.cores, window)


def _whole(collective: Collective, seen: Machine) -> bool:
    """Whether it can be extended: an all_gather of whole nodes, as the shorter ones are."""
    node = seen.topology.dies_per_package * seen.topology.packages_per_node
    n = collective.ranks
    return collective.operation == "all_gather" and n > RINGS[1] and not any(k % node for k in (n, *RINGS))


def _extended(machine: Machine, way: Way, cores: int, collective: Collective) -> Price:
    """A long ring's all_gather, from two shorter ones of the same blocks: a block's way is longer, each hop is alike,
    and there are more blocks to copy."""
    first, second = (_alone(machine, way, cores, replace(collective, ranks=n)) for n in RINGS)
    hop = (second.us - first.us) / (RINGS[1] - RINGS[0])
    return second._replace(us=second.us + (collective.ranks - RINGS[1]) * hop)


def _stages(program: Program, way: Way, cores: int, plans: list[Plan]) -> Stage:
    """The operation, between copies of all sources and results if it is staged: by as many cores, each die its own."""
    if not way.staged:
        return program.operation(plans)
    dies = range(len(plans))
    taken, given = np.array([sizes(p.spec, p.rank)[:2] for p in plans]).max(axis=0).tolist()
    before = program.compute(dies, nbytes=2 * taken, cores=cores, name="copies in")
    moved = program.operation(plans, after=before)
    return program.compute(dies, nbytes=2 * given, cores=cores, after=moved, name="copies out")


@functools.lru_cache(4096)
def _together(machine: Machine, way: Way, cores: int, collective: Collective, share: float,
              all_cores: bool) -> tuple[float, float]:  # fmt: skip
    """(Rate of a kernel, of a collective) beside each other: a kernel that wants ``share`` of the memory's bandwidth,
    and all cores or one."""
    alone = _alone(machine, way, cores, collective).us
    if not alone:
        return 1.0, 1.0
    seen = placed(machine, collective.stride)
    lasts = 4.0 * alone
    nbytes = int(share * lasts * seen.die.hbm_gbps * seen.die.hbm_efficiency * 1e3)
    program = Program(seen, collective.ranks)
    last = _stages(program, way, cores, _plans(seen, way, cores, collective))
    kernel = program.compute(range(collective.ranks), us=lasts, nbytes=nbytes, cores=None if all_cores else 1)
    timeline = program.run()
    end, over = float(timeline.finish_us(last).max()), float(timeline.finish_us(kernel).max())
    progress = lasts - (over - end) if over > end else lasts
    during = min(end, over)
    return max(0.0, min(1.0, progress / during)), min(1.0, alone / end)


__all__ = ["Price", "Prices", "mapping_us", "placed", "roofline"]
