#!/usr/bin/env python3
"""What do MoE dispatch and combine cost, against an all_to_all_v with packing? Does balancing help, does memory grow?

    high       high throughput: 4096 tokens a die, hidden 7168, top-8 of 256 experts, bfloat16, against *staged*:
               rows packed by destination, all_to_all_v, and all_to_all_v back with a sum; by turns in one run
    low        low latency: 128 tokens a die, as bfloat16 and as float8, against *staged*: rows packed by expert,
               all_to_all_v, spread over windows; and back with a weighted sum
    partition  balanced against naive, experts chosen by Zipf's law: bytes of each core in the plans, and time
    rounds     300 rounds whose routing changes: fabric memory, and rounds that had to wait for pages (phase 2)

Times are medians over rounds of the slowest die. *read* and *written* are bytes of rows, counted from the routing,
per token of a die; staged moves more of them, as its rows go through packs.

    bench/moe.py                          # all, 8 dies
    bench/moe.py high --tokens 512        # a smaller one
    bench/moe.py rounds --rounds 300 --json moe.jsonl
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before numpy
os.environ.setdefault("STRATA_CACHE_BYTES", "2G")  # arrays of both systems are used again, whatever their size

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_lib.lines import Kind, write  # noqa: E402
from moe_lib import measure, report  # noqa: E402

import strata  # noqa: E402

QUESTIONS = ("high", "low", "partition", "rounds")
TASK = ("dies", "tokens", "hidden", "topk", "experts", "system")
KINDS = {"high": Kind(TASK, less=("dispatch", "combine")), "low": Kind(TASK, less=("dispatch", "combine")),
         "partition": Kind((*TASK, "mode", "cores", "zipf"),
                           less=("dispatch", "combine", "dispatch_spread", "combine_spread")),
         "rounds": Kind(TASK, less=("waited", "wait_us"))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", nargs="*", help=f"of {', '.join(QUESTIONS)}; all by default")
    parser.add_argument("-n", type=int, default=8, help="dies (default 8)")
    parser.add_argument("--tokens", type=int, help="of each die (default: 4096, low 128, partition and rounds 512)")
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--topk", type=int, default=8)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--zipf", type=float, default=1.2, help="exponent of the choices in `partition` (default 1.2)")
    parser.add_argument("--cores", type=int, default=8, help="emulated cores in `partition` (default 8)")
    parser.add_argument("--rounds", type=int, help="default: 5; partition 5; low 30; rounds 300")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="all figures, one JSON object a line")
    options = parser.parse_args()
    wrong = [question for question in options.questions if question not in QUESTIONS]
    if wrong:
        parser.error(f"{wrong[0]!r} is none of {', '.join(QUESTIONS)}")
    rows = []
    for question in options.questions or QUESTIONS:
        task = measure.Task.of(question, options)
        found = strata.spawn(getattr(measure, question), options.n, task)[0]
        print(getattr(report, question)(task, found), flush=True)
        rows += [{"record": question, "dies": options.n, **task._asdict(), **row} for row in found]
    write(options.json, "moe", KINDS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
