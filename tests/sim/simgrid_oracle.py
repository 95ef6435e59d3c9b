"""A timing problem run by SimGrid: JSON from standard input, done times in microseconds (or null) to standard output.

Needs no strata: it is run by whichever interpreter has the ``simgrid`` module.  One SimGrid second is one
microsecond, as its clock is exact to 1e-9 s.  Each task is an actor and has two hosts of its own; links have no
latency (with it, flows share by latency, even in the raw model), distance is slept before the transfer.  A flow's
bound is a link of its own.  A weight is how often a route has a link."""

import json
import math
import os
import sys

from simgrid import Actor, Comm, Engine, Link, LinkInRoute, NetZone, Semaphore, simgrid_version, this_actor

CORE = 1e6  # of a pool's capacity: full speed, in picoseconds of work a microsecond


class Signal:
    """Something that happens once; ``then`` are called in the actor that lets it happen."""

    def __init__(self):
        self.at, self.waiting, self.then = None, [], []

    def wait(self):
        """Until it has happened; when that was."""
        if self.at is None:
            mine = Semaphore(0)
            self.waiting.append(mine)
            mine.acquire()
        return self.at

    def happen(self):
        if self.at is None:
            self.at = Engine.clock
            for other in self.waiting:
                other.release()
            for call in self.then:
                call()


class Run:
    def __init__(self, problem):
        self.problem = problem
        self.tasks = problem["tasks"]
        count = len(self.tasks)
        self.flowing, self.done = [Signal() for _ in range(count)], [Signal() for _ in range(count)]
        self.flags = [Signal() for _ in problem["flags"]]
        self.left = list(problem["flags"])
        self.held = [0] * len(problem["links"])
        self.links = []

    def build(self, zone):
        self.links = [self.link(zone, i, link) for i, link in enumerate(self.problem["links"])]
        self.ends, self.home = [], zone.create_host("home", 1e9)
        for t, task in enumerate(self.tasks):
            ends = [zone.create_host(f"{end}{t}", 1e9) for end in "ab"]
            route = [self.links[i] for i, weight in task["uses"] for _ in range(weight)]
            if task["bound"] is not None:
                own = zone.create_link(f"bound{t}", task["bound"])
                own.set_latency(0)
                route.append(own.seal())
            if task["work"]:
                routed = [LinkInRoute(link) for link in route]
                zone.add_route(ends[0].netpoint, ends[1].netpoint, None, None, routed, False)
            self.ends.append(ends)

    def link(self, zone, i, link):
        made = zone.create_link(f"link{i}", link["capacity"])
        made.set_latency(0)
        if link["loss"]:
            loss = link["loss"]
            law = lambda capacity, n: capacity / (1 + loss * math.log2(n)) if n > 1 else capacity  # noqa: E731
            made.set_sharing_policy(Link.NONLINEAR, law)
        return made.seal()

    def hold(self, pool, cores):
        if pool >= 0:
            self.held[pool] += cores
            self.links[pool].set_bandwidth(self.problem["links"][pool]["capacity"] - CORE * self.held[pool])

    def post(self, flag):
        self.left[flag] -= 1
        if self.left[flag] == 0:
            self.flags[flag].happen()

    def meet(self, meeting):
        """Once all have arrived: each is let go by an actor of its own."""
        arrived = [self.flags[a].at for a in meeting["arrive"]]
        if None not in arrived and not meeting.get("met"):
            meeting["met"] = True
            for flag, seen in zip(meeting["start"], meeting["seen"], strict=True):
                up = self.flags[flag].happen
                self.later(meeting["base"] + max(a + s for a, s in zip(arrived, seen, strict=True)), up)

    def later(self, when, call):
        def actor():
            this_actor.sleep_until(when)
            call()

        Actor.create("later", self.home, actor)

    def life(self, t):
        """Of a task; tasks of a lane are one after the other, or with ``ahead`` as soon as the one before flows."""
        task = self.tasks[t]
        before = task["before"]
        if before >= 0:
            (self.flowing if task["ahead"] else self.done)[before].wait()
        when = Engine.clock
        for flag, seen in task["wait"]:
            when = max(when, self.flags[flag].wait() + seen)
        if when > Engine.clock:
            this_actor.sleep_until(when)
        if before < 0:
            self.hold(task["pool"], 1)
        if task["pause"]:
            this_actor.sleep_for(task["pause"])
        if before >= 0:
            self.done[before].wait()
        self.flowing[t].happen()
        if task["work"]:
            Comm.sendto_async(*self.ends[t], task["work"]).wait()
        self.done[t].happen()
        if task["post"] >= 0:
            self.post(task["post"])
        if task["last"]:
            self.hold(task["pool"], -1)

    def begin(self):
        for meeting in self.problem["rendezvous"]:
            for flag in meeting["arrive"]:
                self.flags[flag].then.append(lambda meeting=meeting: self.meet(meeting))
        for t in range(len(self.tasks)):
            Actor.create(f"task{t}", self.home, self.life, t)


def main():
    problem = json.load(sys.stdin)
    engine = Engine(["oracle", "--log=root.thresh:error"])
    # CM02 with these is the "raw" model, which 3.32 does not know by name.
    plain = {"model": "CM02", "bandwidth-factor": 1, "latency-factor": 1, "weight-S": 0, "crosstraffic": 0}
    for name, value in plain.items():
        Engine.set_config(f"network/{name}:{value}")
    old = int(simgrid_version.split(".")[0]) < 4
    Engine.set_config(f"{'maxmin/precision' if old else 'precision/work-amount'}:{problem['precision']}")
    run = Run(problem)
    zone = NetZone.create_full_zone("zone")
    run.build(zone)
    zone.seal()
    run.begin()
    engine.run()
    json.dump([signal.at for signal in run.done], sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # its threads may not end by themselves


if __name__ == "__main__":
    main()
