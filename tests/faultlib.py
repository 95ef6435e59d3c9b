"""Dies that a test can really kill, stop and interrupt.

``Job(fn, n, *args)`` forks n dies of a new job; each runs ``fn(die, *args)``.  A die says
what happens to it on a pipe, with the time; the test waits for that with a bound, and
sends signals.  Nothing outlives the ``with`` block.
"""

import ctypes
import faulthandler
import os
import pickle
import select
import signal
import struct
import time
import traceback
from typing import NamedTuple

import strata
from strata import bootstrap, errors

BOUND = 20.0  # seconds in which anything that a test waits for must have happened
HBM = 1 << 30
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000


class Event(NamedTuple):
    rank: int
    name: str
    time: float  # time.monotonic(), one clock for all processes
    data: object


class Caught(NamedTuple):
    """An error, as a die reports it."""

    kind: str
    ranks: tuple
    group: str
    operation: str
    number: object
    text: str
    time: float

    @classmethod
    def of(cls, error):
        names = ("ranks", "group", "operation", "number")
        known = [getattr(error, name, default) for name, default in zip(names, ((), "", "", None), strict=True)]
        return cls(type(error).__name__, *known, str(error), time.monotonic())


class Die:
    """What ``fn`` gets: its rank, and how it speaks to the test."""

    def __init__(self, rank, out, inbox):
        self.rank = rank
        self._out, self._inbox = out, inbox

    def say(self, name, data=None):
        message = pickle.dumps(Event(self.rank, name, time.monotonic(), data))
        os.write(self._out, struct.pack("I", len(message)) + message)

    def hear(self):
        """Waits for the test's go (Job.tell)."""
        if not select.select([self._inbox], [], [], BOUND)[0]:
            raise TimeoutError("the test said nothing")
        os.read(self._inbox, 1)

    def catch(self, fn, *args, **kwargs):
        """What ``fn`` raises, as Caught; an AssertionError if it returns."""
        try:
            result = fn(*args, **kwargs)
        except (errors.StrataError, KeyboardInterrupt, ValueError, TypeError) as error:
            return Caught.of(error)
        raise AssertionError(f"{getattr(fn, '__name__', fn)} returned {result!r}; an error was expected")


def all_stopped(pid):
    """Whether no thread of a process runs.  A signal stops one thread, which then stops the others; one that had
    ended before it came, and is not reaped yet, has none."""
    states = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat") as stat:
            states.add(stat.read().rpartition(")")[2].split()[0])
    return states <= {"T", "Z"}


class Process:
    def __init__(self, rank, pid, pipe, inbox):
        self.rank, self.pid, self.pipe, self.inbox = rank, pid, pipe, inbox
        self.buffer = b""
        self.status = None  # as waitpid gives it
        self.open = True


class Job:
    """n dies of a new job; ``env``: variables of their own."""

    def __init__(self, fn, n, *args, hbm=HBM, env=None):
        self.n = n
        self.events = []
        self.processes = []
        self.space = bootstrap.create_job(n, hbm)
        try:
            for rank in range(n):
                self.processes.append(self._start(rank, fn, args, env or {}))
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def _start(self, rank, fn, args, env, before=0):
        pipe, out = os.pipe()
        inbox, tell = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                LIBC.prctl(1, signal.SIGKILL)  # ends with the test
                if os.getppid() == parent:
                    os.close(pipe)
                    os.close(tell)
                    code = _run(Die(rank, out, inbox), fn, args, {**self.space.env(rank, before), **env})
            finally:
                os._exit(code)
        os.close(out)
        os.close(inbox)
        return Process(rank, pid, pipe, tell)

    # ---- what the test does to dies

    def restart(self, rank, fn, *args, before=1):
        """Starts a die again that has ended and was reaped; ``before``: how many processes were it before."""
        old = self.processes[rank]
        while old.open:
            self._read(0.0)  # what it had said
        os.close(old.pipe)
        os.close(old.inbox)
        self.processes[rank] = self._start(rank, fn, args, {}, before)

    def kill(self, rank, number=signal.SIGKILL):
        """Sends a signal; returns the time.  After SIGSTOP no thread of the die runs."""
        now = time.monotonic()
        pid = self.processes[rank].pid
        os.kill(pid, number)
        while number == signal.SIGSTOP and not all_stopped(pid):
            if time.monotonic() > now + BOUND:
                raise AssertionError(f"die {rank} has not stopped within {BOUND} s")
            time.sleep(0.0005)
        return now

    def tell(self, *ranks):
        """Ends the dies' next hear(); of all dies by default."""
        for rank in ranks or range(self.n):
            try:
                os.write(self.processes[rank].inbox, b"x")
            except BrokenPipeError:
                pass

    def gone(self, rank, bound=BOUND):
        """Waits until a killed die's death can be seen (its lock is gone); the time."""
        end = time.monotonic() + bound
        while time.monotonic() < end:
            info = self.space.die_info(rank)
            if info["state"] == "absent" or not info["alive"]:
                return time.monotonic()
            time.sleep(0.0005)
        raise AssertionError(f"die {rank} was killed and still holds its lock")

    def reap(self, rank, bound=BOUND):
        """Waits for a process's end; its exit code, -signal if one ended it."""
        process, end = self.processes[rank], time.monotonic() + bound
        while process.status is None:
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if pid:
                process.status = status
                if self.space.die_info(rank)["state"] == "absent":
                    self.space.mark_dead(rank)  # what a launcher does
                break
            if time.monotonic() > end:
                raise AssertionError(f"die {rank} has not ended within {bound} s; {self.story()}")
            self._read(0.002)
        return os.waitstatus_to_exitcode(process.status)

    # ---- what dies say

    def _read(self, seconds):
        open_pipes = {p.pipe: p for p in self.processes if p.open}
        if not open_pipes:
            time.sleep(seconds)
            return
        for fd in select.select(list(open_pipes), [], [], seconds)[0]:
            process = open_pipes[fd]
            data = os.read(fd, 1 << 16)
            process.open = bool(data)
            process.buffer += data
            while len(process.buffer) >= 4:
                size = struct.unpack_from("I", process.buffer)[0]
                if len(process.buffer) < 4 + size:
                    break
                event = pickle.loads(process.buffer[4 : 4 + size])
                process.buffer = process.buffer[4 + size :]
                self.events.append(event)
                if event.name == "failed":
                    raise AssertionError(f"die {event.rank} failed:\n{event.data}")

    def all(self, name, ranks=None, bound=BOUND):
        """Waits until each of ``ranks`` (default: all) has said ``name``; the events by rank (the
        first of each die that was not returned before)."""
        ranks = list(range(self.n)) if ranks is None else list(ranks)
        end = time.monotonic() + bound
        found = {}
        while True:
            for event in list(self.events):
                if event.name == name and event.rank in ranks and event.rank not in found:
                    found[event.rank] = event
                    self.events.remove(event)
            if len(found) == len(ranks):
                return found
            if time.monotonic() > end:
                missing = [r for r in ranks if r not in found]
                raise AssertionError(f"dies {missing} did not say {name!r} within {bound} s; {self.story()}")
            self._read(0.01)

    def story(self):
        """Where every die is, for a failed test: asks those that run for their stacks (stderr)."""
        for process in self.processes:
            if process.status is None:
                os.kill(process.pid, signal.SIGCONT)
                os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.3)
        said = [(e.rank, e.name) for e in self.events]
        return f"not fetched: {said}; stacks of the dies are on stderr"

    def close(self):
        for process in self.processes:
            if process.status is None:
                os.kill(process.pid, signal.SIGKILL)
                process.status = os.waitpid(process.pid, 0)[1]
            os.close(process.pipe)
            os.close(process.inbox)
        self.processes = []
        self.space.close()


def _run(die, fn, args, env):
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    os.environ.update(env)
    bootstrap.forget()
    try:
        fn(die, *args)
    except SystemExit as error:
        strata.finalize()
        return error.code or 0
    except BaseException:
        die.say("failed", traceback.format_exc())
        return 1
    strata.finalize()
    return 0


def in_namespace(flags, fn):
    """Runs fn in a child with namespaces of its own; False if that is not permitted here."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            LIBC.prctl(1, signal.SIGKILL)
            if LIBC.unshare(flags) != 0 or (
                flags & CLONE_NEWNS and LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0
            ):
                code = 77
            else:
                fn()
                code = 0
        except BaseException:
            traceback.print_exc()
            code = 1
        finally:
            os._exit(code)
    end = time.monotonic() + 2 * BOUND
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError("hangs")
        time.sleep(0.01)
    code = os.waitstatus_to_exitcode(status)
    if code == 77:
        import pytest

        pytest.skip("namespaces are not permitted here: " + os.strerror(ctypes.get_errno()))
    assert code == 0


# ---- checks that many tests share


def died(caught, victims, members=None):
    """Asserts that an error is the death of ``victims`` (world ranks), or a later one that names them."""
    assert caught.kind in ("PeerDead", "GroupBroken"), caught
    assert set(caught.ranks) <= set(victims) and caught.ranks, (caught, victims)
    for rank in caught.ranks:
        assert f"rank {rank}" in caught.text or f"ranks {rank}" in caught.text or str(rank) in caught.text, caught
    assert caught.operation, caught
    if members is not None:
        assert caught.group, caught


def check_group(group, ranks, rounds=3):
    """Asserts that a group has these members (world ranks) and gives right results, small and large."""
    import numpy as np

    assert list(group.ranks) == list(ranks), (group.ranks, ranks)
    n = len(ranks)
    for k in range(rounds):
        for count in (3, 70_000):
            x = strata.empty(count, "i8")
            x[:] = np.arange(count) * (group.rank + 1) + k
            y = strata.empty_like(x)
            group.all_reduce(x, y)
            assert (y == np.arange(count) * (n * (n + 1) // 2) + k * n).all()
            z = group.all_gather(x[:3])
            assert (z == np.arange(3) * np.arange(1, n + 1)[:, None] + k).all()
    group.barrier()


def shm_bytes():
    """Bytes in use in /dev/shm."""
    st = os.statvfs("/dev/shm")
    return (st.f_blocks - st.f_bfree) * st.f_frsize
