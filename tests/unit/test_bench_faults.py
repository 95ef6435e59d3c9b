"""bench/faults.py: what is said of a fault is what the ranks said, and what peers leave is counted."""

import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import faults  # noqa: E402
from faults_lib import jobs, measure, report  # noqa: E402
from versus_lib import contenders  # noqa: E402


def record(fault="kill", contender="strata", nbytes=8, **more):
    made = {"record": "fault", "contender": contender, "library": contender, "n": 3, "fault": fault, "bytes": nbytes,
            "how": ["error", "error"], "ms": [10.0, 30.0], "named": True, "ended_ms": 50.0, "status": 137, "went_on": 2}
    return {**made, **more}


def test_a_rank_has_an_error_or_is_ended_or_hears_nothing():
    error = {"event": "error", "time": 12.5, "text": "PeerDead: rank 3"}
    assert measure.outcome([{"event": "ready", "time": 1.0}, error], 12.0, 14.0) == ("error", 500.0)
    assert measure.outcome([{"event": "ready", "time": 1.0}], 12.0, 12.25) == ("ended", 250.0)
    assert measure.outcome([], 12.0, None) == ("nothing", None)


def test_words_and_spans():
    assert report.counted(["hang"] * 3) == "hang"
    assert report.counted(["hang", "error", "error"]) == "2 error, 1 hang"
    assert report.span([None, None]) == "-"
    assert report.span([20.2, 20.4]) == "20 ms"
    assert report.span([10.0, 30.0, None, 20.0]) == "20 ms (10-30)"
    assert [report.size_name(n) for n in (8, 1 << 16, 1 << 22, 1000)] == ["8 B", "64 KiB", "4 MiB", "1000 B"]


def test_survivors_go_on_only_if_all_do_in_every_round():
    assert report.aggregate([record(), record()])["went_on"] == "yes"
    assert report.aggregate([record(), record(went_on=1)])["went_on"] == "no"
    assert report.aggregate([record("stop", went_on=3)])["went_on"] == "yes"
    assert report.aggregate([record("stop", went_on=2)])["went_on"] == "no"


def test_what_nobody_saw_is_no_figure():
    found = report.aggregate([record(how=["nothing"] * 2, ms=[None] * 2, ended_ms=None, status=None, named=False,
                                     went_on=0)])
    assert (found["how"], found["ms"], found["ended"], found["status"]) == ("nothing", "-", "no", "runs")
    assert (found["named"], found["went_on"]) == ("no", "no")


@pytest.mark.parametrize(
    ("how", "status", "silent"),
    [(["right", "wrong"], 0, True), (["right", "wrong"], None, False), (["error", "wrong"], 0, False),
     (["right", "hang"], None, False)],
)  # fmt: skip
def test_a_wrong_answer_with_status_0_is_told(how, status, silent):
    rows = [record("counts", how=how, status=status, later=["right"] * 2, same_error=False, ms=[])]
    assert report.aggregate(rows)["silent"] is silent
    assert ("silently" in "".join(report.tables(rows))) is silent


def test_tables_have_a_row_for_each_contender():
    rows = [record(contender=name) for name in ("strata", "mpich")]
    rows += [record("left", name, how=[], ms=[], shm_files=files, shm_bytes=files << 22, tmp_files=0)
             for name, files in (("strata", 0), ("mpich", 1))]
    rows += [record("counts", later=["right"] * 3, same_error=True, how=["error"] * 3, ms=[])]
    lines = report.tables([{"record": "machine"}, *rows])
    assert "| strata | error | 20 ms (10-30) | yes | 50 ms | 137 | yes |" in lines
    assert "| strata | error | yes | right | 137 |" in lines
    assert "| strata | 0 | 0 | 0 |" in lines and "| mpich | 1 | 4 MiB | 0 |" in lines
    assert all(line.count("|") == lines[i - 1].count("|") for i, line in enumerate(lines) if line.startswith("|---"))


def test_bad_arguments_are_argument_errors(capsys):
    for bad in (["-n", "1"], ["--faults", "fire"], ["--contenders", "nccl"], ["--rounds", "0"], ["--limit", "-1"]):
        with pytest.raises(SystemExit) as end:
            faults.arguments(bad)
        assert end.value.code == 2
    capsys.readouterr()


def test_a_peer_that_is_not_installed_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(contenders, "PEERS", tmp_path)
    here, skipped = faults.present(["mpich", "openmpi:ulfm", "gloo"])
    assert here == []
    assert skipped == [(n, "not installed (bench/faults.py --setup)") for n in ("mpich", "openmpi:ulfm", "gloo")]


def test_commands_name_launcher_and_worker(monkeypatch, tmp_path):
    monkeypatch.setattr(contenders, "PEERS", tmp_path)
    for name in faults.CONTENDERS:
        command = jobs.command(name, 3, ["kill", 8, tmp_path, 1.0])
        assert str(jobs.WORKER) in command and command[-4:] == ["kill", "8", str(tmp_path), "1.0"]
        assert ("3" in command) == (name != "gloo")
    assert "--with-ft" in jobs.command("openmpi:ulfm", 3, [])


def test_replay(tmp_path, capsys):
    machine = {"record": "machine", "n": 3, "cores": 2, "cpu": "a cpu", "kernel": "6", "rounds": 1, "limit": 10,
               "own_shm": True, "skipped": [["gloo", "not installed"]]}
    file = tmp_path / "faults.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in (machine, record())))
    assert faults.main(["--replay", str(file)]) == 0
    said = capsys.readouterr().out
    assert "gloo skipped: not installed" in said and "| strata | error | 20 ms (10-30) | yes |" in said
    failure = {"record": "failure", "contender": "mpich", "fault": "kill", "bytes": 8, "error": "no"}
    with file.open("a") as out:
        print(json.dumps(failure), file=out)
    assert faults.main(["--replay", str(file)]) == 1
    assert "FAILED: mpich, kill 8 B: no" in capsys.readouterr().out


@pytest.mark.parametrize("fault", ["kill", "counts", "left"])
def test_strata_itself(fault):
    found = measure.measure("strata:continue", 3, fault, 8, 20.0)
    if fault == "kill":
        assert (found["how"], found["named"], found["went_on"]) == (["error"] * 2, True, 2)
    elif fault == "counts":
        assert (found["how"], found["same_error"], found["later"]) == (["error"] * 3, True, ["right"] * 3)
    else:
        assert not [name for name in found["shm_names"] if "strata" in name] and found["tmp_files"] == 0
