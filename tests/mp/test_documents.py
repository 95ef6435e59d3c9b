"""The Python blocks of README.md and docs/ run as they stand."""

import io
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import strata
from strata import sdma

ROOT = Path(__file__).parents[2]
# README's of spaces is tested with vmm, docs/sdma.md's as the program that it is; interchange.md's reads a file,
# workloads.md's and machines.md's are in tests/unit; checking.md's has a bug on purpose (test_check_launch.py).
BLOCKS = [("README.md", k) for k in (0, 1, 2)] + [("docs/algorithms.md", 0), ("docs/algorithms.md", 1)]
BLOCKS += [("docs/capture.md", 0), ("docs/clock.md", 0), ("docs/streams.md", 0), ("docs/streams.md", 1)]
BLOCKS += [("docs/simulation.md", 0), ("docs/moe.md", 0), ("docs/moe.md", 1), ("docs/moe.md", 2)]
BLOCKS += [("docs/moe-timing.md", 0), ("docs/faults.md", 0), ("docs/persistent.md", 0), ("docs/tracing.md", 0)]


def blocks(document):
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.S)


def run(group, document, code):
    """With the names that the text around a block takes for granted."""
    n = group.size
    names = {
        "print": partial(print, file=io.StringIO()), "strata": strata, "np": np, "g": group,
        "x": strata.full(n, group.rank, "f4"), "y": strata.ones(n, "f4"), "out": strata.empty((n, n), "f4"),
        "a": np.eye(2), "b": np.ones((2, 2)),
        "dst": strata.empty(4, "u1"), "src": strata.ones(4, "u1"), "flag": sdma.flag(),
    }  # fmt: skip
    exec(compile(code, document, "exec"), names)
    group.barrier()


@pytest.mark.parametrize(("document", "k"), BLOCKS)
def test_blocks(four, document, k):
    code = blocks(document)[k]
    if document in ("docs/streams.md", "docs/moe.md"):
        code = "".join(blocks(document)[: k + 1])
    four.run(run, document, code.replace("512", "16"))  # README's proof for 512 dies takes half a minute


def test_none_is_left_out():
    found = [(d, k) for d in ("README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")))
             for k in range(len(blocks(d)))]  # fmt: skip
    elsewhere = {("README.md", 3), ("README.md", 4), ("docs/sdma.md", 0), ("docs/interchange.md", 0),
                 ("docs/workloads.md", 0), ("docs/machines.md", 0), ("docs/checking.md", 0),
                 ("docs/checking.md", 1), ("docs/faults.md", 1)}  # fmt: skip
    assert set(found) == {*BLOCKS, *elsewhere}
