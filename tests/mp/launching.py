"""Running strata-run from a test: to its end, or to be watched and hit meanwhile."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "strata.launch"]
PATIENCE = 60.0  # seconds for something that takes a fraction of one on an idle machine


def environment(**extra):
    """The test's environment, with strata to be found from any directory."""
    kept = {k: v for k, v in os.environ.items() if k == "STRATA_CHECK"}  # of a run of pytest --checked
    env = {k: v for k, v in os.environ.items() if not k.startswith(("STRATA_", "PYTEST_", "PYTHON"))} | kept
    path = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, path)), **extra}


def usual_signals():
    """In a child: signals as in an interactive shell, even if the test runs in the background."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def run(*arguments, timeout=PATIENCE, env=None, **options):
    """Runs strata-run to its end; the CompletedProcess, output as bytes."""
    options.setdefault("stdin", subprocess.DEVNULL if "input" not in options else None)
    if options["stdin"] is None:
        del options["stdin"]
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    options.setdefault("preexec_fn", usual_signals)
    return subprocess.run([*COMMAND, *map(str, arguments)], timeout=timeout, env=env or environment(), **options)


def plain(*arguments, timeout=PATIENCE, env=None, **options):
    """Runs python itself, for comparison."""
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(
        [sys.executable, *map(str, arguments)], timeout=timeout, env=env or environment(),
        capture_output=True, preexec_fn=usual_signals, **options,
    )  # fmt: skip


def until(condition, what, seconds=PATIENCE):
    """Waits for a condition and returns what made it true; fails the test after ``seconds``."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def write(path, text):
    """A script of a test."""
    path.write_text(textwrap.dedent(text))
    return path


def alive(pid):
    """Whether the process is there and not a zombie."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def says(path):
    """The integers in files that dies write to say that they are there."""
    return [int(p.read_text()) for p in path.parent.glob(path.name) if p.read_text().endswith("\n")]


class Running:
    """A job that goes on while the test acts on it.  Killed and waited for at the end of ``with``."""

    def __init__(self, *arguments, env=None, **options):
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)], env=env or environment(), preexec_fn=usual_signals, **options
        )
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        for file in (self.process.stdin, self.process.stdout, self.process.stderr):
            if file:
                file.close()

    def end(self, timeout=PATIENCE):
        """Waits for the end: status, standard output, standard error."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    def keeper(self):
        """Pid of the keeper."""
        return until(lambda: psutil.Process(self.pid).children(), "the keeper")[0].pid

    def family(self):
        """Pids of all that descends from the launcher now, itself included."""
        front = psutil.Process(self.pid)
        return [front.pid, *(child.pid for child in front.children(recursive=True))]


# Says that it is there, in a file "there.<rank>" of the directory given, then sleeps.
SLEEPER = """
import os, sys, time
def there(name="there", number=None):
    name = f"{name}.{os.environ['STRATA_RANK']}"
    with open(f"{sys.argv[1]}/.{name}", "w") as f:
        f.write(f"{number or os.getpid()}\\n")
    os.rename(f"{sys.argv[1]}/.{name}", f"{sys.argv[1]}/{name}")
"""


# A body for a sleeper: counts Ctrl-C; LEAVE says whether the first one is the end of it.
INTERRUPTIBLE = """
count = 0
there()
while True:
    try:
        time.sleep(1000)
    except KeyboardInterrupt:
        count += 1
        there(f"interrupted{count}")
        if LEAVE:
            raise
"""


def sleeper(tmp_path, body="there(); time.sleep(1000)", name="sleeper.py"):
    """A script that has ``there()`` and then runs ``body``."""
    path = tmp_path / name
    path.write_text(SLEEPER + textwrap.dedent(body))
    return path


def all_there(tmp_path, n, name="there"):
    """Waits until n dies have said that they are there; what they said (their pids)."""
    return until(
        lambda: (found := says(tmp_path / f"{name}.[0-9]*")) and len(found) == n and found,
        f"{n} dies say {name}",
    )


def all_gone(pids):
    """Waits until none of the processes is left."""
    until(lambda: not any(map(alive, pids)), f"processes {pids} end")
