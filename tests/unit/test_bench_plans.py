"""bench/plans.py: it runs, compares what it times, and writes what it prints."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import plans  # noqa: E402

from strata.plan import build  # noqa: E402


def test_it_runs(tmp_path, capsys):
    file = tmp_path / "p.jsonl"
    arguments = ["-n", "3", "20", "-b", "64K", "--cores", "4", "--rounds", "1", "--json", str(file)]
    assert plans.main([*arguments, "--operations", "all", "--algorithms", "full_mesh", "ring", "--in-place"]) == 0
    _, *rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {r["operation"] for r in rows} == set(plans.OPERATIONS) and {r["nranks"] for r in rows} == {3, 20}
    assert {r["algorithm"] for r in rows} == {"full_mesh", "ring"}
    assert {r["policy"] for r in rows} == set(plans.POLICIES)
    for r in rows:
        assert (r["units"] > 0) == (r["operation"] != "barrier") and 0 < r["all_least_ms"] <= r["all_ms"]
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(rows)


def test_plans_that_differ_are_no_figure(monkeypatch):
    other = plans.spec("all_gather", 1 << 16, 4, False)
    monkeypatch.setattr(plans, "build", lambda asked, r, cores, **more: build(other, r, cores, **more))
    with pytest.raises(RuntimeError, match="differ"):
        plans.row(plans.spec("all_gather", 1 << 15, 4, False), "full_mesh", "balanced", 2, 1)


def test_what_cannot_be_is_refused(capsys):
    for arguments in (["--rounds", "0"], ["--operations", "gather", "--algorithms", "ring"], ["-b", "1"]):
        with pytest.raises(SystemExit):
            plans.main(arguments)
    assert "no algorithm" in capsys.readouterr().err
