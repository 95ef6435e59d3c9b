"""What tables say of traces whose times are known."""

import json

import numpy as np
import pytest
import tracing_cases
from hypothesis import given
from hypothesis import strategies as st
from tracing_cases import Job

from strata.errors import InvalidArgument
from strata.prediction import simulate
from strata.profile import reading, tables, timelines
from strata.profile.calls import covered, link, union


@pytest.fixture
def report(tmp_path):
    def made(job, operation=None, top=10):
        return tables.report(reading.read(job.save(tmp_path / "t.json")), operation, top)

    return made


def test_the_time_of_a_call_is_shared_among_what_goes_on_in_it(report):
    job = Job(1)
    job.call(0, "all_reduce", 0.0, 100.0)
    job.phase(0, "wait", 0.0, 30.0)
    job.phase(0, "copy", 30.0, 50.0, bytes=10)  # core 0 alone
    job.phase(0, "copy", 50.0, 60.0, core=0, bytes=20)  # half of it: core 1 waits
    job.phase(0, "wait", 50.0, 60.0, core=1)
    job.phase(0, "check", 60.0, 65.0)
    (row,) = report(job)["operations"]
    assert [row[key] for key in ("wait_us", "transfer_us", "other_us")] == pytest.approx([35, 25, 40])
    assert row["bytes_moved"] == 30 and row["calls"] == 1 and row["bytes_most"] == 65536
    assert row["wait"] + row["transfer"] + row["other"] == pytest.approx(1)


def test_of_nested_phases_the_inner_ones_time_is_its_own(tmp_path):
    rows = [{"ph": "M", "pid": 0, "tid": 1000, "name": "thread_name", "args": {"name": "core 0"}},
            {"ph": "M", "pid": 0, "tid": 0, "name": "thread_name", "args": {"name": "calls"}}]  # fmt: skip
    for tid, name, begin, took in ((0, "call", 0, 20), (0, "call", 2, 5), (1000, "recv", 0, 10), (1000, "wait", 2, 3),
                                   (1000, "check", 3, 1), (1000, "wait", 6, 4), (1000, "copy", 12, 2)):  # fmt: skip
        rows.append({"ph": "X", "pid": 0, "tid": tid, "name": name, "cat": name, "ts": begin, "dur": took,
                     "args": {"bytes": 9}})  # fmt: skip
    (tmp_path / "t.json").write_text(json.dumps(rows))
    calls, phases = link(reading.read(tmp_path / "t.json"))
    assert len(calls.die) == 1 and calls.busy[0].tolist() == pytest.approx([6, 5, 9])
    assert calls.moved[0] == 18
    spans = phases.spans
    assert (spans["begin"][1:] >= spans["end"][:-1]).all()
    assert (spans["end"] - spans["begin"]).sum() == pytest.approx(12)


def test_phases_that_run_after_the_call_are_its_own_by_number(report):
    job = Job(1)
    job.call(0, "all_gather", 0.0, 5.0)
    first = job.number[0]
    job.call(0, "all_gather", 6.0, 10.0)
    job.phase(0, "dma", 7.0, 30.0, ring=0, bytes=4, call=first)
    job.phase(0, "dma", 30.0, 40.0, ring=0, bytes=8)
    made = report(job)
    (row,) = made["operations"]
    assert row["transfer_us"] == pytest.approx(33) and row["other_us"] == pytest.approx(9)
    assert row["bytes_moved"] == 6
    (die,) = made["exposure"]
    assert die["exposed_us"] == pytest.approx(9) and die["overlapped_us"] == pytest.approx(30)
    assert die["transfer_us"] == pytest.approx(33)


@pytest.mark.parametrize("slow", [0, 3])
def test_a_die_that_is_late_is_named(report, slow):
    made = report(tracing_cases.slow_die(slow))
    first = made["findings"][0]
    assert (first["kind"], first["die"]) == ("straggler", slow) and f"die {slow} is late" in first["text"]
    table = made["straggler"]
    assert table["by"] == "peers" and table["dies"][0]["die"] == slow and table["dies"][0]["share"] > 0.9
    assert table["cause"]["arrives_after_us"] == pytest.approx(697, abs=3)
    assert table["cause"]["bytes_times"] == pytest.approx(1)


def test_a_die_that_is_late_is_named_by_arrivals_where_waits_name_nobody(report):
    job = Job(3)
    for step in range(5):
        for die in range(3):
            at = 100.0 * step
            job.call(die, "barrier", at + 60 * (die == 1), at + 65, nbytes=0)
    made = report(job)
    assert made["straggler"]["by"] == "arrivals" and made["findings"][0]["die"] == 1
    assert [row["blamed_us"] for row in made["straggler"]["dies"]] == pytest.approx([600, 0, 0])


def test_blame_goes_on_to_who_was_waited_for_in_the_end(report):
    """Die 0 waits for 1, which waits for 2, which waits for 3, which computes."""
    job = Job(4)
    for die in range(4):
        job.call(die, "ring", 100.0 * (die == 3), 140.0)
        if die < 3:
            job.phase(die, "wait", 0.0, 110.0 + 10 * (2 - die), peer=die + 1)
    made = report(job)["straggler"]
    by_die = {row["die"]: row for row in made["dies"]}
    assert by_die[3]["direct_us"] == pytest.approx(110)  # for it alone waits die 2
    assert by_die[3]["blamed_us"] == pytest.approx(330, rel=0.05)
    assert sum(row["blamed_us"] for row in made["dies"]) == pytest.approx(360)
    assert by_die[1]["blamed_us"] == pytest.approx(10, abs=3)


def test_waiting_that_is_spread_evenly_is_nobodys_fault(report):
    job = Job(4)
    for step in range(20):
        for die in range(4):
            at = 100.0 * step
            late = step % 4
            job.call(die, "all_reduce", at, at + 90)
            job.phase(die, "wait", at, at + (80 if die != late else 1), **({"peer": late} if die != late else {}))
    kinds = [finding["kind"] for finding in report(job)["findings"]]
    assert kinds == ["exposed"]


def test_cores_out_of_balance_are_named(report):
    made = report(tracing_cases.imbalance())
    first = made["findings"][0]
    assert first["kind"] == "imbalance" and first["operation"] == "all_to_all_v"
    (row,) = made["imbalance"]
    assert row["ratio"] == pytest.approx(400 / 175) and row["core"] == 0 and row["cores"] == 4
    assert row["bytes_ratio"] == pytest.approx(400 / 175) and row["lost_us"] == pytest.approx(4 * 10 * 225)
    even = report(tracing_cases.imbalance(split=(175, 175, 175, 175)))
    assert [finding["kind"] for finding in even["findings"]] == ["exposed"]


def test_late_registrations_are_named_and_not_the_die_that_maps(report):
    made = report(tracing_cases.late_registration())
    first = made["findings"][0]
    assert (first["kind"], first["die"]) == ("registration", 2) and "first at 10 us" in first["text"]
    (row,) = made["registrations"]
    assert row["times"] == 12 and row["time_us"] == pytest.approx(3600) and row["owners"] == [1]
    assert row["first_us"] == 10 and row["last_us"] == 500 * 11 + 310


def test_exposed_communication_is_named(report):
    made = report(tracing_cases.exposed())
    assert made["findings"][0]["kind"] == "exposed" and "62% of their time" in made["findings"][0]["text"]
    less = report(tracing_cases.exposed(overlapped=0.9))
    assert less["findings"][0]["kind"] == "none"
    for row in less["exposure"]:
        assert row["exposed_us"] == pytest.approx(600) and row["overlapped_us"] == pytest.approx(5400)


def test_calls_are_told_apart_by_site_tag_and_size(report):
    job = Job(1)
    for step in range(6):
        at, nbytes = 10.0 * step, 1 << (10 + step // 2)
        job.call(0, "send" if step < 4 else "recv", at, at + step, nbytes, f"a.py:{step % 2 + 1} in f", layer=step % 3)
    made = report(job)
    sites = [(row["site"], row["calls"], row["time_us"]) for row in made["sites"]]
    assert sites == [("a.py:2 in f", 3, 9), ("a.py:1 in f", 3, 6)]
    assert made["sites"][0]["operations"] == ["recv", "send"]
    assert [(t["value"], t["time_us"]) for t in made["tags"]] == [("2", 7), ("1", 5), ("0", 3)]
    found = [(row["operation"], row["bytes_most"], row["calls"]) for row in made["operations"]]
    assert found == [("recv", 4096, 2), ("send", 2048, 2), ("send", 1024, 2)]
    assert len(report(job, top=1)["sites"]) == 1
    only = report(job, "recv")
    assert [row["operation"] for row in only["operations"]] == ["recv"] and only["sites"][0]["calls"] == 1
    with pytest.raises(InvalidArgument, match="no call of 'barrier'; there are recv, send"):
        report(job, "barrier")


def test_classes_of_sizes():
    assert [tables.size_class(n) for n in (-1, 0, 1, 2, 3, 4, 5, 1024, 1025)] == [-1, 0, 0, 1, 2, 2, 3, 10, 11]


intervals = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=12)


@given(intervals)
def test_unions_cover_what_their_parts_cover(parts):
    begin = np.array([float(a) for a, _ in parts])
    end = np.array([float(a + n) for a, n in parts])
    first, last = union(begin, end)
    assert (first[1:] > last[:-1]).all()
    seen = np.zeros(80, bool)
    for a, n in parts:
        seen[a : a + n] = True
    at = np.arange(81, dtype="f8")
    assert np.diff(covered((first, last), at)).tolist() == seen.tolist()


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["wait", "copy", "check"]), intervals), max_size=5))
def test_shares_add_up_to_the_time_that_anything_went_on(tmp_path_factory, tracks):
    """Whatever overlaps on however many cores: what a call's time went to is the time that it, or a phase, went on."""
    job = Job(1)
    job.call(0, "all_reduce", 10.0, 40.0)
    edge = {}
    for core, category, parts in tracks:
        for a, n in sorted(parts):
            begin = max(a, edge.get(core, 0))
            edge[core] = begin + n
            if begin + n <= 99:
                job.phase(0, category, float(begin), float(begin + n), core)
    path = job.save(tmp_path_factory.mktemp("t") / "t.json")
    calls, phases = link(reading.read(path))
    mine = phases.spans[phases.call == 0]
    cover = np.zeros(100, bool)
    cover[10:40] = True
    for a, b in zip(mine["begin"].astype(int), mine["end"].astype(int), strict=True):
        cover[a:b] = True
    assert calls.busy.sum() == pytest.approx(cover.sum())


@pytest.mark.parametrize("path", ["mte", "sdma"])
def test_a_simulated_operation_adds_up(path, tmp_path):
    made = simulate("all_gather", 1 << 20, 4, algorithm="full_mesh", path=path, cores=4, dtype="f4")
    timelines.trace(made.timeline).save(tmp_path / "t.json")
    trace = reading.read(tmp_path / "t.json")
    found = tables.report(trace)
    (row,) = found["operations"]
    assert row["bytes_most"] == 1 << 20 and row["calls"] == 4 and row["bytes_moved"] == 4 << 20
    assert row["p99_us"] == pytest.approx(made.time_us, rel=0.02)
    assert row["wait_us"] + row["transfer_us"] + row["other_us"] == pytest.approx(row["time_us"], rel=1e-6)
    rings = {reading.RING} if path == "sdma" else set()
    assert {t.kind for t in trace.tracks} == {reading.CALLS, reading.CORE} | rings
    assert found["clock"] == "simulated" and found["findings"][0]["kind"] == "exposed"


def test_traces_are_compared_by_operation_whatever_their_counts(tmp_path):
    a, b = Job(2), Job(3)
    for die in range(2):
        for step in range(4):
            job_at = 10.0 * step
            a.call(die, "all_reduce", job_at, job_at + 4, 4096)
            a.phase(die, "wait", job_at, job_at + 1)
            a.phase(die, "copy", job_at + 1, job_at + 4, bytes=512)
        a.call(die, "barrier", 90.0, 91.0, 0)
    for die in range(3):
        b.call(die, "all_reduce", 0.0, 8.0, 4096)
        b.phase(die, "copy", 0.0, 8.0, bytes=1024)
        b.call(die, "all_reduce", 20.0, 50.0, 1 << 20)
    rows = tables.compared(*(reading.read(job.save(tmp_path / f"{i}.json")) for i, job in enumerate((a, b))))
    assert [(row["operation"], row["size_class"]) for row in rows] == [
        ("all_reduce", 12), ("all_reduce", 20), ("barrier", 0)]  # fmt: skip
    both, second, first = rows
    assert both["ratio"] == pytest.approx(2) and (both["first"]["calls"], both["second"]["calls"]) == (8, 3)
    assert both["first"]["wait"] == pytest.approx(0.25) and both["second"]["wait"] == 0
    assert (both["first"]["bytes_moved"], both["second"]["bytes_moved"]) == (512, 1024)
    assert second["first"] is None and first["second"] is None and "ratio" not in first


def test_a_group_tells_operations_of_one_number_apart(report):
    job = Job(1)
    for group in ("a", "b"):
        job.number[0] = -1
        job.call(0, f"op {group}", 0.0 if group == "a" else 10.0, 5.0 if group == "a" else 15.0)
    trace = job.trace
    rows = trace._spans[0, 0]
    trace._spans[0, 0] = [(*row[:4], {**row[4], "group": row[2][-1]}) for row in rows]
    job.phase(0, "dma", 20.0, 30.0, ring=0, bytes=3, group="a", call=0)
    job.phase(0, "dma", 30.0, 50.0, ring=0, bytes=4, group="b", call=0)
    job.phase(0, "dma", 50.0, 60.0, ring=0, bytes=4, group="c", call=0)
    found = {row["operation"]: row["transfer_us"] for row in report(job)["operations"]}
    assert found == {"op a": pytest.approx(10), "op b": pytest.approx(20)}


def test_what_the_registrar_maps_ahead_is_not_late_and_waits_outside_of_calls_blame_nobody(report):
    job = Job(2)
    for die in (0, 1):
        job.call(die, "all_gather", 0.0, 10.0)
        job.trace.thread(die, 3020, "thread registrar")
        job.trace.span(die, 3020, "map ahead", 0.0, 50.0, "map", {"peer": 1 - die, "pages": 3})
        job.trace.thread(die, 3100, "thread worker")
        job.trace.span(die, 3100, "wait posts", 5.0, 105.0, "wait", {"peer": 1 - die, "call": 0, "group": "world"})
    made = report(job)
    assert not made["registrations"]
    assert [row["direct_us"] for row in made["straggler"]["dies"]] == pytest.approx([5, 5])


def test_waiting_once_is_another_finding_than_again_and_again(report):
    """All wait for die 1 at the start, and for die 2 each time after that, for less in all."""
    job = Job(4)
    for die in range(4):
        job.call(die, "barrier", 30000.0 if die == 1 else 0.0, 30010.0, 0)
        if die != 1:
            job.phase(die, "wait", 0.0, 30005.0, peer=1)
        for step in range(10):
            at = 31000.0 + 1000 * step
            job.call(die, "all_reduce", at + 700 * (die == 2), at + 750)
            if die != 2:
                job.phase(die, "wait", at, at + 705, peer=2)
    made = report(job)
    assert [(f["kind"], f.get("die")) for f in made["findings"]] == [("straggler", 2), ("once", 1), ("exposed", None)]
    once = next(f for f in made["findings"] if f["kind"] == "once")
    assert once["die"] == 1 and "in barrier at" in once["text"]
    assert made["straggler"]["dies"][0]["die"] == 1 and made["straggler"]["cause"]["die"] == 2
