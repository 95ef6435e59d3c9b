"""--trace-sample: looks at the dies' threads from outside, some times a second: what the kernel says they do."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from strata.bootstrap import Job

__all__ = ["Sampler"]

STATES = {"R": "running", "S": "sleeping", "D": "in the kernel", "T": "stopped", "t": "stopped", "Z": "ended"}
MOST = 1 << 20  # samples that change something, of all threads


class Sampler:
    """A thread of the launcher's.  ``hertz``: looks a second.

    What it knows of a thread is a list of (CLOCK_MONOTONIC ns, state, CPU), one for each change.
    """

    def __init__(self, job: Job, hertz: float) -> None:
        self._job, self._step = job, 1.0 / hertz
        self._seen: dict[tuple[int, int], tuple[str, list[tuple[int, str, int]]]] = {}
        self._left = MOST
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strata-sample", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._over.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._step, time.monotonic())
            for rank in range(self._job.ndies):
                self._look(rank, self._job.die_info(rank)["pid"])

    def _look(self, rank: int, pid: int) -> None:
        if not pid:
            return
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return
        for word in threads:
            try:
                with open(f"/proc/{pid}/task/{word}/stat", "rb") as file:
                    head, _, rest = file.read().rpartition(b")")
            except OSError:  # it has just ended
                continue
            fields = rest.split()
            name = head.partition(b"(")[2].decode(errors="replace")
            state, cpu = STATES.get(fields[0].decode(), "unknown"), int(fields[36])
            _, seen = self._seen.setdefault((rank, int(word)), (name, []))
            if self._left > 0 and (not seen or seen[-1][1:] != (state, cpu)):
                self._left -= 1
                seen.append((time.monotonic_ns(), state, cpu))

    def end(self) -> dict[int, list[tuple[str, list[tuple[int, int, str, int]]]]]:
        """Of each die its threads: name, and (begin, end, state, CPU), times as CLOCK_MONOTONIC ns."""
        self._over.set()
        self._thread.join()
        now, found = time.monotonic_ns(), {}
        for (rank, tid), (name, seen) in sorted(self._seen.items()):
            ends = [when for when, _, _ in seen[1:]] + [now]
            spans: list[Any] = [(at, end, state, cpu) for (at, state, cpu), end in zip(seen, ends, strict=True)]
            found.setdefault(rank, []).append((f"{name} {tid}", spans))
        return found
