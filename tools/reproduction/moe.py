"""MoE dispatch and combine by ``strata.moe.simulate``: CANN's latencies, and EP32 in three systems.

Hidden 7168, top-8 of 256 experts, uniform routing drawn by a seed, all cores of a die.

* CANN EP, 128 tokens, 8 and 256 dies: int8 on the way out, bf16 back; its cores share rows evenly, as its source does
  (hicann/ops-transformer, moe_distribute_dispatch_v2).  8 dies are what ``core.row_us`` is fitted to.
* EP32, bf16: 4096 tokens a die in high throughput; 128 in low latency, which is not published.  Bus bandwidth counts a
  die's rows that leave it.
"""

from __future__ import annotations

import functools

from reproduction.claims import FITTED, PREDICTED, Claim

from strata.machine import Machine
from strata.moe import simulate

TOKENS = {"HT": 4096, "LL": 128}
MODES = {"HT": "high_throughput", "LL": "low_latency"}
SYSTEMS = {"HCCL": "staged", "CANN EP zero-copy": "zerocopy", "StrataCL": "strata"}
SEED = 32


@functools.lru_cache(256)
def bus(machine: Machine, mode: str, phase: str, system: str) -> float:
    """GB/s of a die's rows that leave it, by the slowest die of 32."""
    return simulate(phase, MODES[mode], 32, TOKENS[mode], machine=machine, system=SYSTEMS[system],
                    seed=SEED).busbw_GBps  # fmt: skip


@functools.lru_cache(64)
def cann_us(machine: Machine, dies: int, phase: str) -> float:
    """Of CANN EP, 128 tokens."""
    return simulate(phase, MODES["LL"], dies, 128, machine=machine, system="zerocopy", partition="balanced",
                    quant="int8" if phase == "dispatch" else None, seed=SEED).time_us  # fmt: skip


CANN = {8: {"dispatch": 116.0, "combine": 118.0}, 256: {"dispatch": 152.0, "combine": 149.0}}


def of_eight(machine: Machine) -> float:
    """On 8 dies, dispatch and combine by what is published: the mean."""
    return sum(cann_us(machine, 8, phase) / us for phase, us in CANN[8].items()) / 2


PUBLISHED = {
    "HCCL": (61, 61, 50, 55),
    "CANN EP zero-copy": (98, 85, 61, 68),
    "StrataCL": (106, 93, 82, 79),
}
CASES = (("HT", "dispatch"), ("HT", "combine"), ("LL", "dispatch"), ("LL", "combine"))
COMBINE = (
    "combine pulls: each row is handled once, by the core that adds it up, and adding costs nothing beyond its bytes. "
    "CANN's experts push rows, and the token's die reads them once more to add them up"
)
BATCH = "how many tokens a die had in low latency is not published: with 64 in place of 128, 81 GB/s would come out"
PEERS = (
    "each peer has cores of its own, one or two of 48 on 32 peers, and who has two is done in half the time; if cores "
    "share rows evenly, as in CANN's sources, zero-copy is at 106 GB/s in high throughput"
)


def _why(system: str, mode: str, phase: str) -> str:
    if phase == "combine":
        return COMBINE
    return BATCH if system == "StrataCL" else PEERS


def _claim(system: str, mode: str, phase: str, published: float) -> Claim:
    return Claim("6, MoE", f"EP32 {mode} {phase}, {system}", published, "GB/s", PREDICTED,
                 lambda m: bus(m, mode, phase, system), _why(system, mode, phase))  # fmt: skip


def _latency(dies: int, phase: str, us: float) -> Claim:
    return Claim("arXiv 2506.12708", f"CANN EP{dies} {phase}, 128 tokens", us, "us",
                 FITTED if dies == 8 else PREDICTED, lambda m: cann_us(m, dies, phase))  # fmt: skip


def in_order(machine: Machine) -> float:
    """Columns of the table in which the systems are in the published order."""
    found = [[bus(machine, mode, phase, system) for system in PUBLISHED] for mode, phase in CASES]
    return float(sum(row == sorted(row) for row in found))


CLAIMS = [
    _claim(system, mode, phase, figures[i])
    for system, figures in PUBLISHED.items()
    for i, (mode, phase) in enumerate(CASES)
]
CLAIMS.append(Claim("6, MoE", "columns in which the three systems are in order", 4.0, "", PREDICTED, in_order))
CLAIMS += [_latency(dies, phase, us) for dies, phases in CANN.items() for phase, us in phases.items()]
