"""bench/versus.py's limits: formulas done by hand, the figures' program, tables and settings that count them."""

import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
sys.path.insert(0, str(BENCH / "versus_lib"))

import worker  # noqa: E402
from versus_lib import cells, limits, report  # noqa: E402

RECORD = {"record": "limits", "cores": 2, "line_us": 0.2, "yield_us": 0.5, "yield_one_us": 2.0, "rates": [
    ["copy", 1, 16384, 100.0], ["copy", 1, 65536, 50.0], ["copy", 2, 16384, 200.0], ["copy", 2, 65536, 100.0],
    ["read", 1, 16384, 300.0], ["read", 2, 16384, 600.0], ["fill", 1, 16384, 30.0], ["fill", 2, 16384, 40.0]]}


def test_bytes_that_must_move():
    n, size = 4, 1 << 20
    assert limits.traffic("barrier", 0, n) == (0, 0)
    assert limits.traffic("all_reduce", size, n) == (n * size, n * size)
    assert limits.traffic("all_to_all", size, n) == (n * size, n * size)
    assert limits.traffic("reduce_scatter", size, n) == (n * size, size)
    assert limits.traffic("all_gather", size, n) == (size, n * size)
    assert limits.traffic("broadcast", size, n) == (size, (n - 1) * size)
    assert limits.traffic("sendrecv", size, 2) == (size, size)


def test_waits_by_hand():
    known = limits.Limits.of([RECORD])
    assert known.wait_us("all_reduce", 2) == pytest.approx(0.1)             # a line, one way
    assert known.wait_us("barrier", 4) == pytest.approx(0.1 + 1.0)          # and a switch on each core
    assert known.wait_us("all_gather", 7) == pytest.approx(0.1 + 3.0)       # four ranks on one of them
    assert known.wait_us("broadcast", 8) == pytest.approx(0.1)
    assert known.cell_us("barrier", 0, 2) == pytest.approx(0.1) and known.cell_us("all_reduce", 8, 1) == 0.0


def test_moves_by_hand():
    known = limits.Limits.of([RECORD])
    # Each of two cores reads 8 KiB and writes 8 KiB: 16 KiB at the rate of that size.
    assert known.move_us(16384, 16384, 2) == pytest.approx(32768 / 200 / 1e3)
    # Reads that are not copied have a rate of their own, and so have writes.
    assert known.move_us(24576, 8192, 2) == pytest.approx((16384 / 200 + 16384 / 600) / 1e3)
    assert known.move_us(8192, 24576, 2) == pytest.approx((16384 / 200 + 16384 / 40) / 1e3)
    assert known.rate("copy", 1, 32768) == pytest.approx((100 * 50) ** 0.5)
    assert [known.rate("copy", 2, 1 << 30), known.rate("copy", 1, 1)] == pytest.approx([100.0, 100.0])


def test_the_best_of_all_rounds_counts():
    busy = {**RECORD, "line_us": 9.0, "yield_one_us": 1.5, "rates": [["copy", 1, 16384, 120.0]]}
    known = limits.Limits.of([RECORD, busy, {"record": "cell"}])
    assert (known.line_us, known.yield_one_us) == (0.2, 1.5) and known.rates["copy", 1][16384] == 120.0
    assert limits.Limits.of([{"record": "cell"}]) is None


def test_one_core_alone():
    known = limits.Limits.of([{**RECORD, "cores": 1, "line_us": None}])
    assert known.wait_us("all_reduce", 2) == pytest.approx(1.0)


def test_the_program_measures():
    meter = limits.Meter()
    try:
        assert meter.why is None
        found = meter.take(0.0005, limits.SMALLEST)
    finally:
        meter.close()
    assert {what for what, *_ in found["rates"]} == {"read", "fill", "copy"}
    assert all(rate > 0 for *_, rate in found["rates"]) and found["yield_one_us"] > 0
    assert (found["line_us"] is None) == (found["cores"] == 1)
    assert limits.Limits.of([{"record": "limits", **found}]).cell_us("all_reduce", 1 << 16, 2) > 0


def test_without_a_compiler_it_says_so(monkeypatch):
    monkeypatch.setattr(limits.shutil, "which", lambda name: None)
    assert "no C compiler" in limits.Meter().why


def test_the_largest_cell_fits_into_memory():
    assert limits.largest(["barrier"], [8], [2], 1 << 40) == limits.SMALLEST
    assert limits.largest(["all_reduce"], [1 << 26], [8], 1 << 40) >= 1 << 29
    assert limits.largest(["all_reduce"], [1 << 26], [8], 1 << 30) <= 1 << 26


def cell(number, contender, us, op="all_reduce"):
    return {"record": "cell", "round": number, "contender": contender, "about": "", "n": 2, "op": op, "bytes": 8,
            "us": us, "us_mean": us, "wrong": 0}


def test_the_best_of_stratas_settings_is_compared_and_named():
    records = [cell(0, "strata", 1.0), cell(0, "strata:bind", 0.5), cell(0, "mpich", 2.0),
               cell(1, "strata", 1.0), cell(1, "strata:bind", 0.8), cell(1, "mpich", 1.6)]
    found = report.collect(records)
    only = found["all_reduce", 8, 2]
    assert only.ratios(["mpich"]) == [4.0, 2.0]
    assert report.of_limit(only, limits.Limits.of([RECORD])) == pytest.approx(
        limits.Limits.of([RECORD]).cell_us("all_reduce", 8, 2) / 0.65)
    assert report.above(found, limits.Limits.of([RECORD])) == []
    slow = limits.Limits.of([{**RECORD, "line_us": 9.0}])
    assert "1 cells are above their limit" in report.above(found, slow)[0]
    lines = report.table("all_reduce", found, ["strata", "strata:bind", "mpich"], ["mpich"], limits.Limits.of([RECORD]))
    assert "strata by" in lines[1] and "of limit" in lines[1]
    assert lines[2].split()[6:10] == ["strata:bind", "mpich", "3.00", "2.00"] and "15 %" in lines[2]


def test_sendrecv_is_between_two_and_checks_what_came():
    assert ("sendrecv", 8) in cells.grid(cells.OPS, [8], 2) and ("sendrecv", 8) not in cells.grid(cells.OPS, [8], 4)
    sent = [np.empty(64, "f4") for _ in range(2)]
    for rank in range(2):
        cells.prepare("sendrecv", rank, 3, sent[rank], np.empty(64, "f4"))
    for rank in range(2):
        assert cells.errors("sendrecv", rank, 2, 3, sent[1 - rank]) == 0
        assert cells.errors("sendrecv", rank, 2, 3, sent[rank]) > 0


class Operation:
    """A persistent operation that counts."""

    def __init__(self, log, name, args):
        self.log, self.name, self.args = log, name, args

    def __call__(self):
        self.log.append(self.name)

    def free(self):
        self.log.append(f"free {self.name}")


class Method:
    def __init__(self, log, name):
        self.log, self.name = log, name

    def __call__(self, *args):
        self.log.append(f"plain {self.name}")

    def bind(self, *args):
        return Operation(self.log, self.name, args)


@pytest.mark.parametrize("bound", [False, True])
def test_the_setting_bind_binds(bound):
    log = []
    backend = object.__new__(worker.Strata)
    backend.rank, backend.bound, backend.kept = 1, bound, []
    backend.group = type("Group", (), {name: Method(log, name) for name in (
        "barrier", "all_reduce", "broadcast", "send", "recv")})()
    for op in ("barrier", "all_reduce", "broadcast", "sendrecv"):
        backend.bind(op, "send", "recv")()
    backend.release()
    plain = ["barrier", "all_reduce", "broadcast", "recv", "send"]      # rank 1 receives first
    made = ["barrier", "all_reduce", "broadcast", "send", "recv"]
    assert log == (plain + [f"free {n}" for n in made] if bound else [f"plain {n}" for n in plain])
