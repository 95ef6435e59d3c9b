"""Plans of all members at once: the very plans that are built one by one."""

import copy
import itertools
import os
import pickle
import threading

import numpy as np
import plan_cases as cases
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata._core import scheduling
from strata.errors import InvalidArgument
from strata.machine import load
from strata.plan import Spec, algorithms, build, build_all, user, verify
from strata.plan.cost import HOST, Cost
from strata.plan.frontends import frontend, frontends
from strata.plan.plan import ARRAYS
from strata.plan.records import OP_NAMES, OPERAND_DTYPE, UNIT_DTYPE
from strata.plan.schedule import POLICIES, schedule_all
from strata.plan.spec import MODES, OPERATIONS, REDUCTIONS, ROOTED, normal
from strata.plan.topology import HOST as ONE_NODE
from strata.plan.topology import Topology

SUPERNODE, CM384 = load("cm384").place, load("cm384").cost
FINE = Cost((0.1, 0.2, 0.7, 2.1), (33.0, 8.75, 7.1, 6.25), (1 << 14, 1 << 15, 1 << 14, 1 << 13), (3, 2, 2, 1))
MACHINES = ((HOST, ONE_NODE), (CM384, SUPERNODE), (FINE, Topology(2, 4)))
DTYPES = ("i8", "bf16", "f32", "i64", "c128")
REDOPS = [OP_NAMES.index(name) for name in ("sum", "max", "avg")]


def asked(chance, operation: str, nranks: int, count: int) -> Spec | None:
    """A spec of that size, else by chance; None if there is no such thing."""
    more = {"mode": chance.choice(MODES), "in_place": bool(chance.integers(2))}
    if operation in ROOTED:
        more["root"] = int(chance.integers(nranks))
    if operation in REDUCTIONS:
        more["redop"] = int(chance.choice(REDOPS))
    try:
        return normal(cases.spec(operation, count, nranks, str(chance.choice(DTYPES)), **more))
    except InvalidArgument:
        return None


def options(chance) -> dict:
    cost, topology = MACHINES[int(chance.integers(len(MACHINES)))]
    return {"policy": str(chance.choice(POLICIES)), "cost": cost, "topology": topology,
            "path": chance.choice([None, "mte", "sdma"]), "local_first": bool(chance.integers(2))}  # fmt: skip


def same(spec: Spec, cores: int, ranks=None, looked_at=None, **more) -> int:
    """Compares plans (``looked_at``: some of them), and says how many."""
    made = build_all(spec, cores, ranks=ranks, **more)
    members = list(range(spec.nranks) if ranks is None else ranks)
    assert [plan.rank for plan in made] == members
    for place in range(len(made)) if looked_at is None else sorted(set(looked_at)):
        plan, one = made[place], build(spec, members[place], cores, **more)
        assert plan.hash() == one.hash(), (spec, members[place], cores, more)
        assert plan.check() is plan
    return len(made)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_same_plans_as_one_by_one(operation):
    """All algorithms, 1 to 17 members, sizes that are not whole lines, shares or units; the rest by a fixed seed."""
    chance, compared, used = np.random.default_rng(OPERATIONS.index(operation)), 0, set()
    for nranks, count in itertools.product(range(1, 18), (0, 1, 7, 1000, 65537)):
        spec = asked(chance, operation, nranks, count)
        more = options(chance)
        for algorithm in algorithms.available(spec, more["topology"]) if spec else ():
            if algorithms.is_users(algorithm.name):
                continue  # of another test; how many there are must not move the seed's draws
            if chance.random() < 0.5:
                cores, some = int(chance.choice([1, 2, 3, 7, 48])), chance.integers(nranks, size=3).tolist()
                compared += same(spec, cores, looked_at=some, algorithm=algorithm.name, **more)
                used.add(algorithm.name)
    known = algorithms.available(cases.spec(operation, 7, 8), Topology(2, 4))
    everywhere = {a.name for a in known if not algorithms.is_users(a.name)}
    assert compared > 100 and used >= everywhere


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_same_plans_of_64(operation):
    """Some members of 64, on four nodes."""
    chance = np.random.default_rng(1000 + OPERATIONS.index(operation))
    for count in (33, 5000):
        spec = cases.spec(operation, count, 64, root=17 if operation in ROOTED else 0)
        for algorithm in algorithms.available(spec, SUPERNODE):
            ranks = [17, *chance.choice(64, 4, replace=False).tolist()]
            same(spec, 48, ranks, algorithm=algorithm.name, cost=CM384, topology=SUPERNODE)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("in_place", [False, True])
def test_the_same_plans_of_512(policy, in_place):
    """Hundreds of peers alike, which are cut and dealt as one."""
    for operation in ("all_gather", "reduce_scatter"):
        spec = cases.spec(operation, 1 << 20, 512, in_place=in_place)
        same(spec, 48, [0, 1, 15, 16, 300, 511], policy=policy, cost=CM384, topology=SUPERNODE)


@given(st.data())
def test_frontends_say_the_same_of_many_as_of_one(data):
    nranks = data.draw(st.integers(1, 20))
    operation = data.draw(st.sampled_from(OPERATIONS))
    chance = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    spec = asked(chance, operation, nranks, data.draw(st.sampled_from([0, 1, 3, 100, 12345])))
    if spec is None:
        return
    ranks = chance.integers(nranks, size=data.draw(st.integers(1, 30)))
    for rank, found in zip(ranks.tolist(), frontends(spec, ranks), strict=True):
        expected = frontend(spec, rank)
        assert found.dtype == expected.dtype and found.tobytes() == expected.tobytes() and found.flags.c_contiguous


def test_members_are_named_in_any_order():
    spec = cases.spec("all_to_all", 1000, 6)
    assert same(spec, 3, [5, 0, 5, 2]) == 4
    assert same(spec, 3, np.array([1, 4])) == 2
    assert same(spec, 3, range(2, 6)) == 4
    assert build_all(spec, 3, ranks=[]) == []


def test_they_prove_and_are_plans_of_their_own():
    plans = build_all(cases.spec("all_reduce", 5000, 5), 3)
    verify(plans)
    hashes = [plan.hash() for plan in plans]
    for plan in plans:
        for name in ARRAYS:
            array = getattr(plan, name)
            assert array.flags.c_contiguous and array.flags.aligned and not array.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
    apart = [copy.deepcopy(plans[2]), pickle.loads(pickle.dumps(plans[2]))]
    assert [plan.hash() for plan in apart] == [hashes[2]] * 2
    assert not any(np.shares_memory(getattr(plan, n), getattr(plans[2], n)) for plan in apart for n in ARRAYS)
    del plans[:2]
    assert [plan.hash() for plan in plans] == hashes[2:]


def test_an_algorithm_of_the_users_is_asked_member_by_member(monkeypatch):
    monkeypatch.setattr(algorithms, "_ALL", dict(algorithms._ALL))
    calls = []

    @user.algorithm("all_gather", name="in turn")
    def in_turn(op, rank):
        calls.append(rank)
        for away in range(op.in_place, op.ranks):
            peer = (rank + away) % op.ranks
            yield op.pull(peer, op.nbytes, dst=peer * op.nbytes)

    spec = cases.spec("all_gather", 1000, 5)
    plans = build_all(spec, 2, algorithm="in turn")
    assert calls == [0, 1, 2, 3, 4] and [plan.algorithm for plan in plans] == ["in turn"] * 5
    assert same(spec, 2, algorithm="in turn") == 5


def of_all(spec: Spec, slices) -> list:
    """The units of all members."""
    ranks = np.arange(spec.nranks)
    tiers = [SUPERNODE.seen(rank, spec.nranks) for rank in ranks.tolist()]
    return schedule_all(slices, spec, ranks, 7, policy="balanced", cost=CM384, tiers=tiers, local_first=False)


@pytest.fixture
def cpus(monkeypatch):
    """Sets the number of CPUs, and counts the threads that are started."""
    started = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (started.append(thread), start(thread)))

    def number(n: int) -> list:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(n)))
        started.clear()
        return started

    return number


def test_threads_change_nothing(cpus):
    spec = normal(cases.spec("all_to_all_v", 1000, 300))
    slices = frontends(spec, np.arange(spec.nranks))
    threads = cpus(1)
    alone = of_all(spec, slices)
    assert not threads
    threads = cpus(16)
    together = of_all(spec, slices)
    assert len(threads) == 3 and not any(thread.is_alive() for thread in threads)
    for one, other in zip(alone, together, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_of_several_threads_errors_the_first_members_is_raised(cpus):
    spec = normal(cases.spec("all_gather", 1000, 200))
    slices = [made.copy() for made in frontends(spec, np.arange(spec.nranks))]
    cpus(3)
    slices[190]["kind"] = 9
    with pytest.raises(InvalidArgument, match="slice 0 is neither"):
        of_all(spec, slices)
    slices[120]["step"][5] = 1
    with pytest.raises(InvalidArgument, match="slice 6 has a lower step"):
        of_all(spec, slices)
    with pytest.raises(ValueError, match="199 arrays of slices"):
        scheduling.schedule_all(
            slices[1:], [SUPERNODE.seen(0, 200)] * 200, CM384.alpha_ps, CM384.ps_per_byte, CM384.units, CM384.caps,
            UNIT_DTYPE, OPERAND_DTYPE, ranks=list(range(200)), cores=1, balanced=True, local_first=False, dtype=0,
            itemsize=1,
        )  # fmt: skip


def test_what_does_not_exist_is_refused_as_by_build():
    spec = cases.spec("all_gather", 1000, 4)
    wrong = [
        ({"ranks": [0, 4]}, "rank is 4 of 4"),
        ({"ranks": [-1]}, "rank is -1"),
        ({"cores": 0}, "cores is 0"),
        ({"policy": "even"}, "policy is 'even'"),
        ({"path": "usb"}, "path 'usb'"),
        ({"algorithm": "binomial"}, "not available for all_gather"),
    ]
    for more, what in wrong:
        with pytest.raises(InvalidArgument, match=what):
            build_all(spec, **more)
    with pytest.raises(InvalidArgument, match="unknown operation"):
        build_all(spec._replace(operation="gossip"))
