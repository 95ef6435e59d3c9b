"""bench/collectives.py: nccl-tests' options and columns, and checks that notice wrong elements.

The collectives here are plain numpy between threads, so that these tests hold the benchmark alone;
a run over real dies is in tests/mp.
"""

import json
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from collectives_lib import data, operations, options, table  # noqa: E402


class World:
    """n ranks as threads. `spoil(rank, call number, result)` may change what a rank gets."""

    def __init__(self, n, spoil=None):
        self.n, self.spoil, self.calls = n, spoil, 0
        self.slots, self.gate = [None] * n, threading.Barrier(n, timeout=60)

    def run(self, fn):
        results = [None] * self.n

        def body(rank):
            try:
                results[rank] = fn(Group(self, rank))
            except BaseException as error:
                results[rank] = error
                self.gate.abort()
        threads = [threading.Thread(target=body, args=(r,)) for r in range(self.n)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for r in results:
            if isinstance(r, BaseException) and not isinstance(r, threading.BrokenBarrierError):
                raise r
        return results


class Group:
    """The calls of api.md that the benchmark makes."""

    def __init__(self, world, rank):
        self.world, self.rank, self.size = world, rank, world.n

    def _exchange(self, value):
        w = self.world
        w.slots[self.rank] = None if value is None else np.array(value, copy=True)
        w.gate.wait()
        got = list(w.slots)
        w.gate.wait()
        return got

    def _give(self, out, result):
        if out is None:
            return result
        out.reshape(-1)[:] = result.reshape(-1)
        if self.world.spoil:
            self.world.spoil(self.rank, out.reshape(-1))
        return out

    def barrier(self):
        self._exchange(None)

    def _reduce(self, rows, op):
        name = rows[0].dtype
        wide = np.stack(rows).astype(np.float32 if name.kind in "fV" and name.itemsize < 4 else name)
        if op == "avg":
            whole = name.kind in "iu"
            total = wide.sum(axis=0, dtype=np.int64 if whole else wide.dtype)
            return (total // self.size if whole else total / wide.dtype.type(self.size)).astype(name)
        ufunc = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
        with np.errstate(all="ignore"):
            return ufunc.reduce(wide, axis=0, dtype=wide.dtype).astype(name)

    def all_reduce(self, src, out=None, op="sum"):
        return self._give(src if out is None else out, self._reduce(self._exchange(src), op))

    def reduce(self, src, out=None, root=0, op="sum"):
        result = self._reduce(self._exchange(src), op)
        return self._give(out, result) if self.rank == root else None

    def reduce_scatter(self, src, out=None, op="sum"):
        return self._give(out, np.split(self._reduce(self._exchange(src), op), self.size)[self.rank])

    def all_gather(self, src, out=None):
        return self._give(out, np.stack(self._exchange(src)))

    def gather(self, src, out=None, root=0):
        rows = self._exchange(src)
        return self._give(out, np.stack(rows)) if self.rank == root else None

    def all_to_all(self, src, out=None):
        parts = [np.split(s, self.size)[self.rank] for s in self._exchange(src)]
        return self._give(out, np.concatenate(parts))

    def all_to_all_v(self, src, send_counts, out=None, recv_counts=None):
        cuts = [np.split(s, np.cumsum(c)[:-1])[self.rank] for s, c in
                zip(self._exchange(src), self._exchange(send_counts), strict=True)]
        assert [len(c) for c in cuts] == list(recv_counts)
        return self._give(out, np.concatenate(cuts))

    def broadcast(self, x, root=0):
        result = self._exchange(x)[root]
        return x if self.rank == root else self._give(x, result)

    def scatter(self, src, out=None, root=0):
        return self._give(out, np.split(self._exchange(src)[root], self.size)[self.rank])

    def send(self, x, dst, async_op=False):
        self.sent = x
        return self

    def recv(self, out, src):
        self._give(out, self._exchange(self.sent)[src])

    def wait(self):
        pass

    def split(self, color, key=0):
        raise AssertionError("no split was asked for")


@pytest.fixture
def bench(monkeypatch):
    """The script's module over plain memory."""
    strata = pytest.importorskip("strata")
    monkeypatch.setattr(strata, "empty", lambda shape, dtype: np.empty(shape, dtype), raising=False)
    monkeypatch.setattr(strata, "FabricMemoryError", MemoryError, raising=False)
    monkeypatch.delenv("NCCL_TESTS_MIN_BW", raising=False)
    monkeypatch.delenv("NCCL_TESTS_SPLIT", raising=False)
    import collectives
    return collectives


def rows_of(text):
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


# Lines that nccl-tests 2.19.6 prints, with figures put in by its own formats.
HEADER = [
    "#",
    "#                                                              out-of-place                       "
    "in-place          ",
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw  "
    " busbw  #wrong ",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  "
    "(GB/s)         ",
]
ROW = ("     1048576        262144     float     sum      -1    12.34  100.00    5.00       3"
       "  12345.7  1234.6    0.00     N/A")


def test_lines_are_those_of_nccl_tests():
    assert table.header(options.parse([])) == HEADER
    made = (table.preamble(1048576, 262144, "float", "sum", -1) + table.body(12.34, 100.0, 5.0, 3)
            + table.body(12345.678, 1234.56, 0.001, None))
    assert made == ROW
    assert table.footer("all_reduce_perf", 0, 12.3456789, None) == [
        "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 12.3457 ", "#",
        "# Collective test concluded: all_reduce_perf", "#", ""]
    assert table.footer("x", 2, 1.0, 2.0)[:2] == [
        "# Out of bounds values : 2 FAILED", "# Avg bus bandwidth    : 1 FAILED"]
    assert table.device(3, 0, 77, "host", "die") == (
        "#  Rank  3 Group  0 Pid     77 on       host device  3 [0000:00:00] die")


@pytest.mark.parametrize("value, width, text", [
    (0, 7, "   0.00"), (999.994, 6, "999.99"), (999.995, 6, "1000.0"), (99999.94, 7, "99999.9"),
    (99999.96, 7, " 100000"), (9999999.4, 7, "9999999"), (12345678, 7, "1.2e+07"), (12345678, 6, " 1e+07")])
def test_numbers_lose_decimals_before_columns(value, width, text):
    assert table.fit(value, width) == text


def test_rows_keep_their_columns_with_every_option():
    for argv in ([], ["-S", "1"], ["-I", "1"], ["-I", "1", "-S", "1"]):
        names = table.header(options.parse(argv))[2][1:].split()
        assert len(names) == 5 + 8 + (8 if "-I" in argv else 0) + ("-S" in argv)


def test_statistics():
    figures = table.statistics([9e-6, 1e-6, 2e-6, 3e-6, 4e-6], skip=1)
    assert (figures["min_us"], figures["max_us"], figures["avg_us"], figures["p50_us"]) == pytest.approx(
        (1, 4, 2.5, 3))
    assert figures["cv_pct"] == pytest.approx(100 * 1.25 ** 0.5 / 2.5)
    assert table.statistics([i * 1e-6 for i in range(1, 201)], 0)["p99_us"] == pytest.approx(198)


@pytest.mark.parametrize("text, value", [("8", 8), ("64K", 65536), ("1.5M", 3 << 19), ("1g", 1 << 30),
                                         ("32MB", 32 << 20), ("1e3", 1000), ("0", 0)])
def test_sizes(text, value):
    assert options.parse_size(text) == value


def test_defaults_are_those_of_nccl_tests():
    o = options.parse([])
    assert (o.minbytes, o.maxbytes, o.stepbytes, o.stepfactor) == (32 << 20, 32 << 20, 1 << 20, 1)
    assert (o.iters, o.warmup_iters, o.agg_iters, o.run_cycles, o.check) == (20, 1, 1, 1, 1)
    assert (o.ops, o.types, o.root, o.average, o.collectives) == (("sum",), ("float",), 0, 1, ("all_reduce",))


def test_options_in_all_their_spellings():
    o = options.parse(["-b8", "-e", "1M", "--stepfactor=2", "--iters", "5", "-o", "all", "-d", "all",
                       "-r", "all", "-t", "1", "-g1", "-p", "0", "broadcast_perf"])
    assert list(o.sizes()) == [8 << i for i in range(18)]
    assert o.root == -1 and len(o.types) == 12 and o.ops == ("sum", "prod", "max", "min", "avg")
    assert o.collectives == ("broadcast",)
    assert options.parse(["--op", "all_gather"]).collectives == ("all_gather",)
    assert options.parse(["--collective", "all_to_all"]).collectives == ("alltoall",)
    assert options.parse(["all"]).collectives == options.COLLECTIVES
    assert list(options.parse(["-b", "1K", "-e", "3K", "-i", "1K"]).sizes()) == [1024, 2048, 3072]
    assert list(options.parse(["-b", "0", "-e", "0"]).sizes()) == [0]
    assert list(options.parse(["-b", "0", "-e", "4", "-i", "2"]).warm_sizes()) == [0, 1, 2, 4]


@pytest.mark.parametrize("argv, says", [
    (["-b", "2M", "-e", "1M"], "2097152 > 1048576"),
    (["-b", "pear"], "minbytes"), (["-b", "8X"], "minbytes"), (["-b", "-8"], "minbytes"),
    (["-b", "1", "-e", "2", "-i", "0"], "step"), (["-b", "0", "-e", "2", "-f", "2"], "minbytes"),
    (["-n", "0"], "0 is not in 1"), (["-w", "-1"], "-1"), (["-z", "4"], "0..3"),
    (["-n", "x"], "not a number"), (["-J", "x.csv"], "JSON"), (["-K", "2"], "-I 1"),
    (["-g", "8"], "strata-run -n"), (["-t", "2"], "strata-run -n"), (["-G", "1"], "CUDA graph"),
    (["-D", "1"], "device API"), (["-o", "mulsum"], "mulsum"), (["-d", "tf32"], "tf32"),
    (["-r", "two"], "root"), (["hypercube"], "hypercube"), (["--nonsense"], "nonsense"),
    (["broadcast", "--op", "reduce"], "one collective"), (["-C", "1"], "complete"),
])
def test_what_makes_no_sense_is_refused_with_a_reason(argv, says):
    with pytest.raises(options.UsageError, match="(?s).*" + says.replace("(", r"\(")) as caught:
        options.parse(argv)
    assert caught.value.code == 2


def test_help_is_no_error():
    with pytest.raises(options.UsageError) as caught:
        options.parse(["-h"])
    assert caught.value.code == 0 and "--minbytes" in caught.value.text


@pytest.mark.parametrize("text, colors", [
    ("AND 0x1", [0, 1, 0, 1]), ("MOD 2", [0, 1, 0, 1]), ("DIV 2", [0, 0, 1, 1]), ("/2", [0, 0, 1, 1]),
    ("OR 0b1", [1, 1, 3, 3]), ("mod3", [0, 1, 2, 0]), ("", [0, 0, 0, 0])])
def test_split(text, colors):
    assert [options.split_color(r, {"NCCL_TESTS_SPLIT": text}) for r in range(4)] == colors
    assert options.split_color(3, {"NCCL_TESTS_SPLIT_MASK": "0x2"}) == 2
    with pytest.raises(options.UsageError):
        options.split_color(1, {"NCCL_TESTS_SPLIT": "MOD 0"})


@pytest.mark.parametrize("name, nbytes, n, expected", [
    ("all_reduce", 1024, 4, (256, 256, 256)), ("all_gather", 1024, 4, (64, 256, 64)),
    ("reduce_scatter", 1024, 4, (256, 64, 64)), ("alltoall", 1000, 3, (240, 240, 80)),
    ("all_gather", 8, 4, (0, 0, 0)), ("gather", 100, 2, (12, 24, 12)), ("scatter", 100, 2, (24, 12, 12))])
def test_counts_are_rounded_as_in_nccl_tests(name, nbytes, n, expected):
    assert operations.counts(name, nbytes, 4, n) == expected


@pytest.mark.parametrize("name, factor", [
    ("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("alltoall", 0.75), ("gather", 0.75),
    ("scatter", 0.75), ("broadcast", 1), ("reduce", 1), ("sendrecv", 1)])
def test_busbw_factors(name, factor):
    param = 250 if name in operations.SHARED else 1000
    assert operations.bandwidths(name, param, 1000000, 0.5, 4) == pytest.approx((2.0, 2.0 * factor))


@pytest.mark.parametrize("n", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("name", options.TYPES)
def test_data_fits_its_type_and_depends_on_rank_and_position(name, n):
    for op in ("none", *options.REDUCTIONS):
        a, b = data.operand(name, op, 0, n, 1), data.operand(name, op, 1, n, 1)
        assert a.dtype == data.dtype(name) and len(a) == data.PERIOD
        assert np.count_nonzero(a.view(f"u{a.itemsize}") != b.view(f"u{a.itemsize}")) > data.PERIOD // 3
        assert np.isfinite(a.astype(np.float64)).all()
        if op != "none":
            assert np.isfinite(data.reduced(name, op, n, 1).astype(np.float64)).all()


def test_wrong_counts_exactly():
    pattern = data.operand("half", "none", 0, 1, 3)
    buffer = np.empty(3 * data.PERIOD + 17, pattern.dtype)
    data.pour(buffer, pattern)
    assert data.wrong(buffer, pattern) == 0
    assert data.wrong(buffer[100:], pattern, 100) == 0
    assert data.wrong(buffer[100:], pattern, 99) > data.PERIOD
    buffer[[5, 9000, -1]] += 1
    assert data.wrong(buffer, pattern) == 3
    assert data.wrong(buffer[:0], pattern) == 0


@pytest.mark.parametrize("name", list(data.SMALL))
def test_slack_is_one_unit_in_the_last_place(name):
    x = np.array([1.0, -1.0, 3.0], data.dtype(name))
    pattern = np.resize(x, data.PERIOD)
    for step, bad in ((1, 0), (2, 3)):
        moved = x.view(f"u{x.itemsize}") + np.array([step, step, step], f"u{x.itemsize}")
        assert data.wrong(moved.view(x.dtype), pattern, 0, 1) == bad
        assert data.wrong(moved.view(x.dtype), pattern, 0, 0) == 3


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("name", options.COLLECTIVES)
def test_right_collectives_have_no_wrong_element(bench, capsys, name, n):
    every = n == 3  # of the types, at one root; the other numbers of ranks have every root
    argv = [name, "-b", "16", "-e", "80000", "-f", "70", "-n", "1" if every else "2", "-c", "1" if every else "2",
            "-r", "1" if every else "all", "-o", "all", "-d", "all" if every else "half"]
    assert World(n).run(lambda g: bench.bench(g, argv)) == [0] * n
    text = capsys.readouterr().out
    rows = rows_of(text)
    types, roots = (12, 1) if every else (1, n if name in operations.ROOTED else 1)
    assert len(rows) == 3 * types * (5 if name in operations.REDUCING else 1) * roots
    assert {len(r) for r in rows} == {13}
    assert {r[8] for r in rows} == {"0"}
    assert {r[12] for r in rows} == {"N/A" if name in operations.NO_IN_PLACE else "0"}
    assert "# Out of bounds values : 0 OK" in text and f"concluded: {name}_perf" in text


@pytest.mark.parametrize("name", options.COLLECTIVES)
def test_one_wrong_element_on_one_rank_fails_the_run(bench, capsys, name):
    def spoil(rank, out):
        if rank == (0 if name in ("reduce", "gather") else 2) and out.dtype == np.float32 and len(out):
            out[-1] += 1
    n = 3
    argv = [name, "-b", "4096", "-e", "4096", "-n", "1", "-w", "0"]
    assert World(n, spoil).run(lambda g: bench.bench(g, argv)) == [1] * n
    text = capsys.readouterr().out
    assert rows_of(text)[0][8] == "1"
    assert "FAILED" in text


def test_every_way_of_timing(bench, capsys):
    for argv in (["-z", "1"], ["-z", "2"], ["-z", "3", "-I", "1"], ["-m", "3", "-I", "1", "-K", "1"],
                 ["-a", "0"], ["-a", "3"], ["-u", "1"], ["-c", "0"], ["-N", "2"], ["-S", "1"]):
        got = World(2).run(lambda g, a=argv: bench.bench(g, ["-b", "1K", "-e", "1K", "-n", "4", *a]))
        assert got == [0, 0], argv
        rows = rows_of(capsys.readouterr().out)
        assert len(rows) == (2 if "-N" in argv else 1)
        assert len(rows[0]) == 13 + (8 if "-I" in argv else 0) + (2 if "-S" in argv else 0)
        assert rows[0][8] == ("N/A" if "-c" in argv else "0")


def test_json(bench, capsys, tmp_path):
    path = tmp_path / "out.json"
    path.write_text("mine")
    argv = ["all_gather", "-b", "1K", "-e", "2K", "-f", "2", "-n", "3", "-I", "1", "-J", str(path)]
    assert World(2).run(lambda g: bench.bench(g, argv)) == [0, 0]
    assert path.read_text() == "mine", "a file that was there is gone"
    doc = json.loads((tmp_path / "out.json.0").read_text())
    assert doc["version"] == 3 and [r["size"] for r in doc["results"]] == [1024, 2048]
    row = doc["results"][0]
    assert row["out_of_place"]["nwrong"] == 0 and len(row["in_place_per_iter"]["times_us"]) == 3
    assert len(row["in_place_per_iter"]["per_process_max_times_us"]) == 2
    assert doc["config"]["iterations"] == 3 and [d["rank"] for d in doc["config"]["devices"]] == [0, 1]
    assert doc["out_of_bounds"] == {"count": 0, "okay": "true"}
    assert not any("TOKEN" in e or e.startswith("PATH") for e in doc["env"])


def test_a_bandwidth_that_is_missed_fails(bench, capsys, monkeypatch):
    monkeypatch.setenv("NCCL_TESTS_MIN_BW", "1e9")
    assert World(2).run(lambda g: bench.bench(g, ["-b", "1K", "-e", "1K"])) == [1, 1]
    assert "FAILED" in capsys.readouterr().out


def limited(strata, room):
    def empty(shape, dtype):
        if shape[0] > room:
            raise strata.FabricMemoryError("no room")
        return np.empty(shape, dtype)
    return empty


def test_sizes_above_the_memory_are_left_out_or_refused(bench, capsys, monkeypatch):
    monkeypatch.setattr(bench.strata, "empty", limited(bench.strata, 100_000))
    assert World(2).run(lambda g: bench.bench(g, ["-b", "16K", "-e", "256K", "-f", "2", "-n", "1"])) == [0, 0]
    text = capsys.readouterr().out
    assert "Reducing maxBytes to 65536 due to memory limitation" in text
    assert [r[0] for r in rows_of(text)] == ["16384", "32768", "65536"]
    with pytest.raises(options.UsageError, match="minbytes.*--hbm"):
        World(2).run(lambda g: bench.bench(g, ["-b", "1M", "-e", "1M"]))


def test_a_root_outside_the_group_is_an_argument_error(bench):
    with pytest.raises(options.UsageError, match="root 5"):
        World(2).run(lambda g: bench.bench(g, ["broadcast", "-r", "5", "-b", "8", "-e", "8"]))
