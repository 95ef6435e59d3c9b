#!/usr/bin/env python3
"""What do open descriptor rings cost when nothing goes through them?

Each die opens rings, has a copy done, and then does nothing: its DMA thread should be asleep. CPU time of the process
over that time, in per cent of one core: first of dies that have never used SDMA (*none*), then with rings that are
empty (*idle*), then with one of them held up at a gate that stays shut (*gated*), which the DMA thread looks at again
every 2 ms, since a flag may be raised by whatever writes to memory.

    bench/sdma_idle.py                       # 8 dies, 4 rings each, 10 s of each
    bench/sdma_idle.py -n 4 --seconds 3 --json idle.jsonl
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time

from bench_lib.lines import Kind, write

import strata
from strata import sdma

WHAT = ("none", "idle", "gated")
KINDS = {"idle": Kind(("what", "dies", "rings", "seconds"), less=("percent", "percent_most"))}


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def percent(seconds: float) -> float:
    """CPU time of this process while its main thread sleeps, in per cent of a core."""
    strata.world().barrier()
    time.sleep(0.2)  # what went before has come to rest
    begin, cpu = time.monotonic(), cpu_seconds()
    time.sleep(seconds)
    return 100 * (cpu_seconds() - cpu) / (time.monotonic() - begin)


def die(nrings: int, seconds: float) -> dict[str, float]:
    """One die's figures, by what it has open."""
    found = {"none": percent(seconds)}
    rings = [sdma.open_ring() for _ in range(nrings)]
    x, y, gate = strata.ones(1 << 16), strata.zeros(1 << 16), sdma.flag()
    for ring in rings:
        ring.submit(sdma.Batch().copy(y, x)).wait()
    found["idle"] = percent(seconds)
    work = rings[0].submit(sdma.Batch().gate(gate, 1))
    before = sdma.stats()["sleeps"]
    found["gated"] = percent(seconds)
    found["sleeps"] = (sdma.stats()["sleeps"] - before) / seconds
    sdma.write(gate, 1)
    work.wait()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=8, help="dies (default 8)")
    parser.add_argument("--rings", type=int, default=4, help="rings of each (default 4)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement (default 10)")
    parser.add_argument("--json", metavar="FILE", help="all figures, one JSON object a line")
    options = parser.parse_args()
    if options.rings < 1 or options.n < 1 or not options.seconds > 0:
        parser.error("at least one die, one ring and some time are needed")
    dies = strata.spawn(die, options.n, options.rings, options.seconds)
    lines = []
    print(f"{options.n} dies, {options.rings} rings each: per cent of a core that a die uses, in {options.seconds:g} s")
    print("            median      most")
    for what in WHAT:
        each = [found[what] for found in dies]
        print(f"  {what:6} {statistics.median(each):11.3f} {max(each):9.3f}")
        lines.append({"what": what, "dies": options.n, "rings": options.rings,
                      "seconds": options.seconds, "percent": statistics.median(each),
                      "percent_most": max(each)})  # fmt: skip
    print(f"the DMA thread at a shut gate slept {statistics.median(f['sleeps'] for f in dies):.0f} times a second")
    write(options.json, "sdma_idle", KINDS, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
