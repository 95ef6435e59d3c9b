"""One trial: dies run an operation over and over, one is killed at a random moment.

Used by the tests (a few trials) and by tools/kill_trials.py (hundreds).
"""

import os
import random
import time
from typing import NamedTuple

import faultlib
import numpy as np

import strata
from strata import bootstrap, errors

SIZES = (8, 40, 1000, 8192, 100_000, 1 << 20, 8 << 20)  # bytes; the larger are zero-copy
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather",
               "scatter", "all_to_all_v", "barrier")  # fmt: skip
OTHERS = (
    "background",
    "in_place",
    "plain_arrays",
    "exchange",
    "split",
    "subgroup",
    "shrink",
    "init",
    "leave",
    "compute",
)
OPERATIONS = COLLECTIVES + OTHERS


class Trial(NamedTuple):
    seed: int
    operation: str
    nbytes: int
    n: int
    victim: int
    delay: float  # seconds from the moment that all are at it to the kill
    path: str = "auto"  # option path; "mixed": sdma on every second die, mte on the others

    @classmethod
    def draw(cls, seed, path="auto", operations=OPERATIONS, sizes=SIZES):
        rng = random.Random(seed)
        n = rng.randint(2, 8)
        operation = rng.choice(operations)
        nbytes = rng.choice(sizes)
        delay = rng.choice((0.0, 0.003, 0.03)) * rng.random()
        return cls(seed, operation, nbytes, n, rng.randrange(n), delay, path)


class Outcome(NamedTuple):
    latencies: list  # seconds from the kill to the error, of each survivor
    seen: list  # seconds from the moment at which the kernel let the death be seen
    kinds: dict  # error class -> survivors


class Steps:
    """The operations, each run once on the world with its result checked."""

    def __init__(self, nbytes, victim, plain):
        self.g = g = strata.world()
        self.victim = victim
        n = g.size
        parts = -(-max(nbytes // 8, 1) // n) * n
        self.x = np.zeros(parts, "i8") if plain else strata.zeros(parts, "i8")
        self.x[:] = np.arange(parts) + g.rank
        self.y = strata.empty(parts, "i8")
        self.every = strata.empty((n, parts), "i8")
        self.rows = [parts // n] * n
        self.expected = np.arange(parts) * n + n * (n - 1) // 2

    def all_reduce(self):
        self.g.all_reduce(self.x, self.y)
        assert (self.y == self.expected).all()

    plain_arrays = all_reduce

    def in_place(self):
        z = strata.array(self.x)
        self.g.all_reduce(z)
        assert (z == self.expected).all()

    def all_gather(self):
        self.g.all_gather(self.x, self.every)
        assert (self.every[:, 0] == np.arange(self.g.size)).all()

    def reduce_scatter(self):
        out = self.g.reduce_scatter(self.x)
        assert (out == self.expected[self.g.rank * out.size :][: out.size]).all()

    def all_to_all(self):
        self.g.all_to_all(self.x, self.y)
        assert (
            self.y[:: self.rows[0]] == self.x[self.g.rank * self.rows[0]] - self.g.rank + np.arange(self.g.size)
        ).all()

    def all_to_all_v(self):
        self.g.all_to_all_v(self.x, self.rows, self.y)

    def broadcast(self):
        z = strata.array(self.x)
        self.g.broadcast(z, self.victim)
        assert z[0] == self.victim

    def reduce(self):
        out = self.g.reduce(self.x, self.y, root=self.victim)
        assert out is None or (out == self.expected).all()

    def gather(self):
        self.g.gather(self.x, self.every, root=(self.victim + 1) % self.g.size)

    def scatter(self):
        self.g.scatter(self.every if self.g.rank == 0 else None, self.y, root=0)

    def barrier(self):
        self.g.barrier()

    init = leave = barrier

    def background(self):
        works = [self.g.all_reduce(self.x, self.y, async_op=True), self.g.all_gather(self.x, self.every, async_op=True)]
        for work in works:
            work.wait()
        assert (self.y == self.expected).all()

    def exchange(self):
        """Everybody with the victim, both ways."""
        g, victim = self.g, self.victim
        peers = [r for r in range(g.size) if r != victim] if g.rank == victim else [victim]
        works = [g.send(self.x, peer, async_op=True) for peer in peers]
        for peer in peers:
            g.recv(self.y, peer)
            assert self.y[0] == peer
        for work in works:
            work.wait()

    def split(self):
        h = self.g.split(0, key=-self.g.rank)
        assert h.ranks == tuple(reversed(range(self.g.size)))
        h.all_reduce(self.x, self.y)

    def subgroup(self):
        self.g.subgroup(range(self.g.size - 1, -1, -1)).barrier()

    def shrink(self):
        h = self.g.shrink()
        if h.size == self.g.size:
            h.all_reduce(self.x, self.y)
        else:
            assert h.ranks == tuple(r for r in range(self.g.size) if r != self.victim)
            h.barrier()
            self.g.barrier()

    def compute(self):
        if self.g.rank == self.victim:
            time.sleep(60)
        self.all_reduce()


def body(die, trial):
    """What each die does: the operation until it fails, then what the survivors can do."""
    others = [r for r in range(trial.n) if r != trial.victim]
    os.environ["STRATA_PATH"] = ("sdma", "mte")[die.rank % 2] if trial.path == "mixed" else trial.path
    bootstrap.forget()  # options are read at the first call
    try:
        if trial.operation == "init":
            die.say("going")
        run = getattr(Steps(trial.nbytes, trial.victim, trial.operation == "plain_arrays"), trial.operation)
        run() if trial.operation not in ("init", "compute") else None
        if trial.operation != "init":
            die.say("going")
        if trial.operation == "leave" and die.rank == trial.victim:
            time.sleep(trial.delay)
            strata.finalize()
            time.sleep(60)
        while True:
            run()
    except errors.StrataError as error:
        die.say("error", faultlib.Caught.of(error))
    if trial.operation == "init":
        die.hear()  # the world may never have formed
        return
    g = strata.world()
    die.say("later", die.catch(g.barrier))
    h = g.shrink()
    faultlib.check_group(h, others, rounds=1)
    die.say("done")


def run(trial):
    """Carries out a trial; AssertionError if a survivor did not see what it must."""
    others = [r for r in range(trial.n) if r != trial.victim]
    with faultlib.Job(body, trial.n, trial) as job:
        if trial.operation != "init":
            job.all("going")
        else:
            job.all("going", [trial.victim])
        time.sleep(trial.delay)
        killed = job.kill(trial.victim)
        gone = job.gone(trial.victim)
        job.reap(trial.victim)
        caught = job.all("error", others)
        for event in caught.values():
            faultlib.died(event.data, [trial.victim])
        if trial.operation != "init":
            for event in job.all("later", others).values():
                faultlib.died(event.data, [trial.victim])
            job.all("done", others)
        job.tell(*others)
        for rank in others:
            assert job.reap(rank) == 0, rank
        kinds = {}
        for event in caught.values():
            kinds[event.data.kind] = kinds.get(event.data.kind, 0) + 1
        times = [event.data.time for event in caught.values()]
        return Outcome([t - killed for t in times], [max(t - gone, 0.0) for t in times], kinds)
