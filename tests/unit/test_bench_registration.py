"""bench/registration.py: sizes follow from a seed, figures are what they are said to be, two dies get through it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))

import registration  # noqa: E402
import versus  # noqa: E402
from registration_lib import report, run  # noqa: E402
from registration_lib.workload import Moe  # noqa: E402

M = 1 << 20


# ---- the workload ------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 8])
def test_sizes_follow_from_seed_and_step_alone(n):
    work = Moe(5, n, (10, 40), 64)
    for step in (0, 7):
        counts = work.counts(step)
        assert counts.shape == (n, n) and (counts >= 0).all()
        assert ((10 <= counts.sum(axis=1)) & (counts.sum(axis=1) <= 40)).all()
        assert (counts == Moe(5, n, (10, 40), 64).counts(step)).all()
        for rank in range(n):
            freed, stays = work.sizes(step, rank)
            assert freed[0] == counts[rank].sum() * 64 and stays == counts[:, rank].sum() * 64
            assert freed[2] == n * freed[1] == n * counts.sum(axis=1).max() * 32
    assert (work.counts(0) != work.counts(7)).any() and (Moe(6, n, (10, 40), 64).counts(0) != work.counts(0)).any()


@pytest.mark.parametrize("keep", [0, 2])
def test_peak_is_the_most_that_lives_at_once(keep):
    work = Moe(1, 3, (5, 60), 16, keep)
    live, most = {}, 0
    for step in range(20):
        freed, stays = work.sizes(step, 1)
        live.pop(step - keep - 1, None)
        live[step] = stays
        most = max(most, sum(freed) + sum(live.values()))
    assert work.peak(20, 1) == most


def test_static_buffers_hold_every_step():
    work = Moe(2, 4, (1, 50), 8)
    send, recv, routed = work.most(30)
    every = [work.counts(step) for step in range(30)]
    assert send == max(c.sum(axis=1).max() for c in every) and recv == max(c.sum(axis=0).max() for c in every)
    assert routed == send


# ---- from stamps to records --------------------------------------------------------------


def stamp(begin, end, **more):
    return {"begin": begin, "end": end, "wrong": 0, "late": 0, **more}


def test_a_makespan_is_from_the_first_begin_to_the_last_end():
    replies = [[stamp(1000, 5000, wrong=1), stamp(0, 1000)], [stamp(2000, 9000, late=2), stamp(500, 700)]]
    assert run.makespans(replies) == [{"us": 8.0, "wrong": 1, "late": 2}, {"us": 1.0, "wrong": 0, "late": 0}]
    both = run.makespans([[stamp(0, 9000, allocated=3000)], [stamp(1000, 9000, allocated=7000)]])
    assert both[0]["alloc_us"] == 6.0


def test_steps_add_up_over_dies():
    step = {"allocator_ns": 2000, "late_maps": 1, "late_map_ns": 4000, "shadow_maps": 3}
    other = {"allocator_ns": 0, "late_maps": 0, "late_map_ns": 0, "shadow_maps": 5}
    found = run.steps_of([([{"begin": 0, "end": 10_000, **step}], 0), ([{"begin": 1000, "end": 20_000, **other}], 0)])
    assert found == [{"us": 20.0, "allocator_us": 1.0, "late": 1, "late_us": 2.0, "pages": 8}]


def test_sizes_that_do_not_fit_are_left_out():
    assert run.fits(128 * M, 4) and not run.fits(128 * M, 16)
    assert run.repeats(2 * M, 6) == 6 and run.repeats(1 << 30, 6) == 3 and run.repeats(1 << 30, 1) == 2


class Turns(run.Run):
    def __init__(self, rounds):
        super().__init__(registration.arguments(["--rounds", str(rounds)]), None, None)


def test_every_contender_has_every_place_in_turn():
    order = [name for _, name, _ in Turns(3).turns(dict.fromkeys("abc"))]
    assert order == list("abcbcacab")


def test_the_smallest_pool_is_found(monkeypatch):
    tried = []

    class Pool:
        def __init__(self, n, timeout, registration, pool_bytes):
            self.pages = pool_bytes // (2 * M)
            tried.append(self.pages)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def start(self):
            pass

        def run(self, fn, work, steps):
            return [[], []] if self.pages >= 37 else [[], None]

    monkeypatch.setattr(run, "Pool", Pool)
    assert Turns(1)._smallest_pool(None, 2, 5, 20 * 2 * M) == 37 * 2 * M
    assert min(tried) >= 20 and Turns(1)._smallest_pool(None, 2, 5, 2 * M) == 37 * 2 * M


# ---- figures and claims ------------------------------------------------------------------


def test_quantiles_are_samples():
    assert [report.quantile([3, 1, 2, 4], q) for q in (0.25, 0.5, 0.75, 0.99, 1.0)] == [1, 2, 3, 4, 4]
    assert report.quantile([7], 0.01) == 7


@pytest.mark.parametrize("value, text", [(0.5, "0.5 us"), (999, "999 us"), (1500, "1.5 ms"), (2.5e6, "2.5 s"),
                                         (-13.4, "-13.4 us"), (None, "-"), (12345e3, "12.3 s")])
def test_times_have_units(value, text):
    assert report.us(value) == text


def first(contender, how, us, number=0, n=2, op="all_gather", nbytes=2 * M):
    return {"record": "first", "n": n, "op": op, "bytes": nbytes, "round": number, "repeat": 0,
            "contender": contender, "how": how, "us": us, "wrong": 0, "late": 0}


def run_of(mine, late, warm=100.0, once=(200.0, 210.0)):
    """Records of section first: fresh buffers of on_allocation and of just_in_time by n."""
    out = []
    for n in mine:
        for number in (0, 1):
            noise = 3.0 * number + 1.0      # a round in which all is slower changes nothing
            for name, us, both in (("on_allocation", mine[n], once[0]), ("just_in_time", late[n], once[1])):
                out += [first(name, "warm", noise * warm, number, n), first(name, "ready", noise * us, number, n),
                        first(name, "at_once", noise * both, number, n)]
    return out


def verdicts(records):
    return {c["claim"].split(":")[0]: c["holds"] for c in report.claims(records)}


def test_claims_hold_when_they_do():
    found = verdicts(run_of({2: 105.0, 4: 109.0}, {2: 300.0, 4: 600.0}))
    assert len(found) == 4 and all(found.values())


def test_claims_fall_when_they_do_not_hold():
    found = verdicts(run_of({2: 130.0, 4: 125.0}, {2: 150.0, 4: 150.0}, once=(300.0, 200.0)))
    assert len(found) == 4 and not any(found.values())


def test_ratios_are_against_the_same_repeats_warm_buffer():
    records = run_of({2: 110.0}, {2: 400.0})
    assert report.first_ratio(records, "just_in_time", "ready", 2, "all_gather", 2 * M) == (4.0, [4.0, 4.0])
    assert report.first_ratio(records, "pool", "ready", 2, "all_gather", 2 * M) == (None, [])
    assert report.paired([{"round": 0, "us": 6.0}], [{"round": 1, "us": 3.0}], "us") == (None, [])
    assert report.first_ratio([first("pool", "ready", 6.0), first("pool", "warm", 3.0, number=1)], "pool", "ready", 2,
                              "all_gather", 2 * M) == (None, [])


def test_the_control_is_named():
    records = run_of({2: 110.0}, {2: 400.0}) + [first("pool", "ready", 103.0), first("pool", "warm", 100.0)]
    assert "pool, the control: 1.03" in report.claims(records)[0]["figure"]


def moe(contender, us, number=0, late=0, n=4, wrong=0):
    return {"record": "moe", "n": n, "contender": contender, "round": number, "step": number, "us": us, "late": late,
            "late_us": 0.5 * late, "allocator_us": us / 100, "pages": 8, "wrong": wrong}


def test_the_loop_is_judged_by_cost_and_late_steps():
    records = [moe("static", 1000.0), moe("on_allocation", 1005.0), moe("just_in_time", 1300.0, late=9)]
    figures = report.moe_figures(records, 4, "just_in_time")
    assert figures["ratio"] == 1.3 and figures["late"] == 1.0 and figures["MiB"] == 4.0
    assert [c["holds"] for c in report.claims(records)] == [True, True, None]
    records[1] = moe("on_allocation", 1020.0, late=1)
    assert [c["holds"] for c in report.claims(records)] == [False, False, None]


def test_a_slow_check_is_told():
    records = [{"record": "check", "n": 2, "bytes": 4096, "round": 0, "ns": ns, "worst_ns": ns} for ns in (5, 21, 30)]
    assert [c["holds"] for c in report.claims(records)] == [False]
    assert [c["holds"] for c in report.claims(records[:1])] == [True]


MACHINE = {"record": "machine", "cpu": "a machine", "cores": 2, "memory_GiB": 23, "shm_GiB": 11, "kernel": "6",
           "python": "3", "load_before": 0.5, "commit": "abc", "huge_pages": "always", "plan": {}}


def everything():
    records = [MACHINE, *run_of({2: 105.0, 4: 109.0}, {2: 300.0, 4: 600.0}), moe("static", 1000.0),
               moe("on_allocation", 1005.0), {"record": "pool_size", "n": 4, "peak_live": M, "needed": 2 * M}]
    for n in (2, 4):
        records += [{"record": "publish", "n": n, "from_call_us": 90.0 + i, "alloc_us": 60.0, "after_us": 30.0}
                    for i in range(9)]
        records.append({"record": "histogram", "n": n, "p50_us": 40.0, "p99_us": 80.0})
        records.append({"record": "check", "n": n, "bytes": 4096, "round": 0, "ns": 3.0, "worst_ns": 4.0})
        for name in ("huge pages", "small pages"):
            records.append({"record": "mapping_cpu", "n": n, "contender": name, "round": 0, "map_s": 0.1,
                            "unmap_s": 0.2})
            records.append({"record": "mapped", "n": n, "contender": name, "bytes": 2 * M, "round": 0, "wrong": 0,
                            "alloc_us": 100.0, "first_us": 110.0, "all_us": 1130.0})
        records.append({"record": "idle", "n": n, "contender": "on_allocation", "round": 0, "rank": 0, "threads": 1,
                        "cpu_us_per_s": 0.0, "switches_per_s": 0.0})
    for name in ("on_allocation", "pool, as needed"):
        records.append({"record": "waste", "n": 4, "contender": name, "rank": 0, "step": 0, "reserved": 4 * M,
                        "allocated": 3 * M, "requested": 2 * M})
    return records


def replay(records, tmp_path, *argv):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(r) + "\n" for r in records))
    return registration.main(["--replay", str(log), *argv])


def test_tables_and_picture_from_records(tmp_path, capsys):
    argv = []
    try:
        import matplotlib  # noqa: F401
        argv = ["--plot", str(tmp_path / "p.png")]
    except ImportError:
        pass
    old = {"record": "claim", "claim": "stale", "figure": "", "holds": False}
    assert replay([*everything(), old], tmp_path, *argv) == 0
    shown = capsys.readouterr().out
    for part in ("a machine", "1.13 ms", "smallest pool that holds the loop, n = 4: 2.0 MiB", "40 us", "just_in_time"):
        assert part in shown, part
    assert "DOES NOT HOLD" not in shown and "stale" not in shown and "BUSY" not in shown
    if argv:
        assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_busy_machine_is_named():
    assert "BUSY" in "".join(report.machine_lines([{**MACHINE, "load_before": 1.5}]))


def test_a_picture_without_matplotlib_is_refused_before_anything_is_measured(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for module in (registration, versus):
        with pytest.raises(SystemExit) as caught:
            module.arguments(["--plot", "p.png"])
        assert caught.value.code == 2 and "pip install matplotlib" in capsys.readouterr().err


def test_a_wrong_answer_or_a_failed_section_fails_the_run(tmp_path, capsys):
    for extra in (moe("pool", 1.0, wrong=7), {"record": "failure", "section": "first", "error": "gone"}):
        assert replay([MACHINE, extra], tmp_path) == 1
    shown = capsys.readouterr().out
    assert "WRONG: moe, n = 4, pool: 7" in shown and "FAILED: first: gone" in shown


@pytest.mark.parametrize("argv", [["-n", "1"], ["--only", "pear"], ["--modes", "eager"], ["--tokens", "9-2"],
                                  ["--delay", "-1"], ["--hidden", "6"], ["--sizes", "pear"], ["--rounds", "0"]])
def test_bad_arguments_are_argument_errors(argv):
    with pytest.raises(SystemExit) as caught:
        registration.arguments(argv)
    assert caught.value.code == 2


def test_defaults():
    a = registration.arguments([])
    assert a.n == [2, 4, 8, 16] and a.sizes[0] == 2 * M and a.sizes[-1] == 1 << 30 and a.only == list(run.SECTIONS)
    assert registration.arguments(["--quick", "-n", "2,3"]).n == [2, 3]
    assert registration.span("7") == (7, 7) and registration.span("3-9") == (3, 9)


def test_contenders():
    found = run.contenders(["on_allocation", "pool"])
    assert list(found) == ["on_allocation", "pool", "on_allocation, small pages"]
    assert found["on_allocation, small pages"] == {"registration": "on_allocation", "huge_pages": False}


# ---- the whole on two dies -----------------------------------------------------------------


def test_every_section_on_two_dies(tmp_path):
    log = tmp_path / "log.jsonl"
    done = subprocess.run(
        [sys.executable, "bench/registration.py", "--quick", "-n", "2", "--moe-n", "2", "--sizes", "2M",
         "--first-sizes", "2M", "--rounds", "1", "--repeats", "1", "--checks", "100", "--pages", "5", "--steps", "3",
         "--tokens", "8-32",
         "--compute", "0.5", "--idle", "0.05", "--cpu-bytes", "4M", "--delay", "0", "--json", str(log)],
        cwd=ROOT, capture_output=True, text=True, timeout=100, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in log.read_text().splitlines()]
    kinds = {r["record"] for r in records}
    assert kinds == {"machine", "mapped", "first", "check", "publish", "histogram", "moe", "pool_size", "waste", "idle",
                     "mapping_cpu", "claim"}
    assert not any(r.get("wrong") for r in records)
    assert all(r["late"] == 0 for r in records if r["record"] == "first" and r["how"] != "at_once"
               and not r["contender"].startswith("just_in_time")), "a page was late though the peers were ready"
    assert any(r["late"] > 0 for r in records if r["record"] == "first" and r["contender"] == "just_in_time")
    waste = [r for r in records if r["record"] == "waste"]
    assert all(r["requested"] <= r["allocated"] <= r["reserved"] for r in waste)
    sizes = np.unique([r["requested"] for r in waste])
    assert len(sizes) > 1, "the buffers' sizes did not change"
