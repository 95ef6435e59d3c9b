"""The command line of strata-run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

USAGE = """\
usage: strata-run -n N [options] script.py args...
       strata-run -n N [options] -m module args...
       strata-run -n N [options] program args...

Runs N dies of one job: a Python script or module in processes forked from one that has
imported numpy and strata already, or any other program. Rank 0 gets the standard input.
"""

END = """
Exit status: that of the die that failed first, and was not started again (128 + the number of a signal that killed it);
124 after --timeout, 130 after Ctrl-C (128 + signal), 141 if nobody reads the output any more,
125 if strata-run itself fails, 126 or 127 if the program cannot be run or found, 2 for a
wrong command line, 65 if all was well but --check has found something.
"""

CHECK_FAILED = 65
USAGE_ERROR, TIMED_OUT, LAUNCHER_FAILED, CANNOT_RUN, NOT_FOUND = 2, 124, 125, 126, 127


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1024:
        raise ValueError("1 to 1024 dies are possible")
    return value


def _restarts(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1_000_000:
        raise ValueError("1 or more expected")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError("seconds, 0 or more, expected")
    return value


def _limit(text: str) -> float:
    value = _seconds(text)
    if not value:
        raise ValueError("more than 0 seconds expected")
    return value


def _size(text: str) -> int:
    from strata.config import parse_size

    return parse_size(text)


def _hbm(text: str) -> int:
    from strata.config import load

    size = _size(text)
    try:
        return load({}, hbm_bytes=size).hbm_bytes
    except ValueError as error:
        raise ValueError(str(error).partition(": ")[2]) from None


def _machine(text: str) -> str:
    """A machine's file by its full name: dies may go elsewhere."""
    if not text:
        raise ValueError("a machine such as cm384, or a .toml file, is expected")
    return os.path.abspath(text) if text.endswith(".toml") else text


def _seed(text: str) -> int:
    seed = int(text, 0)
    if not 0 < seed < 1 << 63:
        raise ValueError("a seed from 1 to 2**63 - 1 is expected")
    return seed


def _power(text: str) -> int:
    value = int(text, 0)
    if not 64 <= value <= 1 << 20 or value & (value - 1):
        raise ValueError("a power of two from 64 to 1048576 is expected")
    return value


def _mode(text: str) -> str:
    if text not in ("ring", "stop"):
        raise ValueError("ring or stop expected")
    return text


def _hertz(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 1000:
        raise ValueError("0.1 to 1000 looks a second are possible")
    return value


def _failure(text: str) -> str:
    if text not in ("kill", "continue"):
        raise ValueError("kill or continue expected")
    return text


# names; attribute; what follows the name, None for a flag, "[=...]" if it may be left out; parser; help
_TABLE: tuple[tuple[tuple[str, ...], str, str | None, Callable[[str], Any], str], ...] = (
    (("-n", "--np", "-np"), "n", "N", _count, "how many dies"),
    (("--hbm",), "hbm", "SIZE", _hbm, "HBM of each die, sparse, as 64G or 512MiB (STRATA_HBM)"),
    (("--timeout",), "timeout", "SECONDS", _limit, "end the job after so long, with status 124"),
    (("--grace",), "grace", "SECONDS", _seconds,
     "after a failure, until SIGTERM, and from there until SIGKILL (2)"),
    (("--on-failure",), "on_failure", "kill|continue", _failure,
     "kill: end the other dies too, the usual; continue: leave them alone"),
    (("--restarts",), "restarts", "N", _restarts,
     "start dies that fail again, at most N times in all (strata.incarnation()); others go on"),
    (("--tag-output",), "tag", None, bool, "put [rank] before each line"),
    (("--log-dir",), "log_dir", "DIR", str, "also write DIR/rank.N.out and DIR/rank.N.err"),
    (("--bind",), "bind", None, bool, "pin each die to one CPU, in turn over those allowed"),
    (("--intercept",), "intercept", "[=MIN_BYTES]", _size,
     "numpy's own arrays, of MIN_BYTES and more, are fabric memory (STRATA_INTERCEPT)"),
    (("--clock",), "clock", "MACHINE", _machine,
     "also tell the time that the job would take on a machine, as cm384 or a .toml file (STRATA_CLOCK)"),
    (("--clock-trace",), "clock_trace", "FILE", os.path.abspath,
     "what happened by that clock, for Perfetto and chrome://tracing"),
    (("--clock-json",), "clock_json", "FILE", os.path.abspath, "what that clock has counted, of every die"),
    (("--check",), "check", None, bool,
     "find races, use after free, deadlocks and leaks in the program; status 65 if there are any"),
    (("--check-json",), "check_json", "FILE", os.path.abspath, "what --check has found, as JSON lines; implies it"),
    (("--weak-order",), "weak_order", "SEED", _seed,
     "delay and reorder stores, flags and DMA as the memory model allows, by that seed (STRATA_WEAK_ORDER)"),
    (("--dump",), "dump", "FILE", os.path.abspath,
     "if the job fails, is ended or times out, save what its dies did last (strata dump FILE)"),
    (("--dump-dir",), "dump_dir", "DIR", os.path.abspath, "the same, in DIR/strata.JOB.json"),
    (("--trace",), "trace", "FILE", os.path.abspath,
     "what the dies do, with phases and call sites, as JSON (.json, .json.gz) for Perfetto and strata trace"),
    (("--trace-events",), "trace_events", "N", _power,
     "events that each thread of a die can hold, a power of two (STRATA_TRACE_EVENTS)"),
    (("--trace-mode",), "trace_mode", "ring|stop", _mode,
     "when that is full: ring, the newest events stay, the usual; stop, the oldest stay"),
    (("--trace-sample",), "trace_sample", "HZ", _hertz,
     "also look so many times a second at what the kernel says of each thread"),
    (("-m",), "module", "MODULE", str, "run a module, as python -m does; ends the options"),
    (("-h", "--help"), "help", None, bool, "show this and exit"),
)  # fmt: skip

_BY_NAME = {name: row for row in _TABLE for name in row[0]}

# Known from other launchers or from plans, and refused by name instead of half done.
_NOT_YET = {
    "--host": "strata runs on one host",
    "--hosts": "strata runs on one host",
    "--hostfile": "strata runs on one host",
    "--machine": "to tell a job's time on a machine give --clock MACHINE; `strata sim` simulates without a job",
}


class Options:
    """What was asked for.  ``target`` is (script | module | program), then its own arguments."""

    def __init__(self, n: int = 0, **values: Any) -> None:
        self.n = n
        self.hbm: int | None = None
        self.timeout: float | None = None
        self.grace = 2.0
        self.on_failure = "kill"
        self.restarts = 0
        self.tag = False
        self.log_dir: str | None = None
        self.bind = False
        self.clock: str | None = None
        self.clock_trace: str | None = None
        self.clock_json: str | None = None
        self.check = False
        self.check_json: str | None = None
        self.weak_order: int | None = None
        self.dump: str | None = None
        self.dump_dir: str | None = None
        self.trace: str | None = None
        self.trace_events: int | None = None
        self.trace_mode = ""
        self.trace_sample: float | None = None
        self.intercept: int | bool = False  # True: of the size that option intercept_min_bytes says
        self.kind = ""  # "script", "module" or "program"
        self.target: list[str] = []
        for name, value in values.items():
            if not hasattr(self, name):
                raise TypeError(f"no option {name}")
            setattr(self, name, value)


def say(text: str) -> None:
    """A message of the launcher itself, to standard error if there is one."""
    if sys.stderr is not None:
        sys.stderr.write(f"strata-run: {text}\n")
        sys.stderr.flush()


def put(text: str) -> None:
    """Text as it is, to standard error if that can be written."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()


def wrong(text: str) -> NoReturn:
    """Ends the launcher for a wrong command line."""
    say(f"{text} (strata-run --help)")
    sys.exit(USAGE_ERROR)


def _optional(what: str | None) -> bool:
    """Whether an option's value may be left out; it follows "=" if it is there."""
    return what is not None and what.startswith("[=")


def _help() -> NoReturn:
    rows = [
        (", ".join(names) + ("" if what is None else what if _optional(what) else f" {what}"), text)
        for names, _, what, _, text in _TABLE
    ]
    width = max(len(left) for left, _ in rows)
    lines = [f"  {left:<{width}}  {text}" for left, text in rows]
    print(f"{USAGE}\nOptions:\n" + "\n".join(lines) + f"\n{END}", end="")
    sys.exit(0)


def _unknown(name: str) -> NoReturn:
    if name in _NOT_YET:
        wrong(f"{name}: {_NOT_YET[name]}")
    import difflib

    near = difflib.get_close_matches(name, [n for row in _TABLE for n in row[0]], n=1, cutoff=0.5)
    wrong(f"{name} is not an option" + (f"; did you mean {near[0]}?" if near else ""))


def _split(word: str, rest: list[str]) -> tuple[str, str | None]:
    """An option and its value: "--name value", "--name=value", "-n 4" or "-n4"."""
    name, equals, value = word.partition("=")
    given: str | None = value if equals else None
    if name not in _BY_NAME and (word[:2] == "-m" or (word[:2] == "-n" and word[2:].isdigit())):
        name, given = word[:2], word[2:]
    if name not in _BY_NAME:
        _unknown(name)
    if _BY_NAME[name][2] is None:
        if given is not None:
            wrong(f"{name} takes no value")
        return name, None
    if given is None and not _optional(_BY_NAME[name][2]):
        if not rest:
            wrong(f"{name} needs a value, {_BY_NAME[name][2]}")
        given = rest.pop(0)
    return name, given


def parse(arguments: list[str]) -> Options:
    """Reads the command line; prints and exits for --help and for anything wrong."""
    options, rest = Options(on_failure=""), list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        name, text = _split(word, rest)
        _, attribute, _, parser, _ = _BY_NAME[name]
        if attribute == "help":
            _help()
        if attribute == "module":
            options.kind, options.target = "module", [str(text), *rest]
            break
        try:
            value = True if text is None else parser(text)
        except ValueError as error:
            why = str(error)
            if why.startswith(("could not", "invalid literal")):
                why = "a number expected"
            wrong(f"{name} {text}: {why}")
        setattr(options, attribute, value)
    if options.restarts and options.on_failure == "kill":
        wrong("--restarts and --on-failure kill: a die that is started again needs the others, so they go on")
    if options.restarts and (options.clock or options.clock_trace or options.clock_json):
        wrong("--restarts and --clock: virtual clocks of dies that come later are not defined")
    if options.restarts and (options.check or options.check_json):
        wrong("--restarts and --check: the analysis takes a job's dies for the same processes from begin to end")
    if (options.trace_mode or options.trace_sample) and not options.trace:
        wrong("--trace-mode and --trace-sample are about --trace FILE, which is missing")
    if options.restarts and options.trace_sample:
        wrong("--restarts and --trace-sample: the launcher starts dies again, and must have no threads then")
    options.trace_mode = options.trace_mode or "ring"
    options.on_failure = options.on_failure or ("continue" if options.restarts else "kill")
    if not options.kind:
        if not rest:
            wrong("what shall the dies run? A script, -m module, or a program")
        options.kind = "script" if rest[0].endswith(".py") else "program"
        options.target = rest
    if not options.n:
        wrong("how many dies? Give -n N before the script or program")
    if options.kind == "module" and not options.target[0]:
        wrong("-m needs the name of a module")
    return options
