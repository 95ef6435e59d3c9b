"""The server of checked jobs: takes the dies' events, answers at their end, says what was found.

It listens on an abstract Unix socket and listens to its own user only.  It serves many dies of many
jobs in one thread.  ``strata-run --check`` has one of its own; alone it runs as

    python -m strata.checking.server [--name NAME] [--json FILE] [-- COMMAND ...]

or ``strata check-server``, and serves whatever is started with STRATA_CHECK=NAME, a whole
test suite for one, until the command ends, or SIGINT or SIGTERM comes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import socket
import struct
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future

from strata.checking.analyser import Job
from strata.checking.events import LINE, BadEvent, End, Hello, parse
from strata.checking.reports import KEPT, Report, text_of
from strata.checking.tasks import Die

__all__ = ["Server"]

READ = 1 << 18
WAITING = 20_000  # events of a die that wait for others until no more of it are read
TOO_MANY = 200_000  # ... and until they are analysed without
TICK = 0.25  # seconds between looks for dies that wait in vain
QUIET = 1.0  # seconds without news until a die that is held back is read on
FORGET = 60.0  # seconds until a job all of whose dies have left is over, although not all had come
PROBLEMS = 100  # that are kept
FOUND = 65  # exit status
_Taken = Future[tuple[list[Report], list[str]]]


class _Link:
    """One connection: a die, once it has said hello."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.rest = b""
        self.job: Job | None = None
        self.die: Die | None = None
        self.held = False  # not read, since its events wait for others
        self.limit = WAITING
        self.good = True

    def who(self) -> str:
        return f"rank {self.die.rank} of job {self.job.name[:8]}" if self.job and self.die else "a die without a hello"


class Server:
    """``name``: of the abstract socket (a random one if None), for STRATA_CHECK.

    ``urgent``  is called with reports that should be shown at once: those of deadlocks
    """

    def __init__(self, name: str | None = None, urgent: Callable[[Report], None] | None = None) -> None:
        self.name = name or f"strata-check.{os.getuid()}.{secrets.token_hex(8)}"
        self.problems: list[str] = []
        self.jobs_seen = self.events = 0
        self.dropped = 0  # reports of jobs that are over, beyond what is kept
        self._urgent = urgent
        self._jobs: dict[str, Job] = {}
        self._idle: dict[str, float] = {}  # jobs without a die, since when
        self._found: list[Report] = []  # of jobs that are over
        self._links: set[_Link] = set()
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = os.pipe()
        self._stop = False
        self._asked: _Taken | None = None  # take() waits for it
        self._last = self._looked = time.monotonic()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            self._socket.bind("\0" + self.name)
            self._socket.listen(1024)
        except BaseException:
            self.close()
            raise
        self._selector.register(self._socket, selectors.EVENT_READ, None)
        self._selector.register(self._wake, selectors.EVENT_READ, None)

    # --- from outside

    def stop(self) -> None:
        """Has run() read what has been sent, and return.  From any thread, or a signal handler."""
        self._stop = True
        with contextlib.suppress(OSError):
            os.write(self._waker, b".")

    def take(self, patience: float) -> tuple[list[Report], list[str]]:
        """Reports and problems since the last call, which are forgotten then.  From another thread than run()'s.

        All that the dies have sent so far is in it, and jobs whose dies have all ended are over, also those
        to which not all have come.  TimeoutError: it took more than ``patience`` seconds.
        """
        self._asked = asked = Future()
        os.write(self._waker, b".")
        return asked.result(patience)

    def close(self) -> None:
        """Lets go of all descriptors."""
        for link in self._links:
            link.sock.close()
        self._links.clear()
        self._selector.close()
        self._socket.close()
        for fd in (self._wake, self._waker):
            if fd >= 0:
                os.close(fd)
        self._wake = self._waker = -1

    def reports(self) -> list[Report]:
        """All that were found so far, each pair of lines once."""
        found: dict[tuple[object, ...], Report] = {}
        for report in self._all():
            known = found.setdefault(report.key(), report)
            if known is not report:
                known.count += report.count
        return list(found.values())

    def _all(self) -> Iterator[Report]:
        yield from self._found
        for job in self._jobs.values():
            yield from job.reports

    # --- the loop

    def run(self) -> None:
        """Serves until stop(); then all jobs are over."""
        while not self._stop:
            if self._asked is None:
                self._step(TICK if self._jobs else None)
            elif not self._step(0.0) and not self._held():
                self._settled(self._asked)
        end = time.monotonic() + QUIET
        while self._links and time.monotonic() < end:  # what is in the sockets
            if not self._step(0.0):
                break
        for link in list(self._links):
            self._closed(link)
        for job in list(self._jobs.values()):
            self._over(job)

    def _held(self) -> bool:
        """Whether something waits in sockets that are not read; gives it a moment."""
        if any(link.held for link in self._links):
            self._step(TICK)
            return True
        return False

    def _settled(self, asked: _Taken) -> None:
        """All that was sent has been read: what take() waits for."""
        self._asked = None
        for job in [job for job in self._jobs.values() if all(die.gone for die in job.dies.values())]:
            self._over(job)
        found = self.reports(), self.problems
        self._found, self.problems = [], []
        for job in self._jobs.values():
            job.reports.clear()
        asked.set_result(found)

    def _step(self, wait: float | None) -> bool:
        """One round; True if something came."""
        ready = self._selector.select(wait)
        news = False
        for key, _ in ready:
            if key.data is not None:
                news |= self._read(key.data)
            elif key.fileobj is self._socket:
                news |= self._accept()
            else:
                os.read(self._wake, 64)
        now = time.monotonic()
        self._last = now if news else self._last
        self._on_time(now)
        return news

    def _on_time(self, now: float) -> None:
        self._release(now)
        for name, since in list(self._idle.items()):
            if now - since > FORGET:
                self._over(self._jobs[name])
        if now - self._looked < TICK:
            return
        self._looked = now
        for job in list(self._jobs.values()):
            before = len(job.reports)
            if job.arrivals.check(now) and self._urgent:
                for report in list(job.reports)[before:]:
                    self._urgent(report)

    def _release(self, now: float) -> None:
        """Reads on from dies that were held back."""
        for link in self._links:
            if link.held and link.die is not None:
                if link.die.pending < link.limit // 2:
                    self._hold(link, False)
                elif now - self._last > QUIET:  # what it waits for may be behind, on its own connection
                    link.limit *= 2
                    self._hold(link, False)

    def _hold(self, link: _Link, held: bool) -> None:
        link.held = held
        if held:
            self._selector.unregister(link.sock)
        else:
            self._selector.register(link.sock, selectors.EVENT_READ, link)

    def _accept(self) -> bool:
        try:
            sock, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return False
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] != os.geteuid():
            sock.close()
            return False
        sock.setblocking(False)
        link = _Link(sock)
        self._links.add(link)
        self._selector.register(sock, selectors.EVENT_READ, link)
        return True

    def _read(self, link: _Link) -> bool:
        try:
            data = link.sock.recv(READ)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self._closed(link)
            return True
        *lines, link.rest = (link.rest + data).split(b"\n")
        for line in lines:
            if line and link.good:
                self._line(link, line)
        if len(link.rest) > LINE:
            self._problem(link, f"a line of more than {LINE} bytes")
            link.good, link.rest = False, b""
        job, die = link.job, link.die
        if die is not None and job is not None and die.pending > link.limit and not link.held:
            self._hold(link, True)
            while job.pending > TOO_MANY and job.force():
                pass
        return True

    def _line(self, link: _Link, line: bytes) -> None:
        self.events += 1
        try:
            event = parse(line)
            if isinstance(event, Hello):
                self._hello(link, event)
            elif link.job is None or link.die is None:
                raise BadEvent("an event before hello")
            else:
                link.job.feed(link.die, event, time.monotonic())
                if isinstance(event, End):
                    self._answer(link)
        except BadEvent as error:
            self._problem(link, str(error))
        except Exception as error:  # a mistake in the analyser must not take the job's output with it
            self._problem(link, f"internal error of the analyser: {error!r}\n{traceback.format_exc()}")
            link.good = False

    def _hello(self, link: _Link, hello: Hello) -> None:
        if link.die is not None:
            raise BadEvent("a second hello")
        job = self._jobs.get(hello.job)
        if job is None:
            self.jobs_seen += 1
            job = self._jobs[hello.job] = Job(hello.job)
        self._idle.pop(hello.job, None)
        link.job, link.die = job, job.join(hello)

    def _answer(self, link: _Link) -> None:
        assert link.job is not None
        with contextlib.suppress(OSError):
            link.sock.send(json.dumps({"reports": len(link.job.reports)}).encode() + b"\n")

    def _problem(self, link: _Link, text: str) -> None:
        if len(self.problems) < PROBLEMS:
            self.problems.append(f"{link.who()} sent something that cannot be used: {text}")
        elif len(self.problems) == PROBLEMS:
            self.problems.append("... and more")

    def _closed(self, link: _Link) -> None:
        if not link.held:
            self._selector.unregister(link.sock)
        link.sock.close()
        self._links.discard(link)
        job, die = link.job, link.die
        if job is None or die is None:
            return
        if link.rest and link.good and die.ended:
            self._problem(link, f"half a line: {link.rest[:60]!r}")
        job.leave(die)
        if job.over():
            self._over(job)
        elif all(d.gone for d in job.dies.values()):
            self._idle[job.name] = time.monotonic()

    def _over(self, job: Job) -> None:
        """Keeps what was found, and nothing else."""
        if self._jobs.pop(job.name, None) is not job:
            return
        self._idle.pop(job.name, None)
        job.finish()
        if job.forced and all(die.ended for die in job.dies.values()):
            self.problems.append(
                f"job {job.name[:8]}: {job.forced} events waited for others that never came; the check of what "
                "followed them is not complete"
            )
        room = KEPT - len(self._found)
        found = list(job.reports)
        self._found += found[:room]
        self.dropped += len(found) - len(found[:room]) + job.reports.more

    # --- the end

    def text(self, shown: Iterable[Report] = ()) -> str:
        """All reports but those ``shown`` before, and what went wrong with the check itself."""
        parts = [text_of(self.reports(), {report.key() for report in shown})]
        parts += [f"strata check: {problem}\n" for problem in self.problems]
        if self.dropped:
            parts.append(f"strata check: {self.dropped} more reports were not kept\n")
        return "".join(parts)

    def save(self, path: str) -> None:
        """Writes the reports as JSON lines, one each, and a last line about the whole."""
        with open(path, "w", encoding="utf-8") as file:
            for report in self.reports():
                file.write(json.dumps(report.json()) + "\n")
            whole = {"kind": "summary", "reports": len(self.reports()), "jobs": self.jobs_seen, "events": self.events,
                     "problems": self.problems, "dropped": self.dropped}  # fmt: skip
            file.write(json.dumps(whole) + "\n")

    @property
    def clean(self) -> bool:
        """Whether nothing was found, and the check was complete."""
        return not (self.reports() or self.problems or self.dropped)


def main(arguments: list[str]) -> int:
    """``strata check-server``: serves until its command, or itself, is ended; 65 if there are reports."""
    import argparse
    import signal
    import subprocess
    import sys

    parser = argparse.ArgumentParser(
        prog="strata check-server",
        description="Checks all jobs that are started with STRATA_CHECK=NAME, and prints what it has found at the end.",
    )
    parser.add_argument("--name", help="of the abstract Unix socket; a random one if left out")
    parser.add_argument("--json", metavar="FILE", help="gets the reports as JSON lines")
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="run it with STRATA_CHECK set, and end with it")
    given = parser.parse_args(arguments)
    if given.json:
        with open(given.json, "w"):  # before the jobs, not after
            pass
    server = Server(given.name)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: server.stop())
    status = 0
    child: subprocess.Popen[bytes] | None = None
    if given.command:
        child = subprocess.Popen(given.command, env={**os.environ, "STRATA_CHECK": server.name})
        signal.signal(signal.SIGCHLD, lambda *_: server.stop() if child and child.poll() is not None else None)
        if child.poll() is not None:
            server.stop()
    else:
        print(f"STRATA_CHECK={server.name}", flush=True)
    try:
        server.run()
        if child is not None:
            status = child.wait()
            status = status if status >= 0 else 128 - status
        if given.json:
            server.save(given.json)
        sys.stderr.write(server.text())
        return status or (0 if server.clean else FOUND)
    finally:
        if child is not None and child.poll() is None:
            child.terminate()
        server.close()


if __name__ == "__main__":
    import sys
    sys.exit(main(sys.argv[1:]))
