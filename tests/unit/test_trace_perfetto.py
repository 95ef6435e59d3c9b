"""Traces in Perfetto's trace processor, by SQL; and in a stand-in for it, by its rules, which is always there.

The package ``perfetto`` of PyPI has the Python part alone: the processor itself, a program, it would download when
first asked.  Tests download nothing: they take it from where that left it, from the PATH, or from TRACE_PROCESSOR.
"""

import json
import os
import shutil
from pathlib import Path

import pytest
import tracing_cases
from trace_tables_rules import Rules

from strata.prediction import simulate
from strata.profile import timelines
from strata.profile.chrome import Trace

MISSING = ("no trace_processor_shell: in the PATH, as TRACE_PROCESSOR=FILE, or kept by the package perfetto, which "
           "downloads it when TraceProcessor() is first called")  # fmt: skip
KEPT = Path("~/.local/share/perfetto/prebuilts").expanduser()


def program():
    """Where the trace processor is; None: nowhere."""
    places = [os.environ.get("TRACE_PROCESSOR"), shutil.which("trace_processor_shell")]
    return next((str(place) for place in [*places, *sorted(KEPT.glob("trace_processor_shell-*"))] if place), None)


def perfetto(path):
    """Asks the real one."""
    if program() is None:
        pytest.skip(MISSING)
    package = pytest.importorskip("perfetto.trace_processor", reason="pip install perfetto")
    config = package.TraceProcessorConfig(bin_path=program(), load_timeout=60)
    processor = package.TraceProcessor(trace=str(path), config=config)

    def ask(sql):
        found = processor.query(sql)
        return [tuple(getattr(row, name) for name in found.column_names) for row in found]

    ask.close = processor.close
    return ask


@pytest.fixture(params=["rules", "perfetto"])
def load(request):
    made = []

    def loaded(path):
        made.append(Rules(path) if request.param == "rules" else perfetto(path))
        return made[-1]

    yield loaded
    for ask in made:
        if hasattr(ask, "close"):
            ask.close()


BY_TRACK = """
select p.name as process, t.name as thread, count(*) as n, sum(s.dur) as dur, max(s.depth) as depth
from slice s join thread_track tt on s.track_id = tt.id join thread t using (utid) join process p using (upid)
group by 1, 2 order by 1, 2
"""
WRONG = "select name, value from stats where value > 0 and severity in ('error', 'data_loss') order by 1"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    made = {}
    for path in ("mte", "sdma"):
        file = tmp_path_factory.mktemp("traces") / f"{path}.json"
        made[path] = simulate("all_gather", 1 << 20, 4, algorithm="ring", path=path, cores=2, dtype="f4"), file
        timelines.trace(made[path][0].timeline).save(file)
    return made


@pytest.mark.parametrize("path", ["mte", "sdma"])
def test_a_simulated_trace_has_its_tracks_slices_and_arrows(path, load, simulated):
    made, file = simulated[path]
    ask = load(file)
    events = json.loads(file.read_text())["traceEvents"]
    assert ask(WRONG) == []
    rows = {(process, thread): (n, dur, depth) for process, thread, n, dur, depth in ask(BY_TRACK)}
    names = ["calls", "core 0", "core 1"] + (["ring 0", "ring 1"] if path == "sdma" else [])
    assert set(rows) == {(f"die {die}", name) for die in range(4) for name in names}
    assert sum(n for n, _, _ in rows.values()) == sum(e["ph"] == "X" for e in events)
    assert max(depth for _, _, depth in rows.values()) == 0
    ((last,),) = ask("select max(ts + dur) as t from slice")
    assert last == pytest.approx(made.time_us * 1e3, abs=2)
    ((moved,),) = ask("select sum(extract_arg(arg_set_id, 'args.bytes')) as b from slice where category = 'move'")
    assert moved == 4 * 4 << 20
    # Each arrow is bound to a slice at both ends, goes on in time, and from die to die around the ring.
    ((arrows,),) = ask("select count(*) as n from flow f join slice a on f.slice_out = a.id "
                       "join slice b on f.slice_in = b.id where b.ts + b.dur >= a.ts")  # fmt: skip
    assert arrows == sum(e["ph"] == "s" for e in events) > 0
    pairs = ask("""
        select distinct pa.pid as x, pb.pid as y from flow f
        join slice a on f.slice_out = a.id join thread_track ta on a.track_id = ta.id
        join thread ha on ta.utid = ha.utid join process pa on ha.upid = pa.upid
        join slice b on f.slice_in = b.id join thread_track tb on b.track_id = tb.id
        join thread hb on tb.utid = hb.utid join process pb on hb.upid = pb.upid order by 1, 2""")
    assert {y for x, y in pairs if x != y} == set(range(4))
    counters = ask("select t.name as name, max(c.value) as v from counter c "
                   "join process_counter_track t on c.track_id = t.id group by 1 order by 1")  # fmt: skip
    assert any(name.startswith("UB OUT (GB/s)") and 0 < v <= 196.2 for name, v in counters), counters


def test_calls_and_phases_carry_what_was_said_of_them(load, tmp_path):
    ask = load(tracing_cases.slow_die().save(tmp_path / "t.json"))
    assert ask(WRONG) == []
    ((n, dur),) = ask("select count(*) as n, sum(dur) as d from slice where category = 'wait' "
                      "and extract_arg(arg_set_id, 'args.peer') = 3")  # fmt: skip
    assert (n, dur) == (20 * 3 + 20, 1000 * (20 * (705 + 703 + 701) + 20 * 10))
    rows = ask("select extract_arg(arg_set_id, 'args.site') as site, "
               "extract_arg(arg_set_id, 'args.tags.step') as step, "
               "count(*) as n from slice where category = 'call' group by 1, 2 order by 2")  # fmt: skip
    assert rows == [("train.py:12 in step", step, 4) for step in range(20)]


def test_nested_spans_are_one_below_the_other(load, tmp_path):
    trace = Trace()
    trace.process(0, "die 0")
    trace.thread(0, 0, "calls")
    events = [("probe", 0.0, 10.0), ("all_reduce", 1.0, 4.0), ("all_reduce", 4.0, 9.999)]
    trace.save(tmp_path / "t.json")
    found = json.loads((tmp_path / "t.json").read_text())
    for name, begin, end in events:
        found["traceEvents"].append({"ph": "X", "pid": 0, "tid": 0, "name": name, "ts": begin, "dur": end - begin})
    (tmp_path / "t.json").write_text(json.dumps(found))
    ask = load(tmp_path / "t.json")
    assert ask("select name, depth from slice order by ts") == [("probe", 0), ("all_reduce", 1), ("all_reduce", 1)]
    assert ask(WRONG) == []


def test_a_million_events_load(tmp_path):
    """In the real one alone: the stand-in has nothing to show by it."""
    if program() is None:
        pytest.skip(MISSING)
    million(tmp_path / "t.json", 28_000)
    ask = perfetto(tmp_path / "t.json")
    assert ask("select count(*) as n from slice") == [(4 * 28_000 * 9,)] and ask(WRONG) == []
    ask.close()


def million(path, steps):
    """So many calls of four dies, with eight phases each."""
    with path.open("w") as out:
        out.write('{"traceEvents":[')
        for die in range(4):
            out.write(f'{{"ph":"M","pid":{die},"name":"process_name","args":{{"name":"die {die}"}}}},\n')
            head = f'{{"ph":"X","pid":{die},"tid":'
            for step in range(steps):
                at = 100 * step
                out.write(f'{head}0,"name":"all_reduce","ts":{at},"dur":90,"args":{{"number":{step}}}}},\n')
                out.writelines(f'{head}1000,"name":"copy","ts":{at + 10 * k},"dur":9.5,"cat":"copy",'
                               f'"args":{{"bytes":4096,"call":{step}}}}},\n' for k in range(8))  # fmt: skip
        out.write('{"ph":"M","pid":0,"name":"process_sort_index","args":{"sort_index":0}}]}')
