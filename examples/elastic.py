#!/usr/bin/env python3
"""Train through the death of a die: the survivors go on, and a new process takes the dead one's place.

    strata-run -n 4 --restarts 1 examples/elastic.py

The network and the digits are those of train_digits.py. At a step that the seed chooses one die kills itself with
SIGKILL, in the middle of the job. The others see PeerDead, shrink(), and train on without it; strata-run starts the
die again meanwhile. Some steps later the survivors grow(): the new process comes out of strata.world() in the same
group, and gets pictures, weights and step by broadcast from a survivor.

Ends with status 1 if the accuracy on the test set is not above 0.95, if any die's weights differ, or if the job does
not end with as many dies as it began with, one of them started again.
"""

import argparse
import os
import signal
import sys

import numpy as np
from train_digits import GOAL, LAYERS, TEST, accuracy, backward, fingerprints, load, split

import strata

ALONE = 25      # steps that the survivors train before they grow


class State:
    """What a newcomer must be given: the pictures, the network, and how far it is trained."""

    def __init__(self):
        size = sum((rows + 1) * columns for rows, columns in zip(LAYERS[:-1], LAYERS[1:], strict=True))
        self.pictures, self.digits = strata.empty((1797, 64), "f4"), strata.empty((1797,), "i8")
        self.weights, self.velocity = strata.zeros(size, "f4"), strata.zeros(size, "f4")
        self.gradient = strata.zeros(size, "f4")
        self.step = -1      # nothing is known here yet

    def begin(self, g, seed):
        """The first processes: data from die 0, and the same first weights on all."""
        pictures, digits = load(g)
        order = np.random.default_rng(seed).permutation(len(pictures))
        self.pictures[:], self.digits[:] = pictures[order], digits[order]
        start = np.random.default_rng(seed)
        for matrix in split(self.weights)[::2]:
            matrix[:] = start.normal(0, np.sqrt(2 / len(matrix)), matrix.shape)
        self.step = 0

    def share(self, g):
        """All members get the state of the one that is furthest. After this they agree, whoever is new."""
        steps = g.all_gather(np.array([self.step]))[:, 0]
        root = int(steps.argmax())
        for part in (self.pictures, self.digits, self.weights, self.velocity):
            g.broadcast(part, root)
        self.step = int(steps[root])

    def train(self, g, options):
        """One step: each member works on its part of the batch."""
        x, y = self.pictures[TEST:], self.digits[TEST:]
        steps = -(-len(x) // options.batch)
        order = np.random.default_rng((options.seed, self.step // steps)).permutation(len(x))
        batch = order[self.step % steps * options.batch:][:options.batch]
        here = batch[g.rank::g.size]
        backward(x[here], y[here], split(self.weights), split(self.gradient))
        g.all_reduce(self.gradient)     # PeerDead comes out here, and nothing has changed yet
        self.velocity *= 0.9
        self.velocity -= options.rate / len(batch) * self.gradient
        self.weights += self.velocity
        self.step += 1


def run(options):
    """Train to the end, whatever happens. Returns the group that is there then, and the state."""
    state, fresh = State(), strata.incarnation() == 0
    g = strata.world()                  # a newcomer waits here until the survivors grow()
    ndies = g.size
    random = np.random.default_rng(options.seed)
    victim, crash = int(random.integers(ndies)), int(random.integers(50, options.steps // 2))
    if fresh:
        state.begin(g, options.seed)
    else:
        print(f"rank {strata.world().ranks[g.rank]} is back, in {g.name}", flush=True)
        state.share(g)
    grow_at = None
    while state.step < options.steps:
        if fresh and ndies > 1 and state.step == crash and g.ranks[g.rank] == victim:
            print(f"rank {victim} kills itself at step {crash}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            if grow_at is not None and state.step >= grow_at:
                g, grow_at = g.grow(), None
                state.share(g)
                continue
            state.train(g, options)
        except (strata.PeerDead, strata.GroupBroken) as error:
            g = g.shrink()
            state.share(g)
            grow_at = state.step + ALONE
            if g.rank == 0:
                print(f"step {state.step}: {type(error).__name__}; {g.size} dies go on", flush=True)
    return g, ndies, state


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--batch", type=int, default=64, help="pictures in a step, over all dies")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    strata.init()
    g, ndies, state = run(options)
    score = accuracy(g, state.pictures[:TEST], state.digits[:TEST], state.weights)
    prints = fingerprints(g, state.weights)
    lives = g.all_gather(np.array([strata.incarnation()]))[:, 0].tolist()
    whole = g.size == ndies and sum(lives) == (ndies > 1)
    same = len(set(prints)) == 1
    if g.rank == 0:
        print(f"{g.size} of {ndies} dies at the end, incarnations {lives}; test accuracy {score:.4f}; weights "
              + (f"bit-identical, sha256 {prints[0][:16]}" if same else "DIFFERENT"))
    return 0 if score > GOAL and same and whole else 1


if __name__ == "__main__":
    sys.exit(main())
