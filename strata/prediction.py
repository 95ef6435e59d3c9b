"""What an operation would take on a machine that is not here: plans, timed on its simulator."""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from strata import selection
from strata._core import front
from strata.errors import InvalidArgument
from strata.explaining import spec_of
from strata.machine import Machine, load
from strata.plan import Plan, Spec, build, build_all
from strata.plan.build import PATHS
from strata.plan.cost import Cost
from strata.plan.model import members
from strata.plan.operations import sizes
from strata.plan.paths import ALONE, moot, refusal
from strata.plan.select import Ask, Choice, Settings, choose, eligible
from strata.plan.spec import normal

if TYPE_CHECKING:
    from strata.exec.timed import Effects, Stage, Timeline

__all__ = ["Prediction", "Times", "bandwidths", "predict_plans", "simulate"]

LAUNCHES = ("graph", "eager")
SELECTIONS = ("model", "simulation")
MAX_UNITS = 1 << 22  # of all members together, before units are made larger,
MOST_UNITS = 1 << 24  # and if they cannot be; some 250 bytes each
WORSE = 3.0  # an algorithm whose closed estimate is so many times the best one's is not simulated
SAME = 1.005  # times the best: as good, with fewer cores
KEPT = 256  # results of predict_plans


class Simulated:
    """A timeline, and the stage of it that a prediction is about.

    ``core_times_us``  f64 (ranks, cores): how long each core was busy with it
    ``breakdown``      what its time went to: see ``strata.exec.timed.Timeline.breakdown``
    ``digest``, ``window_us``  of the timeline
    """

    def __init__(self, timeline: Timeline, stage: Stage) -> None:
        self.timeline, self.stage = timeline, stage
        self.digest, self.window_us = timeline.digest, timeline.window_us

    @functools.cached_property
    def core_times_us(self) -> np.ndarray:
        """How long each core of each member was busy, f64 (ranks, cores)."""
        return self.timeline.core_times_us(self.stage)

    @functools.cached_property
    def breakdown(self) -> dict[str, dict[str, float]]:
        """What the time went to, microseconds: of the core that was done last, and of all, on average."""
        return self.timeline.breakdown(self.stage)


class Prediction(Simulated):
    """What ``simulate`` found.

    ``operation``, ``nbytes`` of each rank, ``ranks``, ``machine`` (a ``strata.machine.Machine``), ``mode``
    ``algorithm``, ``path``, ``cores``, ``partition``  how it is carried out; ``why``, a list
    ``time_us``      from the first call to when the last member is done
    ``start_us``, ``finish_us``  f64 (ranks,): when each arrived, and was done
    ``core_times_us``  f64 (ranks, cores): how long each core was busy, from when its member was let in
    ``algbw_GBps``, ``busbw_GBps``  as nccl-tests counts them, 1e9 bytes
    ``breakdown``    what the time went to: see ``strata.exec.timed.Timeline.breakdown``
    ``candidates``   microseconds by algorithm: simulated with select="simulation", else by the closed model
    ``digest``       of all events, hex: the same on every host
    ``enlarged``     1, or how many times larger than the machine's the plans' units are, to be few enough
    ``timeline``, ``stage``  everything that was simulated
    """

    def __init__(self, spec: Spec, nbytes: int, machine: Machine, choice: Choice, plans: list[Plan], enlarged: int,
                 timeline: Timeline, stage: Stage, launch: str, arrivals_us: Any) -> None:  # fmt: skip
        self.operation, self.nbytes, self.ranks, self.mode = spec.operation, nbytes, spec.nranks, spec.mode
        self.spec, self.machine, self.launch, self.enlarged = spec, machine, launch, enlarged
        self.algorithm, self.path = plans[0].algorithm, plans[0].path
        self.cores, self.partition = plans[0].cores, plans[0].policy
        super().__init__(timeline, stage)
        self.start_us, self.finish_us = timeline.start_us(stage), timeline.finish_us(stage)
        first = 0.0 if arrivals_us is None else float(np.min(arrivals_us))
        self.time_us = float(self.finish_us.max()) - first
        self.algbw_GBps, self.busbw_GBps = bandwidths(spec, self.time_us)
        self.candidates = {c.name: c.us for c in choice.candidates}
        self.why = [f"{choice.algorithm.name}: {choice.algorithm_why}", f"{choice.path}: {choice.path_why}"]
        if enlarged > 1:
            self.why.append(f"units are {enlarged} times larger than the machine's, so that there are {MAX_UNITS:,} "
                            "of them at most")  # fmt: skip

    def __str__(self) -> str:
        rows = {
            "operation": f"{self.operation}, {self.nbytes} bytes a rank, {self.ranks} ranks of {self.machine.name}",
            "how": f"{self.algorithm}, {self.path}, {self.cores} cores, {self.partition} partition",
            "time": f"{self.time_us:.3f} us",
            "bandwidth": f"algbw {self.algbw_GBps:.2f} GB/s, busbw {self.busbw_GBps:.2f} GB/s",
            "members": f"done after {self.finish_us.min():.3f} to {self.finish_us.max():.3f} us",
            "why": self.why[0], **{" " * i: text for i, text in enumerate(self.why[1:], 1)},
            "digest": self.digest,
        }  # fmt: skip
        return "\n".join(f"{name:9}  {text}" for name, text in rows.items())

    def __repr__(self) -> str:
        return f"<Prediction {self.operation} {self.algorithm} {self.path}, {self.ranks} ranks: {self.time_us:.3f} us>"


def simulate(operation: str, nbytes: int | None = None, ranks: int | None = None, machine: str | Machine = "cm384", *,
             algorithm: str | None = None, path: str | None = None, cores: int | None = None,
             partition: str | None = None, dtype: Any = "u1", op: str = "sum", root: int = 0, counts: Any = None,
             overlap: bool = False, arrivals_us: Any = None, effects: Effects | None = None, window_us: float = 0.0,
             check: bool = False, launch: str = "graph", select: str = "model") -> Prediction:  # fmt: skip
    """What an operation of ``nbytes`` per rank would take on a machine; nothing is run.

    ``ranks``    members (default: the world's), which fill the machine's packages and nodes
    ``machine``  a name that ``strata.machine.names()`` has, a .toml file, or a Machine; "host": this one, whose options
                 and table decide as they would in a job
    ``algorithm``, ``path``, ``cores``, ``partition``  as of the collectives: None leaves it to the library
    ``counts``   of all_to_all_v, instead of nbytes: a matrix, elements from (row) to (column)
    ``overlap``  other work is to be done meanwhile: the choice of path goes by it
    ``arrivals_us``  when each rank calls; ``effects``: what is wrong with the machine (``strata.exec.timed.Effects``)
    ``window_us``  events so close are handled together, faster and not exact (0: exact); ``check``: prove the rates
    ``launch``   "graph" or "eager": what the host takes to start it
    ``select``   how an algorithm is chosen that is not named: by the closed "model", as the collectives do, or by
                 "simulation" of those that the model does not find much slower

    InvalidArgument (a ValueError) for what does not exist, or does not go together.
    """
    if launch not in LAUNCHES or select not in SELECTIONS:
        name, value, there = ("launch", launch, LAUNCHES) if launch not in LAUNCHES else ("select", select, SELECTIONS)
        raise InvalidArgument(f"{name} is {value!r}: one of {', '.join(there)} is expected")
    described = load(machine)
    spec, nbytes = _asked(operation, nbytes, ranks, np.dtype(dtype), op, root, counts)
    if spec.nranks > described.topology.dies:
        why = f"machine {described.name} has {described.topology.dies} dies, and ranks is {spec.nranks}"
        raise InvalidArgument(f"{why}; with topology.nodes set to more it has more", operation=operation)
    here = described.name == "host"
    settings = selection.machine("host" if here else described)
    ask = Ask(algorithm, path, cores, partition)
    if here and counts is None and front.mailbox_fits(operation, nbytes, spec.nranks, _mailbox(spec)):
        direct = selection.Selector(spec.nranks).number(operation, *ask) & 1
        spec = spec if direct else spec._replace(mode="mailbox")
    given = None if arrivals_us is None else np.asarray(arrivals_us, np.float64)
    us = getattr(described.launch, f"{launch}_us")

    def run(choice: Choice) -> Prediction:
        if choice.path == "sdma" and None in (cores, path) and described.sdma:  # each core has a queue of its own
            choice = choice._replace(cores=min(choice.cores, described.sdma.queues))
        plans, enlarged = _plans(spec, choice, settings)
        timeline, stage = _timed(plans, described, None, given, effects, us, window_us, check)
        return Prediction(spec, nbytes, described, choice, plans, enlarged, timeline, stage, launch, given)

    if select == "simulation" and algorithm is None:
        return _fastest(spec, ask, settings, overlap, run, described)
    return run(choose(spec, ask, settings, overlap))


def _mailbox(spec: Spec) -> int:
    from strata import bootstrap

    return bootstrap.mailbox_bytes(spec.nranks)


def _asked(operation: str, nbytes: int | None, ranks: int | None, kind: np.dtype, op: str, root: int,
           counts: Any) -> tuple[Spec, int]:  # fmt: skip
    """What is to be done, and the bytes of a rank (of all_to_all_v, the most that one sends)."""
    if (operation == "all_to_all_v") != (counts is not None):
        raise InvalidArgument("counts, a matrix of elements from each to each, go with all_to_all_v, and only with it")
    if counts is None:
        if nbytes is None:
            raise InvalidArgument("nbytes, the size of each rank's source, is needed", operation=operation)
        return spec_of(operation, nbytes, ranks, kind, op, root, "simulated"), nbytes
    matrix = np.asarray(counts)
    n = len(matrix) if matrix.ndim else 0
    if ranks not in (None, n):
        raise InvalidArgument(f"counts are of {n} ranks, and ranks is {ranks}", operation=operation)
    spec = normal(Spec(operation, 0, kind.itemsize, nranks=n, counts=matrix))
    most = max(sizes(spec, rank)[0] for rank in range(n))
    if nbytes not in (None, 0, most):
        raise InvalidArgument(f"nbytes is {nbytes}, and by counts a rank sends up to {most}", operation=operation)
    return spec, most


def _plans(spec: Spec, choice: Choice, settings: Settings) -> tuple[list[Plan], int]:
    """Of all members; and how many times larger their units are than the machine's."""
    how: dict[str, Any] = {"algorithm": choice.algorithm.name, "path": choice.path, "policy": choice.partition,
                           "topology": settings.topology}  # fmt: skip
    some = sorted(members(spec))

    def units(cost: Cost) -> int:
        return spec.nranks * max(len(build(spec, m, choice.cores, cost=cost, **how).units) for m in some)

    cost, enlarged, number = settings.cost, 1, units(settings.cost)
    while number > MAX_UNITS and max(cost.unit_bytes) < 1 << 46:
        larger = dataclasses.replace(cost, unit_bytes=tuple(2 * nbytes for nbytes in cost.unit_bytes))
        fewer = units(larger)
        if fewer > 0.9 * number:
            break  # it is the algorithm that has so many
        cost, enlarged, number = larger, 2 * enlarged, fewer
    if number > MOST_UNITS:
        what = f"{choice.algorithm.name} among {spec.nranks} ranks has {number:,} transfer units"
        raise InvalidArgument(f"{what}, and {MOST_UNITS:,} can be simulated", operation=spec.operation)
    return build_all(spec, choice.cores, cost=cost, **how), enlarged


def _timed(plans: Sequence[Plan], machine: Machine, dies: Sequence[int] | None, arrivals_us: Any,
           effects: Effects | None, launch_us: float, window_us: float,
           check: bool) -> tuple[Timeline, Stage]:  # fmt: skip
    from strata.exec.timed import Program

    program = Program(machine, len(plans) if dies is None else max(dies) + 1, effects)
    stage = program.operation(plans, dies=dies, launch_us=launch_us, arrivals_us=arrivals_us)
    return program.run(window_us=window_us, check=check), stage


def _fastest(spec: Spec, ask: Ask, settings: Settings, overlap: bool, run: Any, machine: Machine) -> Prediction:
    """Of all algorithms that may be chosen, the one that is simulated to be fastest."""
    closed = {c.name: c.us for c in choose(spec, ask, settings, overlap).candidates}
    names = [a.name for a in eligible(spec, settings)]
    best = min((closed[name] for name in names if name in closed), default=0.0)
    left = [name for name in names if name in closed and closed[name] > WORSE * best]
    found: dict[str, float] = {}
    refused: InvalidArgument | None = None
    winner: tuple[Prediction, Choice] | None = None
    for name in (name for name in names if name not in left):
        named = choose(spec, ask._replace(algorithm=name), settings, overlap)
        for choice in _ways(named, ask, spec, settings, overlap):
            try:
                made = run(choice)
            except InvalidArgument as error:  # of too many units, say
                refused = error
                continue
            found[name] = min(made.time_us, found.get(name, made.time_us))
            if winner is None or made.time_us < winner[0].time_us:
                winner = made, choice
    if winner is None:
        assert refused is not None  # full mesh does everything
        raise refused
    made, choice = _fewer(*winner, spec, ask, settings, overlap, run)
    found[choice.algorithm.name] = made.time_us
    made.candidates = {name: found[name] for name in sorted(found, key=lambda name: found[name])}
    why = f"the fastest of {len(found)} that were simulated on {machine.name}"
    if left:
        why += f" ({', '.join(left)}: more than {WORSE:g} times slower by the closed model)"
    made.why[0] = f"{choice.algorithm.name}: {why}"
    return made


def _fewer(made: Prediction, choice: Choice, spec: Spec, ask: Ask, settings: Settings, overlap: bool,
           run: Any) -> tuple[Prediction, Choice]:  # fmt: skip
    """The same on the cores that the closed model would take, if that costs no more than half a per cent."""
    if ask.cores is not None:
        return made, choice
    cores = choose(spec, ask._replace(algorithm=choice.algorithm.name), settings, overlap).cores
    if cores >= choice.cores:
        return made, choice
    less = choice._replace(cores=cores)
    found = run(less)
    return (found, less) if found.time_us <= SAME * made.time_us else (made, choice)


def _ways(choice: Choice, ask: Ask, spec: Spec, settings: Settings, overlap: bool) -> list[Choice]:
    """With all cores, unless a number was asked for; and with either path, if that is nobody's wish, and what counts
    is the time alone."""
    if ask.cores is None:
        choice = choice._replace(cores=max(settings.cores, choice.cores))
    if overlap or choice.path_named or moot(spec) or refusal(spec, settings.model):
        return [choice]
    return [choice._replace(path=path, path_why=f"{ALONE}, and it was simulated to be the faster") for path in PATHS]


def bandwidths(spec: Spec, us: float) -> tuple[float, float]:
    """(algbw, busbw) in GB/s as nccl-tests defines them, GB = 1e9 bytes; 0 of what takes no time or moves nothing."""
    n = spec.nranks
    if us <= 0:
        return 0.0, 0.0
    algbw = largest(spec) / us / 1e3
    factor = 1.0 if spec.operation in ("broadcast", "reduce") else (n - 1) / n
    return algbw, algbw * factor * (2 if spec.operation == "all_reduce" else 1)


def largest(spec: Spec) -> int:
    """The size, as nccl-tests has it: bytes of a rank's largest array; of all_to_all_v, what one sends on average."""
    if spec.counts is not None:
        return int(spec.counts.sum()) * spec.itemsize // spec.nranks
    return max(sizes(spec, spec.root))


class Times(NamedTuple):
    """When each member arrived and was done, f64 (members,) microseconds; ``digest`` of all events."""

    start_us: np.ndarray
    finish_us: np.ndarray
    digest: str


class _Memo:
    """The least recently used are dropped first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._found: OrderedDict[Any, Any] = OrderedDict()

    def get(self, key: Any) -> Any:
        if key not in self._found:
            return None
        self._found.move_to_end(key)
        return self._found[key]

    def put(self, key: Any, value: Any) -> Any:
        self._found[key] = value
        while len(self._found) > self.most:
            self._found.popitem(last=False)
        return value


_times, _hashes = _Memo(KEPT), _Memo(KEPT)


def predict_plans(plans: Sequence[Plan], machine: str | Machine, arrivals_us: Any = None, *,
                  dies: Sequence[int] | None = None, effects: Effects | None = None, launch_us: float = 0.0,
                  window_us: float = 0.0) -> Times:  # fmt: skip
    """When the members of one operation, whose plans these are, are done on a machine.

    ``arrivals_us``  when each calls (default: all at 0);  ``dies``: where each is (default 0 to n - 1)
    ``launch_us``    what the host takes to start it

    What was found is kept: the same plans, with the same differences between their arrivals, take no second look.
    Must not be used by several threads at once.
    """
    described = load(machine)
    n = len(plans)
    arrivals = np.zeros(n) if arrivals_us is None else np.asarray(arrivals_us, np.float64)
    if arrivals.shape != (n,) or not (np.isfinite(arrivals) & (arrivals >= 0)).all():
        raise InvalidArgument(f"arrivals_us: {n} times of 0 or more are expected, one of each member")
    begin = np.floor(arrivals.min() * 1e6) if n else 0.0
    relative = np.rint(arrivals * 1e6 - begin).astype(np.int64)
    where = None if dies is None else tuple(int(d) for d in dies)
    key = (_hash(plans), relative.tobytes(), described, where, _effects(effects), float(launch_us), float(window_us))
    found = _times.get(key)
    if found is None:
        timeline, stage = _timed(plans, described, where, relative / 1e6, effects, launch_us, window_us, False)
        found = _times.put(key, Times(timeline.start_us(stage), timeline.finish_us(stage), timeline.digest))
    return Times(found.start_us + begin / 1e6, found.finish_us + begin / 1e6, found.digest)


def _hash(plans: Sequence[Plan]) -> str:
    """Of all plans; of the same objects as before, found once."""
    key = tuple(map(id, plans))
    known = _hashes.get(key)
    if known is None:
        import hashlib

        found = hashlib.sha256("".join(plan.hash() for plan in plans).encode()).hexdigest()
        known = _hashes.put(key, (found, tuple(plans)))  # which keeps them, and so their ids
    return known[0]


def _effects(effects: Effects | None) -> Any:
    """As a key."""
    if effects is None:
        return None
    parts = (effects.slow_dies, effects.slow_links, effects.dead_planes)
    return (*(tuple(sorted(part.items())) for part in parts), effects.jitter, effects.seed)
