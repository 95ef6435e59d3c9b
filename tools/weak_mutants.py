"""Which memory orders of the core does weak order find missing?

The orders of each function of the core that has any (releases, acquires, seq_cst accesses, read-modify-writes,
fences) are taken out, one function at a time, and the litmus tests of its protocols (tests/c/test_litmus_core.c)
are run until the forbidden outcome is seen.  A function that no protocol comes to is not in the table.

Usage: python tools/weak_mutants.py [--runs N] [--seed N] [-k WORD]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import ctest
from common import ROOT, blank_c

FUNCTION = re.compile(r"^(?:static )?(?:inline )?[\w *]+?\b(st_\w+)\([^;{]*?\)\n\{", re.M | re.S)
ORDERED = re.compile(
    r"\bst_(?:(?:load|store|add|or|and|swap|cas)_(?:acquire|release|seqcst|acq_rel)_\d+|fence_seqcst)\("
)
PROGRAM = ROOT / "tests" / "c" / "test_litmus_core.c"


def ordered(root: Path) -> dict[str, str]:
    """Functions of the core whose own text has an order, with the header they are in."""
    found = {}
    for path in sorted((root / "strata" / "_core" / "include").glob("*.h")):
        if path.name in ("st_atomic.h", "st_checked.h"):
            continue
        code = blank_c(path.read_text())
        starts = list(FUNCTION.finditer(code))
        for match in starts:
            end = code.find("\n}", match.end())
            if ORDERED.search(code, match.end(), end):
                found[match[1]] = path.name
    return found


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000, help="of each protocol, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-k", dest="word", default="", help="only functions whose name contains this")
    args = parser.parse_args(argv)
    program = ctest.made(ROOT, PROGRAM, "plain")
    functions = {name: header for name, header in ordered(ROOT).items() if args.word in name}
    table: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for name in functions:
        done = subprocess.run([program, str(args.seed), str(args.runs), name], capture_output=True, text=True,
                              timeout=600, check=False)  # fmt: skip
        if done.returncode:
            table[name].append(("(ends with " + (done.stderr.strip().splitlines() or ["?"])[-1] + ")", 1))
        for line in done.stdout.splitlines():
            kind, *fields = line.split("\t")
            if kind == "mutant":
                table[name].append((fields[1], int(fields[2])))
    print("| function | header | found | by, in run |\n|---|---|---|---|")
    for name, rows in sorted(table.items()):
        found = sorted((run, test) for test, run in rows if run)
        how = f"{found[0][1]}, {found[0][0]}" if found else "not by " + ", ".join(sorted(test for test, _ in rows))
        print(f"| `{name}` | {functions[name]} | {'yes' if found else 'no'} | {how} |")
    hits = sum(any(run for _, run in rows) for rows in table.values())
    print(f"\n{len(functions)} functions with orders, {len(table)} in a protocol, {hits} found; seed {args.seed}, "
          f"at most {args.runs} runs")
    return 0 if table else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
