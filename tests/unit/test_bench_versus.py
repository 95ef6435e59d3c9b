"""bench/versus.py: cells know their answers, figures are what they are said to be."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import versus  # noqa: E402
from versus_lib import cells, contenders, report  # noqa: E402
from versus_lib.cells import grid  # noqa: E402
from versus_lib.jobs import Job, JobFailed  # noqa: E402
from versus_lib.measure import iterations, measure_cell  # noqa: E402


def answers(op, sends, n):
    """The operation done by hand on every rank's input."""
    if op == "all_reduce":
        return [np.sum(sends, axis=0)] * n
    if op == "all_gather":
        return [np.concatenate(sends)] * n
    if op == "reduce_scatter":
        return np.split(np.sum(sends, axis=0), n)
    return [np.concatenate([np.split(s, n)[r] for s in sends]) for r in range(n)]


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("nbytes", [8, 1024, 1 << 18])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_cells_take_the_right_answer_and_nothing_else(op, nbytes, n):
    sends, recvs = cells.shape(op, nbytes, n)
    assert max(sends, recvs) * 4 <= max(nbytes, 4 * n)
    send = [np.empty(sends, "f4") for _ in range(n)]
    for rank in range(n):
        cells.prepare(op, rank, 5, send[rank], np.empty(recvs, "f4"))
    for rank, answer in enumerate(answers(op, send, n)):
        assert len(answer) == recvs
        assert cells.errors(op, rank, n, 5, answer) == 0
        assert cells.errors(op, rank, n, 6, answer) > 0, "an answer to older data passed"
        answer = answer.copy()
        answer[-1] += 1
        assert cells.errors(op, rank, n, 5, answer) == 1


def test_an_untouched_output_is_all_wrong():
    recv = np.empty(64, "f4")
    for op in cells.OPS[1:]:
        cells.prepare(op, 1, 0, np.empty(64, "f4"), recv)
        assert cells.errors(op, 1, 2, 0, recv) == 64


def test_swapped_shares_are_wrong():
    n, share = 4, 4096      # a power of two, as chunks of libraries are
    sent = [np.empty(share, "f4") for _ in range(n)]
    for rank in range(n):
        cells.prepare("all_gather", rank, 0, sent[rank], np.empty(share * n, "f4"))
    gathered = np.concatenate([sent[1], sent[0], sent[2], sent[3]])
    assert cells.errors("all_gather", 0, n, 0, gathered) > share


def record(number, contender, us, op="all_reduce", nbytes=8, n=2, wrong=0):
    return {"round": number, "contender": contender, "about": f"{contender} 1.0", "n": n, "op": op,
            "bytes": nbytes, "us": us, "us_mean": 2 * us, "wrong": wrong, "iters": 10}


def test_ratio_is_against_the_best_peer_of_the_same_round():
    records = [record(0, "strata", 1.0), record(0, "mpich", 2.0), record(0, "impi", 0.5),
               record(1, "strata", 1.0), record(1, "mpich", 0.8), record(1, "impi", 3.0),
               record(2, "strata", 2.0), record(2, "mpich", 9.0), record(2, "impi:shm", 4.0)]
    cell = report.collect(records)["all_reduce", 8, 2]
    peers = ["mpich", "impi", "impi:shm"]
    assert cell.ratios(peers) == [0.5, 0.8, 2.0]
    assert cell.ratio(peers) == 0.8
    assert cell.best(peers) == ("impi", 1.75)
    assert report.collect(records, "us_mean")["all_reduce", 8, 2].median("strata") == 2.0


def test_wrong_answers_do_not_count():
    records = [record(0, "strata", 1.0), record(0, "mpich", 0.1, wrong=3), record(0, "impi", 2.0)]
    assert report.collect(records)["all_reduce", 8, 2].ratios(["mpich", "impi"]) == [2.0]


def test_summary_lists_the_lost_cells_worst_first():
    records = [record(0, "strata", 4.0), record(0, "mpich", 2.0),
               record(0, "strata", 1.0, nbytes=1024), record(0, "mpich", 4.0, nbytes=1024),
               record(0, "strata", 10.0, op="broadcast"), record(0, "mpich", 1.0, op="broadcast")]
    figures = report.summary(report.collect(records), ["mpich"])
    assert math.isclose(figures["geometric_mean"], (0.5 * 4.0 * 0.1) ** (1 / 3))
    assert [(c["op"], c["bytes"]) for c in figures["lost"]] == [("broadcast", 8), ("all_reduce", 8)]
    assert figures["of_limit"] is None


MACHINE = {"record": "machine", "cpu": "a machine", "cores": 2, "memory_GiB": 23, "shm_GiB": 11, "kernel": "6",
           "python": "3", "load_before": 0.5, "commit": "abc", "skipped": [["gloo", "why not"]],
           "settings": {"strata": {}, "mpich": {}, "impi": {"I_MPI_FABRICS": "shm"}}}


def test_tables_and_picture_from_records(tmp_path, capsys):
    records = [MACHINE]
    for n in (2, 4):
        for op, nbytes in grid(cells.OPS, [8, 1 << 20], n):
            for k, name in enumerate(("strata", "mpich", "impi")):
                records.append({"record": "cell", **record(0, name, 1.0 + k + nbytes / 1e4, op, nbytes, n)})
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(r) + "\n" for r in records))
    argv = ["--replay", str(log)]
    try:
        import matplotlib  # noqa: F401
        argv += ["--plot", str(tmp_path / "p.png")]
    except ImportError:
        pass
    assert versus.main(argv) == 0
    shown = capsys.readouterr().out
    assert "a machine" in shown and "mpich: mpich 1.0" in shown and "gloo skipped: why not" in shown
    assert "geometric mean of 24 ratios" in shown and "1 MiB" in shown
    if "--plot" in argv:
        assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_wrong_answer_or_a_failed_job_is_told_and_fails_the_run(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    bad = {"record": "cell", **record(0, "mpich", 1.0, wrong=7)}
    died = {"record": "failure", "contender": "impi", "n": 2, "where": "start", "error": "gone"}
    for extra in (bad, died):
        log.write_text("".join(json.dumps(r) + "\n"
                               for r in (MACHINE, {"record": "cell", **record(0, "impi", 1.0)}, extra)))
        assert versus.main(["--replay", str(log)]) == 1
    shown = capsys.readouterr().out
    assert "WRONG ANSWER: mpich" in shown and "FAILED: impi" in shown


@pytest.mark.parametrize("argv", [["--sizes", "7"], ["--sizes", "pear"], ["-n", "0"], ["--ops", "alltoall"],
                                  ["--rounds", "0"], ["--quick", "--full"], ["--peers", "lam"]])
def test_bad_arguments_are_argument_errors(argv):
    with pytest.raises(SystemExit) as caught:
        versus.arguments(argv)
    assert caught.value.code == 2


def test_defaults():
    a = versus.arguments([])
    assert a.n == [2, 4, 8] and a.sizes == sorted(cells.SIZES) and a.rounds == 5 and not a.tuned
    assert versus.arguments(["--full"]).tuned
    assert versus.size("64K") == versus.size("64KiB") == 65536


def test_iterations_fill_the_time_within_bounds():
    assert iterations(1e3, 0.1) == 5000
    assert iterations(1e6, 0.1) == 100
    assert iterations(1e9, 0.1) == 8


def test_a_peer_that_is_not_installed_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(contenders, "PEERS", tmp_path)
    here, skipped = versus.present(versus.arguments(["--no-strata", "--torch"]))
    assert not here
    assert [name for name, _ in skipped] == ["mpich", "openmpi", "impi", "gloo"]
    assert all("--setup" in why for _, why in skipped)


STAND_IN = """
import sys
sys.path.insert(0, {lib!r})
import worker
class Alone:
    rank, size, about = 0, 1, "stand-in"
    def barrier(self): pass
    def release(self): pass
    def empty(self, count): return worker.np.empty(count, "f4")
    def bind(self, op, send, recv):
        if op == "barrier": raise RuntimeError("no barrier here")
        return lambda: recv.__setitem__(slice(None), send + {error})
worker.Mpi = Alone
worker.main()
"""


class StandIn(contenders.Contender):
    """One rank that copies: the job's protocol without any library."""

    error = 0

    def command(self, n, rank, socket_name):
        code = STAND_IN.format(lib=str(BENCH / "versus_lib"), error=self.error)
        return [sys.executable, "-c", code, "mpi", socket_name]


def test_a_job_verifies_times_and_reports_errors():
    job = Job(StandIn("mpich"), 1)
    try:
        figures = measure_cell(job, "all_reduce", 1 << 16, 4, 0.01, None)
        assert figures["wrong"] == 0 and figures["us"] > 0 and figures["iters"] >= 8
        job.ask(do="open", op="all_reduce", bytes=8)
        assert len(job.time(5)) == 5
        with pytest.raises(JobFailed, match="no barrier here"):
            job.ask(do="open", op="barrier", bytes=0)
    finally:
        job.close()


def test_a_job_with_wrong_answers_is_found_out():
    liar = StandIn("mpich")
    liar.error = 1
    job = Job(liar, 1)
    try:
        assert measure_cell(job, "all_reduce", 1024, 4, 0.01, None)["wrong"] == 2 * 256
    finally:
        job.close()


def test_a_job_that_does_not_start_says_what_it_printed():
    class Broken(contenders.Contender):
        def command(self, n, rank, socket_name):
            return [sys.executable, "-c", "raise SystemExit('the reason')"]

    with pytest.raises(JobFailed, match="the reason"):
        Job(Broken("mpich"), 2)
