"""Runs each C program of this folder, without sanitizers; .ci/run adds those."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import ctest  # noqa: E402

HEADERS = sorted((ROOT / "strata" / "_core" / "include").glob("*.h"))


@pytest.mark.parametrize("source", ctest.find(ROOT, ""), ids=lambda p: p.stem)
@pytest.mark.hard_timeout(300)
def test_program(source):
    result = ctest.one(ROOT, source, "plain", timeout=120)
    if result != "ok":
        pytest.skip(result)


@pytest.mark.parametrize("header", HEADERS, ids=lambda p: p.name)
def test_header_stands_alone(header):
    ctest.check_header(ROOT, header, ctest.compiler())
