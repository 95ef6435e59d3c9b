"""What dies do in trials of faults: each operation of strata over and over, every result checked.

A class has ``prepare`` (once), ``round`` (over and over, on all dies alike) and ``finish`` (once, at the end).
"""

import gc
import time

import numpy as np

import strata


class Steps:
    """An operation on the world.  ``victim``: the die that is to die, which has the roots' part."""

    def __init__(self, trial):
        self.g, self.trial, self.victim, self.k = strata.world(), trial, trial.victims[0], 0
        self.n, self.rank = self.g.size, self.g.rank
        self.count = -(-max(trial.nbytes // 8, 1) // self.n) * self.n
        self.prepare()

    def prepare(self):
        pass

    def finish(self):
        pass

    def values(self, rank, count=None):
        """What die ``rank`` has in this round."""
        return np.arange(self.count if count is None else count) * (rank + 1) + self.k

    def total(self, count=None):
        count = self.count if count is None else count
        return np.arange(count) * (self.n * (self.n + 1) // 2) + self.n * self.k

    def filled(self):
        x = strata.empty(self.count, "i8")
        x[:] = self.values(self.rank)
        return x


class Collective(Steps):
    """One of the collectives, by name."""

    def prepare(self):
        plain = self.trial.operation == "plain_arrays"
        self.x = np.zeros(self.count, "i8") if plain else strata.zeros(self.count, "i8")
        self.y, self.every = strata.empty(self.count, "i8"), strata.empty((self.n, self.count), "i8")
        self.part = self.count // self.n

    def round(self):
        self.x[:] = self.values(self.rank)
        getattr(self, self.trial.operation)()

    def all_reduce(self):
        self.g.all_reduce(self.x, self.y)
        assert (self.y == self.total()).all()

    plain_arrays = all_reduce

    def in_place(self):
        self.g.all_reduce(self.x)
        assert (self.x == self.total()).all()

    def ring(self):
        self.g.all_reduce(self.x, self.y, algorithm="ring")
        assert (self.y == self.total()).all()

    def all_gather(self):
        self.g.all_gather(self.x, self.every)
        for r in range(self.n):
            assert (self.every[r] == self.values(r)).all()

    def reduce_scatter(self):
        out = self.g.reduce_scatter(self.x)
        assert (out == self.total()[self.rank * self.part :][: self.part]).all()

    def all_to_all(self):
        self.g.all_to_all(self.x, self.y)
        self._crossed(self.y)

    def all_to_all_v(self):
        self.g.all_to_all_v(self.x, [self.part] * self.n, self.y)
        self._crossed(self.y)

    def _crossed(self, y):
        mine = slice(self.rank * self.part, (self.rank + 1) * self.part)
        for r in range(self.n):
            assert (y[r * self.part : (r + 1) * self.part] == self.values(r)[mine]).all()

    def broadcast(self):
        self.g.broadcast(self.x, self.victim)
        assert (self.x == self.values(self.victim)).all()

    def reduce(self):
        out = self.g.reduce(self.x, self.y, root=self.victim)
        assert out is None or (out == self.total()).all()

    def gather(self):
        root = (self.victim + 1) % self.n
        self.g.gather(self.x, self.every, root=root)
        for r in range(self.n if self.rank == root else 0):
            assert (self.every[r] == self.values(r)).all()

    def scatter(self):
        if self.rank == 0:
            for r in range(self.n):
                self.every[r] = self.values(r)
        self.g.scatter(self.every if self.rank == 0 else None, self.y, root=0)
        assert (self.y == self.values(self.rank)).all()

    def barrier(self):
        self.g.barrier()

    def background(self):
        works = [self.g.all_reduce(self.x, self.y, async_op=True), self.g.all_gather(self.x, self.every, async_op=True)]
        for work in works:
            work.wait()
        assert (self.y == self.total()).all() and (self.every[-1] == self.values(self.n - 1)).all()


class Compute(Collective):
    """The victim does something else, for long; for kills at a moment."""

    def round(self):
        if self.rank == self.victim and self.k:
            time.sleep(60)
        self.x[:] = self.values(self.rank)
        self.all_reduce()


class Exchange(Steps):
    """Everybody with the victim, both ways, and round the ring, small and large."""

    def round(self):
        g, victim = self.g, self.victim
        x, y = self.filled(), strata.empty(self.count, "i8")
        peers = [r for r in range(g.size) if r != victim] if g.rank == victim else [victim]
        works = [g.send(x, peer, async_op=True) for peer in peers]
        for peer in peers:
            g.recv(y, peer)
            assert (y == self.values(peer)).all()
        for work in works:
            work.wait()
        work = g.send(x[:2], (g.rank + 1) % g.size, tag=7, async_op=True)
        g.recv(y[:2], g.rank - 1 if g.rank else g.size - 1, tag=7)
        assert (y[:2] == self.values((g.rank - 1) % g.size)[:2]).all()
        work.wait()


class Casts(Steps):
    """Bound broadcasts of every die in turn, the victim's ahead of the others, called and begun."""

    def prepare(self):
        self.count = min(self.count, 8192)
        self.x = strata.empty(self.count, "i8")
        self.ops = [self.g.broadcast.bind(self.x, root) for root in range(self.n)]

    def round(self):
        for root in [*range(self.n), *[self.victim] * 8]:
            self.x[:] = self.values(root) if self.rank == root else -1
            if root % 2:
                self.ops[root].start().wait()
            else:
                self.ops[root]()
            assert (self.x == self.values(root)).all()


class Split(Steps):
    """Groups that are made, used and let go."""

    def round(self):
        h = self.g.split(0, key=-self.rank)
        assert h.ranks == tuple(reversed(range(self.n)))
        y = h.all_reduce(self.filled(), strata.empty(self.count, "i8"))
        assert (y == self.total()).all()
        pair = self.g.split(self.rank % 2)
        pair.barrier()
        del h, pair
        gc.collect()


class Subgroup(Steps):
    def round(self):
        h = self.g.subgroup(range(self.n - 1, -1, -1))
        h.barrier()
        y = h.all_reduce(self.filled(), strata.empty(self.count, "i8"))
        assert (y == self.total()).all()
        del h
        gc.collect()


class Shrink(Steps):
    """shrink() of a group that is whole; when somebody dies it may be small."""

    def round(self):
        h = self.g.shrink()
        if h.size == self.n:
            y = h.all_reduce(self.filled(), strata.empty(self.count, "i8"))
            assert (y == self.total()).all()
        else:
            assert set(h.ranks) | set(self.trial.victims) == set(range(self.n)), h.ranks
            h.barrier()
            self.g.barrier()  # raises


class Leave(Collective):
    """The victim leaves the job, and comes back."""

    def round(self):
        self.x[:] = self.values(self.rank)
        self.all_reduce()

    def finish(self):
        if self.rank == self.victim:
            for _ in range(2):
                strata.finalize()
                strata.init()


for _name in ("clock", "init"):
    setattr(Collective, _name, Collective.all_reduce)
