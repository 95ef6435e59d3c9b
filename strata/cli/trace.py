"""strata trace: what a trace says, of a real job or a simulated one: tables, pictures, and both side by side."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from strata.cli.sim.options import Parser, numbers
from strata.errors import InvalidArgument
from strata.profile import reading, tables
from strata.profile.pictures import KINDS, draw

EXAMPLES = """\
examples:
  strata-run -n 4 --trace out.json.gz prog.py        make one
  strata trace out.json.gz                           what matters most first, then all tables
  strata trace out.json.gz --op all_reduce --die 0,1
  strata trace out.json.gz --compare sim.json        beside what strata sim --trace predicts
  strata trace out.json.gz --plot out.svg --kind timeline --between 1000:2000
  strata trace naive.json --compare balanced.json --plot loads.png --kind cores
"""
WIDE = 118


def _between(word: str) -> tuple[float, float]:
    begin, sign, end = word.partition(":")
    try:
        found = float(begin or 0), float(end or "inf")
    except ValueError:
        found = (1.0, 0.0)
    if not sign or not 0 <= found[0] < found[1]:
        raise argparse.ArgumentTypeError(f"{word!r} is not FROM:TO, microseconds of the trace")
    return found


def _dies(word: str) -> list[int]:
    try:
        found = [int(part) for part in word.split(",")]
    except ValueError:
        found = [-1]
    if min(found) < 0:
        raise argparse.ArgumentTypeError(f"{word!r} is not numbers of dies with commas between")
    return found


def parser() -> Parser:
    """All arguments."""
    made = Parser(
        "strata trace", description="Says where the time of a traced job went, and who is to blame.", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    add = made.add_argument
    add("file", metavar="FILE", help="of strata-run --trace, strata sim --trace or strata.trace_dump: .json, .json.gz")
    add("--compare", metavar="OTHER", help="another trace beside it, by operation")
    add("--op", metavar="NAME", help="only calls of this operation")
    add("--die", type=_dies, metavar="R[,R]", help="only these dies; who is waited for needs all of them")
    add("--between", type=_between, metavar="FROM:TO", help="only this part of the time, microseconds of the trace")
    add("--top", type=numbers, default=[10], metavar="N", help="rows of each table (default 10)")
    add("--json", action="store_true", help="all tables as JSON")
    add("--plot", metavar="OUT", help="draw instead: .svg, .png or .pdf, by matplotlib")
    add("--kind", choices=KINDS, help="what is drawn (default timeline)")
    return made


def main(arguments: list[str]) -> int:
    """Exit status 0; errors are raised."""
    args = parser().parse_args(arguments)
    if args.kind and not args.plot:
        raise InvalidArgument(f"--kind {args.kind} says what --plot OUT draws, and there is no --plot")
    if len(args.top) != 1:
        raise InvalidArgument("--top takes one number")
    first = _read(args.file, args)
    other = _read(args.compare, args) if args.compare else None
    if args.plot:
        print(draw(args.plot, args.kind or "timeline", first, other, args.op))
        return 0
    if other is not None:
        found = {"files": [first.file, other.file], "operations": _side_by_side(first, other, args.op)}
        print(json.dumps(found) if args.json else compared(found, args.top[0]))
        return 0
    made = tables.report(first, args.op, args.top[0])
    if args.json:
        json.dump(made, sys.stdout)
        print()
    else:
        print(text(made, args.top[0]))
    return 0


def _read(file: str, args: argparse.Namespace) -> reading.Recorded:
    found = reading.read(file)
    if args.die is not None:
        found = found.only(args.die)
    return found if args.between is None else found.between(*args.between)


def _side_by_side(first: reading.Recorded, other: reading.Recorded, operation: str | None) -> list[dict[str, Any]]:
    found = tables.compared(first, other)
    if operation is not None:
        found = [row for row in found if row["operation"] == operation]
        if not found:
            raise InvalidArgument(f"there is no call of {operation!r} in {first.file} or {other.file}")
    return found


def size(nbytes: float) -> str:
    """Bytes as "64K", "1.5M"; "-": unknown."""
    if nbytes < 0:
        return "-"
    for power, letter in ((30, "G"), (20, "M"), (10, "K")):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):.3g}{letter}"
    return f"{nbytes:.0f}"


def sizes(row: dict[str, Any]) -> str:
    """Of a class of sizes: the one that all calls have, or the least and the most."""
    least, most = size(row["bytes_least"]), size(row["bytes_most"])
    return least if least == most else f"{least}-{most}"


def us(value: float) -> str:
    """Microseconds, as many digits as mean something."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def short(site: str) -> str:
    """A place in the program, with the end of its file's path."""
    parts = site.split("/")
    return site if len(parts) < 4 else f".../{'/'.join(parts[-2:])}"


def table(head: str, rows: list[list[str]], left: int = 1) -> str:
    """Columns under ``head``, words with two spaces between; the first ``left`` ones to the left."""
    cells = [head.split("  "), *rows]
    width = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = []
    for row in cells:
        lines.append("  " + "  ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in
                                      enumerate(zip(row, width, strict=True))).rstrip())  # fmt: skip
    return "\n".join(lines)


def text(made: dict[str, Any], top: int) -> str:
    """All tables; the first line says what matters most."""
    parts = [made["findings"][0]["text"]]
    parts += [f"then: {finding['text']}" for finding in made["findings"][1:]]
    lost = "".join(f"; die {die} lost {n} events" for die, n in made["lost"].items())
    about = [made[key] for key in ("program", "machine") if made[key]]
    clock = "simulated" if made["clock"] == "simulated" else "measured"
    parts.append(f"{made['file']}: {', '.join([*about, clock])}, {len(made['dies'])} dies, {us(made['wall_us'])} us, "
                 f"{made['spans']} spans{lost}")  # fmt: skip
    for show in (_operations, _stragglers, _exposure, _imbalance, _registrations, _sites, _probes, _tags):
        if shown := show(made, top):
            parts += ["", shown]
    return "\n".join(parts)


def _operations(made: dict[str, Any], top: int) -> str:
    rows = [[row["operation"], sizes(row), str(row["calls"]), us(row["time_us"]), us(row["p50_us"]), us(row["p99_us"]),
             *(f"{row[part]:.0%}" for part in ("wait", "transfer", "other")), us(row["wait_us"]),
             us(row["transfer_us"]), us(row["other_us"]), size(row["bytes_moved"])]
            for row in made["operations"][:top]]  # fmt: skip
    head = "operation  bytes  calls  us  p50  p99  wait  transfer  other  wait us  transfer us  other us  moved"
    return "operations: time in calls of all dies, what it went to, bytes that a call moved\n" + table(head, rows, 2)


def _stragglers(made: dict[str, Any], top: int) -> str:
    found = made["straggler"]
    dies = [row for row in found["dies"] if row["blamed_us"] > 0][:top]
    if not dies:
        return ""
    by = "what waits say" if found["by"] == "peers" else "who came last"
    rows = [[f"die {row['die']}", us(row["blamed_us"]), f"{row['share']:.0%}", us(row["direct_us"]),
             us(row["mapping_us"]), us(row["longest"]["us"]) if row["longest"] else "-",
             f"{row['longest']['operation']} at {us(row['longest']['at_us'])}" if row["longest"] else "-"]
            for row in dies]  # fmt: skip
    cause = found["cause"]
    notes = []
    if cause["arrives_after_us"] is not None:
        notes.append(f"comes {us(abs(cause['arrives_after_us']))} us "
                     f"{'after' if cause['arrives_after_us'] >= 0 else 'before'} the others (median)")  # fmt: skip
    if cause["bytes_times"] is not None:
        notes.append(f"moves {cause['bytes_times']:.2f} times as many bytes")
    if cause["transfer_times"] is not None:
        notes.append(f"in {cause['transfer_times']:.2f} times the time")
    return (f"who is waited for, by {by}; us: what comes to it in the end; direct: at first; mapping: while it mapped;"
            " longest: in one operation\n"
            + table("die  us  of their time in calls  direct us  mapping us  longest us  in", rows)
            + f"\n  die {cause['die']} {', '.join(notes)}")  # fmt: skip


def _exposure(made: dict[str, Any], top: int) -> str:
    whole = max(made["wall_us"], 1e-12)
    rows = [[f"die {row['die']}", us(row["exposed_us"]), f"{row['exposed_us'] / whole:.0%}",
             us(row["transfer_us"]), us(row["overlapped_us"])] for row in made["exposure"][:top]]  # fmt: skip
    return ("exposed: threads are in calls; overlapped: bytes move while they are not\n"
            + table("die  exposed us  of all time  bytes move us  overlapped us", rows))  # fmt: skip


def _imbalance(made: dict[str, Any], top: int) -> str:
    if not made["imbalance"]:
        return ""
    rows = [[row["operation"], sizes(row), f"die {row['die']} core {row['core']}", str(row["cores"]), us(row["max_us"]),
             us(row["mean_us"]), f"{row['ratio']:.2f}",
             "-" if row["bytes_ratio"] is None else f"{row['bytes_ratio']:.2f}", us(row["lost_us"])]
            for row in made["imbalance"][:top]]  # fmt: skip
    head = "operation  bytes  busiest  cores  its us  mean us  ratio  of bytes  lost us"
    about = "balance of cores: the busiest of the worst die; lost: against an even share, all dies\n"
    return about + table(head, rows, 3)


def _registrations(made: dict[str, Any], top: int) -> str:
    if not made["registrations"]:
        return ""
    rows = [[f"die {row['die']}", str(row["times"]), us(row["time_us"]), us(row["longest_us"]), us(row["first_us"]),
             us(row["last_us"]), ", ".join(map(str, row["owners"])) or "-"]
            for row in made["registrations"][:top]]  # fmt: skip
    return ("late registrations: pages that were mapped on first use\n"
            + table("die  times  us  longest us  first at  last at  owners", rows))  # fmt: skip


def _sites(made: dict[str, Any], top: int) -> str:
    known = [row for row in made["sites"] if row["site"] != "?"][:top]
    rows = [[short(row["site"]), ", ".join(row["operations"])[:40], str(row["calls"]), us(row["time_us"]),
             f"{row['part']:.0%}", us(row["wait_us"])] for row in known]  # fmt: skip
    return "call sites\n" + table("site  operations  calls  us  part  wait us", rows, 2) if rows else ""


def _probes(made: dict[str, Any], top: int) -> str:
    rows = [
        [row["probe"], str(row["times"]), us(row["time_us"]), us(row["p50_us"]), us(row["p99_us"])]
        for row in made["probes"][:top]
    ]
    return "probes of the program\n" + table("probe  times  us  p50  p99", rows) if rows else ""


def _tags(made: dict[str, Any], top: int) -> str:
    rows = [[f"{row['tag']}={row['value']}", str(row["calls"]), us(row["time_us"])] for row in made["tags"][:top]]
    return "tags\n" + table("tag  calls  us", rows) if rows else ""


def compared(found: dict[str, Any], top: int) -> str:
    """Both traces side by side; the first line names the operation that differs most."""
    rows = found["operations"]
    both = [row for row in rows if "ratio" in row]
    if both:
        first = max(both, key=lambda row: abs(row["second"]["time_us"] / row["second"]["calls"]
                                              - row["first"]["time_us"] / row["first"]["calls"]))  # fmt: skip
        lines = [f"{first['operation']} of {sizes(first['first'])} differs most: {us(first['first']['p50_us'])} us "
                 f"against {us(first['second']['p50_us'])} us (median), {first['ratio']:.2f} times"]  # fmt: skip
    else:
        lines = ["the traces have no operation of the same name and class of sizes"]
    lines += [f"a: {found['files'][0]}", f"b: {found['files'][1]}", ""]

    def cell(row: dict[str, Any] | None, key: str, form: Any) -> str:
        return "-" if row is None else str(form(row[key]))

    def percent(value: float) -> str:
        return f"{value:.0%}"

    cells = []
    for row in rows[:top]:
        a, b = row["first"], row["second"]
        cells.append([
            row["operation"], sizes(a or b), cell(a, "calls", str), cell(b, "calls", str), cell(a, "p50_us", us),
            cell(b, "p50_us", us), f"{row['ratio']:.2f}" if "ratio" in row else "-", cell(a, "wait", percent),
            cell(b, "wait", percent), cell(a, "transfer", percent), cell(b, "transfer", percent),
            cell(a, "bytes_moved", size), cell(b, "bytes_moved", size),
        ])  # fmt: skip
    head = ("operation  bytes  calls a  calls b  p50 us a  p50 us b  b/a  wait a  wait b  transfer a  transfer b  "
            "moved a  moved b")  # fmt: skip
    return "\n".join(lines) + "\n" + table(head, cells, 2)
