"""Writes docs/workloads.md: the tables of published and predicted ratios, what they hang on, and all assumptions.

    python tools/workloads_page.py [--check]

``--check`` compares the tables of assumptions alone, which takes no time; status 1 if the page has others.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from strata import workloads  # noqa: E402
from strata.machine import GRADES, load  # noqa: E402
from strata.workloads import text  # noqa: E402

PAGE = ROOT / "docs" / "workloads.md"
HEAD = ROOT / "tools" / "workloads_page.md"
ORDER = ("dsv4_flash", "b200_inference", "dsv32_training", "dlrm")
SLOW_MAPS = load("cm384").replace(**{"registration.map_us": 30.0})
# StrataCL's table of MoE exchanges, EP32, high throughput: GB/s of dispatch and of combine.
EXCHANGES = {"HCCL": (61, 61), "zero-copy": (98, 85), "+ balanced partition": (106, 93)}
# What each result hangs on: constants and switches that are changed, one set at a time.
VARIED: dict[str, list[tuple[str, dict[str, Any], dict[str, Any]]]] = {
    "dsv4_flash": [
        ("as described", {}, {}),
        ("two micro-batches take turns (two-batch overlap)", {"micro_batches": 2}, {}),
        ("nothing overlaps, shared experts neither", {}, {"overlap": False}),
        ("a mapping takes 30 us a peer", {}, {"machine": SLOW_MAPS}),
        ("a quarter of dynamic buffers new", {"new_share": 0.25}, {}),
        ("prefill on 128 dies, as decode", {"ep_prefill": 128}, {}),
        ("no barriers in exchanges, no kernels' starts", {"exchange_us": 0, "attention_start_us": 0,
                                                          "shared_start_us": 0, "experts_start_us": 0}, {}),
        ("prompts alone (few decode steps)", {"output_tokens": 1}, {}),
        ("8 experts a token of 7168, as StrataCL's exchanges",
         {"topk": 8, "hidden": 7168, "dispatch_bytes": 7680, "combine_bytes": 14336}, {}),
        ("experts more uneven (skew 0.5)", {"skew_prefill": 0.5, "skew_decode": 0.5}, {}),
        ("experts all alike (skew 0)", {"skew_prefill": 0, "skew_decode": 0}, {}),
    ],
    "dsv32_training": [
        ("as described", {}, {}),
        ("nothing overlaps", {}, {"overlap": False}),
        ("twice the tokens", {"tokens": 8192}, {}),
        ("nothing computed twice", {"recompute": 0}, {}),
    ],
    "dlrm": [
        ("as described", {}, {}),
        ("nothing overlaps", {}, {"overlap": False}),
        ("a quarter of the batch", {"batch": 1024}, {}),
        ("four times the batch", {"batch": 16384}, {}),
    ],
}  # fmt: skip


def assumptions(name: str) -> str:
    """A workload's constants as a table."""
    workload = workloads.load(name)
    return f"### {name}\n\n{text.markdown(text.assumption_rows(workload.assumptions()))}\n"


def results(name: str) -> str:
    """Published and predicted ratios, and how these change with what is assumed."""
    workload = workloads.load(name)
    rows = workload.ablation()
    title = f"### {name}: {workload.description.title}\n\nMachine `{workload.description.machine}`."
    own = workload.run(library="strata")
    base = rows[0].report
    made = [title, text.markdown(text.ablation_rows(rows)),
            f"With strata's own choice of algorithms, by cores: {own.rate / base.rate:.2f} against {rows[0].name}."]
    if name == "dsv4_flash":
        made += ["Rates of prefill's exchanges, GB/s that leave a die; published: StrataCL's table of exchanges, "
                 "4096 tokens, EP32:", text.markdown(exchanges(workload, rows))]  # fmt: skip
    if name in VARIED:
        table: list[list[Any]] = [["what is assumed", *(row.name for row in rows)],
                                  ["published", *(f"{row.published:.2f}" for row in rows)]]  # fmt: skip
        for what, constants, asked in VARIED[name]:
            found = workload.replace(**constants).ablation(**asked)
            table.append([what, *(f"{row.predicted:.2f}" for row in found)])
        made += ["What they hang on:", text.markdown(table)]
    return "\n\n".join(made) + "\n"


def exchanges(workload: workloads.Workload, rows: list[workloads.Row]) -> list[list[Any]]:
    """Prefill's dispatch and combine, published beside predicted; head first."""
    c = workload.description.constants
    sent = c.prompt_tokens / c.micro_batches * c.topk * (c.ep_prefill - 1) / c.ep_prefill
    table: list[list[Any]] = [["row", "dispatch, published", "predicted", "combine, published", "predicted"]]
    for row in rows:
        if row.name in EXCHANGES:
            us = [row.report.collectives[f"prefill: {what}"].us for what in ("dispatch", "combine")]
            rates = [f"{sent * b / u / 1e3:.0f}" for b, u in zip((c.dispatch_bytes, c.combine_bytes), us, strict=True)]
            dispatch, combine = EXCHANGES[row.name]
            table.append([row.name, dispatch, rates[0], combine, rates[1]])
    return table


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Writes docs/workloads.md.")
    parser.add_argument("--check", action="store_true", help="compare the tables of assumptions with the page's")
    tables = [assumptions(name) for name in ORDER]
    if parser.parse_args(argv).check:
        page = PAGE.read_text(encoding="utf-8")
        stale = [name for name, table in zip(ORDER, tables, strict=True) if table not in page]
        print(f"stale in {PAGE.name}: {', '.join(stale) or 'nothing'}")
        return 1 if stale else 0
    grades = "\n".join(f"* {grade}: {meaning}" for grade, meaning in GRADES.items())
    page = HEAD.read_text(encoding="utf-8")
    page = page.replace("@results@", "\n".join(results(name) for name in ORDER))
    PAGE.write_text(page.replace("@assumptions@", f"{grades}\n\n" + "\n".join(tables)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
