"""Arguments of ``strata sim``."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from strata.cli.arguments import size
from strata.errors import InvalidArgument

EXAMPLES = """\
examples:
  strata sim all_gather -n 32 -b 1K -e 1G                     a sweep of sizes, nccl-tests' columns
  strata sim all_gather -n 32 -b 64K -e 64M --algorithm ring,full_mesh --compare -o ring.png
  strata sim all_gather -n 32 -b 128M --path mte,sdma --explain
  strata sim all_reduce -n 8,32,128 -b 1M --machine cm384,dgx_b200 --csv out.csv
  strata sim all_to_all -n 16 -b 4M --slow-die 3:2 --trace trace.json      for https://ui.perfetto.dev
  strata sim all_gather,all_reduce -n 8,16,32 -b 1K -e 64M --table table.json   for STRATA_TABLE
  strata sim --machine cm384 --describe
"""


class Parser(argparse.ArgumentParser):
    """One whose errors are raised, and so are one line."""

    def error(self, message: str) -> NoReturn:
        """Raises InvalidArgument."""
        raise InvalidArgument(message)


def words(text: str) -> list[str]:
    """Words with commas between."""
    found = [word.strip() for word in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not words with commas between")
    return list(dict.fromkeys(found))


def numbers(text: str) -> list[int]:
    """Whole numbers of 1 or more with commas between."""
    try:
        found = [int(word) for word in words(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not whole numbers with commas between") from None
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{min(found)} is not 1 or more")
    return found


def pairs(what: str, number: type) -> Any:
    """Of "3:2,5:1.5": {3: 2.0, 5: 1.5}; of links, "0-3:4": {(0, 3): 4.0}."""
    link = what == "link"
    form = "0-3:4, what die 0 gives die 3, and by how much" if link else "3:2, a die and a number"

    def parse(text: str) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for word in words(text):
            try:
                who, _, value = word.partition(":")
                a, _, b = who.partition("-")
                found[(int(a), int(b)) if link else int(who)] = number(value)
            except ValueError:
                raise argparse.ArgumentTypeError(f"{word!r} is not of the form {form}") from None
        return found

    return parse


def constant(text: str) -> tuple[str, Any]:
    """("die.ub_gbps", 98.0) of "die.ub_gbps=98"; bytes may be written as "64M"."""
    name, sign, value = text.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, such as die.ub_gbps=98")
    if value in ("true", "false"):
        return name.strip(), value == "true"
    for kind in (int, float, size) if name.strip().endswith("_bytes") else (int, float):
        try:
            return name.strip(), kind(value)
        except (ValueError, argparse.ArgumentTypeError):
            continue
    raise argparse.ArgumentTypeError(f"{text!r}: {value!r} is no number")


def parser() -> Parser:
    """All arguments; lists are what is varied."""
    made = Parser(
        "strata sim", description="Predicts operations on a machine that is not here; nothing is run.", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    _what(made.add_argument_group("what is simulated; where a list is taken, all combinations are"))
    _how(made.add_argument_group("how it is carried out (default: the library's choice)"))
    _wrong(made.add_argument_group("what is wrong with the machine"))
    _out(made.add_argument_group("output"))
    return made


def _what(group: Any) -> None:
    add = group.add_argument
    add("operation", nargs="?", type=words, metavar="OP[,OP]", help="all_gather, all_reduce, ...")
    add("-n", "--ranks", type=numbers, metavar="N[,N]", help="members")
    add("-b", "--begin", type=size, metavar="SIZE", help="smallest source of each rank (default 1M)")
    add("-e", "--end", type=size, metavar="SIZE", help="largest (default: as -b)")
    add("-f", "--factor", type=int, default=2, metavar="F", help="from one size to the next (default 2)")
    add("-i", "--step", type=size, metavar="SIZE", help="from one size to the next, added")
    add("--total", action="store_true", help="sizes are of the largest array of a rank, as nccl-tests has them "
        "(of all_gather and gather, all ranks' sources together)")  # fmt: skip
    add("--dtype", default="f32", help="element type (default f32)")
    add("--op", default="sum", help="operator of a reduction (default sum)")
    add("--root", type=int, default=0, help="of broadcast, reduce, gather, scatter")
    add("--counts", metavar="FILE", help="all_to_all_v: matrix of elements from (row) to (column), .npy or text")
    add("--machine", type=words, default=["cm384"], metavar="M[,M]", help="names, or .toml files (default cm384)")
    add("--set", type=constant, action="append", default=[], metavar="NAME=VALUE",
        help="another constant than the machine's, as die.ub_gbps=98")  # fmt: skip


def _how(group: Any) -> None:
    add = group.add_argument
    add("--algorithm", type=words, metavar="A[,A]", help="names; auto, the library's choice; all")
    add("--select", choices=("model", "simulation"), default="model",
        help="how auto chooses: by the closed model (default), or by simulating what may be chosen")  # fmt: skip
    add("--path", type=words, metavar="P[,P]", help="mte, sdma, auto")
    add("--cores", type=numbers, metavar="C[,C]", help="of a die")
    add("--partition", type=words, metavar="P[,P]", help="balanced, naive")
    add("--overlap", action="store_true", help="other work is to be done meanwhile: the choice of path goes by it")
    add("--launch", choices=("graph", "eager"), default="graph", help="started by a graph (default) or by the host")


def _wrong(group: Any) -> None:
    add = group.add_argument
    add("--slow-die", type=pairs("die", float), default={}, metavar="DIE:X[,...]", help="a die takes X times as long")
    add("--slow-link", type=pairs("link", float), default={}, metavar="A-B:X[,...]",
        help="what die A gives die B takes X times as long")  # fmt: skip
    add("--dead-plane", type=pairs("die", int), default={}, metavar="DIE:K[,...]", help="K planes of a die are dead")
    add("--skew", type=float, default=0.0, metavar="US", help="ranks arrive at random within so many microseconds")
    add("--jitter", type=float, default=0.0, metavar="X", help="latencies are up to 1 + X times as long, at random")
    add("--seed", type=int, default=0, help="of skew and jitter (default 0)")


def _out(group: Any) -> None:
    add = group.add_argument
    add("--window", type=float, default=0.0, metavar="US", help="handle events so close together: faster, not exact")
    add("--check", action="store_true", help="prove that all rates are max-min fair")
    add("-j", "--jobs", type=int, metavar="J", help="processes (default: the CPUs, if it takes long)")
    add("--compare", action="store_true", help="sizes by variants, side by side, with ratios to the first")
    add("-o", "--output", metavar="FILE", help="draw times and bandwidths: .png, .svg or .pdf")
    add("--explain", action="store_true", help="where the time went")
    add("--trace", metavar="FILE", help="of one case: a trace for Perfetto, .json or .json.gz")
    add("--csv", metavar="FILE", help="rows as CSV")
    add("--json", metavar="FILE", help="rows as JSON")
    add("--table", metavar="FILE", help="a table to select by, as strata tune makes: STRATA_TABLE=FILE")
    add("--describe", action="store_true", help="the machines' constants, how sure they are, and their sources")
