"""``strata dump`` and ``strata-run --dump``: what dies did last, also after their death."""

import json
import os
import signal

import pytest
from launching import Running, all_there, run, sleeper, until
from test_top import START, command, look, the_job

from strata.errors import InvalidArgument
from strata.inspection import saving

DIES_OUTSIDE = START + """
x = strata.ones(1000)
for _ in range(5):
    world.all_reduce(x)
there()
if world.rank == 2:
    time.sleep(1000)
world.all_reduce(x)
"""


def test_a_die_that_is_killed_outside_operations(tmp_path):
    path = tmp_path / "new/hang.json"
    with Running("-n", 4, "--dump", path, sleeper(tmp_path, DIES_OUTSIDE), tmp_path) as running:
        all_there(tmp_path, 4)
        job = the_job(running)
        seen = until(lambda: (s := look(job)) and {w["rank"] for w in s["waits"]} == {0, 1, 3} and s, "three wait")
        os.kill(seen["dies"][2]["pid"], signal.SIGKILL)
        status, _, said = running.end()
    said = said.decode()
    assert status == 128 + signal.SIGKILL
    assert "strata-run: rank 2 was in no operation; ranks 0-1, 3 waited for it in all_reduce #7 of world\n" in said
    assert f"is in {path} (strata dump {path})" in said
    assert said.splitlines()[-1].startswith("strata-run: rank 2 of 4 failed")
    saved = saving.load(str(path))
    last = [die["records"][-1] for die in saved["dies"]]
    assert [r["number"] for r in last] == [7, 7, 6, 7] and saved["dies"][2]["state"] == "dead"
    status, shown = command("dump", path, "--last", 9)
    assert status == 0 and "strata-run: rank 2 failed" in shown and "all_reduce #7 of world" in shown
    assert len(shown.partition("seconds  rank")[2].splitlines()) == 1 + 9
    status, shown = command("dump", path, "--json")
    assert json.loads(shown) == saved


def test_a_die_that_is_killed_inside_an_operation(tmp_path):
    body = START + """
there()
if world.rank < 2:
    world.barrier()
time.sleep(1000)
"""
    with Running("-n", 3, "--dump-dir", tmp_path / "dumps", sleeper(tmp_path, body), tmp_path) as running:
        all_there(tmp_path, 3)
        job = the_job(running)
        seen = until(lambda: (s := look(job)) and {w["rank"] for w in s["waits"]} == {0, 1} and s, "two wait")
        os.kill(seen["dies"][1]["pid"], signal.SIGKILL)
        status, _, said = running.end()
    assert status == 128 + signal.SIGKILL
    assert b"strata-run: rank 1 died in barrier #2 of world; rank 0 was there, too\n" in said
    (file,) = (tmp_path / "dumps").iterdir()
    assert file.name == f"strata.{job.token[:8]}.json"
    saved = saving.load(str(file))
    assert saved["dies"][1]["state"] == "dead"
    assert [r["phase"] for r in saved["dies"][1]["operations"]] == ["arrival"]
    assert "died in it (arrival)" in command("dump", file)[1]


def test_a_time_out_says_who_was_waited_for(tmp_path):
    body = START + """
if world.rank:
    time.sleep(1000)
world.barrier()
"""
    done = run("-n", 3, "--timeout", 3, "--grace", 0.2, sleeper(tmp_path, body), tmp_path)
    assert done.returncode == 124
    assert b"strata-run: rank 0 waits for ranks 1-2 in barrier #2 of world since" in done.stderr


def test_a_job_that_goes_well_leaves_no_dump(tmp_path):
    done = run("-n", 2, "--dump", tmp_path / "d.json", sleeper(tmp_path, START), tmp_path)
    assert done.returncode == 0 and not (tmp_path / "d.json").exists() and done.stderr == b""


def test_a_running_job_is_saved_and_shown(tmp_path):
    body = START + """
there()
world.barrier() if world.rank else time.sleep(1000)
"""
    with Running("-n", 2, sleeper(tmp_path, body), tmp_path) as running:
        all_there(tmp_path, 2)
        job = the_job(running)
        until(lambda: look(job)["waits"], "rank 1 waits")
        for die in look(job)["dies"]:
            os.kill(die["pid"], signal.SIGSTOP)
        status, said = command("dump", running.pid, "-o", tmp_path / "d.json")
        assert status == 0 and said.startswith(f"{tmp_path / 'd.json'}: ")
        status, said = command("dump", running.pid)
        assert "rank 1 waits for rank 0 in barrier #2 of world since" in said
        assert "in progress (arrival)" in said and " so far" in said
    status, said = command("dump", tmp_path / "d.json")
    assert status == 0 and "in progress (arrival)" in said


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "strata dump 0"}', '{"format": "strata dump 1"}',
                                  '{"format": "strata dump 1", "dies": 5}'])  # fmt: skip
def test_files_that_are_no_dumps_are_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    status, said = command("dump", path)
    assert status == 2 and "is no dump of strata" in said and "Traceback" not in said
    with pytest.raises(InvalidArgument):
        saving.load(str(path))
