#!/usr/bin/env python3
"""Train a mixture of experts on real handwritten digits, its experts spread over the dies of a job.

    strata-run -n 8 examples/moe_layer.py           # 16 experts on 8 dies, 2 of them for each picture
    python examples/moe_layer.py                    # one die, no launcher

The network: 64 pixels -> silu(hidden) -> hidden + experts(hidden) -> 10 digits. An expert is a perceptron of two
layers. The gate is a linear layer and a softmax; a picture goes to its top two experts, and their results are
added with the gate's probabilities, made to sum to one. A second loss keeps the load of experts even.

Dies work on different pictures and hold different experts. What lies between is `strata.moe.Buffer`:

    forward     dispatch(hidden, topk_idx, topk_weights)    rows go to the dies of their experts
                combine(results)                            sums of results come back
    backward    dispatch(gradient, handle)                  backward of combine: gradients of sums go where rows went
                combine(gradients, weights' gradients)      backward of dispatch: gradients of rows come back, summed

Gradients of what every die has (first layer, gate, last layer) are one all_reduce.

Then die 0 trains the same network alone, with all experts at home, no Buffer, and no group. If it goes through a
step's pictures in the same pieces as the dies did, it must have the same losses and weights, bit for bit: experts
get their rows in the same order (by die, then picture), two products have one sum in any order, and
all_reduce adds by rank. In one piece, sums over a step's pictures have another order, and so another rounding:
losses and weights must agree within 1e-3. For that it takes over which experts were chosen: where two are
nearly as good, a rounding decides, and from then on the two would not be the same network.

Ends with status 1 if any of that fails, if dies' weights differ, or if accuracy on the test set is not above 0.95.
The test set is judged in low-latency mode, as a server would: rows travel as float8 to the experts.
"""

import argparse
import sys
import time

import numpy as np
from ml_dtypes import bfloat16

import strata
from strata import moe

PIXELS, HIDDEN, INNER, DIGITS = 64, 64, 64, 10
TOPK = 2
TEST = 360                  # pictures held out
GOAL, NEAR = 0.95, 1e-3
EVEN = 0.02                 # weight of the second loss
MOMENTUM = 0.9


def load(g):
    """Pictures (1797, 64) in 0..1 and digits (1797,), read by die 0 alone, equal on all dies."""
    pictures, digits = strata.empty((1797, PIXELS), "f4"), strata.empty((1797,), "i8")
    if g.rank == 0:
        from sklearn.datasets import load_digits
        source = load_digits()
        pictures[:], digits[:] = source.data / 16, source.target
    return g.broadcast(pictures), g.broadcast(digits)


def views(flat, shapes):
    """Parts of a flat array with these shapes, one after the other."""
    made, at = [], 0
    for shape in shapes:
        size = int(np.prod(shape))
        made.append(flat[at:at + size].reshape(shape))
        at += size
    assert at == len(flat)
    return made


def silu(x):
    return x / (1 + np.exp(-x))


def silu_slope(x):
    gate = 1 / (1 + np.exp(-x))
    return gate * (1 + x * (1 - gate))


def fill(matrix, seed):
    matrix[:] = np.random.default_rng(seed).normal(0, np.sqrt(2 / len(matrix)), matrix.shape)


class Parameters:
    """Weights, their gradients and velocities: flat arrays, and views of them by `shapes`."""

    def __init__(self, shapes, seed, extra=0):
        size = sum(int(np.prod(shape)) for shape in shapes)
        self.flat, self.velocity = strata.zeros(size, "f4"), np.zeros(size, "f4")
        self.sums = strata.zeros(size + extra, "f4")    # gradients, and what travels with them
        self.slope = self.sums[:size]
        self.values, self.slopes = views(self.flat, shapes), views(self.slope, shapes)
        for number, value in enumerate(self.values):
            if value.ndim == 2:
                fill(value, (*seed, number))

    def step(self, rate):
        self.velocity *= MOMENTUM
        self.velocity -= np.float32(rate) * self.slope
        self.flat += self.velocity


class Expert:
    """Two layers, for the rows that one expert is given."""

    SHAPES = ((HIDDEN, INNER), (INNER,), (INNER, HIDDEN), (HIDDEN,))

    def __init__(self, number, seed):
        self.parameters = Parameters(self.SHAPES, (seed, 1, number))

    def forward(self, x):
        w1, b1, w2, b2 = self.parameters.values
        self.x, self.before = x, x @ w1 + b1
        self.inner = silu(self.before)
        return self.inner @ w2 + b2

    def backward(self, dy):
        """Gradients into `slopes`; returns that of x."""
        w1, _, w2, _ = self.parameters.values
        inside = (dy @ w2.T) * silu_slope(self.before)
        slopes = (self.x.T @ inside, inside.sum(0), self.inner.T @ dy, dy.sum(0))
        for slope, value in zip(self.parameters.slopes, slopes, strict=True):
            slope[:] = value
        return inside @ w1.T


class Experts:
    """Some experts at one place. Rows name them by number here, or -1."""

    def __init__(self, numbers, seed):
        self.list = [Expert(number, seed) for number in numbers]

    def forward(self, x, idx, weights):
        """(rows, HIDDEN): of each row the results of its experts here, times their weights, summed."""
        self.chosen = [np.nonzero(idx == number) for number in range(len(self.list))]
        self.weights, self.results, total = weights, [], strata.zeros(x.shape, "f4")
        for expert, (rows, nth) in zip(self.list, self.chosen, strict=True):
            self.results.append(expert.forward(x[rows]))
            total[rows] += weights[rows, nth][:, None] * self.results[-1]
        return total

    def backward(self, dtotal):
        """Gradients of rows and of weights, by that of the sums."""
        dx, dweights = strata.zeros(dtotal.shape, "f4"), strata.zeros(self.weights.shape, "f4")
        for expert, (rows, nth), result in zip(self.list, self.chosen, self.results, strict=True):
            slope = dtotal[rows]
            dweights[rows, nth] = (slope * result).sum(1)
            dx[rows] += expert.backward(self.weights[rows, nth][:, None] * slope)
        return dx, dweights

    def serve(self, packed, counts):
        """Results of packed windows (experts, rows, HIDDEN) with `counts` rows; a tuple is float8 and its scales."""
        rows = packed[0] if isinstance(packed, tuple) else packed
        results = strata.zeros(rows.shape, bfloat16)
        for number, count in enumerate(counts):
            x = rows[number, :count].astype("f4")
            if isinstance(packed, tuple):
                x *= packed[1][number, :count].repeat(128, axis=1)[:, :HIDDEN]
            results[number, :count] = self.list[number].forward(x)
        return results


class OverDies:
    """Experts of all dies: this one's part, and the Buffer to reach the others'. A die has one piece of a step."""

    def __init__(self, g, experts, seed):
        self.g, self.total = g, experts
        mine = np.array_split(np.arange(experts), g.size)[g.rank]
        self.begin, self.experts = int(mine[0]) if len(mine) else 0, Experts(mine, seed)
        self.buffer = moe.Buffer(g)

    def reduce(self, sums):
        self.g.all_reduce(sums[0], algorithm="full_mesh")      # adds by rank
        return sums[0]

    def forward(self, pieces):
        (x, idx, weights), = pieces
        per_rank, _, per_expert, in_rank, _ = self.buffer.get_dispatch_layout(idx, self.total)
        x, idx, weights, _, self.handle, _ = self.buffer.dispatch(
            x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
            topk_idx=idx, topk_weights=weights)
        return [self.buffer.combine(self.experts.forward(x, idx, weights), self.handle)[0]]

    def backward(self, dpieces):
        """Of each piece the gradients of rows and of weights."""
        dtotal = self.buffer.dispatch(dpieces[0], handle=self.handle)[0]
        dx, dweights = self.experts.backward(dtotal)
        return [self.buffer.combine(dx, self.handle, topk_weights=dweights)[:2]]


class Alone:
    """The same layer on one die: all experts are here, and rows go nowhere."""

    def __init__(self, experts, seed):
        self.total, self.begin, self.experts = experts, 0, Experts(range(experts), seed)

    def reduce(self, sums):
        for other in sums[1:]:
            sums[0] += other
        return sums[0]

    def forward(self, pieces):
        x, idx, weights = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        self.ends = np.cumsum([len(piece[0]) for piece in pieces])[:-1]
        return np.split(self.experts.forward(x, idx, weights), self.ends)

    def backward(self, dpieces):
        dx, dweights = self.experts.backward(np.concatenate(dpieces))
        return list(zip(np.split(dx, self.ends), np.split(dweights, self.ends), strict=True))


class Network:
    """What every die has: first layer, gate and last layer, around a layer of experts."""

    SHAPES = ((PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, DIGITS), (DIGITS,))

    def __init__(self, layer, seed, rate, follow=None):
        self.layer, self.rate = layer, rate
        self.follow, self.chosen = follow, []           # experts of each step: to be chosen, and chosen
        self.common = Parameters((*self.SHAPES, (HIDDEN, layer.total)), (seed, 0), extra=1)     # and the loss
        self.gate = self.common.values[4]

    def route(self, x, idx=None):
        """Hidden units before and after activation, the gate's probabilities, the experts chosen (None: the best), and
        their weights."""
        before = x @ self.common.values[0] + self.common.values[1]
        hidden = silu(before)
        logits = hidden @ self.gate
        odds = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
        odds /= odds.sum(axis=1, keepdims=True)
        if idx is None:
            idx = np.argsort(-odds, axis=1, kind="stable")[:, :TOPK]
        top = np.take_along_axis(odds, idx, axis=1)
        return before, hidden, odds, idx, top / top.sum(axis=1, keepdims=True)

    def judge(self, hidden, mixed):
        """Log-probabilities of the digits."""
        logits = (hidden + mixed) @ self.common.values[2] + self.common.values[3]
        logits -= logits.max(axis=1, keepdims=True, initial=-np.inf)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def step(self, pieces, total):
        """One step on `total` pictures, of which some pieces [(x, y) ...] are here. The mean loss of all."""
        ends = np.cumsum([len(x) for x, _ in pieces])[:-1]
        follow = np.split(self.follow[len(self.chosen)], ends) if self.follow else [None] * len(pieces)
        routed = [self.route(x, idx) for (x, _), idx in zip(pieces, follow, strict=True)]
        self.chosen.append(np.concatenate([idx for *_, idx, _ in routed]))
        load = self.layer.reduce([np.bincount(idx.ravel(), minlength=self.layer.total) for *_, idx, _ in routed])
        share = (load / load.sum()).astype("f4")
        mixed = self.layer.forward([(hidden, idx, weights) for _, hidden, _, idx, weights in routed])
        ends = [self.end(y, r[1], m) for (_, y), r, m in zip(pieces, routed, mixed, strict=True)]
        inner = self.layer.backward([end[1] for end in ends])
        sums = [self.sums(x, r, m, end, back, share) for (x, _), r, m, end, back
                in zip(pieces, routed, mixed, ends, inner, strict=True)]
        self.common.sums[:] = self.layer.reduce(sums)
        for parameters in (self.common, *(expert.parameters for expert in self.layer.experts.list)):
            parameters.step(self.rate / total)
        return float(self.common.sums[-1]) / total

    def end(self, y, hidden, mixed):
        """(summed loss, gradient of the sum of hidden and mixed, error of the logits)."""
        logp = self.judge(hidden, mixed)
        rows, error = np.arange(len(y)), np.exp(logp)
        error[rows, y] -= 1
        return -logp[rows, y].sum(), error @ self.common.values[2].T, error

    def sums(self, x, routed, mixed, end, back, share):
        """Gradients of the common parameters and the loss, of one piece, flat."""
        (before, hidden, odds, idx, weights), (loss, dsum, error), (dhidden, dweights) = routed, end, back
        # weights = top / sum(top): only logits that were chosen matter, as in a softmax of them alone
        dtop = weights * (dweights - (weights * dweights).sum(axis=1, keepdims=True))
        # second loss: experts * sum over experts of share * mean of odds
        even = np.float32(EVEN * self.layer.total) * share
        dlogits = odds * (even - (odds @ even)[:, None])
        loss += (odds @ even).sum()
        np.put_along_axis(dlogits, idx, np.take_along_axis(dlogits, idx, axis=1) + dtop, axis=1)
        dx = (dsum + dhidden + dlogits @ self.gate.T) * silu_slope(before)
        parts = (x.T @ dx, dx.sum(0), (hidden + mixed).T @ error, error.sum(0), hidden.T @ dlogits)
        made = strata.zeros(len(self.common.sums), "f4")
        made[:-1], made[-1] = np.concatenate([part.ravel() for part in parts]), loss
        return made


def train(network, x, y, pieces, options, bar=None):
    """Losses of all steps. Of `pieces[1]` pieces of each step's pictures, those of `pieces[0]` are done here."""
    losses = []
    for epoch in range(options.epochs):
        order = np.random.default_rng((options.seed, 2, epoch)).permutation(len(x))
        for at in range(0, len(x), options.batch):
            batch = order[at:at + options.batch]
            parts = np.array_split(batch, pieces[1])
            losses.append(network.step([(x[parts[p]], y[parts[p]]) for p in pieces[0]], len(batch)))
        if bar:
            bar.show(epoch + 1, losses[-1])
    return np.array(losses)


def weights(g, network):
    """All weights: the common ones, and those of each expert by number, from their dies (g None: all are here)."""
    layer = network.layer
    size = len(layer.experts.list[0].parameters.flat) if layer.experts.list else 0
    size = int(g.all_reduce(np.array([size]), op="max")[0]) if g else size
    found = strata.zeros((layer.total, size), "f4")
    for number, expert in enumerate(layer.experts.list):
        found[layer.begin + number] = expert.parameters.flat
    if g:
        g.all_reduce(found)     # others have zeros
    return np.concatenate([network.common.flat, found.ravel()])


def serve(g, network, x, fp8=True):
    """Log-probabilities of the digits of this die's part of x, by the low-latency operations."""
    layer, mine, most = network.layer, x[g.rank::g.size], -(-len(x) // g.size)
    _, hidden, _, idx, top = network.route(mine)
    size = moe.Buffer.get_low_latency_rdma_size_hint(most, HIDDEN, g.size, layer.total)
    buffer = moe.Buffer(g, 0, size, low_latency_mode=True)
    packed, counts, handle, _, hook = buffer.low_latency_dispatch(
        hidden.astype(bfloat16), idx, most, layer.total, use_fp8=fp8, return_recv_hook=True)
    hook()      # until here, this die could compute something else
    mixed, _, hook = buffer.low_latency_combine(
        layer.experts.serve(packed, counts), idx, top, handle, return_recv_hook=True)
    hook()
    return network.judge(hidden, mixed.astype("f4"))


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


def compare(options, data, losses, found, dies):
    """What die 0 finds when it trains alone; whether all is well."""
    well, chosen = True, None
    for pieces, goal in ((dies, 0.0), (1, NEAR)):
        alone = Network(Alone(options.experts, options.seed), options.seed, options.rate, chosen)
        others = train(alone, *data, (range(pieces), pieces), options)
        chosen = alone.chosen
        apart = max(np.abs(losses - others).max(), np.abs(found - weights(None, alone)).max())
        verdict = "bit-identical" if apart == 0 else f"losses and weights within {apart:.1e}"
        print(f"one die alone, steps in {pieces} {'piece' if pieces == 1 else 'pieces'}: {verdict}"
              + ("" if apart <= goal else f", MORE THAN {goal:g}"))
        well = well and bool(apart <= goal)
    return well


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=96, help="pictures in a step, over all dies")
    parser.add_argument("--rate", type=float, default=0.2, help="learning rate")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    strata.init()
    g = strata.world()
    x, y = load(g)
    shuffle = np.random.default_rng(options.seed).permutation(len(x))
    x, y = x[shuffle], y[shuffle]

    network = Network(OverDies(g, options.experts, options.seed), options.seed, options.rate)
    losses = train(network, x[TEST:], y[TEST:], ([g.rank], g.size), options, Progress(options.epochs, g.rank == 0))
    found = weights(g, network)
    same = bool((g.all_gather(network.common.flat) == network.common.flat).all())
    right = int(np.sum(serve(g, network, x[:TEST]).argmax(axis=1) == y[:TEST][g.rank::g.size]))
    score = int(g.all_reduce(np.array([right]))[0]) / TEST
    well = same and score > GOAL
    if g.rank == 0:
        print(f"test accuracy {score:.4f} on {TEST} digits no die has seen, by float8")
        print(f"common weights of {g.size} dies: " + ("bit-identical" if same else "DIFFERENT"))
        well = compare(options, (x[TEST:], y[TEST:]), losses, found, g.size) and well
    g.barrier()     # nobody leaves before die 0 is done
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
