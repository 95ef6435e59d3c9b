"""Reading traces back: columns, kinds, parts of them, and what is refused."""

import gzip
import json

import numpy as np
import pytest
import tracing_cases

from strata.errors import InvalidArgument
from strata.profile import reading
from strata.profile.chrome import Trace


def test_what_is_read(tmp_path):
    trace = Trace(clock="tsc", lost={"1": 7})
    trace.process(0, "die 0")
    trace.process(1, "die one")
    for die in (0, 1):
        trace.thread(die, 0, "calls")
        trace.thread(die, 1002, "core 2")
        trace.thread(die, 2001, "ring 1")
        trace.thread(die, 5, "thread registrar")
    trace.span(1, 0, "send", 1.0, 4.0, "call", {"bytes": 8, "number": 3, "tags": {"step": 1}})
    first = trace.span(0, 1002, "copy", 1.5, 2.5, "copy", {"bytes": 64, "peer": 1, "unit": 5, "call": 3})
    second = trace.span(1, 1002, "flag wait", 1.5, 2.75, "flag", {"peer": 0})
    trace.span(1, 1002, "flag set", 3.0, 3.0, "flag")
    trace.span(1, 2001, "dma", 2.0, 3.0, "dma", {"bytes": 64})
    trace.span(1, 5, "idle", 0.0, 4.0, "idle")
    trace.span(0, 0, "mine", 0.5, 4.0, "probe")
    trace.arrow("flag", first, second)
    trace.counter(0, "port out (GB/s)", [0.0, 2.0], {"die 1": [1.0, 0.0]})
    trace.save(tmp_path / "t.json")
    trace.save(tmp_path / "t.json.gz")
    found = reading.read(tmp_path / "t.json")
    assert found.dies == {0: "die 0", 1: "die one"} and found.lost == {1: 7} and found.about["clock"] == "tsc"
    kinds = {t.name: (t.kind, t.number) for t in found.tracks}
    assert kinds == {"calls": (reading.CALLS, 0), "core 2": (reading.CORE, 2), "ring 1": (reading.RING, 1),
                     "thread registrar": (reading.THREAD, 5)}  # fmt: skip
    by_name = {(found.names[s["name"]], int(s["die"])): s for s in found.spans}
    copy = by_name["copy", 0]
    assert [copy[key] for key in ("begin", "end", "bytes", "peer", "unit", "call")] == [1.5, 2.5, 64, 1, 5, 3]
    assert copy["kind"] == by_name["dma", 1]["kind"] == reading.TRANSFER and by_name["dma", 1]["peer"] == reading.NO
    assert by_name["flag wait", 1]["kind"] == reading.WAIT and by_name["flag set", 1]["kind"] == reading.OTHER
    assert by_name["idle", 1]["kind"] == reading.ASIDE and by_name["mine", 0]["kind"] == reading.PROBE
    assert found.args[by_name["send", 1]["args"]]["tags"] == {"step": 1}
    assert found.arrows.shape == (1, 2) and found.arrows[0, 0] <= found.arrows[0, 1]
    when, values = found.counters[0, "port out (GB/s)", "die 1"]
    assert when.tolist() == [0.0, 2.0] and values.tolist() == [1.0, 0.0]
    assert np.array_equal(reading.read(tmp_path / "t.json.gz").spans, found.spans)

    part = found.between(2.0, 2.6)
    assert part.spans["begin"].min() == 2.0 and part.spans["end"].max() == 2.6 and len(part.spans) == 6
    assert set(found.only([1]).spans["die"]) == {1} and found.only([1]).lost == {1: 7}
    with pytest.raises(InvalidArgument, match="nothing between 8 and 9 us"):
        found.between(8, 9)
    with pytest.raises(InvalidArgument, match="there is no die 7; there are 0, 1"):
        found.only([7])


def test_a_bare_list_of_events_is_a_trace_too(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps([
        {"ph": "X", "pid": 3, "tid": 4, "name": "copy", "ts": 1, "dur": 2, "cat": "copy"},
        {"ph": "i", "pid": 3, "tid": 4, "name": "now", "ts": 2, "s": "t"},
    ]))  # fmt: skip
    found = reading.read(tmp_path / "t.json")
    assert found.dies == {3: "die 3"} and [t.name for t in found.tracks] == ["thread 4"]
    assert found.spans["end"].tolist() == [3.0, 2.0] and found.about == {}


GOOD = {"ph": "X", "pid": 0, "tid": 0, "name": "a", "ts": 0, "dur": 1}


@pytest.mark.parametrize(
    "text, what",
    [
        ("", "no JSON, or cut short"),
        ('{"traceEvents": [', "no JSON, or cut short"),
        ("[" * 100_000, "no JSON, or cut short"),
        (b"\xff\xfe{}", "no JSON, or cut short"),
        ("7", "no trace"),
        ('{"events": []}', "no trace"),
        ('{"otherData": 3, "traceEvents": []}', "no trace"),
        ("[]", "without spans"),
        ([3], "event 0: no event"),
        ([GOOD, {"ph": "Q"}], "event 1: no event of Chrome's trace format that is known: ph 'Q'"),
        ([GOOD, {**GOOD, "ph": "B"}], "event 1: begin and end apart"),
        ([{**GOOD, "pid": -1}], "pid is -1"),
        ([{**GOOD, "pid": 1 << 40}], "no number of a die"),
        ([{**GOOD, "pid": "0"}], "pid is '0'"),
        ([{**GOOD, "pid": True}], "pid is True"),
        ([{**GOOD, "name": 4}], "name is 4, and text is expected"),
        ([{**GOOD, "ts": -1}], "ts is -1, and microseconds"),
        ([{**GOOD, "ts": float("nan")}], "ts is nan"),
        ([{**GOOD, "dur": None}], "dur is None"),
        ([{**GOOD, "dur": float("inf")}], "dur is inf"),
        ([{**GOOD, "args": [1]}], "args is"),
        ([{**GOOD, "args": {"bytes": -5}}], "bytes is -5"),
        ([{**GOOD, "args": {"peer": 1.5}}], "peer is 1.5"),
        ([{**GOOD, "args": {"peer": 1 << 40}}], "no number of a die"),
        ([GOOD, {"ph": "C", "pid": 0, "name": "n", "ts": 0, "args": {"x": "y"}}], "the counter n has x 'y'"),
        ([GOOD, {"ph": "s", "ts": 0}], "an arrow without id"),
        ({"otherData": {"lost": [3]}, "traceEvents": [GOOD]}, "lost is"),
        ({"otherData": {"lost": {"x": 1}}, "traceEvents": [GOOD]}, "lost is"),
    ],
)
def test_what_is_refused(text, what, tmp_path):
    file = tmp_path / "t.json"
    if isinstance(text, bytes):
        file.write_bytes(text)
    else:
        file.write_text(text if isinstance(text, str) else json.dumps(text))
    with pytest.raises(InvalidArgument) as caught:
        reading.read(file)
    assert str(caught.value).startswith(f"{file}: ") and what in str(caught.value)


def test_a_damaged_archive_is_refused(tmp_path):
    whole = gzip.compress(tracing_cases.slow_die().save(tmp_path / "t.json").read_bytes())
    for data in (whole[: len(whole) // 2], whole[:12], whole[:-8] + b"\0" * 8, whole[:40] + b"\xff" * 40 + whole[80:]):
        (tmp_path / "t.json.gz").write_bytes(data)
        with pytest.raises(InvalidArgument, match=r"t\.json\.gz: damaged or cut short"):
            reading.read(tmp_path / "t.json.gz")
    with pytest.raises(OSError):
        reading.read(tmp_path / "none.json")
