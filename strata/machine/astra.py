"""Networks of ASTRA-sim (YAML of its analytical backends) as machines.

A network has dimensions, the innermost first, each a building block of so many NPUs with ports of its own:

* ``Switch``: an NPU's port gives ``bandwidth`` in each direction, to one other as to all; two links away.
* ``FullyConnected``: each pair has a link of ``bandwidth``; one link away.

One dimension becomes a node, whose dies are reached by UB; of two, the inner one becomes a package, reached by SIO, and
the outer one the node.  What ASTRA-sim calls GB/s is 2**30 bytes a second.  What has no counterpart is refused: rings,
whose links carry what passes through, and third dimensions, since a die has two ports.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from strata.errors import InvalidArgument
from strata.machine.constants import shown
from strata.machine.description import Machine, load
from strata.plan.records import TIER_NAMES
from strata.plan.topology import L1, L2, LOCAL, SIO

KEYS = ("topology", "npus_count", "bandwidth", "latency")
GIB = 2**30 / 1e9
LINKS = {"Switch": 2, "FullyConnected": 1}  # from one NPU to another


@dataclasses.dataclass(frozen=True)
class _Dimension:
    block: str
    npus: int
    gbps: float
    oneway_us: float

    @property
    def port_gbps(self) -> float:
        return self.gbps * (self.npus - 1 if self.block == "FullyConnected" else 1)


def read(path: str | os.PathLike[str], base: str | Machine = "cm384") -> Machine:
    """The machine of a network file; ``base`` gives what the file does not say: cores, memory, flags, launch, SDMA,
    and how many cores have all that one peer gives.

    A pull takes the way twice before its first byte (``alpha_us``), a flag once (``seen_us``); ports lose nothing by
    fan-out.  InvalidArgument names what has no counterpart, is missing, or out of range; or PyYAML, if it is not there.
    """
    where = os.fspath(path)
    dims = _dimensions(where, _loaded(where))
    old = load(base)
    inner, outer = (dims[0], dims[1]) if len(dims) == 2 else (None, dims[0])
    values: dict[str, Any] = {
        "topology.nodes": 1, "topology.packages_per_node": outer.npus,
        "topology.dies_per_package": inner.npus if inner else 1, "topology.flat": False,
        "die.ub_gbps": outer.port_gbps, "die.ub_planes": 1, "die.sio_gbps": inner.port_gbps if inner else 0.0,
        "die.node_gbps": 0.0, "fanout.loss": 0.0,
    }  # fmt: skip
    for tier, dim in ((SIO, inner or outer), (L1, outer), (L2, outer)):
        before, name = old.tiers[tier if not old.topology.flat else LOCAL], f"tier.{TIER_NAMES[tier]}"
        cores = max(before.read_gbps / before.core_gbps, 1.0)
        values |= {f"{name}.alpha_us": 2 * dim.oneway_us, f"{name}.seen_us": dim.oneway_us,
                   f"{name}.read_gbps": dim.gbps, f"{name}.write_gbps": dim.gbps,
                   f"{name}.core_gbps": dim.gbps / cores}  # fmt: skip
    said = ", ".join(f"{d.block} of {d.npus}, {d.gbps / GIB:g} GiB/s, {d.oneway_us * 1e3 / LINKS[d.block]:g} ns a link"
                     for d in dims)  # fmt: skip
    sources = {**old.sources, **dict.fromkeys(values, ("D", f"{where}: {said}; the rest as {old.name}"))}
    try:
        made = old.replace(**values)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error.args[0]}") from None
    return dataclasses.replace(made, name=Path(where).stem, title=f"ASTRA-sim network: {said}", sources=sources)


def _loaded(where: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise InvalidArgument('ASTRA-sim networks need the package PyYAML: pip install "strata[astra]"') from error
    try:
        found = yaml.safe_load(Path(where).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"network {where} cannot be read: {error}") from None
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, ArithmeticError, AttributeError,
            TypeError) as error:  # fmt: skip
        raise InvalidArgument(f"{where} is no YAML: {error}") from None
    if not isinstance(found, dict) or set(found) != set(KEYS):
        keys = shown(sorted(map(shown, found)) if isinstance(found, dict) else found)
        raise InvalidArgument(f"{where}: a network has {', '.join(KEYS)}, and no others; this has {keys}")
    return found


def _dimensions(where: str, found: dict[str, Any]) -> list[_Dimension]:
    lists = {key: found[key] if isinstance(found[key], list) else [found[key]] for key in KEYS}
    lengths = {key: len(values) for key, values in lists.items()}
    if len(set(lengths.values())) != 1:
        raise InvalidArgument(f"{where}: dimensions differ in number: {lengths}")
    if not 1 <= lengths["topology"] <= 2:
        raise InvalidArgument(f"{where} has {lengths['topology']} dimensions, and a die has two ports: one or two are "
                              "expected")  # fmt: skip
    dims = []
    for block, npus, gib, ns in zip(*(lists[key] for key in KEYS), strict=True):
        if not isinstance(block, str) or block not in LINKS:
            why = "what passes through its NPUs has no counterpart; " if block == "Ring" else ""
            raise InvalidArgument(f"{where}: topology {shown(block)}: {why}{' or '.join(LINKS)} is expected")
        _number(where, "npus_count", npus, 2, 1 << 16, int)
        _number(where, "bandwidth", gib, 1e-3, 1e9, float)
        _number(where, "latency", ns, 0, 1e9, float)
        dims.append(_Dimension(block, npus, gib * GIB, LINKS[block] * ns / 1e3))
    return dims


def _number(where: str, key: str, value: Any, least: float, most: float, kind: type) -> None:
    kinds = (int,) if kind is int else (int, float)
    if type(value) not in kinds or not least <= value <= most:  # NaN is not
        what = "a whole number" if kind is int else "a number"
        raise InvalidArgument(f"{where}: {key} {shown(value)}: {what} from {least:g} to {most:g} is expected")
