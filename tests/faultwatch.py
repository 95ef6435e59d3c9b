"""What both sides of a trial of faults look at: what a die holds, and how victims end."""

import os
import select
import signal
import time

import faultlib

from strata import _core

STOP = 0.05  # seconds that a die is stopped at most
BOUND = 60.0  # seconds in which a step of a trial must be over


def until(condition, what):
    end = time.monotonic() + BOUND / 2
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {BOUND / 2:.0f} s"
        time.sleep(0.001)


def threads():
    return len(os.listdir("/proc/self/task"))


def descriptors():
    """What this process has open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(f"{fd}: {os.readlink(f'/proc/self/fd/{fd}')}")
        except FileNotFoundError:  # that of the look itself
            pass
    return found


def nothing_left(threads_before, descriptors_before):
    """A die that has left the job has the threads and descriptors that it had before; but for the UB space's."""
    until(lambda: threads() <= threads_before, f"{threads()} threads, {threads_before} before")
    left = [name for name in descriptors() if name not in descriptors_before and "strata." not in name]
    assert not left, f"descriptors left open: {left}"


def reached():
    """How often this process has reached each fault point; nothing without the checked core."""
    if not _core.CHECKED:
        return {}
    from strata._core.checked import hooks

    return {name: count for name, count in hooks.reached().items() if count}


class Watch:
    """Sees when a victim ends, stops, or says that it has come through."""

    def __init__(self, job, rank):
        self.job, self.process = job, job.processes[rank]
        self.pidfd = os.pidfd_open(self.process.pid)

    def wait(self, over, bound=BOUND):
        """"died", "stopped" or "over"; when, and its last event."""
        end = time.monotonic() + bound
        while True:
            if select.select([self.pidfd], [], [], 0)[0]:
                return "died", time.monotonic(), None
            if stopped(self.process.pid):
                return "stopped", time.monotonic(), None
            for event in list(self.job.events):
                if event.rank == self.process.rank and event.name == over:
                    self.job.events.remove(event)
                    return "over", event.time, event.data
            if time.monotonic() > end:
                raise AssertionError(f"die {self.process.rank} neither ended nor came through; {self.job.story()}")
            self.job._read(0.001)

    def gone(self):
        """Waits until it has ended; when."""
        assert select.select([self.pidfd], [], [], BOUND)[0], "it does not end"
        return time.monotonic()

    def close(self):
        os.close(self.pidfd)


def stopped(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "T" and faultlib.all_stopped(pid)
    except (FileNotFoundError, ProcessLookupError):
        return False


def fell(job, trial, which, rng):
    """Waits for a victim's fault, and sees to it that the victim is dead afterwards; (point or "", time, reached)."""
    rank, fault = trial.victims[which], (trial.fault, trial.second)[which]
    watch, point, found = Watch(job, rank), "", {}
    try:
        while True:
            how, when, data = watch.wait(f"over{which}")
            if how == "died":
                point = fault.split(":")[0]
                break
            if how == "stopped":
                point = fault.split(":")[0]
                time.sleep(STOP * rng.random())
                early = [e for e in job.events if e.name == "error" and e.data.ranks == (rank,)]
                assert not early or which, f"a stopped die counts as dead: {early}"
                job.kill(rank, signal.SIGCONT)
                continue
            found = data
            job.kill(rank)
            when = watch.gone()
            break
    finally:
        watch.close()
    job.reap(rank)
    return point, when, found


def at_a_moment(job, trial, ranks=None):
    """Kills the victim while all (or ``ranks``) are at it; when that could be seen."""
    victim = trial.victims[0]
    job.all("going", ranks, BOUND)
    time.sleep(trial.delay)
    job.kill(victim)
    when = job.gone(victim)
    job.reap(victim)
    return when
