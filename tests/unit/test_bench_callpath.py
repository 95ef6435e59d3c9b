"""bench/callpath.py: it reads callgrind's files, knows whose an instruction is, and says when it counted nothing."""

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import callpath  # noqa: E402
from callpath import Spot  # noqa: E402

OURS = "/x/strata/_core/group.so"
FILE = """# callgrind format
version: 1
positions: line
events: Ir
summary: 99

ob=(1) /x/strata/_core/group.so
fl=(1) /x/strata/_core/group.c
fn=(1) __pyx_f_6strata_5_core_5group_9CoreGroup_run
12 {front}
fi=(2) /x/strata/_core/include/st_sync.h
+3 {core}
cob=(2) /usr/lib/libpython3.11.so.1.0
cfi=(3) ceval.c
cfn=(2) PyEval_SaveThread
calls=110 504
* 16170
* 2
fe=(1)
-1 5

ob=(2)
fl=(3)
fn=(2)
7 {python}
fn=(3) malloc
* 1

ob=(3) /lib/libc.so.6
fl=(4) ???
fn=(4) pthread_mutex_lock
8 {libc}
totals: 99
"""


def test_costs_are_where_they_were_spent():
    found = callpath.parse(FILE.format(front=10, core=20, python=30, libc=40))
    run = "__pyx_f_6strata_5_core_5group_9CoreGroup_run"
    assert found == {
        Spot(OURS, "/x/strata/_core/group.c", run): 15, Spot(OURS, "/x/strata/_core/include/st_sync.h", run): 22,
        Spot("/usr/lib/libpython3.11.so.1.0", "ceval.c", "PyEval_SaveThread"): 30,
        Spot("/usr/lib/libpython3.11.so.1.0", "ceval.c", "malloc"): 1,
        Spot("/lib/libc.so.6", "???", "pthread_mutex_lock"): 40}  # fmt: skip
    assert [callpath.layer(s) for s in found] == ["front", "core", "interpreter", "interpreter", "other"]
    assert callpath.layer(Spot("/usr/bin/python3.12", "", "main")) == "interpreter"
    assert callpath.layer(Spot(OURS, "/usr/include/python3.11/object.h", run)) == "front"


def test_a_call_is_the_difference_of_two_loops():
    few = callpath.parse(FILE.format(front=10, core=20, python=30, libc=40))
    many = callpath.parse(FILE.format(front=210, core=120, python=1030, libc=40))
    row = callpath.calls(few, many)
    assert row["instructions"] == 13.0
    assert [row[name] for name in callpath.LAYERS] == [10.0, 2.0, 1.0, 0.0]
    assert row["functions"] == [["interpreter", "PyEval_SaveThread", 10.0], ["front", "group_9CoreGroup_run", 2.0],
                                ["core", "st_sync.h in group_9CoreGroup_run", 1.0]]
    text = callpath.report([{"case": "loop", **row}, {"case": "barrier", **row}], 2)
    assert "barrier, by function" in text and "loop, by function" not in text and "st_sync.h" not in text


def test_it_says_so_when_nothing_was_counted(monkeypatch, capsys):
    monkeypatch.setattr(callpath.shutil, "which", lambda name: None)
    assert callpath.main([]) == 1 and callpath.main(["--report"]) == 0
    assert capsys.readouterr().out.count("NOTHING WAS COUNTED: valgrind is not installed") == 2


def test_valgrinds_failure_is_told(monkeypatch, tmp_path, capsys):
    fake = tmp_path / "valgrind"
    fake.write_text("#!/bin/sh\necho an instruction that it does not know >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(callpath, "wanted", lambda: (["loop"], []))
    assert callpath.main([]) == 1
    assert "status 3 under valgrind: an instruction that it does not know" in capsys.readouterr().out
    fake.write_text("#!/bin/sh\nexit 0\n")
    assert callpath.main(["--report"]) == 0
    assert "wrote no out.1-01" in capsys.readouterr().out
