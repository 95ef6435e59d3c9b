"""The one form of the benchmarks' JSON lines.

The first line is a record "machine": what the figures were taken on, which benchmark took them, and of each other
kind of record the fields that say what was measured (``key``) and the figures, of which less or more is better.
So a file says by itself how it is to be read; bench/compare.py reads any. A figure's rounds are records of the same
key, or a list beside it (``us``, ``us_rounds``). Files of several runs may be put one after the other.
"""

import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

from bench_lib.machine import machine

ROUNDS = "_rounds"


class Kind(NamedTuple):
    """Of one kind of record: the fields that tell what was measured, and the figures."""

    key: tuple
    less: tuple = ()    # less is better: times
    more: tuple = ()    # more is better: rates


class Lines(list):
    """All records. With a file ("-": standard output), each is there as soon as it is known, whatever happens later."""

    def __init__(self, path=None):
        super().__init__()
        # Held for the whole run.
        self.file = sys.stdout if str(path) == "-" else open(path, "w") if path else None

    def head(self, bench, kinds, **more):
        """The first record. ``kinds``: {name of a record: Kind}; ``more``: what this benchmark adds."""
        self.keep({"record": "machine", "bench": bench, "kinds": {name: k._asdict() for name, k in kinds.items()},
                   **machine(), "arguments": sys.argv[1:], "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **more})

    def keep(self, record):
        self.append(record)
        if self.file:
            print(json.dumps(record), file=self.file, flush=True)


def write(path, bench, kinds, rows):
    """A whole file at once, if there is a ``path``; rows that do not say what they are are of the only kind."""
    if path:
        lines = Lines(path)
        lines.head(bench, kinds)
        for row in rows:
            lines.keep({"record": next(iter(kinds)), **row} if len(kinds) == 1 else row)
        if lines.file is not sys.stdout:
            lines.file.close()


def read(path):
    """All records of a file. ValueError, with the line's number, for what is not one."""
    records = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            record = None
        if not isinstance(record, dict) or "record" not in record:
            raise ValueError(f"{path}, line {number}: no record of a benchmark (bench/*.py --json writes them)")
        records.append(record)
    return records


def series(records, path="the file"):
    """{(bench, kind, key, figure): (whether less is better, values)}; key is a tuple of (field, value)."""
    found, kinds, bench = {}, None, None
    for record in records:
        if record["record"] == "machine":
            if "kinds" not in record:
                raise ValueError(f"{path} does not say what its figures are: an older benchmark wrote it. "
                                 "Measure again with the one that is here")
            kinds, bench = record["kinds"], record["bench"]
            continue
        if kinds is None:
            raise ValueError(f'{path} does not begin with a record "machine"')
        kind = kinds.get(record["record"])
        if kind is None or record.get("wrong"):     # a failure, a summary; an answer that was wrong is no figure
            continue
        key = tuple((name, record[name]) for name in kind["key"])
        for less, names in ((True, kind["less"]), (False, kind["more"])):
            for name in names:
                if record.get(name) is not None:
                    values = found.setdefault((bench, record["record"], key, name), (less, []))[1]
                    values += record.get(name + ROUNDS) or [record[name]]
    return found
