"""How much room this host leaves for fabric memory, and what to say when it is not enough.

A die's memory ends at the first of four limits: its share of the UB space
(option ``hbm_bytes``), the file system behind shared memory, a memory cgroup
(whose limit kills where the others refuse, so it is looked at beforehand), and
the number of mappings a process may have.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from strata.errors import FabricMemoryError, RegistrationError

__all__ = ["Cgroup", "Held", "Holder", "Limit", "cgroup_free", "cgroups", "enough_frames", "human", "shortage"]

_FRAMES = 10  # of a traceback: those of this package, and some of who called it
_UNLIMITED = 1 << 60  # version 1 says "no limit" with a number near 2**63


class Cgroup(NamedTuple):
    """A memory cgroup with a limit: the files that tell its limit, its use, and its statistics."""

    limit: str
    used: str
    stat: str


class Limit(NamedTuple):
    """A bound on a die's memory: bytes free below it and in all, and how to move it."""

    name: str
    free: int
    total: int
    cure: str


class Holder(NamedTuple):
    """A live allocation: its bytes, address, what it is, and where it was made ("file:line"), if known."""

    bytes: int
    address: int
    kind: str
    place: str | None = None


class Held(NamedTuple):
    """What a die's heap has."""

    kinds: Sequence[tuple[int, int, str]] = ()  # bytes and number of live allocations, what they are
    largest: Sequence[Holder] = ()  # the largest of them, largest first
    cached: int = 0  # bytes of mapped pages that nobody uses
    piece: int = 0  # bytes of the largest free piece of what is mapped
    reserved: int = 0  # bytes of mapped pages
    frames: bool | None = None  # what enough_frames() says


def _number(path: str) -> int | None:
    """The number in a file; None if it is not there or says that there is none ("max")."""
    try:
        with open(path) as f:
            return int(f.read())
    except (OSError, ValueError):
        return None


def cgroups(proc: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> tuple[Cgroup, ...]:
    """The memory cgroups with a limit that this process is in, itself and ancestors.

    ``proc`` and ``root`` are where the kernel shows them.  A container often
    shows its own group as the root, under another path than ``proc`` names;
    then the root counts.
    """
    found = []
    try:
        with open(proc) as f:
            lines = f.read().splitlines()
    except OSError:
        return ()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = root, ("memory.max", "memory.current", "memory.stat")
        elif "memory" in controllers.split(","):
            top = os.path.join(root, "memory")
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
        else:
            continue
        parts = [p for p in path.split("/") if p]
        for depth in range(len(parts), -1, -1):
            folder = os.path.join(top, *parts[:depth])
            limit = _number(os.path.join(folder, names[0]))
            if limit is not None and limit < _UNLIMITED:
                found.append(Cgroup(*(os.path.join(folder, name) for name in names)))
    return tuple(found)


def cgroup_free(groups: Iterable[Cgroup]) -> Limit | None:
    """The tightest of the groups now; None if none limits anything.

    File pages that the kernel can drop count as free.  Another process may take
    the room in the next moment: this is a look ahead, not a reservation.
    """
    tightest = None
    for group in groups:
        total, used = _number(group.limit), _number(group.used)
        if total is None or used is None or total >= _UNLIMITED:
            continue
        free = max(0, total - max(0, used - _droppable(group.stat)))
        if tightest is None or free < tightest.free:
            tightest = Limit(
                f"the memory cgroup ({group.limit})",
                free,
                total,
                "raise the cgroup's limit (docker --memory=..., systemd MemoryMax=..., the job's memory request)",
            )
    return tightest


def _droppable(stat: str) -> int:
    """Bytes of inactive file pages in a memory.stat, of the group and those below it."""
    values = {}
    try:
        with open(stat) as f:
            for line in f:
                name, _, value = line.partition(" ")
                values[name] = int(value)
    except (OSError, ValueError):
        return 0
    return values.get("total_inactive_file", values.get("inactive_file", 0))


def place(backing: str) -> str:
    """What holds the UB space, for readers, by option ``backing``."""
    return "/dev/shm" if backing == "shm" else "the kernel's memory for memfd"


def cure(backing: str) -> str:
    """How to give it room."""
    if backing == "memfd":
        return "free memory of this machine"
    return (
        "enlarge /dev/shm (mount -o remount,size=... /dev/shm; in a container docker --shm-size=...) "
        "or do without it (STRATA_BACKING=memfd)"
    )


def _file_system(fd: int) -> list[Limit]:
    fs = os.fstatvfs(fd)
    if not fs.f_blocks:  # a memfd: no mount limits it
        return []
    return [Limit(place("shm"), fs.f_bavail * fs.f_frsize, fs.f_blocks * fs.f_frsize, cure("shm"))]


def no_window(nbytes: int, rank: int | None) -> RegistrationError:
    """The error when dies cannot agree on a VA window of ``nbytes``; ``rank``: a die that has no room for any."""
    window = f"the VA window of {human(nbytes)}"
    if rank is None:
        return RegistrationError(
            f"the dies have no free range of addresses in common for {window}: set STRATA_WINDOW_BASE, or lower --hbm",
            operation="init",
        )
    return RegistrationError(
        f"rank {rank} has no free range of addresses for {window}: raise its `ulimit -v`, or lower --hbm",
        ranks=(rank,), operation="init",
    )  # fmt: skip


def _mappings() -> tuple[int, int] | None:
    """Mappings of this process, and how many it may have."""
    most = _number("/proc/sys/vm/max_map_count")
    try:
        with open("/proc/self/maps", "rb") as f:
            now = sum(1 for _ in f)
    except OSError:
        return None
    return None if most is None else (now, most)


def human(nbytes: int) -> str:
    """A size for readers: bytes below 1 KiB, else two decimals of the largest unit that fits."""
    size = float(nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{nbytes} bytes" if unit == "bytes" else f"{size:.2f} {unit}"
        size /= 1024
    raise AssertionError


def enough_frames() -> bool | None:
    """Whether tracemalloc sees far enough to tell who allocates; None if it is not tracing at all."""
    import tracemalloc  # here, since a die that has room does not need it

    return tracemalloc.get_traceback_limit() >= _FRAMES if tracemalloc.is_tracing() else None


def _pool(asked: int, pool: int, held: Held) -> list[str]:
    """A pool that is used up, or in pieces."""
    return [
        f"no room for {human(asked)} of fabric memory: the pool of {human(pool)} (registration=pool) has "
        f"{human(held.cached)} in free pages, and the largest free piece is {human(held.piece)}",
    ]


def _holders(held: Held) -> list[str]:
    """Who holds the die's memory, and how to learn where that was allocated."""
    count, total = sum(n for _, n, _ in held.kinds), sum(size for size, _, _ in held.kinds)
    if not count:
        return []
    kinds = ", ".join(f"{human(size)} in {n} {kind}" for size, n, kind in sorted(held.kinds, reverse=True))
    largest = ", ".join(
        f"{human(size)} of {kind} at {va:#x}" + (f" from {place}" if place else "")
        for size, va, kind, place in held.largest
    )
    text = [f"this die holds {human(total)}: {kinds}; the largest {largest}"]
    if not held.frames:
        text.append(
            f"run with PYTHONTRACEMALLOC={_FRAMES} to see where they were allocated"
            + ("" if held.frames is None else " (tracemalloc keeps too few frames now)")
        )
    return text


def shortage(
    asked: int,
    needed: int,
    held: Held,
    *,
    rank: int,
    hbm_free: int,
    hbm_total: int,
    fd: int,
    groups: Iterable[Cgroup] = (),
    limit: int | None = None,
    pool: int = 0,
    quarantined: int = 0,
) -> FabricMemoryError:
    """The error for an allocation of ``asked`` bytes that takes ``needed`` bytes of pages.

    ``fd``: the UB space; ``limit``: most that may be reserved; ``pool``: bytes of the
    pool in pool mode, else 0; ``quarantined``: bytes of freed frames that a peer may
    still read.  The error's ``needed_bytes``, ``available_bytes``, ``limits`` (name ->
    free bytes) and ``holders`` (the largest: bytes, address, kind, place) say it to programs.
    """
    limits = [
        Limit(f"rank {rank}'s HBM", hbm_free, hbm_total, "give the dies more (--hbm, STRATA_HBM)"),
        *_file_system(fd),
    ]
    group = cgroup_free(groups)
    if group is not None:
        limits.append(group)
    if limit is not None:
        free = max(0, limit - (held.reserved - held.cached))
        cure = "raise the limit (strata.set_limit(), STRATA_MEMORY_LIMIT)"
        limits.append(Limit("this die's limit", free, limit, cure))
    if pool:
        limits = [Limit("the pool", held.piece, pool, "make the pool larger (STRATA_POOL)")]
        text = _pool(asked, pool, held)
    else:
        rooms = ", ".join(f"{human(x.free)} of {human(x.total)} in {x.name}" for x in limits)
        text = [f"no room for {human(asked)} of fabric memory: needed {human(needed)} in whole pages, free {rooms}"]
        if held.cached:
            text.append(f"{human(held.cached)} more are free pages of the cache")
    if quarantined:
        text.append(f"{human(quarantined)} are freed, and wait for peers that may still read them")
    text += _holders(held)
    tight = [limit for limit in limits if pool or limit.free < needed]
    if tight:
        text.append("free arrays, or " + ", and ".join(limit.cure for limit in tight))
    else:
        text.append(_other_reason())
    error = FabricMemoryError("; ".join(text), ranks=(rank,))
    error.needed_bytes = needed
    error.available_bytes = min(limit.free for limit in limits)
    error.limits = {limit.name: limit.free for limit in limits}
    error.holders = [(x.bytes, x.address, x.kind, x.place) for x in held.largest]
    return error


def _other_reason() -> str:
    """None of the limits explains a refusal."""
    counts = _mappings()
    if counts is not None and counts[0] > 0.9 * counts[1]:
        return (
            f"this process has {counts[0]} mappings of at most {counts[1]}: free arrays, or raise vm.max_map_count"
        )
    return (
        "no range of addresses is free in one piece, or another process gave room back meanwhile: "
        "free arrays, or try again"
    )
