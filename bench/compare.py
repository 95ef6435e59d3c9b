#!/usr/bin/env python3
"""What has become faster or slower from one file of a benchmark's JSON lines to another, beyond the noise?

    bench/compare.py old.jsonl new.jsonl                       # of any benchmark that writes --json
    bench/compare.py old.jsonl new.jsonl --only contender=strata --fail-above 5
    cat a1.jsonl a2.jsonl a3.jsonl > old.jsonl                 # runs of one commit, taken by turns with the other's

Records of one key (what was measured) are its rounds. The factor is new / old, for rates old / new: above 1 is
worse. Its interval comes of the rounds of both files; a change is beyond the noise if 1 is outside. What the
interval cannot know, and how a regression is looked for: bench/README.md.
"""

import argparse
import json
import statistics
import sys
from typing import NamedTuple

from bench_lib.lines import read, series
from bench_lib.noise import geometric_mean, interval


class Change(NamedTuple):
    """One figure in both files."""

    bench: str
    kind: str
    key: dict
    figure: str
    old: float          # medians
    new: float
    rounds: tuple
    factor: float       # above 1: worse
    low: float | None   # None: too few rounds to know the noise
    high: float | None
    verdict: str        # worse, better, same, unknown


def change(name, less, old, new, confidence):
    """The Change of one figure; None if a value is 0 or less, which has no ratio."""
    if min(*old, *new) <= 0:
        return None
    factor, span, _ = interval(old, new, confidence) if less else interval(new, old, confidence)
    if span is None:
        verdict = "unknown" if factor != 1 else "same"
    else:
        verdict = "worse" if span[0] > 1 else "better" if span[1] < 1 else "same"
    bench, kind, key, figure = name
    medians, rounds = (statistics.median(old), statistics.median(new)), (len(old), len(new))
    return Change(bench, kind, dict(key), figure, *medians, rounds, factor, *(span or (None, None)), verdict)


def wanted(key, only):
    """Whether a key has one of the values asked for, in each field."""
    return all(str(key.get(field)) in values for field, values in only.items())


def compare(old, new, confidence=0.95, only=None):
    """(Changes, names in one file alone, names without a ratio) of two results of ``series``."""
    changes, without = [], []
    keep = {name for name in (*old, *new) if wanted(dict(name[2]), only or {})}
    for name, (less, values) in old.items():
        if name in new and name in keep:
            found = change(name, less, values, new[name][1], confidence)
            (changes if found else without).append(found or name)
    alone = [("old", n) for n in old if n in keep and n not in new] + \
        [("new", n) for n in new if n in keep and n not in old]
    return changes, alone, without


def label(change):
    return " ".join(str(v) if isinstance(v, str) else f"{k}={v}" for k, v in change.key.items())


def number(value):
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.0f}"


def table(changes):
    """Lines: worst first among those beyond the noise, then the rest as they came."""
    order = {"worse": 0, "better": 1, "unknown": 2, "same": 3}
    rows = [("what", "figure", "old", "new", "rounds", "factor", "interval", "")]
    for c in sorted(changes, key=lambda c: (order[c.verdict], -c.factor if c.verdict == "worse" else 0)):
        span = f"{c.low:.3f} .. {c.high:.3f}" if c.low is not None else "-"
        rows.append((label(c), c.figure, number(c.old), number(c.new), f"{c.rounds[0]}, {c.rounds[1]}",
                     f"{c.factor:.3f}", span, {"same": "", "unknown": "noise unknown"}.get(c.verdict, c.verdict)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{w}}" if i in (0, 1, 7) else f"{cell:>{w}}"
                      for i, (cell, w) in enumerate(zip(row, widths, strict=True))).rstrip() for row in rows]


def summary(changes, confidence, by):
    """Lines: counts, what chance alone would do, the mean factor of each value of field ``by``."""
    count = {v: sum(c.verdict == v for c in changes) for v in ("worse", "better", "same", "unknown")}
    lines = [f"{len(changes)} figures: {count['worse']} worse, {count['better']} better beyond the noise, "
             f"{count['same']} not, of {count['unknown']} the noise is unknown (too few rounds)"]
    known = sum(c.low is not None for c in changes)
    if known:
        lines.append(f"if nothing had changed, some {(1 - confidence) * known:.1f} of {known} would be called "
                     f"changed, at a confidence of {confidence:g}")
    groups = {}
    for c in changes:
        groups.setdefault((c.bench, c.figure, str(c.key.get(by, "all"))), []).append(c.factor)
    lines += [f"  {bench}, {figure}, {value}: mean factor {geometric_mean(factors):.3f} of {len(factors)}"
              for (bench, figure, value), factors in groups.items()]
    return lines


def failing(changes, percent):
    """Changes for the worse above ``percent``, beyond the noise or of unknown noise."""
    return [c for c in changes if c.factor > 1 + percent / 100 and c.verdict in ("worse", "unknown")]


def field(text):
    name, found, values = text.partition("=")
    if not found or not name or not values:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIELD=VALUE[,VALUE]")
    return name, values.split(",")


def arguments(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("old", metavar="OLD.jsonl")
    p.add_argument("new", metavar="NEW.jsonl")
    p.add_argument("--only", type=field, action="append", default=[], metavar="FIELD=VALUE[,VALUE]",
                   help="records with these values alone, for instance contender=strata or n=2,4")
    p.add_argument("--by", default="contender", metavar="FIELD", help="mean factors for each value of it (contender)")
    p.add_argument("--confidence", type=float, default=0.95, help="of each interval (0.95)")
    p.add_argument("--fail-above", type=float, metavar="PERCENT",
                   help="status 1 if a figure is worse by more, beyond the noise or with its noise unknown")
    p.add_argument("--changed", action="store_true", help="leave out of the table what has not changed")
    p.add_argument("--json", action="store_true", help="one JSON object a figure in place of the table")
    a = p.parse_args(argv)
    if not 0.5 <= a.confidence < 1:
        p.error("--confidence is 0.5 or more and below 1")
    if a.fail_above is not None and a.fail_above < 0:
        p.error("--fail-above is 0 or more")
    return a


def main(argv=None):
    a = arguments(argv)
    try:
        files = [read(path) for path in (a.old, a.new)]
        old, new = (series(records, path) for records, path in zip(files, (a.old, a.new), strict=True))
    except (OSError, ValueError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    changes, alone, without = compare(old, new, a.confidence, dict(a.only))
    if not changes:
        print("compare: the files have no figure in common" + (" that --only asks for" if a.only else ""),
              file=sys.stderr)
        return 2
    if a.json:
        for c in changes:
            print(json.dumps(c._asdict()))
    else:
        hosts = [{(r["commit"], r["cpu"], r["cores"]) for r in records if r["record"] == "machine"}
                 for records in files]
        for name, found in zip(("old", "new"), hosts, strict=True):
            print(f"{name}: " + "; ".join(f"commit {c}, {cores} cores of {cpu}" for c, cpu, cores in sorted(found)))
        if {h[1:] for h in hosts[0]} != {h[1:] for h in hosts[1]}:
            print("These are different machines: factors compare them too.")
        shown = [c for c in changes if not a.changed or c.verdict != "same"]
        print("", *table(shown), "", *summary(changes, a.confidence, a.by), sep="\n")
        for where, count in ((w, sum(x == w for x, _ in alone)) for w in ("old", "new")):
            if count:
                print(f"{count} figures are in the {where} file alone")
        if without:
            print(f"{len(without)} figures are 0 in a round and have no factor")
    worse = failing(changes, a.fail_above) if a.fail_above is not None else []
    for c in worse:
        print(f"FAILED: {label(c)}, {c.figure}: worse by {100 * (c.factor - 1):.1f} %, above {a.fail_above:g} %",
              file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
