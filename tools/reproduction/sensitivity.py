"""Where conclusions flip when the machine's constants are 20 % off.

Plans are made by the constants as they are, and timed on a machine whose constants differ: so the partition is not
judged by the figures that it was made with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from reproduction.claims import KIB, MIB, wide

from strata.machine import Machine
from strata.plan import Spec, build_all
from strata.prediction import predict_plans

RANKS = 32
FACTORS = (0.8, 1.25)

CONSTANTS = (
    "die.ub_gbps", "die.hbm_gbps", "die.sio_gbps", "core.issue_us", "fanout.loss", "fanout.backlog_bytes",
    "sync.entry_us", "sync.poll_us", "sdma.descriptor_us", "sdma.handover_us", "sdma.share",
    *(f"tier.{tier}.{what}" for tier in ("sio", "l1", "l2")
      for what in ("alpha_us", "read_gbps", "core_gbps", "seen_us")),
)  # fmt: skip


def _us(made_for: Machine, machine: Machine, nbytes: int, algorithm: str, path: str = "mte", cores: int = 48,
        policy: str = "balanced") -> float:  # fmt: skip
    spec = Spec("all_gather", nbytes, nranks=RANKS)
    if algorithm == "zerocopy_ring":
        made_for, machine, cores = wide(made_for), wide(machine), 1
    plans = build_all(spec, cores, algorithm=algorithm, path=path, policy=policy, cost=made_for.cost,
                      topology=made_for.place)  # fmt: skip
    return float(max(predict_plans(plans, machine).finish_us))


class Conclusion(NamedTuple):
    """Something that the paper concludes; ``margin`` above 1 where it holds."""

    text: str
    margin: Callable[[Machine, Machine], float]


def _ring(nbytes: int, mesh_wins: bool) -> Callable[[Machine, Machine], float]:
    def margin(made_for: Machine, machine: Machine) -> float:
        ring, mesh = (_us(made_for, machine, nbytes, a) for a in ("zerocopy_ring", "full_mesh"))
        return ring / mesh if mesh_wins else mesh / ring

    return margin


def _balanced(made_for: Machine, machine: Machine) -> float:
    naive, balanced = (_us(made_for, machine, 16 * MIB, "full_mesh", cores=24, policy=p) for p in ("naive", "balanced"))
    return naive / balanced


def _overlapped(nbytes: int) -> Callable[[Machine, Machine], float]:
    """What mte's cores cost other work, by what SDMA's cost it and its later end (docs/algorithms.md, Paths)."""

    def margin(made_for: Machine, machine: Machine) -> float:
        assert machine.sdma is not None
        cores = 24
        mte, sdma = (_us(made_for, machine, nbytes, "full_mesh", p, cores) for p in ("mte", "sdma"))
        pieces = (RANKS - 1) * -(-nbytes // machine.sdma.block_bytes)
        first = min(mte, sdma)
        held = mte * cores / machine.die.cores + mte - first
        submitted = pieces * machine.sdma.descriptor_us / machine.die.cores + sdma - first
        return held / submitted

    return margin


CONCLUSIONS = (
    Conclusion("balanced partition beats naive, 24 cores, 16 MiB", _balanced),
    Conclusion("full mesh beats ring at 64 KiB", _ring(64 * KIB, True)),
    Conclusion("full mesh beats ring at 1 MiB", _ring(MIB, True)),
    Conclusion("ring beats full mesh at 64 MiB", _ring(64 * MIB, False)),
    Conclusion("SDMA pays beside other work, 1 MiB", _overlapped(MIB)),
    Conclusion("SDMA pays beside other work, 16 MiB", _overlapped(16 * MIB)),
)


class Row(NamedTuple):
    """A conclusion with one constant off; ``factor`` 1: none is."""

    conclusion: str
    constant: str
    factor: float
    margin: float


def rows(machine: Machine) -> Iterator[Row]:
    """Every conclusion, as it is and with every constant 20 % smaller and 25 % larger."""
    values = machine.constants()
    for conclusion in CONCLUSIONS:
        yield Row(conclusion.text, "", 1.0, conclusion.margin(machine, machine))
        for name in CONSTANTS:
            for factor in FACTORS:
                value = values[name] * factor
                if name == "sdma.share":
                    value = min(value, 1.0)
                other = machine.replace(**{name: int(value) if isinstance(values[name], int) else value})
                yield Row(conclusion.text, name, factor, conclusion.margin(machine, other))
