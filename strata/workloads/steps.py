"""What one die does in a step: kernels and collectives on streams, in the order in which they are issued."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

COMPUTE, COMM, GATHER, REDUCE = "compute", "comm", "gather", "reduce"


@dataclass(frozen=True)
class Kernel:
    """``flops`` operations on ``dtype``, ``nbytes`` read and written: whichever takes longer; ``start_us`` besides."""

    flops: float
    nbytes: float = 0.0
    dtype: str = "bf16"
    start_us: float = 0.0


@dataclass(frozen=True)
class Routing:
    """How much goes where in an all_to_all_v: who sends how many rows of ``row_bytes`` to whom.

    ``model``  "experts": ``rows`` tokens of each die go to ``topk`` of ``parts`` experts, by popularity
               1 / rank ** ``skew``;  "tables": each die sends ``rows`` rows from each of its shards, of which there
               are ``parts`` in all
    ``back``   the way back of the same
    """

    model: str
    rows: int
    parts: int
    row_bytes: int
    topk: int = 1
    skew: float = 0.0
    seed: int = 0
    back: bool = False


@dataclass(frozen=True)
class Collective:
    """An operation of ``ranks`` dies, ``stride`` apart.

    ``nbytes``   of each member's source;  ``routing``: instead, of an all_to_all_v
    ``dtype``    of what is reduced
    ``dynamic``  its buffers are new each time: bytes of each peer that are to be registered; 0: they stay
    """

    operation: str
    nbytes: int = 0
    ranks: int = 1
    stride: int = 1
    dtype: str = "u1"
    routing: Routing | None = None
    dynamic: int = 0


class Item(NamedTuple):
    """One of them; ``after``: items that are done before it begins, besides those before it on its stream."""

    what: Kernel | Collective
    name: str
    layer: str
    stream: str
    after: tuple[int, ...]


@dataclass
class Steps:
    """Items in the order in which they are issued."""

    items: list[Item] = field(default_factory=list)

    def add(self, what: Kernel | Collective, name: str, layer: str, stream: str, after: tuple[int, ...] = ()) -> int:
        """The number of a new item."""
        self.items.append(Item(what, name, layer, stream, after))
        return len(self.items) - 1


@dataclass(frozen=True)
class Part:
    """A kind of step that makes up a workload's unit of work ``times`` over (a request: some prefill, some decode)."""

    name: str
    steps: Steps
    times: float = 1.0


@dataclass(frozen=True)
class Demand:
    """What a unit of work is made of.

    ``units``   what comes of it on a die (tokens, samples), and ``unit`` its name
    ``memory``  bytes of a die by what they are for
    ``notes``   what the switches changed besides times, in words
    """

    parts: tuple[Part, ...]
    units: float
    unit: str
    memory: dict[str, float]
    notes: tuple[str, ...] = ()
