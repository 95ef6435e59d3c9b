"""The keeper's side of strata-run: from the command line to running dies."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import traceback

from strata.launch import procs
from strata.launch.die import Die
from strata.launch.front import KILL_LIMIT, PASSED_ON, Origin
from strata.launch.options import CANNOT_RUN, LAUNCHER_FAILED, NOT_FOUND, USAGE_ERROR, Options, say
from strata.launch.runner import Module, Program, Script
from strata.launch.weak import weaken

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

# The homes of the public names.
PRELOAD = (
    "numpy", "strata.capturing", "strata.clock", "strata.comm", "strata.explaining", "strata.fabric.arrays",
    "strata.fabric.intercept", "strata.job", "strata.prediction", "strata.registration", "strata.tracing",
)  # fmt: skip


class Refused(Exception):
    """The job cannot start; the exit status and what to say, if that has not been said."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text)
        self.code = code


def keep(options: Options, link: socket.socket, origin: Origin, stdin: int | None) -> Die:
    """Runs the job.  Returns in a die only; the keeper ends here with the job's status.

    ``stdin`` is what rank 0 reads instead of the launcher's own standard input.
    """
    code, die = LAUNCHER_FAILED, None
    try:
        become_keeper(origin)
        target = _target(options)
        die_or_code = _job(options, link, origin, stdin)
        if isinstance(die_or_code, Die):
            die = die_or_code
        else:
            code = die_or_code
    except Refused as error:
        code = error.code
        if str(error):
            say(str(error))
    except BaseException:
        say("internal error of the launcher; the job is ended")
        traceback.print_exc()
        end_everything()
    if die is None:
        os._exit(code)
    die.settle(python=options.kind != "program")
    die.target = target
    return die


def _preload(*more: str) -> None:
    """Imports, once for all dies, what a script that uses strata will import."""
    for name in (*PRELOAD, *more):
        importlib.import_module(name)


def become_keeper(origin: Origin) -> None:
    """The front decides what a signal means; this process must outlive all of them.

    In a process group of its own, so that ``kill -9 %1`` does not reach it either.
    """
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    for number in (*PASSED_ON, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, origin.mask - {signal.SIGCHLD})
    procs.adopt_orphans()


def end_everything() -> None:
    """Kills all that this keeper has started."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    procs.kill_descendants(KILL_LIMIT)


def _target(options: Options) -> Script | Module | Program:
    """What the dies run; a file that is missing or does not compile is one error, not N."""
    name, arguments = options.target[0], options.target[1:]
    if options.kind == "module":
        return Module(name, arguments)
    if options.kind == "script":
        try:
            return Script(name, arguments)
        except OSError as error:
            reason = f"[Errno {error.errno}] {error.strerror}"
            raise Refused(USAGE_ERROR, f"can't open file {os.path.abspath(name)!r}: {reason}") from None
        except (SyntaxError, ValueError) as error:
            traceback.print_exception(type(error), error, None)
            raise Refused(1) from None
    try:
        return Program(options.target)
    except FileNotFoundError:
        raise Refused(NOT_FOUND, f"{name}: no such program") from None
    except OSError as error:
        raise Refused(CANNOT_RUN, f"cannot run {error.filename}: {error.strerror}") from None


def _job(options: Options, link: socket.socket, origin: Origin, stdin: int | None) -> Die | int:
    """Makes the UB space and the dies.  Returns a Die in a die, the exit status in the keeper."""
    gc.disable()  # nothing becomes garbage before the fork
    weaken(options)  # before the core is imported
    from strata import bootstrap, errors
    from strata._core.cpus import usable_cpus
    from strata.launch.keeper import Keeper
    from strata.launch.output import Forwarder

    if not any(name in os.environ for name in THREADS):
        each = str(max(1, usable_cpus() // options.n))
        os.environ.update(dict.fromkeys(THREADS, each))
    if options.intercept is not False:
        os.environ["STRATA_INTERCEPT"] = "1"
        if options.intercept is not True:
            os.environ["STRATA_INTERCEPT_MIN_BYTES"] = str(options.intercept)
    for name in ("clock", "clock_trace", "clock_json"):
        if getattr(options, name) is not None:
            os.environ[f"STRATA_{name.upper()}"] = getattr(options, name)
    if options.trace_events is not None:
        os.environ["STRATA_TRACE_EVENTS"] = str(options.trace_events)
    try:
        job = bootstrap.create_job(options.n, options.hbm)
    except errors.ConfigError as error:
        raise Refused(USAGE_ERROR, str(error)) from None
    except (errors.StrataError, OSError) as error:
        raise Refused(LAUNCHER_FAILED, str(error)) from None
    if options.kind != "program":
        timed = ("strata.clock.die", "strata.machine", "strata.exec.timed")
        _preload(*(timed if os.environ.get("STRATA_CLOCK") else ()))
        # The collector would write to every object's page, and each die would get its own copy.
        gc.freeze()
    try:
        keeper = Keeper(options, job, link, origin, Forwarder(options.n, options.tag), stdin=stdin)
        die = keeper.start()
    except errors.ConfigError as error:
        raise Refused(USAGE_ERROR, str(error)) from None
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise Refused(LAUNCHER_FAILED, f"{error.strerror or error}{where}") from None
    return keeper.run() if die is None else die
