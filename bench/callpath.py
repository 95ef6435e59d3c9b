#!/usr/bin/env python3
"""How many instructions does a call of a small operation take, and where: interpreter, Cython front, core?

A group of one, so that nothing waits and every run counts the same. Valgrind's callgrind counts the calling thread
over two loops of different length; the difference is the call. Beside the calls stand those bound beforehand
(`g.all_reduce.bind`). *loop* is the loop alone, which each figure contains. Lines of the core's headers count
for the core wherever the compiler has put them. Valgrind's CPU has AVX2 at most, so kernels take that path.

    bench/callpath.py                               # a table, and the functions of most instructions
    bench/callpath.py --json now.jsonl; bench/compare.py before.jsonl now.jsonl
    bench/callpath.py --report                      # for CI: says so where there is no valgrind, and goes on
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from bench_lib.lines import Kind, write

LAYERS = ("interpreter", "front", "core", "other")
KINDS = {"call": Kind(("case",), less=("instructions", *LAYERS))}
FEW, MANY, WARM = 10, 110, 30
MARK = "getpgrp"  # callgrind dumps what it has counted, and begins anew, whenever this is called
# What is counted, by name: what comes before, and the line in the loop.
CASES = {
    "loop": ("", "pass"),
    "barrier": ("", "g.barrier()"),
    "all_reduce 8 B": ("", "g.all_reduce(x, y)"),
    "send and recv 8 B": ("", "g.send(x, 0); g.recv(y, 0)"),
    "barrier, bound": ("f = g.barrier.bind()", "f()"),
    "all_reduce 8 B, bound": ("f = g.all_reduce.bind(x, y)", "f()"),
    "send and recv 8 B, bound": ("s = g.send.bind(x, 0); r = g.recv.bind(y, 0)", "s(); r()"),
}
PROGRAM = """
import os, sys
import strata
g, wanted = strata.world(), {wanted!r}
x, y = strata.zeros(2, "f4"), strata.zeros(2, "f4")
cases = {cases!r}
for name in wanted:
    before, line = cases[name]
    space = {{}}
    exec("def make(g, x, y):\\n " + (before or "pass") + "\\n def loop(times):\\n  for _ in range(times):\\n   " + line
         + "\\n return loop", space)
    loop = space["make"](g, x, y)
    loop({warm}); os.getpgrp(); loop({few}); os.getpgrp(); loop({many}); os.getpgrp()
"""


class Spot(NamedTuple):
    """Where instructions are: object file, source file of the line, function that holds it."""

    object: str
    source: str
    function: str


def parse(text: str) -> Counter[Spot]:
    """Instructions of each spot itself, in a file of callgrind."""
    names: dict[str, dict[str, str]] = {"ob": {}, "fl": {}, "fn": {}}
    kinds = {"fi": "fl", "fe": "fl", "cfi": "fl", "cfl": "fl", "cob": "ob", "cfn": "fn"}
    here, found, called = {"ob": "", "fl": "", "fn": ""}, Counter[Spot](), False
    for line in text.splitlines():
        if match := re.match(r"(c?(?:ob|f[lien]))=(?:\((\d+)\))?\s*(.*)", line):
            word, number, name = match.groups()
            kind = kinds.get(word, word)
            if number:
                name = names[kind].setdefault(number, name) if name else names[kind][number]
            if not word.startswith("c"):
                here[kind] = name
        elif line.startswith("calls="):
            called = True  # the next line is what was called cost, which is counted where it was spent
        elif re.match(r"[+\-*\d]", line):
            if not called:
                found[Spot(here["ob"], here["fl"], here["fn"])] += int(line.split()[1])
            called = False
    return found


def layer(spot: Spot) -> str:
    """One of LAYERS."""
    if "/strata/" in spot.object:
        return "core" if Path(spot.source).name.startswith("st_") else "front"
    python = re.match(r"(lib)?python[\d.]*", Path(spot.object).name)
    return "interpreter" if python else "other"


def label(spot: Spot) -> str:
    """A function as a reader knows it; of the core, which is mostly inlined, the header and whose code it is in."""
    function = re.sub(r"^__pyx_\w*?_6strata_5_core_\d+", "", spot.function)
    if layer(spot) == "core" and not spot.function.startswith("st_"):
        return f"{Path(spot.source).name} in {function}"
    return function


def calls(few: Counter[Spot], many: Counter[Spot]) -> dict[str, Any]:
    """Instructions of one call, of each layer, and of each function that has one."""
    layers, functions = dict.fromkeys(LAYERS, 0.0), Counter[tuple[str, str]]()
    for spot in {*few, *many}:
        each = (many[spot] - few[spot]) / (MANY - FEW)
        layers[layer(spot)] += each
        functions[layer(spot), label(spot)] += each
    return {"instructions": round(sum(layers.values()), 2), **{name: round(n, 2) for name, n in layers.items()},
            "functions": [[*name, round(n, 2)] for name, n in functions.most_common() if n >= 0.5]}


def wanted() -> tuple[list[str], list[str]]:
    """Names of cases that this strata has, and of those it has not."""
    probe = "import strata; strata.world().barrier.bind"
    has = subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode == 0
    bound = [name for name in CASES if "bound" in name]
    return [name for name in CASES if has or name not in bound], [] if has else bound


def count(names: list[str]) -> list[dict[str, Any]]:
    """A row for each case. RuntimeError, with what valgrind said, if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        program, out = Path(folder) / "program.py", Path(folder) / "out"
        program.write_text(PROGRAM.format(wanted=names, cases=CASES, warm=WARM, few=FEW, many=MANY))
        root = str(Path(__file__).resolve().parents[1])
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--dump-before={MARK}", "--separate-threads=yes",
             f"--callgrind-out-file={out}", sys.executable, str(program)], capture_output=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": root, "OPENBLAS_NUM_THREADS": "1"})  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"status {done.returncode} under valgrind: {done.stderr.strip()[-600:]}")
        # Of each case a part for the first loop, one for the second, and before them one for all else.
        parts = [Path(f"{out}.{k}-01") for k in range(1, 3 * len(names) + 1)]
        if missing := [part.name for part in parts if not part.exists()]:
            raise RuntimeError(f"callgrind wrote no {missing[0]}: it does not see {MARK} called")
        return [{"case": name, **calls(parse(parts[3 * k + 1].read_text()), parse(parts[3 * k + 2].read_text()))}
                for k, name in enumerate(names)]


def report(rows: Iterable[dict[str, Any]], most: int) -> str:
    """A table, and of each case the functions with most instructions."""
    rows = list(rows)
    lines = [f"{'instructions of a call':26} {'all':>8} " + " ".join(f"{name:>12}" for name in LAYERS)]
    for row in rows:
        lines.append(f"{row['case']:26} {row['instructions']:8.0f} " + " ".join(f"{row[n]:12.0f}" for n in LAYERS))
    for row in rows:
        if most and row["case"] != "loop":
            lines += ["", f"{row['case']}, by function"]
            lines += [f"  {n:7.0f}  {where:11}  {name}" for where, name, n in row["functions"][:most]]
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Counts, prints, writes what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", type=int, default=12, metavar="N", help="of each case in the table (12)")
    parser.add_argument("--report", action="store_true", help="status 0 also where valgrind is missing or fails")
    parser.add_argument("--json", metavar="FILE", help="all figures, one JSON object a line")
    options = parser.parse_args(argv)
    if shutil.which("valgrind") is None:
        print("callpath: NOTHING WAS COUNTED: valgrind is not installed (on Debian and Ubuntu: apt install valgrind)")
        return 0 if options.report else 1
    names, missing = wanted()
    try:
        rows = count(names)
    except RuntimeError as error:
        print(f"callpath: NOTHING WAS COUNTED: {error}")
        return 0 if options.report else 1
    print(report(rows, options.functions))
    if missing:
        print(f"\nnot counted, since this strata binds no operations: {'; '.join(missing)}")
    write(options.json, "callpath", KINDS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
