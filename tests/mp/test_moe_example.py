"""The example of a mixture of experts: over dies and alone it is the same network, and it learns; and its benchmark."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENV = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}


def run(n, *argv):
    """(status, output) of a script on n dies; n = 0: without a launcher."""
    launcher = [sys.executable, "-m", "strata.launch", "-n", str(n)] if n else [sys.executable]
    done = subprocess.run([*launcher, *argv], cwd=ROOT, capture_output=True, text=True, timeout=100, env=ENV)
    return done.returncode, done.stdout + done.stderr


def test_experts_over_dies_learn_what_they_learn_alone():
    """7 experts on 3 dies; 3 on 4, one of which has none."""
    pytest.importorskip("sklearn")
    for n, experts, epochs in ((3, 7, 2), (4, 3, 1)):
        _, text = run(n, "examples/moe_layer.py", "--experts", str(experts), "--epochs", str(epochs))
        assert f"common weights of {n} dies: bit-identical" in text, text
        assert f"steps in {n} pieces: bit-identical" in text, text
        assert "steps in 1 piece: " in text and "MORE" not in text, text
        assert float(text.split("test accuracy ")[1].split()[0]) > 0.8, text


def test_a_network_that_has_not_learned_is_status_1():
    """One die, no launcher."""
    pytest.importorskip("sklearn")
    status, text = run(0, "examples/moe_layer.py", "--epochs", "1", "--rate", "0.0001")
    assert status == 1 and "steps in 1 piece: bit-identical" in text, text


def test_the_benchmark_answers_its_questions(tmp_path):
    status, text = run(0, "bench/moe.py", "-n", "3", "--tokens", "40", "--hidden", "256", "--experts", "12",
                       "--topk", "3", "--rounds", "3", "--json", str(tmp_path / "rows"))  # fmt: skip
    assert status == 0, text
    _, *rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]  # after the machine
    assert {row["record"] for row in rows} == {"high", "low", "partition", "rounds"}
    staged = [row for row in rows if row["system"].startswith("staged")]
    assert len(staged) == 2 and all(row["dispatch"] > 0 and row["combine"] > 0 for row in staged)
    balanced = [row for row in rows if row["system"] == "balanced"]
    assert len(balanced) == 2 and all(row["dispatch_spread"] >= 1 for row in balanced)
    status, text = run(0, "bench/moe.py", "fast")
    assert status == 2 and "'fast' is none of" in text
