"""The verifier catches every mutant of a right plan that changes what it does, and says where."""

import dataclasses

import numpy as np
import plan_cases as cases
import pytest

import strata.plan.frontends as frontends
from strata.exec import reference
from strata.plan import Plan, PlanError, Spec, verify
from strata.plan.cost import HOST, Cost
from strata.plan.frontends._common import pulls
from strata.plan.records import COPY, NBUFS, OUT, REDUCE, SCRATCH, SRC

FINE = Cost(HOST.alpha_us, HOST.gbps, (4096,) * 4)  # small units: many of them


def changed(plan: Plan, units=None, operands=None, **fields) -> Plan:
    """The plan with other arrays, its buffer_bytes fitted to them so that it stays well formed."""
    units = plan.units if units is None else units
    operands = plan.operands if operands is None else operands
    room = np.zeros((plan.spec.nranks, NBUFS), np.uint64)
    for unit in units:
        for first, number in (("src_first", "nsrc"), ("dst_first", "ndst")):
            for o in operands[int(unit[first]) :][: int(unit[number])]:
                if 0 <= o["member"] < len(room):
                    place = o["member"], o["buf"]
                    room[place] = max(room[place], o["offset"] + unit["bytes"])
    return dataclasses.replace(plan, units=units, operands=operands, buffer_bytes=room, **fields)


def with_units(plan: Plan, order: list[int]) -> Plan:
    """The plan with these of its units only, in this order, all on one core."""
    units = plan.units[order].copy()
    units["core"] = 0
    begin = np.array([0, len(order)], "u4")
    return changed(plan, units=units, core_begin=begin, cores=1)


def drop(plan, unit, chance):
    return with_units(plan, [i for i in range(len(plan.units)) if i != unit])


def double(plan, unit, chance):
    return with_units(plan, [*range(len(plan.units)), unit])


def _source(plan, unit, chance) -> int:
    u = plan.units[unit]
    return int(u["src_first"]) + int(chance.integers(u["nsrc"]))


def _target(plan, unit, chance) -> int:
    u = plan.units[unit]
    return int(u["dst_first"]) + int(chance.integers(u["ndst"]))


def _operand(plan, index, **fields):
    operands = plan.operands.copy()
    for name, value in fields.items():
        operands[name][index] = value
    return changed(plan, operands=operands)


def _unit(plan, unit, **fields):
    units = plan.units.copy()
    for name, value in fields.items():
        units[name][unit] = value
    return changed(plan, units=units)


def _shifted(plan, index, chance):
    offset = int(plan.operands["offset"][index])
    step = int(chance.choice([1, plan.spec.itemsize, 64, 4096]))
    return _operand(plan, index, offset=offset - step if offset >= step and chance.random() < 0.5 else offset + step)


def shift_source(plan, unit, chance):
    return _shifted(plan, _source(plan, unit, chance), chance)


def shift_target(plan, unit, chance):
    return _shifted(plan, _target(plan, unit, chance), chance)


def other_source(plan, unit, chance):
    index = _source(plan, unit, chance)
    member = (int(plan.operands["member"][index]) + int(chance.integers(1, plan.spec.nranks))) % plan.spec.nranks
    return _operand(plan, index, member=member)


def other_target(plan, unit, chance):
    index = _target(plan, unit, chance)
    member = (int(plan.operands["member"][index]) + int(chance.integers(1, plan.spec.nranks))) % plan.spec.nranks
    return _operand(plan, index, member=member)


def other_buffer(plan, unit, chance):
    index = (_source if chance.random() < 0.5 else _target)(plan, unit, chance)
    wrong = [b for b in (SRC, OUT, SCRATCH) if b != plan.operands["buf"][index]]
    return _operand(plan, index, buf=int(chance.choice(wrong)))


def swap_operands(plan, unit, chance):
    """Two operands exchanged: of one reduction (the order counts too), or of two units."""
    other = int(chance.integers(len(plan.units)))
    a, b = _source(plan, unit, chance), _source(plan, other, chance)
    if plan.operands[a] == plan.operands[b]:
        return None
    operands = plan.operands.copy()
    operands[[a, b]] = operands[[b, a]]
    return changed(plan, operands=operands)


def fewer_bytes(plan, unit, chance):
    less = int(plan.units["bytes"][unit]) - int(chance.choice([1, plan.spec.itemsize]))
    return _unit(plan, unit, bytes=less) if less > 0 else None


def more_bytes(plan, unit, chance):
    return _unit(plan, unit, bytes=plan.units["bytes"][unit] + np.uint64(chance.choice([1, plan.spec.itemsize])))


def other_operator(plan, unit, chance):
    reducing = plan.units["kind"][unit] == REDUCE
    return _unit(plan, unit, op=plan.units["op"][unit] % 8 + 1) if reducing else _unit(plan, unit, op=1, kind=REDUCE)


def no_reduction(plan, unit, chance):
    reducing = plan.units["kind"][unit] == REDUCE
    return _unit(plan, unit, op=0, kind=COPY, nsrc=1) if reducing else None


def other_dtype(plan, unit, chance):
    reducing = plan.units["kind"][unit] == REDUCE
    return _unit(plan, unit, dtype=(plan.units["dtype"][unit] + 1) % 18) if reducing else None


def fewer_sources(plan, unit, chance):
    return _unit(plan, unit, nsrc=plan.units["nsrc"][unit] - 1)


def fewer_targets(plan, unit, chance):
    return _unit(plan, unit, ndst=plan.units["ndst"][unit] - 1)


def other_unit_s_table(plan, unit, chance):
    other = int(chance.integers(len(plan.units)))
    same = plan.units["src_first"][other] == plan.units["src_first"][unit]
    return None if same else _unit(plan, unit, src_first=plan.units["src_first"][other])


def wrong_done(plan, unit, chance):
    return dataclasses.replace(plan, needs_done=not plan.needs_done)


MUTATORS = [drop, double, shift_source, shift_target, other_source, other_target, other_buffer, swap_operands]
MUTATORS += [fewer_bytes, more_bytes, other_operator, no_reduction, other_dtype, fewer_sources, fewer_targets]
MUTATORS += [other_unit_s_table, wrong_done]


def subjects():
    for operation in ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "all_to_all_v"):
        yield cases.spec(operation, 4001, 5)
    for operation in ("broadcast", "reduce", "gather", "scatter"):
        yield cases.spec(operation, 4001, 5, root=3)
    yield cases.spec("all_reduce", 700, 4, "f64", mode="mailbox")
    yield cases.spec("all_gather", 700, 4, itemsize=3, mode="mailbox")


@pytest.mark.parametrize("mutate", MUTATORS, ids=lambda m: m.__name__)
def test_mutants_are_caught(mutate):
    chance, made = np.random.default_rng(MUTATORS.index(mutate)), 0
    for spec in subjects():
        for in_place in (0, (1 << spec.nranks) - 1):
            right = cases.plans(spec, in_place, cores=1 + made % 2, cost=FINE)
            verify(right)
            busy = [m for m, plan in enumerate(right) if len(plan.units)]
            for _ in range(4):
                m = int(chance.choice(busy))
                mutant = mutate(right[m], int(chance.integers(len(right[m].units))), chance)
                if mutant is None:
                    continue
                made += 1
                with pytest.raises(PlanError):
                    verify([*right[:m], mutant, *right[m + 1 :]])
    assert made > 20


def test_mutants_really_are_wrong():
    """On data, too: what the mutators make is not merely another right plan."""
    chance = np.random.default_rng(3)
    right = cases.plans(cases.spec("all_to_all", 500, 4, "i32"), cost=FINE)

    def outcome(plans):
        buffers = []
        for m in range(4):
            src = np.random.default_rng(m).integers(1, 256, 16000, np.uint8)
            buffers.append(reference.buffers(src, np.zeros(16000, np.uint8)))
        reference.run(plans, buffers)
        return np.concatenate([b.out for b in buffers])

    good = outcome(right)
    for mutate in (drop, shift_source, shift_target, other_source, other_target, fewer_bytes):
        wrong = outcome([right[0], mutate(right[1], 2, chance), *right[2:]])
        assert (wrong != good).any(), mutate.__name__


def message(plans) -> str:
    with pytest.raises(PlanError) as raised:
        verify(plans)
    return str(raised.value)


def test_messages_name_die_core_unit_and_bytes():
    spec = cases.spec("all_gather", 4096, 3, itemsize=1)
    right = cases.plans(spec)
    assert "no unit writes member 1 OUT from byte 8192 on" in message([right[0], drop(right[1], 0, None), right[2]])
    twice = message([right[0], double(right[1], 0, None), right[2]])
    assert "die 1 core 0 unit" in twice and "member 1 OUT bytes [8192, 12288)" in twice
    wrong = message([right[0], _operand(right[1], 0, member=0), right[2]])
    assert "die 1 core 0 unit 0 should copy from member 2 SRC byte 0" in wrong
    assert "member 0 SRC bytes [0, 4096)" in wrong
    far = message([right[0], _operand(right[1], 0, offset=1), right[2]])
    assert "reads beyond 4096 bytes: member 2 SRC bytes [1, 4097)" in far
    sums = cases.plans(cases.spec("all_reduce", 3000, 3))
    order = sums[0].operands.copy()
    order[[0, 1]] = order[[1, 0]]
    assert "operand 0 should be member 0 SRC byte 0" in message([changed(sums[0], operands=order), *sums[1:]])


def test_a_race_in_place_is_seen(monkeypatch):
    """Everyone reducing everything for itself is right only if nobody works in place."""

    def selfish(spec, rank):
        return pulls(np.arange(spec.nranks), spec.part, op=spec.redop)

    monkeypatch.setitem(frontends.FULL_MESH, "all_reduce", selfish)
    spec = cases.spec("all_reduce", 3000, 3)
    verify(cases.plans(spec))
    said = message(cases.plans(spec, in_place=0b010))
    assert "die 0 core 0 unit 0 reads what die 1 unit 0 writes: member 1 SRC bytes [0, 12000)" in said


def test_a_shifted_reduction_onto_its_own_operand_is_seen(monkeypatch):
    def slid(spec, rank):  # reads its SRC one part further on than in-place OUT lies
        return pulls(np.arange(spec.nranks), spec.part, src=rank * spec.part, op=spec.redop)

    monkeypatch.setitem(frontends.FULL_MESH, "reduce_scatter", slid)
    spec = cases.spec("reduce_scatter", 100, 2)
    made = cases.plans(spec, in_place=0b11)
    verify(made)
    operands = made[1].operands.copy()
    operands["offset"][operands["buf"] == OUT] = 0
    units = made[1].units.copy()
    units["bytes"] = 200
    assert message([made[0], changed(made[1], units=units)])


def test_sets_that_do_not_belong_together_are_refused():
    spec = cases.spec("all_gather", 100, 3)
    right = cases.plans(spec)
    assert "no plans" in message([])
    assert "plans of [0, 1]" in message(right[:2])
    assert "plans of [1, 0, 2]" in message([right[1], right[0], right[2]])
    other = cases.plans(spec._replace(count=101))
    assert "die 2 plans another operation" in message([*right[:2], other[2]])
    counts = np.ones((2, 2), int)
    moved = cases.plans(Spec("all_to_all_v", nranks=2, counts=counts))
    counts[0, 0] = 2
    assert "another operation" in message([moved[0], cases.plans(Spec("all_to_all_v", nranks=2, counts=counts))[1]])
    verify(cases.plans(spec, in_place=0b001))  # in place is each member's own affair


def test_malformed_plans_are_refused_before_they_are_proved():
    plan = cases.plans(cases.spec("all_gather", 100, 3))[0]
    wrong = {
        "unknown kind": {"kind": 9},
        "unknown dtype": {"dtype": 77},
        "unknown tier": {"tier": 4},
        "other than one source": {"nsrc": 2},
        "no operands": {"ndst": 0},
        "beyond the table": {"src_first": 1 << 31},
        "no bytes": {"bytes": 0},
        "too many bytes": {"bytes": 1 << 63},
        "another core": {"core": 1},
        "reserved bits": {"flags": 1},
        "without the other": {"wait_flag": 0},
        "out of the group": {"wait_flag": 0, "wait_peer": 3},
        "negative flag": {"post_flag": -2},
        "flag out of range": {"post_flag": 1 << 20},
        "no mean": {"total": 3},
        "an operator": {"op": 1},
    }
    for what, fields in wrong.items():
        units = plan.units.copy()
        for name, value in fields.items():
            units[name][1] = value
        with pytest.raises(PlanError, match=what):
            dataclasses.replace(plan, units=units).check()
    reducing = cases.plans(cases.spec("all_reduce", 100, 2))[0]
    for name, value in (("bytes", 398), ("dtype", 0)):
        units = reducing.units.copy()
        units[name] = value
        with pytest.raises(PlanError, match="split elements"):
            dataclasses.replace(reducing, units=units).check()
    with pytest.raises(PlanError, match="reaches beyond"):
        dataclasses.replace(plan, buffer_bytes=np.zeros((3, 3), "u8")).check()
    with pytest.raises(PlanError, match="claims more"):
        verify([dataclasses.replace(p, buffer_bytes=p.buffer_bytes + 1) for p in cases.plans(plan.spec)])
