"""Workloads as data: constants with grade and source, and what has been published of them, from TOML files."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from strata.errors import InvalidArgument
from strata.machine import constants as c

COMMON = "common.toml"


def within(least: float, most: float = 1e18) -> Any:
    """A constant from ``least`` to ``most``."""
    return field(metadata={"least": least, "most": most})


@dataclass(frozen=True)
class Practice:
    """What holds for all workloads.

    ``comm_cores``     cores of a die that a collective by cores holds
    ``vector_share``   of a kernel's time, what it spends on the vector cores that collectives want too
    ``new_share``      of dynamic buffers, those that just-in-time registration has not seen before
    ``remap_share``    ... those whose pages are not yet registered when they are used
    ``exchange_us``    of the barriers of all cores within an operator that takes tokens to experts or back
    ``check_us``       of the look at the own page table, before each use of a dynamic buffer
    """

    comm_cores: int = within(1, 4096)
    vector_share: float = within(0, 1)
    new_share: float = within(0, 1)
    remap_share: float = within(0, 1)
    exchange_us: float = within(0, 1e6)
    check_us: float = within(0, 1e6)


@dataclass(frozen=True)
class Published:
    """A published ratio to the row that is called ``against``: of throughput, more is better."""

    name: str
    switches: dict[str, Any]
    ratio: float
    against: str
    source: str


@dataclass(frozen=True)
class Description:
    """A file's content.  ``constants``: a dataclass of the kind; ``sources``: (grade, source) of each constant."""

    name: str
    title: str
    kind: str
    machine: str
    constants: Any
    practice: Practice
    published: tuple[Published, ...]
    sources: dict[str, tuple[str, str]] = field(compare=False, repr=False)

    def replace(self, **values: Any) -> Description:
        """With other constants, by name; InvalidArgument for a name that is none, or a value out of range."""
        unknown = sorted(set(values) - set(self.values()))
        if unknown:
            raise InvalidArgument(
                f"workload {self.name} has no constant {unknown[0]!r}; there are {', '.join(self.values())}"
            )
        return dataclasses.replace(self, constants=self._with(self.constants, values),
                                   practice=self._with(self.practice, values))  # fmt: skip

    def _with(self, part: Any, values: dict[str, Any]) -> Any:
        """A part with those of ``values`` that are its own."""
        known = {f.name: f for f in dataclasses.fields(part)}
        new = {name: c.checked(self.name, name, known[name], value) for name, value in values.items() if name in known}
        return dataclasses.replace(part, **new)

    def values(self) -> dict[str, Any]:
        """All constants by name."""
        return dataclasses.asdict(self.constants) | dataclasses.asdict(self.practice)

    def assumptions(self) -> list[dict[str, Any]]:
        """All constants as rows: name, value, grade, source."""
        rows = []
        for name, value in self.values().items():
            grade, source = self.sources[name]
            rows.append({"name": name, "value": value, "grade": grade, "source": source})
        return rows


def _constants(where: str, kind: type, table: Any, sources: dict[str, tuple[str, str]]) -> Any:
    known = {f.name: f for f in dataclasses.fields(kind)}
    if not isinstance(table, dict) or set(table) != set(known):
        given = set(table) if isinstance(table, dict) else set()
        wrong = sorted(given - set(known)) or sorted(set(known) - given)
        what = "unknown" if given - set(known) else "without"
        raise InvalidArgument(f"{where}: constants {what} {', '.join(wrong)}; there are {', '.join(known)}")
    return kind(**c.values(where, "", known, table, sources))


KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "ratio": ((int, float), "a number above 0"), "switches": ((dict,), "a table"),
}  # fmt: skip


def _published(where: str, rows: Any) -> tuple[Published, ...]:
    names = {f.name for f in dataclasses.fields(Published)}
    found: list[Published] = []
    for row in rows if isinstance(rows, list) else [rows]:
        if not isinstance(row, dict) or set(row) != names:
            raise InvalidArgument(f"{where}: [[published]] has {c.shown(row)}; it needs {', '.join(sorted(names))}")
        for name, value in row.items():
            kinds, what = KINDS.get(name, ((str,), "a text"))
            if type(value) not in kinds or (name == "ratio" and not 0 < value < math.inf):
                raise InvalidArgument(f"{where}: [[published]] has {name} = {c.shown(value)}: {what} is expected")
        made = Published(**{**row, "ratio": float(row["ratio"])})
        if made.against not in {p.name for p in found} | {made.name}:
            raise InvalidArgument(f"{where}: {made.name!r} is against {made.against!r}, which is no row before it")
        found.append(made)
    return tuple(found)


def parse(text: str, where: str, kinds: dict[str, type]) -> Description:
    """A description from TOML; InvalidArgument names what is missing, unknown or out of range."""
    data = c.parsed(text, where)
    needed = {"name", "title", "kind", "machine", "constants", "published"}
    if set(data) != needed:
        raise InvalidArgument(f"{where}: a workload has {', '.join(sorted(needed))}, and no others; "
                              f"here are {', '.join(sorted(data))}")  # fmt: skip
    texts = {key: data[key] for key in ("name", "title", "kind", "machine")}
    for key, value in texts.items():
        if not isinstance(value, str):
            raise InvalidArgument(f"{where}: {key} is {c.shown(value)}, not a text")
    if texts["kind"] not in kinds:
        raise InvalidArgument(f"{where}: kind {texts['kind']!r} is not known; there are {', '.join(kinds)}")
    sources: dict[str, tuple[str, str]] = {}
    constants = _constants(where, kinds[texts["kind"]], data["constants"], sources)
    practice = _constants(COMMON, Practice, c.parsed(_own(COMMON), COMMON), sources)
    return Description(**texts, constants=constants, practice=practice, sources=sources,
                       published=_published(where, data["published"]))  # fmt: skip


@functools.cache
def _own(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def names() -> list[str]:
    """Workloads that come with the library."""
    files = [e.name for e in resources.files(__package__).iterdir()]
    return sorted(n[:-5] for n in files if n.endswith(".toml") and n != COMMON)


def read(name: str, kinds: dict[str, type]) -> Description:
    """Of ``names()``, or a path that ends in .toml.  InvalidArgument if there is none, or it is wrong."""
    if not isinstance(name, str):
        raise InvalidArgument(f"workload is {name!r}: a name or a .toml file is expected")
    if name.endswith(".toml"):
        return parse(c.text_of("workload", name), name, kinds)
    if name not in names():
        raise InvalidArgument(f"workload {name!r} is not known; there are {', '.join(names())}, or a .toml file")
    return parse(_own(f"{name}.toml"), name, kinds)
