"""Which algorithm, path, core budget and partition an operation takes, and why.

Asked for in the call, else by an option, else by a table of measurements, else by the cost model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strata.errors import InvalidArgument
from strata.plan import algorithms, paths
from strata.plan.algorithms import Algorithm
from strata.plan.build import MAX_CORES, PATHS
from strata.plan.cost import HOST, Cost
from strata.plan.model import HOST_MODEL, Model, estimate
from strata.plan.records import DTYPE_NAMES, OP_NAMES
from strata.plan.schedule import POLICIES
from strata.plan.spec import Spec
from strata.plan.table import Table
from strata.plan.topology import HOST as ONE_HOST
from strata.plan.topology import Topology


class Ask(NamedTuple):
    """What is asked for; None leaves it to the library."""

    algorithm: str | None = None
    path: str | None = None
    cores: int | None = None
    partition: str | None = None

    def over(self, other: Ask) -> Ask:
        """This, and where it says nothing, the other."""
        return Ask(*(mine if mine is not None else theirs for mine, theirs in zip(self, other, strict=True)))


NOTHING = Ask()


@dataclass(frozen=True)
class Settings:
    """What selection goes by, the same on all members of a group.

    ``cores``    emulated cores that an operation may use
    ``options``  what options ask for, by operation; "" for all
    ``table``    measurements that replace the model where they have an answer
    """

    topology: Topology = ONE_HOST
    cost: Cost = HOST
    model: Model = HOST_MODEL
    table: Table | None = None
    cores: int = 1
    options: dict[str, Ask] = field(default_factory=dict)
    _known: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)


class Candidate(NamedTuple):
    """An algorithm that can do it, and what it would cost in microseconds."""

    name: str
    us: float


class Choice(NamedTuple):
    """How an operation is carried out; ``candidates`` by rising cost; why the algorithm and the path, in words."""

    algorithm: Algorithm
    path: str
    cores: int
    partition: str
    candidates: list[Candidate]
    algorithm_why: str
    path_why: str
    path_named: bool = False  # by the call or an option

    @property
    def why(self) -> str:
        """Both in words, a sentence."""
        return f"{self.algorithm.name}: {self.algorithm_why}; {self.path}: {self.path_why}"


def check(ask: Ask) -> Ask:
    """Itself, if it can be; else InvalidArgument (a ValueError) that says what there is."""
    if ask.path is not None and ask.path not in PATHS:
        raise InvalidArgument(f"path {ask.path!r} is not available; there is {', '.join(PATHS)}")
    if ask.partition is not None and ask.partition not in POLICIES:
        raise InvalidArgument(f"partition {ask.partition!r} is not available; there is {', '.join(POLICIES)}")
    if ask.cores is not None and (type(ask.cores) is not int or not 1 <= ask.cores <= MAX_CORES):
        raise InvalidArgument(f"cores is {ask.cores!r}: a whole number from 1 to {MAX_CORES} is expected")
    return ask


def choose(spec: Spec, ask: Ask = NOTHING, settings: Settings | None = None, overlap: bool = False) -> Choice:
    """How to carry out ``spec``; InvalidArgument (a ValueError) names what is available.

    ``overlap``: the caller has other work to do meanwhile, which cores that move bytes are kept from.
    """
    settings = settings or Settings()
    wanted = check(ask).over(_option(spec, settings))
    partition = wanted.partition or "balanced"
    if wanted.algorithm is not None:
        try:
            found = algorithms.get(wanted.algorithm, spec, settings.topology)
        except InvalidArgument as error:
            if ask.algorithm is None:
                error.args = (f"STRATA_ALGORITHM: {error.args[0]}", *error.args[1:])
            raise
        candidates, why = [], _named(ask.algorithm, "STRATA_ALGORITHM")
    else:
        name, candidates, why = _best(spec, wanted.cores or settings.cores, settings)
        found = algorithms.get(name, spec, settings.topology)
    cores = wanted.cores or _budget(found, spec, settings)
    path, path_why = _path(found, spec, cores, ask.path, wanted.path, overlap, settings)
    return Choice(found, path, cores, partition, candidates, why, path_why, path == wanted.path)


def _named(asked: str | None, option: str) -> str:
    return f"{'the call' if asked is not None else option} names it"


def _path(algorithm: Algorithm, spec: Spec, cores: int, asked: str | None, wanted: str | None, overlap: bool,
          settings: Settings) -> tuple[str, str]:  # fmt: skip
    """The path, and why.  What an option asks for holds where it can be."""
    model = settings.model
    none = paths.moot(spec)
    if none:
        return "mte", none
    if wanted != "mte":
        none = paths.refusal(spec, model)
        if none and asked is not None:
            raise InvalidArgument(f"path 'sdma' is not available: {none}; there is mte", operation=spec.operation)
        if none:
            return "mte", none
    if wanted is not None:
        return wanted, _named(asked, "STRATA_PATH")
    if not overlap and model.cpus and model.engine.share <= 1:  # no look at the model is needed
        return "mte", f"{paths.ALONE}, and sdma is no faster, but begins {model.engine.handover_us:g} us later"
    sent = 0 if spec.counts is None else int(spec.counts.sum()) * spec.itemsize // spec.nranks
    key = ("path", algorithm, cores, overlap, _bucket(sent), *_alike(spec))
    found = settings._known.get(key)
    if found is None:
        of = max(settings.cores, cores)
        try:
            both = paths.ways(algorithm, spec, cores, of, overlap, settings.topology, settings.cost, model)
        except Exception as error:
            if not algorithms.is_users(algorithm.name):
                raise
            # Whoever makes its plan hears of it in time: members then refuse it alike, or one tells the others.
            return "mte", f"what its paths cost is not known ({type(error).__name__}: {error})"
        found = settings._known[key] = paths.least(both, cores, of, overlap)
    return found


def _budget(algorithm: Algorithm, spec: Spec, settings: Settings) -> int:
    """The fewest cores that come within 5 % of the fastest time; the others are left to computing.
    On a host, where emulated cores take turns, all that are allowed."""
    if settings.model.cpus or settings.cores == 1:
        return settings.cores
    key = ("budget", algorithm.name, *_alike(spec))
    found = settings._known.get(key)
    if found is None:
        steps = sorted({min(c, settings.cores) for c in (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, settings.cores)})
        us = [estimate(algorithm, spec, c, settings.topology, settings.cost, settings.model) for c in steps]
        found = settings._known[key] = next(c for c, t in zip(steps, us, strict=True) if t <= 1.05 * min(us))
    return found


def _alike(spec: Spec) -> tuple[Any, ...]:
    """What specs must share for one look at the model to do for all."""
    return (spec.operation, spec.nranks, spec.mode, spec.redop, spec.dtype, spec.root, _bucket(spec.part),
            spec.counts is None)  # fmt: skip


def _option(spec: Spec, settings: Settings) -> Ask:
    """What options ask for.  What holds for all operations holds for those that the algorithm can
    do, and mailboxes leave no choice."""
    general, own = settings.options.get("", NOTHING), settings.options.get(spec.operation, NOTHING)
    name = own.algorithm or general.algorithm
    if name is not None:
        found = algorithms.find(name)
        usable = found is not None and found.refusal(spec, settings.topology) is None
        if found is not None and not usable and (spec.mode == "mailbox" or own.algorithm is None):
            return own.over(general)._replace(algorithm=None)
    return own.over(general)


def _best(spec: Spec, cores: int, settings: Settings) -> tuple[str, list[Candidate], str]:
    """The name, what the candidates cost, and why; found once for sizes that are alike."""
    key = (cores, algorithms.names(), *_alike(spec))
    found = settings._known.get(key)
    if found is None:
        found = settings._known[key] = _look(spec, cores, settings)
    return found


def _bucket(nbytes: int) -> int:
    """Sizes within a quarter of a doubling are alike."""
    return nbytes.bit_length() * 4 + (nbytes * 4 >> nbytes.bit_length() - 1) % 4 if nbytes else 0


def eligible(spec: Spec, settings: Settings) -> list[Algorithm]:
    """The algorithms that the library may choose for ``spec``."""
    return [a for a in _able(spec, settings) if a.rank_order or not _inexact(spec)]


def _able(spec: Spec, settings: Settings) -> list[Algorithm]:
    return [a for a in algorithms.available(spec, settings.topology) if a.chosen_freely]


def _look(spec: Spec, cores: int, settings: Settings) -> tuple[str, list[Candidate], str]:
    able = _able(spec, settings)
    kept = {a.name for a in eligible(spec, settings)}
    note = "" if len(kept) == len(able) else ", of those that add up in rank order, as always unless another is named"
    if settings.table is not None:
        measured = settings.table.lookup(spec.operation, spec.nranks, spec.part)
        names = {a.name for a in able}
        rows = sorted((Candidate(n, us) for n, us in measured.items() if n in names), key=lambda c: c.us)
        best = next((row.name for row in rows if row.name in kept), None)
        if best:
            return best, rows, f"the fastest in table {settings.table.name}{note}"
    if len(able) == 1:
        return able[0].name, [], "the only one"
    rows = sorted((Candidate(a.name, estimate(a, spec, cores, settings.topology, settings.cost, settings.model))
                   for a in able), key=lambda c: c.us)  # fmt: skip
    best = next(row.name for row in rows if row.name in kept)
    return best, rows, f"the fastest by the cost model of {settings.model.name}{note}"


def _inexact(spec: Spec) -> bool:
    """Whether the order of the operands shows in the bits of the result."""
    kind = DTYPE_NAMES[spec.dtype][0]
    return OP_NAMES[spec.redop] in ("sum", "prod", "avg") and (kind in "fc" or DTYPE_NAMES[spec.dtype] == "bf16")
