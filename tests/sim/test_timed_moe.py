"""MoE dispatch and combine on the timing plane: closed forms, bounds, and bytes that come to the same."""

import numpy as np
import pytest
from timed_cases import CM384, PLAIN

from strata.errors import InvalidArgument
from strata.exec.timed import Program
from strata.exec.timed.records import HBM, MOVE, SIO_IN, UB_IN
from strata.moe import simulate
from strata.plan import moe
from strata.plan.plan import Plan
from strata.plan.records import DTYPE_NAMES

ROW, F32 = 8192, DTYPE_NAMES.index("f32")
MODES = ("high_throughput", "low_latency")
QUIET = PLAIN.replace(**{"core.issue_us": 0.0, "die.hbm_gbps": 1e6})


def tables(n, tokens, experts=32, k=4, seed=0):
    random = np.random.default_rng(seed)
    return [random.random((tokens, experts)).argsort(axis=1)[:, :k] for _ in range(n)]


def played(n, tokens, mode, experts=32, **more):
    return moe.played(tables(n, tokens, experts, **more), moe.Placement.default(experts, n), mode)


def plans(kind, given, machine, cores=4, row=ROW, **options):
    options = {"cost": machine.cost, "topology": machine.place, **options}
    if kind == "dispatch":
        return moe.dispatch_plans(given, row, cores, **options)
    return moe.combine_plans(given, row, F32, cores, **options)


def run(machine, made, path=None, dies=None, ndies=None):
    program = Program(machine, ndies or len(made))
    stage = program.operation(made, path=path, dies=dies)
    return stage, program.run(check=True)


def pair(tokens, expert):
    """Two dies, of which the first has tokens that all go to one of the other's experts, in turn."""
    table = [np.array(expert)[:, None] * np.ones(1, np.int64), np.zeros((0, 1), np.int64)]
    assert len(table[0]) == tokens
    return moe.played(table, moe.Placement(np.array([0, 1]), np.array([0, 0, 2])), MODES[1])


@pytest.mark.parametrize("row_us,rows", [(0.0, 1), (0.0, 7), (0.3, 7), (9.0, 1), (9.0, 7)])
@pytest.mark.parametrize("to", [1, 2, 16])
def test_one_source_and_one_window(row_us, rows, to):
    """A core's rows of one peer: the first is asked for, and then the next while one flows."""
    machine = QUIET.replace(**{"core.row_us": row_us})
    made = plans("dispatch", pair(rows, [0] * rows), machine, cores=1)
    stage, timeline = run(machine, made, dies=[0, to], ndies=to + 1)
    tier = machine.tiers[{1: 1, 2: 2, 16: 3}[to]]
    wait, flow = tier.alpha_us + row_us, ROW / (tier.core_gbps * 1e3)
    assert timeline.core_times_us(stage)[1, 0] == pytest.approx(wait + (rows - 1) * max(wait, flow) + flow, abs=1e-5)


def test_without_double_buffering_rows_follow_each_other():
    machine = QUIET.replace(**{"core.row_us": 0.3, "core.outstanding": 1})
    stage, timeline = run(machine, plans("dispatch", pair(5, [0] * 5), machine, cores=1))
    tier = machine.tiers[1]
    each = tier.alpha_us + 0.3 + ROW / (tier.core_gbps * 1e3)
    assert timeline.core_times_us(stage)[1, 0] == pytest.approx(5 * each, abs=1e-5)


@pytest.mark.parametrize("row_us", [0.0, 2.0])
def test_the_sum_of_one_source(row_us):
    """Combine of what one window holds: as long as its dispatch."""
    machine = QUIET.replace(**{"core.row_us": row_us})
    made = plans("combine", pair(6, [0, 1] * 3), machine, cores=1)
    stage, timeline = run(machine, made)
    tier = machine.tiers[1]
    wait, flow = tier.alpha_us + row_us, ROW / (tier.core_gbps * 1e3)
    assert timeline.core_times_us(stage)[0, 0] == pytest.approx(wait + 5 * max(wait, flow) + flow, abs=1e-5)


def test_by_an_engine_runs_of_rows_are_descriptors():
    """Slot 0 has tokens 0 to 3 and slot 1 tokens 4, 6, ...: a descriptor for neighbours, one for each of the others."""
    machine = QUIET.replace(**{"sdma.block_bytes": 3 * ROW, "die.sio_gbps": 1e6})
    made = plans("dispatch", pair(9, [0, 0, 0, 0, 1, 0, 1, 0, 1]), machine, cores=1, path="sdma")
    assert len(made[1].units) == 2
    stage, timeline = run(machine, made)
    runs = {0: 2 + 1 + 1, 1: 3}  # 4 rows are two blocks
    found = timeline.core_times_us(stage)[1, 0]
    assert found == pytest.approx(sum(runs.values()) * machine.sdma.descriptor_us, abs=1e-5)
    moved = timeline.table()
    moved = moved[(moved["kind"] == MOVE) & (moved["die"] == 1)]
    tier = machine.tiers[1]
    for task, unit in zip(moved, made[1].units, strict=True):
        each = tier.alpha_us + machine.sdma.handover_us
        expected = runs[int(unit["slice"])] * each + int(unit["bytes"]) / (tier.read_gbps * 1e3)
        assert (task["done"] - task["flowing"]) / 1e6 == pytest.approx(expected, abs=1e-5)
    sums = plans("combine", pair(9, [0, 0, 0, 0, 1, 0, 1, 0, 1]), machine, cores=1, path="sdma")
    stage, timeline = run(machine, sums)
    assert timeline.core_times_us(stage)[0, 0] == pytest.approx(9 * machine.sdma.descriptor_us, abs=1e-5)


@pytest.mark.parametrize("path", ["mte", "sdma"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["dispatch", "combine"])
@pytest.mark.parametrize("policy", ["balanced", "naive"])
def test_bytes_are_those_of_the_routing(kind, mode, policy, path):
    """What flows into each die's ports is rows times row; its memory takes them once more."""
    n = 6
    given = played(n, 23, mode, seed=3)
    made = plans(kind, given, CM384, cores=5, policy=policy, path=path)
    _, timeline = run(CM384, made)
    counts = made[0].spec.counts
    of = timeline.arrays
    moved = np.zeros(len(of.links))
    for task in of.tasks[of.tasks["kind"] == MOVE]:
        uses = of.uses[task["use_first"] : task["use_first"] + task["nuse"]]
        np.add.at(moved, uses["link"], task["work"] * uses["weight"])
    links, dies = of.links["kind"], of.links["die"]
    into = np.array([moved[np.isin(links, (UB_IN, SIO_IN)) & (dies == d)].sum() for d in range(n)])
    off = counts.sum(axis=0) - np.diag(counts)
    assert into == pytest.approx(off * ROW, rel=1e-9)
    memory = np.array([moved[(links == HBM) & (dies == d)].sum() for d in range(n)])
    writes = counts.sum(axis=0) if kind == "dispatch" or path == "sdma" else given.tokens
    asked = memory > 0  # a memory that cannot be what limits is no link
    assert memory[asked] == pytest.approx(((counts.sum(axis=1) + writes) * ROW)[asked], rel=1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["dispatch", "combine"])
def test_more_to_do_or_less_to_do_it_with_is_never_faster(kind, mode):
    n = 8
    given = played(n, 40, mode, seed=5)

    def us(machine, row=ROW, made=None):
        made = made or plans(kind, given, CM384, cores=6, row=row)
        stage, timeline = run(machine, made)
        return float(timeline.finish_us(stage).max())

    made = plans(kind, given, CM384, cores=6)
    least = us(CM384, made=made)
    ports = {"die.ub_gbps": 40.0, "die.sio_gbps": 40.0}
    cores = {f"tier.{t}.core_gbps": 2.0 for t in ("sio", "l1", "l2")}
    for worse in (ports, cores, {"core.row_us": 9.0}, {"tier.l1.alpha_us": 9.0}, {"core.issue_us": 2.0}):
        assert us(CM384.replace(**worse), made=made) >= least * (1 - 1e-9), worse
    assert us(CM384, 2 * ROW) >= least


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["dispatch", "combine"])
def test_no_die_is_faster_than_its_ports_and_cores(kind, mode):
    n, cores = 16, 8
    given = played(n, 64, mode, seed=6)
    machine = CM384.replace(**{"core.row_us": 1.0})
    made = plans(kind, given, machine, cores=cores)
    stage, timeline = run(machine, made)
    counts = made[0].spec.counts
    tiers = [machine.place.seen(d, n) for d in range(n)]
    busy = timeline.core_times_us(stage).max(axis=1)
    for d in range(n):
        off = (counts[:, d].sum() - counts[d, d]) * ROW
        period = np.array([max(t.alpha_us + 1.0, ROW / (t.core_gbps * 1e3)) for t in machine.tiers])
        rows = counts[:, d] @ period[tiers[d]]
        assert busy[d] >= off / ((machine.die.ub_gbps + machine.die.sio_gbps) * 1e3)
        assert busy[d] >= 0.99 * rows / cores


def test_rows_that_are_not_there_are_refused():
    made = plans("dispatch", pair(4, [0] * 4), QUIET, cores=1)

    def wrong(**fields):
        units = made[1].units.copy()
        for name, value in fields.items():
            units[name] = value
        parts = {name: getattr(made[1], name) for name in Plan.__dataclass_fields__}
        return [made[0], Plan(**{**parts, "units": units})]

    for fields in ({"index": 1}, {"row": 0}, {"row": ROW - 1}, {"kind": 6, "total": 2}):
        with pytest.raises(InvalidArgument, match="moves rows"):
            run(QUIET, wrong(**fields))


def test_a_die_without_tokens_and_without_experts():
    """They synchronise, and are done."""
    table = [np.zeros((0, 2), np.int64), np.array([[0, 1]] * 5), np.full((3, 2), -1)]
    placement = moe.Placement(np.array([0, 1]), np.array([0, 1, 1, 2]))
    for mode in MODES:
        given = moe.played(table, placement, mode)
        for kind in ("dispatch", "combine"):
            stage, timeline = run(CM384, plans(kind, given, CM384))
            assert (timeline.finish_us(stage) > 0).all()


# ---- strata.moe.simulate -------------------------------------------------------------


SMALL = {"ranks": 8, "tokens": 48, "hidden": 1024, "topk": 4, "experts": 32}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["dispatch", "combine"])
def test_parts_add_up_and_buffers_cost_something(kind, mode):
    found = {system: simulate(kind, mode, system=system, **SMALL) for system in ("strata", "zerocopy", "staged")}
    for made in found.values():
        assert sum(made.parts_us.values()) == pytest.approx(made.time_us, rel=0.05)
        assert made.parts_us["barriers"] == pytest.approx(CM384.sync.fused_us)
        away = made.rows.sum() - np.trace(made.rows)
        assert made.busbw_GBps == pytest.approx(away * 2048 / 8 / made.time_us / 1e3)
        assert made.rows.sum() > 0 and made.core_times_us.shape == (8, 48) and str(made)
    assert found["strata"].time_us <= found["zerocopy"].time_us < found["staged"].time_us
    copies = found["staged"].parts_us["copies in"] + found["staged"].parts_us["copies out"]
    assert found["staged"].time_us - found["zerocopy"].time_us == pytest.approx(copies, rel=1e-6)


def test_smaller_rows_are_faster_and_what_travels_is_counted():
    plain, fp8, int8 = (simulate("dispatch", "low_latency", quant=q, **SMALL) for q in (None, "fp8", "int8"))
    assert (plain.row_bytes, fp8.row_bytes, int8.row_bytes) == (2048, 1536, 1536)
    assert simulate("dispatch", hidden=7168, ranks=2, tokens=1, quant="int8").row_bytes == 7680
    machine = CM384.replace(**{"core.row_us": 0.0, "die.ub_gbps": 10.0, "die.sio_gbps": 10.0})
    plain, fp8 = (simulate("dispatch", "low_latency", quant=q, machine=machine, **SMALL) for q in (None, "fp8"))
    assert fp8.parts_us["rows"] < plain.parts_us["rows"] and "convert" in fp8.parts_us


def test_a_recorded_routing_is_what_counts():
    given = moe.Routing(4, (tuple(np.full((tokens, 2), [[0, 3]]) for tokens in (5, 0, 2, 1)),))
    made = simulate("dispatch", "low_latency", routing=given, hidden=512)
    assert made.ranks == 4 and made.rows.tolist() == [[5, 0, 0, 5], [0] * 4, [2, 0, 0, 2], [1, 0, 0, 1]]
    other = simulate("dispatch", "low_latency", routing=given, hidden=512, placement=moe.Placement.default(4, 4))
    assert other.digest == made.digest
    skewed = simulate("dispatch", "high_throughput", routing="zipf", **SMALL)
    assert skewed.time_us > simulate("dispatch", "high_throughput", **SMALL).time_us


def test_by_the_engine_cores_only_submit():
    for kind in ("dispatch", "combine"):
        made = simulate(kind, "low_latency", path="sdma", **SMALL)
        assert made.path == "sdma" and ("add up" in made.parts_us) == (kind == "combine")
        assert made.core_times_us.max() < made.parts_us["rows"]


@pytest.mark.parametrize("wrong", [
    {"kind": "all_reduce"}, {"mode": "fast"}, {"system": "nccl"}, {"path": "pcie"}, {"partition": "fair"},
    {"quant": "int4"}, {"kind": "combine", "quant": "fp8"}, {"cores": 49}, {"cores": 0}, {"routing": "normal"},
    {"hidden": 0}, {"ranks": 769}, {"topk": 300}, {"tokens": -1},
])  # fmt: skip
def test_what_does_not_go_together_is_refused(wrong):
    with pytest.raises(InvalidArgument):
        simulate(**{"ranks": 4, "tokens": 8, **wrong})


@pytest.mark.parametrize("dies,dispatch,combine", [(8, 116, 118), (256, 152, 149)])
def test_canns_latencies(dies, dispatch, combine):
    """arXiv 2506.12708: 8 dies are what core.row_us is fitted to, 256 follow."""
    how = {"mode": "low_latency", "ranks": dies, "tokens": 128, "system": "zerocopy", "partition": "balanced"}
    assert simulate("dispatch", quant="int8", **how).time_us == pytest.approx(dispatch, rel=0.15)
    assert simulate("combine", **how).time_us == pytest.approx(combine, rel=0.15)


def test_balanced_cores_begin_all_around():
    """Not all of a die's on one peer at a time, whose port they would wait for."""
    n, cores = 8, 48
    given = moe.played(tables(n, 600, 256, 8), moe.Placement.default(256, n), MODES[0])
    for plan in plans("dispatch", given, CM384, cores=cores, row=14336):
        first = plan.operands["member"][plan.units["src_first"][plan.core_begin[:-1]]]
        number = np.bincount(first, minlength=n)
        assert number.min() >= 1 and number.max() <= 3 * cores // n
        assert (np.diff(plan.units["stripe"].astype(int)) != 0).all()
