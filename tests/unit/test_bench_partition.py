"""bench/partition.py: its models agree where they must, and it runs."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import partition  # noqa: E402

from strata.machine import load  # noqa: E402
from strata.plan import build  # noqa: E402
from strata.plan.cost import Cost  # noqa: E402

TWO_NODES, CM384 = load("cm384").place, load("cm384").cost

FREE = Cost(CM384.alpha_us, CM384.gbps, CM384.unit_bytes)


@pytest.mark.parametrize("policy", ["naive", "balanced"])
def test_without_ports_both_models_are_one(policy):
    for spec in (partition.gather(8 << 20), partition.skewed(8 << 20, 1)):
        plan = build(spec, 3, 19, policy=policy, cost=FREE, topology=TWO_NODES)
        assert partition.fluid(plan, FREE) == pytest.approx(partition.tau(plan, FREE), rel=1e-6)
        assert partition.tau(plan, FREE).last == pytest.approx(plan.makespan_ps / 1e6, rel=1e-9)


def test_full_ports_take_what_their_bytes_take():
    """48 cores could pull more than the port gives; nothing is faster than the port."""
    plan = build(partition.gather(32 << 20), 0, 48, cost=CM384, topology=TWO_NODES)
    least = 30 * (32 << 20) / CM384.ub_gbps / 1e3
    assert least <= partition.fluid(plan, CM384).last <= 1.05 * least


def test_rates_are_fair():
    assert partition.fair(np.array([1.0, 2.0]), 0).tolist() == [1, 2]
    assert partition.fair(np.array([5.0, 1.0, 5.0]), 7).tolist() == [3, 1, 3]
    assert partition.fair(np.array([5.0, 5.0]), 10).tolist() == [5, 5]


def test_it_runs(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    files = [tmp_path / "p.jsonl", tmp_path / "p.png"]
    status = partition.main(["-b", "8M", "--cores", "16", "24", "--dies", "2", "--seconds", "0.01", "--json",
                             str(files[0]), "--picture", str(files[1])])  # fmt: skip
    assert status == 0 and files[1].stat().st_size
    head, *rows = [json.loads(line) for line in files[0].read_text().splitlines()]
    assert head["bench"] == "partition" and set(head["kinds"]) == {r["record"] for r in rows}
    made = {r["what"] for r in rows if r["record"] == "generation"}
    rows = [r for r in rows if r["record"] == "partition"]
    assert [r["cores"] for r in rows] == [16, 24] * 2 and "cached" in made
    for row in rows:
        for model in partition.MODELS:
            assert row[f"{model}_balanced_us"] <= row[f"{model}_naive_us"] * 1.001
    text = capsys.readouterr().out
    assert "43 %" in text and "19 %" in text
