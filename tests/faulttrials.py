"""One trial: dies run an operation over and over, and one of them dies, or stops for a while.

It dies at a fault point (``fault``: of the checked core), or at a moment (``delay``: of any core).  A second victim may
die while the others deal with the first one's death.  Every survivor must get the right error, and go on: what is left
of groups, memory, rings, threads and descriptors is looked at, too.  Used by the tests and by tools/fault_trials.py.
"""

import contextlib
import gc
import importlib
import os
import random
import time
from typing import NamedTuple

import faultlib
import faultsteps_all
import faultsteps_elastic as elastic
import faultsteps_more
from faultsteps_all import OPERATIONS
from faultwatch import BOUND, at_a_moment, descriptors, fell, nothing_left, reached, threads, until

import strata
from strata import bootstrap, errors
from strata.launch.command import PRELOAD

for _name in (*PRELOAD, "numpy.ma", "strata.moe", "strata.capturing", "strata.vmm", "strata.sdma"):
    importlib.import_module(_name)  # once, not by each die of each trial

SIZES = (8, 40, 1000, 8192, 100_000, 1 << 20, 8 << 20)  # bytes; the larger are zero-copy
ROUNDS = 6  # of a trial with a fault; one at a moment has as many as it takes
TIMEOUT = 30.0  # of operations: one that ends by it is a hang


class Trial(NamedTuple):
    """Everything about a trial; its text replays it."""

    operation: str
    nbytes: int = 1000
    n: int = 3
    victims: tuple = (0,)  # one, or two
    path: str = "auto"  # option path; "mixed": sdma on every second die, mte on the others
    cores: int = 1
    registration: str = "on_allocation"
    fault: str = ""  # of the first victim, "POINT:NTH:ACTION"; "": it is killed after `delay`
    second: str = ""  # of the second one
    delay: float = 0.0  # seconds from the moment that all are at it to the kill; -1: when it is through
    salt: int = 0

    def __str__(self):
        told = {k: v for k, v in self._asdict().items() if v != self._field_defaults.get(k)}
        return ",".join(f"{k}={'+'.join(map(str, v)) if isinstance(v, tuple) else v}" for k, v in told.items())

    @classmethod
    def parse(cls, text):
        """The trial of such a text."""
        found = {}
        for part in text.split(","):
            name, _, value = part.partition("=")
            if name not in cls._fields:
                raise ValueError(f"{name!r} is not a field of a trial: {', '.join(cls._fields)}")
            kind = type(getattr(cls(""), name))
            found[name] = tuple(map(int, value.split("+"))) if kind is tuple else kind(value)
        trial = cls(**found)
        if trial.operation not in OPERATIONS or not all(0 <= v < trial.n for v in trial.victims):
            raise ValueError(f"{text!r}: no operation of that name, or a victim that there is not")
        least, one = elastic.least(trial.operation), trial.operation in elastic.OPERATIONS
        if trial.n < least or (one and len(trial.victims) > 1):
            raise ValueError(f"{text!r}: {trial.operation} has one victim, and n={least} or more")
        return trial

    @classmethod
    def draw(cls, seed, path="auto", operations=OPERATIONS, sizes=SIZES):
        """One that kills at a moment."""
        rng = random.Random(seed)
        n = rng.randint(2, 8)
        operation, nbytes = rng.choice(operations), rng.choice(sizes)
        n = max(n, elastic.least(operation))
        delay = rng.choice((0.0, 0.003, 0.03)) * rng.random()
        return cls(operation, nbytes, n, (rng.randrange(n),), path, delay=delay)

    def env(self, rank):
        """The options of a die."""
        path = ("sdma", "mte")[rank % 2] if self.path == "mixed" else self.path
        found = {"STRATA_PATH": path, "STRATA_CORES": str(self.cores), "STRATA_WORKERS": str(min(self.cores, 2)),
                 "STRATA_REGISTRATION": self.registration, "STRATA_TIMEOUT": str(TIMEOUT),
                 "STRATA_YIELD_MS": "0" if self.salt % 4 else "5"}  # fmt: skip
        if self.registration == "pool":
            found["STRATA_POOL"] = "256M" if self.nbytes > 1 << 20 else "64M"  # its pages are zeroed, which takes long
        if self.operation == "clock":
            found["STRATA_CLOCK"] = "cm384"
        for victim, fault in zip(self.victims, (self.fault, self.second), strict=False):
            if victim == rank and fault:
                found["STRATA_FAULT"] = f"{rank}@{fault}"
        return found


class Outcome(NamedTuple):
    latencies: list  # seconds from the death to the error, of survivors that were waiting
    kinds: dict  # error class -> survivors
    hit: str  # the fault point at which the first victim died or stopped; "": it came through
    second: str  # and the second
    reached: dict  # fault points that the last victim reached, if it came through: name -> how often


# ---- what dies do -----------------------------------------------------------------------------------


class Play:
    """A die's part in a trial."""

    def __init__(self, die, trial):
        self.die, self.trial, self.steps, self.others = die, trial, None, None
        self.victims = trial.victims
        self.survivors = [r for r in range(trial.n) if r not in trial.victims]

    def work(self):
        """The rounds; returns when there are no more, or raises what ends them."""
        trial, die = self.trial, self.die
        if trial.operation == "init":
            die.say("going")
        strata.init()
        self.steps = faultsteps_all.make(trial)
        if die.rank in self.survivors:
            self.others = strata.world().subgroup(self.survivors)
        if trial.operation != "init":
            die.say("going")
        rounds = ROUNDS if trial.fault or trial.delay < 0 else 1 << 60
        while self.steps.k < rounds:
            self.steps.round()
            self.steps.k += 1
        self.steps.finish()

    def run(self):
        before = threads(), descriptors()
        try:
            self.work()
            self.through(0)
        except (errors.PeerDead, errors.GroupBroken, errors.Cancelled) as error:
            if isinstance(error, errors.Cancelled):
                assert isinstance(error.__cause__, (errors.PeerDead, errors.GroupBroken)), error
                assert error.ranks == error.__cause__.ranks, error
            caught = faultlib.Caught.of(error.__cause__ if isinstance(error, errors.Cancelled) else error)
            if self.die.rank == self.victims[0]:  # the second one may have come first
                assert caught.ranks == self.victims[1:] != (), f"a die that lives is told that it is dead: {error}"
                self.through(0)
            self.die.say("error", caught)
        self.recover() if strata.initialized() else self.never_formed()
        self.die.say("done")
        self.die.hear()
        strata.finalize()
        nothing_left(*before)

    def through(self, which):
        """This die has come to the end of its rounds: the victim waits for its death, the others for the error."""
        if self.die.rank == self.victims[which]:
            self.die.say(f"over{which}", reached())
            time.sleep(10 * BOUND)
        self.die.say("through")
        while True:
            strata.world().barrier()

    def never_formed(self):
        """The world has not formed: nor will it."""
        caught = self.die.catch(strata.init)
        faultlib.died(caught, self.victims)

    def recover(self):
        g = strata.world()
        with contextlib.suppress(errors.PeerDead, errors.GroupBroken):
            g.barrier()  # may be one at which the dead had arrived
        faultlib.died(self.die.catch(g.barrier), self.victims)
        if self.others is not None:
            faultlib.check_group(self.others, self.survivors, rounds=1)
        for which in (1, 0):  # when both are dead there is nobody to wait for
            g = self.smaller(g, which) if which < len(self.victims) or which == 0 else g
        faultlib.check_group(g, self.survivors, rounds=1)
        self.clean(g)

    def smaller(self, g, which):
        """shrink(), until what it gives works."""
        if which == 1:
            g = self.shrunk(g)
            if self.die.rank == self.victims[1]:
                self.die.say("over1", reached())
                time.sleep(10 * BOUND)
            if self.victims[1] not in g.ranks:
                return g
            try:
                while True:
                    g.barrier()
            except errors.StrataError as error:
                faultlib.died(faultlib.Caught.of(error), self.victims)
            return g
        return self.shrunk(g) if set(g.ranks) & set(self.victims) else g

    def shrunk(self, g):
        for _ in range(4):
            h = g.shrink()
            assert set(self.survivors) <= set(h.ranks), h.ranks
            if len(self.victims) == 1:
                assert list(h.ranks) == self.survivors, h.ranks
            try:
                faultlib.check_group(h, h.ranks, rounds=1)
                return h
            except errors.StrataError as error:
                faultlib.died(faultlib.Caught.of(error), self.victims)
                g = h
        raise AssertionError("shrink() gives groups of the dead again and again")

    def clean(self, g):
        """Nothing but groups' own memory is left, and rings of survivors take descriptors."""
        steps = self.steps
        if isinstance(steps, faultsteps_more.Submit) and steps.ring:
            for r in self.survivors:
                strata.sdma.ring(steps.rings[r].index, r).submit(strata.sdma.Batch().nop()).wait(BOUND)
            g.barrier()
        if isinstance(steps, faultsteps_more.Replays) and hasattr(steps, "graph"):
            steps.graph.close()
        steps = self.steps = None
        context = bootstrap.context()
        g.barrier()
        gc.collect()
        strata.empty_cache()
        until(lambda: not strata.stats()["quarantined_bytes"], "quarantine")
        until(lambda: strata.vmm.stats()["exports_closing"] == 0, "exports")
        if self.trial.registration == "pool":
            return
        page = strata.vmm.granularity()
        until(lambda: context.hbm_bytes - context.frames_left * page == strata.memory_reserved(), "frames")


def body(die, trial):
    os.environ.update(trial.env(die.rank))
    bootstrap.forget()  # options are read at the first call
    gc.freeze()  # what came from the parent is none of this die's garbage
    Play(die, trial).run()


# ---- what the test does ---------------------------------------------------------------------------


def same(caught):
    """Survivors that failed in one operation of one group must have the same error."""
    kinds = {}
    for event in caught.values():
        c = event.data
        if c.number is not None:
            kinds.setdefault((c.group, c.operation, c.number), set()).add((c.kind, c.ranks))
    for operation, found in kinds.items():
        assert len(found) == 1, f"survivors disagree on {operation}: {found}"


def run(trial):
    """Carries out a trial; AssertionError if something is not as it must be."""
    if trial.operation in elastic.OPERATIONS:
        latencies, kinds, point, found = elastic.run(trial)
        return Outcome(latencies, kinds, point, "", found)
    rng = random.Random(trial.salt)
    survivors = [r for r in range(trial.n) if r not in trial.victims]
    with faultlib.Job(body, trial.n, trial, hbm=256 << 20 if trial.nbytes < 1 << 20 else 1 << 30) as job:
        points, found = ["", ""], {}
        if not trial.fault and trial.delay >= 0:
            when = at_a_moment(job, trial)
        else:
            points[0], when, found = fell(job, trial, 0, rng)
        caught = job.all("error", survivors, BOUND)
        if len(trial.victims) > 1:
            points[1], _, found = fell(job, trial, 1, rng)
        for event in caught.values():
            faultlib.died(event.data, trial.victims)
        if len(trial.victims) == 1:
            same(caught)
        job.all("done", survivors, BOUND)
        job.tell(*survivors)
        for rank in survivors:
            assert job.reap(rank, BOUND) == 0, rank
        name = f"/dev/shm/strata.{os.getuid()}.{job.space.token}"
        assert not os.path.exists(name), name
    kinds = {}
    for event in caught.values():
        kinds[event.data.kind] = kinds.get(event.data.kind, 0) + 1
    busy = trial.operation in ("init", "compute")  # the others may not have been waiting
    latencies = [] if busy else [max(e.data.time - when, 0.0) for e in caught.values()]
    return Outcome(latencies, kinds, *points, found)
