"""Programs of several dies as lists of events, for tests of the analyser.

A test writes a program down in one order in which it could run; the events are fed to the
analyser die by die, backwards, or mixed, as they may arrive.
"""

import json
import random

from strata.checking.analyser import Job
from strata.checking.events import parse

ORDERS = range(8)


class Program:
    """``n`` dies; each call adds events to one or several and returns the line that stands for its place."""

    def __init__(self, n):
        self.n = n
        self.lines = [[] for _ in range(n)]
        self.log = []  # (rank, line), in the order of writing
        self.numbers = {}  # group -> next number, of each rank
        self.line = 0

    def add(self, rank, e, site=True, **fields):
        if site:
            self.line += 1
            where = {"e": "site", "id": self.line, "file": "prog.py", "line": self.line, "function": "main",
                     "text": f"line {self.line}", "stack": [["prog.py", self.line, "main"], ["prog.py", 999, "top"]]}
            self.lines[rank].append(json.dumps(where))
            fields["site"] = self.line
        self.lines[rank].append(json.dumps({"e": e, **fields}))
        self.log += [(rank, line) for line in self.lines[rank][-1 - site :]]
        return self.line

    def acc(self, rank, lo, hi, w=0, atomic=0, t=0, **more):
        what = "x[...] =" if w else "x[...]"
        return self.add(rank, "acc", t=t, lo=lo, hi=hi, w=w, atomic=atomic, what=what, **more)

    def read(self, rank, lo, hi, **more):
        return self.acc(rank, lo, hi, **more)

    def write(self, rank, lo, hi, **more):
        return self.acc(rank, lo, hi, w=1, **more)

    def alloc(self, rank, lo, hi, t=0):
        return self.add(rank, "alloc", t=t, lo=lo, hi=hi)

    def free(self, rank, lo, hi, t=0):
        return self.add(rank, "free", t=t, lo=lo, hi=hi)

    def fork(self, rank, c, t=0):
        self.add(rank, "fork", t=t, c=c)

    def join(self, rank, c, t=0):
        self.add(rank, "join", t=t, c=c)

    def post(self, rank, key, t=0, **value):
        return self.add(rank, "post", t=t, key=key, **value)

    def take(self, rank, key, value, t=0):
        return self.add(rank, "take", t=t, key=key, value=value)

    def come(self, rank, op, members, group="g", root=None, reads=(), writes=(), t=0, n=None):
        """One member comes to an operation."""
        counts = self.numbers.setdefault(group, {})
        number = counts.get(rank, 1) if n is None else n
        counts[rank] = number + 1
        return self.add(rank, "op", t=t, group=group, name=group, n=number, op=op, members=list(members), root=root,
                        reads=reads, writes=writes, ts=1.0)

    def leave(self, rank, group="g", status="ok", t=0, n=None):
        number = self.numbers[group][rank] - 1 if n is None else n
        self.add(rank, "opend", site=False, t=t, group=group, n=number, status=status)

    def op(self, op, members=None, group="g", root=None, reads=None, writes=None, t=0):
        """All members come to an operation and leave it; reads and writes: rank -> ranges.  Their lines."""
        members = list(range(self.n)) if members is None else list(members)
        lines = {}
        for rank in members:
            lines[rank] = self.come(rank, op, members, group, root, (reads or {}).get(rank, ()),
                                    (writes or {}).get(rank, ()), t)
            self.leave(rank, group, t=t)
        return lines

    def barrier(self, members=None, group="g"):
        self.op("barrier", members, group)

    def end(self):
        for rank in range(self.n):
            self.add(rank, "end", site=False, t=0)
        return self

    def order(self, seed):
        """(rank, line) of all as they may arrive: 0 die by die, 1 the last die first, None as written, else mixed."""
        if seed is None:
            return self.log
        if seed < 2:
            ranks = range(self.n) if seed == 0 else reversed(range(self.n))
            return [(rank, line) for rank in ranks for line in self.lines[rank]]
        left, mixed, draw = [list(reversed(lines)) for lines in self.lines], [], random.Random(seed)
        while any(left):
            rank = draw.choice([r for r in range(self.n) if left[r]])
            mixed += [(rank, left[rank].pop()) for _ in range(min(draw.choice((1, 1, 2, 9)), len(left[rank])))]
        return mixed

    def feed(self, seed=0, keep=None):
        """A job that has been fed all; ``keep``: of accesses only those at these lines."""
        job = Job("job")
        dies = [job.join(parse(json.dumps({"e": "hello", "job": "job", "rank": r, "size": self.n, "pid": 1}).encode()))
                for r in range(self.n)]
        for rank, line in self.order(seed):
            event = parse(line.encode())
            if keep is None or '"acc"' not in line or event.site in keep:
                job.feed(dies[rank], event, 0.0)
        return job

    def reports(self, seed=0, finish=True):
        job = self.feed(seed)
        if finish:
            job.finish()
            assert not job.forced
        return list(job.reports)


def found(reports):
    """{(kind, lines of the sides)}."""
    return {(r.kind, tuple(sorted(side.place.line for side in r.sides))) for r in reports}


def check(program, expected=()):
    """The same is found whatever the order in which the dies' events arrive."""
    for seed in ORDERS:
        assert found(program.reports(seed)) == set(expected), f"order {seed}"
