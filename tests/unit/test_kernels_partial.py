"""Kernels for reductions in several steps: partial operands, and accumulation by atomics."""

import threading

import numpy as np
import pytest

from strata._core import kernels
from strata.dtypes import OP_CODES
from strata.errors import InvalidArgument, UnsupportedType
from strata.exec import reference
from strata.plan.records import DTYPE_BYTES, DTYPE_NAMES, OP_NAMES, partial_bytes

SEED = 4
PAIRS = [(d, o) for d in range(1, len(DTYPE_NAMES)) for o in range(1, len(OP_NAMES)) if kernels.supported(d, o)]
NAMED = [f"{DTYPE_NAMES[d]}-{OP_NAMES[o]}" for d, o in PAIRS]
COUNT = 1037  # blocks, and a rest


def data(dtype: int, count: int, seed: int) -> np.ndarray:
    """Values whose products stay finite, most of the time."""
    kind = reference.numpy_dtype(dtype)
    chance = np.random.default_rng((SEED, dtype, seed))
    if kind.kind == "b":
        return chance.integers(0, 2, count).astype(bool)
    if kind.kind in "iu":
        return chance.integers(0, 256, count * kind.itemsize, np.uint8).view(kind)
    values = chance.uniform(-2, 2, count)
    return (values + 1j * chance.uniform(-2, 2, count)).astype(kind) if kind.kind == "c" else values.astype(kind)


def raw(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def same(found: np.ndarray, expected: np.ndarray, kind: np.dtype) -> bool:
    """Bits agree, where any NaN is like any other."""
    if kind.kind in "fcV":
        real = f"f{kind.itemsize // 2}" if kind.kind == "c" else kind
        a, b = (x.view(real).astype("f8") for x in (found, expected))
        return bool(((a == b) | (np.isnan(a) & np.isnan(b))).all())
    return found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype, op", PAIRS, ids=NAMED)
def test_bytes_of_a_partial_element(dtype, op):
    assert kernels.partial_bytes(dtype, op) == partial_bytes(dtype, op)


@pytest.mark.parametrize("dtype, op", PAIRS, ids=NAMED)
@pytest.mark.parametrize("steps", [(1, 1, 1), (2, 3, 1), (9, 2, 8)], ids=str)
def test_reduction_in_steps_is_that_of_the_reference(dtype, op, steps):
    """A partial sum of some, then of more, then whole elements and a partial again at once."""
    name, kind, wide = OP_NAMES[op], reference.numpy_dtype(dtype), partial_bytes(dtype, op)
    operands = [data(dtype, COUNT, i) for i in range(sum(steps))]
    sums = np.zeros(COUNT * wide, np.uint8)
    used = 0
    for step, more in enumerate(steps):
        given = operands[used : used + more]
        used += more
        sources, flags = [raw(x) for x in given], [False] * more
        if step:
            sources, flags = [sums, *sources], [True, *flags]
        made, whole = np.zeros(COUNT * wide, np.uint8), np.zeros(COUNT * kind.itemsize, np.uint8)
        kernels.reduce_partial([made, whole], [True, False], sources, flags, dtype, op, used)
        if step == 0:
            wanted = reference.accumulate([reference._wide(raw(x), False, kind, name) for x in given], name)
        else:
            parts = [wanted, *(reference._wide(raw(x), False, kind, name) for x in given)]
            wanted = reference.accumulate(parts, name)
        assert same(made.view(wanted.dtype), wanted.reshape(-1), wanted.dtype)
        finished = reference.finish(wanted, kind, name, used)
        assert same(whole.view(kind), finished, kind), (step, used)
        sums = made


def test_reduce_partial_refuses_what_cannot_be():
    x, y = np.zeros(8, "f4"), np.zeros(9, "f4")
    total = OP_CODES["sum"]
    code = DTYPE_NAMES.index("f32")
    with pytest.raises(ValueError, match="elements"):
        kernels.reduce_partial([x], [False], [raw(x), raw(y)], [False, False], code, total)
    with pytest.raises(InvalidArgument):
        kernels.reduce_partial([x], [False], [], [], code, total)
    with pytest.raises(UnsupportedType):
        kernels.reduce_partial([x], [False], [x], [False], code, OP_CODES["band"])


@pytest.mark.parametrize("dtype, op", PAIRS, ids=NAMED)
def test_accumulation_is_one_step_of_a_reduction(dtype, op):
    kind, name = reference.numpy_dtype(dtype), OP_NAMES[op]
    target, given = data(dtype, COUNT, 1), data(dtype, COUNT, 2)
    if not kernels.accumulate_width(dtype, op):
        assert name == "avg" or (kind == np.complex128 and name == "prod")
        with pytest.raises(UnsupportedType):
            kernels.accumulate(raw(target).copy(), raw(given), dtype, op)
        return
    wanted = reference.reduce([target, given], name)
    found = raw(target).copy()
    kernels.accumulate(found, raw(given), dtype, op)
    assert same(found.view(kind), wanted, kind)


@pytest.mark.parametrize("name", ["i8", "u16", "i32", "u64", "f64", "c64"])
def test_threads_add_into_one_target(name):
    """Nothing is lost: whole numbers, which every dtype here holds exactly."""
    dtype, op, rounds = DTYPE_NAMES.index(name), OP_CODES["sum"], 10
    kind = reference.numpy_dtype(dtype)
    target, one = np.zeros(4000, kind), raw(np.ones(4000, kind))
    memory = raw(target)
    assert np.shares_memory(memory, target)

    def add():
        for _ in range(rounds):
            kernels.accumulate(memory, one, dtype, op)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert (target == 4 * rounds).all()


@pytest.mark.parametrize("name", ["i16", "f32", "f64", "c64", "c128"])
def test_a_target_that_is_not_aligned_is_refused(name):
    dtype, op = DTYPE_NAMES.index(name), OP_CODES["sum"]
    size = DTYPE_BYTES[dtype]
    memory = np.zeros(10 * size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    with pytest.raises(InvalidArgument, match="aligned"):
        kernels.accumulate(memory[start + 1 :][: 4 * size], np.zeros(4 * size, np.uint8), dtype, op)
    kernels.accumulate(memory[start:][: 4 * size], np.zeros(4 * size, np.uint8), dtype, op)
    with pytest.raises(ValueError, match="whole elements"):
        kernels.accumulate(memory[start:][: 4 * size], np.zeros(3 * size, np.uint8), dtype, op)
