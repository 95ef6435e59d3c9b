"""strata-run --check: what the launcher does with reports.  The scripts speak to the server themselves."""

import json
import re

import numpy as np
import pytest
from launching import ROOT, environment, run, until, write

import strata

SPEAK = """
    import json, os, socket, sys
    rank, size = int(os.environ["STRATA_RANK"]), int(os.environ["STRATA_WORLD_SIZE"])
    server = socket.socket(socket.AF_UNIX)
    server.connect("\\0" + os.environ["STRATA_CHECK"])

    def say(e, **fields):
        server.sendall(json.dumps({"e": e, "t": 0, **fields}).encode() + b"\\n")

    say("hello", job=os.environ["STRATA_JOB"], rank=rank, size=size, pid=os.getpid())
    say("site", id=1, file="prog.py", line=rank + 1, function="main", text="x[:] = 1")
"""
RACE = SPEAK + """
    say("acc", lo=0, hi=8, w=1, site=1, what="x[...] =")
    print("printed", rank)
    say("end")
    server.recv(100)
"""


def test_reports_come_after_the_output_and_make_the_status(tmp_path):
    script = write(tmp_path / "race.py", RACE)
    done = run("-n", 2, "--check-json", tmp_path / "found", script)
    assert done.returncode == 65, done.stderr
    assert sorted(done.stdout.split()) == [b"0", b"1", b"printed", b"printed"]
    assert b"strata check: race: rank" in done.stderr and b"prog.py:2 in main:  x[:] = 1" in done.stderr
    assert done.stderr.rstrip().endswith(b"strata check: 1 report (1 race)")
    race, whole = map(json.loads, (tmp_path / "found").read_text().splitlines())
    assert race["range"] == [0, 8] and whole["reports"] == 1


def test_without_reports_nothing_is_said(tmp_path):
    script = write(tmp_path / "well.py", SPEAK + '\n    say("end")\n    server.recv(100)\n')
    done = run("-n", 2, "--check", script)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_programs_own_status_stands(tmp_path):
    script = write(tmp_path / "fails.py", RACE + "\n    sys.exit(7)\n")
    done = run("-n", 2, "--check", script)
    assert done.returncode == 7 and b"strata check: race" in done.stderr


FAILING = {
    "raises": "raise ValueError('its own')",
    "exits": "sys.exit(3)",
    "killed": "os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("how", FAILING)
def test_of_a_program_that_fails_by_itself_only_that_is_said(tmp_path, how):
    script = write(tmp_path / "fails.py", f"""
    import os, sys, strata
    group = strata.world()
    group.barrier()
    if group.rank == 0:
        {FAILING[how]}
    group.barrier()
    """)
    done = run("-n", 2, "--check", script)
    assert done.returncode and b"strata check" not in done.stderr, done.stderr


def test_a_deadlock_is_shown_while_the_dies_hang(tmp_path):
    script = write(tmp_path / "hangs.py", SPEAK + """
    say("op", group=str(rank), name="group " + str(rank), n=1, op="barrier", members=[0, 1], site=1)
    sys.stdin.read() if rank == 0 else server.recv(100)
    """)
    import subprocess

    from launching import COMMAND

    with subprocess.Popen([*COMMAND, "-n", "2", "--check", "--grace", "0.1", script], stdin=subprocess.PIPE,
                          stderr=subprocess.PIPE, env=environment()) as job:  # fmt: skip
        try:
            said = []
            until(lambda: said.append(job.stderr.readline()) or said[-1].startswith(b"  Cure"), "a report")
        finally:
            job.terminate()
            rest = job.communicate(timeout=60)[1]
    assert b"ranks 0, 1 wait for each other" in said[0]
    assert rest.count(b"wait for each other") == 0 and b"1 report (1 deadlock)" in rest
    assert job.returncode == 128 + 15


def test_a_die_that_was_not_checked_is_said(tmp_path):
    done = run("-n", 1, "--check", write(tmp_path / "no.py", "print(1)"))
    assert done.returncode == 65 and b"no die was checked" in done.stderr


@pytest.mark.parametrize("what", ["absent/found", "."])
def test_a_file_that_cannot_be_written_is_an_error_before_the_job(tmp_path, what):
    done = run("-n", 1, "--check-json", tmp_path / what, write(tmp_path / "p.py", "print(1)"))
    assert done.returncode == 2 and not done.stdout and b"cannot be written" in done.stderr


def test_an_outer_server_serves_jobs_without_the_option(tmp_path):
    import subprocess
    import sys

    from launching import COMMAND

    script = write(tmp_path / "race.py", RACE)
    server = [sys.executable, "-m", "strata.checking.server", "--"]
    done = subprocess.run([*server, *COMMAND, "-n", "2", script], capture_output=True, timeout=60, env=environment())
    assert done.returncode == 65 and b"1 report (1 race)" in done.stderr


def test_the_program_of_the_documentation(tmp_path):
    """Its race is found whatever its dies' speed; of the report all but the order of the sides is as printed there."""
    text = (ROOT / "docs" / "checking.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.S)[1]
    script = write(tmp_path / "halo.py", code)
    done = run("-n", 2, "--check-json", tmp_path / "found", "halo.py", cwd=tmp_path)
    assert done.returncode == 65, done.stderr
    *races, whole = map(json.loads, (tmp_path / "found").read_text().splitlines())
    lines = code.splitlines()
    for race in races:
        assert race["kind"] == "race" and script.name in race["bytes"]
        sources = {lines[side["line"] - 1].strip() for side in race["sides"]}
        assert sources == {"mine[...] = step", "print(step, left[-1])"}
        frames = {file for side in race["sides"] for file, *_ in side["stack"]}
        assert frames == {str(script)}, "the launcher is no part of the program"
    assert len(races) == 1 and not whole["problems"]
    assert b"was barrier number 2 of world (halo.py:10)" in done.stderr or b"The last\n" in done.stderr


def test_the_tests_of_the_documentation():
    text = (ROOT / "docs" / "checking.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.S)[0]
    exec(code, {"strata": strata, "work": well})
    with pytest.raises(AssertionError, match="race"):
        exec(code, {"strata": strata, "work": badly})


def well():
    x = strata.zeros(8)
    strata.world().all_reduce(x)


def badly():
    """Reads the peer's result, which may not be there yet."""
    g = strata.world()
    x = strata.zeros(8)
    peer = strata.from_address(int(g.all_gather(np.array([strata.address(x)]))[g.rank - 1, 0]), 8)
    g.all_reduce(x)
    total = float(peer.sum())
    g.barrier()
    return total


def test_spawn_raises_what_the_check_finds():
    assert strata.spawn(well, 2, check=True) == [None, None]
    with pytest.raises(strata.SpawnError, match="has found misuse") as raised:
        strata.spawn(badly, 2, check=True)
    for part in ("float(peer.sum())", "all_reduce number 2 of world is over for rank"):
        assert part in " ".join(str(raised.value).split())
    with pytest.raises(strata.SpawnError, match="ZeroDivisionError"):
        strata.spawn(lambda: 1 // 0, 2, check=True)


@pytest.mark.unchecked("that nothing is imported is what it is about")
@pytest.mark.parametrize("checked", [False, True])
def test_an_ordinary_die_imports_nothing_of_it(tmp_path, checked):
    script = write(tmp_path / "which.py", """
        import sys
        import strata
        strata.init()
        strata.world().barrier()
        print(sorted(m for m in sys.modules if m.startswith("strata.checking")))
    """)
    done = run("-n", 2, *(["--check"] if checked else []), script)
    if not checked:
        assert done.stdout == b"[]\n[]\n" and done.returncode == 0
