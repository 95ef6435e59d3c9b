#!/usr/bin/env python3
"""The same faults done to strata, to the MPIs and to torch's gloo: who notices, how soon, and what is left.

    bench/faults.py --setup --home ~/peers        # once: one environment per peer, outside the repository
    bench/faults.py --home ~/peers --json faults.jsonl

Faults: a rank is killed in all_reduce; one is stopped for 2.5 s; one gives other counts; one calls another
operation; all are killed at once.  Contenders take turns in each round.  As root, the jobs have a /dev/shm of their
own, so that what is left in it is theirs.  How to read it: bench/README.md.
"""

import argparse
import ctypes
import sys
from pathlib import Path

from bench_lib.lines import Kind, Lines, read
from faults_lib import measure, report
from faults_lib.jobs import EXTRA, NotStarted, library
from versus_lib import contenders
from versus_lib.arguments import positive

CONTENDERS = ("strata", *contenders.MPIS, "gloo", *EXTRA)
SIZES = {"kill": (8, 1 << 20), "stop": (8,), "counts": (8, 1 << 16, 1 << 22), "operations": (8, 1 << 16),
         "left": (1 << 20,)}
KINDS = {"fault": Kind(("contender", "n", "fault", "bytes"), less=("ended_ms",))}
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000


def listed(known):
    def split(text):
        items = [item.strip() for item in text.split(",") if item.strip()]
        for item in items:
            if item not in known:
                raise argparse.ArgumentTypeError(f"{item!r} is not one of {', '.join(known)}")
        return list(dict.fromkeys(items))
    return split


def arguments(argv=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--setup", action="store_true", help="install the peers and end")
    p.add_argument("--home", metavar="DIR", type=Path, help="where the peers' environments are (build/peers)")
    p.add_argument("--contenders", type=listed(CONTENDERS), default=list(CONTENDERS), metavar="LIST",
                   help=",".join(CONTENDERS))
    p.add_argument("--faults", type=listed(report.ORDER), default=list(report.ORDER), metavar="LIST",
                   help=",".join(report.ORDER))
    p.add_argument("-n", type=positive(int), default=4, help="ranks, 2 or more (4)")
    p.add_argument("--rounds", type=positive(int), default=3, metavar="N", help="(3)")
    p.add_argument("--limit", type=positive(float), default=10.0, metavar="S", help="what takes longer is a hang (10)")
    p.add_argument("--json", metavar="FILE", help="all records, one JSON object a line, as they come")
    p.add_argument("--replay", metavar="FILE", help="tables from a --json file; measures nothing")
    a = p.parse_args(argv)
    if a.n < 2:
        p.error("-n is 2 or more: faults are about other ranks")
    return a


def own_shm():
    """A /dev/shm of this process and its children alone; whether that was possible."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        return False
    return libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0 and \
        libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=4g") == 0


def present(wanted):
    """(contenders that can run, [(name, why not)])."""
    here, skipped = [], []
    for name in wanted:
        why = contenders.Contender(library(name)).why_not()
        if why:
            skipped.append((name, why.replace("versus.py", "faults.py")))
        else:
            here.append(name)
    return here, skipped


def take(a, here, keep, tell):
    """All records; contenders take turns, in an order that rotates."""
    for round_ in range(a.rounds):
        for fault in a.faults:
            for nbytes in SIZES[fault]:
                k = round_ % len(here)
                for name in here[k:] + here[:k]:
                    tell(f"round {round_ + 1}/{a.rounds}: {fault} {report.size_name(nbytes)}, {name}")
                    try:
                        keep(measure.measure(name, a.n, fault, nbytes, a.limit))
                    except NotStarted as error:
                        keep({"record": "failure", "contender": name, "fault": fault, "bytes": nbytes,
                              "error": str(error)})


def main(argv=None):
    a = arguments(argv)
    if a.home:
        contenders.PEERS = a.home.resolve()
    if a.setup:
        failed = contenders.setup([name for name in a.contenders if name in contenders.PACKAGES])
        return f"not installed: {', '.join(failed)}" if failed else 0
    if a.replay:
        records = read(a.replay)
    else:
        records = Lines(a.json)
        here, skipped = present(a.contenders)
        if not here:
            sys.exit("nothing to measure: no contender is installed")
        records.head("faults", KINDS, n=a.n, rounds=a.rounds, limit=a.limit, skipped=skipped, own_shm=own_shm())
        try:
            take(a, here, records.keep, lambda text: print(text, file=sys.stderr, flush=True))
        except KeyboardInterrupt:
            print("interrupted: what follows is what was measured until then")
    info = next(r for r in records if r["record"] == "machine")
    print(f"{info['n']} ranks on {info['cores']} cores of {info['cpu']}, Linux {info['kernel']}, "
          f"{info['rounds']} rounds, a hang is {info['limit']:g} s without an end; " +
          ("a /dev/shm of their own" if info["own_shm"] else "the host's /dev/shm: others' files may be counted"))
    for name, why in info["skipped"]:
        print(f"{name} skipped: {why}")
    print(*report.tables(records), sep="\n")
    failures = [r for r in records if r["record"] == "failure"]
    for f in failures:
        print(f"FAILED: {f['contender']}, {f['fault']} {report.size_name(f['bytes'])}: {f['error']}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
