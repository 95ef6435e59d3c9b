"""What a workload may be asked with: the library, and how it registers, partitions and moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from strata.errors import InvalidArgument
from strata.plan import algorithms
from strata.plan.spec import REDUCTIONS

POOL, JUST_IN_TIME, ON_ALLOCATION = "pool", "just_in_time", "on_allocation"
GATHERS = ("all_gather", "reduce_scatter", "all_reduce")


class Library(NamedTuple):
    """What a library can do; the first of each is its default.

    ``gathers``    algorithm of all_gather, reduce_scatter and all_reduce; None: the library selects
    ``exchanges``  ... of all_to_all and all_to_all_v
    ``staged``     sources are copied into its own buffers first, and results out of them
    """

    gathers: str | None
    exchanges: str | None
    staged: bool
    registration: tuple[str, ...]
    partition: tuple[str, ...]
    path: tuple[str, ...]
    why: str


LIBRARIES = {
    "hccl": Library("zerocopy_ring", "full_mesh", True, (POOL,), ("naive",), ("mte",),
                    "it is buffer-centric: what it moves lies in its own static buffers, and cores copy it"),
    "zerocopy": Library("zerocopy_ring", "full_mesh", False, (POOL, JUST_IN_TIME), ("naive",), ("mte",),
                        "it works on user buffers in a pool that is registered beforehand (or just in time); cores "
                        "copy, each peer's on cores of its own"),
    "strata": Library(None, None, False, (ON_ALLOCATION, JUST_IN_TIME, POOL), ("balanced", "naive"), ("mte", "sdma"),
                      ""),
}  # fmt: skip


class Way(NamedTuple):
    """How a collective is carried out.  ``algorithm`` None: the library selects;  ``named``: only where it can."""

    algorithm: str | None
    named: bool
    partition: str
    path: str
    staged: bool


@dataclass(frozen=True)
class Switches:
    """How a workload is run; ``of`` makes them, and checks them.

    ``library``       hccl (buffer-centric), zerocopy or strata
    ``registration``  pool, just_in_time or on_allocation
    ``partition``     naive (each peer its own cores) or balanced, of what moves bytes of many peers; what reduces,
                      or has one peer, has all cores
    ``path``          mte, or sdma for what the engine can do (it moves and does not reduce, on most machines)
    ``algorithm``     of strata's collectives that it can do; None: the library selects
    ``overlap``       streams run beside each other; False: everything in the order it is issued
    """

    library: str = "strata"
    registration: str = ON_ALLOCATION
    partition: str = "balanced"
    path: str = "mte"
    algorithm: str | None = None
    overlap: bool = True

    @property
    def means(self) -> Library:
        """What the library can do."""
        return LIBRARIES[self.library]

    def way(self, operation: str) -> Way:
        """How an operation is carried out."""
        gathers = operation in GATHERS
        own = self.means.gathers if gathers else self.means.exchanges
        whole = operation in REDUCTIONS or (gathers and own is not None)  # a ring's one peer has all cores
        partition = "balanced" if whole else self.partition
        return Way(self.algorithm or own, self.algorithm is not None, partition, self.path, self.means.staged)


def of(library: str = "strata", *, registration: str | None = None, partition: str | None = None,
       path: str | None = None, algorithm: str | None = None, overlap: bool = True) -> Switches:  # fmt: skip
    """Switches; None takes the library's default.  InvalidArgument for what does not exist, or not together."""
    if library not in LIBRARIES:
        raise InvalidArgument(f"library is {library!r}; there are {', '.join(LIBRARIES)}")
    if type(overlap) is not bool:
        raise InvalidArgument(f"overlap is {overlap!r}: true or false is expected")
    means = LIBRARIES[library]
    chosen: dict[str, Any] = {}
    for name, value in (("registration", registration), ("partition", partition), ("path", path)):
        can, known = getattr(means, name), getattr(LIBRARIES["strata"], name)
        if value is not None and value not in known:
            raise InvalidArgument(f"{name} is {value!r}; there are {', '.join(known)}")
        if value is not None and value not in can:
            raise InvalidArgument(f"{name} {value!r} is not of library {library!r}: {means.why}")
        chosen[name] = can[0] if value is None else value
    if algorithm is not None and library != "strata":
        raise InvalidArgument(f"algorithm {algorithm!r} is not of library {library!r}, which has its own")
    if algorithm is not None and algorithm not in algorithms.names():
        raise InvalidArgument(f"algorithm is {algorithm!r}; there are {', '.join(algorithms.names())}")
    return Switches(library=library, algorithm=algorithm, overlap=overlap, **chosen)
