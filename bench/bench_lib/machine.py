"""What the figures were taken on."""

import os
import platform
import subprocess
from pathlib import Path


def _read(path, default="unknown"):
    try:
        return Path(path).read_text().strip()
    except OSError:
        return default


def memory_bytes(name):
    """A line of /proc/meminfo (MemTotal, MemAvailable), in bytes; 0 if it is not there."""
    return next((int(line.split()[1]) << 10 for line in _read("/proc/meminfo").splitlines()
                 if line.startswith(f"{name}:")), 0)


def machine():
    """CPU, memory, system, commit, and how busy the machine is."""
    cpu = next((line.split(":", 1)[1].strip() for line in _read("/proc/cpuinfo").splitlines()
                if line.startswith("model name")), platform.machine())
    shm = os.statvfs("/dev/shm")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                            cwd=Path(__file__).parent).stdout.strip()
    return {
        "cpu": cpu, "cores": len(os.sched_getaffinity(0)), "memory_GiB": memory_bytes("MemTotal") >> 30,
        "shm_GiB": round(shm.f_frsize * shm.f_blocks / 2**30, 1), "kernel": platform.release(),
        "python": platform.python_version(), "load_before": os.getloadavg()[0], "commit": commit or "unknown",
        "huge_pages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
    }
