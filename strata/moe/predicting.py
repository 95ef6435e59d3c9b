"""What dispatch and combine would take on a machine that is not here.

The plans are those that a Buffer makes, of all dies, timed on the machine's simulator; before and behind them come the
other parts of the operator, one after the other:

* ``layout``   dispatch: the pass over the choices, which are read, and a flag a token and die written
* ``convert``  dispatch with ``quant``: rows are read and written smaller
* ``copies``   system staged: all that a die sends into a buffer, and all that it receives out of one
* ``posts``    all cores read what the others have posted: counts and addresses, and of dispatch lists of tokens
* ``barriers`` of all cores of a die within the operator (``sync.fused_us``)
* ``add up``   combine by sdma: rows that the engine has brought are added up by cores

Layout, conversion, copies and adding up go as fast as memory and cores move bytes: their arithmetic is not timed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from strata.errors import InvalidArgument
from strata.machine import Machine, load
from strata.plan.build import PATHS
from strata.plan.moe import Placement, Routing, combine_plans, dispatch_plans, played, routing
from strata.plan.moe.rounds import MODES, Round
from strata.plan.plan import Plan
from strata.plan.records import DTYPE_NAMES
from strata.plan.schedule import POLICIES
from strata.plan.topology import LOCAL
from strata.prediction import Simulated

if TYPE_CHECKING:
    from strata.exec.timed import Effects, Program, Stage, Timeline

__all__ = ["MoePrediction", "System", "simulate"]

KINDS = ("dispatch", "combine")
QUANTS = {"fp8": 128, "int8": 0}  # elements of a group that has a scale; 0: the row
ATOM = 512  # bytes: rows with their scales are cut to what the fabric writes at once (arXiv 2607.06202)
POST, ENTRY = 256, 4  # bytes of a post, and of a token in its list
BF16 = DTYPE_NAMES.index("bf16")


class System(NamedTuple):
    """How a library does it: the partition of its cores, and whether rows go through buffers."""

    partition: str
    staged: bool


SYSTEMS = {
    "strata": System("balanced", False),
    "zerocopy": System("naive", False),  # as CANN EP zero-copy: each peer has cores of its own
    "staged": System("naive", True),  # as HCCL
}


class MoePrediction(Simulated):
    """What ``simulate`` found.

    ``kind``, ``mode``, ``system``, ``ranks``, ``tokens``, ``path``, ``cores``, ``partition``, ``quant``, ``routing``
    ``machine``      a ``strata.machine.Machine``
    ``row_bytes``    bytes of a row as it travels;  ``rows``  i64 (ranks, ranks): from each die to each
    ``time_us``      until the last die is done;  ``finish_us``  f64 (ranks,)
    ``busbw_GBps``   rows that leave a die, on average, by the time; 1e9 bytes
    ``parts_us``     microseconds of each part, of the die whose part lasts longest
    ``core_times_us``  f64 (ranks, cores): how long each core moved rows
    ``digest``, ``window_us``, ``timeline``, ``stage``  as of ``strata.prediction.Prediction``; ``stage`` moves the rows
    """

    def __init__(self, asked: dict[str, Any], machine: Machine, plans: list[Plan], row: int, timeline: Timeline,
                 stage: Stage) -> None:  # fmt: skip
        self.kind: str = asked["kind"]
        self.mode: str = asked["mode"]
        self.system: str = asked["system"]
        self.tokens, self.quant, self.routing = asked["tokens"], asked["quant"], asked["routing"]
        self.machine, self.ranks, self.row_bytes = machine, len(plans), row
        self.path, self.cores, self.partition = plans[0].path, plans[0].cores, plans[0].policy
        counts = plans[0].spec.counts
        assert counts is not None
        self.rows: np.ndarray = counts
        super().__init__(timeline, stage)
        last = timeline.stages[-1]
        self.finish_us = timeline.finish_us(last)
        self.time_us = float(self.finish_us.max())
        away = int(counts.sum()) - int(np.trace(counts))
        self.busbw_GBps = away * row / self.ranks / self.time_us / 1e3
        self.parts_us = {s.name: float(self._lasts(s)) for s in timeline.stages}

    def _lasts(self, stage: Stage) -> float:
        begun = max((self.timeline.finish_us(a) for a in stage.after), key=np.max, default=np.zeros(self.ranks))
        return float((self.timeline.finish_us(stage) - begun).max())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {us:.1f}" for name, us in self.parts_us.items())
        rows = {
            "operation": f"{self.kind}, {self.mode}, {self.system}: {self.tokens} tokens a rank, {self.ranks} ranks of "
                         f"{self.machine.name}, rows of {self.row_bytes} bytes",
            "how": f"{self.path}, {self.cores} cores, {self.partition} partition; routing: {self.routing}",
            "time": f"{self.time_us:.3f} us: {parts}",
            "bandwidth": f"busbw {self.busbw_GBps:.2f} GB/s",
            "dies": f"done after {self.finish_us.min():.3f} to {self.finish_us.max():.3f} us",
            "digest": self.digest,
        }  # fmt: skip
        return "\n".join(f"{name:9}  {text}" for name, text in rows.items())

    def __repr__(self) -> str:
        return f"<MoePrediction {self.kind} {self.mode} {self.system}, {self.ranks} ranks: {self.time_us:.3f} us>"


def simulate(kind: str = "dispatch", mode: str = "high_throughput", ranks: int = 32, tokens: int = 4096, *,
             hidden: int = 7168, topk: int = 8, experts: int = 256, machine: str | Machine = "cm384",
             system: str = "strata", path: str = "mte", cores: int | None = None, partition: str | None = None,
             routing: str | Routing | float = "uniform", seed: int = 0, placement: Placement | None = None,
             quant: str | None = None, effects: Effects | None = None, window_us: float = 0.0,
             check: bool = False) -> MoePrediction:  # fmt: skip
    """What a dispatch or combine of ``tokens`` a rank would take on a machine; nothing is run.

    ``kind``      "dispatch" or "combine", whose rows are bfloat16 (ranks' tokens of ``hidden`` elements)
    ``mode``      "high_throughput": a token once to each die; "low_latency": once to each of its experts
    ``machine``   a name that ``strata.machine.names()`` has, a .toml file, or a Machine
    ``system``    "strata": balanced; "zerocopy": each peer has cores of its own, as CANN EP zero-copy; "staged": as
                  that, and through buffers on both sides, as HCCL
    ``path``, ``cores`` (None: all of a die), ``partition`` (None: the system's)
    ``routing``   "uniform", "zipf" (1.2), a number (Zipf's), or a ``Routing``, of which the first step counts and says
                  ranks, tokens, topk and experts
    ``placement`` of experts; None: in order, evenly
    ``quant``     of dispatch: "fp8" (a scale for 128 elements) or "int8" (a scale for a row); rows with their scales
                  are cut to 512 bytes.  topk_idx and topk_weights, which travel along, are left out: 12 bytes a choice
    ``effects``, ``window_us``, ``check``  as of ``strata.simulate``

    InvalidArgument for what does not exist, or does not go together.
    """
    _among(kind=(kind, KINDS), mode=(mode, MODES), system=(system, tuple(SYSTEMS)), path=(path, PATHS),
           partition=(partition, (None, *POLICIES)), quant=(quant, (None, *QUANTS)))  # fmt: skip
    if quant is not None and kind == "combine":
        raise InvalidArgument(f"quant is {quant!r}: rows come back as they are, only dispatch makes them smaller")
    described, way = load(machine), SYSTEMS[system]
    cores = described.die.cores if cores is None else cores
    if not 1 <= cores <= described.die.cores:
        raise InvalidArgument(f"cores is {cores}: 1 to {described.die.cores}, those of a die of {described.name}")
    if not isinstance(hidden, int) or hidden < 1:
        raise InvalidArgument(f"hidden is {hidden!r}: elements of a row, at least 1, are expected")
    given = _routing(routing, ranks, tokens, topk, experts, seed)
    if given.ranks > described.topology.dies:
        raise InvalidArgument(f"{given.ranks} ranks, and {described.name} has {described.topology.dies} dies")
    round = _round(given, placement or _default(given.experts, given.ranks), mode)
    row = row_bytes(hidden, quant)
    options: dict[str, Any] = {"path": path, "policy": partition or way.partition, "cost": described.cost,
                               "topology": described.place}  # fmt: skip
    if kind == "dispatch":
        plans = dispatch_plans(round, row, cores, **options)
    else:
        plans = combine_plans(round, row, BF16, cores, **options)

    from strata.exec.timed import Program

    program = Program(described, given.ranks, effects)
    parts = _Parts(program, described, round, plans, cores, row, hidden)
    stage = parts.add(kind, way.staged, quant is not None)
    timeline = program.run(window_us=window_us, check=check)
    asked = {"kind": kind, "mode": mode, "system": system, "tokens": int(round.tokens.max()), "quant": quant,
             "routing": given.note or "as given"}  # fmt: skip
    return MoePrediction(asked, described, plans, row, timeline, stage)


def row_bytes(hidden: int, quant: str | None) -> int:
    """Bytes of a row as it travels, its scales with it."""
    if quant is None:
        return 2 * hidden
    groups = -(-hidden // QUANTS[quant]) if QUANTS[quant] else 1
    return -(-(hidden + 4 * groups) // ATOM) * ATOM


class _Parts:
    """Puts an operator's parts into a program, each after the one before."""

    def __init__(self, program: Program, machine: Machine, round: Round, plans: list[Plan], cores: int, row: int,
                 hidden: int) -> None:  # fmt: skip
        self.program, self.machine, self.round, self.plans = program, machine, round, plans
        self.cores, self.row, self.hidden = cores, row, hidden
        self.dies = range(len(plans))
        counts = plans[0].spec.counts
        assert counts is not None
        self.counts: np.ndarray = counts
        self.last: Stage | None = None

    def add(self, kind: str, staged: bool, smaller: bool) -> Stage:
        """All of them; the one that moves rows."""
        most = int(self.round.tokens.max())
        if kind == "dispatch":
            k = self.round.slots[0].shape[1]
            self.bytes("layout", most * (8 * k + len(self.plans)))
            if smaller:
                self.bytes("convert", most * (2 * self.hidden + self.row))
        if staged:
            self.bytes("copies in", 2 * int(self.counts.sum(axis=1).max()) * self.row)
        self.last = self.program.delay(self.dies, self.posts(kind), after=self.last, name="posts")
        self.last = moved = self.program.operation(self.plans, after=self.last, name="rows")
        self.last = self.program.delay(self.dies, self.machine.sync.fused_us, after=self.last, name="barriers")
        if kind == "combine" and self.plans[0].path == "sdma":
            self.bytes("add up", int(self.counts.sum(axis=0).max() + most) * self.row)
        if staged:
            self.bytes("copies out", 2 * int(self.counts.sum(axis=0).max()) * self.row)
        return moved

    def bytes(self, name: str, nbytes: int) -> None:
        """So many bytes, read and written, by all cores of each die."""
        self.last = self.program.compute(self.dies, nbytes=nbytes, cores=self.cores, after=self.last, name=name)

    def posts(self, kind: str) -> Sequence[float]:
        """How long each die reads the others' posts, which its cores share."""
        tiers, n = self.machine.tiers, len(self.plans)
        wait = np.array([t.alpha_us + self.machine.core.issue_us for t in tiers])
        rate = np.array([t.core_gbps * 1e3 for t in tiers])
        found = []
        for die in self.dies:
            tier = self.machine.place.seen(die, n)
            away = tier != LOCAL if not self.machine.place.flat else np.arange(n) != die
            lists = self.counts[:, die] * ENTRY if kind == "dispatch" else 0
            each = (wait[tier] + (POST + lists) / rate[tier])[away]
            found.append(max(float(each.max(initial=0.0)), float(each.sum()) / self.cores))
        return found


def _among(**asked: tuple[Any, tuple[Any, ...]]) -> None:
    for name, (value, there) in asked.items():
        if value not in there:
            raise InvalidArgument(f"{name} is {value!r}: one of {', '.join(map(repr, there))} is expected")


def _routing(given: str | Routing | float, ranks: int, tokens: int, topk: int, experts: int, seed: int) -> Routing:
    if isinstance(given, Routing):
        return given
    skews = {"uniform": 0.0, "zipf": 1.2}
    if isinstance(given, str) and given not in skews:
        raise InvalidArgument(f"routing is {given!r}: one of {', '.join(skews)}, a Zipf exponent, or a Routing")
    return _drawn(ranks, tokens, topk, experts, skews[given] if isinstance(given, str) else float(given), seed)


@functools.lru_cache(4)
def _drawn(ranks: int, tokens: int, topk: int, experts: int, s: float, seed: int) -> Routing:
    if not s:
        return routing.uniform(ranks, tokens, topk, experts, seed)
    return routing.zipf(ranks, tokens, topk, experts, s, seed)


@functools.lru_cache(16)
def _default(experts: int, ranks: int) -> Placement:
    return Placement.default(experts, ranks)


@functools.lru_cache(4)
def _round(given: Routing, placement: Placement, mode: str) -> Round:
    return played(given.steps[0], placement, mode)
