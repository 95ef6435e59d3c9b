"""The prepared examples of docs/profiling.md, traced for real: what was planted is what strata trace names first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "words, first, env",
    [
        (("slow_die.py",), "die 3 is late", {}),
        (("slow_die.py", "--slow", "1"), "die 1 is late", {}),
        (("imbalance.py",), "cores are out of balance in all_to_all_v", {}),
        (("exposed.py",), "communication is exposed", {}),
        (("late_registration.py",), "registration is late on die", {"STRATA_REGISTRATION": "just_in_time"}),
    ],
)
def test_what_was_planted_is_named_first(words, first, env, tmp_path):
    example, *more = words
    file = tmp_path / "t.json.gz"
    command = [sys.executable, "-m", "strata.launch", "-n", "4", "--trace", file, ROOT / "examples" / example, *more]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, **env})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    command = [sys.executable, "-m", "strata.cli", "trace", file]
    told = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert told.stdout.startswith(first), told.stdout + told.stderr
