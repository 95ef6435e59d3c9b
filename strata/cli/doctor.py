"""strata doctor: whether this host can run jobs, and what to do about it."""

from __future__ import annotations

import argparse
import json
import textwrap

from strata import config, doctor
from strata.doctor import leftovers

MARKS = {"ok": "ok", "note": "note", "warning": "WARNING", "error": "ERROR"}


def _dies(word: str) -> int:
    value = int(word)
    if not 1 <= value <= 1024:
        raise argparse.ArgumentTypeError("1 to 1024 dies are possible")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "strata doctor", description="Looks at what jobs need of this host.", allow_abbrev=False,
        epilog="Exit status 0: jobs run, 1: something would break them.",
    )  # fmt: skip
    add = parser.add_argument
    add("-n", "--ranks", type=_dies, default=2, metavar="N", help="for jobs of so many dies (2)")
    add("--json", action="store_true", help="as JSON")
    add("--clean", action="store_true", help="remove strata's own stale objects of this user from /dev/shm")
    add("--no-self-test", action="store_true", help="start no job")
    add("-q", "--quiet", action="store_true", help="leave out what is well")
    return parser


def main(arguments: list[str]) -> int:
    """Exit status 0, or 1 if something would break a job."""
    args = _parser().parse_args(arguments)
    host = doctor.Host()
    gone = leftovers.clean(host) if args.clean else []
    found = doctor.examine(host, args.ranks, config.load().hbm_bytes, not args.no_self_test)
    broken = any(finding.severity == "error" for finding in found)
    if args.json:
        print(json.dumps({"ranks": args.ranks, "removed": gone, "broken": broken,
                          "findings": [finding._asdict() for finding in found]}, indent=1))  # fmt: skip
        return int(broken)
    for path in gone:
        print(f"removed {path}")
    for finding in found:
        if finding.severity != "ok" or not args.quiet:
            _show(finding)
    counts = {severity: sum(f.severity == severity for f in found) for severity in doctor.SEVERITIES}
    several = {name: name if name == "ok" or counts[name] == 1 else f"{name}s" for name in counts}
    print(", ".join(f"{counts[name]} {several[name]}" for name in reversed(doctor.SEVERITIES)))
    return int(broken)


def _show(finding: doctor.Finding) -> None:
    mark = MARKS[finding.severity]
    print(f"{mark:7}  {finding.check}: {finding.seen}")
    for word, text in (("means", finding.means), ("cure", finding.cure)):
        if text:
            print(textwrap.fill(text, 110, initial_indent=f"         {word + ':':7}", subsequent_indent=" " * 16,
                                break_long_words=False, break_on_hyphens=False))  # fmt: skip
