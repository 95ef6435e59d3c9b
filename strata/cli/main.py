"""Entry of ``strata``: finds the subcommand and turns errors into one line and a status."""

from __future__ import annotations

import os
import sys
from importlib import import_module

# name: (module with ``main(arguments) -> status``, what it does)
COMMANDS = {
    "check-server": ("strata.checking.server", "check all jobs that are told of it, such as those of a test suite"),
    "doctor": ("strata.cli.doctor", "look whether this host can run jobs, and say what to do"),
    "dump": ("strata.cli.dump", "print or save what the dies of a job did last"),
    "plan": ("strata.cli.plan", "print, save, compare, verify or convert plans of an operation"),
    "sim": ("strata.cli.sim", "predict operations on a machine that is not here"),
    "top": ("strata.cli.top", "show what the dies of a running job do, and who waits for whom"),
    "trace": ("strata.cli.trace", "say where the time of a traced job went: tables, pictures, comparisons"),
    "tune": ("strata.cli.tune", "measure the algorithms on this host, for the choice among them"),
    "workload": ("strata.cli.workload", "predict what whole workloads take, beside what has been published"),
}
USAGE_ERROR = 2


def usage() -> str:
    """The text of --help."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:{width}}  {what}" for name, (_, what) in COMMANDS.items())
    return f"usage: strata COMMAND ...\n\n{rows}\n\nstrata COMMAND --help tells more."


def main(arguments: list[str] | None = None) -> int:
    """Runs a subcommand; its exit status, or 2 after an error, which is one line on stderr."""
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0] in ("-h", "--help"):
        print(usage())
        return 0 if given else USAGE_ERROR
    name, *rest = given
    if name not in COMMANDS:
        return _error(f"there is no command {name!r}; there are {', '.join(COMMANDS)}")
    from strata.errors import StrataError

    try:
        status = int(import_module(COMMANDS[name][0]).main(rest))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # nobody reads any more, as in "strata plan ... | head"
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except (StrataError, OSError, ValueError, MemoryError) as error:
        return _error(f"{name}: {error or type(error).__name__}")


def _error(text: str) -> int:
    print(f"strata {' '.join(str(text).split())}" if text else "strata failed", file=sys.stderr)
    return USAGE_ERROR
