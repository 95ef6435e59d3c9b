"""What st_timing.h says, in plain Python: an oracle of the simulator, and of nothing else.

Written from the header's comment alone; slow (every solve looks at all that flows).  Where the header leaves room:
* a flow through a link twice (two operands) takes both weights of it, and counts once in the mean of backlogs;
* a task of no work flows at the instant at which its latency has passed, and is done in that instant;
* posts on a flag that is raised already change nothing; a rendezvous raises its start flags itself;
* ``window_ps``: all that is due within the window after what is due first happens when the last of it is due.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from fractions import Fraction

import numpy as np

from strata.errors import Deadlock, InvalidArgument
from strata.exec.timed.records import BACKLOG_ONE, NONE, POOL, TIMES_DTYPE
from strata.plan.topology import Topology


def fill(capacities, flows, number=float):
    """Weighted max-min by water filling: capacities by link; of each flow (bound, {link: weight}).  The level rises
    for all flows alike, until a bound is met, or a link full; what that stops is fixed, and the rest goes on.
    Returns the rates, of type ``number``."""
    rates = [None] * len(flows)
    while None in rates:
        moving = [i for i, rate in enumerate(rates) if rate is None]
        level, stopped = math.inf, []
        for i in moving:
            if flows[i][0] <= level:
                level, stopped = flows[i][0], [i, *(stopped if flows[i][0] == level else ())]
        for link, capacity in capacities.items():
            crossing = [i for i in moving if link in flows[i][1]]
            if not crossing:
                continue
            taken = sum(w[link] * rates[i] for i, (_, w) in enumerate(flows) if rates[i] is not None and link in w)
            full = max(number(0), number(capacity) - taken) / sum(number(flows[i][1][link]) for i in crossing)
            if full <= level:
                level, stopped = full, [*crossing, *(stopped if full == level else ())]
        if not stopped or level == math.inf:
            raise InvalidArgument(f"flows {moving} have neither a link nor a bound")
        for i in stopped:
            rates[i] = number(level)
    return rates


def certificate(capacities, flows, rates):
    """The worst relative violation of what makes ``rates`` max-min: no link is over its capacity, no flow over its
    bound, and each flow is at its bound or crosses a full link on which no flow is faster."""
    worst = 0.0
    taken = {link: sum(float(w[link] * x) for (_, w), x in zip(flows, rates, strict=True) if link in w)
             for link in capacities}  # fmt: skip
    fastest = {link: max((float(x) for (_, w), x in zip(flows, rates, strict=True) if link in w), default=0.0)
               for link in capacities}  # fmt: skip

    def over(a, b):
        return max(0.0, (a - b) / max(abs(a), abs(b))) if a != b else 0.0

    for link, capacity in capacities.items():
        worst = max(worst, over(taken[link], float(capacity)))
    for (bound, weights), x in zip(flows, rates, strict=True):
        held = over(float(bound), float(x)) if bound < math.inf else math.inf
        for link in weights:
            held = min(held, max(over(float(capacities[link]), taken[link]), over(fastest[link], float(x))))
        worst = max(worst, over(float(x), float(bound)), held)
    return worst


def effective(link, held, flows, number=float):
    """What a link gives.  ``held``: lanes that hold a core of it (pools); ``flows``: of each flow through it,
    (its peers there, its backlog as a fraction)."""
    capacity = number(float(link["capacity"]))
    if link["kind"] == POOL:
        capacity = max(number(0), capacity - held)
    peers = {peer for there, _ in flows for peer in there}
    if link["loss"] > 0 and flows:
        backlog = sum(b for _, b in flows) / len(flows)
        capacity = capacity / number(1 + float(link["loss"]) * math.log2(len(peers)) * float(backlog))
    return capacity


class _Run:
    def __init__(self, links, uses, tasks, lanes, flags, members, rendezvous, topology, number):
        self.links, self.uses, self.tasks, self.lanes = links, uses, tasks, lanes
        self.members, self.rendezvous, self.flags = members, rendezvous, flags
        self.topology, self.number = topology, number
        self.times = np.full(len(tasks), NONE, np.int64).repeat(4).view(TIMES_DTYPE)
        self.raised = np.full(len(flags), NONE, np.int64)
        self.left = [int(f["need"]) for f in flags]
        self.waiting = [[] for _ in flags]  # tasks
        self.lane_of = {t: i for i, lane in enumerate(lanes) for t in _span(lane)}
        self.distant = set()  # tasks whose latency has passed, and that may not flow yet
        self.active = {}  # task -> work left
        self.held = [0] * len(links)
        self.arrivals = {}  # flag -> its rendezvous
        for r in range(len(rendezvous)):
            for m in _span(rendezvous[r]):
                self.arrivals.setdefault(int(members[m]["arrive"]), []).append(r)
        self.now, self.due, self.scheduled = 0, [], 0
        self.count = {"solves": 0, "events": 0, "batches": 0}

    def at(self, when, what, which):
        heapq.heappush(self.due, (int(when), self.scheduled, which, what))
        self.scheduled += 1

    # The life of a task

    def come(self, t):
        self.times[t]["ready"] = self.now
        self.await_flags(t)

    def await_flags(self, t):
        task, when = self.tasks[t], self.now
        for flag, extra in zip(task["wait"], task["wait_ps"], strict=True):
            if flag == NONE:
                continue
            if self.raised[flag] == NONE:
                self.waiting[flag].append(t)
                return
            when = max(when, int(self.raised[flag] + extra))
        self.at(when, self.begin, t)

    def begin(self, t):
        lane = self.lanes[self.lane_of[t]]
        self.times[t]["begun"] = self.now
        if t == lane["first"] and lane["pool"] != NONE:
            self.held[lane["pool"]] += 1
        self.at(self.now + self.tasks[t]["hold_ps"] + self.tasks[t]["latency_ps"], self.arrive, t)

    def arrive(self, t):
        lane = self.lanes[self.lane_of[t]]
        if t > lane["first"] and self.times[t - 1]["done"] == NONE:
            self.distant.add(t)
        else:
            self.flow(t)

    def flow(self, t):
        lane = self.lanes[self.lane_of[t]]
        self.times[t]["flowing"] = self.now
        if lane["ahead"] and t + 1 in _span(lane):
            self.come(t + 1)
        if self.tasks[t]["work"] > 0:
            self.active[t] = self.number(float(self.tasks[t]["work"]))
        else:
            self.finish(t)

    def finish(self, t):
        lane = self.lanes[self.lane_of[t]]
        self.active.pop(t, None)
        self.times[t]["done"] = self.now
        if self.tasks[t]["post"] != NONE:
            flag = self.tasks[t]["post"]
            self.left[flag] -= 1
            if self.left[flag] == 0:
                self.up(flag)
        if t + 1 not in _span(lane):
            if lane["pool"] != NONE:
                self.held[lane["pool"]] -= 1
        elif not lane["ahead"]:
            self.come(t + 1)
        elif t + 1 in self.distant:
            self.distant.remove(t + 1)
            self.flow(t + 1)

    # Flags

    def up(self, flag):
        if self.raised[flag] != NONE:
            return
        self.raised[flag] = self.now
        for t in self.waiting[flag]:
            self.await_flags(t)
        for r in self.arrivals.get(flag, ()):
            self.meet(r)

    def meet(self, r):
        members = [self.members[m] for m in _span(self.rendezvous[r])]
        if any(self.raised[m["arrive"]] == NONE for m in members):
            return
        dies = [int(m["die"]) for m in members]
        for m in members:
            tiers = self.topology.tiers(int(m["die"]), np.array(dies))
            seen = [int(self.raised[j["arrive"]] + self.rendezvous[r]["seen_ps"][tier])
                    for j, tier in zip(members, tiers, strict=True)]  # fmt: skip
            self.at(self.rendezvous[r]["base_ps"] + max(seen), self.up, int(m["start"]))

    # What flows

    def solve(self):
        """The rate of each that flows, and when it is done at that rate: {task: (rate, time)}; the residual."""
        flows, through = [], {}
        for t in self.active:
            weights, peers = {}, {}
            for use in self.uses[self.tasks[t]["use_first"] :][: self.tasks[t]["nuse"]]:
                link = int(use["link"])
                weights[link] = weights.get(link, 0) + self.number(float(use["weight"]))
                peers.setdefault(link, set()).add(int(use["peer"]))
            bound = float(self.tasks[t]["bound"])
            flows.append((bound if math.isinf(bound) else self.number(bound), weights))
            for link, there in peers.items():
                through.setdefault(link, []).append((there, Fraction(int(self.tasks[t]["backlog"]), BACKLOG_ONE)))
        capacities = {link: effective(self.links[link], self.held[link], met, self.number)
                      for link, met in through.items()}  # fmt: skip
        rates = fill(capacities, flows, self.number)
        self.count["solves"] += 1
        found = {}
        for (t, left), rate in zip(self.active.items(), rates, strict=True):
            found[t] = rate, self.now + max(0, math.ceil(left / rate)) if rate > 0 else math.inf
        return found, certificate(capacities, flows, rates)

    def run(self, window_ps, check):
        for flag, need in enumerate(self.left):
            if need == 0:
                self.up(flag)
        for lane in self.lanes:
            if lane["count"]:
                self.come(int(lane["first"]))
        worst = 0.0
        while True:
            rates, residual = {}, 0.0
            while self.due and self.due[0][0] <= self.now:
                _, _, which, what = heapq.heappop(self.due)
                self.count["events"] += 1
                what(which)
            if self.active:
                rates, residual = self.solve()
                worst = max(worst, residual)
            if check and residual > 1e-9:
                raise AssertionError(f"at {self.now} ps the rates are no max-min: {residual}")
            times = sorted([d[0] for d in self.due] + [when for _, when in rates.values() if when < math.inf])
            if not times:
                return worst
            then = max(when for when in times if when <= times[0] + window_ps)
            for t, (rate, _) in rates.items():
                self.active[t] -= rate * (then - self.now)
            self.now = then
            self.count["batches"] += 1
            for t, (_, when) in rates.items():
                if when <= then:
                    self.count["events"] += 1
                    self.finish(t)


def _span(record):
    return range(int(record["first"]), int(record["first"]) + int(record["count"]))


def run(links, uses, tasks, lanes, flags, members, rendezvous, *, package=1, node=1, flat=False, window_ps=0,
        check=False, number=float):  # fmt: skip
    """Simulates; a dict: times (TIMES_DTYPE per task), raised (int64 per flag), end_ps, digest, residual, and counts.
    ``number``: Fraction for exact arithmetic.  Deadlock names the first lane with a task that is never done."""
    it = _Run(links, uses, tasks, lanes, flags, members, rendezvous, Topology(package, node, flat), number)
    worst = it.run(window_ps, check)
    for lane in lanes:
        for t in _span(lane):
            if it.times[t]["done"] == NONE:
                never = [int(flag) for flag in tasks[t]["wait"] if flag != NONE and it.raised[flag] == NONE]
                why = f"waits for flag {never[0]}, which is never raised" if never else "flows at no rate"
                raise Deadlock(f"die {lane['die']}, core {lane['core']}: operation {tasks[t]['operation']}, "
                               f"unit {tasks[t]['unit']} {why}")  # fmt: skip
    end = int(it.times["done"].max()) if len(tasks) else 0
    told = hashlib.blake2b(it.times.tobytes() + it.raised.tobytes(), digest_size=8).digest()
    digest = int.from_bytes(told, "little")
    return {"times": it.times, "raised": it.raised, "end_ps": end, "digest": digest, "residual": worst, **it.count}
