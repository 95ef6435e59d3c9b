"""Trials of faults in which dies are started again: a die dies in the middle of that.

``grow``: the victim is a survivor of earlier deaths, and dies while the group takes successors in.
``return``: the victim is such a successor.  Either way all that are dead come back, until all are there.
"""

import gc
import os
import random
import signal

import faultlib
import numpy as np
from faultwatch import BOUND, Watch, at_a_moment, descriptors, fell, nothing_left, reached, threads, until

import strata
from strata import bootstrap, errors
from strata._core import closing

OPERATIONS = ("grow", "return")
LOST = (errors.PeerDead, errors.GroupBroken)
M = 2 << 20


def least(operation):
    """The fewest dies: somebody must be left who can grow."""
    return 3 if operation == "grow" else 2


def firsts(trial):
    """Who dies at first, and is started again."""
    victim, n = trial.victims[0], trial.n
    one = victim if trial.operation == "return" else (victim + 1) % n
    return [one, (one + 1) % n] if n > 4 else [one]


def fatal(trial):
    """How many processes were the victim before the one that is to die at the fault."""
    return int(trial.operation == "return")


class Elastic:
    """The part of a process; ``before``: how many were that die before it."""

    def __init__(self, die, trial, before):
        self.die, self.trial, self.before = die, trial, before
        self.victim = die.rank == trial.victims[0] and before == fatal(trial)
        self.count = -(-max(trial.nbytes // 8, 1) // trial.n) * trial.n
        self.old = []  # groups with a dead die
        self.armed = {}  # how often the victim had reached each fault point when its fault was armed

    def run(self):
        held = threads(), descriptors()
        if self.before and self.victim:
            self.die.say("going")
        strata.init()
        self.arrays = [strata.full(M, self.die.rank, "u1") for _ in range(1 + self.before)]
        g = self.first() if not self.before else strata.world()
        g = self.go(g)
        self.clean(g)
        del g
        self.die.say("done")
        self.die.hear()
        strata.finalize()
        nothing_left(*held)

    def first(self):
        """Before anybody is started again: the first deaths; the survivors' group."""
        g, gone = strata.world(), firsts(self.trial)
        led = g.subgroup([gone[0], *(r for r in range(g.size) if r != gone[0])])  # its memory goes with the first one
        self.old = [g, led]
        self.compute(g)
        self.compute(led)
        if self.die.rank in gone:
            os.kill(os.getpid(), signal.SIGKILL)
        while set(g.ranks) & set(gone):
            try:
                while True:
                    g.barrier()
            except LOST as error:
                faultlib.died(faultlib.Caught.of(error), [*gone, *self.trial.victims])
            if self.victim and not self.armed:
                self.arm()
            g = g.shrink()
        self.die.say("shrunk")
        return g

    def arm(self):
        """From here on the victim may die; nobody is back yet."""
        self.die.say("going")
        self.armed = reached() or {"": 0}
        if self.trial.fault:
            from strata._core.checked import arming

            arming.arm(self.trial.fault, self.die.rank)

    def go(self, g):
        """Grows and computes until all are there, and the victim is another process."""
        while True:
            try:
                if g.size < self.trial.n:
                    g = g.grow()
                for _ in range(2):
                    self.compute(g)
                numbers = g.all_gather(np.array([self.before]))[:, 0]
                if numbers[self.trial.victims[0]] > fatal(self.trial):
                    return g
                if self.victim:
                    found = {name: count - self.armed.get(name, 0) for name, count in reached().items()}
                    self.die.say("over0", {name: count for name, count in found.items() if count})
                    signal.pause()
                while True:
                    g.barrier()
            except LOST as error:
                caught = faultlib.Caught.of(error)
            if self.die.rank in caught.ranks:
                raise AssertionError(f"a die that lives is told that it is dead: {caught}")
            faultlib.died(caught, self.trial.victims)
            self.die.say("error", caught)
            g = g.shrink()

    def compute(self, g):
        """Operations of each kind, looked at."""
        n, r = g.size, g.rank
        x = strata.empty(self.count, "i8")
        x[:] = np.arange(self.count) * (r + 1)
        y = g.all_reduce(x, strata.empty(self.count, "i8"))
        assert (y == np.arange(self.count) * (n * (n + 1) // 2)).all()
        got = g.all_gather(self.arrays[0])  # memory that was there before the group
        assert (got[:, :: M // 4] == np.array(g.ranks, "u1")[:, None]).all()
        sent, y = g.send(x, (r + 1) % n, async_op=True), strata.empty(self.count, "i8")
        g.recv(y, (r - 1) % n)
        assert (y == np.arange(self.count) * ((r - 1) % n + 1)).all()
        sent.wait()
        half = g.split(r % 2)
        assert int(half.all_reduce(np.array([1]))[0]) == half.size

    def clean(self, g):
        """Nothing is left of those that died."""
        for old in self.old:
            faultlib.died(self.die.catch(old.barrier), [*self.trial.victims, *firsts(self.trial)])
        faultlib.check_group(g, range(self.trial.n), rounds=1)
        self.old, self.arrays, old = [], [], None
        context = bootstrap.context()
        g.barrier()
        gc.collect()
        strata.empty_cache()
        g.barrier()
        for _ in range(3):  # groups with messages, groups that are closed, groups that all have closed
            closing.sweep()  # as the next group that is made does
            g.barrier()
        # What world() is in others that were started again: the first one of a group, which the victim may have made.
        lasts = M if self.before and self.trial.operation == "grow" else 0
        until(lambda: strata.stats()["former_bytes"] <= lasts, "memory of a former process")
        until(lambda: not strata.stats()["quarantined_bytes"], "quarantine")
        until(lambda: strata.vmm.stats()["exports_closing"] == 0, "exports")
        if self.trial.registration != "pool":
            used = context.hbm_bytes - context.frames_left * strata.vmm.granularity()
            used -= strata.stats()["former_bytes"]
            assert used == strata.memory_reserved(), (used, strata.memory_reserved(), strata.vmm.stats())


def body(die, trial, before=0):
    fault = {"STRATA_FAULT": f"{die.rank}@{trial.fault}"} if trial.fault else {}
    armed = die.rank == trial.victims[0] and before == 1 == fatal(trial)
    os.environ.update({**trial.env(die.rank), "STRATA_FAULT": "", **(fault if armed else {})})
    bootstrap.forget()
    gc.freeze()
    Elastic(die, trial, before).run()


def run(trial):
    """Carries it out: what the launcher does, and the fault.  (latencies, error classes, point, reached)."""
    rng, (victim,) = random.Random(trial.salt), trial.victims  # a pool leaves room for what the dead had of groups
    with faultlib.Job(body, trial.n, trial, hbm=320 << 20 if trial.nbytes < 1 << 20 else 1 << 30) as job:
        for rank in firsts(trial):
            watch = Watch(job, rank)
            watch.gone()
            watch.close()
            assert job.reap(rank) == -signal.SIGKILL
        left = [r for r in range(trial.n) if r not in firsts(trial)]
        if trial.salt % 2 and not trial.fault.endswith(":stop"):  # before anybody has noticed, or afterwards
            job.all("shrunk", [r for r in left if r != victim], BOUND)
        for rank in firsts(trial):
            job.restart(rank, body, trial, 1, before=1)
        point, found = "", {}
        if trial.fault or trial.delay < 0:
            point, when, found = fell(job, trial, 0, rng)
        else:
            when = at_a_moment(job, trial, [victim])
        job.restart(victim, body, trial, fatal(trial) + 1, before=fatal(trial) + 1)
        job.all("done", None, BOUND)
        job.tell()
        for rank in range(trial.n):
            assert job.reap(rank, BOUND) == 0, rank
        caught = [e.data for e in job.events if e.name == "error"]
    kinds = {c.kind: sum(d.kind == c.kind for d in caught) for c in caught}
    return [max(c.time - when, 0.0) for c in caught], kinds, point, found
