"""bench/moe_partition.py runs, and what it says of growth is what it measured."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import moe_partition  # noqa: E402


def test_it_plans_and_reports(tmp_path, capsys):
    file = tmp_path / "made.jsonl"
    asked = ["--ranks", "3", "--tokens", "4", "40", "--experts", "7", "--topk", "2", "--hidden", "64", "--seconds", "0"]
    assert moe_partition.main([*asked, "--json", str(file)]) == 0
    _, *rows = [json.loads(line) for line in file.read_text().splitlines()]
    kinds = {(r["tokens"], r["mode"], r["operation"]) for r in rows}
    assert len(rows) == len(kinds) == 8
    assert all(r["units"] and r["windows"] and r["plan_us"] > 0 and r["windows_us"] > 0 for r in rows)
    assert all((r["layout_us"] > 0) == (r["operation"] == "dispatch") for r in rows)
    shown = capsys.readouterr().out
    assert shown.count("10 times the tokens") == 4 and "high_throughput" in shown


def test_growth_is_the_ratio_of_the_partitions_times():
    row = {"ranks": 2, "mode": "low_latency", "operation": "combine", "tokens": 1, "windows_us": 1.0, "plan_us": 3.0}
    found = moe_partition.growth([row, {**row, "tokens": 8, "windows_us": 2.0, "plan_us": 4.0}])
    assert found == ["2 ranks, low_latency, combine: 8 times the tokens, 1.50 times the time of the partition"]
    assert moe_partition.growth([row]) == []


@pytest.mark.parametrize("wrong", [["--ranks", "0"], ["--tokens", "0"], ["--seconds", "-1"]])
def test_it_refuses_what_is_no_job(wrong):
    with pytest.raises(SystemExit):
        moe_partition.main(wrong)
