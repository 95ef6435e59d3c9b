"""What every test gets: printed seeds, a hard time limit, and a look for what it left behind."""

import faulthandler
import os
import platform
import random
import signal
import sys
import time

import hypothesis
import numpy as np
import psutil
import pytest

LIMIT = 120.0  # seconds a test may take; a marker changes it
HARD_EXIT = 30.0  # seconds after the limit until the whole run is ended
GRACE = 3.0  # seconds in which processes and files of a test may still go away

hypothesis.settings.register_profile(
    "default", deadline=None, max_examples=100, print_blob=True
)
hypothesis.settings.register_profile(
    "deep", parent=hypothesis.settings.get_profile("default"), max_examples=10_000
)


STDERR = pytest.StashKey[int]()


class TimeLimit(BaseException):
    """A test took too long.  Not an Exception, so that no test and no Hypothesis catches it."""


def pytest_addoption(parser):
    parser.addoption("--checked", action="store_true", help="check all jobs of the tests, as strata-run --check does")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if config.getoption("--checked"):
        from checked_suite import Suite

        config.pluginmanager.register(Suite(), "checked-suite")
    # Output is not captured yet: what the hard exit prints must reach the terminal.
    config.stash[STDERR] = os.dup(2)
    # A random seed, but a known one: the header says how to have the same run again.
    if config.getoption("--hypothesis-seed", None) is None:
        config.option.hypothesis_seed = random.SystemRandom().randrange(1 << 32)
    if config.getoption("--hypothesis-profile", None) is None:
        hypothesis.settings.load_profile("default")


def pytest_report_header(config):
    profile = config.getoption("--hypothesis-profile", None) or "default"
    cpus = len(os.sched_getaffinity(0))
    return [
        f"strata: python {platform.python_version()}, numpy {np.__version__}, {cpus} CPUs, "
        f"{platform.machine()}, limit {LIMIT:.0f} s a test",
        f"replay with: --hypothesis-seed={config.option.hypothesis_seed} "
        f"--hypothesis-profile={profile}",
    ]


def _on_alarm(signum, frame):
    raise TimeLimit("the test took longer than its limit")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Fails a test at its limit; ends the run if even that does not get through.

    The second is for a wait in C that does not return to Python: its stack is
    printed by a thread that needs no interpreter, and the run ends.
    """
    marker = item.get_closest_marker("hard_timeout")
    limit = float(marker.args[0]) if marker else LIMIT
    checked = item.config.pluginmanager.get_plugin("checked-suite")
    limit = checked.limit(limit) if checked else limit
    before = signal.signal(signal.SIGALRM, _on_alarm)
    signal.setitimer(signal.ITIMER_REAL, limit)
    faulthandler.dump_traceback_later(limit + HARD_EXIT, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _shm():
    """This user's strata files in /dev/shm; a sound job has unlinked its own."""
    found = set()
    with os.scandir("/dev/shm") as entries:
        for entry in entries:
            try:
                if "strata" in entry.name and entry.stat().st_uid == os.getuid():
                    found.add(entry.name)
            except FileNotFoundError:
                pass
    return found


def _pools():
    """Processes of pools of dies that are to stay until the end."""
    testing = sys.modules.get("strata.testing")
    return testing.pids() if testing else ()


def _descendants(pid, pools):
    """Pids of what descends from a process and is in no pool; None if this kernel does not list children."""
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += [child for child in map(int, file.read().split()) if child not in pools]
    except (FileNotFoundError, ProcessLookupError):
        return None if pid == os.getpid() else []
    for child in tuple(found):
        found += _descendants(child, pools)
    return found


def _children():
    """Living descendants that are in no pool.

    psutil reads all processes of the machine, twice a test, which took as long as most tests do.
    It is asked only where there is something; nearly always there is nothing.
    """
    pools = _pools()
    if _descendants(os.getpid(), pools) == []:
        return set()
    return {
        child
        for child in psutil.Process().children(recursive=True)
        if child.pid not in pools and child.is_running() and child.status() != psutil.STATUS_ZOMBIE
    }


def _left(look, before):
    """What is there now and was not before, once the grace is over."""
    end = time.monotonic() + GRACE
    while True:
        try:
            left = look() - before
        except psutil.NoSuchProcess:
            continue
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def leaves_nothing_behind():
    """Fails a test that leaves a process or a shared-memory file behind.

    Fixtures of wider scope are set up before this one, so a pool of dies that
    serves a whole module is no leak of the test that happens to come first.
    """
    shm, children = _shm(), _children()
    yield
    left = [f"/dev/shm/{name}" for name in sorted(_left(_shm, shm))]
    for child in _left(_children, children):
        left.append(f"process {child.pid}: {' '.join(child.cmdline()) or child.name()}")
        child.kill()
    assert not left, "left behind: " + "; ".join(left)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """Nothing may outlive the run either, whatever the scope of its fixture."""
    if "strata.testing" in sys.modules:
        sys.modules["strata.testing"].close()
    left = _left(_children, set())
    if left:
        lines = [f"process {c.pid}: {' '.join(c.cmdline())}" for c in left]
        session.config.get_terminal_writer().line("\nleft behind by the run: " + "; ".join(lines))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        for child in left:
            child.kill()
