"""Operations on memory that their peers have never seen, and map as they come to it (docs/profiling.md).

    STRATA_REGISTRATION=just_in_time strata-run -n 4 --trace late.json.gz examples/late_registration.py
    strata trace late.json.gz

Each step gathers the beginning of an array that no step has used before.  With STRATA_REGISTRATION=on_allocation, the
default, peers map arrays as they are made, and no step waits for that.
"""

from __future__ import annotations

import argparse

import strata

STEPS, PAGE, BYTES = 40, 2 << 20, 32 << 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    g = strata.world()
    arrays = [strata.empty((PAGE,), "u1") for _ in range(args.steps)]
    for array in arrays:
        array[:BYTES] = g.rank + 1
    found = strata.zeros((g.size, BYTES), "u1")
    for step in range(args.steps):
        with strata.tag(step=step):
            g.all_gather(arrays[step][:BYTES], found)
    for die in range(g.size):
        assert (found[die] == die + 1).all()
    if g.rank == 0:
        print(f"{args.steps} steps on {g.size} dies, each on an array of its own")


if __name__ == "__main__":
    main()
