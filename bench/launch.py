#!/usr/bin/env python3
"""How long does a job take that does nothing, from its command to the prompt, and what memory does a die hold?

Three jobs: Python processes that only import numpy and the library (``import``), that also meet in one barrier
(``barrier``, of which *start* goes until rank 0 is through it, *end* from there to the prompt), and a program
that ends at once (``true``). A fourth, ``memory``, looks at each rank's resident memory between two barriers: RSS,
and PSS, in which a page counts to each of its holders in part. strata-run beside the MPIs of bench/versus.py (its
--setup installs them), alternating; medians of the rounds in milliseconds, and the CPU time of the job in all.

    bench/launch.py                     # n = 2, 8, 32, 128
    bench/launch.py -n 2,4,8,16,32,64,128 --jobs barrier memory --rounds 9 --json launch.jsonl
"""

import argparse
import contextlib
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_lib.lines import Kind, Lines
from bench_lib.machine import memory_bytes
from versus_lib import contenders

KINDS = {"launch": Kind(("contender", "job", "n"), less=("wall_ms", "cpu_ms", "start_ms", "end_ms")),
         "memory": Kind(("contender", "n"), less=("rss_MiB", "pss_MiB"))}
HEAD = {
    "strata": "import numpy, strata\n",
    "mpi": "import numpy, mpi4py\nmpi4py.rc.initialize = False\nfrom mpi4py import MPI\n",
}
JOIN = {
    "strata": "g = strata.world()\nrank, barrier = g.rank, g.barrier\n",
    "mpi": "MPI.Init()\nrank, barrier = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.Barrier\n",
}
LEAVE = {"strata": "", "mpi": "MPI.Finalize()\n"}
BODIES = {
    "import": "",
    "barrier": """barrier()
if rank == 0:
    import time
    open("met", "w").write(str(time.monotonic_ns()))
""",
    "memory": """barrier()
text = open("/proc/self/smaps_rollup").read()
barrier()
open(f"memory.{rank}", "w").write(text)
""",
}
JOBS = ("memory", "import", "barrier", "true")      # memory first: it says what fits
ROOM = 0.7              # of the memory that is free, for the ranks of a job
GUESS = 64 << 20        # bytes of a rank whose memory was never looked at


def listed(text):
    numbers = [int(word) for word in text.split(",")]
    if min(numbers) < 1:
        raise ValueError
    return sorted(set(numbers))


def arguments(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-n", type=listed, default=[2, 8, 32, 128], metavar="LIST", help="ranks (2,8,32,128)")
    p.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    p.add_argument("--rounds", type=int, default=5, metavar="N", help="of which the median counts (5)")
    p.add_argument("--peers", nargs="*", choices=contenders.MPIS, default=list(contenders.MPIS))
    p.add_argument("--limit", type=float, default=60.0, metavar="S",
                   help="a job that takes longer is ended, and its launcher not asked for more ranks (60)")
    p.add_argument("--json", metavar="FILE", help="all records, one JSON object a line, as they come")
    a = p.parse_args(argv)
    if a.rounds < 1 or not a.limit > 0:
        p.error("--rounds and --limit are above 0")
    a.jobs = [job for job in JOBS if job in a.jobs]
    return a


def program(kind, job):
    """The Python of a job."""
    return HEAD[kind] + (JOIN[kind] + BODIES[job] + LEAVE[kind] if job != "import" else "")


def command(contender, job, n, folder):
    """argv of a job, and its environment."""
    kind = "strata" if contender.library == "strata" else "mpi"
    argv = contender.command(n, 0, "")
    argv = argv[: argv.index(str(contenders.WORKER))]
    if job == "true":
        if kind == "mpi":
            argv.pop()  # its Python
        argv.append("/bin/true")
    else:
        argv.append(str(folder / f"{kind}_{job}.py"))
    return argv, contender.environment(n, 0, 0)


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def end(process):
    """Ends a job that takes too long, launcher first, so that it may end its ranks."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    process.wait()


def one(contender, job, n, folder, limit):
    """(milliseconds of one job by name, None), or (None, why there are none)."""
    argv, env = command(contender, job, n, folder)
    met = folder / "met"
    met.unlink(missing_ok=True)
    with tempfile.TemporaryFile() as said:
        cpu, begin = cpu_seconds(), time.monotonic_ns()
        process = subprocess.Popen(argv, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=said,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            end(process)
            return None, f"took more than {limit:g} s"
        except BaseException:
            end(process)
            raise
        now = time.monotonic_ns()
        if status:
            said.seek(0)
            words = said.read().decode(errors="replace").strip().splitlines() or ["no word"]
            return None, f"status {status}: {words[-1][:150]}"
    found = {"wall_ms": (now - begin) / 1e6, "cpu_ms": (cpu_seconds() - cpu) * 1e3}
    if job == "barrier":
        through = int(met.read_text())
        found |= {"start_ms": (through - begin) / 1e6, "end_ms": (now - through) / 1e6}
    return found, None


def rollup(text):
    """(RSS, PSS) in bytes, of a text of /proc/PID/smaps_rollup."""
    lines = dict(line.split()[:2] for line in text.splitlines()[1:])
    return int(lines["Rss:"]) << 10, int(lines["Pss:"]) << 10


def memory(n, folder):
    """Of the job that just ended: medians over the ranks, and the most."""
    found = [rollup((folder / f"memory.{rank}").read_text()) for rank in range(n)]
    rss, pss = ([value / 2**20 for value in column] for column in zip(*found, strict=True))
    return {"rss_MiB": statistics.median(rss), "pss_MiB": statistics.median(pss), "rss_most_MiB": max(rss),
            "pss_sum_MiB": sum(pss)}


class Launches:
    """Takes all jobs of all sizes. What a launcher has failed at once, with more ranks it is not asked for."""

    def __init__(self, here, a, log, folder):
        self.here, self.a, self.log, self.folder = here, a, log, folder
        self.failed, self.bytes = {}, {}

    def fits(self, contender, n):
        """Whether n ranks have room in memory, by what one held before."""
        need = n * self.bytes.get(contender.name, GUESS)
        return need <= ROOM * memory_bytes("MemAvailable")

    def skip(self, contender, job, n):
        """Why this is not tried, or None."""
        if (contender.name, job) in self.failed:
            return f"failed with {self.failed[contender.name, job]} ranks"
        return None if self.fits(contender, n) else f"{n} ranks do not fit into memory"

    def _once(self, contender, job, n, number):
        found, why = one(contender, job, n, self.folder, self.a.limit)
        if why:
            self.failed[contender.name, job] = n
            print(f"  {contender.name}, {job}, n={n}: {why}", flush=True)
            self.log.keep({"record": "failure", "contender": contender.name, "job": job, "n": n, "error": why})
            return
        if number is None:      # the first round only warms the page cache
            return
        row = {"contender": contender.name, "job": job, "n": n, "round": number}
        if job == "memory":
            held = memory(n, self.folder)
            self.bytes[contender.name] = held["pss_sum_MiB"] / n * 2**20     # falls with n: never too little
            self.log.keep({"record": "memory", **row, **held})
        else:
            self.log.keep({"record": "launch", **row, **found})

    def take(self):
        for n in self.a.n:
            for job in self.a.jobs:
                trying = []
                for contender in self.here:
                    if why := self.skip(contender, job, n):
                        print(f"  {contender.name}, {job}, n={n} skipped: {why}", flush=True)
                    else:
                        trying.append(contender)
                for r in range(-1, 1 if job == "memory" else self.a.rounds):
                    for k in range(len(trying)):
                        contender = trying[(r + k) % len(trying)]
                        if (contender.name, job) not in self.failed and not (job == "memory" and r < 0):
                            self._once(contender, job, n, r if r >= 0 else None)
                if trying:
                    print(row(self.log, [c.name for c in self.here], job, n), flush=True)


def medians(log, name, job, n):
    """{figure: median} of a contender's rounds, empty if there are none."""
    rows = [r for r in log if r.get("job") == job and r["n"] == n and r["contender"] == name
            and r["record"] in ("launch", "memory")]
    figures = KINDS["memory" if job == "memory" else "launch"].less
    return {f: statistics.median(r[f] for r in rows) for f in figures if rows and f in rows[0]}


def row(log, names, job, n):
    """A line of the table."""
    cells, walls = [], {}
    for name in names:
        found = medians(log, name, job, n)
        if job == "memory" and found:
            cells.append(f"{found['rss_MiB']:.1f} / {found['pss_MiB']:.1f} MiB")
        elif found:
            walls[name] = found["wall_ms"]
            split = f" = {found['start_ms']:.0f} + {found['end_ms']:.0f}" if "start_ms" in found else ""
            cells.append(f"{found['wall_ms']:.0f}{split} ({found['cpu_ms']:.0f})")
        else:
            cells.append("-")
    others = [wall for name, wall in walls.items() if name != "strata"]
    ratio = f"{min(others) / walls['strata']:8.2f}" if others and "strata" in walls else f"{'-':>8}"
    return f"{job:>8} {n:>4}" + "".join(f"{cell:>26}" for cell in cells) + ratio


def main(argv=None):
    a = arguments(argv)
    here = []
    for lib in ("strata", *a.peers):
        contender = contenders.Contender(lib)
        why = contender.why_not()
        if why:
            print(f"{lib} is skipped: {why}")
        else:
            here.append(contender)
    log = Lines(a.json)
    log.head("launch", KINDS)
    print(f"{len(os.sched_getaffinity(0))} CPUs, Python {sys.version.split()[0]}, median of {a.rounds}")
    print("milliseconds from command to prompt, of barrier = start + end (in brackets: CPU time of the whole job);")
    print("memory of a rank: RSS / PSS; x: the fastest other over strata\n")
    print(f"{'job':>8} {'n':>4}" + "".join(f"{c.name:>26}" for c in here) + f"{'x':>8}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in HEAD:
            for job in BODIES:
                (folder / f"{kind}_{job}.py").write_text(program(kind, job))
        Launches(here, a, log, folder).take()
    return 0


if __name__ == "__main__":
    sys.exit(main())
