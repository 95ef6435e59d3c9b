"""What fuzzing has found once is run again: cases of the C targets, and files that loaders read."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / "tests" / "fuzz" / "found"
sys.path.insert(0, str(ROOT / "tools"))

import fuzz  # noqa: E402

TARGETS = sorted(folder.name for folder in FOUND.iterdir() if folder.name != fuzz.LOADERS)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.hard_timeout(300)  # it is compiled
def test_cases_of_a_target(name):
    assert fuzz.replay(name, fuzz.made(name, libfuzzer=False, quickly=True)) > 0


def test_files_of_loaders():
    files = [str(path) for path in sorted((FOUND / fuzz.LOADERS).iterdir())]
    program = [sys.executable, str(fuzz.FOLDER / "loaders.py"), *files]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
