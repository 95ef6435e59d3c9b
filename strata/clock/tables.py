"""What the clocks of a job's dies have counted, as a table, as JSON, and as a trace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from strata.config import Config
from strata.errors import writing

__all__ = ["checked", "finish", "summary", "table", "trace"]

MOST = 16  # dies of which the table has a line each
COLUMNS = (("time_us", "time"), ("compute_us", "compute"), ("advance_us", "advance"), ("exposed_us", "exposed"),
           ("overlapped_us", "overlapped"))  # fmt: skip


def checked(report: Any, dies: int) -> dict[str, Any]:
    """A report as a die of a job of so many dies sends it; ValueError, or another one, if it is none."""
    rank, names = report["rank"], ("time_us", "compute_us", "advance_us", "exposed_us", "overlapped_us")
    if type(rank) is not int or not 0 <= rank < dies or report["dies"] != dies:
        raise ValueError(f"no rank of {dies} dies: {rank!r}")
    values = [report[name] for name in names]
    for row in report["operations"].values():
        values += [row[name] for name in ("calls", "bytes", "time_us", "exposed_us")]
    values += [report["failed"], report["dropped_events"]]
    for track, name, *numbers in report.get("events", ()):
        if type(track) is not str or not track.split() or type(name) is not str or len(numbers) != 3:
            raise ValueError("no event")
        values += numbers
    if not all(type(v) in (int, float) and 0 <= v < 1e300 for v in values):
        raise ValueError("no numbers")
    if type(report["machine"]) is not str or type(report["title"]) is not str:
        raise ValueError("no machine")
    return dict(report)


def finish(reports: Sequence[dict[str, Any]], options: Config, file: TextIO) -> None:
    """Prints the table, and writes the files that options ask for.  OSError: a file cannot be written."""
    reports = sorted(reports, key=lambda r: int(r["rank"]))
    file.write(table(reports))
    file.flush()
    if options.clock_json:
        with writing(options.clock_json), open(options.clock_json, "w", encoding="utf-8") as out:
            json.dump(summary(reports), out, indent=1)
            out.write("\n")
    if options.clock_trace:
        with writing(options.clock_trace), open(options.clock_trace, "w", encoding="utf-8") as out:
            out.writelines(trace(reports))


def summary(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the job: machine, dies, time_us and rank of the slowest, missing ranks, and each die's report."""
    slowest = max(reports, key=lambda r: (r["time_us"], -r["rank"]))
    dies = reports[0]["dies"]
    there = {r["rank"] for r in reports}
    own = [{k: v for k, v in r.items() if k not in ("machine", "title", "dies", "events")} for r in reports]
    return {
        "machine": reports[0]["machine"], "title": reports[0]["title"], "dies": dies, "time_us": slowest["time_us"],
        "slowest": slowest["rank"], "missing": [r for r in range(dies) if r not in there], "ranks": own,
    }  # fmt: skip


def table(reports: Sequence[dict[str, Any]]) -> str:
    """For people: a line for each die (of many: the slowest ones), and one for each operation, all dies together."""
    whole = summary(reports)
    lines = [f"strata clock: {whole['dies']} dies of {whole['machine']} ({whole['title']}), predicted microseconds"]
    lines.append("  die  " + "".join(f"{name:>14}" for _, name in COLUMNS))
    shown = sorted(reports, key=lambda r: (-r["time_us"], r["rank"]))[:MOST]
    for report in sorted(shown, key=lambda r: int(r["rank"])):
        lines.append(f"{report['rank']:>5}  " + "".join(f"{report[key]:>14.3f}" for key, _ in COLUMNS))
    if len(reports) > MOST:
        lines.append(f"  the {MOST} slowest of {len(reports)}")
    lines.append(f"  slowest: die {whole['slowest']}, {whole['time_us']:.3f} us")
    kinds: dict[str, list[float]] = {}
    for report in reports:
        for name, row in report["operations"].items():
            sums = kinds.setdefault(name, [0, 0, 0.0, 0.0])
            for k, key in enumerate(("calls", "bytes", "time_us", "exposed_us")):
                sums[k] += row[key]
    if kinds:
        width = max(len("operation"), *map(len, kinds))
        lines.append(f"  {'operation':<{width}}{'calls':>9}{'bytes':>16}{'time':>14}{'exposed':>14}   (all dies)")
        for name, (calls, nbytes, time, exposed) in sorted(kinds.items()):
            lines.append(f"  {name:<{width}}{int(calls):>9}{int(nbytes):>16}{time:>14.3f}{exposed:>14.3f}")
    failed = sum(r["failed"] for r in reports)
    if failed:
        lines.append(f"  {failed} operations failed, and took no time")
    if whole["missing"]:
        lines.append(f"  no report from die {', '.join(map(str, whole['missing'][:8]))}"
                     + (f" and {len(whole['missing']) - 8} more" if len(whole["missing"]) > 8 else ""))  # fmt: skip
    return "\n".join(lines) + "\n"


def trace(reports: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Pieces of a Chrome trace (Perfetto, chrome://tracing): a die is a process; its host, streams, groups, messages
    and graphs are threads, several where events overlap.  ``ts`` and ``dur`` in microseconds."""
    yield '{"traceEvents": [\n'
    first = True
    for report in reports:
        for row in _rows(report):
            yield ("" if first else ",\n") + json.dumps(row)
            first = False
    dropped = {r["rank"]: r["dropped_events"] for r in reports if r["dropped_events"]}
    yield '\n], "otherData": ' + json.dumps({"machine": reports[0]["machine"], "dropped_events": dropped}) + "}\n"


def _rows(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    pid, tids = report["rank"], {("host", 0): 0}
    free: dict[str, list[int]] = {}  # by track: when each of its threads is free again
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"die {pid}"}}
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": 0, "args": {"name": "host"}}
    for track, name, begin, ps, nbytes in report.get("events", ()):
        ends = free.setdefault(track, [])
        row = next((k for k, end in enumerate(ends) if end <= begin), len(ends))
        ends[row:row + 1] = [begin + ps]
        tid = tids.setdefault((track, row), len(tids))
        if tid == len(tids) - 1 and tid:
            label = track if row == 0 else f"{track} ({row + 1})"
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": label}}
        yield {"ph": "X", "name": name, "cat": track.split()[0], "pid": pid, "tid": tid, "ts": begin / 1e6,
               "dur": ps / 1e6, **({"args": {"bytes": nbytes}} if nbytes else {})}  # fmt: skip
