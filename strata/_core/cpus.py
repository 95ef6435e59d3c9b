"""How many CPUs this process may use: its affinity mask, and the quota of its cgroups."""

from __future__ import annotations

import os

__all__ = ["granted", "job_cpus", "quota", "usable_cpus"]


def _numbers(path: str) -> list[float]:
    """The numbers in a file; none if it is not there or says that there is no limit ("max", -1)."""
    try:
        with open(path) as f:
            found = [float(word) for word in f.read().split()]
    except (OSError, ValueError):
        return []
    return found if found and found[0] > 0 else []


def _share(folder: str) -> float | None:
    """CPUs that a cgroup's quota is worth; None without one."""
    numbers = _numbers(os.path.join(folder, "cpu.max"))  # version 2: quota and period
    if len(numbers) != 2:
        numbers = [
            *_numbers(os.path.join(folder, "cpu.cfs_quota_us"))[:1],
            *_numbers(os.path.join(folder, "cpu.cfs_period_us"))[:1],
        ]
    return numbers[0] / numbers[1] if len(numbers) == 2 else None


def quota(proc: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> float | None:
    """CPUs that the tightest of this process's cgroups, itself and ancestors, grants; None: no limit.

    ``proc`` and ``root`` are where the kernel shows them.  A container often shows its own
    group as the root, under another path than ``proc`` names; then the root counts.
    """
    try:
        with open(proc) as f:
            lines = f.read().splitlines()
    except OSError:
        return None
    shares = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            tops = [root, os.path.join(root, "unified")]
        elif "cpu" in controllers.split(","):
            tops = [os.path.join(root, controllers), os.path.join(root, "cpu")]
        else:
            continue
        parts = [part for part in path.split("/") if part]
        for top in tops:
            for depth in range(len(parts), -1, -1):
                share = _share(os.path.join(top, *parts[:depth]))
                if share is not None:
                    shares.append(share)
    return min(shares, default=None)


def granted(cpus: int) -> int:
    """How many of these CPUs the quota leaves, at least 1."""
    share = quota()
    return cpus if share is None else max(1, min(cpus, int(share)))


def usable_cpus() -> int:
    """CPUs this process may use, at least 1; a fraction of one that a quota leaves over does not count."""
    return granted(len(os.sched_getaffinity(0)))


def job_cpus() -> int:
    """CPUs that the dies of a job may use together: those of who started this one, if that has bound it to some."""
    own = os.sched_getaffinity(0)
    try:
        theirs = os.sched_getaffinity(os.getppid())
    except OSError:  # it has ended, or is another user's
        theirs = own
    return granted(len(theirs if theirs > own else own))
