#!/usr/bin/env python3
"""Train a small network on real handwritten digits, data-parallel over the dies of a job.

    strata-run -n 4 examples/train_digits.py        # 4 dies
    python examples/train_digits.py                 # one die, no launcher

Die 0 reads scikit-learn's digits (1797 pictures of 8 x 8) and broadcasts them; each die keeps every
n-th picture as its shard. All gradients live in one flat fabric array, and the parameters' gradients are
views of it, so that a step costs one all_reduce, in place, with no copy on any side.

Which pictures make a step depends on the seed alone: a die works on those that lie in its shard,
be they many or none. So every n trains on the same steps and ends with the same weights up to the
rounding of sums, and for one n the weights are the same bits in every run and on every die.

Ends with status 1 if the accuracy on the test set is not above 0.95 or any die's weights differ.
"""

import argparse
import hashlib
import sys
import time

import numpy as np

import strata

LAYERS = (64, 128, 10)      # pixels, hidden units, digits
TEST = 360                  # pictures held out
GOAL = 0.95


def load(g):
    """Pictures (1797, 64) in 0..1 and digits (1797,), read by die 0 alone, equal on all dies."""
    pictures, digits = strata.empty((1797, 64), "f4"), strata.empty((1797,), "i8")
    if g.rank == 0:
        from sklearn.datasets import load_digits
        source = load_digits()
        pictures[:], digits[:] = source.data / 16, source.target
    return g.broadcast(pictures), g.broadcast(digits)


def split(flat):
    """Views of a flat array, one per parameter: weights and biases, layer by layer."""
    views, at = [], 0
    for rows, columns in zip(LAYERS[:-1], LAYERS[1:], strict=True):
        for shape in ((rows, columns), (columns,)):
            size = int(np.prod(shape))
            views.append(flat[at:at + size].reshape(shape))
            at += size
    return views


def forward(x, params):
    """Hidden activations and log-probabilities of the digits."""
    w1, b1, w2, b2 = params
    hidden = np.maximum(x @ w1 + b1, 0)
    logits = hidden @ w2 + b2
    logits -= logits.max(axis=1, keepdims=True)
    return hidden, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def backward(x, y, params, grads):
    """Write the gradient of the summed loss into `grads`; return that loss."""
    hidden, logp = forward(x, params)
    rows = np.arange(len(y))
    error = np.exp(logp)
    error[rows, y] -= 1
    back = (error @ params[2].T) * (hidden > 0)
    for grad, value in zip(grads, (x.T @ back, back.sum(0), hidden.T @ error, error.sum(0)), strict=True):
        grad[:] = value
    return -logp[rows, y].sum()


def train(g, x, y, options):
    """Run all steps on this die's shard. Returns the flat weights."""
    size = sum((rows + 1) * columns for rows, columns in zip(LAYERS[:-1], LAYERS[1:], strict=True))
    weights, velocity = strata.zeros(size, "f4"), np.zeros(size, "f4")
    gradient = strata.zeros(size + 1, "f4")         # the last element carries the loss
    params, grads = split(weights), split(gradient)

    start = np.random.default_rng(options.seed)
    for matrix in params[::2]:
        matrix[:] = start.normal(0, np.sqrt(2 / len(matrix)), matrix.shape)

    mine = slice(g.rank, None, g.size)              # this die's shard
    x, y, total = x[mine].copy(), y[mine].copy(), len(x)
    bar = Progress(options.epochs, g.rank == 0)
    for epoch in range(options.epochs):
        order, losses = np.random.default_rng((options.seed, epoch)).permutation(total), 0.0
        for step in range(0, total, options.batch):
            batch = order[step:step + options.batch]
            here = batch[batch % g.size == g.rank] // g.size
            gradient[-1] = backward(x[here], y[here], params, grads)
            g.all_reduce(gradient)
            velocity *= 0.9
            velocity -= options.rate / len(batch) * gradient[:-1]
            weights += velocity
            losses += float(gradient[-1])
        bar.show(epoch + 1, losses / total)
    return weights


class Progress:
    """A bar that redraws itself on a terminal, and ten plain lines anywhere else."""

    def __init__(self, total, speaks):
        self.total, self.speaks, self.start = total, speaks, time.perf_counter()
        self.live = speaks and sys.stdout.isatty()

    def show(self, done, loss):
        last = done == self.total
        if not self.speaks or not (self.live or last or done % max(1, self.total // 10) == 0):
            return
        filled = 30 * done // self.total
        line = (f"epoch {done:3d}/{self.total} [{'#' * filled}{'.' * (30 - filled)}] "
                f"loss {loss:.4f}  {time.perf_counter() - self.start:.1f} s")
        print(f"\r{line}" if self.live else line, end="" if self.live and not last else "\n", flush=True)


def accuracy(g, x, y, weights):
    """Share of right answers on the test set, each die judging its part of it."""
    part = slice(g.rank, None, g.size)
    right = np.array([np.sum(forward(x[part], split(weights))[1].argmax(axis=1) == y[part])], "i8")
    return int(g.all_reduce(right)[0]) / len(y)


def fingerprints(g, weights):
    """SHA-256 of every die's weights, in rank order."""
    digest = np.frombuffer(hashlib.sha256(weights.tobytes()).digest(), "u1").copy()
    return [row.tobytes().hex() for row in g.all_gather(digest)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=64, help="pictures in a step, over all dies")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    strata.init()
    g = strata.world()
    x, y = load(g)
    shuffle = np.random.default_rng(options.seed).permutation(len(x))
    x, y = x[shuffle], y[shuffle]

    weights = train(g, x[TEST:], y[TEST:], options)
    score, prints = accuracy(g, x[:TEST], y[:TEST], weights), fingerprints(g, weights)
    same = len(set(prints)) == 1
    if g.rank == 0:
        print(f"test accuracy {score:.4f} on {TEST} digits no die has seen")
        print(f"weights of {g.size} dies: " + (f"bit-identical, sha256 {prints[0][:16]}" if same else
                                               "DIFFERENT: " + " ".join(p[:16] for p in prints)))
    return 0 if score > GOAL and same else 1


if __name__ == "__main__":
    sys.exit(main())
