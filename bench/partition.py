#!/usr/bin/env python3
"""What does balancing buy: naive against balanced partition, over the cores that an operation may use?

Nothing runs: plans are made for 32 dies on two nodes of CloudMatrix384 and their times predicted, by two
models. *tau*: a core does its units one after the other, each in alpha + bytes / beta of its tier, as the
partition itself reckons. *ports*: the same, but cores that pull at one time share the die's port of 196 GB/s
(270 to its package) max-min fairly. Only the pulling die's own ports count: what peers' ports are asked for
by others is left out, so this is a lower bound. Where ports are full, no partition helps.

*Gap* is (slowest - fastest core) / slowest, of the die that is done last; an idle core counts as fastest.
*Gain* is what balancing takes off the makespan.

    bench/partition.py                                       # tables, then strategy generation
    bench/partition.py --json partition.jsonl --picture partition.png
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from bench_lib.lines import Kind, write

from strata.config import parse_size
from strata.machine import load
from strata.plan import Plan, PlanCache, Spec, build
from strata.plan.cost import Cost
from strata.plan.spec import normal
from strata.plan.topology import L1, SIO

TWO_NODES, CM384 = load("cm384").place, load("cm384").cost

DIES = 32
BUDGETS = (8, 12, 16, 17, 18, 19, 20, 22, 24, 28, 31, 32, 36, 40, 44, 48)
MODELS = ("tau", "ports")
KINDS = {"partition": Kind(("operation", "cores"), less=tuple(f"{m}_{p}_us" for m in MODELS
                                                              for p in ("naive", "balanced"))),
         "generation": Kind(("what",), less=("us",))}
PAPER_GAP, PAPER_GAIN = 0.43, 0.19  # StrataCL: gap 43 % -> at most 5 %, makespan -19 %


class Ends(NamedTuple):
    """Microseconds at which the die's first and last cores are done."""

    first: float
    last: float

    @property
    def gap(self) -> float:
        return (self.last - self.first) / self.last if self.last else 0.0


def fair(bounds: np.ndarray, port: float) -> np.ndarray:
    """Max-min rates of flows with these bounds through one port (0: no limit)."""
    if not port or bounds.sum() <= port:
        return bounds
    order = np.argsort(bounds, kind="stable")
    rest = port - np.concatenate(([0.0], np.cumsum(bounds[order])[:-1]))
    level = rest / np.arange(len(bounds), 0, -1)  # were this flow and all above equal
    limited = np.flatnonzero(level < bounds[order])
    return np.minimum(bounds, level[limited[0]])


def fluid(plan: Plan, cost: Cost) -> Ends:
    """When the cores of one die are done, if pulls share its ports: from one change of rates to the next."""
    tiers = plan.units["tier"].astype(np.int64)
    start_up = np.array(cost.alpha_us)[tiers]
    nbytes = plan.units["bytes"].astype(float)
    bound = np.array(cost.gbps)[tiers] * 1e3  # bytes in a microsecond
    port = np.where(tiers == SIO, 1, np.where(tiers >= L1, 2, 0))
    limits = (0.0, cost.sio_gbps * 1e3, cost.ub_gbps * 1e3)
    at, end = plan.core_begin[:-1].astype(np.int64), plan.core_begin[1:].astype(np.int64)
    done = np.zeros(plan.cores)
    busy = np.flatnonzero(at < end)
    wait, left = np.zeros(plan.cores), np.zeros(plan.cores)
    wait[busy], left[busy] = start_up[at[busy]], nbytes[at[busy]]
    now = 0.0
    while len(busy):
        rate = np.zeros(len(busy))
        flows = wait[busy] <= 0
        for number, limit in enumerate(limits):
            mine = flows & (port[at[busy]] == number)
            if mine.any():
                rate[mine] = fair(bound[at[busy[mine]]], limit)
        with np.errstate(divide="ignore"):
            ahead = np.where(flows, left[busy] / rate, wait[busy])
        step = ahead.min()
        now += step
        ready = ahead <= step * (1 + 1e-9)
        left[busy] -= rate * step
        wait[busy] -= np.where(flows, 0.0, step)
        wait[busy[ready & ~flows]] = 0.0
        ended = busy[ready & flows]
        at[ended] += 1
        done[ended] = now
        more = ended[at[ended] < end[ended]]
        wait[more], left[more] = start_up[at[more]], nbytes[at[more]]
        busy = busy[at[busy] < end[busy]]
    return Ends(float(done.min()), float(done.max()))


def tau(plan: Plan, cost: Cost) -> Ends:
    """When the cores are done by the partition's own model."""
    each = cost.alpha_ps[plan.units["tier"]] + np.rint(plan.units["bytes"] * cost.ps_per_byte[plan.units["tier"]])
    loads = np.bincount(plan.units["core"], each, plan.cores) / 1e6
    return Ends(float(loads.min()), float(loads.max()))


def gather(nbytes: int) -> Spec:
    """all_gather in place: 31 peers' parts, and no local copy."""
    return Spec("all_gather", nbytes, 1, nranks=DIES, in_place=True)


def skewed(nbytes: int, seed: int) -> Spec:
    """all_to_all_v whose pairs have log-normal sizes (sigma 1) of mean ``nbytes`` / 32; none local."""
    chance = np.random.default_rng(seed)
    counts = (nbytes / DIES * chance.lognormal(-0.5, 1.0, (DIES, DIES))).astype(np.int64)
    np.fill_diagonal(counts, 0)
    return normal(Spec("all_to_all_v", 0, 1, nranks=DIES, counts=counts))


def curve(spec: Spec, budgets: tuple[int, ...], dies: tuple[int, ...], cost: Cost = CM384) -> list[dict]:
    """A row for each core budget: gaps and makespans of both policies by both models."""
    rows = []
    for cores in budgets:
        row: dict = {"operation": spec.operation, "cores": cores}
        for policy in ("naive", "balanced"):
            plans = [build(spec, d, cores, policy=policy, cost=cost, topology=TWO_NODES) for d in dies]
            for name, model in (("tau", tau), ("ports", fluid)):
                last = max((model(p, cost) for p in plans), key=lambda ends: ends.last)
                row[f"{name}_{policy}_us"], row[f"{name}_{policy}_gap"] = last.last, last.gap
        for name in MODELS:
            row[f"{name}_gain"] = 1 - row[f"{name}_balanced_us"] / row[f"{name}_naive_us"]
        rows.append(row)
    return rows


def median(call: Callable[[], object], seconds: float, inner: int = 1) -> float:
    """Microseconds of one call, the median over ``seconds``."""
    call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        begin = time.perf_counter()
        for _ in range(inner):
            call()
        times.append((time.perf_counter() - begin) / inner)
    return statistics.median(times) * 1e6


def generation(nbytes: int, seconds: float, seed: int) -> dict[str, float]:
    """Microseconds of making a die's plan, and of finding one that was made."""
    options = {"cost": CM384, "topology": TWO_NODES}
    spec, other = gather(nbytes), skewed(nbytes, seed)
    large = spec._replace(nranks=512)
    cache = PlanCache()
    return {
        f"{DIES} ranks, 24 cores": median(lambda: build(spec, 5, 24, **options), seconds),
        f"{DIES} ranks, 24 cores, all_to_all_v": median(lambda: build(other, 5, 24, **options), seconds),
        "512 ranks, 24 cores": median(lambda: build(large, 5, 24, **options), seconds),
        "cached": median(lambda: cache.get(spec, 5, 24), seconds, 100),
        "cached, with options": median(lambda: cache.get(spec, 5, 24, **options), seconds, 100),
        "cached, with counts": median(lambda: cache.get(other, 5, 24), seconds, 100),
    }


def report(rows: list[dict]) -> str:
    """A table for each operation."""
    lines = []
    for operation in dict.fromkeys(r["operation"] for r in rows):
        lines += ["", f"{operation}, {DIES} dies: makespan in us, gap of cores", f"{'':6}" + "".join(
            f"{name:>14}{'naive':>9}{'gap':>6}{'balanced':>10}{'gap':>6}{'gain':>7}" for name in MODELS), "cores"]
        for r in (r for r in rows if r["operation"] == operation):
            cells = "".join(
                f"{r[f'{m}_naive_us']:23.0f}{r[f'{m}_naive_gap']:6.0%}{r[f'{m}_balanced_us']:10.0f}"
                f"{r[f'{m}_balanced_gap']:6.1%}{r[f'{m}_gain']:7.1%}" for m in MODELS)
            lines.append(f"{r['cores']:<6}{cells}")
    return "\n".join(lines)


def located(rows: list[dict]) -> list[str]:
    """Where the paper's figures lie on all_gather's curve with ports."""
    mine = [r for r in rows if r["operation"] == "all_gather"]
    gap = min(mine, key=lambda r: abs(r["ports_naive_gap"] - PAPER_GAP))
    gain = min(mine, key=lambda r: abs(r["ports_gain"] - PAPER_GAIN))
    both = min(mine, key=lambda r: abs(r["ports_naive_gap"] - PAPER_GAP) + abs(r["ports_gain"] - PAPER_GAIN))
    return [
        f"the paper's gap of 43 %: nearest at {gap['cores']} cores, {gap['ports_naive_gap']:.1%} "
        f"(balanced {gap['ports_balanced_gap']:.1%}, makespan -{gap['ports_gain']:.1%})",
        f"the paper's makespan of -19 %: nearest at {gain['cores']} cores, -{gain['ports_gain']:.1%} "
        f"(gap {gain['ports_naive_gap']:.1%} to {gain['ports_balanced_gap']:.1%})",
        f"both together: nearest at {both['cores']} cores, gap {both['ports_naive_gap']:.1%} to "
        f"{both['ports_balanced_gap']:.1%}, makespan -{both['ports_gain']:.1%}",
    ]


def picture(rows: list[dict], file: Path) -> None:
    """Gap and makespan over cores, a column for each operation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    operations = list(dict.fromkeys(r["operation"] for r in rows))
    figure, panels = pyplot.subplots(3, len(operations), figsize=(6 * len(operations), 10), squeeze=False, sharex=True)
    kinds = (("us", 1e-3, "makespan, ms"), ("gap", 100, "gap of cores, %"))
    for column, operation in enumerate(operations):
        mine = [r for r in rows if r["operation"] == operation]
        cores = [r["cores"] for r in mine]
        for line, (what, scale, label) in enumerate(kinds):
            for policy, colour in (("naive", "tab:red"), ("balanced", "tab:blue")):
                for model, style in (("tau", ":"), ("ports", "-")):
                    panels[line, column].plot(cores, [r[f"{model}_{policy}_{what}"] * scale for r in mine], style,
                                              color=colour, marker=".", label=f"{policy}, {model}")
            panels[line, column].set(ylabel=label)
        for model, style in (("tau", ":"), ("ports", "-")):
            panels[2, column].plot(cores, [100 * r[f"{model}_gain"] for r in mine], style, color="tab:green",
                                   marker=".", label=model)
        panels[0, column].set(title=f"{operation}, {DIES} dies on 2 nodes")
        panels[2, column].set(ylabel="makespan less by, %", xlabel="cores of a die")
        if operation == "all_gather":
            panels[1, column].axhline(100 * PAPER_GAP, color="grey", lw=0.8, label="StrataCL: 43 %")
            panels[2, column].axhline(100 * PAPER_GAIN, color="grey", lw=0.8, label="StrataCL: 19 %")
    for panel in panels.flat:
        panel.set(ylim=(0, None))
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file, dpi=100)


def main(argv: list[str]) -> int:
    """Predicts, prints, writes what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-b", "--bytes", type=parse_size, default=128 << 20, help="of a member's source")
    parser.add_argument("--cores", nargs="+", type=int, default=list(BUDGETS))
    parser.add_argument("--dies", type=int, default=8, help="of all_to_all_v, spread over the 32")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each timing of strategy generation")
    parser.add_argument("--seed", type=int, default=0, help="of all_to_all_v's sizes")
    parser.add_argument("--json", metavar="FILE", help="all figures, one JSON object a line")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args(argv)
    if options.bytes < DIES or not 1 <= options.dies <= DIES or min(options.cores) < 1:
        parser.error(f"--bytes is at least {DIES}, --dies 1 to {DIES}, --cores at least 1")
    budgets = tuple(options.cores)
    rows = curve(gather(options.bytes), budgets, (0,))  # all dies see the same distances
    some = tuple(range(0, DIES, DIES // options.dies))[: options.dies]
    rows += curve(skewed(options.bytes, options.seed), budgets, some)
    print(report(rows), "", *located(rows), sep="\n")
    times = generation(options.bytes, options.seconds, options.seed)
    print("", "strategy generation, us a die (median)", *(f"  {k:<38}{us:9.2f}" for k, us in times.items()), sep="\n")
    write(options.json, "partition", KINDS, [{"record": "partition", **row} for row in rows] + [
        {"record": "generation", "what": what, "us": us} for what, us in times.items()])
    if options.picture:
        picture(rows, options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
