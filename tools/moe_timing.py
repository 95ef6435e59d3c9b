"""Dispatch and combine on CloudMatrix384 by ``strata.moe.simulate``, as the tables of docs/moe-timing.md.

    python tools/moe_timing.py [--ranks 8,16,32,64,128,256] [--exact 16]

Microseconds until the last die is done: hidden 7168, bf16, top-8 of 256 experts, all cores.
"""

from __future__ import annotations

import argparse
import sys
import time

from strata.moe import simulate

MODES = {"high_throughput": 4096, "low_latency": 128}
ROUTINGS = ("uniform", "zipf")
COLUMNS = (("strata", "mte"), ("zerocopy", "mte"), ("staged", "mte"), ("strata", "sdma"))
WINDOW_US = 0.5


def main() -> int:
    """Exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="8,16,32,64,128,256")
    parser.add_argument("--exact", type=int, default=16, help=f"more ranks: events within {WINDOW_US} us together")
    parser.add_argument("--sdma", type=int, default=64, help="more ranks: not by sdma, whose rings all differ")
    args = parser.parse_args()
    print("| mode | what | routing | dies | strata, us | GB/s | zerocopy, us | staged, us | strata by sdma, us |")
    print("|---|---|---|---|---|---|---|---|---|")
    began = time.perf_counter()
    for mode, tokens in MODES.items():
        for kind in ("dispatch", "combine"):
            for routing in ROUTINGS:
                for ranks in map(int, args.ranks.split(",")):
                    window = 0.0 if ranks <= args.exact else WINDOW_US
                    found = [simulate(kind, mode, ranks, tokens, system=system, path=path, routing=routing,
                                      window_us=window)
                             for system, path in COLUMNS if path == "mte" or ranks <= args.sdma]  # fmt: skip
                    us = [f"{f.time_us:.0f}" for f in found] + ["-"] * (len(COLUMNS) - len(found))
                    print(f"| {mode} | {kind} | {routing} | {ranks} | {us[0]} | {found[0].busbw_GBps:.0f} | "
                          f"{' | '.join(us[1:])} |", flush=True)  # fmt: skip
    print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
