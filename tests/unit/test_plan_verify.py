"""The verifier catches every mutant of a right plan that changes what it does, and says where."""

import dataclasses

import numpy as np
import plan_cases as cases
import pytest
from plan_mutants import _operand, changed, double, drop

import strata
import strata.plan.frontends as frontends
from strata.plan import PlanError, Spec, algorithms, verify
from strata.plan.cost import HOST, Cost
from strata.plan.frontends._common import pulls
from strata.plan.records import ACCUMULATE, OUT
from strata.plan.spec import REDUCTIONS, ROOTED, normal
from strata.plan.topology import HOST as HOST_TOPOLOGY

FINE = Cost(HOST.alpha_us, HOST.gbps, (4096,) * 4)  # small units: many of them


def message(plans) -> str:
    with pytest.raises(PlanError) as raised:
        verify(plans)
    return str(raised.value)


def test_messages_name_die_core_unit_and_bytes():
    spec = cases.spec("all_gather", 4096, 3, itemsize=1)
    right = cases.plans(spec)
    lost = message([right[0], drop(right[1], 0, None), right[2]])
    assert "member 1 OUT bytes [8192, 12288) should be byte 0 of SRC of member 2" in lost
    assert "no unit writes it" in lost
    twice = message([right[0], double(right[1], 0, None), right[2]])
    assert "die 1 core 0 unit" in twice and "member 1 OUT bytes [8192, 12288)" in twice
    wrong = message([right[0], _operand(right[1], 0, member=0), right[2]])
    assert "member 1 OUT bytes [8192, 12288) should be byte 0 of SRC of member 2" in wrong
    assert "byte 0 of SRC of member 0; last written by die 1 core 0 unit 0" in wrong
    far = message([right[0], _operand(right[1], 0, offset=1), right[2]])
    assert "reads beyond 4096 bytes: member 2 SRC bytes [1, 4097)" in far
    sums = cases.plans(cases.spec("all_reduce", 3000, 3))
    order = sums[0].operands.copy()
    order[[0, 1]] = order[[1, 0]]
    assert "not in rank order" in message([changed(sums[0], operands=order), *sums[1:]])


def test_a_race_in_place_is_seen(monkeypatch):
    """Everyone reducing everything for itself is right only if nobody works in place."""

    def selfish(spec, rank):
        return pulls(np.arange(spec.nranks), spec.part, op=spec.redop)

    monkeypatch.setitem(frontends.FULL_MESH, "all_reduce", selfish)
    spec = cases.spec("all_reduce", 3000, 3)
    verify(cases.plans(spec))
    said = message(cases.plans(spec, in_place=0b010))
    assert "die 1 core 0 unit 0 writes what die 0 core 0 unit 0 reads at the same time: member 1 OUT" in said


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
        "has flags": {"flags": 1},
        "rows that go with": {"row": 4},
        "go with another kind": {"index": 1},
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


EVERY = [
    (name, operation)
    for name in algorithms.names()
    for operation in sorted(algorithms.find(name).operations)
    if not algorithms.is_users(name)
]


@pytest.mark.parametrize("name, operation", EVERY)
def test_every_algorithm_is_proved(name, operation):
    """At 2 to 64 members, over dtypes, odd sizes, roots, places, cores and both partitions."""
    chance = np.random.default_rng(EVERY.index((name, operation)))
    for n in (2, 3, 4, 6, 7, 9, 16, 33, 64):
        for count in (0, 1, n - 1, 3 * n + 1, 700 if n < 10 else n):
            given = case(operation, count, n, chance)
            if algorithms.find(name).refusal(given, HOST_TOPOLOGY) is not None:
                continue
            verify(cases.plans(
                given, int(chance.integers(1 << n, dtype=np.uint64)) if n < 64 else 5, cores=int(chance.integers(1, 6)),
                policy=str(chance.choice(["balanced", "naive"])), cost=FINE, algorithm=name,
            ))  # fmt: skip


def case(operation, count, n, chance):
    """A random spec of that many elements."""
    more = {"root": int(chance.integers(n))} if operation in ROOTED else {}
    if operation in REDUCTIONS:
        more["redop"] = int(chance.choice([1, 2, 3, 4, 5]))
    dtype = str(chance.choice(["i8", "bf16", "f32", "i64", "c128" if more.get("redop", 1) in (1, 2, 5) else "u16"]))
    return normal(cases.spec(operation, count, n, dtype, **more))


@pytest.mark.parametrize("name, operation", [("ring", "all_gather"), ("rhd", "all_gather"),
                                             ("binomial", "reduce"),
                                             ("hierarchical", "broadcast")])  # fmt: skip
def test_512_dies_are_proved(name, operation):
    proved = verify(cases.plans(cases.spec(operation, 2048, 512, "bf16"), algorithm=name))
    assert proved["bytes"] > 2048


def test_a_deadlock_is_told_round():
    plans = cases.plans(cases.spec("all_gather", 1000, 3), algorithm="ring")
    units = plans[1].units.copy()
    waits = np.flatnonzero(units["wait_flag"] >= 0)
    units["wait_flag"][waits[0]] = units["post_flag"].max() + 1
    said = message([plans[0], changed(plans[1], units=units), plans[2]])
    assert said.startswith("deadlock: ") and "which nobody posts" in said and "die 1 core 0 unit" in said


def test_a_lost_wait_is_a_race():
    plans = cases.plans(cases.spec("all_reduce", 1000, 3, "bf16"), algorithm="ring")
    units = plans[2].units.copy()
    at = np.flatnonzero(units["wait_flag"] >= 0)[-1]
    units["wait_flag"][at] = units["wait_peer"][at] = -1
    said = message([*plans[:2], changed(plans[2], units=units)])
    assert "at the same time" in said or "nobody has written" in said
    assert f"die 2 core 0 unit {at}" in said or "die 2" in said


def test_members_that_add_up_in_other_orders_are_told():
    plans = cases.plans(cases.spec("all_reduce", 3000, 3), algorithm="full_mesh")
    order = plans[1].operands.copy()
    order[[0, 1]] = order[[1, 0]]
    other = [dataclasses.replace(p, algorithm="another") for p in plans]
    verify(other)
    mailbox = cases.plans(cases.spec("all_reduce", 100, 3, mode="mailbox"))
    mailbox = [dataclasses.replace(p, algorithm="another") for p in mailbox]
    order = mailbox[1].operands.copy()
    order[[0, 1]] = order[[1, 0]]
    assert "not the same bits" in message([mailbox[0], changed(mailbox[1], operands=order), mailbox[2]])


def taught(monkeypatch, operation, body, scratch=None):
    """A user's algorithm, forgotten after the test."""
    monkeypatch.setattr(algorithms, "_ALL", dict(algorithms._ALL))
    strata.algorithm(operation, name="taught", scratch=scratch)(body)


@pytest.mark.parametrize("dtype, alike", [("f32", False), ("bf16", False), ("i32", True)])
def test_sums_in_free_order_at_several_places_are_not_the_same_bits(monkeypatch, dtype, alike):
    def everywhere(op, rank):
        yield op.pull(rank, op.nbytes, post=0)
        for m in range(op.ranks):
            if m != rank:
                yield op.push(m, op.nbytes, src=op.src(), atomic=True, wait=(m, 0), step=1)

    taught(monkeypatch, "all_reduce", everywhere)
    plans = cases.plans(cases.spec("all_reduce", 64, 4, dtype), algorithm="taught")
    if alike:
        verify(plans)
    else:
        assert "members 0 and 1 reduce in different orders" in message(plans)


def test_sums_over_their_own_narrower_operands_are_seen(monkeypatch):
    def widen(op, rank):
        mine, rest = op.src(rank * op.nbytes), range(1, op.ranks)
        yield op.pull(rank, op.nbytes, src=mine, dst=op.scratch(), post=0)
        yield op.sync(wait=(rank, 0), step=1)
        yield op.reduce([(rank, op.scratch()), ((rank + 1) % op.ranks, mine)], op.nbytes,
                        dst=op.scratch(partial=True), post=1, step=2)  # fmt: skip
        yield op.sync(wait=(rank, 1), step=3)
        others = [((rank + i) % op.ranks, mine) for i in rest[1:]]
        yield op.reduce([(rank, op.scratch(partial=True)), *others], op.nbytes, step=4)

    taught(monkeypatch, "reduce_scatter", widen, lambda op, rank: op.count * op.partial_itemsize)
    said = message(cases.plans(cases.spec("reduce_scatter", 5000, 3, "bf16"), algorithm="taught"))
    assert "writes over a part of what it reads: member 0 SCRATCH" in said
    verify(cases.plans(cases.spec("reduce_scatter", 5000, 3, "f32"), algorithm="taught"))


def test_additions_to_unaligned_elements_are_seen():
    plans = cases.plans(cases.spec("reduce", 100, 3, "i32"), algorithm="atomic")
    adds = plans[1].units["kind"] == ACCUMULATE
    operands = plans[1].operands.copy()
    operands["offset"][plans[1].units["dst_first"][adds]] += 1
    units = plans[1].units.copy()
    units["bytes"][adds] -= 4
    said = message([plans[0], changed(plans[1], operands=operands, units=units), plans[2]])
    assert "adds to elements that are not aligned: member 0 OUT" in said
