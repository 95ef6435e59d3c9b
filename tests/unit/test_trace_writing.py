"""From what dies have written to a trace that viewers load: numbers, tracks, arrows, counters, and what is garbage."""

import json
import os
import random

import numpy as np
import pytest

from strata._core import tracing
from strata.errors import InvalidArgument
from strata.profile import recording
from strata.profile.chrome import Encoded, Trace
from strata.profile.events import Die, tags_of
from strata.profile.recording import Taken

K = {name: number for number, name in enumerate(tracing.KINDS)}
WORLD = 0xABCD00000007
LOW = WORLD & 0xFFFFFFFF
TAGS = '\x01tags [["step",8],["on",0,"mlp"]]'
NAMES = ["", "all_reduce", "train.py:3 in step", f"\x01group {WORLD:x} world 0,1,2", TAGS, "forward"]
LATER, ONE = 1 << 63, 1 << 48


def event(kind, begin, end, *, core=0, peer=tracing.NOBODY, index=0, arg=0):
    return begin, end, K[kind], core, peer, index, arg


def call(begin, end, number, nbytes=64, tags=0, flags=0):
    return [event("call", begin, end, core=flags, index=1, arg=nbytes),
            event("call more", WORLD, number, index=2, arg=tags)]  # fmt: skip


def slice_of(role, events, tid=7, lost=0, index=0):
    return {"role": role, "index": index, "tid": tid, "lost": lost, "events": np.array(events, tracing.EVENT)}


def die(*slices, lost=0, names=NAMES, pid=7):
    return {"slices": list(slices), "lost": lost, "names": names, "names_lost": 0, "ticks": 10_000, "ns": 5_000_000,
            "ns_per_tick": 1000.0, "pid": pid}  # fmt: skip  # a tick is a microsecond


def made(tmp_path, *dies, samples=None):
    trace = recording.trace(Taken(dict(enumerate(dies)), {}, samples or {}), program="test")
    trace.save(tmp_path / "t.json")
    found = json.loads((tmp_path / "t.json").read_text())
    assert trace.events == sum(e["ph"] != "M" for e in found["traceEvents"])
    return found


def tracks(found):
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in found["traceEvents"] if e["name"] == "thread_name"}


def spans(found, category):
    names = tracks(found)
    return [(names[e["pid"], e["tid"]], e["name"], e["ts"], e["dur"], e.get("args", {}))
            for e in found["traceEvents"] if e["ph"] == "X" and e["cat"] == category]  # fmt: skip


def test_calls_phases_and_tags(tmp_path):
    events = [
        event("check", 100, 101, arg=64), event("arrive", 101, 103, index=LOW, arg=5),
        event("wait", 103, 110, peer=1, arg=5), event("copy", 110, 120, core=2, peer=1, index=3 | 1 << 24, arg=4096),
        *call(99, 121, 5 | ONE, tags=4 | 9 << 16), event("probe", 90, 130, index=5, arg=4 | 9 << 16),
    ]  # fmt: skip
    found = made(tmp_path, die(slice_of("caller", events, lost=3), lost=4))
    assert found["otherData"] | {"machine": ""} == {"clock": "tsc", "machine": "", "dies": 1, "lost": {"0": 7},
                                                    "program": "test"}  # fmt: skip
    tags = {"step": 9, "on": "mlp"}
    about = {"bytes": 64, "group": "world", "number": 5, "site": "train.py:3 in step", "tags": tags}
    assert spans(found, "call") == [("calls", "all_reduce", 9.0, 22.0, about)]
    assert spans(found, "probe") == [("calls", "forward", 0.0, 40.0, {"tags": tags})]
    of = {"call": 5, "group": "world", "tags": tags}
    assert spans(found, "check") == [("core 0", "check", 10.0, 1.0, {"bytes": 64, **of})]
    assert spans(found, "wait") == [("core 0", "wait arrival", 13.0, 7.0, {"peer": 1, **of})]
    moved = {"bytes": 4096, "unit": 3, "remote": 1, "peer": 1, **of}
    assert spans(found, "copy") == [("core 2", "copy", 20.0, 10.0, moved)]


def test_operations_that_a_thread_runs_find_their_calls(tmp_path):
    """Three are begun at once, of which the first had its number already: numbers may be off by one, or two."""
    calls = [*call(10, 11, 8 | ONE), *call(12, 13, 10 | ONE | 1 << 60 | LATER, flags=1),
             *call(14, 15, 11 | ONE | 2 << 60 | LATER, flags=1),
             *call(20, 21, 12 | ONE | 3 << 60 | LATER, flags=1)]  # fmt: skip
    ran = [part for n in (9, 10, 11) for part in (
        event("arrive", 12 * n, 12 * n + 1, index=LOW, arg=n),
        event("reduce", 12 * n + 1, 12 * n + 5, index=2 << 24, arg=100 * n))]  # fmt: skip
    found = made(tmp_path, die(slice_of("caller", calls), slice_of("worker", ran, tid=8)))
    assert [args["number"] for *_, args in spans(found, "call")] == [8, 9, 10, 11]
    assert [args.get("async", False) for *_, args in spans(found, "call")] == [False, True, True, True]
    assert [(track, args["call"], args["bytes"]) for track, *_, args in spans(found, "reduce")] == [
        ("thread worker", 9, 900), ("thread worker", 10, 1000), ("thread worker", 11, 1100)]  # fmt: skip


def test_a_call_of_several_operations_has_the_phases_of_all(tmp_path):
    crew = [event("arrive", 5, 5, index=LOW, arg=n) for n in (3, 4)]
    crew[1:1] = [event("copy", 6, 7, core=1, arg=1)]
    crew += [event("copy", 8, 9, core=1, arg=2)]
    found = made(tmp_path, die(slice_of("caller", call(1, 20, 4 | 2 * ONE)), slice_of("core", crew, tid=9, index=1)))
    assert [(track, args["call"]) for track, *_, args in spans(found, "copy")] == [("core 1", 4), ("core 1", 4)]
    assert not spans(found, "arrive")


def test_two_threads_that_run_one_core_at_once_have_tracks_of_their_own(tmp_path):
    one = slice_of("caller", [event("copy", 10, 20, arg=1), event("copy", 30, 40, arg=1)])
    two = slice_of("caller", [event("copy", 15, 25, arg=2), event("copy", 41, 45, arg=2)], tid=8)
    found = made(tmp_path, die(one, two))
    copies = [(track, args["bytes"], begin) for track, _, begin, _, args in spans(found, "copy")]
    assert copies == [("core 0", 1, 0.0), ("core 0", 1, 20.0), ("core 0", 2, 31.0), ("thread core 0 (2)", 2, 5.0)]


def test_rings_flags_and_arrows(tmp_path):
    descriptor = tracing.DESCRIPTORS.index
    sets = [event("reduce", 10, 20, index=1, arg=8), event("flag set", 20, 22, index=LOW, arg=5 << 16 | 1)]
    waits = [event("flag wait", 5, 23, peer=0, index=LOW, arg=5 << 16 | 1), event("flag wait", 24, 60, arg=0x1000)]
    engine = [event("dma", 30, 40, core=descriptor("copy"), index=2, peer=1, arg=4096),
              event("dma", 40, 50, core=descriptor("write"), index=2, arg=0x1000),
              event("dma", 30, 55, core=descriptor("gate"), index=3, arg=0x1000)]  # fmt: skip
    found = made(tmp_path, die(slice_of("caller", sets), slice_of("engine", engine, tid=9)),
                 die(slice_of("caller", waits)))  # fmt: skip
    assert [(s[0], s[1], s[4]) for s in spans(found, "dma")] == [("ring 2", "copy", {"bytes": 4096, "peer": 1})]
    assert {s[0]: s[1] for s in spans(found, "flag")} == {"core 0": "set flag", "ring 2": "write"}
    assert ("ring 3", "gate", 25.0, 25.0, {}) in spans(found, "wait")
    begins = [(e["pid"], e["tid"], e["ts"]) for e in found["traceEvents"] if e["ph"] == "s"]
    ends = [(e["pid"], e["tid"], e["ts"]) for e in found["traceEvents"] if e["ph"] == "f"]
    arrows = sorted(zip([b[:2] for b in begins], [e[:2] for e in ends], strict=True))
    assert arrows == [((0, 1000), (1, 1000)), ((0, 2002), (0, 2003)), ((0, 2002), (1, 1000))]
    inside = {(e["pid"], e["tid"]): [] for e in found["traceEvents"] if e["ph"] == "X"}
    for e in found["traceEvents"]:
        if e["ph"] == "X":
            inside[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    for pid, tid, at in begins + ends:
        assert any(low <= at < high for low, high in inside[pid, tid]), "an arrow's end is in a span"
    assert all(b[2] <= e[2] for b, e in zip(begins, ends, strict=True))


def test_counters_add_up_to_what_was_moved(tmp_path):
    pull = event("copy", 10, 20, peer=1, index=1 << 24, arg=50_000)
    both = event("reduce", 20, 60, peer=1, index=2 << 24, arg=80_000)
    own = event("copy", 60, 61, peer=0, arg=7_000)
    add = event("accumulate", 61, 70, peer=2, index=1 << 24, arg=30_000)
    first = [event("arrive", 9, 10, index=LOW, arg=1), pull, both, own, add]
    registrar = [event("map", 5, 30, peer=1, index=1, arg=12_500)]
    found = made(tmp_path, die(slice_of("caller", first), slice_of("registrar", registrar, tid=9)), die(), die())
    sums = {}
    for pid, name in {(e["pid"], e["name"]) for e in found["traceEvents"] if e["ph"] == "C"}:
        rows = [(e["ts"], e["args"]) for e in found["traceEvents"]
                if (e["ph"], e["pid"], e["name"]) == ("C", pid, name)]  # fmt: skip
        if name == "registration lag (us)":
            assert (pid, rows) == (0, [(25.0, {"us": 12.5})])
            continue
        assert rows[-1][1]["GB/s"] == 0
        sums[pid, name] = sum(r["GB/s"] * 1e3 * (nxt - at) for (at, r), (nxt, _) in zip(rows, rows[1:], strict=False))
    wanted = {(0, "port in (GB/s)"): 210_000, (1, "port out (GB/s)"): 130_000, (2, "port out (GB/s)"): 80_000,
              (0, "port out (GB/s)"): 30_000, (2, "port in (GB/s)"): 30_000,
              (0, "HBM (GB/s)"): 2 * 57_000 + 4 * 80_000 + 3 * 30_000}  # fmt: skip
    assert sums.keys() == wanted.keys()
    for key, value in wanted.items():
        assert sums[key] == pytest.approx(value, rel=0.01), key


def test_samples_of_threads(tmp_path):
    # A tick is a microsecond, 10 000 ticks are 5 000 000 ns; the first event is at 9 000: 4 000 000 ns.
    rows = {0: [("python 7", [(3_900_000, 4_100_000, "running", 1), (4_100_000, 4_200_000, "sleeping", 0)])]}
    found = made(tmp_path, die(slice_of("caller", call(9_000, 9_500, 1 | ONE))), samples=rows)
    assert spans(found, "sample") == [("thread python 7", "running", 0.0, 100.0, {"cpu": 1}),
                                      ("thread python 7", "sleeping", 100.0, 100.0, {"cpu": 0})]  # fmt: skip


def test_whatever_stands_there_makes_a_trace(tmp_path):
    seed = int(os.environ.get("WRITING_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"WRITING_SEED={seed}")
    rng = np.random.default_rng(seed)
    for _ in range(20):
        slices = []
        for k in range(int(rng.integers(0, 6))):
            events = np.frombuffer(rng.bytes(32 * int(rng.integers(0, 200))), tracing.EVENT).copy()
            events["kind"] = rng.integers(1, len(tracing.KINDS), len(events))
            events["begin"] %= 1000
            events["end"] = events["begin"] + events["end"] % 100  # read() lets no others through
            wild = (events["kind"] == K["call more"])
            events["begin"][wild] = rng.integers(0, 1 << 63, int(wild.sum()), np.uint64)
            some = rng.random(len(events)) < 0.7
            events["index"][some] %= 8
            events["peer"][some] %= 4
            events["arg"][some] %= 8
            slices.append(slice_of(tracing.ROLES[int(rng.integers(1, len(tracing.ROLES)))], events, tid=k))
        names = ["", "x", "\x01", "\x01group", "\x01group zz world 0", "\x01tags", "\x01tags {}", "\x01tags [[1]]"]
        made(tmp_path, die(*slices, names=names), die())


@pytest.mark.parametrize(("text", "word", "tags"), [
    ('[["step",16],["mb",8]]', (300 | 7 << 16) << 16, {"step": 300, "mb": 7}),
    ('[["a",0,"x"],["b",24]]', 70000 << 16, {"a": "x", "b": 70000}),
    ("[]", 0, {}), ("{", 0, None), ('[["a"]]', 0, None), ("[1]", 0, None), ('[["a",-1]]', 0, None), ("3", 0, None),
])  # fmt: skip
def test_tags(text, word, tags):
    assert tags_of(text, word) == tags


def test_names_that_are_not_there():
    found = Die(0, die(slice_of("caller", call(1, 2, 1 | ONE)), names=["", "all_reduce"]))
    assert [found.name(n) for n in range(3)] == ["?", "all_reduce", "?"]
    assert found.tags(3) is None and found.groups == {}


def test_dies_that_cannot_be_read_are_named(tmp_path):
    taken = Taken({0: die(slice_of("caller", call(1, 2, 1 | ONE)))}, {1: "why"}, {})
    assert recording.trace(taken).about | {"machine": ""} == {
        "clock": "tsc", "machine": "", "dies": 2, "lost": {}, "unreadable": {1: "why"}}  # fmt: skip
    assert recording.save(Taken({}, {}, {}), tmp_path / "empty.json") == 0
    assert json.loads((tmp_path / "empty.json").read_text())["traceEvents"] == []


def test_spans_within_spans(tmp_path):
    trace = Trace()
    outer = trace.span(0, 0, "outer", 0.0, 10.0, "call", Encoded('{"bytes":1}'))
    trace.span(0, 0, "second", 5.0, 10.0)
    trace.span(0, 0, "first", 0.0, 5.0)
    inner = trace.span(0, 0, "inner", 5.0, 6.0)
    trace.release("flag", outer, inner)
    trace.save(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [e["name"] for e in events if e["ph"] == "X"] == ["outer", "first", "second", "inner"]
    assert events[0]["args"] == {"bytes": 1}
    source, target = (next(e["ts"] for e in events if e["ph"] == kind) for kind in "sf")
    assert 5.0 <= source <= target < 6.0
    trace.span(0, 0, "over the edge", 9.0, 11.0)
    with pytest.raises(InvalidArgument, match="over the edge begins at 9.0 us, before second ends at 10.0 us"):
        trace.save(tmp_path / "t.json")
