"""Training steps in which one die has more to do than the others: find it in a trace (docs/profiling.md).

    strata-run -n 4 --trace slow.json.gz examples/slow_die.py
    strata trace slow.json.gz

Every die multiplies matrices and then sums its gradients with all others; the last die, or ``--slow R``, multiplies
twenty times as many.  ``--slow none``: all alike.
"""

from __future__ import annotations

import argparse

import numpy as np

import strata

STEPS, WIDTH, GRADIENTS = 30, 96, 16384
FEW, MANY = 20, 400  # products


def work(weights: np.ndarray, rounds: int) -> np.ndarray:
    """So many products of matrices."""
    found = weights
    for _ in range(rounds):
        found = found @ weights
        found /= np.abs(found).max()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slow", default="last", help="the die that has more to do; none")
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    g = strata.world()
    slow = {"last": g.size - 1, "none": -1}.get(args.slow)
    slow = int(args.slow) if slow is None else slow
    weights = np.random.default_rng(7).standard_normal((WIDTH, WIDTH)).astype("f4")
    gradients = strata.zeros((GRADIENTS,), "f4")
    work(weights, FEW)
    g.barrier()
    for step in range(args.steps):
        with strata.tag(step=step):
            with strata.probe("compute"):
                found = work(weights, MANY if g.rank == slow else FEW)
            gradients[:] = g.rank + 1 + step
            g.all_reduce(gradients)
    wanted = g.size * (g.size + 1) / 2 + g.size * (args.steps - 1)
    assert (gradients == wanted).all() and np.isfinite(found).all(), (gradients[:4], wanted)
    if g.rank == 0:
        print(f"{args.steps} steps on {g.size} dies; slow: {'none' if slow < 0 else f'die {slow}'}")


if __name__ == "__main__":
    main()
