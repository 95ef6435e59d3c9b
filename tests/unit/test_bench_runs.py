"""The benchmarks and the examples over real dies: they run, they are right, they say what they found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(n, *argv, env=None):
    """(status, output) of `argv` on n dies; n = 0: without a launcher."""
    launcher = [sys.executable, "-m", "strata.launch", "-n", str(n)] if n else [sys.executable]
    done = subprocess.run([*launcher, *argv], cwd=ROOT, capture_output=True, text=True, timeout=100,
                          env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **(env or {})})
    return done.returncode, done.stdout + done.stderr


def rows_of(text):
    return [line.split() for line in text.splitlines() if line[:1] == " " and line.split()[0].isdigit()]


@pytest.mark.parametrize("n", [0, 3])
def test_every_collective_on_real_dies(n):
    status, text = run(n, "bench/collectives.py", "all", "-b", "24", "-e", "300000", "-f", "111", "-n", "2", "-w", "0",
                       "-o", "all")
    assert status == 0, text
    rows = rows_of(text)
    assert len(rows) == (3 * 5 + 7) * 3, text
    assert {r[8] for r in rows} == {"0"} and {r[12] for r in rows} <= {"0", "N/A"}
    assert text.count("Out of bounds values : 0 OK") == 10


def test_every_type_of_an_all_reduce_on_real_dies():
    status, text = run(2, "bench/collectives.py", "-b", "5000", "-e", "5000", "-n", "2", "-d", "all", "-o", "all",
                       "-u", "1")
    assert status == 0, text
    assert len(rows_of(text)) == 12 * 5


def test_groups_of_a_split():
    status, text = run(4, "bench/collectives.py", "all_gather", "-b", "4K", "-e", "4K", "-n", "2",
                       env={"NCCL_TESTS_SPLIT": "MOD 2"})
    assert status == 0, text
    assert "Rank  3 Group  1" in text and rows_of(text)[0][1] == "512"


@pytest.mark.parametrize("argv, says", [(["-b", "pear"], "minbytes"), (["-g", "8"], "strata-run -n"),
                                        (["-b", "4096G", "-e", "4096G"], "minbytes"),
                                        (["broadcast", "-r", "9"], "root 9")])
def test_bad_arguments_end_with_status_2_and_are_said_once(argv, says):
    status, text = run(2, "bench/collectives.py", *argv)
    assert status == 2, text
    assert says in text and "Traceback" not in text


def test_help_is_said_once():
    status, text = run(2, "bench/collectives.py", "-h")
    assert status == 0 and text.count("--minbytes") == 1


@pytest.mark.parametrize("n", [0, 3])
def test_digits_are_learned(n):
    pytest.importorskip("sklearn")
    status, text = run(n, "examples/train_digits.py")
    assert status == 0, text
    assert "bit-identical" in text and f"weights of {max(n, 1)} dies" in text


def test_digits_are_the_same_bits_in_every_run():
    pytest.importorskip("sklearn")
    prints = {run(3, "examples/train_digits.py", "--epochs", "3")[1].split("sha256 ")[1][:16] for _ in range(2)}
    assert len(prints) == 1


@pytest.mark.parametrize("n", [0, 2])
def test_blocks_are_gathered_while_others_are_computed_on(n):
    status, text = run(n, "examples/overlap.py")
    assert status == 0, text
    assert f"from {max(n, 1)} dies" in text and "all sums right" in text


def test_too_little_training_fails():
    pytest.importorskip("sklearn")
    status, text = run(2, "examples/train_digits.py", "--epochs", "1", "--rate", "0.0001")
    assert status == 1 and "bit-identical" in text


def test_versus_measures_strata():
    status, text = run(0, "bench/versus.py", "--quick", "--rounds", "1", "--seconds", "0.01", "-n", "2",
                       "--sizes", "8,64K")
    assert status == 0, text
    assert "strata skipped" not in text and "broadcast" in text


def test_graphs_beside_calls(tmp_path):
    file = tmp_path / "graph.jsonl"
    status, text = run(0, "bench/graph.py", "--sizes", "8", "1K", "--rounds", "3", "--operations", "5",
                       "--json", str(file))
    assert status == 0, text
    _, *rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 4 and all(r[f"{way}_us"] > 0 for r in rows for way in ("sync", "async", "graph", "queued"))


def test_idle_rings(tmp_path):
    file = tmp_path / "idle.jsonl"
    status, text = run(0, "bench/sdma_idle.py", "-n", "2", "--rings", "2", "--seconds", "0.2", "--json", str(file))
    assert status == 0, text
    _, *lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["what"] for line in lines] == ["none", "idle", "gated"]
    assert all(line["percent_most"] >= line["percent"] >= 0 for line in lines)
