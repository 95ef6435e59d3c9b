"""bench/launch.py: what it reads, what it leaves out and why, how it ends what takes too long."""

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import launch  # noqa: E402
from bench_lib.lines import Lines  # noqa: E402
from versus_lib import contenders  # noqa: E402


class Stub(contenders.Contender):
    """A launcher that ignores what it is asked to start, and does this instead."""

    code = "pass"

    def command(self, n, rank, socket_name):
        return [sys.executable, "-c", self.code, str(contenders.WORKER)]


def stub(code, name="mpich"):
    found = Stub(name)
    found.code = code
    return found


def runs(here, jobs, n, tmp_path, limit=30.0):
    a = launch.arguments(["-n", n, "--jobs", *jobs, "--rounds", "2", "--limit", str(limit)])
    log = Lines()
    launch.Launches(here, a, log, tmp_path).take()
    return log


def test_memory_is_read():
    text = "55d0-7fff ---p 00000000 00:00 0    [rollup]\nRss:    2048 kB\nPss:    1024 kB\nPss_Dirty: 7 kB\n"
    assert launch.rollup(text) == (2 << 20, 1 << 20)
    assert launch.rollup(Path("/proc/self/smaps_rollup").read_text())[0] > 1 << 20


def test_start_and_end_are_parts_of_the_whole(tmp_path, capsys):
    met = "import time; open('met', 'w').write(str(time.monotonic_ns()))"
    log = runs([stub(met), stub(met, "strata")], ["barrier"], "3", tmp_path)
    assert [(r["contender"], r["round"]) for r in log] == [("mpich", 0), ("strata", 0), ("strata", 1), ("mpich", 1)]
    for r in log:
        assert r["start_ms"] > 0 and r["end_ms"] > 0 and r["start_ms"] + r["end_ms"] == pytest.approx(r["wall_ms"])
    line = capsys.readouterr().out.splitlines()[-1].split()
    assert line[:2] == ["barrier", "3"] and float(line[-1]) > 0


def test_every_ranks_memory_counts(tmp_path):
    code = "[open(f'memory.{r}', 'w').write(f'head\\nRss: {1024 * (r + 1)} kB\\nPss: 1024 kB\\n') for r in range(3)]"
    (row,) = runs([stub(code)], ["memory"], "3", tmp_path)
    assert (row["rss_MiB"], row["rss_most_MiB"], row["pss_sum_MiB"]) == (2.0, 3.0, 3.0)


def test_what_failed_is_named_and_not_tried_with_more_ranks(tmp_path, capsys):
    log = runs([stub("print('the reason'); raise SystemExit(3)")], ["true", "import"], "2,4", tmp_path)
    shown = capsys.readouterr().out
    assert [(r["record"], r["n"]) for r in log] == [("failure", 2)] * 2
    assert "status 3: the reason" in shown and "n=4 skipped: failed with 2 ranks" in shown


def test_what_takes_too_long_is_ended(tmp_path):
    found, why = launch.one(stub("import time; time.sleep(60)"), "import", 2, tmp_path, 0.2)
    assert found is None and "more than 0.2 s" in why


def test_what_does_not_fit_is_skipped(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(launch, "memory_bytes", lambda name: 4 * launch.GUESS)
    log = runs([stub("pass")], ["import"], "2,8", tmp_path)
    assert {r["n"] for r in log} == {2}
    assert "8 ranks do not fit" in capsys.readouterr().out


def test_programs_are_python():
    for kind in launch.HEAD:
        for job in launch.BODIES:
            compile(launch.program(kind, job), job, "exec")
