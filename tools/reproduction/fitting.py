"""Constants that are chosen so that published facts come out: one constant to one fact, in turn, by bisection.

| constant | fact |
|---|---|
| tier.*.core_gbps | 24 of 48 cores reach 95 % of what one peer gives |
| fanout.loss | ring is ahead from 16 MiB on |
| sync.poll_us | ring / full mesh is 4.5 at 64 KiB |
| sdma.descriptor_us | submission of 32 ranks x 128 MiB takes 90 us |
| core.row_us | CANN EP on 8 dies: dispatch 116 us, combine 118, both by as much |

``fanout.backlog_bytes`` is not fitted: it is the size of a unit (4 MiB), what a busy peer has queued.  That 77 % of
ring's time at 64 KiB is synchronisation has no constant of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from reproduction import moe, sharing, transfers
from reproduction.claims import KIB, MIB

from strata.machine import Machine
from strata.plan.records import TIER_NAMES


def _bisect(machine: Machine, name: str, low: float, high: float, aim: float, fact: Callable[[Machine], float],
            rising: bool, steps: int = 16) -> Machine:  # fmt: skip
    """The machine with the constant at which ``fact`` is ``aim``; what it does to the fact is known (``rising``)."""
    for _ in range(steps):
        middle = (low + high) / 2
        if (fact(machine.replace(**{name: middle})) < aim) == rising:
            low = middle
        else:
            high = middle
    return machine.replace(**{name: float(f"{(low + high) / 2:.3g}")})


def fit(machine: Machine) -> Machine:
    """The machine with these constants fitted, to three digits."""
    for tier in TIER_NAMES[1:]:
        rate = machine.constants()[f"tier.{tier}.read_gbps"]
        machine = machine.replace(**{f"tier.{tier}.core_gbps": float(f"{0.95 * rate / 24:.3g}")})
    for _ in range(2):  # each moves the other's fact a little
        machine = _bisect(machine, "fanout.loss", 0.0, 0.3, 1.0, lambda m: transfers.ahead(m, 16 * MIB), False)
        machine = _bisect(machine, "sync.poll_us", 0.0, 4.0, 4.5, lambda m: transfers.ahead(m, 64 * KIB), True)
    machine = _bisect(machine, "sdma.descriptor_us", 0.1, 4.0, 90.0, sharing.submission_us, True)
    return _bisect(machine, "core.row_us", 0.0, 10.0, 1.0, moe.of_eight, True)


FITTED = (*(f"tier.{t}.core_gbps" for t in TIER_NAMES[1:]), "fanout.loss", "sync.poll_us", "sdma.descriptor_us",
          "core.row_us")  # fmt: skip
