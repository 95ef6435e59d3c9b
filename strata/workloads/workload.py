"""A workload that can be run on a machine, and what came of it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from strata import machine as machines
from strata.errors import InvalidArgument
from strata.machine import Machine
from strata.workloads import description, schedule, switches
from strata.workloads.description import Description
from strata.workloads.inference import Inference
from strata.workloads.pricing import Price, Prices
from strata.workloads.recommendation import Recommendation
from strata.workloads.schedule import COLLECTIVE, KERNEL, REGISTRATION, Schedule, Task
from strata.workloads.steps import Kernel, Part, Steps
from strata.workloads.switches import Switches
from strata.workloads.training import Training

KINDS: dict[str, type] = {"inference": Inference, "training": Training, "recommendation": Recommendation}


@dataclass(frozen=True)
class Figures:
    """Of one part of a workload, microseconds.

    ``step_us``        from the first to the last
    ``compute_us``, ``communication_us``, ``registration_us``   of all kernels, collectives and registrations, alone
    ``exposed_us``     no kernel runs;  ``overlapped_us``: a kernel and something else do
    ``waiting_us``     the part of ``exposed_us`` in which nothing but registration goes on
    ``layers``         by layer: from its first item's start to its last one's end
    ``items``          by name: (how many, microseconds of one alone, of all from start to end)
    """

    name: str
    times: float
    step_us: float
    compute_us: float
    communication_us: float
    registration_us: float
    exposed_us: float
    overlapped_us: float
    waiting_us: float
    layers: dict[str, float]
    items: dict[str, tuple[int, float, float]]


@dataclass(frozen=True)
class Report:
    """What a workload takes on one machine, with one setting of the switches.

    ``step_us``  of a unit of work, all parts as often as they come;  ``rate``: units a second of one die
    ``parts``    each part by itself;  ``collectives``: how each is carried out, by name
    ``memory``   bytes of a die by what they are for;  ``assumptions``: all constants with grade and source
    """

    workload: str
    machine: str
    switches: Switches
    step_us: float
    rate: float
    unit: str
    parts: tuple[Figures, ...]
    collectives: dict[str, Price]
    memory: dict[str, float]
    notes: tuple[str, ...]
    assumptions: list[dict[str, Any]] = field(repr=False)

    def total(self, name: str) -> float:
        """Of a figure of the parts, as often as they come, as ``total("exposed_us")``."""
        return sum(p.times * getattr(p, name) for p in self.parts)

    @property
    def exposed_us(self) -> float:
        """No kernel runs."""
        return self.total("exposed_us")

    @property
    def overlapped_us(self) -> float:
        """A kernel and something else run."""
        return self.total("overlapped_us")

    @property
    def registration_us(self) -> float:
        """Registration before collectives, in the die's own time."""
        return self.total("registration_us")

    @property
    def compute_us(self) -> float:
        """All kernels, alone."""
        return self.total("compute_us")

    @property
    def communication_us(self) -> float:
        """All collectives, alone."""
        return self.total("communication_us")


@dataclass(frozen=True)
class Row:
    """Of an ablation: a published ratio of throughput to the row ``against``, and what the model says."""

    name: str
    against: str
    published: float
    predicted: float
    source: str
    report: Report


class Workload:
    """A description that can be asked how long it takes."""

    def __init__(self, of: Description) -> None:
        self.description = of

    def __repr__(self) -> str:
        return f"<Workload {self.name}: {self.description.title}>"

    @property
    def name(self) -> str:
        """As ``load`` takes it."""
        return self.description.name

    def replace(self, **constants: Any) -> Workload:
        """With other constants, as ``replace(prompt_tokens=2048)``."""
        return Workload(self.description.replace(**constants))

    def assumptions(self) -> list[dict[str, Any]]:
        """All constants as rows: name, value, grade, source."""
        return self.description.assumptions()

    def run(self, machine: str | Machine | None = None, **asked: Any) -> Report:
        """What it takes.  ``machine``: the description's own, if None;  ``asked``: ``switches.of``'s arguments.
        InvalidArgument for switches that do not exist or go together, and for a machine that is too small."""
        chosen = _switches(asked)
        where = machines.load(self.description.machine if machine is None else machine)
        dies = self.description.constants.dies
        if dies > where.topology.dies:
            raise InvalidArgument(f"{self.name} is for {dies} dies, and {where.name} has {where.topology.dies}")
        prices = Prices(where, chosen, self.description.practice)
        demand = self.description.constants.demand(chosen)
        collectives: dict[str, Price] = {}
        parts = tuple(_figures(part, prices, chosen, collectives) for part in demand.parts)
        step = sum(p.times * p.step_us for p in parts)
        other = (f"machine: {where.caption}",) if where.caption != where.title else ()
        return Report(
            self.name, where.name, chosen, step, demand.units / step * 1e6, demand.unit, parts, collectives,
            demand.memory, (*other, *demand.notes), self.assumptions(),
        )  # fmt: skip

    def ablation(self, machine: str | Machine | None = None, **asked: Any) -> list[Row]:
        """Every published ratio beside the model's; ``asked``: switches of all rows that do not set them."""
        reports: dict[str, Report] = {}
        rows = []
        for p in self.description.published:
            reports[p.name] = report = self.run(machine, **{**asked, **p.switches})
            ratio = report.rate / reports[p.against].rate
            rows.append(Row(p.name, p.against, p.ratio, ratio, p.source, report))
        return rows


def load(name: str | Workload) -> Workload:
    """A workload by its name (``names()``), from a .toml file of one's own, or itself."""
    return name if isinstance(name, Workload) else Workload(description.read(name, KINDS))


def _switches(asked: dict[str, Any]) -> Switches:
    known = ("library", "registration", "partition", "path", "algorithm", "overlap")
    unknown = sorted(set(asked) - set(known))
    if unknown:
        raise InvalidArgument(f"there is no switch {', '.join(unknown)}; there are {', '.join(known)}")
    return switches.of(**asked)


def _figures(part: Part, prices: Prices, chosen: Switches, collectives: dict[str, Price]) -> Figures:
    tasks = _tasks(part.steps, prices, collectives, part.name)
    beside = functools.cache(prices.beside)

    def rate(task: Task, others: Sequence[Task]) -> float:
        """Kernels and collectives slow each other down, pair by pair; collectives share the die's port alike."""
        found = 1.0
        if task.kind == KERNEL:
            for other in others:
                found *= beside(task.key, other.key)[0] if other.kind == COLLECTIVE else 1.0
        elif task.kind == COLLECTIVE:
            for other in others:
                found *= beside(other.key, task.key)[1] if other.kind == KERNEL else 1.0
            found /= 1 + sum(other.kind == COLLECTIVE for other in others)
        return found

    found = schedule.run(tasks, rate, chosen.overlap)
    alone = {kind: sum(t.us for t in tasks if t.kind == kind) for kind in (KERNEL, COLLECTIVE, REGISTRATION)}
    return Figures(
        part.name, part.times, found.end, alone[KERNEL], alone[COLLECTIVE], alone[REGISTRATION], found.exposed,
        found.overlapped, found.registering, _layers(tasks, found), _items(tasks, found),
    )  # fmt: skip


def _tasks(steps: Steps, prices: Prices, collectives: dict[str, Price], part: str) -> list[Task]:
    """Items as tasks; a collective whose buffers are to be registered is two, one after the other on its stream."""
    tasks: list[Task] = []
    last: list[int] = []  # the task that ends each item
    for item in steps.items:
        after = tuple(last[a] for a in item.after)
        if isinstance(item.what, Kernel):
            us = prices.kernel_us(item.what)
            tasks.append(Task(KERNEL, us, item.what, item.stream, after, item.layer, item.name))
        else:
            registering = prices.registration_us(item.what)
            if registering:
                tasks.append(Task(REGISTRATION, registering, None, item.stream, after, item.layer, "registration"))
                after = (len(tasks) - 1,)
            price = collectives[f"{part}: {item.name}"] = prices.collective(item.what)
            tasks.append(Task(COLLECTIVE, price.us, item.what, item.stream, after, item.layer, item.name))
        last.append(len(tasks) - 1)
    return tasks


def _layers(tasks: list[Task], found: Schedule) -> dict[str, float]:
    spans: dict[str, tuple[float, float]] = {}
    for task, start, finish in zip(tasks, found.start, found.finish, strict=True):
        first, last = spans.get(task.layer, (start, finish))
        spans[task.layer] = min(first, start), max(last, finish)
    return {layer: last - first for layer, (first, last) in spans.items()}


def _items(tasks: list[Task], found: Schedule) -> dict[str, tuple[int, float, float]]:
    sums: dict[str, tuple[int, float, float]] = {}
    for task, start, finish in zip(tasks, found.start, found.finish, strict=True):
        number, us, taken = sums.get(task.name, (0, 0.0, 0.0))
        sums[task.name] = number + 1, us + task.us, taken + finish - start
    return {name: (number, us / number, taken) for name, (number, us, taken) in sums.items()}


__all__ = ["KINDS", "Figures", "Report", "Row", "Workload", "load"]
