"""Machine descriptions: constants with their units in their names, each with its source and grade."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from strata.errors import InvalidArgument
from strata.machine import constants as c
from strata.plan.cost import Cost
from strata.plan.model import Engine, Model
from strata.plan.records import NTIERS, TIER_NAMES
from strata.plan.topology import Topology

REPLACED = "A", "set by Machine.replace"
SHOWN = 6  # constants that a caption names


def _at(least: float, most: float = 1e18, default: Any = dataclasses.MISSING) -> Any:
    """A constant from ``least`` to ``most``; with a default, one that may be left out."""
    return field(default=default, metadata={"least": least, "most": most})


@dataclass(frozen=True)
class Place:
    """How dies are placed; ``flat``: one memory, all are local to each other."""

    nodes: int = _at(1, 1 << 16)
    packages_per_node: int = _at(1, 1 << 10)
    dies_per_package: int = _at(1, 1 << 10)
    flat: bool = _at(0, 1, False)

    @property
    def dies(self) -> int:
        """Of the whole machine."""
        return self.nodes * self.packages_per_node * self.dies_per_package


@dataclass(frozen=True)
class Die:
    """A die.  Rates in one direction; ``node_gbps``: of a node to all others, 0 no limit; ``hbm_efficiency``: of
    ``hbm_gbps``, what is reached."""

    cores: int = _at(1, 4096)
    hbm_gbps: float = _at(1e-3)
    hbm_bytes: int = _at(1)
    hbm_efficiency: float = _at(1e-3, 1)
    ub_gbps: float = _at(1e-3)
    ub_planes: int = _at(1, 1 << 10)
    sio_gbps: float = _at(0)
    node_gbps: float = _at(0)


@dataclass(frozen=True)
class Core:
    """``outstanding``: 1, a unit is asked for when the one before is done; 2, while it flows.  ``issue_us``: a core's
    own time for a unit, or row of a unit of rows; ``row_us``: for a row, beyond that.  ``accumulate_weight``: what a
    byte added atomically is to its target's memory."""

    outstanding: int = _at(1, 2)
    issue_us: float = _at(0, 1e6)
    accumulate_weight: float = _at(1, 16)
    row_us: float = _at(0, 1e6)


@dataclass(frozen=True)
class Tier:
    """A distance.  ``alpha_us``: from asking to the first byte; ``read_gbps``, ``write_gbps``: one die from, and to,
    one other; ``core_gbps``: one core on one peer; ``seen_us``: from a flag's raising to its being seen;
    ``unit_bytes``, ``cap``: S_t and H_t of the partition."""

    alpha_us: float = _at(0, 1e6)
    read_gbps: float = _at(1e-3)
    write_gbps: float = _at(1e-3)
    core_gbps: float = _at(1e-3)
    seen_us: float = _at(0, 1e6)
    unit_bytes: int = _at(1, 1 << 47)
    cap: int = _at(1, 1 << 16)


@dataclass(frozen=True)
class Fanout:
    """A port with F busy peers gives capacity / (1 + loss log2(F) m / (m + backlog_bytes)), m bytes per peer."""

    loss: float = _at(0, 10)
    backlog_bytes: float = _at(0)


@dataclass(frozen=True)
class Sync:
    """``entry_us``: arrival or closing of an operation, beyond distance; ``poll_us``: from when a flag can be seen to
    when a core goes on; ``fused_us``: barriers of all cores of a die within an operator that does several things."""

    entry_us: float = _at(0, 1e6)
    poll_us: float = _at(0, 1e6)
    fused_us: float = _at(0, 1e6)


@dataclass(frozen=True)
class Estimate:
    """Constants of the closed estimate that selection goes by (``plan.model``), which the simulator does not use:
    ``step_us``, ``entry_us``, ``loss`` and ``backlog_bytes`` as in ``Model``."""

    step_us: float = _at(0, 1e6)
    entry_us: float = _at(0, 1e6)
    loss: float = _at(0, 10)
    backlog_bytes: float = _at(0)


@dataclass(frozen=True)
class Launch:
    """By the host: a collective, one in a graph, a kernel."""

    eager_us: float = _at(0, 1e6)
    graph_us: float = _at(0, 1e6)
    kernel_us: float = _at(0, 1e6)


@dataclass(frozen=True)
class Registration:
    """``map_us`` and ``map_us_per_gib``: a die maps what one peer has allocated, its page table locked;
    ``announce_us``: the allocation is told to all peers, ``relay_us``: by way of a relay."""

    map_us: float = _at(0, 1e9)
    map_us_per_gib: float = _at(0, 1e9)
    announce_us: float = _at(0, 1e9)
    relay_us: float = _at(0, 1e9)
    page_bytes: int = _at(1)


@dataclass(frozen=True)
class Sdma:
    """``queues`` of a die; ``descriptor_us``: a core's time for one; ``handover_us``: from the doorbell to the first
    byte, beyond distance, for each descriptor; ``share``: of the ports' rates, what the engine reaches."""

    queues: int = _at(1, 4096)
    descriptor_us: float = _at(0, 1e6)
    handover_us: float = _at(0, 1e6)
    share: float = _at(1e-3, 1)
    block_bytes: int = _at(1)
    reduces: bool = _at(0, 1)


@dataclass(frozen=True)
class Compute:
    """Peaks of a die, 1e12 operations a second; ``efficiency``: of them, what is reached."""

    f16_tflops: float = _at(1e-6)
    bf16_tflops: float = _at(1e-6)
    int8_tflops: float = _at(1e-6)
    f32_tflops: float = _at(1e-6)
    efficiency: float = _at(1e-3, 1)


SECTIONS: dict[str, type] = {
    "topology": Place, "die": Die, "core": Core, "fanout": Fanout, "sync": Sync, "estimate": Estimate, "launch": Launch,
    "registration": Registration, "sdma": Sdma, "compute": Compute,
}  # fmt: skip
OPTIONAL = ("sdma",)


@dataclass(frozen=True)
class Machine:
    """A machine's constants; ``tiers`` by distance: local, SIO, L1, L2.  ``sources`` maps "die.cores" and its like
    to (grade, source); it is no part of what machines are compared by."""

    name: str
    title: str
    topology: Place
    die: Die
    core: Core
    tiers: tuple[Tier, Tier, Tier, Tier]
    fanout: Fanout
    sync: Sync
    estimate: Estimate
    launch: Launch
    registration: Registration
    sdma: Sdma | None
    compute: Compute
    sources: Mapping[str, tuple[str, str]] = field(default_factory=dict, compare=False, repr=False)

    @functools.cached_property
    def place(self) -> Topology:
        """How far dies are from each other, for plans."""
        package = self.topology.dies_per_package
        return Topology(package, package * self.topology.packages_per_node, self.topology.flat)

    @functools.cached_property
    def cost(self) -> Cost:
        """What the partition goes by."""
        tiers = self.tiers
        return Cost(
            alpha_us=tuple(t.alpha_us for t in tiers), gbps=tuple(t.core_gbps for t in tiers),
            unit_bytes=tuple(t.unit_bytes for t in tiers), cap=tuple(t.cap for t in tiers),
            sio_gbps=self.die.sio_gbps, ub_gbps=self.die.ub_gbps,
            row_us=tuple(self.core.issue_us + self.core.row_us + t.alpha_us for t in tiers),
        )  # fmt: skip

    @functools.cached_property
    def model(self) -> Model:
        """The closed estimate that selection goes by."""
        s = self.sdma
        engine = s and Engine(s.descriptor_us, s.handover_us, s.share, s.block_bytes, s.reduces)
        return Model(
            self.name, self.estimate.step_us, self.estimate.entry_us, tuple(t.read_gbps for t in self.tiers),
            self.die.ub_gbps, self.die.hbm_gbps, loss=self.estimate.loss,
            backlog_bytes=self.estimate.backlog_bytes, engine=engine,
        )  # fmt: skip

    def replace(self, **constants: Any) -> Machine:
        """A machine with other constants: ``replace(**{"die.ub_gbps": 98.0, "tier.l2.alpha_us": 4.2})``, whose
        sources say so.  InvalidArgument for a name that is none, or a value out of range."""
        made = self
        for name, value in constants.items():
            made = _with(made, name, value)
        return made

    @property
    def caption(self) -> str:
        """The title, with what ``replace`` has set."""
        found = [f"{n}={v}" for n, v in self.constants().items() if self.sources.get(n) == REPLACED]
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        return f"{self.title}; set: {', '.join(found[:SHOWN])}{more}" if found else self.title

    def constants(self) -> dict[str, Any]:
        """All constants by their dotted names."""
        found: dict[str, Any] = {}
        for name in SECTIONS:
            part = getattr(self, name)
            found |= {f"{name}.{k}": v for k, v in dataclasses.asdict(part).items()} if part is not None else {}
        for name, tier in zip(TIER_NAMES, self.tiers, strict=True):
            found |= {f"tier.{name}.{k}": v for k, v in dataclasses.asdict(tier).items()}
        return found


def _with(machine: Machine, name: str, value: Any) -> Machine:
    section, _, key = name.rpartition(".")
    kinds = {**SECTIONS, **{f"tier.{t}": Tier for t in TIER_NAMES}}
    known = {f.name: f for f in dataclasses.fields(kinds[section])} if section in kinds else {}
    if key not in known or (section in OPTIONAL and getattr(machine, section) is None):
        there = ", ".join(machine.constants())
        raise InvalidArgument(f"machine {machine.name} has no constant {name!r}; there are {there}")
    value = c.checked(machine.name, name, known[key], value)
    machine = dataclasses.replace(machine, sources={**machine.sources, name: REPLACED})
    if section.startswith("tier."):
        index = TIER_NAMES.index(section[5:])
        tiers = list(machine.tiers)
        tiers[index] = dataclasses.replace(tiers[index], **{key: value})
        return dataclasses.replace(machine, tiers=tuple(tiers))
    return dataclasses.replace(machine, **{section: dataclasses.replace(getattr(machine, section), **{key: value})})


def _section(where: str, name: str, kind: type, table: Any, sources: dict[str, tuple[str, str]]) -> Any:
    if not isinstance(table, dict):
        raise InvalidArgument(f"{where}: [{name}] is {table!r}, not a table of constants")
    known = {f.name: f for f in dataclasses.fields(kind)}
    unknown = sorted(set(table) - set(known))
    missing = sorted(k for k, f in known.items() if k not in table and f.default is dataclasses.MISSING)
    if unknown or missing:
        what = f"unknown {', '.join(unknown)}" if unknown else f"without {', '.join(missing)}"
        raise InvalidArgument(f"{where}: [{name}] {what}; its constants are {', '.join(known)}")
    return kind(**c.values(where, f"{name}.", known, table, sources))


def parse(text: str, where: str = "machine") -> Machine:
    """A machine from TOML; InvalidArgument names the constant that is missing, unknown or out of range."""
    data = c.parsed(text, where)
    unknown = sorted(set(data) - {"name", "title", "tier", *SECTIONS})
    missing = sorted({"name", "tier", *SECTIONS} - set(OPTIONAL) - set(data))
    if unknown or missing:
        what = f"unknown {', '.join(unknown)}" if unknown else f"without {', '.join(missing)}"
        raise InvalidArgument(f"{where}: {what}; a machine has name, title, tier, {', '.join(SECTIONS)}")
    for key in ("name", "title"):
        if not isinstance(data.get(key, "-"), str) or not data.get(key, "-").strip():
            raise InvalidArgument(f"{where}: {key} is {data[key]!r}: a text is expected")
    sources: dict[str, tuple[str, str]] = {}
    parts = {n: _section(where, n, kind, data[n], sources) if n in data else None for n, kind in SECTIONS.items()}
    if not isinstance(data["tier"], dict) or set(data["tier"]) != set(TIER_NAMES):
        raise InvalidArgument(f"{where}: [tier] needs {', '.join(TIER_NAMES)}, and no others")
    tiers = [_section(where, f"tier.{t}", Tier, data["tier"][t], sources) for t in TIER_NAMES]
    assert len(tiers) == NTIERS
    title = data.get("title", data["name"])
    return Machine(name=data["name"], title=title, tiers=tuple(tiers), sources=sources, **parts)


def names() -> list[str]:
    """Machines that come with the library."""
    return sorted(e.name[:-5] for e in resources.files(__package__).iterdir() if e.name.endswith(".toml"))


@functools.lru_cache(64)
def _read(text: str, where: str) -> Machine:
    return parse(text, where)


def load(name: str | Machine) -> Machine:
    """A machine by its name (``names()``), from a TOML file (a path that ends in .toml), or itself.
    InvalidArgument if there is none of that name, or the file is wrong."""
    if isinstance(name, Machine):
        return name
    if not isinstance(name, str):
        raise InvalidArgument(f"machine is {name!r}: a name, a .toml file or a Machine is expected")
    if name.endswith(".toml"):
        return _read(c.text_of("machine", name), name)
    if name not in names():
        there = ", ".join(names())
        raise InvalidArgument(f"machine {name!r} is not known; there are {there}, or a .toml file of your own")
    return _read((resources.files(__package__) / f"{name}.toml").read_text(encoding="utf-8"), name)
