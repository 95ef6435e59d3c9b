"""strata dump: the flight recorders of all dies of a job, merged in time; or a dump that was saved."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from strata.cli.top import held
from strata.errors import InvalidArgument
from strata.inspection import finding, saving, snapshot, text

EXAMPLES = """\
examples:
  strata dump                        of the one job of this user
  strata dump train.py --last 50     the last 50 records of all dies
  strata dump 4711 -o hang.json      save it (strata-run --dump FILE does so by itself when a job fails)
  strata dump hang.json              show what was saved
"""


def _count(word: str) -> int:
    value = int(word)
    if value < 1:
        raise argparse.ArgumentTypeError("1 or more expected")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "strata dump", description="Prints what the dies of a job did last, and where they are.", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    add = parser.add_argument
    add("job", nargs="?", metavar="JOB|FILE", help="as for strata top; or a file that was saved")
    add("--json", action="store_true", help="as JSON, the form in which it is saved")
    add("-o", "--output", metavar="FILE", help="save it instead")
    add("--last", type=_count, metavar="N", help="only the last N records of all dies together")
    return parser


def main(arguments: list[str]) -> int:
    """Exit status 0; errors are raised."""
    args = _parser().parse_args(arguments)
    found = _found(args.job)
    if args.output:
        saving.save(found, args.output)
        print(f"{args.output}: {sum(len(die.get('records', ())) for die in found['dies'])} records")
    elif args.json:
        json.dump(found, sys.stdout)
        print()
    else:
        show(found, args.last)
    return 0


def _found(wanted: str | None) -> dict[str, Any]:
    if wanted is not None and (os.sep in wanted or os.path.isfile(wanted)) and not wanted.isdigit():
        jobs = finding.find() if os.sep not in wanted else []
        if not any(job.name == wanted for job in jobs):
            return saving.load(wanted)
        try:
            return saving.load(wanted)
        except InvalidArgument:  # the script of that name, and the job is meant
            pass
    job = finding.choose(finding.find(), wanted)
    with held(job) as space:
        return snapshot.take(space, job.name, job.launcher)


def show(found: dict[str, Any], last: int | None) -> None:
    """Prints a snapshot."""
    print(text.whole(found, last))
