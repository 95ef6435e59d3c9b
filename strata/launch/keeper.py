"""The keeper: forks the dies of one job, watches them, and decides when to end them."""

from __future__ import annotations

import contextlib
import mmap
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence

from strata.bootstrap import Job
from strata.launch import checks, procs
from strata.launch.die import Die
from strata.launch.dumping import Recorders
from strata.launch.forking import Forker
from strata.launch.front import PASSED_ON, Origin
from strata.launch.options import LAUNCHER_FAILED, TIMED_OUT, Options, put
from strata.launch.output import Forwarder
from strata.launch.plumbing import Plumbing
from strata.launch.restarts import Restarts
from strata.launch.sink import Sink
from strata.launch.times import collector
from strata.launch.verdict import Verdict
from strata.launch.weak import again

UNDYING = 5.0  # seconds after SIGKILL until the keeper gives a process up
REPEAT = 0.05  # seconds within which the same signal again is an echo, not impatience
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Keeper:
    """State of the job: who lives, who failed, what is being done about it, until when.

    ``stage`` is what was last done to end the dies: "" nothing, "grace" (a die
    failed; the others see it for themselves), then the signal "INT", "TERM", "KILL".
    """

    def __init__(
        self,
        options: Options,
        job: Job,
        link: socket.socket,
        origin: Origin,
        forwarder: Forwarder | None,
        keep: Sequence[int] = (),
        stdin: int | None = None,
    ) -> None:
        self.options = options
        self.job = job
        self.link = link
        link.setblocking(False)
        self.origin = origin
        self.forwarder = forwarder
        self.live: dict[int, int] = {}  # pid -> rank; not waited for, so the pid is theirs
        self.failures: list[tuple[int, int]] = []  # rank, status; in order of time
        self.statuses: dict[int, int] = {}  # of all that ended
        self.verdict: Verdict | None = None
        self.stage = ""
        self.deadline: float | None = None  # of the stage
        self.running: list[int] = []  # ranks that were alive when the keeper began to end them
        self.found = ""  # by --check, for spawn() to raise
        self.lost = False  # some process would not die
        self._expires = None if options.timeout is None else time.monotonic() + options.timeout
        self._stopped_at = 0.0
        self._strays = ""  # like stage, for what dies left behind
        self._known: set[int] = set()  # strays that have been asked to end
        self._interrupted = mmap.mmap(-1, mmap.PAGESIZE)
        self._asked: tuple[int, float] | None = None  # signal that the user has sent, and when
        self._impatient = False
        self._front = -1  # pidfd
        self.restarts = Restarts(options.restarts, options.n)
        self._plumbing = Plumbing(options, forwarder, stdin, self._log_failed)
        self._forker = Forker(options, job, origin, self._plumbing, (job.fd, *keep), self._interrupted)
        self._times = collector(job.token, options.n)
        self._check, self._recorders = checks.checker(options), Recorders(options, job)

    # --- starting

    def start(self) -> Die | None:
        """Forks the dies.  Returns None in the keeper and the die in each die."""
        self.job.serve()
        self._forker.title.set("strata-keeper")
        # What comes in between the fork and the die's own handlers waits for these.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        for rank in range(self.options.n):
            if (die := self._fork(rank)) or self.verdict:
                break
        if die is None:
            self._plumbing.close(self.options.restarts > 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return die

    def _fork(self, rank: int, incarnation: int = 0) -> Die | None:
        """Starts one die; the Die in it, None in the keeper."""
        try:
            pid, die = self._forker.fork(rank, incarnation)
        except OSError as error:
            self.end(Verdict(LAUNCHER_FAILED, self._forker.failed(rank, error)), "KILL")
            return None
        if die is None:
            self.live[pid] = rank
            return None
        die.keeper = self  # who lets go of its view of the space may close a descriptor that is another by then
        for own in filter(None, (self.link, self.job.serve(), self._times, self._check)):
            own.close()
        return die

    # --- the loop

    def run(self) -> int | Die:
        """Watches the job to its end; returns the exit status, or in a die that was started again the Die."""
        self._begin()
        while self.restarts.due or self.live or not self._strays_gone() or not self._output_done():
            while self.restarts.due:
                if die := self._start_again():
                    return die
            self._step()
        return self._conclude()

    def _start_again(self) -> Die | None:
        """Starts a die that is due, unless the job is being ended; the Die in it."""
        if self.verdict or self.stage:
            self._failed(*self.restarts.due.pop(0))
            return None
        rank, _, incarnation = self.restarts.next()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        die = self._fork(rank, incarnation)
        if die is None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if self.forwarder:
                self.forwarder.message(self.restarts.text())
        return die

    def _begin(self) -> None:
        self.selector = selectors.DefaultSelector()
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._wakeup = read
        self._register(read, self._children_ended)
        self._register(self.link.fileno(), self._front_says)
        self._register(self.job.fileno(), lambda _: self.job.accept())
        if self._times:
            self._register(self._times.fileno(), lambda _: self._times and self._times.accept())
        if self._check:
            self._register(self._check.start(), lambda _: self._message(self._check.urgent() if self._check else ""))
        with contextlib.suppress(AttributeError, OSError):  # no pidfd: the link's end tells
            self._front = os.pidfd_open(self.origin.front)
            self._register(self._front, lambda _: self._abandoned())
        if self.forwarder:
            self.forwarder.begin(self.selector, self._output_failed)
        self._recorders.begin()
        self._reap()

    def _register(self, fd: int, call: Callable[[int], None]) -> None:
        self.selector.register(fd, selectors.EVENT_READ, call)

    def _step(self) -> None:
        if self.forwarder:
            self.forwarder.on_time()  # before the wait: what has become possible must not wait
        times = [self.deadline, self._expires, self.forwarder.due() if self.forwarder else None]
        known = [t for t in times if t is not None]
        wait = max(0.0, min(known) - time.monotonic()) if known and not self._stopped_at else None
        for key, events in self.selector.select(wait):
            key.data(events)
        if not self._stopped_at:
            self._on_time(time.monotonic())

    def _on_time(self, now: float) -> None:
        if self._expires is not None and now >= self._expires:
            self._expires = None
            if self.live:
                from strata.launch.report import ranks_text

                left = ranks_text(list(self.live.values()))
                text = f"timed out after {self.options.timeout:g} s; still running: {left}"
                self.end(Verdict(TIMED_OUT, text), "TERM")
        if self.deadline is not None and now >= self.deadline:
            self._escalate()

    # --- dies that end

    def _children_ended(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._wakeup, 512)) == 512:
                pass
        self._reap()

    def _reap(self) -> bool:
        """Waits for what has ended; True when no child is left at all."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return False
                rank = self.live.pop(pid, None)
                self._known.discard(pid)
                if rank is not None:
                    self._ended(rank, os.waitstatus_to_exitcode(status))
        except ChildProcessError:
            return True

    def _ended(self, rank: int, status: int) -> None:
        self.statuses[rank] = status
        if not (status and not self.verdict and not self.stage and self.restarts.ask(rank, status)):
            self._failed(rank, status)

    def _failed(self, rank: int, status: int) -> None:
        """The die has ended for good, with this status."""
        if not self.live:
            self.deadline = None  # what is left are strays
        elif self.job.die_info(rank)["state"] == "absent":
            self.job.mark_dead(rank)  # those that wait for it to join need not
        # Once signals are out, how a die ends says nothing about it any more.
        if status and self.verdict is None and self.stage in ("", "grace"):
            self._recorders.look(f"rank {rank} failed")
            self.failures.append((rank, status))
            if self.live and self.options.on_failure == "kill":
                self._enter("grace")

    # --- ending the job

    def end(self, verdict: Verdict, stage: str) -> None:
        """Ends the job for a reason other than a die's failure, from ``stage`` on."""
        if self.verdict is None and not self.failures:
            self._recorders.ended(verdict.code, verdict.text)
            self.verdict = verdict
            self.running = sorted(self.live.values())
        self._enter(stage)

    def _enter(self, stage: str) -> None:
        order = ("", "grace", "INT", "TERM", "KILL")
        if order.index(stage) <= order.index(self.stage):
            return
        self.stage = stage
        self.deadline = time.monotonic() + (UNDYING if stage == "KILL" else self.options.grace)
        if stage == "INT":
            number = self.verdict.number if self.verdict and self.verdict.number else signal.SIGINT
            self._interrupted[0] = 1
            self._send(number)
        elif stage in ("TERM", "KILL"):
            self._send(signal.SIGTERM if stage == "TERM" else signal.SIGKILL)

    def _escalate(self) -> None:
        self.deadline = None
        if self.live:
            if self.stage == "KILL":
                self.lost = True
                self.live.clear()
            else:
                self._enter("KILL" if self.stage == "TERM" else "TERM")
        elif self._strays == "TERM":
            self._end_strays("KILL")
        elif self._strays == "KILL":
            self._strays = "lost"
            self.lost = True

    def _send(self, number: int, group: bool = True) -> None:
        for pid in self.live:
            procs.send(pid, number, group)

    def _strays_gone(self) -> bool:
        """Ends what dies have left behind: orphans come back to this process."""
        if self._strays == "lost":
            return True
        if self._reap():
            self.deadline = None
            return True
        self._end_strays(self._strays or ("KILL" if self.stage == "KILL" else "TERM"))
        return False

    def _end_strays(self, stage: str) -> None:
        """Signals the strays that are there now; their children follow as they become orphans."""
        if stage != self._strays:
            self._strays = stage
            self._known.clear()
            self.deadline = time.monotonic() + (UNDYING if stage == "KILL" else self.options.grace)
        for pid in procs.children():
            if pid not in self._known:
                self._known.add(pid)
                procs.send(pid, signal.SIGTERM if stage == "TERM" else signal.SIGKILL)

    # --- what comes from outside

    def _front_says(self, _events: int) -> None:
        try:
            numbers = self.link.recv(64)
        except OSError:
            numbers = b""
        if not numbers:
            self._abandoned()
        for number in numbers:
            self._signal(number)

    def _signal(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self._send(number)
            self._stopped_at = self._stopped_at or time.monotonic()
            with contextlib.suppress(OSError):
                self.link.send(b".")
        elif number == signal.SIGCONT:
            self._send(number)
            self._continued()
        elif number in ENDING or number == signal.SIGKILL:
            self._continued()
            self._asked_to_end(number)
        else:
            self._send(number, group=False)

    def _continued(self) -> None:
        if self._stopped_at:
            away, self._stopped_at = time.monotonic() - self._stopped_at, 0.0
            self.deadline = None if self.deadline is None else self.deadline + away
            self._expires = None if self._expires is None else self._expires + away

    def _asked_to_end(self, number: int) -> None:
        """A first signal goes to the dies; the same again kills them."""
        now, before, self._asked = time.monotonic(), self._asked, self._asked or (number, time.monotonic())
        if number == signal.SIGKILL or (before and before[0] == number and now > before[1] + REPEAT):
            self.end(Verdict(128 + number), "KILL")
            self._impatient = True
            if self._strays == "TERM":
                self._end_strays("KILL")
        elif before is None:
            text = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
            self.end(Verdict(128 + number, text, number), "TERM" if number == signal.SIGTERM else "INT")
        elif before[0] != number:
            self._enter("TERM")

    def _abandoned(self) -> None:
        """The front is dead: nobody reads, nobody waits; only cleaning up is left."""
        for fd in (self._front, self.link.fileno()):
            with contextlib.suppress(KeyError):  # one of the two has told before
                self.selector.unregister(fd)
        if self.forwarder:
            self.forwarder.discard()
        self.end(Verdict(128 + signal.SIGKILL), "KILL")

    def _output_failed(self, sink: Sink, error: OSError) -> None:
        if isinstance(error, BrokenPipeError):
            self.end(Verdict(128 + signal.SIGPIPE), "TERM")
        else:
            name = "output" if self.forwarder and sink is self.forwarder.out else "error"
            self.end(Verdict(LAUNCHER_FAILED, f"cannot write standard {name}: {error.strerror}"), "TERM")

    def _log_failed(self, path: str, error: OSError) -> None:
        self.end(Verdict(LAUNCHER_FAILED, f"cannot write {path}: {error.strerror}"), "TERM")

    def _message(self, text: str) -> None:
        if self.forwarder:
            self.forwarder.message(text)
        elif text:
            put(text)

    # --- the end

    def _output_done(self) -> bool:
        if self.forwarder is None:
            return True
        if self._impatient:  # nobody waits for a reader that sleeps
            self.forwarder.discard(blocked_only=True)
        self.forwarder.on_time()
        self.forwarder.end_writers()
        return self.forwarder.finished()

    def _conclude(self) -> int:
        """Says what went wrong, if anything did; returns the exit status."""
        code, text = 0, ""
        if self.verdict:
            code = self.verdict.code
            text = f"strata-run: {self.verdict.text}\n" if self.verdict.text else ""
        elif self.failures and self.forwarder:
            from strata.launch.report import Failure, failure_text

            failures = [Failure(rank, status) for rank, status in self.failures]
            root, text = failure_text(failures, self.forwarder.tails, self.options.n, self._recorders.lines,
                                      len(self.restarts.done), self.statuses)  # fmt: skip
            code = root.code
        if code:
            text = again() + text
        text = self._recorders.save(code) + text
        code = code or (LAUNCHER_FAILED if self._recorders.failed else 0)
        if self.lost:
            text = "strata-run: some processes could not be ended (killed, but still there)\n" + text
        said = self._times.finish(self.selector) if self._times else ""
        if self._times and self._times.failed:
            code = code or LAUNCHER_FAILED
        if self._check:
            found = self._check.finish(self.selector)
            shown = self.forwarder or self.failures or self.verdict
            said, self.found = (said + found.text, "") if shown else (said, found.text)
            code = code or found.code
        self._message(said + text if self.forwarder else said)
        while self.forwarder and not self.forwarder.finished():
            self._step()
        self.job.close()
        return code
