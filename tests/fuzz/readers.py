"""All that reads files, or what others send, by name; and valid ones of each, which loaders.py changes."""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import checking_play
import msccl_files
import mscclpp_files
import numpy as np
import spaces

from strata import config, machine, staging, workloads
from strata._core.inspector import Inspector
from strata.checking import analyser, events
from strata.clock import tables
from strata.inspection import saving, snapshot, text
from strata.machine import astra
from strata.plan import archive, build, files
from strata.plan.interchange import msccl_xml, mscclpp_json
from strata.plan.moe import routing
from strata.plan.spec import Spec, normal
from strata.plan.table import Table

SPACE = spaces.Space()


def _plans() -> list[bytes]:
    found = []
    for operation, algorithm in (("all_reduce", "ring"), ("all_gather", "full_mesh"), ("broadcast", "full_mesh")):
        spec = normal(Spec(operation, 64, 4, 12, 1 if operation == "all_reduce" else 0, 0, 4, "zero_copy", None, False))
        plan = build(spec, 1, algorithm=algorithm)
        for form in ("json", "npz"):
            out = io.BytesIO()
            files.save(plan, out, form)
            found.append(out.getvalue())
    return found


def _table() -> list[bytes]:
    rows = [{"operation": "all_reduce", "ranks": 4, "bytes": 1024, "us": {"ring": 3.5, "full_mesh": 2}}] * 3
    return [json.dumps({"version": 1, "name": "x", "rows": rows}).encode()]


def _routing() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace")
        routing.zipf(2, [3, 4], 2, 8, 1.2, 1, 2).save(file)
        return [file.read_bytes()]


def _dumps() -> list[bytes]:
    seen = snapshot.take(Inspector(SPACE.job.fd), "x.py", 1)
    return [json.dumps({**seen, "why": "rank 1 has died"}).encode()]


def _reports() -> list[bytes]:
    row = {"calls": 3, "bytes": 96, "time_us": 2.5, "exposed_us": 1}
    one = dict.fromkeys(("time_us", "compute_us", "advance_us", "exposed_us", "operations_us", "overlapped_us"), 2.5)
    seen = [["host", "work", 0, 10, 0], ["world", "all_reduce", 5, 10, 64]]
    one |= {"failed": 1, "operations": {"wait": row, "all_reduce": row}, "dropped_events": 2, "machine": "cm384",
            "title": "x", "dies": 3, "events": seen}  # fmt: skip
    return [json.dumps([{**one, "rank": rank} for rank in range(3)]).encode()]


def _report(data: bytes) -> str:
    """As the launcher has them: those that are none are dropped."""
    shown, taken = io.StringIO(), []
    try:
        for report in json.loads(data):
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
                taken.append(tables.checked(report, 3))
    except (ValueError, TypeError, RecursionError):
        pass
    if taken:
        tables.finish(taken, config.Config(), shown)
        shown.writelines(tables.trace(taken))
    return shown.getvalue()


def _events() -> list[bytes]:
    site = {"e": "site", "id": 1, "file": "a.py", "line": 3, "function": "f", "text": "x", "stack": []}
    more = [{"e": "hello", "job": "ab", "rank": 1, "size": 4, "pid": 9}, site, {"e": "end"}, {"e": "done", "t": 1},
            {"e": "fork", "t": 1, "c": 2}, {"e": "take", "t": 1, "key": "k", "value": 2},
            {"e": "alloc", "t": 1, "lo": 64, "hi": 72, "site": 1}, {"e": "leak", "kind": "array"},
            {"e": "op", "t": 1, "group": "g", "n": 1, "op": "send", "members": [0, 1], "reads": [[0, 8]], "site": 1,
             "ts": 0.5}]  # fmt: skip
    return [json.dumps(event).encode() for event in more]


def _event(data: bytes) -> Any:
    try:
        return events.parse(data)
    except events.BadEvent as error:
        return error


def _trails() -> list[bytes]:
    p = checking_play.Program(2)
    p.barrier()
    p.write(0, 0, 64)
    p.write(1, 0, 8, n=10, step=16)
    p.read(1, 32, 48)
    p.barrier()
    p.read(0, 0, 8)
    p.end()
    hello = [[rank, {"e": "hello", "job": "x", "rank": rank, "size": 2}] for rank in range(2)]
    said = [*hello, *([rank, json.loads(line)] for rank, line in p.order(0))]
    assert "race" in _trail(json.dumps(said).encode())
    return [json.dumps(said).encode()]


def _trail(data: bytes) -> str:
    """What dies say, one event after another, as the server has it."""
    job, dies = analyser.Job("x"), {}
    try:
        said = [(rank % 2, json.dumps(event).encode()) for rank, event in json.loads(data)]
    except (ValueError, TypeError, RecursionError):
        return ""
    for rank, line in said:
        with contextlib.suppress(events.BadEvent):
            event = events.parse(line)
            if isinstance(event, events.Hello):
                dies[rank] = job.join(event)
            elif rank in dies:
                job.feed(dies[rank], event, 1.0)
    for die in dies.values():
        job.leave(die)
    return "".join(report.text() for report in job.reports) or "nothing"


def _shapes() -> list[bytes]:
    made = []
    for a in (np.zeros((3, 4), np.float32), np.zeros(2, [("x", "<i4"), ("y", "<f8", (2,))]), np.zeros(())):
        record = np.zeros(staging.HEADER, np.int64)
        staging.write_header(record, a)
        made.append(record.tobytes())
    return made


def _shape(data: bytes) -> Any:
    return staging.read_header(np.frombuffer(data.ljust(8 * staging.HEADER, b"\0")[: 8 * staging.HEADER], np.int64))


def _matrices() -> list[bytes]:
    made = []
    for a in (np.ones((3, 3), np.int64), np.arange(5, dtype=np.int32)):
        out = io.BytesIO()
        np.save(out, a)
        made.append(out.getvalue())
    return made


def _show(name: str) -> str:
    shown = text.whole(saving.load(name))
    assert all(line.isprintable() for line in shown.split("\n")), "a terminal would obey what is shown"
    return shown


NETWORK = (b"topology: [ FullyConnected, Switch ]\nnpus_count: [ 4, 8 ]\n"
           b"bandwidth: [ 50.0, 25.0 ]\nlatency: [ 500.0, 700.0 ]\n")  # fmt: skip


def _toml(package: Any, name: str) -> list[bytes]:
    folder = Path(package.__file__).parent
    return [path.read_bytes() for path in sorted(folder.glob(name))]


def _from_file(load: Callable[[str], Any], suffix: str) -> Callable[[bytes], Any]:
    """A loader of bytes, of one that takes a file's name."""

    def run(data: bytes) -> Any:
        with tempfile.NamedTemporaryFile(suffix=suffix) as file:
            file.write(data)
            file.flush()
            return load(file.name)

    return run


def loaders() -> dict[str, tuple[Callable[[bytes], Any], list[bytes]]]:
    """By name: what reads bytes, and valid ones."""
    from strata.workloads import workload

    return {
        "plan": (lambda data: files.load_all(io.BytesIO(data)), _plans()),
        "msccl": (msccl_xml.parse, [make(sizes[1]) for make, sizes in msccl_files.ALL.values()]),
        "mscclpp": (mscclpp_json.parse, [make(3) for make in mscclpp_files.MAKERS]),
        "machine": (_from_file(machine.load, ".toml"), _toml(machine, "*.toml")),
        "workload": (_from_file(workload.load, ".toml"), _toml(workloads, "d*.toml") + _toml(workloads, "b*.toml")),
        "table": (_from_file(Table.load, ".json"), _table()),
        "routing": (_from_file(routing.load, ".npz"), _routing()),
        "dump": (_from_file(_show, ".json"), _dumps()),
        "space": (SPACE.look, [spaces.pokes(random.Random(k), b"") for k in range(3)]),
        "report": (_report, _reports()),
        "event": (_event, _events()),
        "trail": (_trail, _trails()),
        "shape": (_shape, _shapes()),
        "matrix": (_from_file(archive.integers, ".npy"), _matrices()),
        "numbers": (_from_file(archive.integers, ".txt"), [b"1 2 3\n4 5 6\n7 8 9\n"]),
        "astra": (_from_file(astra.read, ".yml"), [NETWORK]),
    }
