#!/usr/bin/env python3
"""How close does each operation come to what this machine permits, and to the best peer? A page and pictures of a run.

    bench/versus.py --full --json versus.jsonl
    bench/roofline.py versus.jsonl --page docs/performance.md --svg docs/performance

Measures nothing: the page is made of the records of bench/versus.py, prose of roofline_lib/page.md, and what
is known about cells that miss their goal of roofline_lib/reasons.toml. Without --page it prints what it would write.
--svg takes the beginning of the pictures' names: NAME-overview.svg, NAME-n2.svg, ...
"""

import argparse
import os
import shlex
import sys
from pathlib import Path

from bench_lib.lines import read
from roofline_lib import page, pictures
from versus_lib import report
from versus_lib.limits import Limits


def arguments(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("file", metavar="FILE.jsonl", help="of bench/versus.py --json")
    p.add_argument("--page", type=Path, metavar="FILE.md")
    p.add_argument("--svg", type=Path, metavar="NAME", help="beginning of the pictures' names (needs matplotlib)")
    p.add_argument("--png", action="store_true", help="pictures as PNG, to look at")
    p.add_argument("--reasons", type=Path, default=page.REASONS, metavar="FILE.toml")
    return p.parse_args(argv)


def draw(a, found, names, peers, known):
    """(lines for the overview, lines for the other pictures); each links to its file from where the page is."""
    if not a.svg:
        return ["(no picture was asked for)"], ["(no pictures were asked for)"]
    ending = "png" if a.png else "svg"

    def link(name, text, drawn):
        return [f"![{text}]({os.path.relpath(name, a.page.parent if a.page else '.')})", ""] if drawn else []

    name = Path(f"{a.svg}-overview.{ending}")
    first = link(name, "ratio to the best peer and part of the limit, every cell",
                 pictures.overview(name, found, names, peers, known))
    rest = []
    for n in dict.fromkeys(c.n for c in found.values()):
        name = Path(f"{a.svg}-n{n}.{ending}")
        rest += link(name, f"time over size, n = {n}", pictures.times(name, found, n, names, known))
    return first or ["(one contender alone: nothing to compare)"], rest or ["(no sizes to draw)"]


def commands(a, head):
    """How this run was taken, as it says itself."""
    taken = shlex.join(head["arguments"]) if "arguments" in head else "--json versus.jsonl"
    page_name, svg = a.page or "docs/performance.md", a.svg or "docs/performance"
    return ["    bench/versus.py --setup", f"    bench/versus.py {taken}",
            f"    bench/roofline.py {a.file} --page {page_name} --svg {svg}"]


def main(argv=None):
    a = arguments(argv)
    try:
        records, entries = read(a.file), page.reasons(a.reasons)
    except (OSError, ValueError) as error:
        print(f"roofline: {error}", file=sys.stderr)
        return 2
    cells = [r for r in records if r["record"] == "cell"]
    head = next((r for r in records if r["record"] == "machine"), None)
    if not cells or head is None:
        print(f"roofline: {a.file} holds no cells of bench/versus.py", file=sys.stderr)
        return 2
    found, names, known = report.collect(cells), report.contenders_of(cells), Limits.of(records)
    peers = [name for name in names if name not in report.ours(names)]
    overview, times = draw(a, found, names, peers, known)
    lost, stale = page.lost(found, peers, known, entries)
    tables = []
    for op in dict.fromkeys(c.op for c in found.values()):
        tables += [f"### {op}", "", *page.table(op, found, peers, known), ""]
    info = report.machine_lines(records)
    summary = report.summary_lines(report.summary(found, peers, known), "medians")
    rounds = len({r["round"] for r in cells})
    text = page.fill(page.TEXT.read_text(), {
        "machine": [f"Taken on {info[0]}; {rounds} rounds, float32, medians.", "",
                    *(f"*{line[1:]}" for line in info[1:])],
        "summary": [*(f"    {line}" for line in summary[:4]), "", *report.above(found, known)],
        "overview": overview, "pictures": times, "lost": lost, "tables": tables, "commands": commands(a, head),
        "limits": page.machine_limits(known)})
    if a.page:
        a.page.write_text(text)
    else:
        print(text, end="")
    for entry in stale:
        print(f"roofline: this reason is about no cell that misses its goal: {entry['op']}, {entry['text']}",
              file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
