"""The prepared examples of docs/profiling.md, traced for real: what was planted is what strata trace names first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def traced(tmp_path, words, env):
    """What strata trace says of an example."""
    example, *more = words
    file = tmp_path / "t.json.gz"
    command = [sys.executable, "-m", "strata.launch", "-n", "4", "--trace", file, ROOT / "examples" / example, *more]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, **env})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    command = [sys.executable, "-m", "strata.cli", "trace", file]
    told = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert told.returncode == 0, told.stderr
    return told.stdout


@pytest.mark.parametrize(
    "words, first",
    [
        (("slow_die.py",), "die 3 is late"),
        (("slow_die.py", "--slow", "1"), "die 1 is late"),
        (("imbalance.py",), "cores are out of balance in all_to_all_v"),
    ],
)
def test_what_was_planted_is_named_first(words, first, tmp_path):
    told = traced(tmp_path, words, {})
    assert told.startswith(first), told


@pytest.mark.parametrize(
    "words, found, env",
    [
        (("exposed.py",), "communication is exposed", {}),
        (("late_registration.py",), "late registrations: pages that were mapped on first use",
         {"STRATA_REGISTRATION": "just_in_time"}),
    ],
)  # fmt: skip
def test_what_was_planted_is_told(words, found, env, tmp_path):
    """Not always first: on busy CPUs a die that the scheduler makes late costs more than these do."""
    told = traced(tmp_path, words, env)
    assert found in told, told
