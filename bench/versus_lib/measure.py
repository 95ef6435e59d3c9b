"""The run itself: rounds of standing jobs, one cell after another on every contender."""

import time

import numpy as np

from versus_lib import cells
from versus_lib.jobs import Job, JobFailed

MOST, LEAST = 5000, 8       # iterations of one timing


def iterations(guess_ns, seconds):
    """How many iterations of about `guess_ns` fill `seconds`."""
    return int(min(MOST, max(LEAST, seconds * 1e9 / max(guess_ns, 1.0))))


def measure_cell(job, op, nbytes, salt, seconds, guess):
    """Verify, time, verify again. Returns the cell's figures; `guess` (ns) or None to calibrate."""
    job.ask(do="open", op=op, bytes=nbytes)
    wrong = job.verify(salt)
    if guess is None:
        job.time(3)
        guess = float(np.mean(job.time(4 if nbytes > 1 << 20 else 30)))
    iters = iterations(guess, seconds)
    took = job.time(iters)
    wrong += job.verify(salt + 1)
    job.ask(do="close")
    trips = cells.TRIPS.get(op, 1) * 1e3
    return {"us": float(np.median(took)) / trips, "us_mean": float(np.mean(took)) / trips,
            "iters": iters, "wrong": wrong}


class Run:
    """Takes all rounds. `keep` gets every record as it comes, `say` what a reader wants to see at once.

    `meter(n)`: figures of the machine's limits, taken in every round while all jobs sleep, or None.
    """

    def __init__(self, contenders, plan, keep, say, meter=None):
        self.contenders, self.plan, self.keep, self.say, self.meter = contenders, plan, keep, say, meter
        self.failed, self.guesses = set(), {}

    def _start(self, n):
        jobs = []
        for contender in self.contenders:
            if (contender.name, n) in self.failed:
                continue        # it failed at this n already; said then, and again at the end
            try:
                jobs.append(Job(contender, n))
            except JobFailed as error:
                self._fail(contender, n, "start", error)
        return jobs

    def _fail(self, contender, n, where, error):
        self.failed.add((contender.name, n))
        self.keep({"record": "failure", "contender": contender.name, "n": n, "where": where, "error": str(error)})
        self.say(f"! {contender.name}, n = {n}, {where}: {error}")

    def _cell(self, jobs, n, index, op, nbytes, number):
        turn = (number + index) % max(1, len(jobs))
        for job in jobs[turn:] + jobs[:turn]:
            key = (job.contender.name, n, op, nbytes)
            try:
                figures = measure_cell(job, op, nbytes, 2 * (number * 1000 + index), self.plan.seconds,
                                       self.guesses.get(key))
            except JobFailed as error:
                self._fail(job.contender, n, f"{op} {nbytes} B", error)
                job.kill()
                jobs.remove(job)
                continue
            self.guesses[key] = figures["us_mean"] * 1e3
            self.keep({"record": "cell", "round": number, "contender": job.contender.name,
                       "about": job.contender.about, "n": n, "op": op, "bytes": nbytes, **figures})
            if figures["wrong"]:
                self.say(f"! {job.contender.name}, n = {n}, {op} {nbytes} B: "
                         f"{figures['wrong']} WRONG elements")

    def take(self):
        """All rounds of all n. A failed job is recorded and left out; the others go on."""
        plan = self.plan
        for n in plan.n:
            for number in range(plan.rounds):
                begun = time.monotonic()
                jobs = self._start(n)
                try:
                    if self.meter:
                        self.keep({"record": "limits", "round": number, "n": n, **self.meter(n)})
                    for index, (op, nbytes) in enumerate(cells.grid(plan.ops, plan.sizes, n)):
                        self._cell(jobs, n, index, op, nbytes, number)
                finally:
                    for job in jobs:
                        job.close()
                self.say(f"n = {n}, round {number + 1} of {plan.rounds}: {time.monotonic() - begun:.1f} s")
