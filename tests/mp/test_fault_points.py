"""Dies that end or stop at steps of operations: a few of the trials that tools/fault_trials.py runs by the thousand."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = os.environ.get("STRATA_TEST_SECONDS", "6")  # of drawn trials; the machine says how many they are
FOUND = (  # what such trials have found once, or seldom come to
    "operation=foreign,nbytes=300000,n=3,victims=1,path=mte,registration=just_in_time,fault=ALL_ARRIVED:3:kill",
    "operation=foreign,nbytes=300000,n=3,victims=1,path=sdma,registration=just_in_time,fault=ALL_ARRIVED:3:kill",
    "operation=stream,nbytes=100000,n=2,victims=1,path=mte,fault=BEGIN_AFTER:4:kill",
    "operation=grow,n=4,victims=0,fault=INVITE_OFFERED:1:kill,delay=-1",  # who lets successors in dies
    "operation=return,n=3,victims=2,fault=TAKEOVER_PAGES:1:kill,delay=-1",
    "operation=exchange,nbytes=40,n=8,victims=2,path=mte,fault=SEND_BEFORE:3:kill,salt=1",
)


@pytest.fixture(autouse=True)
def checked():
    """Skips where the checked core was not built."""
    if not list((ROOT / "strata/_core/checked").glob("hooks*.so")):
        pytest.skip("the checked core was not built (STRATA_CHECKED_CORE=0)")


def tool(*args):
    """Runs the tool as a developer does: it loads the checked core, which this process has not."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("STRATA_")}
    done = subprocess.run([sys.executable, str(ROOT / "tools/fault_trials.py"), *args], env=env, cwd=ROOT,
                          capture_output=True, text=True, timeout=110)  # fmt: skip
    print(done.stdout[-20_000:])
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def test_drawn_trials():
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")
    said = tool("40", "--seed", str(seed), "--seconds", SECONDS, "-v")
    assert "fault points hit" in said


@pytest.mark.parametrize("trial", FOUND)
def test_found_once(trial):
    tool("--trial", trial)
