"""Files that cannot be written to their end: the error names the file, and half a file does not stay."""

import contextlib
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from strata import errors
from strata.cli.main import main
from strata.plan import Spec, build, save
from strata.plan.moe.routing import Routing
from strata.plan.table import Table
from strata.profile.chrome import Trace

LIMIT = 512  # bytes that a file may have


@contextlib.contextmanager
def small_files():
    """No file of this process grows beyond LIMIT, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def plan_all(name, *more):
    return lambda file: main(["plan", "all_to_all", "-n", "8", "-b", "1M", "-o", f"{file}{name}", *more])


def sim(option):
    sizes = ["-b", "8", "-e", "8M", "-f", "2", "--jobs", "1"]
    return lambda file: main(["sim", "all_gather", "-n", "4", *sizes, "--machine", "cm384", option, str(file)])


def table(file):
    Table("made", [("all_reduce", 2, 8 << k, {f"algorithm{j}": 1.0 for j in range(20)}) for k in range(40)]).save(file)


def routing(file):
    chance = np.random.default_rng(1)
    Routing(64, (tuple(chance.integers(0, 64, (500, 8)) for _ in range(4)),), "drawn").save(file)


def trace(file):
    made = Trace()
    for k in range(200):
        made.counter(0, f"counter {k}", [0.0, 1.0], {"value": [1.0, 2.0]})
    made.save(file)


CLI = {
    ".json": plan_all(".json"), ".npz": plan_all(".npz"), ".xml": plan_all(".xml"), ".goal": plan_all(".goal"),
    "sim csv": sim("--csv"), "sim json": sim("--json"),
    "workload": lambda file: main(["workload", "dlrm", "--json", str(file)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CLI)
def test_commands_name_the_file(tmp_path, capsys, name):
    file = tmp_path / "made"
    with small_files():
        status = CLI[name](file)
    said = capsys.readouterr().err.strip()
    assert status == 2 and str(file) in said and "File too large" in said and "\n" not in said, said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("save_it", [table, routing, trace], ids=lambda f: f.__name__)
def test_what_is_saved_names_the_file(tmp_path, save_it):
    file = tmp_path / "made"
    with small_files(), pytest.raises(OSError, match="File too large") as caught:
        save_it(file)
    assert str(caught.value.filename) == str(file)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_plain_file_stays():
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        save(build(Spec("all_gather", count=1 << 12, itemsize=1, nranks=2), 0), "/dev/full")
    assert Path("/dev/full").is_char_device()


def test_errors_that_have_a_name_keep_it_and_the_file(tmp_path):
    file = tmp_path / "kept"
    file.write_text("before")
    with pytest.raises(OSError, match="other"), errors.writing(file):
        raise OSError(2, "gone", "other")
    assert file.read_text() == "before"


CLOCKED = """
import strata
g = strata.world()
for _ in range(300):
    g.all_reduce(strata.ones(3))
"""


def launched(*arguments, **more):
    command = [sys.executable, "-m", "strata.launch", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, **more)


@pytest.mark.parametrize("option", ["--clock-trace", "--clock-json"])
def test_files_of_the_clock(tmp_path, option):
    """The job has run, and its launcher says that what was asked for is not there."""
    script = tmp_path / "clocked.py"
    script.write_text(CLOCKED)
    done = launched("-n", "2", "--clock", "cm384", option, "/dev/full", script)
    assert done.returncode == 125, done.stderr
    assert "cannot write /dev/full: No space left on device" in done.stderr, done.stderr


def test_a_limit_of_files_that_the_ub_space_does_not_fit(tmp_path):
    script = tmp_path / "clocked.py"
    script.write_text(CLOCKED)
    done = launched("-n", "2", script, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT)))
    assert done.returncode == 125, done.stderr
    assert "ulimit -f" in done.stderr and done.stderr.count("\n") == 1, done.stderr
