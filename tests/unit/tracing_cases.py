"""Traces with something wrong that was put there on purpose, as real jobs would have them."""

from strata.profile.chrome import Trace

CORES, RINGS = 1000, 2000


class Job:
    """A trace of so many dies; calls are numbered by die, phases belong to the last call of their die."""

    def __init__(self, dies=4, **about):
        self.trace = Trace(clock="tsc", machine="test", program="planted.py", dies=dies, lost={}, **about)
        self.dies = dies
        self.number = [-1] * dies
        for die in range(dies):
            self.trace.process(die, f"die {die}")
            self.trace.thread(die, 0, "calls")

    def call(self, die, name, begin, end, nbytes=65536, site="train.py:12 in step", **tags):
        self.number[die] += 1
        args = {"group": "world", "number": self.number[die], "bytes": nbytes, "site": site}
        self.trace.span(die, 0, name, begin, end, "call", args | ({"tags": tags} if tags else {}))

    def phase(self, die, category, begin, end, core=0, ring=None, **args):
        thread = CORES + core if ring is None else RINGS + ring
        self.trace.thread(die, thread, f"core {core}" if ring is None else f"ring {ring}")
        named = {"call": self.number[die], **args}
        return self.trace.span(die, thread, category, begin, end, category, named)

    def save(self, path):
        self.trace.save(path)
        return path


def slow_die(slow=3, steps=20):
    """All dies call all_reduce every 1000 us, but one comes 700 us late each time."""
    job = Job()
    for step in range(steps):
        at = 1000.0 * step
        go = at + 705
        for die in range(job.dies):
            begin = at + 700 if die == slow else at + 2 * die
            job.call(die, "all_reduce", begin, go + 50, step=step)
            job.phase(die, "wait", begin, go, **({} if die == slow else {"peer": slow}))
            job.phase(die, "reduce", go, go + 40, bytes=65536, unit=0, peer=(die + 1) % job.dies)
            job.phase(die, "wait", go + 40, go + 50, peer=(die + step + 1) % job.dies)
    return job


def imbalance(steps=10, split=(400, 100, 100, 100)):
    """Four cores of each die share an all_to_all_v unevenly, at once."""
    job = Job()
    for step in range(steps):
        at = 600.0 * step
        for die in range(job.dies):
            job.call(die, "all_to_all_v", at, at + 20 + max(split), nbytes=1 << 20)
            for core, took in enumerate(split):
                job.phase(die, "copy", at + 10, at + 10 + took, core, bytes=1024 * took, unit=core, peer=core)
    return job


def late_registration(die=2, owner=1, pages=12):
    """A die maps an owner's pages on first use in its first calls, and the others wait for it meanwhile."""
    job = Job()
    for step in range(pages):
        at = 500.0 * step
        for other in range(job.dies):
            job.call(other, "all_gather", at, at + 400, nbytes=1 << 20)
            if other == die:
                job.phase(other, "map", at + 10, at + 310, peer=owner, unit=step)
                job.phase(other, "copy", at + 310, at + 390, bytes=1 << 20, unit=0, peer=owner)
            else:
                job.phase(other, "copy", at + 10, at + 90, bytes=1 << 20, unit=0, peer=die)
                job.phase(other, "wait", at + 90, at + 395, peer=die)
    return job


def exposed(overlapped=0.0, steps=10):
    """Every die is in calls for 600 of 1000 us, for its rings to move bytes; they go on for a part outside of calls."""
    job = Job()
    for step in range(steps):
        at = 1000.0 * step
        for die in range(job.dies):
            until = at + 600 * (1 - overlapped)
            job.call(die, "all_gather", at, max(until, at + 1), nbytes=1 << 20)
            job.phase(die, "dma", at + 1, at + 600, ring=0, bytes=4 << 20, unit=0, peer=(die + 1) % job.dies)
    return job
