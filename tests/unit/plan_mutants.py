"""Ways to spoil a plan, for tests of the verifier."""

import dataclasses

import numpy as np

from strata.plan import Plan
from strata.plan.records import COPY, DTYPE_BYTES, NBUFS, NONE, OUT, PARTIAL, REDUCE, SCRATCH, SRC, partial_bytes


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
                    room[place] = max(int(room[place]), int(o["offset"]) + _reach(unit, o))
    return dataclasses.replace(plan, units=units, operands=operands, buffer_bytes=room, **fields)


def _reach(unit, operand) -> int:
    """Bytes of an operand, partial or not."""
    dtype = int(unit["dtype"]) % len(DTYPE_BYTES)
    if not operand["flags"] & PARTIAL or not DTYPE_BYTES[dtype]:
        return int(unit["bytes"])
    return int(unit["bytes"]) // DTYPE_BYTES[dtype] * partial_bytes(dtype, int(unit["op"]) % 9)


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
    return _unit(plan, unit, nsrc=int(plan.units["nsrc"][unit]) - 1) if plan.units["nsrc"][unit] else None


def fewer_targets(plan, unit, chance):
    return _unit(plan, unit, ndst=int(plan.units["ndst"][unit]) - 1) if plan.units["ndst"][unit] else None


def other_unit_s_table(plan, unit, chance):
    other = int(chance.integers(len(plan.units)))
    same = plan.units["src_first"][other] == plan.units["src_first"][unit]
    return None if same else _unit(plan, unit, src_first=plan.units["src_first"][other])


def wrong_done(plan, unit, chance):
    return dataclasses.replace(plan, needs_done=not plan.needs_done)


def lose_wait(plan, unit, chance):
    return _unit(plan, unit, wait_peer=NONE, wait_flag=NONE) if plan.units["wait_flag"][unit] != NONE else None


def lose_post(plan, unit, chance):
    return _unit(plan, unit, post_flag=NONE) if plan.units["post_flag"][unit] != NONE else None


def other_flag(plan, unit, chance):
    """Waits for another flag, or for that of another member."""
    if plan.units["wait_flag"][unit] == NONE:
        return None
    if chance.random() < 0.5:
        return _unit(plan, unit, wait_peer=(plan.units["wait_peer"][unit] + 1) % plan.spec.nranks)
    return _unit(plan, unit, wait_flag=plan.units["wait_flag"][unit] + 1)


def swap_units(plan, unit, chance):
    """Two units of a core change places."""
    core = plan.units["core"][unit]
    others = [i for i in np.flatnonzero(plan.units["core"] == core) if i != unit]
    if not others:
        return None
    units = plan.units.copy()
    other = int(chance.choice(others))
    units[[unit, other]] = units[[other, unit]]
    return changed(plan, units=units)


def flip_partial(plan, unit, chance):
    if plan.units["kind"][unit] != REDUCE:
        return None
    index = (_source if chance.random() < 0.5 else _target)(plan, unit, chance)
    return _operand(plan, index, flags=plan.operands["flags"][index] ^ PARTIAL)


def other_total(plan, unit, chance):
    mean = plan.units["op"][unit] == 5
    return _unit(plan, unit, total=plan.units["total"][unit] + 1) if mean else None


def spread(plan, unit, chance):
    """A unit on a core of its own, where nothing comes before it."""
    if len(plan.units) < 2:
        return None
    order = [i for i in range(len(plan.units)) if i != unit]
    units = plan.units[[*order, unit]].copy()
    units["core"][:-1], units["core"][-1] = 0, 1
    begin = np.array([0, len(order), len(order) + 1], "u4")
    return changed(plan, units=units, core_begin=begin, cores=2)


MUTATORS = [
    drop, double, shift_source, shift_target, other_source, other_target, other_buffer, swap_operands, fewer_bytes,
    more_bytes, other_operator, no_reduction, other_dtype, fewer_sources, fewer_targets, other_unit_s_table, wrong_done,
    lose_wait, lose_post, other_flag, swap_units, flip_partial, other_total, spread,
]  # fmt: skip
