"""Traces in Chrome's format: what is written, and what is refused."""

import gzip
import json

import pytest

from strata.errors import InvalidArgument
from strata.profile.chrome import Trace


def test_what_is_written(tmp_path):
    trace = Trace(clock="test")
    trace.process(7, "die 7")
    trace.thread(7, 1, "core 1")
    second = trace.span(7, 1, "b", 2.0, 3.5, "move", {"bytes": 8})
    first = trace.span(7, 0, "a", 0.0, 2.0)
    trace.span(7, 1, "nothing", 2.0, 2.0)
    trace.arrow("flag", first, second)
    trace.counter(7, "UB", [0.0, 1.0], {"in": [1, 2], "out": [3, 4]})
    for name in ("t.json", "t.json.gz"):
        trace.save(tmp_path / name)
    text = (tmp_path / "t.json").read_text()
    assert gzip.decompress((tmp_path / "t.json.gz").read_bytes()).decode() == text
    found = json.loads(text)
    assert found["otherData"] == {"clock": "test"}
    assert "displayTimeUnit" not in found  # "ns" makes some viewers take the times for nanoseconds
    events = found["traceEvents"]
    assert trace.events == sum(e["ph"] != "M" for e in events) == 7
    named = [e for e in events if e["name"] in ("process_name", "thread_name")]
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in named}
    assert names == {(7, None): "die 7", (7, 1): "core 1"}
    spans = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans == [(0, "a", 0.0, 2.0), (1, "nothing", 2.0, 0.0), (1, "b", 2.0, 1.5)]
    (source,), (target,) = ([e for e in events if e["ph"] == kind] for kind in "sf")
    assert source["id"] == target["id"] and 1.99 < source["ts"] < 2.0 == target["ts"] and target["bp"] == "e"
    assert [e["args"] for e in events if e["ph"] == "C"] == [{"in": 1, "out": 3}, {"in": 2, "out": 4}]


def test_spans_that_overlap_or_end_before_they_begin_are_refused(tmp_path):
    trace = Trace()
    trace.span(0, 0, "a", 0.0, 2.0)
    trace.span(0, 1, "other", 1.0, 2.0)
    trace.span(0, 0, "b", 1.5, 3.0)
    with pytest.raises(InvalidArgument, match="process 0, thread 0: b begins at 1.5 us, before a ends at 2.0 us"):
        trace.save(tmp_path / "t.json")
    for begin, end in ((2.0, 1.0), (-1.0, 1.0)):
        with pytest.raises(InvalidArgument, match="a span from"):
            trace.span(0, 0, "c", begin, end)
