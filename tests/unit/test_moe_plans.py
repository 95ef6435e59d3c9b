"""Plans of dispatch and combine: proved against routings, and run here, row by row, against plain sums."""

import dataclasses
import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import InvalidArgument
from strata.machine import load
from strata.plan import PlanError, build, diff, load_all, save, save_all
from strata.plan import verify as prove
from strata.plan.moe import Placement, combine_plans, dispatch_plans, played, verify, windows
from strata.plan.records import COMBINE, DTYPE_NAMES, NO_ROW, OUT, ROWS, SRC
from strata.plan.spec import Spec

CM384 = load("cm384")
F32 = DTYPE_NAMES.index("f32")
MODES = ("high_throughput", "low_latency")
MACHINE = {"cost": CM384.cost, "topology": CM384.place}


@st.composite
def rounds(draw):
    """Placement, routings (uneven numbers of tokens, masked and repeated choices), mode, room for tokens."""
    chance = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    dies, experts = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    slots = experts + draw(st.integers(0, 6))
    logical = chance.permutation(np.concatenate([np.arange(experts), chance.integers(0, experts, slots - experts)]))
    ends = np.sort(chance.integers(0, slots + 1, dies - 1))
    place = Placement(logical, np.concatenate([[0], ends, [slots]]), experts)
    k = draw(st.integers(1, 8))
    tables = [chance.integers(-1, chance.integers(1, experts + 1), (chance.integers(0, 20), k)) for _ in range(dies)]
    most = max(map(len, tables)) * k + 1  # a slot may be named k times by each token
    return place, tables, draw(st.sampled_from(MODES)), most


OPTIONS = st.fixed_dictionaries(
    {"policy": st.sampled_from(("balanced", "naive")), "path": st.sampled_from(("mte", "sdma"))}
)


def dispatched(plan, sources, room):
    """What units of rows do."""
    out = np.full((room, sources[0].shape[1]), np.nan)
    row = plan.spec.itemsize
    for u in plan.units:
        src, dst = plan.operands[u["src_first"]], plan.operands[u["dst_first"]]
        assert u["kind"] == ROWS and (src["buf"], dst["buf"], dst["member"]) == (SRC, OUT, plan.rank)
        for i in range(int(u["bytes"]) // row):
            at = int(dst["offset"]) // row + i
            assert np.isnan(out[at]).all()
            out[at] = sources[src["member"]][int(plan.rows[int(u["index"]) + i])]
    return out


def combined(plan, sources, tokens, weights):
    """What units of weighted sums do."""
    out = np.full((tokens, sources[0].shape[1]), np.nan)
    row = plan.spec.itemsize
    for u in plan.units:
        dst, total = plan.operands[u["dst_first"]], int(u["total"])
        assert u["kind"] == COMBINE
        for i in range(int(u["bytes"]) // row):
            at = int(dst["offset"]) // row + i
            assert np.isnan(out[at]).all()
            out[at] = 0
            for k in range(total):
                entry = int(plan.rows[int(u["index"]) + i * total + k])
                if entry != NO_ROW:
                    member = plan.operands[int(u["src_first"]) + (entry >> 32)]["member"]
                    out[at] += sources[member][entry & 0xFFFFFFFF] * weights[at, k]
    return out


@given(rounds(), st.integers(1, 30), OPTIONS)
@settings(max_examples=60)
def test_plans_move_what_tokens_one_by_one_would(case, cores, options):
    place, tables, mode, most = case
    found = played(tables, place, mode, most)
    hidden = 3
    x = [np.arange(len(t) * hidden, dtype=float).reshape(-1, hidden) + 1000 * (r + 1) for r, t in enumerate(tables)]
    plans = dispatch_plans(found, 12, cores, **MACHINE, **options)
    got = [dispatched(p, x, found.windows(p.rank).room) for p in plans]
    slots = [place.physical(t, r) for r, t in enumerate(tables)]
    die = np.repeat(np.arange(place.dies), np.diff(place.first))
    for d in range(place.dies):
        if mode == "high_throughput":
            rows = [x[r][t] for r, s in enumerate(slots) for t, c in enumerate(s) if d in die[c[c >= 0]]]
            assert np.array_equal(got[d], np.reshape(rows, (-1, hidden)))
            continue
        for local, slot in enumerate(range(place.first[d], place.first[d + 1])):
            rows = [x[r][t] for r, s in enumerate(slots) for t, c in enumerate(s) for e in c if e == slot]
            window = got[d][local * found.window : (local + 1) * found.window]
            assert np.array_equal(window[: len(rows)], np.reshape(rows, (-1, hidden)))
            assert np.isnan(window[len(rows) :]).all()
            ranges = windows.ranges(found.counts, place.first, d)[local]
            assert (ranges & 0xFFFFFFFF).tolist() == [int((s == slot).sum()) for s in slots]
            assert (ranges >> 32).tolist() == np.cumsum([0, *(int((s == slot).sum()) for s in slots)])[:-1].tolist()
    plans = combine_plans(found, 12, F32, cores, **MACHINE, **options)
    for r, plan in enumerate(plans):
        rows, which = found.entries(r, found.sums(r))
        weights = (which + 1.0) if which is not None else np.ones(rows.shape)
        times = (slots[r] >= 0) * (np.arange(slots[r].shape[1]) + 1.0)
        if mode == "high_throughput":
            factor = np.array([len({die[e] for e in c if e >= 0}) for c in slots[r]], float)
        else:
            factor = times.sum(axis=1)
        made = combined(plan, got, len(tables[r]), weights)
        assert np.array_equal(made, x[r] * factor[:, None])


@given(rounds(), st.integers(1, 30), OPTIONS)
@settings(max_examples=60)
def test_every_plan_is_proved(case, cores, options):
    place, tables, mode, most = case
    found = played(tables, place, mode, most)
    sent = int(found.counts.sum())
    proved = verify(dispatch_plans(found, 8, cores, **MACHINE, **options), tables, place, mode, most)
    assert proved["rows"] == sent and proved["bytes"] == 8 * sent
    proved = verify(combine_plans(found, 8, F32, cores, **MACHINE, **options), tables, place, mode, most)
    assert proved["rows"] == sent and proved["bytes"] == 8 * sum(map(len, tables))


@given(rounds(), st.integers(2, 40), st.integers(1, 1 << 16))
@settings(max_examples=100)
def test_balanced_is_never_worse_than_naive(case, cores, row):
    place, tables, mode, most = case
    found = played(tables, place, mode, most)
    each = float(CM384.cost.ps_per_byte.max()) * 4 * row
    entries = 1 + max(t.shape[1] for t in tables)
    for make, slack in ((lambda p: dispatch_plans(found, row, cores, policy=p, **MACHINE), 0),
                        (lambda p: combine_plans(found, 4 * row, F32, cores, policy=p, **MACHINE), each * entries)):
        for balanced, naive in zip(make("balanced"), make("naive"), strict=True):
            assert balanced.makespan_ps <= naive.makespan_ps + slack
            assert balanced.bound_ps <= balanced.makespan_ps or not len(balanced.units)


@given(rounds(), st.integers(1, 30))
@settings(max_examples=20)
def test_the_same_plans_come_out_again(case, cores):
    place, tables, mode, most = case
    for _ in range(2):
        made = [[p.hash() for p in (*dispatch_plans(f, 8, cores), *combine_plans(f, 8, F32, cores))]
                for f in (played(tables, place, mode, most) for _ in range(2))]
        assert made[0] == made[1]


def skewed(dies, tokens, experts=64, topk=8):
    chance = np.random.default_rng(7)
    liked = np.log(1 / np.arange(1, experts + 1) ** 1.2)
    return [np.argsort(-(liked + chance.gumbel(size=(tokens, experts))), axis=1)[:, :topk] for _ in range(dies)]


@pytest.mark.parametrize("mode", MODES)
def test_units_do_not_grow_with_tokens_beyond_what_cores_get(mode):
    place, units = Placement.default(64, 16), {}
    for tokens in (64, 512, 4096):
        found = played(skewed(16, tokens), place, mode)
        for plan in dispatch_plans(found, 7168, 24, ranks=[0, 3], **MACHINE):
            assert len(plan.slices) <= 16 * 4
            assert 3 * plan.makespan_ps <= 4 * plan.bound_ps
            units[tokens, plan.rank] = len(plan.units)
        for plan in combine_plans(found, 7168, F32, 24, ranks=[0, 3], **MACHINE):
            assert len(plan.units) <= 64 * 24
            assert plan.makespan_ps <= plan.bound_ps * 1.1
    assert max(units.values()) <= 64 * 24 + 64


def test_windows_that_do_not_fit_are_refused():
    tables = [np.zeros((3, 1), int), np.zeros((2, 1), int)]
    place = Placement.default(2, 2)
    counts = played(tables, place, "low_latency").counts
    with pytest.raises(InvalidArgument, match="slot 0 of die 0 receives 5 rows, and its window has 4"):
        windows.low_latency(counts, place.first, 0, 4)
    with pytest.raises(InvalidArgument, match="die 0 has 3 tokens"):
        played(tables, place, "low_latency", 2)
    with pytest.raises(InvalidArgument, match="mode"):
        played(tables, place, "low")
    with pytest.raises(InvalidArgument, match="placement on 2"):
        played(tables[:1], place, "low_latency")


def test_members_left_out_are_not_added():
    tables = [np.array([[0, 1, 2]]), np.array([[1, 2, -1]]), np.array([[0, 2, 1]])]
    place = Placement.default(3, 3)
    out = np.array([False, True, False])
    for mode in MODES:
        found = played(tables, place, mode)
        if mode == "low_latency":
            sums = windows.low_latency_sums(found.counts, place.first, 0, found.window, out)
        else:
            sums = windows.high_throughput_sums(found.counts, 0, out)
        assert sums.members.tolist() == [0, 2] and sums.base[1] == -1
        assert sums.pairs[1].sum() == sums.pairs[:, 1].sum() == 0
        rows = found.entries(0, sums)[0]
        assert [int(e) >> 32 for e in rows[0] if int(e) != NO_ROW] == [0, 1]
        plan = combine_plans(found, 4, F32, ranks=[0])[0]
        assert plan.check() is plan
    moved = windows.high_throughput_sums(played(tables, place, MODES[0]).counts, 2, None, np.array([5, 6, 7]))
    assert (moved.base & 0xFFFFFFFF).tolist() == [5, 6, 7]


def test_a_plan_is_asked_for_what_exists():
    place = Placement.default(2, 2)
    found = played([np.zeros((1, 1), int)] * 2, place, MODES[0])
    for options, what in (({"row": 0}, "a row has 0"), ({"cores": 0}, "cores is 0"), ({"path": "tcp"}, "path 'tcp'"),
                          ({"policy": "fair"}, "policy is 'fair'")):
        asked = {"row": 4, "cores": 1, **options}
        for make in (lambda row, **more: dispatch_plans(found, row, **more),
                     lambda row, **more: combine_plans(found, row, F32, **more)):
            with pytest.raises(InvalidArgument, match=what):
                make(**asked)
    with pytest.raises(InvalidArgument, match="whole number of elements"):
        combine_plans(found, 6, F32)
    with pytest.raises(InvalidArgument, match="whole number of elements"):
        combine_plans(found, 6, 0)
    for name in ("moe_dispatch", "moe_combine"):
        with pytest.raises(InvalidArgument):
            build(Spec(name, itemsize=4, nranks=2, counts=np.ones((2, 2), int)), 0)


# ---- mutants ---------------------------------------------------------------------------------


def changed(plan, **arrays):
    return dataclasses.replace(plan, **arrays)


def field(plan, array, name, index, value):
    made = getattr(plan, array).copy()
    made[name][index] = value(made[name][index]) if callable(value) else value
    return changed(plan, **{array: made})


def entry(plan, index, value):
    rows = plan.rows.copy()
    rows[index] = value(rows[index]) if callable(value) else value
    return changed(plan, rows=rows)


def without(plan, unit):
    begin = plan.core_begin.copy()
    begin[int(plan.units["core"][unit]) + 1 :] -= 1
    return changed(plan, units=np.delete(plan.units, unit), core_begin=begin)


def swap(plan, a, b):
    rows = plan.rows.copy()
    rows[[a, b]] = rows[[b, a]]
    return changed(plan, rows=rows)


def dst(plan, unit):
    return int(plan.units["dst_first"][unit])


DISPATCH = {
    "another row": lambda p: entry(p, 0, lambda e: e ^ np.uint64(1)),
    "rows in another order": lambda p: swap(p, 0, 1),
    "a row beyond": lambda p: entry(p, 0, 64),
    "another member": lambda p: field(p, "operands", "member", int(p.units["src_first"][0]), lambda m: (m + 1) % 4),
    "another place": lambda p: field(p, "operands", "offset", dst(p, 0), int(p.operands["offset"][dst(p, 1)])),
    "not a row's begin": lambda p: field(p, "operands", "offset", dst(p, 0), lambda o: o + np.uint64(4)),
    "a source that begins elsewhere": lambda p: field(p, "operands", "offset", int(p.units["src_first"][0]), 8),
    "a unit less": lambda p: without(p, 0),
    "an index further": lambda p: field(p, "units", "index", 0, lambda i: i + np.uint64(1)),
    "a row less": lambda p: field(p, "units", "bytes", 0, lambda b: b - np.uint64(8)),
    "another length": lambda p: field(p, "units", "row", 0, 4),
    "no rows": lambda p: changed(p, rows=None),
    "fewer rows": lambda p: changed(p, rows=p.rows[:-1]),
    "more than there is": lambda p: changed(p, buffer_bytes=p.buffer_bytes + np.uint64(8)),
    "a copy": lambda p: field(p, "units", "kind", 0, 1),
    "no closing": lambda p: changed(p, needs_done=False),
    "SRC is written": lambda p: field(p, "operands", "buf", dst(p, 0), SRC),
    "other counts": lambda p: changed(p, spec=p.spec._replace(counts=p.spec.counts + 1)),
}
COMBINES = {
    "another row": lambda p: entry(p, 0, lambda e: e ^ np.uint64(1)),
    "another operand": lambda p: entry(p, 0, lambda e: e ^ np.uint64(1 << 32)),
    "an operand that is not there": lambda p: entry(p, 0, lambda e: e | np.uint64(9 << 32)),
    "an entry less": lambda p: entry(p, 0, NO_ROW),
    "entries in another order": lambda p: swap(p, 0, 1),
    "another member": lambda p: field(p, "operands", "member", 0, lambda m: (m + 1) % 4),
    "a unit less": lambda p: without(p, 0),
    "an index further": lambda p: field(p, "units", "index", 0, lambda i: i + np.uint64(1)),
    "a token less": lambda p: field(p, "units", "bytes", 0, lambda b: b - np.uint64(8)),
    "another place": lambda p: field(p, "operands", "offset", dst(p, 0), int(p.operands["offset"][dst(p, 1)])),
    "fewer entries": lambda p: field(p, "units", "total", 0, lambda t: t - 1),
    "no entries": lambda p: field(p, "units", "total", 0, 0),
    "too many entries": lambda p: field(p, "units", "total", 0, 65),
    "raw bytes": lambda p: field(p, "units", "dtype", 0, 0),
    "another dtype": lambda p: field(p, "units", "dtype", 0, DTYPE_NAMES.index("bf16")),
    "rows of another kind": lambda p: field(p, "units", "kind", 0, ROWS),
    "more than there is": lambda p: changed(p, buffer_bytes=p.buffer_bytes + np.uint64(8)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", [("d", w) for w in DISPATCH] + [("c", w) for w in COMBINES], ids=lambda w: "-".join(w))
def test_wrong_plans_are_found(mode, what):
    tables = [t[:, :3] for t in skewed(4, 12, 8, 8)]
    place = Placement.default(8, 4)
    found = played(tables, place, mode)
    plans = dispatch_plans(found, 8, 3) if what[0] == "d" else combine_plans(found, 8, F32, 3)
    verify(plans, tables, place, mode)
    plans[2] = (DISPATCH if what[0] == "d" else COMBINES)[what[1]](plans[2])
    with pytest.raises(PlanError):
        verify(plans, tables, place, mode)


@pytest.mark.parametrize("mode", MODES)
def test_256_dies_are_proved(mode):
    chance = np.random.default_rng(3)
    tables = [chance.integers(0, 256, (32, 8)) for _ in range(256)]
    place = Placement.default(256, 256)
    found = played(tables, place, mode, 256)
    verify(dispatch_plans(found, 7168, 24), tables, place, mode, 256)
    verify(combine_plans(found, 7168, F32, 24), tables, place, mode, 256)


# ---- files and words -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_plans_of_rows_are_files_and_words_too(mode, tmp_path):
    tables = [t[:, :3] for t in skewed(4, 12, 8, 8)]
    found = played(tables, Placement.default(8, 4), mode)
    for plans in (dispatch_plans(found, 8, 3), combine_plans(found, 8, F32, 3)):
        for name in ("a.npz", "a.json"):
            save_all(plans, tmp_path / name)
            again = load_all(tmp_path / name)
            assert [p.hash() for p in again] == [p.hash() for p in plans]
            assert not diff(again[1], plans[1]) and again[1].rows.tobytes() == plans[1].rows.tobytes()
            assert not again[1].rows.flags.writeable
            assert prove(again)["reads"] == prove(plans)["reads"] == found.counts.sum()
        other = entry(plans[0], 0, int(plans[0].rows[0]) ^ 1)
        assert other.hash() != plans[0].hash() and diff(plans[0], other).startswith("rows[0]: ")
        assert plans[0].nbytes > plans[0].rows.nbytes
        copied = pickle.loads(pickle.dumps(plans[0]))
        assert copied.hash() == plans[0].hash() and not copied.rows.flags.writeable
    assert "sums of 3 f32 rows of 8 B [" in plans[0].pretty() or mode == MODES[0]
    shown = dispatch_plans(found, 8, 3)[0].pretty()
    assert " rows of 8 B [" in shown and "moe_dispatch" in shown


def test_plans_without_rows_have_neither_rows_nor_their_fields_as_json(tmp_path):
    plan = build(Spec("all_gather", 100, 4, nranks=2), 0)
    save(plan, tmp_path / "a.json")
    written = json.loads((tmp_path / "a.json").read_text())
    assert "rows" not in written and "row" not in written["units"]["fields"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", ["a unit less", "an entry less", "another place", "another member", "a copy"])
def test_counts_alone_show_what_is_missing(mode, what):
    found = played([t[:, :3] for t in skewed(4, 12, 8, 8)], Placement.default(8, 4), mode)
    for plans, mutants in ((dispatch_plans(found, 8, 3), DISPATCH), (combine_plans(found, 8, F32, 3), COMBINES)):
        prove(plans)
        if what in mutants:
            with pytest.raises(PlanError):
                prove([*plans[:2], mutants[what](plans[2]), plans[3]])
