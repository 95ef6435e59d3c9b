"""Rows as text: nccl-tests' columns, variants side by side, and where the time went."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from strata.cli.sim.cases import Case, Variant
from strata.machine import Machine

NOTES = {
    "launch": "by the host, and the wait for a call", "opening": "until all have arrived and this die knows",
    "flags": "waiting for other dies' flags", "submission": "descriptors are built and submitted",
    "issue": "the core's own time for each unit", "latency": "distance, with nothing flowing",
    "transfer": "at the core's own rate", "idle": "other cores of the die still work",
    "closing": "until all are done and this die knows",
}  # fmt: skip


def fit(value: float, width: int) -> str:
    """With as many decimals, two at most, as fit."""
    for decimals in (2, 1, 0):
        text = f"{value:{width}.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.1e}"


def header(machines: list[tuple[str, Machine]], total: bool) -> str:
    """What is above the rows; each machine with the name or file that was asked for."""
    lines = [f"# predicted on machine {asked} ({m.caption}), not measured" for asked, m in machines]
    what = "the largest array of a rank" if total else "each rank's source"
    lines.append(f"# size: {what}; algbw: bytes of the largest array of a rank by time, as nccl-tests has it")
    names = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "algorithm", "path", "cores", "ranks")
    units = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "", "", "")
    return "\n".join([*lines, "#", _cells("#", names) + "  machine", _cells("#", units).rstrip()])


def _cells(first: str, cells: Iterable[str]) -> str:
    size, count, kind, redop, root, time, algbw, busbw, algorithm, path, cores, ranks = cells
    lead = f"{first}{size:>12}  {count:>12}  {kind:>8}  {redop:>6}  {root:>6}"
    return f"{lead}  {time:>9}  {algbw:>7}  {busbw:>7}  {algorithm:>17}  {path:>4}  {cores:>5}  {ranks:>5}"


def line(row: dict[str, Any]) -> str:
    """A row."""
    made = (str(row["size"]), str(row["count"]), row["type"], row["redop"], str(row["root"]), fit(row["time_us"], 9),
            fit(row["algbw_GBps"], 7), fit(row["busbw_GBps"], 7), row["algorithm"], row["path"], str(row["cores"]),
            str(row["ranks"]))  # fmt: skip
    note = f"  (units x{row['enlarged']})" if row["enlarged"] > 1 else ""
    return f"{_cells(' ', made)}  {row['machine']}{note}"


def refused(case: Case, why: str) -> str:
    """Instead of a row that there is not."""
    v = case.variant
    return f"# {v.operation} {case.nbytes} B, {v.ranks} ranks, {v.label([v])}: {why}"


def footer(rows: list[dict[str, Any]]) -> str:
    """What is below them."""
    mean = sum(row["busbw_GBps"] for row in rows) / len(rows)
    return f"# Avg bus bandwidth    : {mean:g}"


def comparison(rows: list[tuple[Case, dict[str, Any]]]) -> str:
    """Sizes by variants: times, and how many times as long as the first variant each of the others takes."""
    variants: list[Variant] = list(dict.fromkeys(case.variant for case, _ in rows))
    labels = [v.label(variants) for v in variants]
    found = {(case.variant, row["size"]): row["time_us"] for case, row in rows}
    table = [["size", *labels, *(f"/ {labels[0]}" for _ in labels[1:]), "fastest"],
             ["(B)", *("(us)" for _ in labels), *(f"{label}" for label in labels[1:]), ""]]  # fmt: skip
    for size in sorted({row["size"] for _, row in rows}):
        times = [found.get((v, size)) for v in variants]
        first = times[0]
        ratios = ["-" if t is None or not first else f"{t / first:.3f}" for t in times[1:]]
        best = min((t, i) for i, t in enumerate(times) if t is not None)[1]
        table.append([str(size), *("-" if t is None else fit(t, 9).strip() for t in times), *ratios, labels[best]])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(f"{cell:>{w}}" for cell, w in zip(cells, widths, strict=True)).rstrip() for cells in table]
    lead = ["# "] * 2 + ["  "] * (len(lines) - 2)
    return "\n".join(a + b for a, b in zip(lead, lines, strict=True))


def explanation(row: dict[str, Any]) -> str:
    """Where a row's time went: of the core that was done last, and on average of all that had something to do."""
    head = f"{row['operation']} {row['size']} B, {row['ranks']} ranks, {row['algorithm']} {row['path']}"
    lines = [f"# {head}: {row['time_us']:.3f} us", f"#   {'':12} {'last core':>12} {'':>8} {'mean':>12}"]
    critical, mean = row["explain"]["critical"], row["explain"]["mean"]
    for name, us in critical.items():
        if max(us, mean[name]) >= 0.0005:
            note = NOTES.get(name) or f"ports that others use too, {name.removeprefix('port_')} units"
            share = 100 * us / row["time_us"] if row["time_us"] else 0.0
            lines.append(f"#   {name:12} {us:9.3f} us {share:6.1f} % {mean[name]:9.3f} us  {note}")
    lines.append(f"#   {'all':12} {sum(critical.values()):9.3f} us {'':8} {sum(mean.values()):9.3f} us")
    lines += [f"#   why: {text}" for text in row["why"]]
    if len(row["candidates"]) > 1:
        lines.append("#   candidates: " + ", ".join(f"{name} {us:.1f} us" for name, us in row["candidates"].items()))
    return "\n".join(lines)
