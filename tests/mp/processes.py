"""What tests ask about processes."""

import contextlib
import time

import psutil


def alive(processes, limit=5.0):
    """Those that are still there after a while; one that only waits to be reaped is not."""
    end = time.monotonic() + limit
    while True:
        left = []
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    left.append(process)
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.01)
