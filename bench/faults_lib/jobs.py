"""A contender's job for one fault: started, hit, watched until it ends or a limit, and cleared away."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from versus_lib import contenders

WORKER = Path(__file__).with_name("worker.py")
START = 90.0        # seconds for all ranks to be ready; gloo imports torch in each
# Launchers and settings under which survivors may live on, beside each library's default.
EXTRA = {"mpich:no-cleanup": ("mpich", ["-disable-auto-cleanup"]), "openmpi:ulfm": ("openmpi", ["--with-ft", "ulfm"]),
         "strata:continue": ("strata", ["--on-failure", "continue"])}


class NotStarted(Exception):
    """The job's ranks did not come up."""


def library(name):
    return name.partition(":")[0]


def command(name, n, arguments):
    """argv of the launcher; of one rank where there is none (gloo)."""
    lib, extra = EXTRA.get(name, (name, []))
    home = contenders.PEERS / lib
    worker = [str(WORKER), {"strata": "strata", "gloo": "gloo"}.get(lib, "mpi"), *map(str, arguments)]
    if lib == "strata":
        return [sys.executable, "-m", "strata.launch", "-n", str(n), *extra, *worker]
    if lib == "gloo":
        return [str(home / "bin" / "python"), *worker]
    if lib == "openmpi":
        extra = ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), *extra]
    return [str(home / "bin" / "mpiexec"), *extra, "-n", str(n), str(home / "bin" / "python"), *worker]


def running(mark):
    """Pids of processes of the job, its daemons too: they carry a mark in their environment."""
    found, needle = [], f"FAULTS_JOB={mark}".encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                if needle in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    if Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                        found.append(int(name))
            except OSError:
                pass        # gone, or another user's
    return found


def left(folder="/dev/shm"):
    """{name: bytes} of what is there."""
    found = {}
    for entry in os.scandir(folder):
        try:
            found[entry.name] = entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            pass
    return found


class Job:
    """n ranks, and what each has said.  Use with ``with``: nothing of it is left afterwards."""

    def __init__(self, name, n, fault, case, seconds):
        self.name, self.n, self.mark = name, n, secrets.token_hex(12)
        self.folder = tempfile.TemporaryDirectory(prefix="faults-")
        self.said = Path(self.folder.name, "said")
        self.said.mkdir()
        scratch = Path(self.folder.name, "tmp")      # what libraries keep in a temporary directory is theirs to clear
        scratch.mkdir()
        self.scratch, self.before = scratch, set(left())
        self.output = open(Path(self.folder.name, "output"), "w+b")
        contender = contenders.Contender(library(name))
        with socket.socket() as probe:      # a free port, for gloo alone
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.procs = []
        for rank in range(n if library(name) == "gloo" else 1):
            env = {**contender.environment(n, rank, port), "FAULTS_JOB": self.mark, "TMPDIR": str(scratch)}
            self.procs.append(subprocess.Popen(
                command(name, n, [fault, case, self.said, seconds]), env=env, stdin=subprocess.DEVNULL,
                stdout=self.output, stderr=subprocess.STDOUT, start_new_session=True))

    def events(self, rank):
        try:
            text = (self.said / str(rank)).read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def find(self, rank, *names):
        return next((e for e in self.events(rank) if e["event"] in names), None)

    def start(self):
        """Waits until all ranks are ready, or were: the first may end the job before the last has said so."""
        end = time.monotonic() + START
        while not all(self.find(rank, "ready") for rank in range(self.n)):
            if self.over() and any(self.find(rank, "ready") for rank in range(self.n)):
                break
            if self.over() or time.monotonic() > end:
                raise NotStarted(self.output_end())
            time.sleep(0.01)
        return self

    def over(self):
        return all(p.poll() is not None for p in self.procs)

    def status(self):
        """The launcher's; None while it runs.  Of ranks without a launcher: the first that is not 0."""
        codes = [p.poll() for p in self.procs]
        return None if None in codes else next((c for c in codes if c), 0)

    def alive(self, pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    def output_end(self):
        self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, self.output.tell() - 600))
        return self.output.read().decode(errors="replace").strip() or "it printed nothing"

    def kill_all(self):
        """kill -9 of all its processes, again until none is left."""
        end = time.monotonic() + 20
        while (pids := running(self.mark)) and time.monotonic() < end:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            for proc in self.procs:
                proc.poll()
            time.sleep(0.02)
        for proc in self.procs:
            proc.wait()

    def leftovers(self):
        """(files in /dev/shm that were not there before, their bytes, files in its temporary directory)."""
        new = {name: size for name, size in left().items() if name not in self.before}
        kept = sum(1 for path in self.scratch.rglob("*") if not path.is_dir())
        return sorted(new), sum(new.values()), kept

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill_all()
        for name in self.leftovers()[0]:
            try:
                os.unlink(f"/dev/shm/{name}")
            except OSError:
                pass
        self.output.close()
        self.folder.cleanup()
