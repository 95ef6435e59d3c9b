"""Plans run by the reference executor give what numpy says, and its arithmetic what api.md says."""

import numpy as np
import plan_cases as cases
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata._core import kernels
from strata.errors import UnsupportedType
from strata.exec import reference
from strata.plan import OPERATIONS, PlanError, Spec, build, operations, verify
from strata.plan.cost import HOST, Cost
from strata.plan.records import DTYPE_NAMES, OP_NAMES
from strata.plan.spec import REDUCTIONS, ROOTED, normal

FILL = 0xA5  # what OUT holds beforehand


def sources(spec: Spec) -> list[np.ndarray]:
    """What each member gives: bytes that depend on their position and on the member."""
    made = []
    for m in range(spec.nranks):
        size = operations.sizes(spec, m)[0]
        if spec.operation in REDUCTIONS:
            values = (np.arange(size // spec.itemsize) * 7 + m * 3) % 23 - 5
            made.append(values.astype(reference.numpy_dtype(spec.dtype)))
        else:
            place = np.arange(size, dtype=np.uint64) * np.uint64(2654435761) >> np.uint64(7)
            made.append((place + np.uint64(m * 101)).astype(np.uint8))
    return made


def expected(spec: Spec, src: list[np.ndarray]) -> list[np.ndarray]:
    """What each member must have, by whole-array numpy."""
    n, nothing = spec.nranks, np.zeros(0, np.uint8)
    name, root = spec.operation, spec.root
    if name in REDUCTIONS:
        total = src[0] if n == 1 else reference.reduce(src, OP_NAMES[spec.redop])
        if name == "reduce_scatter":
            return list(total.reshape(n, -1))
        return [total if name == "all_reduce" or m == root else nothing for m in range(n)]
    if name in ("all_gather", "gather"):
        whole = np.concatenate(src)
        return [whole if name == "all_gather" or m == root else nothing for m in range(n)]
    if name == "broadcast":
        return [src[root]] * n
    if name == "scatter":
        return np.split(src[root], n)
    if name == "all_to_all":
        parts = [np.split(s, n) for s in src]
    elif name == "all_to_all_v":
        ends = spec.counts.cumsum(axis=1)[:, :-1] * spec.itemsize
        parts = [np.split(s, e) for s, e in zip(src, ends, strict=True)]
    else:  # barrier
        return [nothing] * n
    return [np.concatenate([parts[i][j] for i in range(n)]) for j in range(n)]


def memory(spec: Spec, plans, src: list[np.ndarray]) -> list[reference.Buffers]:
    """Buffers with the sources in place, sharing memory where a member works in place."""
    made = []
    for m, plan in enumerate(plans):
        need, out_size = operations.sizes(plan.spec, m)
        place = operations.own_place(plan.spec, m)
        if place is None:
            source, out = np.zeros(need, np.uint8), np.full(out_size, FILL, np.uint8)
        else:
            line = np.full(max(need + max(place, 0), out_size + max(-place, 0)), FILL, np.uint8)
            source = line[max(place, 0) :][:need]
            out = line[max(-place, 0) :][:out_size]
        source[:] = src[m].reshape(-1).view(np.uint8)
        if plan.spec.mode == "mailbox":
            source = source.copy()  # into the mailbox, before anything moves
        made.append(reference.Buffers(source, out, np.zeros(0, np.uint8)))
    return made


def run_and_compare(spec: Spec, in_place: int = 0, cores: int = 1, seed: int | None = None, **options):
    spec = normal(spec)
    plans = cases.plans(spec, in_place, cores, **options)
    verify(plans)
    src = sources(spec)
    want = expected(spec, src)
    buffers = memory(spec, plans, src)
    before = [b.src.copy() for b in buffers]
    assert reference.run(plans, buffers, seed) == sum(len(p.units) for p in plans)
    for m, buffer in enumerate(buffers):
        assert buffer.out.tobytes() == want[m].tobytes(), f"member {m} of {spec}"
        if operations.own_place(plans[m].spec, m) is None or spec.mode == "mailbox":
            assert np.array_equal(buffer.src, before[m]), f"source of member {m} of {spec} changed"


@pytest.mark.parametrize("nranks", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_gives_what_numpy_gives(operation, nranks):
    for count in (0, 1, nranks + 1, 1003):
        for spec in cases.every_operation(nranks, count, itemsizes=(1, 3, 4)):
            if spec.operation == operation:
                run_and_compare(spec)
                run_and_compare(spec, in_place=0b1101_1011, cores=2, seed=count)


@given(st.data())
def test_no_order_of_cores_and_dies_is_seen(data):
    nranks = data.draw(st.integers(1, 6))
    operation = data.draw(st.sampled_from(OPERATIONS))
    dtype = data.draw(st.sampled_from(["bool", "u8", "i32", "bf16", "f16", "f8e4m3fn", "f64", "c64"]))
    root = data.draw(st.integers(0, nranks - 1)) if operation in ROOTED else 0
    spec = cases.spec(operation, data.draw(st.integers(0, 3000)), nranks, dtype, root=root)
    if operation in REDUCTIONS:
        op = data.draw(st.sampled_from(["sum", "prod"] if dtype in ("bool", "c64") else ["sum", "avg", "max"]))
        spec = spec._replace(redop=OP_NAMES.index(op))
    unit = data.draw(st.sampled_from([64, 256, 1024, 1 << 19]))
    run_and_compare(
        spec._replace(mode=data.draw(st.sampled_from(["zero_copy", "mailbox"]))),
        in_place=data.draw(st.integers(0, (1 << nranks) - 1)),
        cores=data.draw(st.integers(1, 4)),
        seed=data.draw(st.integers(0, 1 << 30)),
        policy=data.draw(st.sampled_from(["balanced", "naive"])),
        cost=Cost(HOST.alpha_us, HOST.gbps, (unit,) * 4),
    )


def test_bits_do_not_depend_on_cores_units_or_mode():
    chance = np.random.default_rng(11)
    for dtype in ("f16", "f32", "bf16"):
        spec = normal(cases.spec("all_reduce", 5000, 5, dtype))
        src = [chance.normal(size=5000).astype(reference.numpy_dtype(spec.dtype)) for _ in range(5)]
        seen = set()
        for mode in ("zero_copy", "mailbox"):
            for cores, unit in ((1, 1 << 19), (3, 64), (2, 1000)):
                cost = Cost(HOST.alpha_us, HOST.gbps, (unit,) * 4)
                plans = cases.plans(spec._replace(mode=mode), cores=cores, cost=cost)
                buffers = memory(spec, plans, src)
                reference.run(plans, buffers, seed=unit)
                seen.update(b.out.tobytes() for b in buffers)
        assert len(seen) == 1


def test_short_buffers_are_refused():
    spec = cases.spec("all_gather", 100, 2)
    plans = cases.plans(spec)
    good = [reference.buffers(np.zeros(100, "f4"), np.zeros(200, "f4")) for _ in range(2)]
    reference.run(plans, good)
    for short in (reference.buffers(np.zeros(99, "f4"), np.zeros(200, "f4")),
                  reference.buffers(np.zeros(100, "f4"), np.zeros(199, "f4"))):  # fmt: skip
        with pytest.raises(PlanError, match="member 1"):
            reference.run(plans, [good[0], short])
    with pytest.raises(ValueError, match="contiguous"):
        reference.buffers(np.zeros((4, 4))[:, ::2], np.zeros(1))


def test_integers_wrap_and_their_mean_is_the_floor():
    big = np.array([2**63 - 1, -(2**63), -7, 5], np.int64)
    with np.errstate(over="ignore"):
        assert reference.reduce([big, big], "sum").tolist() == [-2, 0, -14, 10]
    assert reference.reduce([big, big, big], "avg").tolist() == big.tolist()
    assert reference.reduce([np.array([-3], "i1"), np.array([0], "i1")], "avg").tolist() == [-2]
    assert reference.reduce([np.array([200], "u1")] * 3, "sum").tolist() == [88]
    assert reference.reduce([np.array([6], "u2"), np.array([3], "u2")], "bxor").tolist() == [5]


def test_small_floats_are_rounded_once():
    parts = [np.array([2048], "f2"), np.array([1], "f2"), np.array([1], "f2")]
    assert reference.reduce(parts, "sum").tolist() == [2050]  # step by step in f16: 2048
    eighth = reference.numpy_dtype(cases.code("f8e4m3fn"))
    assert reference.reduce([np.array([v], eighth) for v in (16, 1, 1)], "sum").astype(float).tolist() == [18]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "f8e5m2"])
def test_nan_propagates_and_is_the_positive_quiet_one(dtype):
    kind = reference.numpy_dtype(cases.code(dtype))
    nan, one = np.array([-np.nan, 1, 2, 1], kind), np.array([1, np.nan, 1, 3], kind)
    for op, rest in (("min", [1, 1]), ("max", [2, 3]), ("sum", [3, 4]), ("prod", [2, 3])):
        found = reference.reduce([nan, one], op)
        assert found[:2].tobytes() == np.array([np.nan] * 2, np.float32).astype(kind).tobytes()
        assert found[2:].astype(float).tolist() == rest


def test_of_equal_zeros_the_earlier():
    plus, minus = np.array([0.0], "f4"), np.array([-0.0], "f4")
    for op in ("min", "max"):
        assert not np.signbit(reference.reduce([plus, minus], op))[0]
        assert np.signbit(reference.reduce([minus, plus], op))[0]


def test_bools_and_complex():
    a, b = np.array([1, 1, 0, 0], bool), np.array([1, 0, 1, 0], bool)
    either, both = [True, True, True, False], [True, False, False, False]
    for op, want in {"sum": either, "max": either, "bor": either, "prod": both, "min": both, "band": both}.items():
        assert reference.reduce([a, b], op).tolist() == want
    assert reference.reduce([a, b], "bxor").tolist() == [False, True, True, False]
    z = [np.array([1 + 2j, 3 - 1j], "c8"), np.array([2 - 1j, 1j], "c8")]
    assert reference.reduce(z, "prod").tolist() == [4 + 3j, 1 + 3j]
    assert reference.reduce(z, "sum").tolist() == [3 + 1j, 3]
    assert reference.reduce(z, "avg").tolist() == [1.5 + 0.5j, 1.5]


def test_what_does_not_go_together_raises():
    for dtype, op in (("bool", "avg"), ("c64", "min"), ("f32", "band"), ("f8e5m2", "bxor"), ("c128", "max")):
        with pytest.raises(UnsupportedType):
            reference.reduce([np.zeros(1, reference.numpy_dtype(cases.code(dtype)))] * 2, op)
    with pytest.raises(UnsupportedType):
        reference.numpy_dtype(0)
    sizes = [reference.numpy_dtype(code).itemsize for code in range(1, len(DTYPE_NAMES))]
    assert sizes == [build(cases.spec("all_reduce", 1, 1, name), 0).spec.itemsize for name in DTYPE_NAMES[1:]]


@pytest.mark.parametrize("dtype", DTYPE_NAMES[1:])
def test_the_kernels_give_the_same_bits(dtype):
    """Two implementations that share no line, on random bits: NaN, infinities, denormals and all."""
    chance, code = np.random.default_rng(len(dtype)), cases.code(dtype)
    kind = reference.numpy_dtype(code)
    for op in range(1, len(OP_NAMES)):
        for number in (2, 3, 8, 17):
            bits = chance.integers(0, 2 if dtype == "bool" else 256, (number, 500 * kind.itemsize), np.uint8)
            found = np.zeros(bits.shape[1], np.uint8)
            if not kernels.supported(code, op):
                with pytest.raises(UnsupportedType):
                    reference.reduce(list(bits.view(kind)), OP_NAMES[op])
                continue
            kernels.reduce([found], list(bits), code, op)
            assert found.tobytes() == reference.reduce(list(bits.view(kind)), OP_NAMES[op]).tobytes(), OP_NAMES[op]
