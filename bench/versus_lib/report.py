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


def ours(names):
    """strata under all its settings."""
    return [name for name in names if library(name) == STRATA]


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
        """(contender, us) of the one with the lowest median over the rounds, or None."""
        found = [(self.median(p), p) for p in peers if p in self.us]
        return min(found)[::-1] if found else None

    def ratios(self, peers):
        """Per round: best peer of that round / strata's best setting of it. Above 1, strata is faster."""
        mine, theirs = self._fastest(ours(self.us)), self._fastest(peers)
        return [theirs[number] / us for number, us in sorted(mine.items()) if number in theirs and us > 0]

    def _fastest(self, contenders):
        """{round: us} of whichever was fastest in it."""
        found = {}
        for contender in contenders:
            for number, us in self.us.get(contender, {}).items():
                found[number] = min(us, found.get(number, us))
        return found

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


def table(op, cells, names, peers, limits=None):
    """Lines of one operation's table: us per contender, best peer, ratio with its range, and the machine's limit."""
    rows = [c for c in cells.values() if c.op == op]
    if not rows:
        return []
    widths = [max(9, len(name)) for name in names]
    mine = ours(names)
    wide = max(map(len, mine), default=0) if len(mine) > 1 else 0
    versus = bool(mine and peers)
    meaning = "; ratio = best peer / best of strata, above 1 strata is faster" if versus else ""
    what = "half a round trip" if op == "sendrecv" else "call"
    lines = [f"{op}, float32, us per {what}{meaning}",
             f"{'n':>3} {'size':>8}  " + "  ".join(f"{n:>{w}}" for n, w in zip(names, widths, strict=True))
             + (f"  {'strata by':>{wide}}" if wide else "") + f"  {'best peer':>14}"
             + (f"  {'ratio':>6}  {'rounds':>15}" if versus else "") + (f"  {'limit':>7}  of limit" if limits else "")]
    for cell in rows:
        line = f"{cell.n:>3} {size_name(cell.bytes):>8}  " + "  ".join(
            f"{number(cell.median(n)):>{w}}" for n, w in zip(names, widths, strict=True))
        if wide:
            line += f"  {(cell.best(mine) or '-')[0]:>{wide}}"
        line += f"  {(cell.best(peers) or '-')[0]:>14}"
        ratios = cell.ratios(peers)
        if ratios:
            span = f"{min(ratios):.2f} .. {max(ratios):.2f}"
            line += f"  {statistics.median(ratios):>6.2f}  {span:>15}"
        elif versus:
            line += f"  {'-':>6}  {'-':>15}"
        if limits:
            line += f"  {number(limits.cell_us(cell.op, cell.bytes, cell.n)):>7}  {percent(of_limit(cell, limits)):>8}"
        lines.append(line)
    return lines


def percent(part):
    return "-" if part is None else f"{100 * part:.0f} %"


def of_limit(cell, limits):
    """The machine's least time over that of strata's best setting, by its median; None if either is missing."""
    best = cell.best(ours(cell.us))
    least = limits.cell_us(cell.op, cell.bytes, cell.n)
    return least / best[1] if best and best[1] > 0 and least else None


def above(cells, limits):
    """A line if strata was faster than the limit that was found, which then is none; else no line."""
    count = sum((of_limit(c, limits) or 0) > 1.05 for c in cells.values()) if limits else 0
    return [f"{count} cells are above their limit: the machine was too busy to show what it can do. Those figures "
            "of limits mean nothing; measure again on an idle machine"] if count else []


def summary(cells, peers, limits=None, below=1.0):
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
        "of_limit": geometric_mean([part for cell in cells.values() if limits
                                    if (part := of_limit(cell, limits)) is not None]),
    }


def summary_lines(figures, stat):
    if not figures["cells"]:
        return ["no ratios: strata or every peer is missing"]
    lines = [f"geometric mean of {figures['cells']} ratios ({stat}): {figures['geometric_mean']:.3f}"]
    lines += ["  by n:  " + ", ".join(f"{n}: {v:.2f}" for n, v in figures["by_n"].items()),
              "  by op: " + ", ".join(f"{op}: {v:.2f}" for op, v in figures["by_op"].items()),
              f"cells below {figures['below']:g}: {len(figures['lost'])}"]
    if figures["of_limit"] is not None:
        lines.insert(3, f"  of the machine's limit, by medians: {percent(figures['of_limit'])}")
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
