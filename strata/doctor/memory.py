"""Checks of shared memory, and of what limits it."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from strata._core import limits
from strata._core.inspector import candidates
from strata._core.limits import human
from strata._core.space import layout
from strata.doctor.findings import Finding, error, note, ok, warning
from strata.doctor.host import Host

MIB, GIB = 1 << 20, 1 << 30
_ENLARGE = "mount -o remount,size=50% /dev/shm; in a container docker run --shm-size=8g (an emptyDir, medium: Memory)"


def shared_memory(host: Host, ndies: int, hbm_bytes: int) -> Iterator[Finding]:
    """/dev/shm: there, writable, with room for the control region and some memory."""
    room, check = host.room("/dev/shm"), "shared memory"
    if room is None:
        yield error(check, "there is no /dev/shm", "the dies' memory is an object there",
                    "mount -t tmpfs tmpfs /dev/shm")  # fmt: skip
        return
    mounts = [line.split() for line in host.read("/proc/mounts").splitlines()]
    mount = next((m for m in reversed(mounts) if len(m) > 3 and m[1] == "/dev/shm"), None)
    how = f"{mount[2]}, {mount[3]}" if mount else "no file system of its own"
    seen = f"/dev/shm ({how}) has {human(room.free)} free of {human(room.total)}"
    if not room.writable or (mount and "ro" in mount[3].split(",")):
        yield error(check, f"{seen}, and may not be written", "no job can make its memory",
                    "mount -o remount,rw,mode=1777 /dev/shm")  # fmt: skip
        return
    if mount and mount[2] not in ("tmpfs", "ramfs"):
        yield warning(check, f"/dev/shm is {mount[2]}", "memory of dies would go to a disk, and pages never be huge",
                      "mount -t tmpfs tmpfs /dev/shm")  # fmt: skip
    if room.files == 0:
        yield error(check, "/dev/shm has no inode left", "no object can be made there", "mount -o remount,nr_inodes=1m "
                    "/dev/shm, or remove what is stale")  # fmt: skip
    need = layout(ndies, hbm_bytes, 8192)["control_bytes"]
    fixed = min(need, 64 * MIB) + 2 * MIB * ndies * 2
    if room.free < fixed:
        yield error(check, seen, f"{ndies} dies need about {human(fixed)} before their first array", _ENLARGE)
    elif room.free < 128 * MIB * ndies:
        yield warning(check, seen, f"that is all the memory that {ndies} dies together can have", _ENLARGE)
    else:
        yield ok(check, seen)


def cgroup(host: Host) -> Iterator[Finding]:
    """Limits of memory cgroups, which shared memory counts against."""
    groups = limits.cgroups(host.path("/proc/self/cgroup"), host.path("/sys/fs/cgroup"))
    limit, check = limits.cgroup_free(groups), "memory cgroup"
    if limit is None:
        yield ok(check, "no limit")
        return
    seen = f"{human(limit.free)} free of {human(limit.total)} in {limit.name}"
    means = "pages of /dev/shm count as memory of the cgroup; beyond its limit the kernel kills dies (SIGKILL)"
    if limit.free < 64 * MIB:
        yield error(check, seen, means, limit.cure)
    elif limit.free < GIB:
        yield warning(check, seen, means, limit.cure)
    else:
        yield ok(check, seen)


def huge_pages(host: Host) -> Iterator[Finding]:
    """Whether frames can be huge pages, which halve the time of large operations."""
    check, means = "huge pages", "frames are small pages: large operations take about twice as long"
    folder = "/sys/kernel/mm/transparent_hugepage"
    shmem = host.read(f"{folder}/shmem_enabled")
    chosen = shmem.partition("[")[2].partition("]")[0]
    if not shmem:
        yield warning(check, f"the kernel has no {folder}", means, "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE")
        return
    if chosen == "deny":
        yield warning(check, "shmem_enabled is deny", means, f"echo advise > {folder}/shmem_enabled")
        return
    failed = host.collapse()
    if not failed:
        yield ok(check, f"MADV_COLLAPSE makes them (shmem_enabled is {chosen})")
    elif host.release() < (6, 1):
        yield warning(check, f"kernel {'.'.join(map(str, host.release()))} has no MADV_COLLAPSE", means,
                      "a kernel from 6.1 on; before that: mount -o remount,huge=always /dev/shm")  # fmt: skip
    else:
        yield warning(check, f"MADV_COLLAPSE in /dev/shm says: {failed}", means,
                      f"free memory (it may be in pieces), or echo advise > {folder}/shmem_enabled")  # fmt: skip


def overcommit(host: Host) -> Iterator[Finding]:
    """Strict accounting of memory, and how many mappings there may be."""
    if host.number("/proc/sys/vm/overcommit_memory") == 2:
        values = dict(line.split(":", 1) for line in host.read("/proc/meminfo").splitlines() if ":" in line)
        free = sum(sign * int((values.get(name) or "0").split()[0]) << 10
                   for name, sign in (("CommitLimit", 1), ("Committed_AS", -1)))  # fmt: skip
        means = "the kernel refuses memory beyond that, though it is never touched; each die's tables are a reservation"
        cure = "sysctl vm.overcommit_memory=0, or raise vm.overcommit_ratio"
        seen = f"vm.overcommit_memory is 2, and {human(max(free, 0))} may still be promised"
        yield (error if free < 256 * MIB else warning)("overcommit", seen, means, cure)
    else:
        yield ok("overcommit", "memory that is not touched costs nothing")
    most = host.number("/proc/sys/vm/max_map_count")
    if most is not None and most < 65530:
        yield warning("mappings", f"vm.max_map_count is {most}", "a die maps each run of a peer's pages; beyond it, "
                      "registration fails", "sysctl vm.max_map_count=262144")  # fmt: skip
    elif most is not None:
        yield ok("mappings", f"vm.max_map_count is {most}")


def addresses(host: Host, ndies: int, hbm_bytes: int) -> Iterator[Finding]:
    """Whether the window that all dies have at one address is free."""
    check, nbytes = "addresses", layout(ndies, hbm_bytes, 8192)["segment_bytes"] * ndies
    most = host.limit(resource.RLIMIT_AS)[0]
    if most != resource.RLIM_INFINITY and most < nbytes:
        yield error(check, f"ulimit -v is {human(most)}", f"{ndies} dies reserve a window of {human(nbytes)} of "
                    "addresses (not of memory)", "ulimit -v unlimited, or a smaller --hbm")
        return
    if "asan" in host.environment("LD_PRELOAD"):
        yield note(check, "AddressSanitizer is preloaded", "its shadow takes addresses; the window goes round it")
    bits = [word for word in host.read("/proc/cpuinfo").splitlines() if word.startswith("address sizes")]
    virtual = bits[0].split(",")[1].split()[0] if bits and "," in bits[0] else ""
    places = candidates(ndies, hbm_bytes)
    free = [base for base in places if host.reserve(base, nbytes)]
    if free:
        yield ok(check, f"a window of {human(nbytes)} fits at {len(free)} of {len(places)} places, the first "
                 f"{free[0]:#x}")  # fmt: skip
        return
    why = f" (the CPU has {virtual} bits)" if virtual.isdigit() and int(virtual) < 47 else ""
    yield error(check, f"no place for a window of {human(nbytes)}{why}", "all dies need one range of addresses",
                "a smaller --hbm (STRATA_HBM), or STRATA_WINDOW_BASE=0x... of a range that is free")  # fmt: skip
