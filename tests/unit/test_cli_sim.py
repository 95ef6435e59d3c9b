"""strata sim: columns, sweeps, files, comparisons, traces, and how it fails."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from strata import machine
from strata.cli import main
from strata.plan.select import Ask, Settings, choose
from strata.plan.spec import Spec
from strata.plan.table import Table
from strata.prediction import simulate

SMALL = ("-n", 4, "--cores", 2)


def run(capsys, *words, status=0):
    """What the command prints, on stdout or, after an error, on stderr."""
    ended = main(["sim", *map(str, words)])
    out, err = capsys.readouterr()
    assert ended == status, (out, err)
    if status == 2:
        assert err.count("\n") == 1 and err.startswith("strata sim: "), err
        return err
    return out


def rows_of(text):
    return [line.split() for line in text.splitlines() if line[:1] == " " and line.split()[0].isdigit()]


def test_columns_of_nccl_tests(capsys):
    words = ("all_gather", *SMALL, "--algorithm", "full_mesh", "--path", "mte")
    text = run(capsys, *words, "-b", "1K", "-e", "16K", "-f", 4)
    rows = rows_of(text)
    assert [(int(r[0]), int(r[1]), r[2], r[3], r[4]) for r in rows] == [
        (size, size // 4, "f32", "none", "-1") for size in (1024, 4096, 16384)]  # fmt: skip
    head = next(line.split() for line in text.splitlines() if " time " in line)
    assert head[1:9] == ["size", "count", "type", "redop", "root", "time", "algbw", "busbw"]
    for r in rows:
        made = simulate("all_gather", int(r[0]), 4, algorithm="full_mesh", path="mte", cores=2, dtype="f4")
        want = [made.time_us, made.algbw_GBps, made.busbw_GBps]
        assert [float(x) for x in r[5:8]] == pytest.approx(want, abs=0.006)
        assert r[8:] == ["full_mesh", "mte", "2", "4", "cm384"]
    assert "not measured" in text and "Avg bus bandwidth" in text


def test_sizes_as_nccl_tests_has_them(capsys):
    rows = rows_of(run(capsys, "all_gather", *SMALL, "-b", "8", "-e", "64", "--total"))
    assert [int(r[0]) for r in rows] == [16, 32, 64] and [int(r[1]) for r in rows] == [1, 2, 4]
    rows = rows_of(run(capsys, "all_to_all", *SMALL, "-b", "40", "-e", "80", "-i", "20"))
    assert [(int(r[0]), int(r[1])) for r in rows] == [(32, 2), (48, 3), (80, 5)]
    (row,) = rows_of(run(capsys, "reduce", *SMALL, "-b", "1K", "--dtype", "bf16", "--op", "max", "--root", 1))
    assert row[1:5] == ["512", "bf16", "max", "1"]
    (row,) = rows_of(run(capsys, "barrier", *SMALL))
    assert row[0] == "0" and float(row[5]) > 0


def test_every_combination_in_its_order_with_any_number_of_processes(capsys):
    words = ("all_gather,broadcast", "-n", "2,4", "-b", "1K", "--cores", "1,2", "--path", "mte",
             "--algorithm", "full_mesh,auto")  # fmt: skip
    text = run(capsys, *words)
    assert [(r[9], r[10], r[11]) for r in rows_of(text)] == [
        ("mte", c, n) for _ in range(2) for n in "24" for _ in range(2) for c in "12"]  # fmt: skip
    apart = subprocess.run([sys.executable, "-m", "strata.cli", "sim", *words, "-j", "2"], capture_output=True,
                           text=True)  # fmt: skip
    assert (apart.returncode, apart.stderr, apart.stdout) == (0, "", text)


def test_what_one_combination_cannot_do_stops_none_of_the_others(capsys):
    text = run(capsys, "all_gather", "-n", "2,4", "-b", "1K", "--algorithm", "hierarchical,ring", "--cores", 2)
    assert [(r[8], r[11]) for r in rows_of(text)] == [("ring", "2"), ("hierarchical", "4"), ("ring", "4")]
    assert "# all_gather 1024 B, 2 ranks, hierarchical: algorithm 'hierarchical' is not available" in text
    assert "is not available" in run(capsys, "all_gather", "-n", 2, "--algorithm", "hierarchical", status=2)
    assert "none of 2 cases" in run(capsys, "gather", "-n", "4,5", "--algorithm", "ring", status=2)


def test_files(capsys, tmp_path):
    names = [tmp_path / n for n in ("rows.csv", "rows.json", "table.json")]
    text = run(capsys, "all_gather,all_reduce", *SMALL, "-b", "1K", "-e", "4K", "-f", 4, "--set", "die.ub_gbps=98",
               "--algorithm", "full_mesh,ring", "--csv", names[0], "--json", names[1], "--table", names[2])  # fmt: skip
    assert "die.ub_gbps=98" in text
    with open(names[0]) as file:
        rows = list(csv.DictReader(file))
    found = json.loads(names[1].read_text())
    assert len(rows) == len(found["rows"]) == len(rows_of(text)) == 8 and found["set"] == {"die.ub_gbps": 98}
    for a, b in zip(rows, found["rows"], strict=True):
        assert a == {name: str(b[name]) for name in a} and b["fastest_core_us"] <= b["slowest_core_us"] < b["time_us"]
    table = Table.load(names[2])
    assert [row[:3] for row in table.rows] == [(o, 4, b) for o in ("all_gather", "all_reduce") for b in (1024, 4096)]
    us = {(r["operation"], r["nbytes"], r["algorithm"]): r["time_us"] for r in found["rows"]}
    for operation, _, nbytes, times in table.rows:
        assert times == {name: us[operation, nbytes, name] for name in ("full_mesh", "ring")}
    chosen = choose(Spec("all_gather", 1024, nranks=4), Ask(), Settings(table=table))
    assert chosen.algorithm.name == min(table.rows[0][3], key=table.rows[0][3].get) and "simulated" in chosen.why


def test_a_machine_of_ones_own_is_named_by_its_file_with_what_was_set(capsys, tmp_path):
    file = tmp_path / "half.toml"
    file.write_text(machine.dumps(machine.load("cm384").replace(**{"die.ub_gbps": 98.0})))
    text = run(capsys, "all_gather", *SMALL, "-b", "1K", "--machine", f"{file},cm384", "--set", "die.cores=8")
    heads = [line for line in text.splitlines() if "not measured" in line]
    assert f"machine {file} (" in heads[0] and "; set: die.cores=8, die.ub_gbps=98.0)" in heads[0]
    assert "machine cm384 (" in heads[1] and "; set: die.cores=8)" in heads[1]


def test_variants_side_by_side(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    drawn = tmp_path / "x.svg"
    words = ("all_gather", *SMALL, "-b", "1K", "-e", "4K", "-f", 4, "--algorithm", "ring,full_mesh", "--path", "mte")
    text = run(capsys, *words, "--compare", "-o", drawn)
    rows, table = text.split("Avg bus")
    us = {(int(r[0]), r[8]): float(r[5]) for r in rows_of(rows)}
    for size, ring, mesh, ratio, fastest in rows_of(table):
        assert (float(ring), float(mesh)) == (us[int(size), "ring"], us[int(size), "full_mesh"])
        assert float(ratio) == pytest.approx(float(mesh) / float(ring), rel=0.01)
        assert fastest == ("ring" if float(ring) < float(mesh) else "full_mesh")
    assert len(rows_of(table)) == 2 and "<svg" in drawn.read_text()


def test_no_matplotlib_is_said_before_anything_runs(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install matplotlib" in run(capsys, "all_gather", *SMALL, "-o", "x.png", status=2)


def test_where_the_time_went(capsys):
    text = run(capsys, "all_gather", *SMALL, "-b", "1M", "--algorithm", "full_mesh", "--path", "mte", "--explain")
    parts = [line.split() for line in text.splitlines() if line.startswith("#   ") and " us " in line]
    total = float(rows_of(text)[0][5])
    assert sum(float(p[2 - 1 + 1]) for p in parts if p[1] != "all") == pytest.approx(total, rel=0.01)
    assert {"opening", "latency", "transfer"} <= {p[1] for p in parts} and "the call names it" in text


def test_constants_with_their_sources(capsys):
    text = run(capsys, "--describe", "--set", "die.ub_gbps=98", "--set", "tier.l2.unit_bytes=64M")
    constants = machine.load("cm384").constants()
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert constants.keys() <= lines.keys()
    assert lines["die.ub_gbps"].split()[1] == "98.0" and "7 planes" not in lines["die.ub_gbps"]
    assert int(lines["tier.l2.unit_bytes"].split()[1]) == 64 << 20
    assert lines["sync.poll_us"].split()[2] == "F" and "StrataCL" in lines["sync.poll_us"]


def test_a_trace_that_viewers_can_load(capsys, tmp_path):
    file = tmp_path / "trace.json"
    text = run(capsys, "all_gather", *SMALL, "-b", "256K", "--algorithm", "ring", "--path", "mte", "--trace", file)
    events = json.loads(file.read_text())["traceEvents"]
    assert f"{sum(e['ph'] != 'M' for e in events)} events" in text
    made = simulate("all_gather", 256 << 10, 4, algorithm="ring", path="mte", cores=2, dtype="f4")
    spans = {}
    for e in events:
        assert e["ph"] in "MXsfC", e
        if e["ph"] == "X":
            spans.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"], e))
    assert {pid for pid, _ in spans} == set(range(4)) and len(spans) == 4 * 3  # two cores, and what the die does
    for found in spans.values():
        for (_, end, _), (begin, _, _) in zip(found, found[1:], strict=False):
            assert begin >= end - 1e-6
    moved = [e for found in spans.values() for *_, e in found if e["name"].startswith("move")]
    assert sum(e["args"]["bytes"] for e in moved) == 4 * 4 * (256 << 10)
    assert max(end for found in spans.values() for _, end, _ in found) == pytest.approx(made.time_us)
    arrows = {kind: {e["id"]: e for e in events if e["ph"] == kind} for kind in "sf"}
    assert arrows["s"].keys() == arrows["f"].keys() and arrows["s"]
    for number, source in arrows["s"].items():
        target = arrows["f"][number]
        assert target["ts"] >= source["ts"] and target["bp"] == "e" and target["pid"] != source["pid"]
        for end in (source, target):
            assert any(a <= end["ts"] <= b for a, b, _ in spans[end["pid"], end["tid"]])
    ports = [e for e in events if e["ph"] == "C"]
    names = {e["name"] for e in ports}
    assert {"UB IN (GB/s)", "UB OUT (GB/s)", "SIO IN (GB/s)", "SIO OUT (GB/s)"} <= names
    assert max(e["args"]["GB/s"] for e in ports if e["name"] == "UB IN (GB/s)") <= 196 * 1.001
    assert all(e["args"]["GB/s"] >= 0 for e in ports)


def test_a_trace_of_rings_and_cores(capsys, tmp_path):
    file = tmp_path / "trace.json.gz"
    run(capsys, "all_gather", *SMALL, "-b", "4M", "--algorithm", "full_mesh", "--path", "sdma", "--trace", file)
    import gzip

    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"core 0", "core 1", "ring 0", "ring 1", "calls"} <= names
    assert {"submit", "move l1"} <= {e["name"] for e in events if e["ph"] == "X"}


def test_what_is_wrong_shows(capsys):
    words = ("all_gather", "-n", 4, "-b", "4M", "--algorithm", "full_mesh", "--path", "mte", "--cores", 24)
    (plain,) = rows_of(run(capsys, *words))
    wrong = (("--slow-die", "2:3"), ("--slow-link", "0-3:9"), ("--dead-plane", "1:6"), ("--skew", "50"),
             ("--jitter", "2"), ("--launch", "eager"), ("--set", "tier.l1.alpha_us=9"))  # fmt: skip
    for option, value in wrong:
        (row,) = rows_of(run(capsys, *words, option, value, "--seed", 5))
        assert float(row[5]) > float(plain[5]), option


@pytest.mark.parametrize("counts", [np.int64(4), np.eye(3), np.zeros((2, 2, 2), int), np.zeros((2, 3), int)])
def test_counts_that_are_no_matrix(capsys, tmp_path, counts):
    np.save(tmp_path / "counts.npy", counts)
    assert "matrix of integers" in run(capsys, "all_to_all_v", "--counts", tmp_path / "counts.npy", status=2)


@pytest.mark.parametrize(
    "words, what",
    [
        ((), "an operation is needed; there are all_gather"),
        (("all_gather",), "-n N, the number of ranks"),
        (("all_sum", "-n", 2), "no operation 'all_sum'"),
        (("all_gather", "-n", "x"), "'x' is not whole numbers"),
        (("all_gather", "-n", 0), "0 is not 1 or more"),
        (("all_gather", "-n", 4, "-b", "2K", "-e", "1K"), "sizes from -b 2048 to -e 1024"),
        (("all_gather", "-n", 4, "-f", 1), "by a factor of -f 1"),
        (("all_gather", "-n", 4, "-b", "1"), "no size has an element"),
        (("all_gather", "-n", 4, "--dtype", "f33"), "--dtype 'f33' is not one of"),
        (("all_reduce", "-n", 4, "--op", "mean"), "--op 'mean' is not one of"),
        (("all_gather", "-n", 4, "--algorithm", "nonsense"), "no algorithm 'nonsense'"),
        (("all_gather", "-n", 4, "--path", "cable"), "mte, sdma"),
        (("all_gather", "-n", 4, "--machine", "abacus"), "'abacus' is not known"),
        (("all_gather", "-n", 4, "--machine", "no/such.toml"), "no/such.toml"),
        (("all_gather", "-n", 4, "--set", "die.ub"), "NAME=VALUE"),
        (("all_gather", "-n", 4, "--set", "die.ub=3"), "no constant 'die.ub'"),
        (("all_gather", "-n", 4, "--set", "die.ub_gbps=0"), "die.ub_gbps is 0"),
        (("all_gather", "-n", 4, "--set", "die.ub_gbps=98GB"), "'98GB' is no number"),
        (("all_gather", "-n", 4, "--window", "1e300"), "window_us is 1e+300"),
        (("all_gather", "-n", 4, "--skew", "1e11"), "microseconds"),
        (("all_gather", "-n", 4, "-b", "1G", "-e", "1T", "-i", 1), "100,000 at most"),
        (("all_gather", "-n", 4, "--csv", "x.out", "--json", "x.out"), "x.out is to be written twice"),
        (("all_gather", "-n", 4, "--slow-die", "3"), "'3' is not of the form 3:2"),
        (("all_gather", "-n", 4, "--slow-die", "9:2"), "die 9"),
        (("all_gather", "-n", 4, "--slow-link", "1:2"), "is not of the form 0-3:4"),
        (("all_gather", "-n", 4, "--skew", "-1"), "--skew -1"),
        (("all_gather", "-n", 4, "--compare"), "two variants or more"),
        (("all_gather", "-n", "4,8", "--trace", "x.json"), "--trace is of one case, and there are 2"),
        (("all_gather", "-n", 4, "-o", "x.jpg"), ".png, .svg, .pdf"),
        (("all_gather", "-n", 4, "--csv", "no/such/place.csv"), "no/such/place.csv"),
        (("all_gather", "-n", 4, "--table", "t.json", "--path", "mte,sdma"), "in one way"),
        (("all_gather", "-n", 4, "-j", 0), "-j 0"),
        (("all_to_all_v", "-n", 4), "counts, a matrix"),
        (("all_gather", "-n", 4, "--no-such-option"), "--no-such-option"),
    ],
)
def test_errors_are_one_line(words, what, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert what in run(capsys, *words, status=2)
    assert not list(tmp_path.iterdir())


def test_a_matrix_of_counts(capsys, tmp_path):
    file = tmp_path / "counts.txt"
    file.write_text("0 100 0\n100 0 0\n5000 0 0\n")
    (row,) = rows_of(run(capsys, "all_to_all_v", "--counts", file))
    assert row[11] == "3" and int(row[0]) == 20000
    file.write_text("a b\n")
    assert "no matrix of integers" in run(capsys, "all_to_all_v", "--counts", file, status=2)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_ends_it_ends_its_processes(how):
    words = ["all_gather", "-n", "32", "-b", "1K", "-e", "1G", "--algorithm", "all", "-j", "2"]
    it = subprocess.Popen([sys.executable, "-m", "strata.cli", "sim", *words], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip
    try:
        for line in it.stdout:  # the first row: its processes are there
            if line.startswith(" "):
                break
        os.kill(it.pid, how)
        _, err = it.communicate(timeout=60)
    finally:
        if it.poll() is None:
            os.killpg(it.pid, signal.SIGKILL)
            it.wait()
    if how == signal.SIGINT:
        assert it.returncode == 130 and err == "strata sim: interrupted\n", err
    else:
        assert it.returncode == -how
    deadline = time.monotonic() + 20
    while _alive(it.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(it.pid)


def _alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
