"""Cgroups that a test makes and takes away again."""

import contextlib
import os
import time
from pathlib import Path

import pytest

BOUND = 20.0  # seconds for what has ended to be counted no more


@contextlib.contextmanager
def cgroup(controller, first, second, limit):
    """A cgroup with a limit in the file ``first`` (version 1) or ``second`` (version 2): its folder, in whose
    cgroup.procs pids are written.  Skips the test where none can be made."""
    for top, name in ((f"/sys/fs/cgroup/{controller}", first), ("/sys/fs/cgroup", second)):
        folder = Path(top, f"strata-test-{os.getpid()}")
        try:
            folder.mkdir()
        except OSError:
            continue
        if (folder / name).exists():
            break
        folder.rmdir()
    else:
        pytest.skip(f"NOT TESTED: no cgroup of {controller} can be made here")
    try:
        (folder / name).write_text(str(limit))
        yield folder
    finally:
        end = time.monotonic() + BOUND
        while True:  # what has ended is still counted for a moment
            try:
                folder.rmdir()
                break
            except OSError:
                assert time.monotonic() < end, "the cgroup keeps processes"
                time.sleep(0.01)
