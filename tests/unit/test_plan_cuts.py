"""How finely a step is cut: balanced units are done no later than uncut, naive, or as many as there are cores."""

import heapq

import numpy as np
import pytest

from strata.machine import load
from strata.plan import Plan, Spec, build
from strata.plan.cost import Cost
from strata.plan.records import DTYPE_NAMES, OP_NAMES, REDUCE
from strata.plan.schedule import LEAST_UNIT
from strata.plan.spec import REDUCTIONS

MACHINES = {name: load(name) for name in ("cm384", "dgx_b200", "dgx_h100", "host")}
OPERATIONS = ("all_gather", "broadcast", "all_to_all", "all_to_all_v", "gather", "scatter", "reduce_scatter", "reduce")
F32, SUM = DTYPE_NAMES.index("f32"), OP_NAMES.index("sum")
LINE = 64
# Cuts are tried until one is within 3 % of what none can be below; units are whole lines, at most two more than asked.
NEAR = 1.03


def drawn(seed: int) -> tuple[str, Spec, int, int]:
    """A machine, an operation of one step, a member and its cores."""
    chance = np.random.default_rng(seed)
    name, operation = str(chance.choice(list(MACHINES))), str(chance.choice(OPERATIONS))
    n, cores = int(chance.choice([2, 2, 3, 4, 6, 8, 12, 16, 24, 32])), int(chance.integers(1, 49))
    rank, nbytes = int(chance.integers(n)), int(2 ** chance.uniform(12, 30))
    if operation == "all_to_all_v":
        counts = (nbytes / n * chance.lognormal(-0.5, chance.choice([0.3, 1.0, 2.0]), (n, n))).astype(np.int64)
        counts[chance.random((n, n)) < 0.2] = 0
        return name, Spec(operation, nranks=n, counts=counts), rank, cores
    itemsize, dtype, op = (4, F32, SUM) if operation in REDUCTIONS else (1, 0, 0)
    count = nbytes // itemsize // (n if operation in ("all_to_all", "reduce_scatter", "scatter") else 1)
    in_place = operation != "all_to_all" and bool(chance.random() < 0.5)
    return name, Spec(operation, max(1, count), itemsize, dtype, op, nranks=n, in_place=in_place), rank, cores


def moved(plan: Plan, cost: Cost, tiers: np.ndarray) -> list[tuple[int, int, float]]:
    """(bytes, start-up in ps, ps a byte) of each unit; a reduction's are those of all that it reads and writes."""
    found, member = [], plan.operands["member"]
    for u in plan.units:
        legs = [u["tier"]]
        if u["kind"] == REDUCE:
            to = member[u["dst_first"] :][: u["ndst"]]
            legs = [*tiers[member[u["src_first"] :][: u["nsrc"]]], *tiers[to[1:] if to[0] == plan.rank else to]]
        found.append((int(u["bytes"]), max(int(cost.alpha_ps[t]) for t in legs),
                      float(sum(cost.ps_per_byte[t] for t in legs))))  # fmt: skip
    return found


def done(slices: list[tuple[int, int, float]], sizes: list[float], cores: int) -> int:
    """When the last core is done, if each slice is cut evenly into units of at most its size: LPT."""
    units = []
    for (nbytes, alpha, rate), size in zip(slices, sizes, strict=True):
        number = -(-nbytes // max(1, int(size)))
        each = -(-nbytes // number)
        each += -each % LINE
        lengths = [each] * (nbytes // each) + [nbytes % each] * (nbytes % each > 0)
        units += [alpha + round(length * rate) for length in lengths]
    loads = [0] * cores
    for unit in sorted(units, reverse=True):
        heapq.heapreplace(loads, loads[0] + unit)
    return max(loads)


def others(name: str, spec: Spec, rank: int, cores: int) -> dict[str, int]:
    """When the last core would be done otherwise, in ps."""
    machine = MACHINES[name]
    cost, tiers = machine.cost, machine.place.seen(rank, spec.nranks)
    whole = Cost(cost.alpha_us, cost.gbps, (1 << 40,) * 4)
    slices = moved(build(spec, rank, cost=whole, topology=machine.place), whole, tiers)
    naive = build(spec, rank, cores, cost=cost, topology=machine.place, policy="naive")
    if not slices:
        return {"naive": naive.makespan_ps}
    unit = max(b for b, _, _ in moved(naive, cost, tiers))  # of the tier's size, where there is as much
    ps = sum(nbytes * rate for nbytes, _, rate in slices)
    found = {"naive": naive.makespan_ps, "uncut": done(slices, [nbytes for nbytes, _, _ in slices], cores),
             "units of the tier's size": done(slices, [unit] * len(slices), cores)}  # fmt: skip
    for k in (1, 2):
        sizes = [min(unit, max(LEAST_UNIT, ps / (cores * k) / rate)) for _, _, rate in slices]
        found[f"{k} equal units a core"] = done(slices, sizes, cores)
    return found


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_no_simple_cut_is_done_earlier(first):
    for seed in range(first, first + 100):
        name, spec, rank, cores = drawn(seed)
        machine = MACHINES[name]
        plan = build(spec, rank, cores, cost=machine.cost, topology=machine.place)
        for what, ps in others(name, spec, rank, cores).items():
            if cores == 1 and what == "uncut":
                continue  # one core does units of the tier's size, whatever they cost
            assert plan.makespan_ps <= NEAR * ps, f"seed {seed}: {what} {ps}, balanced {plan.makespan_ps} ps"


@pytest.mark.parametrize(("nbytes", "cores"), [(1 << 20, 8), (4 << 20, 8), (1_000_003, 7), (3 << 20, 48), (1 << 30, 5)])
@pytest.mark.parametrize("name", ["dgx_b200", "dgx_h100", "cm384"])
def test_one_slice_where_start_ups_are_dear(name, nbytes, cores):
    """One peer has it all: each core should have one unit of it, or units of the tier's size if these are smaller."""
    machine = MACHINES[name].replace(**{f"tier.{t}.alpha_us": 3.0 for t in ("sio", "l1")})
    plan = build(Spec("broadcast", nbytes, nranks=2), 1, cores, cost=machine.cost, topology=machine.place)
    tier = int(plan.units["tier"][0])
    alpha, rate = int(machine.cost.alpha_ps[tier]), float(machine.cost.ps_per_byte[tier])
    least = -(-nbytes // cores) * rate
    starts = -(-nbytes // (cores * machine.cost.unit_bytes[tier]))
    assert plan.makespan_ps <= NEAR * (least + starts * alpha) + 2 * LINE * rate
