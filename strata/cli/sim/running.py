"""Cases simulated one after the other, or by several processes; results come in the order of the cases."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from strata.cli.sim.cases import Case, predict, row
from strata.errors import StrataError
from strata.launch import procs

ALONE_S = 2.0  # before other processes are started, which takes a while itself
AHEAD = 4  # cases a process that are handed out


def work(case: Case) -> dict[str, Any]:
    """A row; ``error``: why there is none."""
    try:
        return row(case, predict(case))
    except (StrataError, ValueError, MemoryError) as error:
        return {"error": str(error) or type(error).__name__}


def results(cases: list[Case], jobs: int | None) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Each case with its row.  ``jobs``: processes; None: this one, and if that takes long all CPUs."""
    begin, most = time.monotonic(), len(os.sched_getaffinity(0)) if jobs is None else jobs
    progress = Progress(len(cases))
    number = 0
    try:
        while number < len(cases) and (most == 1 or (jobs is None and time.monotonic() - begin < ALONE_S)):
            progress.show(number, cases[number])
            found = work(cases[number])
            progress.clear()
            yield cases[number], found
            number += 1
        if number < len(cases):
            yield from _shared(cases, number, min(most, len(cases) - number), progress)
    finally:
        progress.clear()


def _shared(cases: list[Case], number: int, jobs: int, progress: Progress) -> Iterator[tuple[Case, dict[str, Any]]]:
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin, (os.getpid(),))
    done = False
    try:
        waiting: deque[tuple[Case, Future[dict[str, Any]]]] = deque()
        left = iter(cases[number:])
        while True:
            while len(waiting) < jobs * AHEAD and (case := next(left, None)) is not None:
                waiting.append((case, pool.submit(work, case)))
            if not waiting:
                break
            case, future = waiting.popleft()
            progress.show(number, case)
            try:
                found = future.result()
            except BrokenProcessPool:
                raise StrataError(
                    "a process that simulated was killed (out of memory?): fewer at once (-j 1), or smaller cases"
                ) from None
            progress.clear()
            yield case, found
            number += 1
        done = True
    finally:
        if not done:
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(parent: int) -> None:
    """In each process: Ctrl-C ends it without a word, and so does the end of ``parent``, however that comes."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    procs.die_with(parent)


class Progress:
    """A bar on stderr, if that is a terminal."""

    def __init__(self, cases: int) -> None:
        self.cases = cases
        self.shown = sys.stderr.isatty() and cases > 1
        self.begin = time.monotonic()

    def show(self, done: int, case: Case) -> None:
        """That so many are done, and this one is next."""
        if not self.shown:
            return
        v, width = case.variant, 24
        filled = width * done // self.cases
        left = (time.monotonic() - self.begin) / done * (self.cases - done) if done else 0.0
        text = f"[{'#' * filled}{'.' * (width - filled)}] {done}/{self.cases}"
        text += f" {left:.0f} s left" if left >= 1 else ""
        sys.stderr.write(f"\r\x1b[K{text}  {v.operation} {v.ranks} ranks {case.nbytes} B")
        sys.stderr.flush()

    def clear(self) -> None:
        """Takes the bar away."""
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
