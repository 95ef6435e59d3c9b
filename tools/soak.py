"""Random programs with fabric memory for an hour, or other loops, and whether anything grows.

    python tools/soak.py --minutes 60 [-n DIES] [--mode MODE] [--seed S]
    python tools/soak.py --cycles 1000 --bytes 256M
    python tools/soak.py --trials 100 [--only kill|stop] [--seed S]

``--minutes`` plays random programs (arrays, aliases, remaps, imports, registered memory, collectives,
messages, interception; the programs of tests/model/test_registration_model.py, longer) and loops like
those of a mixture of experts.  After each program all must have come back.  Every ``--every`` seconds a
line tells what the dies have: RSS and PSS (sums, MiB), what the UB space takes and what is in use in
/dev/shm (MiB), descriptors, mappings, pages mapped in the window and frames in use (sums), records in
the logs, and the lag.  At the end it fails if one of them has grown from the first quarter of the
lines to the last: bytes by more than ``--slack`` a die, mappings by more than 4, the others at all.

``--cycles`` allocates, writes, reads from a peer and frees so many times, and compares what there was and is.
``--trials`` kills dies, or stops them for a while, at random moments of such programs.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import registration_trials  # noqa: E402
from faultlib import shm_bytes  # noqa: E402
from registration_cycles import cycles, measure, moe  # noqa: E402
from registration_play import draw, play  # noqa: E402

from strata import config, testing  # noqa: E402

MIB = 1 << 20
SUMS = {"rss": MIB, "pss": MIB, "space": None, "descriptors": 1, "mappings": 1, "window": 1, "frames": 1, "log": 1,
        "lag": 1}  # fmt: skip
COLUMNS = ("rss", "pss", "space", "shm", "descriptors", "mappings", "window", "frames", "log", "lag")
BYTES = ("rss", "pss")
MAPPINGS = 4  # that a die may have more: Python's and the C library's come and go
EXACT = ("space", "descriptors", "mappings", "window", "frames", "lag")  # /dev/shm is others', too, and logs go on


def look(pool: testing.Pool) -> dict[str, float]:
    """Sums over the dies; bytes in MiB."""
    found = pool.run(measure)
    sums = {key: sum(die[key] for die in found) / (unit or 1) for key, unit in SUMS.items()}
    sums["space"] = found[0]["space"] / MIB  # one for all
    sums["shm"] = shm_bytes() / MIB
    return sums


def row(first: str, *cells: str) -> None:
    print(f"{first:>8}" + "".join(f"{cell:>12}" for cell in cells), flush=True)


def show(name: str, found: dict[str, float]) -> None:
    row(name, *(f"{found[key]:.1f}" if key in (*BYTES, "space", "shm") else f"{found[key]:.0f}" for key in COLUMNS))


def grown(lines: list[dict[str, float]], n: int, slack: float) -> list[str]:
    """What has grown from the first quarter of the lines to the last."""
    part = max(1, len(lines) // 4)
    problems = []
    for key in (*BYTES, *EXACT):
        before = max(line[key] for line in lines[:part])
        after = min(line[key] for line in lines[-part:])
        if after > before + n * (slack if key in BYTES else MAPPINGS if key == "mappings" else 0):
            problems.append(f"{key}: {before:.1f} at first, {after:.1f} at last")
    return problems


def verdict(problems: list[str], what: str) -> int:
    for problem in problems:
        print(f"GROWN {problem}")
    print(f"soak: {what}: {'FAILED' if problems else 'nothing has grown'}", flush=True)
    return 1 if problems else 0


def soak(args: argparse.Namespace, pool: testing.Pool) -> int:
    rng = random.Random(args.seed)
    programs = loops = 0
    lines: list[dict[str, float]] = []
    for k in range(args.warm):  # all that is made once is there
        pool.run(play, draw(random.Random(k), args.length))
        pool.run(moe, k, 5)
    row("seconds", *COLUMNS)
    began = time.monotonic()
    due = began
    while time.monotonic() < began + args.minutes * 60 or len(lines) < 4:
        if time.monotonic() >= due:
            due += args.every
            lines.append(look(pool))
            show(f"{time.monotonic() - began:.0f}", lines[-1])
        seed = rng.randrange(1 << 31)
        try:
            if rng.random() < 0.25:
                pool.run(moe, seed, 20)
                loops += 1
            else:
                pool.run(play, draw(random.Random(seed), args.length))
                programs += 1
        except BaseException:
            print(f"FAILED after {programs} programs, {loops} loops: replay: {' '.join(sys.argv)} --seed {args.seed}; "
                  f"seed of the last: {seed}", flush=True)  # fmt: skip
            raise
    lines.append(look(pool))
    show(f"{time.monotonic() - began:.0f}", lines[-1])
    return verdict(grown(lines, args.n, args.slack), f"{programs} programs of {args.length} steps, {loops} loops")


def cycle(args: argparse.Namespace, pool: testing.Pool) -> int:
    nbytes = config.parse_size(args.bytes)
    pool.run(cycles, 3, nbytes)
    pool.run(measure)
    before = look(pool)
    row("", *COLUMNS)
    show("before", before)
    done, began = 0, time.monotonic()
    while done < args.cycles:
        count = min(50, args.cycles - done)
        pool.run(cycles, count, nbytes)
        done += count
        after = look(pool)
        show(f"{done}", after)
    print(f"{(time.monotonic() - began) / args.cycles * 1e3:.0f} ms a cycle")
    return verdict(grown([before, after], args.n, args.slack), f"{args.cycles} cycles of {args.bytes} on {args.n} dies")


def trials(args: argparse.Namespace) -> int:
    failed = 0
    kinds = [args.only] if args.only else ["kill", "stop"]
    for k in range(args.trials):
        kind, seed = kinds[k % len(kinds)], args.seed + k
        try:
            outcome = getattr(registration_trials, f"{kind}_trial")(seed)
            print(f"{kind} {seed}: {outcome}", flush=True)
        except AssertionError as error:
            failed += 1
            print(f"FAILED {error}\nreplay: python tools/soak.py --trials 1 --only {kind} --seed {seed}", flush=True)
    print(f"soak: {args.trials - failed} of {args.trials} trials passed")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_mutually_exclusive_group(required=True)
    kinds.add_argument("--minutes", type=float, help="of random programs")
    kinds.add_argument("--cycles", type=int, help="of allocation and free")
    kinds.add_argument("--trials", type=int, help="in which dies are killed or stopped")
    parser.add_argument("-n", type=int, default=4, help="dies (default: 4)")
    parser.add_argument("--mode", choices=registration_trials.MODES, default="on_allocation", help="of registration")
    parser.add_argument("--seed", type=int, help="default: random")
    parser.add_argument("--every", type=float, default=60.0, help="seconds from line to line (default: 60)")
    parser.add_argument("--length", type=int, default=200, help="steps of a program (default: 200)")
    parser.add_argument("--warm", type=int, default=20, help="programs before the first line (default: 20)")
    parser.add_argument("--slack", type=float, default=2.0, help="MiB that a die may have more (default: 2)")
    parser.add_argument("--bytes", default="256M", help="of a cycle (default: 256M)")
    parser.add_argument("--only", choices=("kill", "stop"), help="only trials of this kind")
    args = parser.parse_args()
    args.seed = random.SystemRandom().randrange(1 << 31) if args.seed is None else args.seed
    print(f"soak: seed {args.seed}, {args.n} dies, {args.mode}", flush=True)
    if args.trials:
        return trials(args)
    hbm, options = ("4G", {"cache_bytes": 0}) if args.cycles else ("512M", {})
    with testing.Pool(args.n, hbm=hbm, timeout=600, registration=args.mode, pool_bytes="256M", **options) as pool:
        return cycle(args, pool) if args.cycles else soak(args, pool)


if __name__ == "__main__":
    sys.exit(main())
