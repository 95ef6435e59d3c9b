"""The page: prose from page.md, tables from records, and why a cell missed its goal from reasons.toml."""

import sys
from pathlib import Path

from versus_lib import report

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
TEXT, REASONS = HERE / "page.md", HERE / "reasons.toml"
LARGE = 1 << 20
REDUCTIONS = ("all_reduce", "reduce_scatter")
ONE_WAY_US = 0.5        # of 8 B by sendrecv
FIELDS = {"op", "bytes", "n", "text"}


def goal(op, nbytes):
    """The ratio to the best peer that a cell is to reach."""
    return 1.5 if op in REDUCTIONS and nbytes >= LARGE else 1.0


def missed(cell, peers):
    """What a cell has missed, as text, or None."""
    ratio, best, found = cell.ratio(peers), cell.best(report.ours(cell.us)), []
    if ratio is not None and ratio < goal(cell.op, cell.bytes):
        found.append(f"{ratio:.2f} of the best peer, goal {goal(cell.op, cell.bytes):g}")
    if cell.op == "sendrecv" and cell.bytes == 8 and best and best[1] >= ONE_WAY_US:
        found.append(f"{best[1]:.2f} us one way, goal below {ONE_WAY_US:g}")
    return "; ".join(found) or None


def reasons(path=REASONS):
    """Entries of the file of reasons. ValueError for what is none."""
    found = tomllib.loads(path.read_text()).get("reason", [])
    for entry in found:
        if not set(entry) <= FIELDS or not {"op", "text"} <= set(entry):
            raise ValueError(f"{path.name}: a reason has op and text, and may have bytes and n (lists): {entry}")
    return found


def reason(cell, entries):
    """The first entry that is about a cell, or None."""
    return next((e for e in entries if e["op"] in (cell.op, "all") and cell.bytes in e.get("bytes", [cell.bytes])
                 and cell.n in e.get("n", [cell.n])), None)


def grid(head, rows, right="---:"):
    """Lines of a Markdown table; all columns but the first are to the right, unless told."""
    return ["| " + " | ".join(head) + " |", "|" + "|".join(["---"] + [right] * (len(head) - 1)) + "|",
            *("| " + " | ".join(row) + " |" for row in rows)]


def table(op, found, peers, limits):
    """Lines: every size and n of an operation."""
    head = ["n, size", "limit, us", "strata, us", "of limit", "by", "best peer, us", "by", "ratio", "of the rounds"]
    rows = []
    for cell in (c for c in found.values() if c.op == op):
        mine, theirs, ratios = cell.best(report.ours(cell.us)), cell.best(peers), cell.ratios(peers)
        least = limits.cell_us(cell.op, cell.bytes, cell.n) if limits else None
        part = report.of_limit(cell, limits) if limits else None
        ratio = f"{cell.ratio(peers):.2f}" if ratios else "-"
        rows.append([f"{cell.n}" + (f", {report.size_name(cell.bytes)}" if cell.bytes else ""), report.number(least),
                     report.number(mine and mine[1]), report.percent(part), mine[0] if mine else "-",
                     report.number(theirs and theirs[1]), theirs[0] if theirs else "-",
                     f"**{ratio}**" if missed(cell, peers) else ratio,
                     f"{min(ratios):.2f} .. {max(ratios):.2f}" if ratios else "-"])
    return grid(head, rows)


def lost(found, peers, limits, entries):
    """(lines about all cells that missed their goals, entries that are about none of them)."""
    rows, used = [], []
    for cell in found.values():
        if what := missed(cell, peers):
            entry = reason(cell, entries)
            used.append(entry)
            size = f" {report.size_name(cell.bytes)}" if cell.bytes else ""
            part = report.percent(report.of_limit(cell, limits) if limits else None)
            rows.append([f"{cell.op}{size}, n = {cell.n}", what, part, entry["text"] if entry else "not known yet"])
    stale = [e for e in entries if not any(e is u for u in used)]
    return (grid(["cell", "missed", "of limit", "limited by"], rows, "---") if rows else ["None."]), stale


def machine_limits(limits):
    """Lines: what limits.c found."""
    if not limits:
        return ["The machine's limits were not measured in this run."]
    sizes = sorted({size for curve in limits.rates.values() for size in curve})
    kinds = sorted(limits.rates)
    rows = [[report.size_name(s), *(f"{limits.rates[k][s]:.1f}" if s in limits.rates[k] else "-" for k in kinds)]
            for s in sizes]
    lines = grid(["bytes of a core", *(f"{what}, {cores} core{'s' * (cores > 1)}" for what, cores in kinds)], rows)
    line = f"{limits.line_us:.3f} us" if limits.line_us else "one CPU, none"
    return ["GB/s, read plus written, of all cores together:", "", *lines, "",
            f"Round trips: a cache line between two cores {line}, "
            f"`sched_yield` on one core {limits.yield_one_us:.2f} us."]


def fill(text, parts):
    """The text, each line ``<!-- NAME -->`` followed by the lines of that part."""
    out = []
    for line in text.splitlines():
        name = line.removeprefix("<!-- ").removesuffix(" -->")
        out += parts.pop(name) if line != name and name in parts else [line]
    if parts:
        raise ValueError(f"{TEXT.name} has no place for {', '.join(parts)}")
    return "\n".join(out) + "\n"
