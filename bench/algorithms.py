#!/usr/bin/env python3
"""Which algorithm is fastest here, by operation and size, and how much does the library's choice lose?

Every algorithm that can do an operation is timed at every size, on two and more dies, one after the
other in an order that changes, baselines and the atomic path as well. Then the same once more: the first
half is what ``strata tune`` would have written, the second is what counts. *Regret* is how much slower
the chosen algorithm is than the best one in the second half; by the cost model alone, and by the table.
What the best of the first half loses in the second by chance is in both.

    bench/algorithms.py                                   # all operations, 1 KiB to 16 MiB, 2, 4, 8 dies
    bench/algorithms.py --ops all_reduce broadcast -n 4 -b 64K -e 64M -f 4 --picture algorithms.png
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from bench_lib.lines import Kind, write

import strata
from strata import tuning
from strata.config import parse_size
from strata.plan.select import Ask, Settings, choose
from strata.plan.table import Table

KINDS = {"time": Kind(("operation", "dies", "bytes", "algorithm"), less=("us",)),
         "choice": Kind(("operation", "dies", "bytes"))}
Cells = dict[tuple[str, int, int], dict[str, float]]  # (operation, dies, bytes of a part) -> us by algorithm


def measure(ops: list[str], dies: Iterable[int], sizes: list[int], rounds: int, seconds: float, seed: int) -> Cells:
    """Every algorithm in every cell."""
    rows = []
    for n in dies:
        rows += strata.spawn(tuning.measure, n, sizes, ops, rounds, seconds, seed, False)[0]
    return {tuple(row[:3]): row[3] for row in rows}


def chosen(cell: tuple[str, int, int], settings: Settings) -> str:
    """What the library takes, mailboxes apart."""
    return choose(tuning.spec_of(*cell), Ask(), settings).algorithm.name


def regrets(first: Cells, second: Cells) -> list[dict]:
    """Per cell: the best, and what the model's and the table's choices lose against it."""
    table = Settings(table=Table("the first half", [(*cell, us) for cell, us in first.items()]))
    rows = []
    for cell, us in second.items():
        free = {name: t for name, t in us.items() if name in first[cell]}
        best = min(free, key=lambda name: free[name])
        row = {"operation": cell[0], "dies": cell[1], "bytes": cell[2], "best": best, "us": us}
        for kind, settings in (("model", Settings()), ("table", table)):
            name = chosen(cell, settings)
            row[kind], row[f"{kind}_regret"] = name, us[name] / us[best] - 1
        rows.append(row)
    return rows


def human(nbytes: int) -> str:
    """A size with its unit, two digits at least."""
    for unit, scale in (("M", 1 << 20), ("K", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.4g}{unit}"
    return str(nbytes)


def report(rows: list[dict]) -> str:
    """A table for each operation and number of dies, and the regrets."""
    lines = []
    for operation, n in dict.fromkeys((r["operation"], r["dies"]) for r in rows):
        mine = [r for r in rows if (r["operation"], r["dies"]) == (operation, n)]
        names = list(dict.fromkeys(name for r in mine for name in r["us"]))
        lines += ["", f"{operation}, {n} dies: us", f"{'bytes':>8} " + " ".join(f"{name:>17}" for name in names)
                  + "   model (regret)        table (regret)"]
        for r in mine:
            cells = [f"{r['us'][name]:.1f}" + " *"[name == r["best"]] if name in r["us"] else "-" for name in names]
            says = [f"{r[k]} {r[f'{k}_regret']:+.0%}" for k in ("model", "table")]
            times = " ".join(f"{c:>17}" for c in cells)
            lines.append(f"{human(r['bytes']):>8} {times}   {says[0]:21} {says[1]}")
    lines.append("")
    for kind in ("model", "table"):
        lost = sorted(r[f"{kind}_regret"] for r in rows)
        lines.append(f"regret by the {kind}: median {statistics.median(lost):.1%}, 90 % of cells below "
                     f"{lost[int(0.9 * (len(lost) - 1))]:.1%}, worst {lost[-1]:.0%}; {len(lost)} cells")
    return "\n".join(lines)


def lines(rows: list[dict]) -> list[dict]:
    """A record for each time, and one for what was chosen in each cell."""
    found = []
    for row in rows:
        cell = {name: row[name] for name in ("operation", "dies", "bytes")}
        found += [{"record": "time", **cell, "algorithm": name, "us": us} for name, us in row["us"].items()]
        found.append({"record": "choice", **{name: value for name, value in row.items() if name != "us"}})
    return found


def picture(rows: list[dict], file: Path) -> None:
    """Time over size, a panel for each operation, at the most dies."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    n = max(r["dies"] for r in rows)
    operations = list(dict.fromkeys(r["operation"] for r in rows))
    columns = min(len(operations), 4)
    lines = -(-len(operations) // columns)
    figure, panels = pyplot.subplots(lines, columns, figsize=(4.5 * columns, 3.6 * lines), squeeze=False)
    names = list(dict.fromkeys(name for r in rows for name in r["us"]))
    colours = dict(zip(names, pyplot.get_cmap("tab20")(np.linspace(0, 1, max(len(names), 2))), strict=False))
    for panel in panels.flat[len(operations):]:
        panel.set_visible(False)
    for panel, operation in zip(panels.flat, operations, strict=False):
        mine = [r for r in rows if r["operation"] == operation and r["dies"] == n]
        for name in names:
            points = [(r["bytes"], r["us"][name]) for r in mine if name in r["us"]]
            if points:
                panel.loglog(*zip(*points, strict=True), marker=".", label=name, color=colours[name])
        panel.set(title=operation, xlabel="bytes of a part", ylabel="us")
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7)
    figure.suptitle(f"{n} dies on this host; medians")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main(argv: list[str]) -> int:
    """Measures, prints, writes what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="+", default=list(tuning.OPERATIONS), choices=tuning.OPERATIONS, metavar="OP")
    parser.add_argument("-n", "--dies", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("-b", "--begin", type=parse_size, default=1 << 10, help="of a member's largest array")
    parser.add_argument("-e", "--end", type=parse_size, default=16 << 20)
    parser.add_argument("-f", "--factor", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.02, help="of a round")
    parser.add_argument("--json", metavar="FILE", help="all figures, one JSON object a line")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args(argv)
    sizes = tuning.sizes(options.begin, options.end, options.factor)
    halves = [measure(options.ops, options.dies, sizes, options.rounds, options.seconds, seed) for seed in (0, 1)]
    rows = regrets(*halves)
    print(report(rows))
    write(options.json, "algorithms", KINDS, lines(rows))
    if options.picture:
        picture(rows, options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
