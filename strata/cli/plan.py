"""strata plan: the plans of an operation, printed, saved, compared, verified, converted."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from strata.cli.arguments import size
from strata.dtypes import OP_CODES, dtype_of
from strata.errors import InvalidArgument, writing
from strata.plan import OPERATIONS, Plan, Spec, build, diff, load_all, save, save_all, verify
from strata.plan.archive import integers
from strata.plan.records import DTYPE_BYTES, DTYPE_NAMES
from strata.plan.spec import PARTED, REDUCTIONS, normal

if TYPE_CHECKING:
    from strata.explaining import Explanation
    from strata.plan.select import Settings

EXAMPLES = """\
examples:
  strata plan all_reduce -n 8 -b 1M                  the plan of rank 0, as text
  strata plan all_gather -n 32 -b 128M --machine cm384 --cores 48 --verify
  strata plan all_to_all_v -n 4 --counts counts.txt -o plans.json
  strata plan --load plans.json --rank 2             print a plan from a file
  strata plan all_reduce -n 4 -b 1M --diff plans.json
  strata plan -b 1M --msccl ring.xml --verify        an MSCCL XML algorithm, proved
  strata plan -b 1M --mscclpp ring.json --verify     an MSCCL++ execution plan, proved
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "strata plan", description="Prints the plan of an operation; nothing is run.", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    add = parser.add_argument
    add("operation", nargs="?", choices=OPERATIONS, metavar="OP", help=", ".join(OPERATIONS))
    add("-n", "--ranks", type=int, help="members of the group")
    add("-b", "--bytes", type=size, default=None, help='of the source of each member, as "1M" (default 1M)')
    add("--dtype", default=None, choices=DTYPE_NAMES, metavar="T", help="element type: " + ", ".join(DTYPE_NAMES[1:]))
    add("--op", default="sum", choices=list(OP_CODES), help="operator of a reduction (default sum)")
    add("--root", type=int, default=0, help="of broadcast, reduce, gather, scatter")
    add("--counts", metavar="FILE", help="all_to_all_v: matrix of elements from (row) to (column), .npy or text")
    add("--in-place", action="store_true", help="source and result share memory")
    add("--mailbox", action="store_true", help="plan a small operation that goes by mailboxes")
    add("--rank", type=int, help="whose plan to print (default 0) or save (default all)")
    add("--algorithm", help="instead of the library's choice")
    add("--path", help="mte, cores move the bytes, or sdma, the die's engine does (default: the library's choice)")
    add("--overlap", action="store_true", help="other work is to be done meanwhile: the choice of path goes by it")
    add("--cores", type=int, help="cores of a die (default: the library's choice)")
    add("--partition", choices=("balanced", "naive"), help="how units are shared among cores")
    add("--machine", default="host", metavar="NAME", help="whose costs: cm384, a .toml file (default host)")
    add("--load", metavar="FILE", help="plans from a file instead of an operation")
    add("--msccl", metavar="FILE", help="an MSCCL XML algorithm instead of the library's")
    add("--mscclpp", metavar="FILE", help="an MSCCL++ JSON execution plan instead of the library's")
    add("-o", "--output", metavar="FILE", help="save as .npz or .json, .xml (MSCCL), .goal (LogGOPSim), .et (Chakra)")
    add("--verify", action="store_true", help="prove that the plans of all members deliver the operation")
    add("--diff", metavar="FILE", help="what the plans in FILE differ in; status 1 if they do")
    add("--explain", action="store_true", help="which algorithm, why, and what the others would cost")
    add("--json", action="store_true", help="output as JSON")
    add("--limit", type=int, default=32, help="lines of each list (default 32)")
    return parser


def main(arguments: list[str]) -> int:
    """Exit status 0; 1 if --diff found differences; errors are raised."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.limit < 0:
        parser.error("--limit is negative")
    foreign = args.msccl or args.mscclpp
    if args.msccl and args.mscclpp:
        parser.error("--msccl and --mscclpp are two algorithms")
    if args.load and (args.operation or foreign or args.explain):
        parser.error("--load gives the operation: no OP, --msccl, --mscclpp or --explain beside it")
    if args.overlap and (args.load or foreign):
        parser.error("--overlap is for the library's choice of path: no --load, --msccl or --mscclpp beside it")
    if not args.load and not args.operation and not foreign:
        parser.error("OP, --load, --msccl or --mscclpp is needed")
    if args.explain and (foreign or args.counts or args.mailbox or args.in_place):
        parser.error("--explain goes by OP, -n and -b: no file, --mailbox or --in-place beside it")
    found: dict[str, Any] = {}
    if args.explain:
        found["explained"] = _explained(args)
        if not (args.verify or args.diff or args.output):
            print(json.dumps(found["explained"], indent=1) if args.json else found["explained"])
            return 0
    plans = load_all(args.load) if args.load else _built(args)
    chosen = plans if args.rank is None else [p for p in plans if p.rank == args.rank]
    if not chosen:
        raise InvalidArgument(f"there is no rank {args.rank} among {len(plans)} plans")
    if args.output:
        _save(args, chosen)
    if args.verify:
        found["verified"] = verify(plans)
    if args.diff:
        found["differences"] = _differences(load_all(args.diff), chosen, args.limit)
    _show(args, chosen, found)
    return 1 if found.get("differences") else 0


def _built(args: argparse.Namespace) -> list[Plan]:
    from strata import selection
    from strata.plan.select import Ask, choose

    settings = selection.machine(args.machine)
    if args.msccl or args.mscclpp:
        return _foreign(args, settings)
    spec = _spec(args, args.operation, args.ranks)
    choice = choose(spec, Ask(args.algorithm, args.path, args.cores, args.partition), settings, args.overlap)
    return _plans(args, spec, settings, algorithm=choice.algorithm.name, cores=choice.cores, path=choice.path,
                  policy=choice.partition)  # fmt: skip


def _plans(args: argparse.Namespace, spec: Spec, settings: Settings, **options: Any) -> list[Plan]:
    everyone = args.verify or args.diff or args.output or args.rank is None and args.json
    ranks = range(spec.nranks) if everyone else [args.rank or 0]
    return [build(spec, r, cost=settings.cost, topology=settings.topology, **options) for r in ranks]


def _foreign(args: argparse.Namespace, settings: Settings) -> list[Plan]:
    from strata.plan import algorithms
    from strata.plan.interchange import dataflow, msccl_xml, mscclpp_json

    name = args.msccl or args.mscclpp
    algorithm = algorithms.register(msccl_xml.read(name) if args.msccl else mscclpp_json.read(name))
    (operation,) = algorithm.operations
    if args.operation not in (None, operation):
        raise InvalidArgument(f"{name} is an {operation}, not {args.operation}")
    members = dataflow.ranks(algorithm)
    if args.ranks not in (None, members):
        raise InvalidArgument(f"{name} is for {members} ranks, not {args.ranks}")
    spec = _spec(args, operation, members)
    return _plans(args, spec, settings, algorithm=algorithm.name, cores=args.cores or 1, path=args.path,
                  policy=args.partition or "balanced")  # fmt: skip


def _spec(args: argparse.Namespace, operation: str, ranks: int | None) -> Spec:
    counts = integers(args.counts) if args.counts else None
    if (counts is not None) != (operation == "all_to_all_v"):
        raise InvalidArgument("--counts FILE goes with all_to_all_v, and only with it")
    n = len(counts) if ranks is None and counts is not None else ranks
    if n is None:
        raise InvalidArgument("-n N, the number of ranks, is needed")
    reduces = operation in REDUCTIONS
    code = DTYPE_NAMES.index(args.dtype or ("f32" if reduces else "u8"))
    size = DTYPE_BYTES[code] or 1
    nbytes = 0 if counts is not None or operation == "barrier" else 1 << 20 if args.bytes is None else args.bytes
    parts = max(n, 1) if operation in PARTED else 1
    if nbytes % (size * parts):
        what = f"{parts} equal parts of " if parts > 1 else ""
        raise InvalidArgument(f"-b {nbytes} is not {what}whole elements of {size} bytes")
    redop = OP_CODES[args.op] if reduces else 0
    mode = "mailbox" if args.mailbox else "zero_copy"
    count = nbytes // size // parts
    return normal(Spec(operation, count, size, code, redop, args.root, n, mode, counts, args.in_place))


def _save(args: argparse.Namespace, plans: list[Plan]) -> None:
    name = args.output.lower()
    if name.endswith((".xml", ".goal", ".et")):
        from strata import selection
        from strata.plan.interchange import chakra, goal, msccl_write

        gbps = selection.machine(args.machine).cost.gbps[0]
        if name.endswith(".et"):
            chakra.write(plans, args.output[:-3], gbps=gbps)
            return
        text = msccl_write.write(plans) if name.endswith(".xml") else goal.write(plans, gbps=gbps)
        with writing(args.output), open(args.output, "w", encoding="utf-8") as out:
            out.write(text)
    elif len(plans) == 1 and args.rank is not None:
        save(plans[0], args.output)
    else:
        save_all(plans, args.output)


def _differences(old: list[Plan], new: list[Plan], limit: int) -> list[str]:
    theirs = {p.rank: p for p in old}
    if len(old) != len(new) and len(old) == 1:
        new = [p for p in new if p.rank in theirs]
    lines = [f"rank {r} is only in the file" for r in theirs if r not in {p.rank for p in new}]
    for plan in new:
        if plan.rank not in theirs:
            lines.append(f"rank {plan.rank} is not in the file")
            continue
        lines += [f"rank {plan.rank}: {line}" for line in diff(theirs[plan.rank], plan, limit).splitlines()]
    return lines


def _show(args: argparse.Namespace, plans: list[Plan], found: dict[str, Any]) -> None:
    if args.json:
        heads = [{**p.header(), "hash": p.hash(), "units": len(p.units), "slices": len(p.slices)} for p in plans]
        print(json.dumps({"plans": heads, **found}, indent=1))
        return
    if args.explain:
        print(found["explained"])
    elif not args.diff and not args.output:
        print("\n".join(p.pretty(args.limit) for p in plans[: None if args.rank is not None or args.load else 1]))
    if args.output:
        print(f"{args.output}: {len(plans)} plans")
    if args.verify:
        numbers = ", ".join(f"{value} {name}" for name, value in found["verified"].items())
        print(f"verified, all {plans[0].spec.nranks} ranks: {numbers}")
    if args.diff:
        print("\n".join(found["differences"]) or "no differences")


def _explained(args: argparse.Namespace) -> Explanation:
    from strata.explaining import explain

    if args.operation is None or args.ranks is None:
        raise InvalidArgument("--explain needs OP and -n N")
    spec = _spec(args, args.operation, args.ranks)
    nbytes = 1 << 20 if args.bytes is None else args.bytes
    return explain(
        args.operation, nbytes, args.ranks, dtype=dtype_of(spec.dtype), op=args.op,
        root=args.root, algorithm=args.algorithm, path=args.path, cores=args.cores, partition=args.partition,
        machine=args.machine, overlap=args.overlap,
    )  # fmt: skip
