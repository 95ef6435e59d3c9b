"""Ends, stops or holds up a die at a step of an operation, over and over, and looks at what becomes of the others.

    python tools/fault_trials.py N [--seed S] [--only OPERATION] [--point NAME] [--jobs J] [-v]
    python tools/fault_trials.py --trial TEXT

Each trial draws an operation, a size, 2 to 8 dies, options, a victim, and a fault point (include/st_fault.h) among
those that the victim reaches in a run without a fault; points that were hit seldom come first.  In some trials a
second die dies while the others deal with the first death, in some the victim is killed at a moment instead.  A die
that is killed must be named by the error of every survivor, and shrink() must give a group that computes; one that is
stopped is slow, and nobody may call it dead.  Nothing may hang or stay behind.  A failed trial prints what replays it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import pickle
import random
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "mp")]
os.environ["STRATA_CORE"] = "checked"  # before strata is imported

import faultlib  # noqa: E402
import faultsteps_all  # noqa: E402
import faulttrials  # noqa: E402
from faultsteps_elastic import OPERATIONS as ELASTIC  # noqa: E402
from faultsteps_elastic import least  # noqa: E402
from faulttrials import Trial  # noqa: E402

from strata._core.checked import hooks  # noqa: E402

OPERATIONS = tuple(name for name in faultsteps_all.OPERATIONS if name != "compute")
SIZES = (8, 40, 1000, 8192, 100_000, 300_000, 1 << 20, 4 << 20)  # bytes
MOMENTS, DOUBLE, STOPS, SLEEPS = 0.05, 0.2, 0.2, 0.05  # shares of trials
# What only they do who deal with a death.
AFTERMATH = ("FAIL_", "ABORT_", "SHRINK_", "SLOT_", "FOUND_", "GRAPH_", "BOARD_", "EXPORT_", "RING_TAKEN", "LANES_",
             "ENGINE_FAIL", "LEAVE_", "RECLAIM_", "CURSOR_")  # fmt: skip
RING_HELD = ("RING_LOCKED", "RING_FILLED", "RING_MOVED")  # a producer dies with the lock of a ring


def large(nbytes: int) -> int:
    """What makes other ways: a message in a mailbox, in place, in several units for one flag."""
    return sum(nbytes > size for size in (2000, 2 << 20))


class Drawer:
    """Trials, from seeds and from what has been hit so far."""

    def __init__(self, operations: tuple[str, ...], wanted: str | None) -> None:
        self.operations, self.wanted = operations, wanted
        self.hits: collections.Counter[str] = collections.Counter()
        self.profiles: dict[tuple[object, ...], dict[str, int]] = {}
        self.where: dict[str, list[Trial]] = collections.defaultdict(list)  # point -> trials that reach it

    def draw(self, seed: int) -> Trial:
        rng = random.Random(seed)
        known = sorted(self.where, key=lambda name: (self.hits[name], rng.random()))
        if self.wanted in self.where or (not self.wanted and known and rng.random() < 0.4):
            seldom = self.wanted or known[rng.randrange(min(4, len(known)))]
            base = rng.choice(self.where[seldom])
            counts = self.counts(base)
        else:
            base = self.plain(rng)
            if rng.random() < MOMENTS:
                return base._replace(delay=rng.choice((0.0, 0.003, 0.03)) * rng.random())
            counts = self.counts(base)
            if base.n > 2 and base.operation not in ("init", *ELASTIC) and rng.random() < DOUBLE:
                second = rng.choice([r for r in range(base.n) if r not in base.victims])
                first = self.first(rng, base, counts)
                base = base._replace(victims=(*base.victims, second), fault=first)
                counts = self.counts(base)
            seldom = self.seldom(rng, base, counts)
        return self.armed(rng, base._replace(salt=seed), seldom, counts[seldom])

    def plain(self, rng: random.Random) -> Trial:
        n = rng.choice((2, 2, 3, 3, 3, 4, 4, 5, 6, 7, 8))
        operation = rng.choice(self.operations)
        n = max(n, least(operation))
        kind = rng.choice(("on_allocation",) * 4 + ("just_in_time", "pool"))
        if operation in ("vmm", "exports", "memory", "foreign", "refused") and kind == "pool":
            kind = "on_allocation"
        path = "mte" if operation == "submit" else rng.choice(("auto", "mte", "sdma", "sdma", "mixed"))
        nbytes, victim = rng.choice(SIZES), rng.randrange(n)
        return Trial(operation, nbytes, n, (victim,), path, rng.choice((1, 1, 3)), kind, delay=-1)

    def counts(self, base: Trial) -> dict[str, int]:
        """How often the (last) victim reaches each point, if nothing happens to it."""
        roles = tuple(min(v, 1) for v in base.victims)
        key = base.operation, base.path, large(base.nbytes), roles, base.fault.split(":")[0]
        if key not in self.profiles:
            try:
                self.profiles[key] = found = faulttrials.run(base).reached
            except AssertionError as error:
                raise AssertionError(f"in a run that counts points, {base}: {error}") from error
            for name in found:
                if len(base.victims) == 1 or name.startswith(AFTERMATH):
                    self.where[name].append(base)
        return self.profiles[key]

    def first(self, rng: random.Random, base: Trial, counts: dict[str, int]) -> str:
        """The fault of the first of two victims."""
        names = ["ARRIVE_BEFORE"]
        if base.operation == "submit" and rng.random() < 0.7:  # with the lock of a ring that others go on with
            owner = rng.choice([r for r in range(base.n) if r != base.victims[0]])
            return f"{rng.choice(RING_HELD)}:{owner + 1 + base.n * rng.randrange(3)}:kill"
        if rng.random() < 0.5 or names[0] not in counts:
            names = [name for name in counts if not name.startswith(("JOIN_", "ALL_JOINED", "LEFT_", "RETURN_"))]
        name = rng.choice(names)
        return f"{name}:{rng.randint(1, counts[name])}:kill"

    def seldom(self, rng: random.Random, base: Trial, counts: dict[str, int]) -> str:
        names = [name for name in counts if len(base.victims) == 1 or name.startswith(AFTERMATH)]
        if self.wanted in names:
            return self.wanted
        return rng.choices(names, [1 / (1 + self.hits[name]) for name in names])[0]

    def armed(self, rng: random.Random, base: Trial, point: str, count: int) -> Trial:
        nth = max(1, int(count ** rng.random()))
        if len(base.victims) > 1:
            return base._replace(second=f"{point}:{nth}:kill")
        how = rng.random()
        action = "stop" if how < STOPS else f"sleep={rng.randint(1, 60)}" if how < STOPS + SLEEPS else "kill"
        return base._replace(fault=f"{point}:{nth}:{action}")


def quantiles(times: list[float]) -> str:
    times = sorted(times)
    shares = ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (1, "max"))
    return ", ".join(f"{name} {times[min(int(len(times) * q), len(times) - 1)] * 1e3:.1f} ms" for q, name in shares)


class Report:
    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.kinds: collections.Counter[str] = collections.Counter()
        self.actions: collections.Counter[str] = collections.Counter()
        self.failed: list[str] = []
        self.done = 0

    def take(self, trial: Trial, outcome: faulttrials.Outcome, hits: collections.Counter[str]) -> None:
        self.latencies += outcome.latencies
        self.kinds.update(outcome.kinds)
        for point, fault in ((outcome.hit, trial.fault), (outcome.second, trial.second)):
            if point:
                hits[point] += 1
                self.actions[fault.split(":")[2].split("=")[0]] += 1
        if not outcome.hit and "sleep" in trial.fault:
            hits[trial.fault.split(":")[0]] += 1

    def add(self, other: Report) -> None:
        """What another one has seen."""
        self.latencies += other.latencies
        self.kinds.update(other.kinds)
        self.actions.update(other.actions)
        self.failed += other.failed
        self.done += other.done

    def text(self, hits: collections.Counter[str]) -> str:
        never = [name for name in hooks.POINTS if not hits[name]]
        lines = ["hits: " + ", ".join(f"{name} {hits[name]}" for name in hooks.POINTS if hits[name])]
        share = f"{len(hooks.POINTS) - len(never)} of {len(hooks.POINTS)}"
        lines.append(f"{share} fault points hit; never: {', '.join(never) or 'none'}")
        lines.append(f"done to victims: {dict(self.actions)}; errors of survivors: {dict(self.kinds)}")
        if self.latencies:
            lines.append(f"from the death to the error, {len(self.latencies)} survivors: {quantiles(self.latencies)}")
        return "\n".join(lines)


def attempt(drawer: Drawer, report: Report, trial: Trial | int, verbose: bool) -> None:
    start = time.monotonic()
    try:
        if not isinstance(trial, Trial):
            trial = drawer.draw(trial)
        outcome = faulttrials.run(trial)
    except AssertionError as error:
        report.failed.append(str(trial))
        print(f"FAILED {trial}\n{error}\nreplay: python tools/fault_trials.py --trial '{trial}'", flush=True)
        return
    report.take(trial, outcome, drawer.hits)
    if verbose:
        worst = max(outcome.latencies, default=0) * 1e3
        print(f"{trial}: {outcome.hit or '-'} {outcome.second}, {worst:.1f} ms, {outcome.kinds}, "
              f"{time.monotonic() - start:.2f} s", flush=True)  # fmt: skip


def some(args: argparse.Namespace, seed: int, first: int) -> tuple[Report, collections.Counter[str]]:
    """Every --jobs-th trial from the first one on, and the points that were hit."""
    drawer, report, began = Drawer(tuple(args.only or OPERATIONS), args.point), Report(), time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):  # what was done until then is told
        for k in range(first, args.trials, args.jobs):
            if time.monotonic() - began >= args.seconds:
                break
            attempt(drawer, report, Trial.parse(args.trial) if args.trial else seed + k, args.verbose)
            report.done += 1
    return report, drawer.hits


def side_by_side(args: argparse.Namespace, seed: int) -> tuple[Report, collections.Counter[str]]:
    """All trials, --jobs at a time: each process has its share, and its own notion of what is hit seldom."""
    pipes, pids = [], []
    for first in range(args.jobs):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            faultlib.LIBC.prctl(1, signal.SIGKILL)  # ends with this process
            with os.fdopen(write, "wb") as out:
                pickle.dump(some(args, seed, first), out)
            os._exit(0)
        os.close(write)
        pipes.append(read)
        pids.append(pid)
    report, hits = Report(), collections.Counter[str]()
    for pid, read in zip(pids, pipes, strict=True):
        with os.fdopen(read, "rb") as said:
            try:
                their, hit = pickle.load(said)
            except EOFError:
                their, hit = Report(), {}
                their.failed.append("a process of trials has ended early")
        os.waitpid(pid, 0)
        report.add(their)
        hits.update(hit)
    return report, hits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", type=int, metavar="N", nargs="?", default=1, help="how many")
    parser.add_argument("--seed", type=int, help="of the first trial; the next ones count up (default: random)")
    parser.add_argument("--only", action="append", choices=OPERATIONS, help="only these operations")
    parser.add_argument("--point", choices=hooks.POINTS, help="this fault point, once it has been found")
    parser.add_argument("--trial", help="one trial, as a failed one is printed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no further trials after this time")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="so many trials at a time")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for each trial")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if args.seed is None else args.seed
    began, shm = time.monotonic(), faultlib.shm_bytes()
    print(f"fault_trials: {args.trials} trials, seed {seed}", flush=True)
    report, hits = some(args, seed, 0) if args.jobs == 1 else side_by_side(args, seed)
    if not args.trial:
        print(report.text(hits))
    print(f"/dev/shm: {faultlib.shm_bytes() - shm:+d} bytes in use")
    print(f"{report.done - len(report.failed)} of {report.done} trials passed in {time.monotonic() - began:.0f} s")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
