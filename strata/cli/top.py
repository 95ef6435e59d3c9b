"""strata top: what each die of a job does now, and who waits for whom."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

from strata.errors import StrataError
from strata.inspection import finding, snapshot, text

EXAMPLES = """\
Works on jobs that hang and on dies that are stopped, from any terminal of the same user: all of it is read from the
job's shared memory, read-only.  Columns: HBM, used of what there is; cached, mapped and free; lag, records of peers'
logs not followed yet; rings, descriptors that wait in DMA rings; late, times that an operation had to map pages itself.
"""


def _seconds(word: str) -> float:
    value = float(word)
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError("0.05 to 3600 seconds expected")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "strata top", description="Shows what the dies of a running job do.", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    add = parser.add_argument
    add("job", nargs="?", metavar="JOB", help="pid of its launcher or of any die, its script's name, or its token's "
        "first letters; may be left out if there is one job")  # fmt: skip
    add("--json", action="store_true", help="as JSON, one object a look and line")
    add("--once", action="store_true", help="one look (the default if the output is no terminal); rates need two")
    add("--trace", nargs="+", metavar="start|stop|dump FILE", help="trace the job from now on (start; the newest "
        "events stay, with start stop the oldest), no longer (stop), or save what it has traced (dump)")  # fmt: skip
    add("--interval", type=_seconds, metavar="S", help="seconds between looks (2); not with --once")
    return parser


def main(arguments: list[str]) -> int:
    """Exit status 0; 1 after a look that found a deadlock or dead dies; errors are raised."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.once and args.interval is not None:
        parser.error("--once looks once: no --interval beside it")
    if args.trace:
        if args.json or args.once or args.interval is not None:
            parser.error("--trace does that alone: no --json, --once or --interval beside it")
        return _trace(finding.choose(finding.find(), args.job), args.trace, parser)
    once = args.once or args.interval is None and not sys.stdout.isatty()
    jobs = finding.find()
    if args.job is None and len(jobs) > 1 and not args.json:
        print(f"{len(jobs)} jobs; name one to see more:\n" + "\n".join(f"  {job.text()}" for job in jobs))
        return 0
    return _watch(finding.choose(jobs, args.job), args, once)


def _watch(job: finding.Job, args: argparse.Namespace, once: bool) -> int:
    before: dict[str, Any] | None = None
    with held(job) as space:
        while True:
            space.window()
            now = snapshot.take(space, job.name, job.launcher, records=1)
            _show(now, before, args, once)
            over = all(die["state"] in ("left", "dead") for die in now["dies"])
            if once or over:
                return int(bool(now["deadlocks"]) or any(die["state"] == "dead" for die in now["dies"]))
            before = now
            sys.stdout.flush()
            try:
                time.sleep(args.interval or 2.0)
            except KeyboardInterrupt:
                return 0


def _trace(job: finding.Job, words: list[str], parser: argparse.ArgumentParser) -> int:
    """Switches tracing of all dies, or saves what they have traced."""
    from strata._core import tracemode
    from strata.profile import recording

    modes = {("start",): tracemode.RING, ("start", "ring"): tracemode.RING, ("start", "stop"): tracemode.STOP,
             ("stop",): tracemode.OFF}  # fmt: skip
    what = modes.get(tuple(words))
    if what is not None:
        with finding.writable(job) as space:
            if what != tracemode.OFF and not any(tracemode.mode(space, rank) for rank in range(job.ndies)):
                tracemode.clear(space)
            tracemode.set_mode(space, what)
        print(f"{job.text()}: " + ("traced from now on" if what else "no longer traced"))
        return 0
    if words[0] != "dump" or len(words) != 2:
        parser.error(f"--trace {' '.join(words)}: start, start stop, stop, or dump FILE is expected")
    with held(job) as space:
        taken = recording.take(space, space.ndies)
    lost = sum(recording.lost(taken).values())
    events = recording.save(taken, words[1], job=job.token, program=job.name)
    print(f"{words[1]}: {events} events" + (f", {lost} are lost" if lost else ""))
    return 0


def held(job: finding.Job) -> Any:
    """An inspector through the first of the job's descriptors that can be opened."""
    error: Exception | None = None
    for place in job.places:
        try:
            with finding.opened(place):
                return finding.opened(place)
        except (StrataError, OSError) as refused:
            error = refused
    raise error or OSError("the job has ended")


def _show(now: dict[str, Any], before: dict[str, Any] | None, args: argparse.Namespace, once: bool) -> None:
    if args.json:
        print(json.dumps(now))
        return
    lines = [text.job_line(now), "", text.table(now, before)]
    waits = text.waits(now)
    if waits:
        lines += ["", *waits]
    if not once and sys.stdout.isatty():
        width, height = os.get_terminal_size()
        lines = [line[:width] for line in "\n".join(lines).splitlines()[: height - 1]]
        print("\x1b[H\x1b[2J", end="")
    print("\n".join(lines))
