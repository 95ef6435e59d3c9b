"""What the dies of a machine share, as links: ports, memories, engines, cores, and pairs of dies where these limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from strata.errors import InvalidArgument
from strata.exec.timed.records import (
    ENGINE,
    HBM,
    LINK_DTYPE,
    NODE_DOWN,
    NODE_UP,
    NONE,
    PAIR,
    POOL,
    SIO_IN,
    SIO_OUT,
    UB_IN,
    UB_OUT,
)
from strata.exec.timed.stage import whole
from strata.machine.description import Machine
from strata.plan.topology import L1, L2, LOCAL, SIO

# Columns of a die's row (``st_load_die``): die, package, node, then its links in the order of enum st_load_port.
PORTS = (UB_OUT, UB_IN, SIO_OUT, SIO_IN, HBM, NODE_UP, NODE_DOWN, ENGINE, POOL)
COLUMNS = 3 + len(PORTS)
POOL_COLUMN, HBM_COLUMN = 3 + PORTS.index(POOL), 3 + PORTS.index(HBM)


@dataclass(frozen=True)
class Effects:
    """What is wrong with a machine.  InvalidArgument for what is out of range.

    ``slow_dies``    {die: factor}: its cores, ports and memory take factor times as long
    ``slow_links``   {(a, b): factor}: what die a gives die b, read or written, takes factor times as long
    ``dead_planes``  {die: planes}: so many of its UB planes are dead
    ``jitter``       latencies and flags take up to so much longer, relative, uniform; by ``seed``, the same each time
    """

    slow_dies: Mapping[int, float] = field(default_factory=dict)
    slow_links: Mapping[tuple[int, int], float] = field(default_factory=dict)
    dead_planes: Mapping[int, int] = field(default_factory=dict)
    jitter: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("slow_dies", "slow_links", "dead_planes"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        for name in ("slow_dies", "slow_links"):
            for what, factor in getattr(self, name).items():
                if not 1 <= factor <= 1e6:
                    raise InvalidArgument(f"{name}[{what}] is {factor}: 1 (as fast as ever) up to 1e6 times as long")
        if not 0 <= self.jitter <= 100:
            raise InvalidArgument(f"jitter is {self.jitter}: 0 up to 100 times a latency is expected")
        if not whole(self.seed) or not 0 <= self.seed < 1 << 64:
            raise InvalidArgument(f"seed is {self.seed}: 64 bits are expected")

    def check(self, machine: Machine, ndies: int) -> None:
        """InvalidArgument if they name dies or planes that are not there."""
        named = [*self.slow_dies, *self.dead_planes]
        for pair in self.slow_links:
            if not isinstance(pair, tuple) or len(pair) != 2 or pair[0] == pair[1]:
                raise InvalidArgument(f"slow_links[{pair!r}]: a pair of two dies, (giver, taker), is expected")
            named += pair
        for die in named:
            if not whole(die) or not 0 <= die < ndies:
                raise InvalidArgument(f"the effects name die {die!r}, and there are {ndies}")
        planes = machine.die.ub_planes
        for die, dead in self.dead_planes.items():
            if not whole(dead) or not 0 <= dead < planes:
                raise InvalidArgument(f"dead_planes[{die}] is {dead}: of {planes} planes, one at least must live")


class Links:
    """The links of ``ndies`` dies.

    ``rows``     i32 (ndies, COLUMNS): see PORTS; NONE where there is no limit
    ``slow``     f64 (ndies,);  ``between``: f64 (ndies, ndies) or None, of slow links
    ``tiers``    u8 (ndies, ndies)
    ``through``, ``memory``: f64 (ndies, 2), bytes per picosecond through a die's ports, out and in; (ndies,)
    ``ports``    LINK_DTYPE: all but the pairs
    """

    def __init__(self, machine: Machine, ndies: int, effects: Effects) -> None:
        place = machine.place
        die = np.arange(ndies)
        node = die // place.node
        self.machine, self.ndies = machine, ndies
        self.slow = np.ones(ndies)
        for which, factor in effects.slow_dies.items():
            self.slow[which] = factor
        planes = np.full(ndies, machine.die.ub_planes)
        for which, dead in effects.dead_planes.items():
            planes[which] -= dead
        self.between: np.ndarray | None = None
        if effects.slow_links:
            self.between = np.ones((ndies, ndies))
            for pair, factor in effects.slow_links.items():
                self.between[pair] = factor
        ub = machine.die.ub_gbps / 1e3 * planes / machine.die.ub_planes / self.slow
        sio = machine.die.sio_gbps / 1e3 / self.slow
        share = machine.sdma.share if machine.sdma else 0.0
        uplink = np.full(node[-1] + 1, 0.0 if place.flat else machine.die.node_gbps / 1e3)
        rates = {
            UB_OUT: ub, UB_IN: ub, SIO_OUT: sio, SIO_IN: sio, NODE_UP: uplink, NODE_DOWN: uplink,
            HBM: machine.die.hbm_gbps * machine.die.hbm_efficiency / 1e3 / self.slow,
            ENGINE: share * machine.die.ub_gbps / 1e3 / self.slow,
            POOL: np.full(ndies, float(machine.die.cores)),
        }  # fmt: skip
        # Of each die, bytes per picosecond: through its ports out and in, (ndies, 2); of its memory.
        ports = ub + np.where(sio > 0, sio, np.inf) if not place.flat else np.full(ndies, np.inf)
        self.through, self.memory = np.stack([ports, ports], axis=1), rates[HBM]
        self.rows = np.full((ndies, COLUMNS), NONE, np.int32)
        self.rows[:, 0], self.rows[:, 1], self.rows[:, 2] = die, die // place.package, node
        blocks, first = [], 0
        for column, kind in enumerate(PORTS, 3):
            capacity = rates[kind]
            if not capacity[0]:
                continue  # no limit
            block = np.zeros(len(capacity), LINK_DTYPE)
            block["capacity"], block["kind"], block["die"] = capacity, kind, np.arange(len(capacity))
            block["loss"] = machine.fanout.loss if kind in (UB_OUT, UB_IN) else 0.0
            self.rows[:, column] = first + (node if kind in (NODE_UP, NODE_DOWN) else die)
            blocks.append(block)
            first += len(block)
        self.ports = np.concatenate(blocks)
        self.tiers = _tiers(machine, ndies)

    def pairs(self, demand: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Links of pairs of dies whose cores ask for more than one die gives one other, and which pair has which:
        LINK_DTYPE, and i32 (ndies, ndies).  ``demand``: f64 (ndies, ndies), as if all was read."""
        rates = np.array([tier.read_gbps / 1e3 for tier in self.machine.tiers])
        givers, takers = np.nonzero(demand > (rates * (1 + 1e-12))[self.tiers])
        found = np.zeros(len(givers), LINK_DTYPE)
        found["capacity"], found["kind"], found["die"] = rates[self.tiers[givers, takers]], PAIR, givers
        if self.between is not None:
            found["capacity"] /= self.between[givers, takers]
        which = np.full((self.ndies, self.ndies), NONE, np.int32)
        which[givers, takers] = len(self.ports) + np.arange(len(givers))
        return found, which


def _tiers(machine: Machine, ndies: int) -> np.ndarray:
    place = machine.place
    die = np.arange(ndies, dtype=np.int32)
    found = np.full((ndies, ndies), LOCAL if place.flat else L2, np.uint8)
    if not place.flat:
        for size, tier in ((place.node, L1), (place.package, SIO), (1, LOCAL)):
            group = die // size
            found[group[:, None] == group] = tier
    return found
