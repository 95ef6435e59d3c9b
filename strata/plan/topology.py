"""How far a group's members are from each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from strata.errors import InvalidArgument

LOCAL, SIO, L1, L2 = range(4)


@dataclass(frozen=True)
class Topology:
    """Members in the group's order fill packages of ``package`` dies and nodes of ``node`` dies.

    Two members are SIO neighbours in one package, L1 in one node, L2 otherwise; a die is local
    to itself.  ``flat``: everything is one memory and all are local (a host).  InvalidArgument
    if a node is no whole number of packages.
    """

    package: int = 1
    node: int = 1
    flat: bool = False
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.package < 1 or self.node < self.package or self.node % self.package:
            raise InvalidArgument(f"a node of {self.node} dies is not made of packages of {self.package}")
        object.__setattr__(self, "_hash", hash((self.package, self.node, self.flat)))

    def __hash__(self) -> int:
        """Found once: plans are looked up by it."""
        return self._hash

    def tiers(self, rank: int, peers: np.ndarray) -> np.ndarray:
        """Tier of each pair (rank, peer), int64."""
        peers = np.asarray(peers, np.int64)
        if self.flat:
            return np.zeros(len(peers), np.int64)
        far = np.full(len(peers), L2, np.int64)
        far[peers // self.node == rank // self.node] = L1
        far[peers // self.package == rank // self.package] = SIO
        far[peers == rank] = LOCAL
        return far

    def seen(self, rank: int, nranks: int) -> np.ndarray:
        """Tier of each member as ``rank`` sees it, u8, not to be changed."""
        return _seen(self, rank, nranks)


@lru_cache(maxsize=256)
def _seen(topology: Topology, rank: int, nranks: int) -> np.ndarray:
    found = np.full(nranks, LOCAL if topology.flat else L2, np.uint8)
    if not topology.flat:
        for size, tier in ((topology.node, L1), (topology.package, SIO), (1, LOCAL)):
            begin = rank // size * size
            found[begin : begin + size] = tier
    found.setflags(write=False)
    return found


HOST = Topology(2, 16, flat=True)  # one memory; its packages and nodes are what hierarchical algorithms go by
