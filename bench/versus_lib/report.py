"""From records to figures: best peer per cell, ratios, tables, the list of lost cells."""

import statistics

from bench_lib.machine import machine  # noqa: F401  (bench/faults.py takes it from here)
from bench_lib.noise import geometric_mean

STRATA = "strata"


def size_name(nbytes):
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale and nbytes % scale == 0:
            return f"{nbytes // scale} {unit}"
    return f"{nbytes} B" if nbytes else "-"


def library(contender):
    return contender.split(":")[0]


class Cell:
    """All rounds of one operation at one size and n."""

    def __init__(self, op, nbytes, n):
        self.op, self.bytes, self.n = op, nbytes, n
        self.us = {}            # contender -> {round: us}; answers that were wrong are left out

    def add(self, record, stat):
        if not record["wrong"]:
            self.us.setdefault(record["contender"], {})[record["round"]] = record[stat]

    def median(self, contender):
        rounds = self.us.get(contender)
        return statistics.median(rounds.values()) if rounds else None

    def best(self, peers):
        """(contender, us) of the peer with the lowest median over the rounds, or None."""
        found = [(self.median(p), p) for p in peers if p in self.us]
        return min(found)[::-1] if found else None

    def ratios(self, peers):
        """Per round: best peer of that round / strata. Above 1, strata is faster."""
        out = []
        for number, mine in sorted(self.us.get(STRATA, {}).items()):
            theirs = [self.us[p][number] for p in peers if number in self.us.get(p, {})]
            if theirs and mine > 0:
                out.append(min(theirs) / mine)
        return out

    def ratio(self, peers):
        ratios = self.ratios(peers)
        return statistics.median(ratios) if ratios else None


def collect(records, stat="us"):
    """{(op, bytes, n): Cell} in the order measured. `stat`: us (median) or us_mean."""
    cells = {}
    for record in records:
        key = (record["op"], record["bytes"], record["n"])
        cells.setdefault(key, Cell(*key)).add(record, stat)
    return cells


def contenders_of(records):
    return list(dict.fromkeys(r["contender"] for r in records))


def number(value):
    """A time in at most 7 characters with three significant digits or more."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def table(op, cells, names, peers):
    """Lines of one operation's table: us per contender, best peer, ratio with its range."""
    rows = [c for c in cells.values() if c.op == op]
    if not rows:
        return []
    widths = [max(9, len(name)) for name in names]
    versus = STRATA in names and peers
    meaning = "; ratio = best peer / strata, above 1 strata is faster" if versus else ""
    lines = [f"{op}, float32, us per call{meaning}",
             f"{'n':>3} {'size':>8}  " + "  ".join(f"{n:>{w}}" for n, w in zip(names, widths, strict=True))
             + f"  {'best peer':>12}" + (f"  {'ratio':>6}  {'rounds':>13}" if versus else "")]
    for cell in rows:
        best = cell.best(peers)
        line = f"{cell.n:>3} {size_name(cell.bytes):>8}  " + "  ".join(
            f"{number(cell.median(n)):>{w}}" for n, w in zip(names, widths, strict=True))
        line += f"  {best[0] if best else '-':>12}"
        ratios = cell.ratios(peers)
        if ratios:
            line += f"  {statistics.median(ratios):>6.2f}  {min(ratios):>5.2f} .. {max(ratios):.2f}"
        lines.append(line)
    return lines


def summary(cells, peers, below=0.8):
    """Geometric means and the cells that are lost, as a dict."""
    rated = [(cell, cell.ratio(peers)) for cell in cells.values()]
    rated = [(cell, ratio) for cell, ratio in rated if ratio is not None]

    def mean(keep):
        return geometric_mean([ratio for cell, ratio in rated if keep(cell)])

    return {
        "cells": len(rated),
        "geometric_mean": mean(lambda c: True),
        "by_n": {n: mean(lambda c, n=n: c.n == n) for n in dict.fromkeys(c.n for c, _ in rated)},
        "by_op": {op: mean(lambda c, op=op: c.op == op) for op in dict.fromkeys(c.op for c, _ in rated)},
        "below": below,
        "lost": [{"op": c.op, "bytes": c.bytes, "n": c.n, "ratio": r, "best": c.best(peers)[0]}
                 for c, r in sorted(rated, key=lambda pair: pair[1]) if r < below],
        "behind": sum(r < 1.0 for _, r in rated),
    }


def summary_lines(figures, stat):
    if not figures["cells"]:
        return ["no ratios: strata or every peer is missing"]
    lines = [f"geometric mean of {figures['cells']} ratios ({stat}): {figures['geometric_mean']:.3f}"]
    lines += ["  by n:  " + ", ".join(f"{n}: {v:.2f}" for n, v in figures["by_n"].items()),
              "  by op: " + ", ".join(f"{op}: {v:.2f}" for op, v in figures["by_op"].items()),
              f"cells below 1.0: {figures['behind']}; below {figures['below']}: {len(figures['lost'])}"]
    lines += [f"  {c['op']} {size_name(c['bytes'])}, n = {c['n']}: {c['ratio']:.2f} of {c['best']} | reason:"
              for c in figures["lost"]]
    return lines


def machine_lines(records):
    """What a run was taken on, who took part under which settings, who was missing."""
    info = next(r for r in records if r["record"] == "machine")
    about = {r["contender"]: r["about"] for r in records if r["record"] == "cell"}
    lines = [f"{info['cores']} cores of {info['cpu']}, {info['memory_GiB']} GiB, "
             f"/dev/shm {info['shm_GiB']} GiB, Linux {info['kernel']}, Python {info['python']}, "
             f"commit {info['commit']}, load before the run {info['load_before']:.1f}"]
    for name, env in info["settings"].items():
        setting = f"  [{' '.join(f'{k}={v}' for k, v in env.items())}]" if env else ""
        lines.append(f"  {name}: {about.get(name, 'took part in no cell')}{setting}")
    lines += [f"  {name} skipped: {why}" for name, why in info["skipped"]]
    return lines
