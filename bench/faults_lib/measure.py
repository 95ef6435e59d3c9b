"""What is done to a job, and what is recorded of it: one function per fault."""

import os
import signal
import time

from faults_lib.jobs import Job, library

TIMEOUT = {"kill": 60.0, "left": 60.0, "stop": 1.0, "counts": 3.0, "operations": 3.0}     # of each call, if it has one
STOPPED = 2.5       # seconds


def outcome(events, killed_at, gone_at):
    """(how a rank learned of a fault, ms after it): "error", "ended" (its process was), or "nothing"."""
    error = next((e for e in events if e["event"] == "error"), None)
    if error is not None:
        return "error", 1e3 * (error["time"] - killed_at)
    if gone_at is not None:
        return "ended", 1e3 * (gone_at - killed_at)
    return "nothing", None


def watch(job, pids, seconds):
    """{rank: when its process was seen to have ended}, until all have or the time is over; when the job ended."""
    gone, ended, end = {}, None, time.monotonic() + seconds
    while time.monotonic() < end and (ended is None or len(gone) < len(pids)):
        for rank, pid in pids.items():
            if rank not in gone and not job.alive(pid):
                gone[rank] = time.monotonic()
        if ended is None and job.over():
            ended = time.monotonic()
        time.sleep(0.001)
    return gone, ended


def kill(name, n, nbytes, limit):
    """SIGKILL of the last rank in the middle of all-reduces."""
    with Job(name, n, "kill", nbytes, TIMEOUT["kill"]).start() as job:
        pids = {rank: job.find(rank, "ready")["pid"] for rank in range(n)}
        time.sleep(0.2)
        begin = time.monotonic()
        os.kill(pids[n - 1], signal.SIGKILL)
        gone, ended = watch(job, {r: p for r, p in pids.items() if r < n - 1}, limit)
        seen = [outcome(job.events(r), begin, gone.get(r)) for r in range(n - 1)]
        errors = [job.find(r, "error") for r in range(n - 1)]
        named = bool(any(errors)) and all(e is None or f"rank {n - 1}" in e["text"] for e in errors)
        return {"how": [how for how, _ in seen], "ms": [ms for _, ms in seen], "named": named,
                "ended_ms": None if ended is None else 1e3 * (ended - begin), "status": job.status(),
                "went_on": sum(job.find(r, "went on") is not None for r in range(n - 1))}


def stop(name, n, nbytes, limit):
    """SIGSTOP of the last rank for a while, with timeouts of 1 s where the library has any."""
    with Job(name, n, "stop", nbytes, TIMEOUT["stop"]).start() as job:
        pids = {rank: job.find(rank, "ready")["pid"] for rank in range(n)}
        begin = time.monotonic()
        os.kill(pids[n - 1], signal.SIGSTOP)
        gone, ended = watch(job, {r: p for r, p in pids.items() if r < n - 1}, STOPPED)
        if job.alive(pids[n - 1]):
            os.kill(pids[n - 1], signal.SIGCONT)
        resumed = time.monotonic()
        seen = [outcome(job.events(r), begin, gone.get(r)) for r in range(n - 1)]
        errors = [job.find(r, "error") for r in range(n - 1)]
        named = bool(any(errors)) and all(e is None or f"rank {n - 1}" in e["text"] for e in errors)
        end = resumed + min(limit, 5.0)
        on = False
        while not on and time.monotonic() < end and not job.over():
            on = all(any(e["event"] == "round" and e["time"] > resumed for e in job.events(r)) for r in range(n))
            time.sleep(0.02)
        return {"how": [how for how, _ in seen], "ms": [ms for _, ms in seen], "named": named, "went_on": n * on,
                "ended_ms": None if ended is None else 1e3 * (ended - begin), "status": job.status()}


def mismatch(fault, name, n, nbytes, limit):
    """The last rank calls something else than the others."""
    with Job(name, n, fault, nbytes, TIMEOUT[fault]).start() as job:
        begin = time.monotonic()
        end = begin + limit
        while time.monotonic() < end and not job.over():
            time.sleep(0.01)
        over = job.over()
        first = [job.find(r, "returned", "error") for r in range(n)]
        later = [job.find(r, "later right", "later wrong", "later error") for r in range(n)]
        errors = [e for e in first if e and e["event"] == "error"]
        how = ["hang" if e is None and not over else "ended" if e is None else
               "error" if e["event"] == "error" else "wrong" if e["wrong"] else "right" for e in first]
        return {"how": how, "same_error": len(errors) == n and len({e["text"] for e in errors}) == 1,
                "later": [e["event"].removeprefix("later ") if e else "ended" if over else "hang" for e in later],
                "status": job.status(), "ended_ms": None, "ms": [], "went_on": sum(
                    e is not None and e["event"] == "later right" for e in later)}


def leftovers(name, n, nbytes, limit):
    """kill -9 of the launcher, its daemons and all ranks."""
    with Job(name, n, "left", nbytes, TIMEOUT["left"]).start() as job:
        time.sleep(0.2)
        job.kill_all()
        time.sleep(0.3)
        files, size, kept = job.leftovers()
        return {"how": [], "ms": [], "ended_ms": None, "status": None, "went_on": 0,
                "shm_files": len(files), "shm_names": files, "shm_bytes": size, "tmp_files": kept}


def measure(name, n, fault, nbytes, limit):
    """The record of one fault on one contender."""
    made = {"kill": kill, "stop": stop, "left": leftovers}.get(fault)
    found = made(name, n, nbytes, limit) if made else mismatch(fault, name, n, nbytes, limit)
    return {"record": "fault", "contender": name, "library": library(name), "n": n, "fault": fault, "bytes": nbytes,
            **found}
