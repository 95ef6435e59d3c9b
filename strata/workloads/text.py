"""Reports as text, as tables of Markdown, and as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from strata.workloads.workload import Figures, Report, Row

GIB = 1 << 30


def columns(rows: Iterable[Sequence[Any]], left: int = 1) -> str:
    """Aligned columns, the first ``left`` of them to the left."""
    made = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(row[i]) for row in made) for i in range(len(made[0]))] if made else []
    signs = ["<" if i < left else ">" for i in range(len(widths))]
    lines = ("  ".join(f"{c:{s}{w}}" for c, s, w in zip(row, signs, widths, strict=True)) for row in made)
    return "\n".join(line.rstrip() for line in lines)


def markdown(rows: Sequence[Sequence[Any]]) -> str:
    """A table; the first row is its head."""
    head, *rest = [[_cell(value).replace("|", "\\|") for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rest))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) >= 1e6 or value.is_integer() else f"{value:.{3 if abs(value) < 10 else 1}f}"
    return str(value)


def ablation_rows(rows: Sequence[Row]) -> list[list[Any]]:
    """What is published beside what is predicted; head first."""
    head: list[Any] = ["row", "against", "published", "predicted", "predicted / published", "step, ms", "exposed"]
    return [head] + [[r.name, r.against, f"{r.published:.2f}", f"{r.predicted:.2f}", f"{r.predicted / r.published:.2f}",
                      f"{r.report.step_us / 1e3:.2f}", f"{r.report.exposed_us / r.report.step_us:.0%}"]
                     for r in rows]  # fmt: skip


def assumption_rows(assumptions: list[dict[str, Any]]) -> list[list[Any]]:
    """Constants with grade and source; head first."""
    return [["constant", "value", "grade", "source"],
            *([a["name"], a["value"], a["grade"], a["source"]] for a in assumptions)]  # fmt: skip


def breakdown(part: Figures) -> list[list[Any]]:
    """By item: how many, of one alone, of all, and how much others stretch them; head first."""
    rows: list[list[Any]] = [["item", "number", "alone, us", "all, us", "stretch"]]
    for name, (number, us, taken) in part.items.items():
        rows.append([name, number, f"{us:.1f}", f"{taken:.1f}", f"{taken / (number * us):.2f}" if us else "-"])
    return rows


def report(of: Report) -> str:
    """All of a report but its assumptions."""
    s = of.switches
    way = s.algorithm or "its own algorithms"
    lines = [f"{of.workload} on {of.machine}: {s.library}, {way}, registration {s.registration}, partition "
             f"{s.partition}, path {s.path}, overlap {'on' if s.overlap else 'off'}",
             f"predicted: {of.step_us:.1f} us a step, {of.rate:.6g} {of.unit}/s of a die", ""]  # fmt: skip
    head = ["part", "times", "step, us", "compute", "communication", "registration", "exposed", "overlapped"]
    rows = [[p.name, f"{p.times:.4g}", *(f"{v:.1f}" for v in (
        p.step_us, p.compute_us, p.communication_us, p.registration_us, p.exposed_us, p.overlapped_us))]
        for p in of.parts]  # fmt: skip
    lines += [columns([head, *rows]), ""]
    for part in of.parts:
        lines += [part.name, columns(breakdown(part)), ""]
    ways = [["collective, the last of each", "alone, us", "algorithm", "path", "cores", "window, us"]]
    ways += [[name, f"{p.us:.1f}", p.algorithm, p.path, str(p.cores), f"{p.window_us:g}"]
             for name, p in of.collectives.items()]  # fmt: skip
    lines += [columns(ways), ""]
    lines += [columns([["memory of a die", "GiB"], *([n, f"{v / GIB:.2f}"] for n, v in of.memory.items())])]
    return "\n".join([*lines, *of.notes])


def plain(of: Report) -> dict[str, Any]:
    """A report as what JSON has."""
    return {
        **{n: getattr(of, n) for n in ("workload", "machine", "step_us", "rate", "unit", "exposed_us", "overlapped_us",
                                       "registration_us", "compute_us", "communication_us", "memory")},
        "status": "predicted", "notes": list(of.notes), "switches": dataclasses.asdict(of.switches),
        "parts": [dataclasses.asdict(p) for p in of.parts],
        "collectives": {name: price._asdict() for name, price in of.collectives.items()},
        "assumptions": of.assumptions,
    }  # fmt: skip


def plain_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """An ablation as what JSON has; reports without their assumptions, which are all the same."""
    found = []
    for row in rows:
        report = plain(row.report)
        del report["assumptions"]
        found.append({**{f.name: getattr(row, f.name) for f in dataclasses.fields(row)}, "report": report})
    return found
