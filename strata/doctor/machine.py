"""Checks of CPUs, clocks, and what a process may do."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from strata._core import cpus
from strata.doctor.findings import Finding, error, note, ok, warning
from strata.doctor.host import Host

FAST_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page")


def processors(host: Host, ndies: int) -> Iterator[Finding]:
    """Affinity and quota, against the dies."""
    usable: float = host.affinity()
    granted = cpus.quota(host.path("/proc/self/cgroup"), host.path("/sys/fs/cgroup"))
    seen = f"{usable} CPUs"
    if granted is not None and granted < usable:
        seen += f", of which a cgroup's quota grants {granted:g}"
        usable = granted
    if usable < 1:
        yield warning("CPUs", seen, "the kernel stops all dies for a part of each period; waits take milliseconds",
                      "docker run --cpus=N, or the job's CPU request")  # fmt: skip
    elif usable < ndies:
        yield warning("CPUs", f"{seen} for {ndies} dies", "dies take turns: right, but small operations wait for the "
                      "scheduler, and times measured mean little", f"at most -n {int(usable)}, or more CPUs")
    else:
        yield ok("CPUs", f"{seen} for {ndies} dies")
    load = host.read("/proc/loadavg").split()
    if load and float(load[0]) > 1.5 * max(1.0, host.affinity()):
        yield note("load", f"{load[0]} processes want a CPU, and there are {host.affinity()}",
                   "others use this host: jobs are slow, and times measured mean little", "top")  # fmt: skip


def clocks(host: Host) -> Iterator[Finding]:
    """The counter that the flight recorder and measurements go by."""
    source = host.read("/sys/devices/system/clocksource/clocksource0/current_clocksource").strip()
    flags = next((line for line in host.read("/proc/cpuinfo").splitlines() if line.startswith("flags")), "").split()
    if not flags:  # no x86: the counter is the architecture's
        yield ok("clock", f"clock source {source or 'unknown'}")
    elif not (steady := {"constant_tsc", "nonstop_tsc"} <= set(flags)) or source not in FAST_CLOCKS:
        yield warning("clock", f"clock source {source or 'unknown'}, TSC {'steady' if steady else 'not steady'}",
                      "looks at the clock are slow (system calls), and the flight recorder takes one or two an "
                      "operation", "boot with clocksource=tsc tsc=reliable if the hardware has a steady TSC")
    else:
        yield ok("clock", f"clock source {source}, steady TSC")
    level = host.number("/proc/sys/kernel/perf_event_paranoid")
    if level is not None and level > 2:
        yield note("performance counters", f"kernel.perf_event_paranoid is {level}", "perf cannot be used without "
                   "privileges; strata itself does not need it", "sysctl kernel.perf_event_paranoid=2")  # fmt: skip


def process_limits(host: Host, ndies: int) -> Iterator[Finding]:
    """ulimit."""
    soft, hard = host.limit(resource.RLIMIT_NOFILE)
    need = 32 + 8 * ndies
    if hard != resource.RLIM_INFINITY and hard < need:
        yield error("open files", f"ulimit -Hn is {hard}", f"strata-run needs about {need} for {ndies} dies",
                    f"ulimit -Hn {need} (docker run --ulimit nofile=65536)")  # fmt: skip
    elif soft != resource.RLIM_INFINITY and soft < need:
        yield note("open files", f"ulimit -n is {soft}", f"strata-run raises it to {need} for itself")
    else:
        yield ok("open files", f"ulimit -n is {'unlimited' if soft == resource.RLIM_INFINITY else soft}")
    most = host.limit(resource.RLIMIT_NPROC)[0]
    if host.uid() and most != resource.RLIM_INFINITY and most < 16 * ndies:
        yield error("processes", f"ulimit -u is {most}", f"{ndies} dies and their threads are about {16 * ndies}",
                    f"ulimit -u {64 * ndies}")  # fmt: skip
    pids = host.number("/sys/fs/cgroup/pids.max")
    if pids is not None and pids < 16 * ndies:
        yield error("processes", f"the cgroup's pids.max is {pids}", f"{ndies} dies and their threads are about "
                    f"{16 * ndies}", "docker run --pids-limit=4096")
    if host.limit(resource.RLIMIT_CORE)[0] == 0:
        yield note("core dumps", "ulimit -c is 0", "a die that crashes leaves no core file; strata-run --dump FILE "
                   "says where the dies were all the same", "ulimit -c unlimited")
    locked = host.limit(resource.RLIMIT_MEMLOCK)[0]
    if locked != resource.RLIM_INFINITY and locked < 64 << 10:
        yield note("locked memory", f"ulimit -l is {locked} bytes", "strata locks none; what wants io_uring or RDMA "
                   "beside it may", "ulimit -l unlimited")


def processes_of_others(host: Host) -> Iterator[Finding]:
    """Whether dies may open each other's descriptors (registered files), and inspectors the dies'."""
    failed = host.peer_file()
    mounts = [line.split() for line in host.read("/proc/mounts").splitlines()]
    options = [o for m in mounts if len(m) > 3 and m[1] == "/proc" for o in m[3].split(",")]
    hidden = any(o.startswith("hidepid=") and o not in ("hidepid=0", "hidepid=off") for o in options)
    scope = host.number("/proc/sys/kernel/yama/ptrace_scope")
    if failed:
        yield warning("descriptors of others", f"/proc/PID/fd of a process of one's own cannot be opened: {failed}"
                      + (f" (yama ptrace_scope {scope})" if scope else "") + (" (/proc has hidepid)" if hidden else ""),
                      "registered memory of others (strata.register) is copied through a buffer, and strata top and "
                      "dump see nothing",
                      "docker run --cap-add=SYS_PTRACE, mount -o remount,hidepid=0 /proc, or the LSM's policy")
    elif scope and scope > 0:
        yield note("descriptors of others", f"/proc/PID/fd can be opened; yama ptrace_scope is {scope}",
                   "gdb -p and py-spy cannot attach to a die that hangs; strata top and dump can",
                   "sysctl kernel.yama.ptrace_scope=0")  # fmt: skip
    else:
        yield ok("descriptors of others", "/proc/PID/fd can be opened")


def containment(host: Host) -> Iterator[Finding]:
    """User namespaces, containers, and system calls that are denied."""
    words = host.read("/proc/self/uid_map").split()
    if words and words != ["0", "0", "4294967295"]:
        yield note("user namespace", f"uid_map is {' '.join(words)}", "root here is not root of the host: limits "
                   "cannot be raised from inside; all dies of a job must be in one namespace")
    first = host.read("/proc/1/cgroup")
    kind = ("docker" if host.room("/.dockerenv") else "podman" if host.room("/run/.containerenv") else
            "kubernetes" if host.environment("KUBERNETES_SERVICE_HOST") else
            next((name for name in ("docker", "kubepods", "containerd", "lxc") if name in first), ""))  # fmt: skip
    if kind:
        yield note("container", f"this is a container ({kind})", "its limits are small by default: /dev/shm 64 MiB, "
                   "seccomp, pids", "docker run --shm-size=8g --ulimit nofile=65536 --pids-limit=4096 ...")  # fmt: skip
    mode = next((line.split()[1] for line in host.read("/proc/self/status").splitlines()
                 if line.startswith("Seccomp:") and len(line.split()) > 1), "0")  # fmt: skip
    refused = {name: why for name, why in host.calls().items() if why}
    if refused:
        needed = [name for name in refused if name not in ("pidfd_open", "sched_setaffinity")]
        text = ", ".join(f"{name}: {why}" for name, why in sorted(refused.items()))
        yield (error if needed else warning)(
            "system calls", f"refused: {text}" + (" (a seccomp filter is on)" if mode == "2" else ""),
            "jobs cannot run without them" if needed else "jobs run, without binding of dies or a watch by descriptor",
            "docker run --security-opt seccomp=unconfined, or a profile that allows them")  # fmt: skip
    else:
        yield ok("system calls", "all are allowed" + (" (a seccomp filter is on)" if mode == "2" else ""))
