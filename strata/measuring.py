"""Measuring this host as a machine: what a CPU copies, how soon a flag is seen, what an operation and SDMA cost."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from strata import comm, machine, sdma
from strata._core import kernels
from strata.fabric import arrays
from strata.launch import spawn
from strata.plan import user
from strata.plan.records import TIER_NAMES

__all__ = ["cpu_model", "figures", "measure"]

COPY = 64 << 20  # bytes, more than caches hold
HOPS = (2, 402)  # flags that dies raise in turn
BATCHES = (1, 512)  # descriptors
ASLEEP = 0.005  # seconds after which a DMA thread is asleep


def measure(name: str, *, rounds: int = 9, dies: int = 0) -> machine.Machine:
    """This host as a machine: packaged "host" with what is measured in the place of what is assumed.

    ``rounds``  of each figure; the lower quartile counts, as what else the host does only adds
    ``dies``    that copy at once (0: one for each CPU, 2 to 8)
    """
    cpus = len(os.sched_getaffinity(0))
    count = dies or min(max(cpus, 2), 8)
    found = spawn(figures, count, rounds)[0]
    base = machine.load("host")
    made = base.replace(**found)
    told = f"strata tune, {time.strftime('%Y-%m-%d')}, {cpu_model()}"
    sources = {**base.sources, **dict.fromkeys(found, ("M", told))}
    sources["sync.poll_us"] = "M", f"{told}: within seen_us"
    return dataclasses.replace(made, name=name, title=f"{cpu_model()}, {cpus} CPUs", sources=sources)


def cpu_model() -> str:
    """As Linux names it; where it does not, the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Hardware"))]
    return next((name for name in names if name), platform.machine())


def figures(rounds: int) -> dict[str, float]:
    """What ``measure`` runs on every die: constants by their names, as die 0 has found them."""
    group = comm.world()
    alone, together = _copies(group, rounds)
    hop, entry, launch = _operations(group, rounds)
    found = {"die.hbm_gbps": 2 * together, "die.ub_gbps": alone, "launch.eager_us": launch}
    found |= {"sync.entry_us": entry, "sync.poll_us": 0.0, "estimate.step_us": hop, "estimate.entry_us": 2 * entry}
    for tier in TIER_NAMES:
        found |= {f"tier.{tier}.{k}": alone for k in ("core_gbps", "read_gbps", "write_gbps")}
        found[f"tier.{tier}.seen_us"] = hop
    if group.rank == 0:
        found |= _engine(rounds, alone)
    group.barrier()
    return {name: round(value, 4) for name, value in found.items()}


def _typical(times: list[float]) -> float:
    return sorted(times)[len(times) // 4]


def _us(call: Callable[[], Any]) -> float:
    begin = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begin) / 1e3


def _copies(group: Any, rounds: int) -> tuple[float, float]:
    """GB/s of a die that copies out of its neighbour's memory: die 0 alone, and all at once (the slowest)."""
    mine, out = arrays.ones(COPY, "u1"), arrays.ones(COPY, "u1")
    places = group.all_gather(arrays.array([arrays.address(mine)], "u8"))
    group.barrier()
    at = int(places.reshape(-1)[(group.rank + 1) % group.size])
    theirs = np.frombuffer(memoryview((ctypes.c_ubyte * COPY).from_address(at)), np.uint8)
    alone, together = [], []
    for _ in range(rounds):
        group.barrier()
        if group.rank == 0:
            alone.append(_us(lambda: kernels.copy(out, theirs)))
        group.barrier()
        together.append(_slowest(group, _us(lambda: kernels.copy(out, theirs))))
    group.barrier()  # nobody's memory goes before all are done
    rate = COPY / 1e3
    return rate / _typical(alone or [1.0]), rate / _typical(together)


def _slowest(group: Any, us: float) -> float:
    return float(group.all_reduce(np.array([us]), op="max")[0])


def _in_turn(hops: int) -> str:
    """An all_gather of two, before whose pulls flags are raised in turn; its name."""

    def slices(op: Any, rank: int) -> Any:
        if not op.in_place:
            yield op.pull(rank, op.nbytes, dst=rank * op.nbytes)
        for k in range(rank, hops, 2):
            yield op.sync(wait=(1 - rank, k - 1) if k else None, post=k, step=k + 1)
        yield op.pull(1 - rank, op.nbytes, dst=(1 - rank) * op.nbytes, step=hops + 1)

    name = f"strata_tune_{hops}"
    user.algorithm("all_gather", name=name)(slices)
    return name


def _operations(group: Any, rounds: int) -> tuple[float, float, float]:
    """Microseconds from one die's raising a flag to another's going on; of arrival or closing, beyond that; of a
    call of Python alone."""
    pair = group.subgroup([0, 1]) if group.rank < 2 else None
    single = group.subgroup([group.rank])
    src = arrays.ones(16, "f4")
    out, alone = arrays.ones((2, 16), "f4"), arrays.ones((1, 16), "f4")
    calls: list[Callable[[], Any]] = [lambda: single.all_gather(src, out=alone, algorithm="full_mesh")]
    if pair is not None:
        names = [_in_turn(hops) for hops in HOPS]
        calls += [functools.partial(pair.all_gather, src, out=out, algorithm=name) for name in names]
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()  # builds the plan
    for _ in range(10 * rounds if pair is not None else 0):
        for call, mine in zip(calls, times, strict=True):
            mine.append(_us(call))
    group.barrier()
    if pair is None:
        return 0.0, 0.0, 0.0
    launch, few, many = (_typical(mine) for mine in times)
    hop = max(many - few, 0.0) / (HOPS[1] - HOPS[0])
    return hop, max((few - HOPS[0] * hop - launch) / 2 - hop, 0.0), launch


def _engine(rounds: int, alone: float) -> dict[str, float]:
    """A descriptor's submission; from the doorbell to the first byte, the thread asleep; its rate to a CPU's."""
    ring, gate, flag = sdma.open_ring(1 << 16), sdma.flag(), sdma.flag()
    src, dst = arrays.ones(COPY, "u1"), arrays.ones(COPY, "u1")
    submitted: dict[int, list[float]] = {size: [] for size in BATCHES}
    for k in range(1, 10 * rounds + 1):
        held = ring.submit(sdma.Batch().gate(gate, k))
        for size, times in submitted.items():
            batch = sdma.Batch()
            for _ in range(size):
                batch.copy(dst, src, nbytes=64)
            batch.build()
            times.append(_us(functools.partial(ring.submit, batch, notify=False)))
        sdma.write(gate, k)
        held.wait()
        ring.drain()
    few, many = (_typical(times) for times in submitted.values())

    def raised(batch: sdma.Batch, value: int) -> None:
        ring.submit(batch, notify=False)
        sdma.wait(flag, value)

    def moves(batch: sdma.Batch) -> None:
        ring.submit(batch).wait()

    begun, moved = [], []
    for k in range(1, 5 * rounds + 1):
        batch = sdma.Batch().write(flag, k)
        batch.build()
        time.sleep(ASLEEP)
        begun.append(_us(functools.partial(raised, batch, k)))
    for _ in range(rounds):
        whole = sdma.Batch().copy(dst, src)
        whole.build()
        moved.append(_us(functools.partial(moves, whole)))
    ring.close()
    share = COPY / 1e3 / _typical(moved) / alone
    return {"sdma.descriptor_us": max(many - few, 0.0) / (BATCHES[1] - BATCHES[0]),
            "sdma.handover_us": _typical(begun), "sdma.share": min(max(share, 1e-3), 1.0)}  # fmt: skip
