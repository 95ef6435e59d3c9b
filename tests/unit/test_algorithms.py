"""Algorithms of several steps, run by the reference executor, give what numpy says."""

import random
import zlib

import numpy as np
import plan_cases as cases
import pytest
from test_plan_reference import expected, memory, sources

from strata.errors import InvalidArgument
from strata.exec import reference
from strata.machine import load
from strata.plan import algorithms, build, operations
from strata.plan.algorithms import trees
from strata.plan.algorithms.hierarchical import nested
from strata.plan.cost import HOST, Cost
from strata.plan.records import ATOMIC, NONE, OP_NAMES, SCRATCH
from strata.plan.spec import REDUCTIONS, ROOTED, normal
from strata.plan.topology import Topology

CM384 = load("cm384").place

ALL = [name for name in algorithms.names() if name != "full_mesh"]
AVG = OP_NAMES.index("avg")


def play(spec, name, topology, in_place, cores, seed, unit=1 << 19):
    """Runs all members' plans, scratch full of garbage, and compares."""
    spec = normal(spec)
    cost = Cost(HOST.alpha_us, HOST.gbps, (unit,) * 4)
    plans = cases.plans(spec, in_place, cores, algorithm=name, topology=topology, cost=cost)
    chance = np.random.default_rng(seed)
    src = sources(spec)
    buffers = [
        b._replace(scratch=chance.integers(0, 256, plan.scratch, np.uint8))
        for b, plan in zip(memory(spec, plans, src), plans, strict=True)
    ]
    before = [b.src.copy() for b in buffers]
    reference.run(plans, buffers, seed)
    for m, want in enumerate(expected(spec, src)):
        where = f"member {m}, {name}, {spec}, {topology}, in place {in_place:b}, {cores} cores, seed {seed}"
        assert buffers[m].out.tobytes() == want.tobytes(), where
        if operations.own_place(plans[m].spec, m) is None:
            assert np.array_equal(buffers[m].src, before[m]), f"source changed: {where}"
    return plans


def specs(name, operation, n, chance):
    for count in {0, 1, n - 1, 333}:
        root = chance.randrange(n) if operation in ROOTED else 0
        if operation in REDUCTIONS:
            kinds = [("f32", "sum"), ("i8", "max"), ("c128", "sum")]
            if name != "atomic":
                kinds += [("bf16", "avg"), ("i32", "avg"), ("f16", "min")]
            dtype, redop = chance.choice(kinds)
            yield cases.spec(operation, count, n, dtype, root=root, redop=OP_NAMES.index(redop))
        else:
            yield cases.spec(operation, count, n, itemsize=chance.choice([1, 3, 4, 16]), root=root)


@pytest.mark.parametrize("name", ALL)
def test_every_algorithm_gives_what_numpy_gives(name):
    chance = random.Random(zlib.crc32(name.encode()))
    found = algorithms.find(name)
    places = [Topology(2, 4), Topology(1, 3), Topology(3, 3)] if name == "hierarchical" else [Topology(2, 16)]
    ran = set()
    for operation in sorted(found.operations):
        for n in (1, 2, 3, 4, 5, 7, 8, 9):
            for spec in specs(name, operation, n, chance):
                topology = chance.choice(places)
                if found.refusal(normal(spec), topology) is None:
                    unit = chance.choice([64, 512, 1 << 19])
                    in_place = chance.randrange(1 << n)
                    play(spec, name, topology, in_place, chance.randint(1, 4), chance.randrange(1 << 20), unit)
                    ran.add((operation, n > 1))
    assert {o for o, many in ran if many} == found.operations


@pytest.mark.parametrize("name", ["rhd", "pat", "ring", "hierarchical"])
def test_means_of_small_floats_are_rounded_once(name):
    n, count = 8, 500
    values = [np.random.default_rng(m).normal(size=count * n).astype(np.float32) for m in range(n)]
    spec = normal(cases.spec("reduce_scatter", count, n, "bf16", redop=AVG))
    kind = reference.numpy_dtype(spec.dtype)
    src = [v.astype(kind) for v in values]
    plans = cases.plans(spec, algorithm=name, topology=Topology(2, 4), cores=2)
    buffers = [b._replace(scratch=np.zeros(p.scratch, np.uint8))
               for b, p in zip(memory(spec, plans, src), plans, strict=True)]  # fmt: skip
    reference.run(plans, buffers, 3)
    exact = np.mean([s.astype(np.float64) for s in src], axis=0).reshape(n, -1)
    found = np.array([b.out.view(kind).astype(np.float64) for b in buffers])
    half = 2.0 ** (np.floor(np.log2(np.abs(exact) + 1e-9)) - 8)  # of the last of 8 bits
    assert (np.abs(found - exact) <= half + 1e-6).all()


@pytest.mark.parametrize("name", ALL)
def test_members_wait_only_for_flags_that_are_posted_and_stay_within_them(name):
    found = algorithms.find(name)
    for operation in sorted(found.operations):
        for n, count in ((64, 3), (64, 1 << 21), (5, 17)):
            topology = Topology(2, 16 if n > 16 else 4)
            spec = normal(cases.spec(operation, count, n, "f32")) if operation != "all_to_all_v" else None
            if spec is None or found.refusal(spec, topology):
                continue
            lists = [found.slices(spec, m, topology) for m in range(n)]
            posts = [set(s["post_flag"].tolist()) for s in lists]
            for m, slices in enumerate(lists):
                assert max(posts[m], default=0) < trees.FLAGS
                for peer, flag in {(s["wait_peer"], s["wait_flag"]) for s in slices[slices["wait_flag"] != NONE]}:
                    assert flag in posts[peer], f"{name} {operation}: member {m} waits for {peer}.{flag}"


def test_logarithmic_steps_and_what_crosses():
    assert nested(32, 2, 16).last == 2
    for n in (2, 5, 16, 17, 64):
        spec = normal(cases.spec("all_gather", 100, n))
        for name in ("pat", "bruck", "rhd"):
            steps = len(np.unique(algorithms.find(name).slices(spec, n // 2, CM384)["step"]))
            assert steps <= (n - 1).bit_length() + 2 * (name == "rhd"), name
    spec = normal(cases.spec("all_gather", 100, 32))
    for m in range(32):
        slices = algorithms.find("hierarchical").slices(spec, m, CM384)
        assert (slices["peer"] // 16 != m // 16).sum() == 1  # of 16 blocks in the other node


def test_staged_bytes_are_as_the_baseline_has_them():
    n, size = 4, 1000
    for algorithm, want in (("staged", (1 + n) * size), ("ring", 0), ("full_mesh", 0)):
        plan = build(cases.spec("all_gather", size, n, itemsize=1), 1, 2, algorithm=algorithm)
        assert plan.staged_bytes == want


def test_what_atomics_cannot_do_is_refused():
    for dtype, op in (("f32", "avg"), ("c128", "prod")):
        with pytest.raises(InvalidArgument, match="atomic"):
            build(cases.spec("all_reduce", 9, 2, dtype, redop=OP_NAMES.index(op)), 0, algorithm="atomic")
    plan = build(cases.spec("all_reduce", 900, 3), 0, algorithm="atomic")
    assert ((plan.slices["flags"] & ATOMIC) != 0).sum() == 2
    with pytest.raises(InvalidArgument, match="one level"):
        build(cases.spec("all_reduce", 9, 2), 0, algorithm="hierarchical", topology=Topology(2, 4))
    with pytest.raises(InvalidArgument, match="flags"):
        build(cases.spec("all_gather", 1, 2000, itemsize=1), 0, algorithm="ring")


def test_long_rings_are_pipelined():
    spec = normal(cases.spec("broadcast", 16 << 20, 4, itemsize=1))
    ring = algorithms.find("ring")
    assert len(ring.slices(spec, 2, CM384)) == 64
    assert ring.depth(spec, CM384) == 2 + 63  # the first edge waits for nobody
    small = normal(cases.spec("broadcast", 100, 4, itemsize=1))
    assert len(ring.slices(small, 2, CM384)) == 1


def test_zerocopy_ring_needs_no_scratch_where_sums_fit_in_out():
    for dtype, needs in (("f32", False), ("bf16", True)):
        plan = build(cases.spec("all_reduce", 4000, 4, dtype), 0, algorithm="zerocopy_ring")
        assert bool(plan.scratch) == needs == bool((plan.slices["dst_buf"] == SCRATCH).any())


@pytest.mark.parametrize("name", [n for n in ("full_mesh", *ALL) if n != "atomic"])
@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "reduce"])
def test_small_floats_round_once_whatever_the_algorithm(name, operation):
    """The error of a sum of bf16 is one rounding, however many steps it takes."""
    found = algorithms.find(name)
    n, count = 8, 257
    spec = normal(cases.spec(operation, count, n, "bf16"))
    if operation not in found.operations:
        pytest.skip(f"{name} does not do {operation}")
    plans = cases.plans(spec, algorithm=name)
    dtype = reference.numpy_dtype(spec.dtype)
    whole = count * n if operation == "reduce_scatter" else count
    src = np.random.default_rng(7).uniform(0.5, 2, (n, whole)).astype(dtype)
    members = [
        reference.buffers(src[m].copy(), np.zeros(operations.sizes(spec, m)[1], np.uint8), plan.scratch)
        for m, plan in enumerate(plans)
    ]
    reference.run(plans, members)
    exact = src.astype("f8").sum(axis=0)
    out = members[0].out.view(dtype).astype("f8")
    error = np.abs(out - exact[: len(out)]) / exact[: len(out)]
    assert error.max() <= 2**-8 + n * 2**-23  # of 8 significant bits
