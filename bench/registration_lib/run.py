"""The run itself: standing jobs of all contenders, one sample after another on each, in an order that rotates."""

import contextlib
import time

from registration_lib import dies, moe
from registration_lib.workload import Moe
from strata.errors import StrataError
from strata.testing import Pool

MIB = 1 << 20
MODES = ("on_allocation", "just_in_time", "pool")
SECTIONS = ("mapped", "first", "check", "publish", "moe", "waste", "idle")
ROOM = 4 << 30          # bytes that the buffers of one job may take
SLACK = 32 * MIB        # of a pool: the groups' own memory, shared pages


def page_name(huge):
    return "huge pages" if huge else "small pages"


def contenders(modes):
    """{name: options} of section first."""
    found = {mode: {"registration": mode} for mode in modes}
    for mode in modes:
        if mode != "pool":      # its pages are mapped before anything is timed
            found[f"{mode}, small pages"] = {"registration": mode, "huge_pages": False}
    return found


def fits(nbytes, n, room=ROOM):
    """Whether section first has room for this size: of each die, an output, a buffer, and ballast."""
    return n * (n + 2) * nbytes <= room


def repeats(nbytes, most):
    """Large buffers take long and vary little."""
    return most if nbytes <= 32 * MIB else max(2, most // 2)


def makespans(replies):
    """Of each repeat: from the first die's begin to the last die's end in us, and what was wrong or late."""
    out = []
    for every in zip(*replies, strict=True):
        out.append({"us": (max(s["end"] for s in every) - min(s["begin"] for s in every)) / 1e3,
                    "wrong": sum(s["wrong"] for s in every), "late": sum(s["late"] for s in every)})
        if "allocated" in every[0]:
            out[-1]["alloc_us"] = max(s["allocated"] - s["begin"] for s in every) / 1e3
    return out


def steps_of(replies):
    """Of each step of the loop: makespan, and the dies' counters."""
    out = []
    for every in zip(*(steps for steps, _ in replies), strict=True):
        out.append({"us": (max(s["end"] for s in every) - min(s["begin"] for s in every)) / 1e3,
                    "allocator_us": sum(s["allocator_ns"] for s in every) / len(every) / 1e3,
                    "late": sum(s["late_maps"] for s in every),
                    "late_us": sum(s["late_map_ns"] for s in every) / len(every) / 1e3,
                    "pages": sum(s["shadow_maps"] for s in every)})
    return out


class Run:
    """Takes the sections. ``keep`` gets every record as it comes, ``say`` what a reader wants to see at once."""

    def __init__(self, plan, keep, say):
        self.plan, self.keep, self.say = plan, keep, say

    @contextlib.contextmanager
    def jobs(self, n, options):
        """Standing jobs by name: n dies with these options each."""
        with contextlib.ExitStack() as stack:
            up = {name: stack.enter_context(Pool(n, timeout=self.plan.timeout, **chosen))
                  for name, chosen in options.items()}
            for job in up.values():
                job.start()
            yield up

    def turns(self, jobs):
        """(round, name, job), beginning with another job in each round."""
        names = list(jobs)
        for number in range(self.plan.rounds):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                yield number, name, jobs[name]

    def take(self):
        for name in self.plan.only:
            begun = time.monotonic()
            try:
                getattr(self, name)()
            except (StrataError, TimeoutError, RuntimeError) as error:
                self.keep({"record": "failure", "section": name, "error": f"{type(error).__name__}: {error}"})
                self.say(f"! {name}: {error}")
            self.say(f"{name}: {time.monotonic() - begun:.1f} s")

    def mapped(self):
        p = self.plan
        for n in p.n:
            with self.jobs(n, {page_name(h): {"huge_pages": h} for h in (True, False)}) as jobs:
                for nbytes in p.sizes:
                    for number, name, job in self.turns(jobs):
                        for sample in job.run(dies.mapped, nbytes, repeats(nbytes, p.repeats))[0]:
                            self.keep({"record": "mapped", "n": n, "contender": name, "bytes": nbytes,
                                       "round": number, **sample})

    def first(self):
        p = self.plan
        for n in p.n:
            sizes = [s for s in p.first_sizes if fits(s, n)]
            options = contenders(p.modes)
            if "pool" in options:
                options["pool"]["pool_bytes"] = (n + 2) * max(sizes) + SLACK
            with self.jobs(n, options) as jobs:
                for op in p.ops:
                    for nbytes in sizes:
                        for number, name, job in self.turns(jobs):
                            self._first(job, n, op, nbytes, number, name)

    def _first(self, job, n, op, nbytes, number, name):
        replies = job.run(dies.first, op, nbytes, self.plan.delay, repeats(nbytes, self.plan.repeats))
        for how in replies[0]:
            for repeat, sample in enumerate(makespans([reply[how] for reply in replies])):
                self.keep({"record": "first", "n": n, "op": op, "bytes": nbytes, "round": number, "repeat": repeat,
                           "contender": name, "how": how, **sample})

    def check(self):
        p = self.plan
        for n in p.n:
            with self.jobs(n, {"on_allocation": {}}) as jobs:
                for nbytes in [4096, *(s for s in p.sizes if n * s <= ROOM)]:
                    for number, _, job in self.turns(jobs):
                        found = job.run(dies.check, nbytes, p.checks)[0]
                        self.keep({"record": "check", "n": n, "bytes": nbytes, "round": number,
                                   "ns": sum(found) / len(found), "worst_ns": max(found)})

    def publish(self):
        for n in self.plan.n:
            with self.jobs(n, {"on_allocation": {"registration": "on_allocation"}}) as jobs:
                replies = jobs["on_allocation"].run(dies.publish, self.plan.pages)
                (mine, _), (theirs, words) = replies[:2]
                for a, b in zip(mine, theirs, strict=True):
                    self.keep({"record": "publish", "n": n, "from_call_us": (b["seen"] - a["begin"]) / 1e3,
                               "alloc_us": (a["returned"] - a["begin"]) / 1e3,
                               "after_us": (b["seen"] - a["returned"]) / 1e3})
                self.keep({"record": "histogram", "n": n, "p50_us": words[0] / 1e3, "p99_us": words[1] / 1e3})

    def workload(self, n):
        p = self.plan
        return Moe(p.seed, n, tuple(p.tokens), p.hidden, p.held)

    def moe(self):
        p = self.plan
        edge = moe.compute_size(p.compute)
        for n in p.moe_n:
            work = self.workload(n)
            whole = p.rounds * p.steps
            most = max(work.peak(whole, rank) for rank in range(n))
            options = {"static": {"registration": "on_allocation"}}
            options |= {mode: {"registration": mode} for mode in p.modes}
            for mode in p.modes:
                if mode == "pool":
                    options[mode]["pool_bytes"] = 2 * most + SLACK
                else:
                    options[f"{mode}, no cache"] = {"registration": mode, "cache_bytes": 0}
            with self.jobs(n, options) as jobs:
                for job in jobs.values():       # plans and scratch memory are made
                    job.run(moe.loop, work, 0, min(3, p.steps), job is jobs["static"], 16, whole)
                for number, name, job in self.turns(jobs):
                    replies = job.run(moe.loop, work, number * p.steps, p.steps, name == "static", edge, whole)
                    wrong = sum(bad for _, bad in replies)
                    for k, step in enumerate(steps_of(replies)):
                        self.keep({"record": "moe", "n": n, "contender": name, "round": number,
                                   "step": number * p.steps + k, "wrong": wrong if k == 0 else 0, **step})

    def waste(self):
        p = self.plan
        for n in p.moe_n:
            work, steps = self.workload(n), p.rounds * p.steps
            peak = max(work.peak(steps, rank) for rank in range(n))
            if "pool" in p.modes:
                need = self._smallest_pool(work, n, steps, peak)
                self.keep({"record": "pool_size", "n": n, "peak_live": peak, "needed": need})
            options = {"on_allocation": {"registration": "on_allocation"},
                       "on_allocation, no cache": {"registration": "on_allocation", "cache_bytes": 0}}
            if "pool" in p.modes:
                options["pool, default size"] = {"registration": "pool"}
                options["pool, as needed"] = {"registration": "pool", "pool_bytes": need}
            for name, chosen in options.items():
                with self.jobs(n, {name: chosen}) as jobs:
                    replies = jobs[name].run(moe.replay, work, steps)
                for rank, found in enumerate(replies):
                    if found is None:
                        self.keep({"record": "failure", "section": "waste",
                                   "error": f"{name}: rank {rank} ran out of memory"})
                        continue
                    for step, (reserved, allocated, requested) in enumerate(found):
                        self.keep({"record": "waste", "n": n, "contender": name, "rank": rank, "step": step,
                                   "reserved": reserved, "allocated": allocated, "requested": requested})

    def _smallest_pool(self, work, n, steps, peak):
        """Bytes of the smallest pool, to 2 MiB, that holds all steps of all dies."""
        def suffices(pages):
            with self.jobs(n, {"pool": {"registration": "pool", "pool_bytes": pages * 2 * MIB}}) as jobs:
                return None not in jobs["pool"].run(moe.replay, work, steps)

        low = max(0, peak // (2 * MIB) - 1)     # too small: less than what is live
        high = low + 1 + SLACK // (2 * MIB)
        while not suffices(high):
            low, high = high, high + peak // (4 * MIB) + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if suffices(middle) else (middle, high)
        return high * 2 * MIB

    def idle(self):
        p = self.plan
        for n in p.n:
            with self.jobs(n, {mode: {"registration": mode} for mode in p.modes if mode != "pool"}) as jobs:
                for number, name, job in self.turns(jobs):
                    for rank, found in enumerate(job.run(dies.idle, p.idle)):
                        self.keep({"record": "idle", "n": n, "contender": name, "round": number, "rank": rank,
                                   **found})
            with self.jobs(n, {page_name(h): {"huge_pages": h} for h in (True, False)}) as jobs:
                for number, name, job in self.turns(jobs):
                    replies = job.run(dies.mapping_cpu, p.cpu_bytes)[1:]    # die 0 maps nothing
                    self.keep({"record": "mapping_cpu", "n": n, "contender": name, "round": number,
                               **{k: sum(r[k] for r in replies) / len(replies) for k in replies[0]}})


