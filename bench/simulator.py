#!/usr/bin/env python3
"""How fast is the simulator: solves and seconds, by size and by the order in which dies ask their peers?

A full mesh all_gather on CloudMatrix384's constants, straight from arrays: each die's cores pull a unit (or several)
of each peer. *staggered*: die d begins at peer d + 1, so that each port serves as many as it asks for; *naive*: all
dies begin at peer 0; *shuffled*: each die has an order of its own, so that nearly every unit is done at an instant
of its own. Seconds are of the processor, the least of several runs. Prints JSON lines.

    bench/simulator.py                      # the cases that take seconds at most
    bench/simulator.py --case large_shuffled  # 512 dies, 48 cores, 261,632 units, with windows
    bench/simulator.py --dies 64 --cores 24 --unit 1M --per-peer 4 --order naive --window 0.1
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from bench_lib.lines import Kind, Lines

from strata._core import simulator
from strata.config import parse_size
from strata.exec.timed import records as r
from strata.machine import load

MACHINE = load("cm384")
KINDS = {"simulator": Kind(("case", "dies", "cores", "unit_bytes", "order", "window_us"),
                           less=("seconds", "us_per_solve", "peak_mib"))}
# name: dies, cores, bytes of a unit, units of a peer, order, windows in microseconds
CASES: dict[str, tuple[int, int, int, int, str, tuple[float, ...]]] = {
    "small": (32, 24, 1 << 20, 128, "staggered", (0.0,)),
    "small_shuffled": (32, 24, 1 << 20, 128, "shuffled", (0.0, 0.1)),
    "pod": (384, 48, 4 << 20, 1, "staggered", (0.0,)),
    "large": (512, 48, 4 << 20, 1, "staggered", (0.0,)),
    "large_naive": (512, 48, 4 << 20, 1, "naive", (0.0,)),
    "large_shuffled": (512, 48, 4 << 20, 1, "shuffled", (0.5, 2.0)),
}
BY_DEFAULT = ("small", "pod", "large", "large_naive")


def mesh_links(dies: int) -> np.ndarray:
    """UB out and in, SIO out and in, HBM (``dies`` of each), then what each die gives each other, [giver, taker]."""
    cost, tiers = MACHINE.cost, pair_tiers(dies)
    kinds = np.repeat([r.UB_OUT, r.UB_IN, r.SIO_OUT, r.SIO_IN, r.HBM], dies)
    links = np.zeros(5 * dies + dies * dies, r.LINK_DTYPE)
    links["kind"][: 5 * dies], links["kind"][5 * dies :] = kinds, r.PAIR
    links["die"] = np.concatenate([np.tile(np.arange(dies), 5), np.repeat(np.arange(dies), dies)])
    rates = np.repeat([cost.ub_gbps, cost.ub_gbps, cost.sio_gbps, cost.sio_gbps, MACHINE.die.hbm_gbps], dies)
    links["capacity"] = np.concatenate([rates, np.array([t.read_gbps for t in MACHINE.tiers])[tiers].ravel()]) / 1000
    links["loss"][: 2 * dies] = MACHINE.fanout.loss
    return links


def pair_tiers(dies: int) -> np.ndarray:
    return np.array([MACHINE.place.tiers(d, np.arange(dies)) for d in range(dies)])


def mesh(dies: int, cores: int, unit: int, per_peer: int, order: str) -> tuple[np.ndarray, ...]:
    """The arguments of ``simulator.run``: each die's units dealt to its cores in turn."""
    each = (dies - 1) * per_peer
    n = dies * each
    turn = np.arange(each) % (dies - 1)
    die = np.repeat(np.arange(dies), each)
    peer = (die + 1 + np.tile(turn, dies)) % dies if order == "staggered" else np.tile(turn, dies)
    if order == "shuffled":
        peer = np.concatenate([np.random.default_rng(d).permutation(dies - 1)[turn] for d in range(dies)])
    if order != "staggered":
        peer = peer + (peer >= die)
    core = np.tile(np.arange(each) % cores, dies)
    at = np.lexsort((np.tile(np.arange(each), dies), core, die))
    die, peer, core = die[at], peer[at], core[at]
    tier = pair_tiers(dies)[die, peer]
    uses = np.zeros((n, 5), r.USE_DTYPE)
    uses["weight"] = 1.0
    near = np.where(tier == 1, 2 * dies, 0)  # SIO for UB
    uses["link"] = np.stack([near + peer, near + dies + die, 5 * dies + peer * dies + die, 4 * dies + peer,
                             4 * dies + die], 1)  # fmt: skip
    uses["peer"] = np.stack([die, peer, *[np.full(n, r.NONE)] * 3], 1)
    tasks = np.zeros(n, r.TASK_DTYPE)
    tasks["hold_ps"] = round(MACHINE.core.issue_us * 1e6)
    tasks["latency_ps"] = np.rint(np.array(MACHINE.cost.alpha_us) * 1e6)[tier]
    tasks["work"] = unit
    tasks["bound"] = np.array([t.core_gbps for t in MACHINE.tiers])[tier] / 1000
    tasks["wait"], tasks["post"], tasks["kind"], tasks["tier"] = r.NONE, r.NONE, r.MOVE, tier
    tasks["use_first"], tasks["nuse"] = 5 * np.arange(n), 5
    pair = unit * per_peer
    tasks["backlog"] = round(r.BACKLOG_ONE * pair / (pair + MACHINE.fanout.backlog_bytes))
    tasks["unit"] = at % each
    lanes = np.zeros(dies * cores, r.LANE_DTYPE)
    lanes["count"] = np.bincount(die * cores + core, minlength=dies * cores)
    lanes["first"] = np.cumsum(lanes["count"]) - lanes["count"]
    lanes["die"], lanes["core"] = np.divmod(np.arange(dies * cores), cores)
    lanes["pool"], lanes["ahead"] = r.NONE, MACHINE.core.outstanding > 1
    rest = (r.FLAG_DTYPE, r.MEMBER_DTYPE, r.RENDEZVOUS_DTYPE)
    return mesh_links(dies), uses.ravel(), tasks, lanes, *(np.zeros(0, d) for d in rest)


def measure(name: str, case: tuple[int, int, int, int, str, tuple[float, ...]], check: bool) -> Iterator[dict]:
    """A row for each window."""
    dies, cores, unit, per_peer, order, windows = case
    arrays = mesh(dies, cores, unit, per_peer, order)
    place = MACHINE.place
    for window in windows:
        best, spent = float("inf"), 0.0
        while spent < 1.0:
            begin = time.process_time()
            found = simulator.run(*arrays, package=place.package, node=place.node, window_ps=round(window * 1e6),
                                  check=check)  # fmt: skip
            took = time.process_time() - begin
            best, spent = min(best, took), spent + took
        row: dict[str, Any] = {"record": "simulator", "case": name, "dies": dies, "cores": cores, "unit_bytes": unit}
        row |= {"order": order, "units": len(arrays[2]), "window_us": window, "seconds": round(best, 6)}
        row |= {key: found[key] for key in ("solves", "events", "batches", "residual")}
        row["us_per_solve"] = round(best * 1e6 / max(1, found["solves"]), 1)
        row |= {"end_us": found["end_ps"] / 1e6, "digest": f"{found['digest']:016x}"}
        row["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        yield row


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES, help=f"default: {', '.join(BY_DEFAULT)}")
    parser.add_argument("--dies", type=int, help="a case of one's own, in place of the named ones")
    parser.add_argument("--cores", type=int, default=24)
    parser.add_argument("--unit", default="1M", help="bytes")
    parser.add_argument("--per-peer", type=int, default=1, help="units")
    parser.add_argument("--order", choices=("staggered", "naive", "shuffled"), default="staggered")
    parser.add_argument("--window", type=float, default=0.0, help="microseconds; 0: exact")
    parser.add_argument("--check", action="store_true", help="prove each solve (slower)")
    args = parser.parse_args(argv)
    cases = {name: CASES[name] for name in args.case or BY_DEFAULT}
    if args.dies is not None:
        if min(args.dies - 1, args.cores, args.per_peer) < 1:
            parser.error("two dies, a core and a unit of each peer at least")
        unit = parse_size(args.unit)
        cases = {"own": (args.dies, args.cores, unit, args.per_peer, args.order, (args.window,))}
    lines = Lines("-")
    lines.head("simulator", KINDS)
    for name, case in cases.items():
        for row in measure(name, case, args.check):
            lines.keep(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
