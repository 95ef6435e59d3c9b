#!/usr/bin/env python3
"""How long does it take to plan an operation: for one die, and for all members at once?

Nothing runs but the planner, on CloudMatrix384 as the planner knows it. A row is one operation, algorithm, policy and
number of members. *all* is `build_all`, of every member; *one* is `build` of some members one after the other, a plan's
share of it. The first call is apart, since it makes what is kept for later ones (trees of an algorithm). Wall time is
what users wait for; *cpu* (user and system, of all threads) is what a busy host does not change, but for its caches.

    bench/plans.py                                            # 512 dies of 48 cores, 4 MiB
    bench/plans.py --algorithms all --operations all --rounds 3
    bench/plans.py -n 8 32 512 --policies balanced --json plans.jsonl
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from bench_lib.lines import ROUNDS, Kind, write

from strata.config import parse_size
from strata.machine import load
from strata.plan import Plan, Spec, algorithms, build, build_all
from strata.plan.records import DTYPE_NAMES, OP_NAMES
from strata.plan.schedule import POLICIES
from strata.plan.spec import OPERATIONS, REDUCTIONS

SUPERNODE, CM384 = load("cm384").place, load("cm384").cost
KINDS = {"plans": Kind(("operation", "algorithm", "policy", "nranks", "cores", "bytes", "in_place"),
                       less=("one_us", "one_cpu_us", "all_ms", "all_cpu_ms", "plan_bytes"))}
FEW = 16  # members whose plans are built one by one
F32, SUM = DTYPE_NAMES.index("f32"), OP_NAMES.index("sum")


def spec(operation: str, nbytes: int, nranks: int, in_place: bool) -> Spec:
    """The operation on float32 of so many bytes, as it counts; all_to_all_v with equal parts."""
    more: dict = {"in_place": in_place and operation not in ("all_to_all", "all_to_all_v")}
    if operation in REDUCTIONS:
        more["redop"] = SUM
    if operation == "all_to_all_v":
        more["counts"] = [[nbytes // 4] * nranks] * nranks
    count = 0 if operation in ("barrier", "all_to_all_v") else nbytes // 4
    return Spec(operation, count, 4, F32, nranks=nranks, **more)


def timed(call: Callable[[], list[Plan]], rounds: int) -> tuple[list[Plan], dict[str, float]]:
    """What the call returns, and its milliseconds; what it made is gone before the next."""
    wall, cpu, plans = [], [], []
    for _ in range(rounds + 1):
        plans = []  # given back before the clock starts
        begin, used = time.perf_counter(), time.process_time()
        plans = call()
        wall.append((time.perf_counter() - begin) * 1e3)
        cpu.append((time.process_time() - used) * 1e3)
    return plans, {"first_ms": wall[0], "ms": statistics.median(wall[1:]), "least_ms": min(wall[1:]),
                   "cpu_ms": statistics.median(cpu[1:]), "ms" + ROUNDS: wall[1:],
                   "cpu_ms" + ROUNDS: cpu[1:]}  # fmt: skip


def row(asked: Spec, algorithm: str, policy: str, cores: int, rounds: int) -> dict:
    """Figures of one operation; RuntimeError if plans made at once are not those made one by one."""
    ranks = sorted({i * asked.nranks // FEW for i in range(FEW)})
    options = {"algorithm": algorithm, "policy": policy, "cost": CM384, "topology": SUPERNODE}
    one, alone = timed(lambda: [build(asked, r, cores, **options) for r in ranks], rounds)
    plans, every = timed(lambda: build_all(asked, cores, **options), rounds)
    if any(plan.hash() != plans[plan.rank].hash() for plan in one):
        raise RuntimeError(f"{asked.operation} by {algorithm}, {policy}: build and build_all differ")
    return {
        "operation": asked.operation, "algorithm": algorithm, "policy": policy, "nranks": asked.nranks, "cores": cores,
        "bytes": asked.part, "in_place": asked.in_place, "units": sum(len(p.units) for p in plans),
        "plan_bytes": sum(p.nbytes for p in plans),
        "one_us": alone["ms"] * 1e3 / len(ranks), "one_least_us": alone["least_ms"] * 1e3 / len(ranks),
        "one_cpu_us": alone["cpu_ms"] * 1e3 / len(ranks),
        **{f"all_{name}": value for name, value in every.items()},
        "all_us_a_die": every["ms"] * 1e3 / asked.nranks,
    }  # fmt: skip


def report(rows: list[dict]) -> str:
    """A table."""
    lines = [f"{'operation':15}{'algorithm':18}{'policy':10}{'dies':>5}{'units':>9}{'one, us':>10}"
             f"{'all, ms':>10}{'least':>9}{'first':>9}{'cpu':>9}{'us a die':>10}"]  # fmt: skip
    for r in rows:
        lines.append(f"{r['operation']:15}{r['algorithm']:18}{r['policy']:10}{r['nranks']:5}{r['units']:9}"
                     f"{r['one_us']:10.0f}{r['all_ms']:10.1f}{r['all_least_ms']:9.1f}{r['all_first_ms']:9.1f}"
                     f"{r['all_cpu_ms']:9.1f}{r['all_us_a_die']:10.1f}")  # fmt: skip
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Plans, prints, writes what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--dies", nargs="+", type=int, default=[512])
    parser.add_argument("-b", "--bytes", type=parse_size, default=4 << 20, help="of a member, or of one part")
    parser.add_argument("--cores", type=int, default=48)
    parser.add_argument("--operations", nargs="+", default=["all_gather"], choices=(*OPERATIONS, "all"))
    parser.add_argument("--algorithms", nargs="+", default=["full_mesh"], choices=(*algorithms.names(), "all"))
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=POLICIES)
    parser.add_argument("--in-place", action="store_true", help="members work in place where they can")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", metavar="FILE", help="all figures, one JSON object a line")
    options = parser.parse_args(argv)
    if min(options.dies) < 1 or options.cores < 1 or options.rounds < 1 or options.bytes < 4:
        parser.error("--dies, --cores and --rounds are at least 1, --bytes at least 4")
    rows = []
    for operation in OPERATIONS if "all" in options.operations else options.operations:
        for nranks in options.dies:
            asked = spec(operation, options.bytes, nranks, options.in_place)
            for found in algorithms.available(asked, SUPERNODE):
                if "all" in options.algorithms or found.name in options.algorithms:
                    rows += [row(asked, found.name, p, options.cores, options.rounds) for p in options.policies]
    if not rows:
        parser.error("no algorithm asked for does an operation asked for")
    print(report(rows))
    write(options.json, "plans", KINDS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
