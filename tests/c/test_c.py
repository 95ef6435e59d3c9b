"""Runs each C program of this folder, quickly compiled; .ci/run adds optimised ones and sanitizers.

STRATA_TEST_C=plain (or asan, tsan): in that mode of tools/ctest.py here.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import ctest  # noqa: E402

MODE = os.environ.get("STRATA_TEST_C", "quick")


@pytest.fixture(scope="module")
def programs(request):
    """The programs of the tests that are to run, or why they were not built; one compiler for each CPU."""
    wanted = {item.callspec.params["source"] for item in request.session.items if "programs" in item.fixturenames}

    def made(source):
        try:
            return ctest.made(ROOT, source, MODE)
        except ctest.Failed as failure:
            return failure

    with ThreadPoolExecutor(ctest.jobs()) as pool:
        return dict(zip(wanted, pool.map(made, wanted), strict=True))


@pytest.mark.parametrize("source", ctest.find(ROOT, ""), ids=lambda p: p.stem)
@pytest.mark.hard_timeout(600)  # the first one waits until all are built
def test_program(programs, source):
    if isinstance(programs[source], ctest.Failed):
        raise programs[source]
    result = ctest.one(programs[source], MODE, timeout=120)
    if result != "ok":
        pytest.skip(result)


def test_headers_stand_alone():
    ctest.check_headers(ROOT, ctest.compiler())
