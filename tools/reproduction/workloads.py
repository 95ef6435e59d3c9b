"""Whole workloads: inference, training and recommendation, by library, registration, partition and path."""

from __future__ import annotations

import functools

from reproduction.claims import PREDICTED, Claim

from strata.machine import Machine
from strata.workloads import load, names

WHY = {
    "dsv4_flash": "overlap of two batches hides nearly all communication here, and what is hidden cannot be gained; "
    "without it communication is 40 % of a step, which caps any gain below 1.7 (docs/workloads.md)",
    "b200_inference": "every dynamic buffer counts as new, and is mapped by each peer in turn; with a quarter of them "
    "new, just in time costs little (docs/workloads.md)",
    "dsv32_training": "zero-copy gains more here than it is published to; how much of its step HCCL exposes is not "
    "published",
}


@functools.lru_cache(64)
def _rows(name: str, machine: Machine | None) -> dict[str, float]:
    return {row.name: row.predicted for row in load(name).ablation(machine)}


def _ours(name: str, row: str, own: str) -> object:
    """On the machine at hand where the workload is that machine's, else on the workload's own."""

    def ours(machine: Machine) -> float:
        return _rows(name, machine if machine.name == own else None)[row]

    return ours


CLAIMS = [
    Claim("6, applications", f"{load(name).description.title}: {p.name}, throughput against {p.against}", p.ratio, "x",
          PREDICTED, _ours(name, p.name, load(name).description.machine), WHY.get(name, ""))
    for name in names()
    for p in load(name).description.published
    if p.name != p.against
]  # fmt: skip
