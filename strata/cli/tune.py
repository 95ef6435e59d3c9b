"""strata tune: measures the algorithms on this host, for the choice among them."""

from __future__ import annotations

import argparse
import sys

from strata.cli.arguments import size
from strata.errors import InvalidArgument
from strata.plan.table import Table

DEFAULT = "strata-table.json"
EXAMPLES = """\
examples:
  strata tune                                        2, 4 and 8 dies, 1 KiB to 16 MiB
  strata tune -n 4 -b 64K -e 1M -f 2 --ops all_reduce,all_gather -o table.json
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "strata tune", description="Measures every algorithm that the library may choose, and saves the times.",
        epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    add = parser.add_argument
    add("-n", "--ranks", type=_numbers, default=[2, 4, 8], metavar="N,N", help="numbers of dies (default 2,4,8)")
    add("-b", "--begin", type=size, default=1 << 10, metavar="SIZE", help="smallest array of a die (default 1K)")
    add("-e", "--end", type=size, default=16 << 20, metavar="SIZE", help="largest array of a die (default 16M)")
    add("-f", "--factor", type=int, default=4, metavar="F", help="from one size to the next (default 4)")
    add("--ops", type=lambda text: text.split(","), metavar="OP,OP", help="operations (default: all that are tuned)")
    add("--rounds", type=int, default=5, help="of each algorithm; the median counts (default 5)")
    add("--seconds", type=float, default=0.02, help="that a round takes, about (default 0.02)")
    add("-o", "--output", metavar="FILE", default=DEFAULT, help=f"default {DEFAULT}")
    return parser


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not numbers with commas between") from None


def main(arguments: list[str]) -> int:
    """Exit status 0; errors are raised."""
    args = _parser().parse_args(arguments)
    from strata import tuning

    operations = args.ops or list(tuning.OPERATIONS)
    unknown = [name for name in operations if name not in tuning.OPERATIONS]
    if unknown:
        raise InvalidArgument(f"--ops: {unknown[0]!r} is not one of {', '.join(tuning.OPERATIONS)}")
    if min(args.ranks) < 2 or args.rounds < 1 or not 0 < args.seconds < 3600:
        raise InvalidArgument("-n is 2 or more dies, --rounds 1 or more, --seconds more than 0 and less than an hour")
    nbytes = tuning.sizes(args.begin, args.end, args.factor)
    with open(args.output, "a"):  # before hours of measuring, not after
        pass
    table = tuning.tune(args.ranks, nbytes, operations, rounds=args.rounds, seconds=args.seconds, progress=_tell)
    table.save(args.output)
    print(winners(table))
    print(f"\n{args.output}: {len(table.rows)} rows. To have the library choose by them:\n"
          f"  export STRATA_TABLE={args.output}")  # fmt: skip
    return 0


def _tell(text: str) -> None:
    print(f"{text} ...", file=sys.stderr, flush=True)


def winners(table: Table) -> str:
    """A line for each row: the fastest algorithm, its time, and the second."""
    lines = [f"{'operation':15} {'dies':>4} {'bytes':>10}  fastest"]
    for operation, ranks, nbytes, us in table.rows:
        order = sorted(us, key=lambda name: us[name])
        second = f", then {order[1]} {us[order[1]]:.1f} us" if len(order) > 1 else ""
        lines.append(f"{operation:15} {ranks:4} {nbytes:10}  {order[0]} {us[order[0]]:.1f} us{second}")
    return "\n".join(lines)
