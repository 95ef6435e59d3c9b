"""The user's program in a die, as ``python script.py``, ``python -m`` or exec would run it."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import errno
import functools
import gc
import io
import os
import signal
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

from strata.launch.die import Die, ends
from strata.launch.options import CANNOT_RUN, NOT_FOUND, say

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Script:
    """A compiled script: read and compiled once, before the dies are forked."""

    def __init__(self, path: str, arguments: list[str]) -> None:
        self._path = path
        self._arguments = arguments
        with io.open_code(os.path.abspath(path)) as file:
            source = file.read()
        self._code = compile(source, os.path.abspath(path), "exec", dont_inherit=True)

    def __call__(self, die: Die) -> int:
        return _run(die, [self._prepare()])

    def _prepare(self) -> Callable[[], Any]:
        sys.argv = [self._path, *self._arguments]
        _set_import_path(os.path.dirname(os.path.realpath(self._path)))
        main = _new_main()
        full = os.path.abspath(self._path)
        from importlib.machinery import SourceFileLoader

        main.__dict__.update(__file__=full, __cached__=None, __loader__=SourceFileLoader("__main__", full))
        return functools.partial(exec, self._code, main.__dict__)


class Module:
    """``python -m name``.  Packages on the way to it are imported in the die."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self._name = name
        self._arguments = arguments

    def __call__(self, die: Die) -> int:
        import runpy

        sys.argv = ["-m", *self._arguments]
        _set_import_path(os.getcwd())
        _new_main()
        # What the interpreter itself calls for -m.
        run: Callable[[str], Any] = runpy._run_module_as_main  # type: ignore[attr-defined]
        return _run(die, [functools.partial(run, self._name)])


class Program:
    """Any other program, by exec.  OSError if it is not there or may not be run."""

    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments
        self._path = _find(arguments[0])

    def __call__(self, die: Die) -> NoReturn:
        job = os.environ.get("STRATA_JOB_FD")
        if job:
            os.set_inheritable(int(job), True)
        die.origin.unblock()
        try:
            try:
                os.execv(self._path, self._arguments)
            except OSError as error:
                if error.errno != errno.ENOEXEC:
                    raise
                # A script without a first line that says by whom: the shell's, as in a shell.
                os.execv("/bin/sh", ["sh", self._path, *self._arguments[1:]])
        except OSError as error:
            say(f"cannot run {self._path}: {error.strerror}")
            os._exit(NOT_FOUND if error.errno == errno.ENOENT else CANNOT_RUN)


def _find(name: str) -> str:
    """The file that a shell would run for ``name``."""
    places = [""] if "/" in name else os.get_exec_path()
    refused: OSError | None = None
    for place in places:
        path = os.path.join(place, name)
        if os.path.isdir(path):
            refused = refused or IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        elif os.access(path, os.X_OK):
            return path
        elif os.path.exists(path):
            refused = refused or PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    raise refused or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def _set_import_path(first: str) -> None:
    """Replaces the directory of strata-run at the head of sys.path, where Python puts one."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return
    sys.path[0] = first


def _new_main() -> types.ModuleType:
    """An empty ``__main__`` with what Python gives it."""
    old, main = sys.modules["__main__"], types.ModuleType("__main__")
    if "__annotations__" in old.__dict__:
        main.__dict__["__annotations__"] = {}
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    _set_standard_files()
    return main


def _set_standard_files() -> None:
    """Standard output is a pipe now, and buffered as one."""
    if sys.stdout is None:
        sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # type: ignore[misc]
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=False)
    if sys.stderr is None:
        sys.stderr = sys.__stderr__ = open(2, "w", closefd=False, errors="backslashreplace")  # type: ignore[misc]
    if sys.stdin is None:
        sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]


def _run(die: Die, code: list[Callable[[], Any]]) -> int:
    """Runs the user's code to its end and this process to its own, as Python does.

    ``code`` is handed over in a list and taken out, so that nobody else holds on
    to the script's variables when the time comes to let go of them.
    """
    before = set(sys.modules) - {"__main__"}
    status = 0
    gc.enable()
    try:
        die.origin.unblock()
        _intercept()
        code.pop()()
    except SystemExit as error:
        status = exit_status(error.code)
    except BaseException as error:
        silent = isinstance(error, KeyboardInterrupt) and die.rank and die.interrupted and die.interrupted[0]
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        if not silent:  # one traceback is enough to see where Ctrl-C came in
            status = _print_exception(error) or status
    ends(status)
    return _end(status, before)


def _intercept() -> None:
    """With option intercept, a script's arrays are in the fabric from its first line on: join before it."""
    from strata import config

    if config.load().intercept:
        from strata import bootstrap

        bootstrap.init()


def exit_status(code: object) -> int:
    """What sys.exit(code) makes the exit status; prints what is neither number nor None."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _print_exception(error: BaseException) -> int:
    """Prints as Python does, by sys.excepthook, without the launcher's frames.

    Returns the exit status if the hook itself asks for one, else 0.
    """
    trace = error.__traceback__ = _users_part(error.__traceback__)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    try:
        _call_hook(error, trace)
    except SystemExit as end:
        return exit_status(end.code)
    except BaseException as second:
        second.__context__ = None
        second.__traceback__ = _users_part(second.__traceback__)
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(second), second, second.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, trace)
    return 0


def _users_part(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without the launcher's frames at its head."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE):
        trace = trace.tb_next
    return trace


def _call_hook(error: BaseException, trace: types.TracebackType | None) -> None:
    """Python's own hook writes line by line, and lines of several dies' tracebacks would mix."""
    stderr, text = sys.stderr, io.StringIO()
    if sys.excepthook is not sys.__excepthook__ or stderr is None:
        sys.excepthook(type(error), error, trace)
        return
    sys.stderr = text
    try:
        sys.excepthook(type(error), error, trace)
    finally:
        sys.stderr = stderr
    stderr.write(text.getvalue())
    stderr.flush()


def _end(status: int, before: set[str]) -> int:
    """Ends the process as the interpreter does, without the part that costs ten milliseconds.

    That part is to take apart modules which were there before the fork, numpy
    above all: nobody can tell.  What the user's code made is taken apart, so that
    files are flushed and __del__ runs.  With threads left it is the interpreter's own
    way, since only that can hold them back.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException as error:
        print(f"Exception ignored while waiting for threads: {error!r}", file=sys.stderr)
    if len(sys._current_frames()) > 1:
        if status == -signal.SIGINT:
            sys.excepthook = lambda *_: None
            raise KeyboardInterrupt
        return status
    with contextlib.suppress(BaseException):  # each has been printed
        atexit._run_exitfuncs()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _flush(status)
    _take_apart(before)
    status = _flush(status)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        status = 128 - status
    # The C library's exit: what C code registered or has buffered still counts.  The
    # interpreter's lock stays taken, so no Python code runs any more.
    ctypes.pythonapi.exit(status)
    raise AssertionError("exit returned")


def _flush(status: int) -> int:
    """Python's status when standard output cannot be written at the end is 120."""
    for file in (sys.stdout, sys.stderr):
        try:
            if file is not None and not file.closed:
                file.flush()
        except (OSError, ValueError) as error:
            if file is sys.stdout and not status:
                status = 120
            if not isinstance(error, BrokenPipeError):
                with contextlib.suppress(OSError, ValueError):
                    print(f"Exception ignored while flushing {file.name}: {error}", file=sys.__stderr__)
    return status


def _take_apart(before: set[str]) -> None:
    """Lets go of all that was imported after the fork, in Python's order."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            setattr(sys, name, None)
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    modules = []
    for name, module in list(sys.modules.items()):
        if name not in before:
            if isinstance(module, types.ModuleType):
                modules.append(weakref.ref(module))
            sys.modules[name] = None  # type: ignore[assignment]
    del module
    gc.collect()
    for reference in reversed(modules):
        _empty(reference())
    gc.collect()


def _empty(module: types.ModuleType | None) -> None:
    """Clears a module that is still referred to: underscored names first, as Python documents."""
    names = vars(module) if module is not None else {}
    for private in (True, False):
        for name in list(names):
            if name != "__builtins__" and (name[:1] == "_" and name[1:2] != "_") == private:
                names[name] = None
