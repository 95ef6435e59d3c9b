"""Kills a die in a random operation at a random moment, over and over.

    python tools/kill_trials.py N [--seed S] [--only OPERATION]

Each trial draws an operation, a size, 2 to 8 dies, a victim and a moment from its seed.  Every
survivor must get PeerDead (or GroupBroken) that names the victim, a later operation must say so
too, and shrink() must give a group with right results; nothing may hang or stay behind.  Prints
how long survivors took from the kill to the error.  A failed trial prints how to replay it.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import faultlib  # noqa: E402
import faulttrials  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", type=int, metavar="N", help="how many")
    parser.add_argument("--seed", type=int, help="of the first trial; the next ones count up (default: random)")
    parser.add_argument("--only", choices=faulttrials.OPERATIONS, help="only trials of this operation")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for each trial")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if args.seed is None else args.seed
    print(f"kill_trials: {args.trials} trials, seed {seed}", flush=True)
    before, shm, began = set(os.listdir("/dev/shm")), faultlib.shm_bytes(), time.monotonic()
    latencies: list[float] = []
    seen: list[float] = []
    kinds: collections.Counter[str] = collections.Counter()
    done = failed = 0
    while done < args.trials:
        trial = faulttrials.Trial.draw(seed)
        seed += 1
        if args.only and trial.operation != args.only:
            continue
        done += 1
        start = time.monotonic()
        try:
            outcome = faulttrials.run(trial)
        except AssertionError as error:
            failed += 1
            print(f"FAILED {trial}\n{error}\nreplay: python tools/kill_trials.py 1 --seed {trial.seed}", flush=True)
            continue
        if args.verbose:
            worst = max(outcome.latencies) * 1e3
            print(f"{trial}: {worst:.1f} ms, {outcome.kinds}, {time.monotonic() - start:.2f} s", flush=True)
        if trial.operation not in ("init", "compute"):  # where the others may not have been waiting
            latencies += outcome.latencies
            seen += outcome.seen
        kinds.update(outcome.kinds)
    left = sorted(name for name in set(os.listdir("/dev/shm")) - before if "strata" in name)
    for what, times in (("the kill", latencies), ("the death being visible", seen)):
        times.sort()
        p = [times[min(int(len(times) * q), len(times) - 1)] * 1e3 for q in (0.5, 0.9, 0.99, 1)] if times else [0.0] * 4
        print(f"from {what} to the error, {len(times)} survivors: "
              "p50 {:.1f} ms, p90 {:.1f} ms, p99 {:.1f} ms, max {:.1f} ms".format(*p))  # fmt: skip
    print(f"errors: {dict(kinds)}; left in /dev/shm: {left or 'nothing'}, {faultlib.shm_bytes() - shm:+d} bytes")
    print(f"{done - failed} of {done} trials passed in {time.monotonic() - began:.0f} s")
    return 1 if failed or left else 0


if __name__ == "__main__":
    sys.exit(main())
