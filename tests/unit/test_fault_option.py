"""STRATA_FAULT: what it may say, whom it means, and what a wrong one gets."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from strata._core.checked import arming
from strata.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
POINTS = tuple(re.findall(r"POINT\((\w+)\)", (ROOT / "strata/_core/include/st_fault_points.h").read_text()))


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("DONE_BEFORE", (None, "DONE_BEFORE", 1, "kill", 0)),
        ("done_before:3", (None, "DONE_BEFORE", 3, "kill", 0)),
        ("2@DONE_BEFORE:3:kill", (2, "DONE_BEFORE", 3, "kill", 0)),
        ("*:100:stop", (None, None, 100, "stop", 0)),
        (" 0@ARRIVE_AFTER:1:sleep=2.5 ", (0, "ARRIVE_AFTER", 1, "sleep", 2_500_000)),
    ],
)
def test_what_it_says(text, wanted):
    assert arming.parse(text, POINTS) == wanted


@pytest.mark.parametrize(
    "text", ["DONE_BEFORE:0", "DONE_BEFORE:x", "DONE_BEFORE:1:burn", "a@DONE_BEFORE", "DONE_BEFORE:1:sleep", ":1"]
)
def test_nonsense(text):
    with pytest.raises(ConfigError, match=r"\[RANK@\]POINT\[:NTH"):
        arming.parse(text, POINTS)


def test_no_such_point():
    with pytest.raises(ConfigError, match="no fault point DONE_BEFOR; did you mean DONE_BEFORE?"):
        arming.parse("DONE_BEFOR:2", POINTS)


def test_points_are_placed_once_and_described():
    """Each has a place in the core, and a comment."""
    headers = sorted((ROOT / "strata/_core/include").glob("*.h"))
    used = re.findall(r"\bST_FAULT\((\w+)\)", "".join(h.read_text() for h in headers if h.name != "st_fault.h"))
    assert sorted(used) == sorted(POINTS)
    text = (ROOT / "strata/_core/include/st_fault_points.h").read_text()
    assert len(re.findall(r"POINT\(\w+\) +/\* \S.* \*/", text)) == len(POINTS) == len(set(POINTS))


def ran(code, **env):
    env = {key: value for key, value in os.environ.items() if not key.startswith("STRATA_")} | env
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)


def test_the_release_core_has_none():
    """A process that has loaded it, as a forked one has its parent's, says so."""
    done = ran("import strata, os; strata.stats; from strata import bootstrap\n"
               "os.environ['STRATA_FAULT'] = 'DONE_BEFORE'\nstrata.init()")  # fmt: skip
    assert done.returncode == 1 and "ConfigError" in done.stderr and "has loaded the release core" in done.stderr


@pytest.fixture
def checked():
    """Skips where the checked core was not built."""
    if not list((ROOT / "strata/_core/checked").glob("hooks*.so")):
        pytest.skip("the checked core was not built (STRATA_CHECKED_CORE=0)")


def test_in_a_die(checked):
    code = "import strata; strata.init(); print(strata.world().all_reduce(strata.ones(3)).sum())"
    assert ran(code, STRATA_FAULT="JOIN_AFTER").returncode == -9
    assert ran(code, STRATA_FAULT="1@JOIN_AFTER").stdout == "3.0\n"
    assert ran(code, STRATA_FAULT="WORD_AFTER:1:sleep=1").stdout == "3.0\n"
    done = ran(code, STRATA_FAULT="JOIN_AFTR")
    assert done.returncode == 1 and "did you mean JOIN_AFTER?" in done.stderr


def test_hooks(checked):
    """A test arms a point in its die, and asks what was reached."""
    code = """if True:
        import strata
        from strata._core.checked import hooks
        strata.init()
        before = hooks.reached()["WORD_AFTER"]
        hooks.arm("WORD_AFTER", 2, "kill")
        x = strata.empty(1, "u1")
        assert hooks.reached()["WORD_AFTER"] == before + 1
        print("here", flush=True)
        y = strata.empty(4 << 20, "u1")"""
    done = ran(code, STRATA_CORE="checked")
    assert (done.returncode, done.stdout) == (-9, "here\n"), done.stderr
