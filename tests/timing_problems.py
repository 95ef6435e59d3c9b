"""Small problems for the simulator and its oracles: arrays grown a record at a time, and drawn ones."""

import random

import numpy as np

from strata.exec.timed import records as r

INF = float("inf")
KINDS = {"links": r.LINK_DTYPE, "uses": r.USE_DTYPE, "tasks": r.TASK_DTYPE, "lanes": r.LANE_DTYPE,
         "flags": r.FLAG_DTYPE, "members": r.MEMBER_DTYPE, "rendezvous": r.RENDEZVOUS_DTYPE}  # fmt: skip


class Problem:
    """``arrays()`` are what ``run`` takes, with ``package``, ``node`` as ``topology``."""

    def __init__(self, package=1, node=1):
        self.parts = {n: [] for n in KINDS}
        self.topology = {"package": package, "node": node}

    def link(self, capacity, loss=0.0, kind=r.UB_OUT, die=0):
        return self._add("links", (capacity, loss, kind, die))

    def flag(self, need=1):
        return self._add("flags", (need, r.NONE))

    def lane(self, tasks, pool=r.NONE, ahead=0, die=0):
        """``tasks``: dicts of the record's fields; wait: (flag, ps), uses: (link, weight[, peer])."""
        first = len(self.parts["tasks"])
        for unit, t in enumerate(tasks):
            start = len(self.parts["uses"])
            for link, weight, *peer in t.get("uses", ()):
                self._add("uses", (link, peer[0] if peer else r.NONE, weight))
            waits = [*t.get("wait", ()), (r.NONE, 0), (r.NONE, 0)][:2]
            self._add("tasks", (
                t.get("hold", 0), t.get("latency", 0), t.get("work", 0.0), t.get("bound", INF),
                tuple(w[1] for w in waits), tuple(w[0] for w in waits), t.get("post", r.NONE), start,
                len(t.get("uses", ())), r.MOVE, 0, t.get("backlog", r.BACKLOG_ONE), 0, unit, (0, 0),
            ))  # fmt: skip
        return self._add("lanes", (first, len(tasks), die, pool, len(self.parts["lanes"]), ahead))

    def meeting(self, members, base, seen):
        """``members``: (die, arrive, start)."""
        index = self._add("rendezvous", (len(self.parts["members"]), len(members), base, tuple(seen)))
        for die, arrive, start in members:
            self._add("members", (die, arrive, start, 0))
            self.parts["flags"][arrive] = (self.parts["flags"][arrive][0], index)

    def _add(self, part, record):
        self.parts[part].append(record)
        return len(self.parts[part]) - 1

    def arrays(self):
        return [np.array(self.parts[n], kind) for n, kind in KINDS.items()]


def draw(seed, lanes=8, tasks=40, links=6, crowd=False):
    """A problem with everything in it, whose every task can run: what is waited for is posted by tasks that come
    before in one order of all.  Flows take 0.1 ms to 1 s, so that whole picoseconds are 1e-8 of them at most, and
    each is of a peer of its own, with all of its backlog; with ``crowd`` they share peers, have backlogs of their
    own, cross a link twice, and much happens at one instant."""
    rng = random.Random(seed)
    p = Problem(package=2, node=4)
    losses = (0.0, 0.3) if crowd else (0.0, 0.0, 0.1)
    ports = [p.link(rng.choice((0.05, 0.1, 0.2)) * rng.uniform(0.8, 1.2), rng.choice(losses)) for _ in range(links)]
    pools = [p.link(lanes + rng.randint(1, 3), kind=r.POOL) for _ in range(2)]
    lots = [[] for _ in range(lanes)]
    made, open_flags, unmet = [], [], []
    for number in range(tasks):
        task = _crowded(rng, ports, pools) if crowd else _task(rng, number, ports, pools)
        waits = rng.sample(open_flags, min(len(open_flags), rng.choice((0, 0, 1, 2))))
        task["wait"] = [(flag, rng.choice((0, 1000)) if crowd else rng.randint(0, 10**9)) for flag in waits]
        rng.choice(lots).append(task)
        made.append(task)
        free = [t for t in made if "post" not in t]
        if rng.random() < 0.4:
            flag = p.flag(min(len(free), rng.randint(1, 3)))
            for t in rng.sample(free, p.parts["flags"][flag][0]):
                t["post"] = flag
            unmet.append(flag)
            open_flags.append(flag)
        if len(unmet) >= 3:
            starts = [p.flag() for _ in unmet]
            met = list(zip(rng.sample(range(8), len(unmet)), unmet, starts, strict=True))
            most = 10**4 if crowd else 10**9
            p.meeting(met, rng.randint(0, most // 10), sorted(rng.sample(range(most), 4)))
            open_flags += starts
            unmet = []
    for lot in lots:
        p.lane(lot, pool=rng.choice((r.NONE, *pools)), ahead=rng.randint(0, 1))
    return p


def _task(rng, number, ports, pools):
    task = {"hold": rng.randint(0, 10**9), "latency": rng.choice((0, rng.randint(0, 10**9)))}
    kind = rng.random()
    if kind < 0.6:
        task["work"] = float(rng.randint(10**7, 10**10))
        task["uses"] = [(i, float(rng.choice((1, 1, 1, 2))), number) for i in rng.sample(ports, rng.randint(1, 3))]
        task["bound"] = rng.choice((INF, rng.uniform(0.01, 0.05)))
    elif kind < 0.8:
        task["work"] = float(rng.randint(10**8, 10**11))
        task["uses"] = [(rng.choice(pools), float(rng.randint(1, 4)))]
        task["bound"] = 1.0
    return task


def _crowded(rng, ports, pools):
    task = _task(rng, 0, ports, pools)
    task |= {"hold": rng.choice((0, 1000, 2000)), "latency": rng.choice((0, 0, 3000))}
    task["backlog"] = rng.choice((0, r.BACKLOG_ONE // 3, r.BACKLOG_ONE))
    if "bound" in task and task["bound"] != 1.0:
        task["work"] = float(rng.choice((0, 4096, 65536, 65536)))
        task["bound"] = rng.choice((INF, 0.01, 0.05))
        some = [(rng.choice(ports), rng.choice((0.5, 1.0)), rng.randint(0, 3)) for _ in range(rng.randint(1, 4))]
        task["uses"] = some
    return task
