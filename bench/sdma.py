#!/usr/bin/env python3
"""What does the DMA engine cost: to submit to it, until it begins, and against a plain memcpy?

One die. *Submission*: time in `Ring.submit` of batches that were built before, into a ring that is held up by a gate,
so that nothing is executed meanwhile; a descriptor's own cost is the slope between two batch sizes. *Latency*: from
before `submit` of one flag until the host sees the flag raised, with the thread asleep (5 ms of nothing before) and
awake. *Throughput*: copies of one array to another, over and over, 256 MiB in all, as one batch through one ring,
submitted and waited for, against as many `np.copyto` by the caller and by a second thread, taking turns.

    bench/sdma.py                        # tables
    bench/sdma.py --json sdma.jsonl      # and all figures as JSON lines
"""

from __future__ import annotations

import argparse
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from bench_lib.lines import Kind, write

import strata
from strata import sdma

BATCHES = (1, 8, 83, 512)
SIZES = tuple(1 << k for k in range(12, 27, 2))
KINDS = {"submission": Kind(("case",), less=("us",)), "latency": Kind(("case",), less=("us", "us_p99")),
         "copy": Kind(("bytes",), more=("ring_GBps", "caller_GBps", "thread_GBps"))}


def microseconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begin) / 1e3


def submission(rounds: int) -> dict[str, float]:
    """Median microseconds of a submit, by batch size, and of a descriptor within a batch."""
    ring, gate = sdma.open_ring(1 << 16), sdma.flag()
    src, dst = strata.zeros(1 << 20, "u1"), strata.zeros(1 << 20, "u1")
    found = {}
    for size in (BATCHES[-1], *BATCHES):  # once more than counts: the ring's memory is fresh at first
        batch = sdma.Batch()
        for _ in range(size):
            batch.copy(dst, src, nbytes=64)
        batch.build()
        times = []
        for k in range(rounds):
            if k % (40000 // size) == 0:  # the ring never fills
                held = ring.submit(sdma.Batch().gate(gate, k + 1))
            times.append(microseconds(lambda b=batch: ring.submit(b, notify=False)))
            if (k + 1) % (40000 // size) == 0 or k + 1 == rounds:
                sdma.write(gate, k + 1)
                held.wait()
                ring.drain()
        found[f"batch of {size}"] = statistics.median(times)
        sdma.write(gate, 0)
    few, many = found[f"batch of {BATCHES[0]}"], found[f"batch of {BATCHES[-1]}"]
    found["descriptor"] = (many - few) / (BATCHES[-1] - BATCHES[0])
    ring.close()
    return found


def latency(rounds: int) -> dict[str, tuple[float, float]]:
    """(median, 99 %) microseconds from the submit to the raised flag."""
    ring, flag = sdma.open_ring(), sdma.flag()
    found, value = {}, 0
    for name, pause in (("asleep", 0.005), ("awake", 0.0)):
        times = []
        for _ in range(rounds if not pause else rounds // 10):
            value += 1
            batch = sdma.Batch().write(flag, value)
            batch.build()
            if pause:
                time.sleep(pause)
            times.append(microseconds(lambda b=batch, v=value: (ring.submit(b, notify=False), sdma.wait(flag, v))))
        found[name] = (statistics.median(times), float(np.percentile(times, 99)))
    ring.close()
    return found


def by_thread(work: queue.SimpleQueue[Any], done: threading.Event) -> None:
    while (call := work.get()) is not None:
        call()
        done.set()


def throughput(rounds: int) -> list[tuple[int, float, float, float]]:
    """(bytes, GB/s by the ring, by the caller, by a second thread)."""
    ring, work, done = sdma.open_ring(), queue.SimpleQueue[Any](), threading.Event()
    helper = threading.Thread(target=by_thread, args=(work, done))
    helper.start()
    rows = []
    for size in SIZES:
        src, dst = strata.ones(size, "u1"), strata.zeros(size, "u1")
        copies = min(1000, (256 << 20) // size)
        batch = sdma.Batch()
        for _ in range(copies):
            batch.copy(dst, src)
        batch.build()

        def copy(dst: Any = dst, src: Any = src, copies: int = copies) -> None:
            for _ in range(copies):
                np.copyto(dst, src)

        def hand_over(copy: Callable[[], None] = copy) -> None:
            done.clear()
            work.put(copy)
            done.wait()

        ways = (lambda b=batch: ring.submit(b).wait(), copy, hand_over)
        times = [[microseconds(way) for way in ways] for _ in range(rounds)]
        rows.append((size, *(copies * size / statistics.median(side) / 1e3 for side in zip(*times, strict=True))))
    work.put(None)
    helper.join()
    ring.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000, help="repetitions of each figure (default 2000)")
    parser.add_argument("--json", metavar="FILE", help="all figures, one JSON object a line")
    options = parser.parse_args()
    strata.init()
    lines: list[dict[str, Any]] = []
    print("submission, us (median)")
    for name, us in submission(options.rounds).items():
        print(f"  {name:14} {us:8.3f}")
        lines.append({"record": "submission", "case": name, "us": us})
    print("from submit to a raised flag, us       median     99 %")
    for name, (p50, p99) in latency(options.rounds).items():
        print(f"  thread {name:28} {p50:8.2f} {p99:8.2f}")
        lines.append({"record": "latency", "case": name, "us": p50, "us_p99": p99})
    print("copies, GB/s       ring    caller    second thread    ring / thread")
    for size, ring, caller, thread in throughput(options.rounds // 100):
        print(f"  {size:10} {ring:10.2f} {caller:9.2f} {thread:12.2f} {ring / thread:15.3f}")
        lines.append({"record": "copy", "bytes": size, "ring_GBps": ring, "caller_GBps": caller,
                      "thread_GBps": thread})  # fmt: skip
    write(options.json, "sdma", KINDS, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
