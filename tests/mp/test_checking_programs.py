"""Small programs with a bug each: the check finds it, and nothing in their twins without it."""

import importlib
import sys
from pathlib import Path

import pytest

import strata

PROGRAMS = Path(__file__).parents[1] / "checked_programs"
sys.path.insert(0, str(PROGRAMS))

import everything  # noqa: E402

NAMES = everything.names()


@pytest.fixture(scope="module")
def reports():
    """Of all programs, run one after another in a job of two dies."""
    with everything.Checked() as found:
        said = strata.spawn(everything.play, 2, NAMES)
    assert not any(said), said
    assert not found.problems
    return found.reports


@pytest.mark.parametrize("name", NAMES)
def test_the_bug_is_found_and_nothing_else(reports, name):
    kind = importlib.import_module(name).KIND
    wrong, right = everything.of(reports, name)
    assert not right, "\n".join(report.text() for report in right)
    assert wrong, "the bug was not found"
    for report in wrong:
        assert report.kind == kind, report.text()
        assert any("BUG" in side.place.text for side in report.sides), report.text()


def test_nothing_else_is_reported(reports):
    known = [report for name in NAMES for found in everything.of(reports, name) for report in found]
    assert all(report in known for report in reports), [r.text() for r in reports if r not in known]
