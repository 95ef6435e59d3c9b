"""Runs the test suite: the tests of several dies, and all others beside them.

Tests of dies mostly wait, for processes to start, to meet and to end, and most of the others use one
CPU: together they take little more than the longer of the two.  Each half is a pytest of its own.
The first one's output is shown as it comes, the second one's when both have ended.

With arguments it is one pytest, which gets them: what is asked for may be in either half.

Usage: python tools/suite.py [arguments of pytest]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

from common import ROOT

PYTEST = [sys.executable, "-m", "pytest"]
DIES = ["tests/mp"]
OTHERS = ["tests", "--ignore=tests/mp", "-o", "cache_dir=.pytest_cache/others"]


def halves() -> int:
    """Both halves at once; the status of the first that failed, else 0."""
    with tempfile.TemporaryFile() as said:
        others = subprocess.Popen([*PYTEST, *OTHERS], cwd=ROOT, stdout=said, stderr=subprocess.STDOUT)
        dies = subprocess.Popen([*PYTEST, *DIES], cwd=ROOT)
        try:
            statuses = [dies.wait(), others.wait()]
        except KeyboardInterrupt:  # they have got it too, and say where they were
            statuses = [dies.wait(), others.wait()]
        said.seek(0)
        print("\n== all but tests/mp", flush=True)
        sys.stdout.buffer.write(said.read())
    for name, status in zip(("tests/mp", "all but tests/mp"), statuses, strict=True):
        print(f"== {name}: {'passed' if status == 0 else f'FAILED, status {status}'}", flush=True)
    return next((status for status in statuses if status), 0)


def main(arguments: list[str]) -> int:
    return subprocess.call([*PYTEST, *arguments], cwd=ROOT) if arguments else halves()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
