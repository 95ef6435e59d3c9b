"""Every figure and table of the StrataCL paper, by the timing plane: published, ours, ratio, fitted or predicted.

    python tools/reproduce.py [-k WORD]          the table; only claims with WORD in them
    python tools/reproduce.py --sensitivity      where conclusions flip if constants are 20 % off
    python tools/reproduce.py --beyond           selection against the better of ring and full mesh
    python tools/reproduce.py --fit              the constants that are fitted, found again
    python tools/reproduce.py --page FILE        all of them, as a page of the docs

A row that is off by more than 15 % says why we think it is.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from reproduction import beyond, fitting, moe, page, sensitivity, sharing, transfers, workloads  # noqa: E402

from strata.errors import StrataError  # noqa: E402
from strata.machine import Machine, load  # noqa: E402

CLAIMS = [*transfers.CLAIMS, *sharing.CLAIMS, *moe.CLAIMS, *workloads.CLAIMS]


def found(machine: Machine, word: str = "") -> Iterator[page.Found]:
    """Our figure of every claim."""
    for claim in CLAIMS:
        if word.lower() not in f"{claim.where} {claim.what}".lower():
            continue
        try:
            yield page.Found(claim, claim.ours(machine))
        except StrataError as error:
            yield page.Found(claim, float("nan"), f"{type(error).__name__}: {error}")


def flips(machine: Machine) -> list[str]:
    """The table of what flips where."""
    lines = ["| conclusion | margin | smallest, with one constant off | flips at |", "|---|---|---|---|"]
    rows = list(sensitivity.rows(machine))
    for text in dict.fromkeys(row.conclusion for row in rows):
        mine = [row for row in rows if row.conclusion == text]
        least = min(mine[1:], key=lambda row: row.margin)
        flipped = [f"{row.constant} x {row.factor:g}" for row in mine[1:] if row.margin < 1]
        smallest = f"{least.margin:.3f} ({least.constant} x {least.factor:g})"
        lines.append(f"| {text} | {mine[0].margin:.3f} | {smallest} | {', '.join(flipped) or 'nowhere'} |")
    return lines


def ahead(machine: Machine, ranks: tuple[int, ...], most: int) -> list[str]:
    """The table of selection against ring and full mesh."""
    lines = ["| ranks | bytes | ring, us | full mesh, us | selected | us | ahead |", "|---|---|---|---|---|---|---|"]
    for row in beyond.rows(machine, ranks, tuple(s for s in beyond.SIZES if s <= most)):
        lines.append(f"| {row.ranks} | {row.nbytes} | {row.ring:.1f} | {row.mesh:.1f} | {row.chosen} | {row.ours:.1f} "
                     f"| {row.ahead:.3f} |")  # fmt: skip
        print(lines[-1], file=sys.stderr)
    return lines


def fitted(machine: Machine) -> list[str]:
    """The table of constants that are fitted."""
    again = fitting.fit(machine).constants()
    lines = ["| constant | in the description | fitted again |", "|---|---|---|"]
    return lines + [f"| {n} | {machine.constants()[n]:g} | {again[n]:g} |" for n in fitting.FITTED]


def main() -> int:
    """Exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default="cm384", help="a name, or a .toml file (default cm384)")
    parser.add_argument("-k", default="", metavar="WORD", help="only claims with this in them")
    parser.add_argument("--sensitivity", action="store_true")
    parser.add_argument("--beyond", action="store_true")
    parser.add_argument("--ranks", default="8,32,128,512", help="of --beyond")
    parser.add_argument("--most", type=int, default=1 << 30, help="bytes, of --beyond")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--page", metavar="FILE", help="write all of it as Markdown")
    parser.add_argument("--json", metavar="FILE", help="the claims as JSON")
    args = parser.parse_args()
    machine = load(args.machine)
    ranks = tuple(int(n) for n in args.ranks.split(","))
    parts: list[tuple[str, list[str]]] = []
    began = time.perf_counter()
    if args.page or not (args.sensitivity or args.beyond or args.fit):
        claims = list(found(machine, args.k))
        parts.append((f"The paper's figures ({page.summary(claims)})", page.table(claims)))
        if args.json:
            rows = [{"where": f.claim.where, "what": f.claim.what, "published": f.claim.published,
                     "unit": f.claim.unit, "kind": f.claim.kind, "ours": f.value, "ratio": f.claim.ratio(f.value)}
                    for f in claims]  # fmt: skip
            Path(args.json).write_text(json.dumps(rows, indent=1))
    if args.page or args.fit:
        parts.append(("Constants that are fitted", fitted(machine)))
    if args.page or args.sensitivity:
        parts.append(("Where conclusions flip", flips(machine)))
    if args.page or args.beyond:
        parts.append(("Beyond the paper: selection", ahead(machine, ranks, args.most)))
    text = "\n\n".join(f"## {title}\n\n" + "\n".join(lines) for title, lines in parts)
    if args.page:
        Path(args.page).write_text(page.PREAMBLE + text + "\n")
    print(text)
    print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
