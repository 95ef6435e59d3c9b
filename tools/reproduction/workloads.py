"""Whole workloads: inference, training and recommendation, by library, registration, partition and path."""

from __future__ import annotations

import functools

from reproduction.claims import PREDICTED, Claim

from strata.machine import Machine
from strata.workloads import Row, load, names

WHY = {
    "dsv4_flash": "the steps are in order, and too small: exchanges are as fast as the paper's own table has them, but "
    "if they are at most 40 % of the time, as it says too, and become 1.7 times as fast, 1.2 is all that comes of it; "
    "the rest of its gain is in something that it does not describe (docs/workloads.md)",
    "b200_inference": "every dynamic buffer counts as new, and is mapped by each peer in turn, at 100 us that are "
    "assumed (docs/workloads.md)",
    "dsv32_training": "zero-copy gains more here than it is published to; how much of its step HCCL exposes is not "
    "published",
    "dlrm": "the paper names no sizes; they are MLPerf's here, and a quarter of the batch makes the gain 2.3 "
    "(docs/workloads.md)",
}


STEPS = ("HCCL", "+ registration just in time", "+ registration on allocation", "+ balanced partition", "+ SDMA")


@functools.lru_cache(64)
def _rows(name: str, machine: Machine | None) -> dict[str, Row]:
    return {row.name: row for row in load(name).ablation(machine)}


def _ours(name: str, row: str, own: str) -> object:
    """On the machine at hand where the workload is that machine's, else on the workload's own."""

    def ours(machine: Machine) -> float:
        return _rows(name, machine if machine.name == own else None)[row].predicted

    return ours


def in_order(machine: Machine) -> float:
    """Steps of the inference ablation that are ahead of the one before; one more if zero-copy is where it is published,
    behind registration on allocation and ahead of just in time."""
    rows = _rows("dsv4_flash", machine if machine.name == "cm384" else None)
    found = [rows[name].predicted for name in STEPS]
    ahead = sum(after > before for before, after in zip(found, found[1:], strict=False))
    return float(ahead + (found[1] < rows["zero-copy"].predicted < found[2]))


def exposed(name: str, machine: Machine) -> float:
    """Per cent of a step, with HCCL, in which nothing is computed."""
    report = _rows(name, machine if machine.name == "cm384" else None)["HCCL"].report
    return 100 * report.exposed_us / report.step_us


CLAIMS = [
    Claim("1, motivation", "communication's share of inference", (10.0, 40.0), "%", PREDICTED,
          lambda m: exposed("dsv4_flash", m)),
    Claim("1, motivation", "communication's share of training", (30.0, 45.0), "%", PREDICTED,
          lambda m: exposed("dsv32_training", m)),
    Claim("6, applications", "inference on 192 dies: steps of the ablation in order, zero-copy among them", 5.0, "",
          PREDICTED, in_order),
]
CLAIMS += [
    Claim("6, applications", f"{load(name).description.title}: {p.name}, throughput against {p.against}", p.ratio, "x",
          PREDICTED, _ours(name, p.name, load(name).description.machine), WHY.get(name, ""))
    for name in names()
    for p in load(name).description.published
    if p.name != p.against
]  # fmt: skip
