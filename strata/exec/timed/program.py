"""What the dies of a machine do, as stages, and how long that takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from strata._core import simulator
from strata._core.translation import Translation
from strata.errors import InvalidArgument
from strata.exec.timed import kernels
from strata.exec.timed.assembly import Assembly, Part
from strata.exec.timed.links import Effects, Links
from strata.exec.timed.operation import Operation, check, path_of, ps, translate
from strata.exec.timed.stage import Stage, members, stages, whole
from strata.exec.timed.timeline import Timeline
from strata.machine.description import Machine
from strata.plan.plan import Plan

After = Stage | Iterable[Stage] | None
MOST_US = 9e9  # of a delay; its picoseconds are less than 2**53


class Program:
    """What ``ndies`` dies of a machine do.

    Stages are added, in any number; ``run`` says how long they take.  A stage begins on a die when all that it comes
    ``after`` are done on that die (a stage that the die is no member of is not waited for), else at 0.  So a stream
    is a chain of stages.  Operations hold the cores that their plans are for: the die's first free ones, and if there
    are none, those that were taken longest ago, when they are given back.  Kernels have the cores that nothing holds.
    """

    def __init__(self, machine: Machine, ndies: int, effects: Effects | None = None) -> None:
        if not isinstance(machine, Machine):
            raise InvalidArgument(f"machine is {machine!r}: a Machine, as of strata.machine.load, is expected")
        if not whole(ndies) or not 1 <= ndies <= machine.topology.dies:
            raise InvalidArgument(f"ndies is {ndies!r}: {machine.name} has {machine.topology.dies} dies")
        self.machine, self.ndies = machine, int(ndies)
        self.effects = effects or Effects()
        self.effects.check(machine, self.ndies)
        self.links = Links(machine, self.ndies, self.effects)
        self.stages: list[Stage] = []
        self._translations: dict[Any, Translation] = {}

    def __repr__(self) -> str:
        return f"<Program of {len(self.stages)} stages on {self.ndies} dies of {self.machine.name}>"

    def operation(
        self,
        plans: Sequence[Plan],
        *,
        dies: Sequence[int] | np.ndarray | None = None,
        after: After = None,
        name: str | None = None,
        path: str | None = None,
        launch_us: float = 0.0,
        arrivals_us: Sequence[float] | np.ndarray | None = None,
    ) -> Stage:
        """All members' ``plans`` of one operation, on ``dies`` (default 0 to n - 1).

        ``path``: "mte" or "sdma"; None, as the plans say.  Each member arrives ``launch_us`` and its ``arrivals_us``
        after it could.  InvalidArgument for plans that are malformed, do not belong together, or want more cores than
        a die has, and for a path that the machine does not have.
        """
        plans = list(plans)
        check(plans, self.machine)
        n = len(plans)
        if dies is None and n > self.ndies:
            raise InvalidArgument(f"an operation of {n} members, and the program has {self.ndies} dies")
        where = members(np.arange(n) if dies is None else dies, self.ndies)
        if len(where) != n:
            raise InvalidArgument(f"{n} plans on {len(where)} dies: one of each is expected")
        launch = _times("launch_us", launch_us, n)
        if arrivals_us is not None:
            launch = launch + _times("arrivals_us", arrivals_us, n)
        path = path_of(plans, path, self.machine)
        key = (tuple(map(id, plans)), where.tobytes(), path)  # which keeps its plans
        translation = self._translations.get(key)
        if translation is None:
            translation = self._translations[key] = translate(plans, where, path, self.links, self.effects)
        part = Operation(plans, translation, launch, self.machine)
        return self._add(name or plans[0].spec.operation, "operation", where, after, part)

    def compute(
        self,
        dies: Sequence[int] | np.ndarray,
        *,
        us: float | None = None,
        flops: float = 0.0,
        nbytes: int = 0,
        dtype: str = "bf16",
        cores: int | None = None,
        after: After = None,
        name: str = "compute",
    ) -> Stage:
        """A kernel on each of ``dies``: of ``us`` microseconds, or of ``flops`` operations on ``dtype`` and ``nbytes``
        read and written, whichever takes longer, if nothing is in its way.

        It can use ``cores`` (None: all of a die), and as few as are free: it then takes so much longer, and stands
        still while none is.  Its bytes take their share of the die's memory.
        """
        where = members(dies, self.ndies)
        part = kernels.kernel(self.machine, self.links, where, us, flops, nbytes, dtype, cores)
        return self._add(name, "compute", where, after, part)

    def map(
        self, dies: Sequence[int] | np.ndarray, peers: Sequence[int] | np.ndarray, nbytes: int, *, after: After = None,
        name: str = "map",
    ) -> Stage:  # fmt: skip
        """Registration just in time: each of ``dies`` maps ``nbytes`` of each of ``peers`` (but itself), one after
        the other, since its page table has one lock."""
        where, others = members(dies, self.ndies), members(peers, self.ndies)
        if not 0 <= nbytes < 1 << 60:
            raise InvalidArgument(f"nbytes is {nbytes}: bytes of one peer are expected")
        registration = self.machine.registration
        each = ps(registration.map_us + registration.map_us_per_gib * nbytes / kernels.GIB)
        count = len(others) - np.isin(where, others)
        return self._add(name, "map", where, after, kernels.Mapping(count, each))

    def delay(
        self, dies: Sequence[int] | np.ndarray, us: float | Sequence[float] | np.ndarray, *, after: After = None,
        name: str = "delay",
    ) -> Stage:  # fmt: skip
        """Each of ``dies`` waits ``us`` microseconds: one number, or one for each."""
        where = members(dies, self.ndies)
        return self._add(name, "delay", where, after, kernels.Delay(_times("us", us, len(where))))

    def _add(self, name: str, kind: str, dies: np.ndarray, after: After, part: Part) -> Stage:
        stage = Stage(len(self.stages), name, kind, dies, stages(after, self.stages), part)
        self.stages.append(stage)
        return stage

    def run(self, *, window_us: float = 0.0, check: bool = False) -> Timeline:
        """How long it takes.  ``window_us``: what happens within it after the first is handled together (faster, and
        not exact; 0: exact).  ``check``: every share of a link is proved to be the max-min one.

        Deadlock if something can never run, with the lane, the task, and the flag that it waits for.
        """
        if not 0 <= window_us <= MOST_US:
            raise InvalidArgument(f"window_us is {window_us}: 0 (exact) or microseconds, {MOST_US:g} at most, are "
                                  "expected")  # fmt: skip
        made = Assembly(self.links, self.stages)
        place = self.machine.place
        found = simulator.run(
            made.all_links, made.uses, made.tasks, made.lanes, made.flags, made.members, made.rendezvous,
            package=place.package, node=place.node, flat=place.flat, window_ps=ps(window_us), check=check,
        )  # fmt: skip
        return Timeline(self.machine, self.stages, made, found, window_us)


def _times(name: str, us: float | Sequence[float] | np.ndarray, n: int) -> np.ndarray:
    """Microseconds as whole picoseconds, i64 (n,)."""
    try:
        given = np.asarray(us, np.float64)
    except (TypeError, ValueError):
        given = np.full(n, np.nan)
    if given.shape not in ((), (n,)) or not ((given >= 0) & (given <= MOST_US)).all():
        raise InvalidArgument(f"{name} is {us!r}: microseconds, one number or one for each of {n}, 0 to {MOST_US:g}, "
                              "are expected")  # fmt: skip
    return np.broadcast_to(np.rint(given * 1e6).astype(np.int64), (n,))
