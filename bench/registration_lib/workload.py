"""A mixture-of-experts-like loop as numbers: who sends how many tokens to whom, and which buffers that takes.

Everything follows from a seed and a step, so that all dies, all contenders and a replay without any
communication see the same sizes.
"""

from dataclasses import dataclass

import numpy as np

TOP = 8         # experts of a token, as entries of its routing record
ENTRY = 4       # bytes of an entry


@dataclass(frozen=True)
class Moe:
    """``n`` dies, ``tokens`` (least, most) of a die in a step, ``hidden`` bytes of a token.

    What a die received is kept for ``keep`` further steps, as activations are; what it sent is
    freed at the end of the step.
    """

    seed: int
    n: int
    tokens: tuple[int, int]
    hidden: int
    keep: int = 2

    def counts(self, step):
        """Tokens from each die (row) to each die (column) in a step."""
        rng = np.random.default_rng((self.seed, step))
        sends = rng.integers(self.tokens[0], self.tokens[1] + 1, self.n)
        liking = rng.dirichlet(np.full(self.n, 4.0))    # some experts are in demand, others in the next step
        return np.stack([rng.multinomial(int(s), liking) for s in sends]).astype(np.int64)

    def routed(self, step):
        """Tokens whose routing records each die contributes in a step: the most that any has."""
        return int(self.counts(step).sum(axis=1).max())

    def most(self, steps):
        """(rows sent, rows received, routing records) that static buffers need for steps 0..steps-1."""
        every = [self.counts(step) for step in range(steps)]
        return (max(int(c.sum(axis=1).max()) for c in every), max(int(c.sum(axis=0).max()) for c in every),
                max(self.routed(step) for step in range(steps)))

    def sizes(self, step, rank):
        """Bytes of a step's buffers on a die: those freed at its end, and the one that is kept."""
        counts, routing = self.counts(step), self.routed(step) * TOP * ENTRY
        sent, received = int(counts[rank].sum()) * self.hidden, int(counts[:, rank].sum()) * self.hidden
        return [sent, routing, routing * self.n], received

    def peak(self, steps, rank):
        """Most bytes of live buffers on a die at any time of steps 0..steps-1."""
        kept, most = [], 0
        for step in range(steps):
            freed, stays = self.sizes(step, rank)
            kept = [*kept, stays][-self.keep - 1:]
            most = max(most, sum(freed) + sum(kept))
        return most
