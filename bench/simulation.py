#!/usr/bin/env python3
"""How long does the simulator take, and how much does a choice of algorithm lose that goes by it, or by the model?

Nothing runs but the simulator. *sweep*: seconds of CPU time for sizes of one algorithm, choice, plans and all.
*choice*: for random sizes, the time of what was chosen over that of the better of ring and full mesh, less 1.

    bench/simulation.py                                 # sweeps at 32 ranks, choices at 8, 16, 32
    bench/simulation.py --ranks 8,64,256 --sizes 3 --seed 7
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from strata.errors import InvalidArgument
from strata.prediction import simulate

ALGORITHMS = ("auto", "full_mesh", "ring", "hierarchical", "rhd")


def sweep(algorithm: str, ranks: int, sizes: list[int]) -> float:
    """Seconds of CPU time that predicting an all_gather of each size takes."""
    begin = time.process_time()
    for nbytes in sizes:
        simulate("all_gather", nbytes, ranks, algorithm=None if algorithm == "auto" else algorithm)
    return time.process_time() - begin


def choice(operation: str, nbytes: int, ranks: int) -> tuple[float, float, str, str, float]:
    """What choosing by simulation, and by the model, loses to the better of ring and full mesh; what each chose; and
    seconds of CPU time of the first."""
    begin = time.process_time()
    made = simulate(operation, nbytes, ranks, select="simulation")
    took = time.process_time() - begin
    model = simulate(operation, nbytes, ranks)
    us = []
    for name in ("full_mesh", "ring"):
        try:
            us.append(simulate(operation, nbytes, ranks, algorithm=name).time_us)
        except InvalidArgument:
            continue  # ring does not do everything
    best = min(us)
    return made.time_us / best - 1, model.time_us / best - 1, made.algorithm, model.algorithm, took


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--ranks", default="8,16,32", help="of the choices (default 8,16,32)")
    parser.add_argument("--sizes", type=int, default=6, help="random sizes for each number of ranks (default 6)")
    parser.add_argument("--largest", type=int, default=30, help="2 to this many bytes a rank (default 30)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    args = parser.parse_args(argv)
    simulate("all_gather", 64, 2)  # imports are not counted
    print("sweep of 20 sizes, 1K to 512M a rank, 32 ranks: seconds of CPU time")
    for name in ALGORITHMS:
        print(f"  {name:14} {sweep(name, 32, [1 << i for i in range(10, 30)]):7.2f}", flush=True)
    print(f"choices, seed {args.seed}: lost to the better of ring and full mesh (below 0: faster than both)")
    print(f"  {'operation':12} {'ranks':>5} {'bytes':>11}  {'by simulation':>24}  {'by the model':>24}  {'CPU s':>6}")
    chance, worst = random.Random(args.seed), -1.0
    for ranks in map(int, args.ranks.split(",")):
        for operation in ("all_gather", "all_to_all"):
            for _ in range(args.sizes):
                nbytes = int(2 ** chance.uniform(10, args.largest)) // ranks * ranks
                mine, model, chosen, other, took = choice(operation, nbytes, ranks)
                worst = max(worst, mine)
                print(f"  {operation:12} {ranks:5} {nbytes:11}  {chosen:>14} {100 * mine:+7.2f} %"
                      f"  {other:>14} {100 * model:+7.2f} %  {took:6.2f}", flush=True)  # fmt: skip
    print(f"by simulation, at worst {100 * worst:+.2f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
