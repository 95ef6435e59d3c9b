"""A thousand spoilt plans: the verifier catches each, or its result cannot be told from the right one's."""

import dataclasses
import os

import numpy as np
import plan_cases as cases
import pytest
from plan_mutants import MUTATORS
from test_plan_reference import memory

from strata.exec import reference
from strata.plan import PlanError, algorithms, verify
from strata.plan.cost import HOST
from strata.plan.operations import sizes
from strata.plan.spec import OPERATIONS, REDUCTIONS, ROOTED, normal
from strata.plan.topology import HOST as ONE_HOST

SEED = int(os.environ.get("MUTANTS_SEED", "20"))
MUTANTS = 1000
FINE = dataclasses.replace(HOST, unit_bytes=(512,) * 4)  # several units of each slice


def subjects(chance):
    """Random right plans: algorithm, operation, members, dtype, in place or not, cores."""
    names = [a for a in algorithms.names() if not algorithms.is_users(a)]
    while True:
        name = str(chance.choice(names))
        operation = str(chance.choice(OPERATIONS))
        n = int(chance.integers(2, 6))
        dtype = str(chance.choice(["i32", "bf16", "i64", "f32"]))
        more = {"root": int(chance.integers(n))} if operation in ROOTED else {}
        if operation in REDUCTIONS:
            more["redop"] = int(chance.choice([1, 1, 5, 4]))
        if name == "full_mesh" and operation != "all_to_all_v":
            more["mode"] = str(chance.choice(["zero_copy", "mailbox"]))
        spec = normal(cases.spec(operation, int(chance.integers(1, 700)), n, dtype, **more))
        found = algorithms.find(name)
        if operation not in found.operations or found.refusal(spec, ONE_HOST) is not None:
            continue
        cores = int(chance.integers(1, 4))
        plans = cases.plans(spec, int(chance.integers(1 << n)), cores=cores, cost=FINE, algorithm=name)
        if sum(len(plan.units) for plan in plans):
            yield plans


def outcome(plans, seed):
    """Bytes of every OUT, and SRC, after a run in random order; from data that tells places apart."""
    src = [_data(np.random.default_rng(p.rank), p.spec, sizes(p.spec, p.rank)[0]) for p in plans]
    members = [
        b._replace(scratch=np.random.default_rng(seed + p.rank).integers(0, 256, p.scratch, np.uint8))
        for b, p in zip(memory(plans[0].spec, plans, src), plans, strict=True)
    ]
    reference.run(plans, members, seed)
    return [bytes(b.out) for b in members], [bytes(b.src) for b in members]


def _data(chance, spec, nbytes):
    """Small whole numbers, or any bytes where nothing is reduced."""
    if spec.operation not in REDUCTIONS:
        return chance.integers(0, 256, nbytes, np.uint8)
    dtype = reference.numpy_dtype(spec.dtype)
    return chance.integers(-50, 50, nbytes // dtype.itemsize).astype(dtype).view(np.uint8)


def test_a_thousand_mutants_are_caught_or_harmless():
    chance = np.random.default_rng(SEED)
    made = caught = 0
    found = subjects(chance)
    counts = dict.fromkeys((m.__name__ for m in MUTATORS), 0)
    while made < MUTANTS:
        right = next(found)
        verify(right)
        good = outcome(right, 1)
        busy = [m for m, plan in enumerate(right) if len(plan.units)]
        for _ in range(8):
            mutate = MUTATORS[int(chance.integers(len(MUTATORS)))]
            m = int(chance.choice(busy))
            try:
                mutant = mutate(right[m], int(chance.integers(len(right[m].units))), chance)
            except (IndexError, ValueError, OverflowError):  # no operands to spoil: a sync unit
                continue
            if mutant is None or mutant.hash() == right[m].hash():
                continue
            made += 1
            counts[mutate.__name__] += 1
            plans = [*right[:m], mutant, *right[m + 1 :]]
            try:
                verify(plans)
            except PlanError:
                caught += 1
                continue
            for seed in range(12):
                what = f"seed {SEED}, mutant {made}: {mutate.__name__} of {right[m]!r}"
                assert outcome(plans, seed) == good, f"the verifier passes a wrong plan: {what}"
    assert caught > 0.8 * made, f"{caught} of {made}"
    assert min(counts.values()) >= 1, counts


def test_mutants_really_are_wrong():
    """On data, too: what the mutators make is not merely another right plan."""
    chance = np.random.default_rng(3)
    right = cases.plans(cases.spec("all_to_all", 500, 4, "i32"), cost=FINE)
    good = outcome(right, 1)
    for mutate in MUTATORS[:1] + MUTATORS[2:6] + MUTATORS[8:9]:
        wrong = [right[0], mutate(right[1], 2, chance), *right[2:]]
        assert outcome(wrong, 1) != good, mutate.__name__
        with pytest.raises(PlanError):
            verify(wrong)
