#!/usr/bin/env python3
"""What registration costs here: who waits for peers' page tables, how long, and what each mode keeps.

    bench/registration.py                      # everything, some 15 minutes
    bench/registration.py --quick              # 2 and 4 dies, small sizes, 1 minute
    bench/registration.py --only first,moe --json r.jsonl --plot r.png
    bench/registration.py --replay r.jsonl --plot r.png

It starts its own jobs. Seven questions: from allocation to mapped on all peers; the first collective
on a fresh buffer; the check of phase 2; from a record to a mapped page; a loop whose buffers
change each step; memory reserved and not used; the registrar's own CPU time.
How it measures, and how to read it: bench/README.md.
"""

import argparse
import os
import sys
from pathlib import Path

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")       # before numpy: a die's compute part is one thread

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_lib.lines import Kind, Lines, read  # noqa: E402
from registration_lib import report  # noqa: E402
from registration_lib.run import MODES, SECTIONS, Run  # noqa: E402
from versus import listed, picture, positive, size  # noqa: E402

WHO = ("n", "contender")
KINDS = {"mapped": Kind((*WHO, "bytes"), less=("alloc_us", "first_us", "all_us")),
         "first": Kind((*WHO, "op", "bytes", "how"), less=("us",)),
         "check": Kind(("n", "bytes"), less=("ns",)),
         "publish": Kind(("n",), less=("from_call_us", "alloc_us", "after_us")),
         "moe": Kind(WHO, less=("us", "allocator_us", "late_us")),
         "idle": Kind((*WHO, "rank"), less=("cpu_us_per_s",)),
         "mapping_cpu": Kind(WHO, less=("map_s", "unmap_s"))}
M, G = 1 << 20, 1 << 30
OPS = ("all_gather", "all_reduce")
QUICK = {"n": [2, 4], "sizes": [2 * M, 16 * M, 64 * M], "first_sizes": [2 * M, 8 * M], "rounds": 2, "repeats": 2,
         "checks": 20_000, "pages": 100, "steps": 10, "idle": 0.5, "cpu_bytes": 64 * M}
FULL = {"n": [2, 4, 8, 16], "sizes": [2 * M, 8 * M, 32 * M, 128 * M, 512 * M, G],
        "first_sizes": [2 * M, 8 * M, 32 * M, 128 * M], "rounds": 3, "repeats": 5, "checks": 200_000, "pages": 1000,
        "steps": 40, "idle": 1.0, "cpu_bytes": G}


def span(text):
    low, _, high = text.partition("-")
    try:
        found = (int(low), int(high or low))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range such as 256-1024") from None
    if not 0 < found[0] <= found[1]:
        raise argparse.ArgumentTypeError(f"{text}: 0 < least <= most is expected")
    return found


def dies(text):
    count = int(text)
    if count < 2:
        raise argparse.ArgumentTypeError("registration takes 2 dies")
    return count


def arguments(argv=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--quick", action="store_true", help="2 and 4 dies, small sizes, few repeats")
    p.add_argument("--only", type=listed(str, SECTIONS), default=list(SECTIONS), metavar="LIST",
                   help=",".join(SECTIONS))
    p.add_argument("--modes", type=listed(str, MODES), default=list(MODES), metavar="LIST", help=",".join(MODES))
    p.add_argument("--ops", type=listed(str, OPS), default=list(OPS), metavar="LIST", help=",".join(OPS))
    p.add_argument("-n", type=listed(dies), metavar="LIST", help="dies (2,4,8,16)")
    p.add_argument("--moe-n", type=listed(dies), default=[2, 4], metavar="LIST", help="dies of the loop (2,4)")
    p.add_argument("--sizes", type=listed(size), metavar="LIST", help="bytes of sections mapped and check (2M ... 1G)")
    p.add_argument("--first-sizes", type=listed(size), metavar="LIST", help="bytes a die, section first (2M ... 128M)")
    p.add_argument("--delay", type=float, default=0.02, metavar="S",
                   help="from allocation to use, section first (0.02)")
    p.add_argument("--compute", type=positive(float), default=15.0, metavar="MS",
                   help="of a step of the loop, between allocation and use (15)")
    p.add_argument("--tokens", type=span, default=(256, 1024), metavar="A-B", help="of a die in a step (256-1024)")
    p.add_argument("--hidden", type=positive(int), default=14336, metavar="B", help="bytes of a token (14336)")
    p.add_argument("--held", type=int, default=2, metavar="N", help="steps that received tokens are kept for (2)")
    p.add_argument("--seed", type=int, default=3, help="of the loop's sizes (3)")
    p.add_argument("--rounds", type=positive(int), metavar="N")
    p.add_argument("--repeats", type=positive(int), metavar="N", help="samples of a contender in a round")
    p.add_argument("--checks", type=positive(int), metavar="N", help="in a loop, section check")
    p.add_argument("--pages", type=positive(int), metavar="N", help="of section publish")
    p.add_argument("--steps", type=positive(int), metavar="N", help="of the loop in a round")
    p.add_argument("--idle", type=positive(float), metavar="S", help="seconds of doing nothing")
    p.add_argument("--cpu-bytes", type=size, metavar="B", help="mapped to see the registrar's CPU time")
    p.add_argument("--timeout", type=positive(float), default=300.0, metavar="S", help="of one call of a job (300)")
    p.add_argument("--json", metavar="FILE", help="all records, one JSON object a line, as they come")
    p.add_argument("--plot", type=picture, metavar="FILE.png", help="a picture (needs matplotlib)")
    p.add_argument("--replay", metavar="FILE", help="tables and picture from a --json file; measures nothing")
    a = p.parse_args(argv)
    if a.delay < 0 or a.held < 0:
        p.error("--delay and --held are 0 or more")
    if a.hidden % 4:
        p.error("--hidden is a multiple of 4 bytes")
    for name, value in (QUICK if a.quick else FULL).items():
        if getattr(a, name) is None:
            setattr(a, name, value)
    a.sizes, a.first_sizes = sorted(a.sizes), sorted(a.first_sizes)
    return a


def measure(a, log):
    """Run everything into ``log``. Returns False if it was interrupted."""
    plan = {k: v for k, v in vars(a).items() if k not in ("json", "plot", "replay")}
    log.head("registration", KINDS, plan=plan)
    try:
        Run(a, log.keep, lambda text: print(text, file=sys.stderr, flush=True)).take()
    except KeyboardInterrupt:
        print("interrupted: what follows is what was measured until then")
        return False
    return True


def main(argv=None):
    a = arguments(argv)
    if a.replay:
        log, whole = Lines(), True
        log += read(a.replay)
        log[:] = [r for r in log if r["record"] != "claim"]
    else:
        log = Lines(a.json)
        whole = measure(a, log)
    print(*report.lines(log), sep="\n")
    claims = report.claims(log)
    for claim in claims:
        log.keep({"record": "claim", **claim})
    print("", *report.claim_lines(claims), sep="\n")
    if a.plot:
        from registration_lib import plot
        plot.draw(a.plot, log)
        print(f"picture: {a.plot}")
    return 130 if not whole else 1 if report.problems(log) else 0


if __name__ == "__main__":
    sys.exit(main())
