#!/usr/bin/env python3
"""strata beside the MPIs (and torch gloo) on this host: who is faster, cell by cell.

    bench/versus.py --setup            # once: one environment per peer, in build/peers
    bench/versus.py --quick            # a few minutes
    bench/versus.py --full --json versus.jsonl --plot versus.png

All contenders stand side by side, asleep between cells; each cell runs on one after another, in
an order that rotates, so that a noisy moment hits all of them. Every round launches every job anew.
Within a round strata is compared with the best peer of that round; the median of those ratios counts.
How it measures, and how to read it: bench/README.md.
"""

import argparse
import importlib.util
import sys
from functools import partial

from bench_lib.lines import Kind, Lines, read
from bench_lib.machine import memory_bytes
from versus_lib import cells, contenders, limits, report
from versus_lib.arguments import positive
from versus_lib.measure import Run

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
KINDS = {"cell": Kind(("contender", "op", "bytes", "n"), less=("us", "us_mean")),
         "limits": Kind((), less=("line_us", "yield_us", "yield_one_us"))}
QUICK_SIZES = (8, 1 << 16, 1 << 20, 1 << 24)


def size(text):
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = number[-1:] if number[-1:] in "KMG" else ""
    try:
        value = int(float(number.removesuffix(unit)) * UNITS[unit])
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size (8, 1K, 64K, 1M, ...)") from None
    if value < 8:
        raise argparse.ArgumentTypeError("sizes start at 8 bytes")
    return value


def listed(convert, known=None):
    def split(text):
        items = [convert(item.strip()) for item in text.split(",") if item.strip()]
        for item in items:
            if known and item not in known:
                raise argparse.ArgumentTypeError(f"{item!r} is not one of {', '.join(known)}")
        return list(dict.fromkeys(items))
    return split


def picture(text):
    if importlib.util.find_spec("matplotlib") is None:     # said now, not after all that is measured first
        raise argparse.ArgumentTypeError("matplotlib is not there: pip install matplotlib")
    return text


def arguments(argv=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--setup", action="store_true", help="install the peers in build/peers and end")
    p.add_argument("--quick", action="store_true", help="4 sizes, 3 rounds, short timings")
    p.add_argument("--full", action="store_true", help="9 rounds, long timings, tuned settings")
    p.add_argument("-n", type=listed(positive(int)), default=[2, 4, 8], metavar="LIST", help="ranks (2,4,8)")
    p.add_argument("--ops", type=listed(str, cells.OPS), default=list(cells.OPS), metavar="LIST")
    p.add_argument("--sizes", type=listed(size), metavar="LIST", help="bytes (8,1K,64K,1M,16M,64M)")
    p.add_argument("--rounds", type=positive(int), metavar="N", help="rounds per n (5)")
    p.add_argument("--seconds", type=positive(float), metavar="S", help="per cell and contender (0.1)")
    p.add_argument("--peers", type=listed(str, contenders.MPIS), default=list(contenders.MPIS),
                   metavar="LIST", help=",".join(contenders.MPIS))
    p.add_argument("--torch", action="store_true", help="torch gloo too (1 GB to install)")
    p.add_argument("--tuned", action="store_true", help="everyone under other settings than the default too")
    p.add_argument("--bind", action="store_true", help="strata's dies on a CPU each, if there are enough")
    p.add_argument("--no-strata", action="store_true", help="the peers alone")
    p.add_argument("--no-limits", action="store_true", help="do not measure what the machine can do")
    p.add_argument("--mean", action="store_true", help="compare means of a timing's iterations, not medians")
    p.add_argument("--json", metavar="FILE", help="all records, one JSON object a line, as they come")
    p.add_argument("--plot", type=picture, metavar="FILE.png", help="a picture (needs matplotlib)")
    p.add_argument("--replay", metavar="FILE", help="tables and picture from a --json file; measures nothing")
    a = p.parse_args(argv)
    if a.quick and a.full:
        p.error("--quick and --full exclude each other")
    a.sizes = sorted(a.sizes or (QUICK_SIZES if a.quick else cells.SIZES))
    a.rounds = a.rounds or (3 if a.quick else 9 if a.full else 5)
    a.seconds = a.seconds or (0.04 if a.quick else 0.25 if a.full else 0.1)
    a.tuned |= a.full
    return a


def present(a):
    """(contenders that can run, [(name, why not)])."""
    libraries = ([] if a.no_strata else ["strata"]) + a.peers + (["gloo"] if a.torch else [])
    here, skipped = [], []
    for lib in libraries:
        found = contenders.roster([lib], a.tuned)
        for contender in found:
            contender.bind = a.bind
        why = found[0].why_not()
        if why:
            skipped.append((lib, why))
        else:
            here += found
    return here, skipped


def limited(meter, a, n):
    """What the machine can do, for cells of n ranks."""
    return meter.take(min(0.01, a.seconds / 5), limits.largest(a.ops, a.sizes, [n], memory_bytes("MemAvailable")))


def measure(a, log):
    """Run everything into `log`. Returns False if it was interrupted."""
    here, skipped = present(a)
    for name, why in skipped:
        print(f"{name} skipped: {why}")
    if not here:
        sys.exit("nothing to compare: no contender is installed")
    log.head("versus", KINDS, skipped=skipped,
             settings={c.name: {**c.env, **({"--bind": "yes"} if c.bind and c.library == "strata" else {})}
                       for c in here})
    meter = None if a.no_limits else limits.Meter()
    if meter and meter.why:
        print(f"limits of the machine skipped: {meter.why}")
    try:
        Run(here, a, log.keep, lambda text: print(text, file=sys.stderr, flush=True),
            None if a.no_limits or meter.why else partial(limited, meter, a)).take()
    except KeyboardInterrupt:
        print("interrupted: what follows is what was measured until then")
        return False
    finally:
        if meter:
            meter.close()
    return True


def show(records, a):
    """Print tables and summary. Returns (cells, names, peers, limits, whether every answer was right)."""
    taken = [r for r in records if r["record"] == "cell"]
    found = report.collect(taken, "us_mean" if a.mean else "us")
    names = report.contenders_of(taken)
    peers = [n for n in names if n not in report.ours(names)]
    known = limits.Limits.of(records)
    print(*report.machine_lines(records), sep="\n")
    for op in dict.fromkeys(r["op"] for r in taken):
        print("", *report.table(op, found, names, peers, known), sep="\n")
    stats = ("us_mean", "us") if a.mean else ("us", "us_mean")
    for stat in stats[: 2 if len(peers) < len(names) else 1]:
        figures = report.summary(report.collect(taken, stat), peers, known if stat == "us" else None)
        lines = report.summary_lines(figures, "medians" if stat == "us" else "means")
        print("", *(lines + report.above(found, known) if stat == stats[0] else lines[:4]), sep="\n")
    bad = [r for r in taken if r["wrong"]]
    for r in bad:
        print(f"WRONG ANSWER: {r['contender']}, n = {r['n']}, {r['op']} {r['bytes']} B: "
              f"{r['wrong']} elements")
    failures = [r for r in records if r["record"] == "failure"]
    for f in failures:
        print(f"FAILED: {f['contender']}, n = {f['n']}, {f['where']}: {f['error']}")
    return found, names, peers, known, not bad and not failures


def main(argv=None):
    a = arguments(argv)
    if a.setup:
        failed = contenders.setup(a.peers + (["gloo"] if a.torch else []))
        return f"not installed: {', '.join(failed)}" if failed else 0
    if a.replay:
        log, whole = Lines(), True
        log += read(a.replay)
    else:
        log = Lines(a.json)
        whole = measure(a, log)
    found, names, peers, known, right = show(log, a)
    if not a.replay:
        log.keep({"record": "summary", **report.summary(found, peers, known)})
    if a.plot:
        from versus_lib import plot
        title = report.machine_lines(log)[0]
        plot.draw(a.plot, found, names, peers,
                  f"{title}\nfloat32, {'mean' if a.mean else 'median'} of calls back to back")
        print(f"picture: {a.plot}")
    return 130 if not whole else 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
