"""An exchange of uneven parts, whose cores have uneven shares: see it in a trace (docs/profiling.md).

    strata-run -n 4 --trace naive.json.gz examples/imbalance.py
    strata-run -n 4 --trace balanced.json.gz examples/imbalance.py --partition balanced
    strata trace naive.json.gz
    strata trace naive.json.gz --compare balanced.json.gz --plot cores.svg --kind cores

Die 0 has most rows for everybody.  With ``--partition naive`` each peer has its own cores, so that those that read from
die 0 have most of the work; ``balanced``, which is what the library does, shares all units among all cores.
"""

from __future__ import annotations

import argparse

import numpy as np

import strata

STEPS, WIDTH, MANY, FEW = 20, 1024, 2048, 128


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--partition", choices=("naive", "balanced"), default="naive")
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    g = strata.world()
    rows = [MANY if die == 0 else FEW for die in range(g.size)]  # that each die has for each
    sends = [rows[g.rank]] * g.size
    source = strata.empty((sum(sends), WIDTH), "u1")
    source[:] = g.rank + 1
    found = strata.empty((sum(rows), WIDTH), "u1")
    g.barrier()
    for step in range(args.steps):
        with strata.tag(step=step):
            g.all_to_all_v(source, sends, found, rows, cores=g.size, partition=args.partition)
    wanted = np.repeat(np.arange(1, g.size + 1), rows)
    assert (found == wanted[:, None]).all()
    if g.rank == 0:
        size = source.nbytes >> 10
        print(f"{args.steps} exchanges of {size} KiB at most on {g.size} dies, partition {args.partition}")


if __name__ == "__main__":
    main()
