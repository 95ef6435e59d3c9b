"""One trial: dies run an operation over and over, one is killed at a random moment.

Used by the tests (a few trials) and by tools/kill_trials.py (hundreds).
"""

import random
import time
from typing import NamedTuple

import faultlib
import numpy as np

import strata
from strata import errors

SIZES = (8, 40, 1000, 8192, 100_000, 1 << 20, 8 << 20)  # bytes; the larger are zero-copy
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather",
               "scatter", "all_to_all_v", "barrier")  # fmt: skip
OTHERS = ("async", "in_place", "plain_arrays", "exchange", "split", "subgroup", "shrink", "init", "leave", "compute")
OPERATIONS = COLLECTIVES + OTHERS


class Trial(NamedTuple):
    seed: int
    operation: str
    nbytes: int
    n: int
    victim: int
    delay: float  # seconds from the moment that all are at it to the kill

    @classmethod
    def draw(cls, seed):
        rng = random.Random(seed)
        n = rng.randint(2, 8)
        operation = rng.choice(OPERATIONS)
        nbytes = rng.choice(SIZES)
        return cls(seed, operation, nbytes, n, rng.randrange(n), rng.choice((0.0, 0.003, 0.03)) * rng.random())


class Outcome(NamedTuple):
    latencies: list  # seconds from the kill to the error, of each survivor
    seen: list  # seconds from the moment at which the kernel let the death be seen
    kinds: dict  # error class -> survivors


def step(operation, nbytes, victim):
    """A function that runs the operation once on the world, and checks its result."""
    g = strata.world()
    n = g.size
    count = max(nbytes // 8, 1)
    parts = -(-count // n) * n
    x = np.zeros(parts, "i8") if operation == "plain_arrays" else strata.zeros(parts, "i8")
    x[:] = np.arange(parts) + g.rank
    y = strata.empty_like(x)
    every = strata.empty((n, parts), "i8")
    rows = [parts // n] * n
    expected = np.arange(parts) * n + n * (n - 1) // 2

    def reduced():
        g.all_reduce(x, y)
        assert (y == expected).all()

    def in_place():
        z = strata.array(x)
        g.all_reduce(z)
        assert (z == expected).all()

    def gathered():
        g.all_gather(x, every)
        assert (every[:, 0] == np.arange(n)).all()

    def background():
        works = [g.all_reduce(x, y, async_op=True), g.all_gather(x, every, async_op=True)]
        for work in works:
            work.wait()
        assert (y == expected).all()

    def exchange():
        """Everybody with the victim, both ways."""
        peers = [r for r in range(n) if r != victim] if g.rank == victim else [victim]
        works = [g.send(x, peer, async_op=True) for peer in peers]
        for peer in peers:
            g.recv(y, peer)
            assert y[0] == peer
        for work in works:
            work.wait()

    def split():
        h = g.split(0, key=-g.rank)
        assert h.ranks == tuple(reversed(range(n)))
        h.all_reduce(x, y)

    def subgroup():
        h = g.subgroup(range(n - 1, -1, -1))
        h.barrier()

    def shrink():
        h = g.shrink()
        if h.size == n:
            h.all_reduce(x, y)
        else:
            assert h.ranks == tuple(r for r in range(n) if r != victim)
            h.barrier()
            g.barrier()

    def compute():
        if g.rank == victim:
            time.sleep(60)
        g.all_reduce(x, y)

    return {
        "all_reduce": reduced,
        "all_gather": gathered,
        "reduce_scatter": lambda: g.reduce_scatter(x),
        "all_to_all": lambda: g.all_to_all(x, y),
        "broadcast": lambda: g.broadcast(x, victim),
        "reduce": lambda: g.reduce(x, y, root=victim),
        "gather": lambda: g.gather(x, every, root=(victim + 1) % n),
        "scatter": lambda: g.scatter(every if g.rank == 0 else None, y, root=0),
        "all_to_all_v": lambda: g.all_to_all_v(x, rows, y),
        "barrier": g.barrier,
        "async": background,
        "in_place": in_place,
        "plain_arrays": reduced,
        "exchange": exchange,
        "split": split,
        "subgroup": subgroup,
        "shrink": shrink,
        "init": g.barrier,
        "leave": g.barrier,
        "compute": compute,
    }[operation]


def body(die, trial):
    """What each die does: the operation until it fails, then what the survivors can do."""
    others = [r for r in range(trial.n) if r != trial.victim]
    try:
        if trial.operation == "init":
            die.say("going")
        run = step(trial.operation, trial.nbytes, trial.victim)
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
