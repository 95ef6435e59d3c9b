"""The guards of conftest.py are shown tests that hang and leak, and must say so."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"


def run(tmp_path, text, conftest=None):
    # A shorter grace, since what is planted here never goes away by itself.
    text_of_it = (conftest or CONFTEST.read_text()).replace("GRACE = 3.0", "GRACE = 0.5")
    (tmp_path / "conftest.py").write_text(text_of_it)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    hard_timeout: limit\n")
    (tmp_path / "test_planted.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_header_prints_what_replays_the_run(tmp_path):
    text = (
        "from hypothesis import given, strategies as st\n"
        "@given(st.integers())\ndef test_x(n): print('drew', n)\n"
    )
    status, output = run(tmp_path, text)
    seed = output.split("--hypothesis-seed=")[1].split()[0]
    assert status == 0 and "--hypothesis-profile=default" in output

    def drawn(output):
        return [line for line in output.splitlines() if line.startswith("drew")]

    line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", f"--hypothesis-seed={seed}"]
    again = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60).stdout
    assert len(drawn(output)) > 10 and drawn(output) == drawn(again)


def test_a_test_that_cannot_be_interrupted_ends_the_run(tmp_path):
    text = (
        "import ctypes, pytest, signal\n"
        "@pytest.mark.hard_timeout(0.3)\ndef test_stuck():\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n"
        "    ctypes.PyDLL(None).sleep(30)  # in C, with the interpreter's lock held\n"
    )
    conftest = CONFTEST.read_text()
    assert "HARD_EXIT = 30.0" in conftest
    status, output = run(tmp_path, text, conftest.replace("HARD_EXIT = 30.0", "HARD_EXIT = 0.5"))
    assert status == 1 and "Timeout" in output and "in test_stuck" in output


def test_what_is_too_slow_or_leaves_something_behind_fails_and_the_others_run(tmp_path):
    path = Path("/dev/shm") / f"strata-planted-{os.getpid()}"
    text = (
        "import subprocess, time, pytest\n"
        "@pytest.mark.hard_timeout(0.3)\ndef test_slow():\n"
        "    try: time.sleep(30)\n    except Exception: pass\n"
        "def test_after_it(): pass\n"
        "def test_process(): open('pid', 'w').write(str(subprocess.Popen(['sleep', '77']).pid))\n"
        "def test_after_the_process(): pass\n"
        f"def test_file(): open({str(path)!r}, 'w').close()\n"
        "def test_last(): pass\n"
    )
    try:
        status, output = run(tmp_path, text)
    finally:
        path.unlink(missing_ok=True)
    pid = int((tmp_path / "pid").read_text())
    assert status == 1 and "1 failed, 5 passed, 2 errors" in output, output
    assert "FAILED test_planted.py::test_slow" in output and "TimeLimit" in output
    for name, what in (("process", f"process {pid}: sleep 77"), ("file", str(path))):
        said = next(line for line in output.splitlines() if line.startswith(f"ERROR test_planted.py::test_{name} "))
        assert "AssertionError: left behind: " in said
        assert f"left behind: {what}" in output
    try:
        assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # its parent is gone too
    except psutil.NoSuchProcess:
        pass


def test_a_pool_of_a_session_is_no_leak_until_the_run_ends(tmp_path):
    text = (
        "import subprocess, pytest\n"
        "@pytest.fixture(scope='session')\ndef pool():\n"
        "    p = subprocess.Popen(['sleep', '78'])\n    yield p\n    {end}\n"
        "def test_one(pool): pass\ndef test_two(pool): pass\n"
    )
    status, output = run(tmp_path, text.format(end="p.kill(); p.wait()"))
    assert status == 0, output
    status, output = run(tmp_path, text.format(end="pass"))
    assert status == 1 and "left behind by the run: process" in output and "2 passed" in output
