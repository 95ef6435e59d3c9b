#!/usr/bin/env python3
"""How long does a job take that does nothing, from its command to the prompt?

Three jobs: Python processes that only import numpy and the library (``import``), that
also meet in one barrier (``barrier``), and a program that ends at once (``true``).
strata-run beside the MPIs of bench/versus.py (its --setup installs them), alternating;
the median of the rounds, in milliseconds, and the CPU time that the job took in all.

    bench/launch.py                     # n = 2, 8, 32
    bench/launch.py -n 32,128 --jobs barrier --rounds 9
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from versus_lib import contenders

ROOT = Path(__file__).resolve().parents[1]
BODIES = {
    "strata": {
        "import": "import numpy, strata\n",
        "barrier": "import numpy, strata\nstrata.world().barrier()\n",
    },
    "mpi": {
        "import": "import numpy, mpi4py\nmpi4py.rc.initialize = False\nfrom mpi4py import MPI\n",
        "barrier": "import numpy\nfrom mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n",
    },
}
JOBS = ("import", "barrier", "true")


def listed(text):
    numbers = [int(word) for word in text.split(",")]
    if min(numbers) < 1:
        raise ValueError
    return numbers


def arguments(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-n", type=listed, default=[2, 8, 32], metavar="LIST", help="ranks (2,8,32)")
    p.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    p.add_argument("--rounds", type=int, default=5, metavar="N", help="of which the median counts (5)")
    p.add_argument("--peers", nargs="*", choices=contenders.MPIS, default=list(contenders.MPIS))
    return p.parse_args(argv)


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


def one(contender, job, n, folder):
    """Wall and CPU seconds of one job; None if it fails."""
    argv, env = command(contender, job, n, folder)
    cpu, start = cpu_seconds(), time.perf_counter()
    done = subprocess.run(argv, env=env, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True)
    wall = time.perf_counter() - start
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip() or b"no word").decode(errors="replace").splitlines()
        print(f"  {contender.name}, {job}, n={n}: status {done.returncode}: {words[-1][:150]}")
        return None
    return wall, cpu_seconds() - cpu


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
    print(f"{len(os.sched_getaffinity(0))} CPUs, Python {sys.version.split()[0]}, median of {a.rounds}")
    print("milliseconds from command to prompt (in brackets: CPU time of the whole job)\n")
    print(f"{'job':>8} {'n':>4}" + "".join(f"{c.name:>18}" for c in here))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, bodies in BODIES.items():
            for job, body in bodies.items():
                (folder / f"{kind}_{job}.py").write_text(body)
        for job in a.jobs:
            for n in a.n:
                times = {c.name: [] for c in here}
                for r in range(a.rounds + 1):  # the first round only warms the page cache
                    for c in here[r % len(here) :] + here[: r % len(here)]:
                        got = one(c, job, n, folder)
                        if got and r:
                            times[c.name].append(got)
                row = f"{job:>8} {n:>4}"
                for c in here:
                    cells = times[c.name]
                    wall, cpu = (statistics.median(x) * 1e3 for x in zip(*cells, strict=True)) if cells else (0, 0)
                    row += f"{f'{wall:.0f} ({cpu:.0f})' if cells else 'failed':>18}"
                print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
