"""strata workload: what whole workloads would take on a machine, beside what has been published."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from strata.errors import InvalidArgument, writing

if TYPE_CHECKING:
    from strata.workloads import Workload

EXAMPLES = """\
examples:
  strata workload                                        the workloads that there are
  strata workload dsv4_flash                             a report: parts, items, collectives, memory
  strata workload dsv4_flash --ablation                  published ratios beside predicted ones
  strata workload dlrm --set library=zerocopy --set batch=2048
  strata workload dsv32_training --machine my.toml --json report.json
  strata workload dlrm --assumptions                     every constant, with grade and source
"""
SWITCHES = ("library", "registration", "partition", "path", "algorithm", "overlap")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "strata workload", description="Predicts what a workload takes on a machine; nothing is run.", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="of a workload, or a .toml file of one's own")
    add("--machine", help="name or .toml file (default: the workload's own)")
    add("--set", action="append", default=[], metavar="NAME=VALUE",
        help=f"a switch ({', '.join(SWITCHES)}) or a constant of the workload")  # fmt: skip
    add("--ablation", action="store_true", help="all published ratios, beside the predicted ones")
    add("--assumptions", action="store_true", help="every constant of the workload; nothing is predicted")
    add("--json", metavar="FILE", help="write all figures to FILE (- is stdout)")
    return parser


def main(arguments: list[str]) -> int:
    """Exit status 0; errors are raised."""
    parser = _parser()
    args = parser.parse_args(arguments)
    from strata import workloads
    from strata.workloads import text

    if args.name is None:
        if args.machine or args.set or args.ablation or args.assumptions or args.json:
            parser.error("NAME, the workload, is needed")
        found = map(workloads.load, workloads.names())
        print(text.columns(([w.name, w.description.title] for w in found), left=2))
        return 0
    if args.ablation and args.assumptions:
        parser.error("--ablation and --assumptions are two outputs")
    workload, asked = _set(workloads.load(args.name), args.set)
    data: Any
    if args.assumptions:
        data = workload.assumptions()
        shown = text.columns(text.assumption_rows(data), left=4)
    elif args.ablation:
        rows = workload.ablation(args.machine, **asked)
        data = text.plain_rows(rows)
        shown = f"{workload.description.title}, on {rows[0].report.machine}: ratios of throughput\n\n"
        shown += text.columns(text.ablation_rows(rows), left=2)
    else:
        report = workload.run(args.machine, **asked)
        data, shown = text.plain(report), text.report(report)
    if args.json != "-":
        print(shown)
    if args.json:
        made = json.dumps(data, indent=1)
        if args.json == "-":
            print(made)
        else:
            with writing(args.json), open(args.json, "w", encoding="utf-8") as out:
                out.write(made + "\n")
    return 0


def _set(workload: Workload, given: list[str]) -> tuple[Workload, dict[str, Any]]:
    """The workload with the constants that --set names, and the switches."""
    asked: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign:
            raise InvalidArgument(f"--set {text}: NAME=VALUE is expected, as --set registration=just_in_time")
        if name in SWITCHES:
            asked[name] = _overlap(value) if name == "overlap" else value
        else:
            constants[name] = _number(name, value)
    return workload.replace(**constants) if constants else workload, asked


def _overlap(value: str) -> bool:
    if value not in ("on", "off"):
        raise InvalidArgument(f"--set overlap={value}: on or off is expected")
    return value == "on"


def _number(name: str, value: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    raise InvalidArgument(f"--set {name}={value}: a number is expected; switches are {', '.join(SWITCHES)}")
