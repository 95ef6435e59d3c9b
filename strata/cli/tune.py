"""strata tune: measures this host, its algorithms for the choice among them, or itself as a machine to simulate."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from strata.cli.arguments import size
from strata.errors import InvalidArgument, writing
from strata.plan.table import Table

DEFAULT = "strata-table.json"
EXAMPLES = """\
examples:
  strata tune                                        2, 4 and 8 dies, 1 KiB to 16 MiB
  strata tune -n 4 -b 64K -e 1M -f 2 --ops all_reduce,all_gather -o table.json
  strata tune --machine mine.toml                    rates and latencies, for strata sim --machine mine.toml
"""
OF_TABLES = ("ranks", "begin", "end", "factor", "ops", "seconds", "output")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "strata tune", description="Measures every algorithm that the library may choose, and saves the times; or, "
        "with --machine, what memory, flags and DMA threads of this host do, for strata sim.",
        epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    add = parser.add_argument
    add("-n", "--ranks", type=_numbers, default=[2, 4, 8], metavar="N,N", help="numbers of dies (default 2,4,8)")
    add("-b", "--begin", type=size, default=1 << 10, metavar="SIZE", help="smallest array of a die (default 1K)")
    add("-e", "--end", type=size, default=16 << 20, metavar="SIZE", help="largest array of a die (default 16M)")
    add("-f", "--factor", type=int, default=4, metavar="F", help="from one size to the next (default 4)")
    add("--ops", type=lambda text: text.split(","), metavar="OP,OP", help="operations (default: all that are tuned)")
    add("--rounds", type=int, default=5, help="of each figure; of algorithms, the median counts (default 5)")
    add("--seconds", type=float, default=0.02, help="that a round takes, about (default 0.02)")
    add("-o", "--output", metavar="FILE", default=DEFAULT, help=f"default {DEFAULT}")
    add("--machine", metavar="FILE.toml", help="measure no algorithms but this host, and save it as a machine")
    return parser


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not numbers with commas between") from None


def main(arguments: list[str]) -> int:
    """Exit status 0; errors are raised."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.machine is not None:
        given = [name for name in OF_TABLES if getattr(args, name) != parser.get_default(name)]
        if given:
            parser.error(f"--{given[0]} is of tables: not with --machine")
        return _machine(args.machine, args.rounds)
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


def _machine(file: str, rounds: int) -> int:
    from strata import machine, measuring

    if not file.endswith(".toml") or rounds < 1:
        raise InvalidArgument("--machine is a file that ends in .toml, by which machines are found; --rounds 1 or more")
    with open(file, "a"):  # before measuring, not after
        pass
    _tell("memory, flags, SDMA")
    found = measuring.measure(Path(file).stem, rounds=rounds)
    with writing(file):
        Path(file).write_text(machine.dumps(found), encoding="utf-8")
    constants = found.constants()
    measured = [name for name, (grade, _) in found.sources.items() if grade == "M"]
    print(f"{found.title}\n" + "\n".join(f"{name:24} {constants[name]:10}" for name in measured))
    print(f"\n{file}: a machine; {len(measured)} constants are measured, the others assumed. To simulate it:\n"
          f"  strata sim all_reduce -n 4 -b 1K -e 1M --machine {file}")  # fmt: skip
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
