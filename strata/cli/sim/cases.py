"""What ``strata sim`` simulates: every combination of what was listed, and one of them simulated."""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.dtypes import OP_CODES, dtype_of
from strata.errors import InvalidArgument
from strata.machine import Machine, load
from strata.plan import OPERATIONS, algorithms
from strata.plan.archive import integers
from strata.plan.records import DTYPE_BYTES, DTYPE_NAMES
from strata.plan.spec import PARTED, REDUCTIONS, ROOTED, Spec

if TYPE_CHECKING:
    from strata.prediction import Prediction

GATHERS = ("all_gather", "gather")
MOST_SIZES = 100_000  # of a sweep


@dataclass(frozen=True)
class Variant:
    """All but the size."""

    machine: str
    operation: str
    ranks: int
    algorithm: str | None = None
    path: str | None = None
    cores: int | None = None
    partition: str | None = None

    def label(self, others: list[Variant]) -> str:
        """What tells it from the others."""
        names = ("operation", "machine", "ranks", "algorithm", "path", "cores", "partition")
        kept = [n for n in names if len({getattr(o, n) for o in others}) > 1] or ["algorithm"]
        units = {"ranks": " ranks", "cores": " cores"}
        return " ".join(f"{getattr(self, n) or 'auto'}{units.get(n, '')}" for n in kept)


@dataclass(frozen=True)
class Common:
    """What all cases share."""

    dtype: str = "f32"
    op: str = "sum"
    root: int = 0
    counts: Any = None
    constants: tuple[tuple[str, Any], ...] = ()
    overlap: bool = False
    launch: str = "graph"
    select: str = "model"
    slow_dies: dict[int, float] = field(default_factory=dict)
    slow_links: dict[tuple[int, int], float] = field(default_factory=dict)
    dead_planes: dict[int, int] = field(default_factory=dict)
    skew: float = 0.0
    jitter: float = 0.0
    seed: int = 0
    window: float = 0.0
    check: bool = False
    explain: bool = False
    total: bool = False


@dataclass(frozen=True)
class Case:
    """One simulation."""

    variant: Variant
    nbytes: int
    common: Common


def common_of(args: argparse.Namespace) -> Common:
    """InvalidArgument for a type, an operator or a matrix that is none."""
    if args.dtype not in DTYPE_NAMES[1:]:
        raise InvalidArgument(f"--dtype {args.dtype!r} is not one of {', '.join(DTYPE_NAMES[1:])}")
    if args.op not in OP_CODES:
        raise InvalidArgument(f"--op {args.op!r} is not one of {', '.join(OP_CODES)}")
    if not 0 <= args.skew < 1e12:
        raise InvalidArgument(f"--skew {args.skew}: microseconds are expected")
    counts = matrix(args.counts) if args.counts else None
    return Common(
        args.dtype, args.op, args.root, counts, tuple(args.set), args.overlap, args.launch, args.select, args.slow_die,
        args.slow_link, args.dead_plane, args.skew, args.jitter, args.seed, args.window, args.check, args.explain,
        args.total,
    )  # fmt: skip


def matrix(file: str) -> np.ndarray:
    """Of integers, from .npy or text; OSError, or InvalidArgument if it is none."""
    found = integers(file)
    if found.shape[0] != found.shape[1]:
        raise InvalidArgument(f"{file} is no square matrix of integers: it has {found.dtype} of shape {found.shape}")
    return found


def machine_of(name: str, common: Common) -> Machine:
    """The machine with the constants that were set."""
    return load(name).replace(**dict(common.constants))


def sizes(args: argparse.Namespace) -> list[int]:
    """As asked for; InvalidArgument for a range that is none."""
    begin = (1 << 20) if args.begin is None else args.begin
    end = begin if args.end is None else args.end
    if begin < 0 or end < begin:
        raise InvalidArgument(f"sizes from -b {begin} to -e {end}")
    if args.step is not None:
        if args.step < 1:
            raise InvalidArgument(f"-i {args.step}: 1 or more bytes from one size to the next are expected")
        number = (end - begin) // args.step + 1
        if number > MOST_SIZES:
            raise InvalidArgument(f"{number:,} sizes from -b {begin} to -e {end} by -i {args.step}: {MOST_SIZES:,} at "
                                  "most are expected")  # fmt: skip
        return list(range(begin, end + 1, args.step))
    if args.factor < 2 or (begin == 0 and end):
        raise InvalidArgument(f"sizes from -b {begin} by a factor of -f {args.factor}")
    found = [begin]
    while begin and found[-1] * args.factor <= end:
        found.append(found[-1] * args.factor)
    return found


def cases_of(args: argparse.Namespace, common: Common) -> list[Case]:
    """Every combination, sizes last.  InvalidArgument if there are none."""
    operations = args.operation or []
    unknown = [o for o in operations if o not in OPERATIONS]
    if not operations or unknown:
        what = f"there is no operation {unknown[0]!r}" if unknown else "an operation is needed"
        raise InvalidArgument(f"{what}; there are {', '.join(OPERATIONS)}")
    if common.counts is not None and args.ranks is None:
        args.ranks = [len(common.counts)]
    if args.ranks is None:
        raise InvalidArgument("-n N, the number of ranks, is needed")
    found = []
    for machine, operation, ranks in itertools.product(args.machine, operations, args.ranks):
        names = _algorithms(args, machine, operation, ranks, common)
        for how in itertools.product(names, _or_auto(args.path), args.cores or [None], _or_auto(args.partition)):
            variant = Variant(machine, operation, ranks, *how)
            taken = set()
            for size in [0] if common.counts is not None or operation == "barrier" else sizes(args):
                nbytes = whole(operation, ranks, size, common.dtype, args.total)
                if nbytes is not None and nbytes not in taken:
                    taken.add(nbytes)
                    found.append(Case(variant, nbytes, common))
    if not found:
        raise InvalidArgument("no size has an element for each rank: larger sizes (-b, -e) are needed")
    return found


def whole(operation: str, ranks: int, size: int, dtype: str, total: bool) -> int | None:
    """Bytes of each rank's source, whole parts of whole elements; None if that is none though some were asked for."""
    nbytes = size // ranks if total and operation in GATHERS else size
    unit = DTYPE_BYTES[DTYPE_NAMES.index(dtype)] * (ranks if operation in PARTED else 1)
    return nbytes // unit * unit or (None if size else 0)


def _or_auto(given: list[str] | None) -> list[str | None]:
    return [None if word == "auto" else word for word in given or ["auto"]]


def _algorithms(args: argparse.Namespace, machine: str, operation: str, ranks: int, common: Common) -> list[str | None]:
    """Names; "all" is every one that there is for it, and of a table, those that the library may choose."""
    from strata import selection

    given = args.algorithm or (["all"] if args.table else ["auto"])
    found: list[str | None] = []
    for word in given:
        if word == "all":
            reduces = operation in REDUCTIONS
            code = DTYPE_NAMES.index(common.dtype)
            count = 0 if common.counts is not None or operation == "barrier" else 1 << 20
            spec = Spec(operation, count, DTYPE_BYTES[code], code if reduces else 0,
                        OP_CODES[common.op] if reduces else 0, nranks=ranks, counts=common.counts)  # fmt: skip
            settings = selection.machine("host" if machine == "host" else machine_of(machine, common))
            able = algorithms.available(spec, settings.topology)
            found += [a.name for a in able if a.chosen_freely or not args.table]
        else:
            found.append(None if word == "auto" else word)
    return list(dict.fromkeys(found))


def predict(case: Case) -> Prediction:
    """Simulates it."""
    from strata.exec.timed import Effects
    from strata.prediction import simulate

    v, c = case.variant, case.common
    arrivals = None
    if c.skew:
        arrivals = np.random.default_rng(c.seed).uniform(0, c.skew, v.ranks)
    effects = Effects(c.slow_dies, c.slow_links, c.dead_planes, c.jitter, c.seed)
    nbytes = None if c.counts is not None else case.nbytes
    return simulate(
        v.operation, nbytes, v.ranks, machine_of(v.machine, c), algorithm=v.algorithm, path=v.path, cores=v.cores,
        partition=v.partition, dtype=dtype_of(DTYPE_NAMES.index(c.dtype)), op=c.op, root=c.root, counts=c.counts,
        overlap=c.overlap, arrivals_us=arrivals, effects=effects, window_us=c.window, check=c.check,
        launch=c.launch, select=c.select,
    )  # fmt: skip


def row(case: Case, made: Prediction) -> dict[str, Any]:
    """What is told of a case; plain values."""
    from strata.prediction import largest

    spec, v = made.spec, case.variant
    busy = made.core_times_us[made.core_times_us > 0]
    found: dict[str, Any] = {
        "operation": v.operation, "size": largest(spec) if case.common.total else made.nbytes,
        "count": spec.part // spec.itemsize if spec.counts is None else largest(spec) // spec.itemsize // spec.nranks,
        "type": case.common.dtype, "redop": case.common.op if v.operation in REDUCTIONS else "none",
        "root": case.common.root if v.operation in ROOTED else -1,
        "time_us": made.time_us, "algbw_GBps": made.algbw_GBps, "busbw_GBps": made.busbw_GBps,
        "algorithm": made.algorithm, "path": made.path, "cores": made.cores, "partition": made.partition,
        "ranks": made.ranks, "machine": v.machine, "nbytes": made.nbytes, "largest_bytes": largest(spec),
        "part_bytes": spec.part, "first_done_us": float(made.finish_us.min()),
        "fastest_core_us": float(busy.min()) if len(busy) else 0.0,
        "slowest_core_us": float(busy.max()) if len(busy) else 0.0,
        "enlarged": made.enlarged, "window_us": made.window_us, "digest": made.digest,
    }  # fmt: skip
    if case.common.explain:
        found["explain"], found["why"], found["candidates"] = made.breakdown, made.why, made.candidates
    return found
