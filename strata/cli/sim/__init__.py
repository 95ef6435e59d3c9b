"""strata sim: what operations would take on a machine that is not here."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import Any

from strata.cli.sim import plot, table
from strata.cli.sim.cases import Case, Common, cases_of, common_of, machine_of, predict, row
from strata.cli.sim.options import parser
from strata.cli.sim.running import results, work
from strata.errors import InvalidArgument, writing
from strata.machine import describe
from strata.plan.table import Table

__all__ = ["main", "work"]

INTERRUPTED = 130
LEFT_OUT = ("explain", "why", "candidates")  # of CSV, which has no room for them


def main(arguments: list[str]) -> int:
    """Exit status 0; 130 after Ctrl-C; errors are raised."""
    args = parser().parse_args(arguments)
    try:
        return _main(args)
    except KeyboardInterrupt:
        sys.stdout.flush()
        print("strata sim: interrupted", file=sys.stderr)
        return INTERRUPTED


def _main(args: argparse.Namespace) -> int:
    common = common_of(args)
    machines = [machine_of(name, common) for name in args.machine]
    if args.describe:
        print("\n\n".join(describe(m) for m in machines))
        if not args.operation:
            return 0
    cases = cases_of(args, common)
    _check(args, cases)
    print(table.header(list(zip(args.machine, machines, strict=True)), args.total))
    found = [_traced(args, cases[0])] if args.trace else _run(args, cases)
    if len(cases) > 1:
        print(table.footer([made for _, made in found]))
    if args.compare:
        print("#\n" + table.comparison(found))
    if args.explain:
        print("#\n" + "\n#\n".join(table.explanation(made) for _, made in found))
    _save(args, common, found)
    return 0


def _check(args: argparse.Namespace, cases: list[Case]) -> None:
    """Before long work: InvalidArgument for what does not go together, OSError for files that cannot be written."""
    variants = {case.variant for case in cases}
    if args.jobs is not None and args.jobs < 1:
        raise InvalidArgument(f"-j {args.jobs}: 1 or more processes are expected")
    if args.trace and len(cases) > 1:
        raise InvalidArgument(f"--trace is of one case, and there are {len(cases)}: one size, one algorithm and so on")
    if args.compare and len(variants) < 2:
        raise InvalidArgument("--compare takes two variants or more, as --algorithm ring,full_mesh")
    if args.compare and len({v.operation for v in variants}) > 1 and args.table is None:
        raise InvalidArgument("--compare is of one operation")
    if args.table:
        ways = {(v.machine, v.path, v.cores, v.partition) for v in variants}
        if len(ways) > 1 or any(v.algorithm is None for v in variants):
            raise InvalidArgument("--table is of algorithms by name, on one machine and in one way: no list of "
                                  "--machine, --path, --cores or --partition beside it, and no auto")  # fmt: skip
    if args.output:
        plot.check(args.output)
    files = [file for file in (args.output, args.trace, args.csv, args.json, args.table) if file]
    for file in files:
        if files.count(file) > 1:
            raise InvalidArgument(f"{file} is to be written twice, as two kinds of file")
        with open(file, "a"):
            pass


def _run(args: argparse.Namespace, cases: list[Case]) -> list[tuple[Case, dict[str, Any]]]:
    """Simulates and prints rows.  InvalidArgument if there is not one; what is refused among others is told."""
    found, first = [], ""
    for case, made in results(cases, args.jobs):
        if "error" in made:
            if len(cases) == 1:
                raise InvalidArgument(made["error"])
            first = first or made["error"]
            print(table.refused(case, made["error"]), flush=True)
            continue
        print(table.line(made), flush=True)
        found.append((case, made))
    if not found:
        raise InvalidArgument(f"none of {len(cases)} cases can be simulated; the first: {first}")
    return found


def _traced(args: argparse.Namespace, case: Case) -> tuple[Case, dict[str, Any]]:
    """The one case, here, and its trace."""
    from strata.profile.timelines import trace

    prediction = predict(case)
    made = row(case, prediction)
    print(table.line(made))
    written = trace(prediction.timeline)
    written.save(args.trace)
    print(f"# {args.trace}: {written.events} events, for https://ui.perfetto.dev")
    return case, made


def _save(args: argparse.Namespace, common: Common, found: list[tuple[Case, dict[str, Any]]]) -> None:
    rows = [made for _, made in found]
    if args.csv:
        names = [name for name in rows[0] if name not in LEFT_OUT]
        with writing(args.csv), open(args.csv, "w", newline="") as out:
            writer = csv.DictWriter(out, names, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    if args.json:
        about = {"version": 1, "machines": args.machine, "set": dict(common.constants)}
        with writing(args.json):
            Path(args.json).write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    if args.table:
        _table(args, common, rows)
    if args.output:
        plot.draw(args.output, found, args.total)


def _table(args: argparse.Namespace, common: Common, rows: list[dict[str, Any]]) -> None:
    times: dict[tuple[str, int, int], dict[str, float]] = {}
    for made in rows:
        key = made["operation"], made["ranks"], made["part_bytes"]
        times.setdefault(key, {})[made["algorithm"]] = made["time_us"]
    changed = "".join(f", {name}={value}" for name, value in common.constants)
    made_table = Table(f"simulated, machine {args.machine[0]}{changed}", [(*key, us) for key, us in times.items()])
    made_table.save(args.table)
    print(f"# {args.table}: {len(made_table.rows)} rows. To have the library choose by them:\n"
          f"#   export STRATA_TABLE={args.table}")  # fmt: skip
