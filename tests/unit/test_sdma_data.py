"""What descriptors do to memory: copies, fills, reductions, of all sizes, dtypes and blocks."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_reference import PAIRS, fold, operands, pair_id, raw
from layouts import INCLUDE, assert_twins

import strata
from strata import dtypes, sdma
from strata._core import descriptors, kernels

FENCE = 0xA5


@pytest.fixture(scope="module")
def ring():
    ring = sdma.open_ring(64)
    yield ring
    ring.close()


def pattern(nbytes, seed=1):
    """Bytes that depend on their place."""
    at = np.arange(nbytes)
    return ((at * 7 + (at >> 8) * 13 + seed * 31) & 0xFF).astype("u1")


def fenced(nbytes, shift=0):
    """Fabric bytes, `shift` bytes off a multiple of 64, and the whole of which they are the middle."""
    whole = strata.full(nbytes + 192, FENCE, "u1")
    return whole[64 + shift : 64 + shift + nbytes], whole


def outside(whole, shift, nbytes):
    return np.concatenate([whole[: 64 + shift], whole[64 + shift + nbytes :]])


def test_records_are_those_of_c(tmp_path):
    assert_twins(tmp_path, "st_abi_sdma.h", {"st_descriptor": sdma.DESCRIPTOR, "st_sdma_operand": sdma.OPERAND})


def test_codes_are_those_of_c():
    text = re.sub(r"/\*.*?\*/", "", (INCLUDE / "st_abi_sdma.h").read_text(), flags=re.S)
    codes = {name: int(value) for name, value in re.findall(r"\bST_SDMA_(\w+) = (\d+)", text)}
    assert len(codes) == len(descriptors.TYPES) - 1 + 7
    for name, code in codes.items():
        assert getattr(descriptors, name) == code, name
    for code, name in enumerate(descriptors.TYPES[1:], 1):
        assert codes[name.upper()] == code
    assert re.search(r"ST_SDMA_MOST \(64u << 20\)", text) and descriptors.MOST == 64 << 20
    assert re.search(r"ST_SDMA_BLOCK \(1u << 20\)", text) and descriptors.BLOCK == 1 << 20


# ---- copies ----------------------------------------------------------------------


@given(
    nbytes=st.integers(0, 5000),
    shift=st.integers(0, 63),
    other=st.integers(0, 63),
    block=st.sampled_from([1, 64, 100, 4096, None]),
    nt=st.booleans(),
)
def test_copy(ring, nbytes, shift, other, block, nt):
    src, _ = fenced(nbytes, shift)
    dst, whole = fenced(nbytes, other)
    src[:] = pattern(nbytes)
    if block == 1:
        src, dst = src[:50], dst[:50]
    batch = sdma.Batch(block).copy(dst, src, nt=nt)
    assert len(batch) == max(1, -(-src.size // (block or sdma.Batch().block)))
    ring.submit(batch).wait()
    assert (dst == pattern(nbytes)[: dst.size]).all()
    assert (outside(whole, other, dst.size) == FENCE).all()


def test_copy_of_part_and_by_address(ring):
    src, dst = strata.array(pattern(1000)), strata.zeros(1000, "u1")
    ring.submit(sdma.Batch().copy(dst, src, 10)).wait()
    assert (dst[:10] == src[:10]).all() and not dst[10:].any()
    ring.submit(sdma.Batch().copy(strata.address(dst) + 500, strata.address(src) + 100, 33)).wait()
    assert (dst[500:533] == src[100:133]).all() and not dst[533:].any()
    ring.submit(sdma.Batch().copy(dst, dst)).wait()  # the same is no overlap
    assert (dst[500:533] == src[100:133]).all()
    both = strata.array(pattern(100))
    ring.submit(sdma.Batch().copy(both[50:], both[:50])).wait()  # nor are neighbours
    assert (both[50:] == pattern(50)).all()


def test_copy_of_any_dtype_and_shape(ring):
    kind = np.dtype([("a", "u2"), ("b", "f8"), ("c", "S5")])
    src = strata.empty((3, 7), kind)
    src.view("u1").reshape(-1)[:] = pattern(src.nbytes)
    dst = strata.zeros(21, kind)
    ring.submit(sdma.Batch().copy(dst, src)).wait()
    assert dst.tobytes() == src.tobytes()
    ring.submit(sdma.Batch().copy(strata.empty((0, 5)), strata.empty(0))).wait()


@pytest.mark.parametrize("nt", [False, True])
def test_copy_larger_than_blocks(ring, nt):
    n = (5 << 20) + 13
    src, (dst, whole) = strata.array(pattern(n)), fenced(n, 3)
    batch = sdma.Batch().copy(dst, src, nt=nt)
    assert len(batch) == 6
    ring.submit(batch).wait()
    assert (dst == src).all() and (outside(whole, 3, n) == FENCE).all()
    dst[:] = 0
    ring.submit(sdma.Batch(block=64 << 20).copy(dst, src, nt=nt)).wait()
    assert (dst == src).all() and (outside(whole, 3, n) == FENCE).all()


# ---- fills -----------------------------------------------------------------------

ELEMENTS = [
    ("u1", 7),
    ("i1", -3),
    ("?", True),
    ("S1", b"q"),
    ("<u2", 60000),
    (">u2", 513),
    ("f2", -1.5),
    ("i4", -5),
    ("f4", np.pi),
    ("S4", b"ab"),
    ("f8", np.e),
    ("c8", 1 - 2j),
    ("M8[s]", np.datetime64(5, "s")),
    ("S8", b"12345678"),
    ([("a", "u1"), ("b", "u1")], (1, 2)),
]


@pytest.mark.parametrize("dtype, value", ELEMENTS)
@pytest.mark.parametrize("block", [1, 24, None])
def test_fill(ring, dtype, value, block):
    dtype = np.dtype(dtype)
    for count in (0, 1, 2, 3, 5, 7, 8, 9, 63, 200, 333):
        for shift in (0, 1, 5):
            part, whole = fenced(count * dtype.itemsize, shift)
            dst = part.view(dtype)
            ring.submit(sdma.Batch(block).fill(dst, value)).wait()
            want = np.empty(count, dtype)
            want[:] = value
            assert dst.tobytes() == want.tobytes()
            assert (outside(whole, shift, part.size) == FENCE).all()


def test_fill_that_is_large(ring):
    dst = strata.zeros((3 << 20) + 1, "u2")
    ring.submit(sdma.Batch().fill(dst, 0x1234)).wait()
    assert (dst == 0x1234).all()


@pytest.mark.parametrize("dtype", ["c16", "S3", "V5"])
def test_fill_of_elements_that_divide_no_8_bytes(dtype):
    with pytest.raises(TypeError, match="fill: elements of"):
        sdma.Batch().fill(strata.zeros(4, "V16").view(dtype) if dtype == "c16" else strata.zeros(4, dtype), 0)


def test_fill_with_what_is_no_element():
    dst = strata.zeros(16, "u1")
    for value in ([1, 2, 3, 4, 5, 6, 7, 8], "x", None):
        with pytest.raises((TypeError, ValueError)):
            sdma.Batch().fill(dst, value)
    with pytest.raises(OverflowError):
        sdma.Batch().fill(dst, 256)


# ---- reductions ------------------------------------------------------------------


def fabric_operands(code, count, seed):
    """Two operands in the fabric; ml_dtypes' too."""
    return [strata.array(x) for x in operands(code, 2, count, seed)]


@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_reduce(ring, pair):
    """Every dtype and operator, bit for bit, in one descriptor and in blocks that end within nothing."""
    code, op = pair
    for count in (0, 1, 31, 515):
        for block in (None, 100):
            dst, src = fabric_operands(code, count, seed=count)
            before = src.tobytes()
            want = raw(fold(op, [np.array(dst), np.array(src)])) if count else raw(np.array(dst))
            ring.submit(sdma.Batch(block).reduce(dst, src, dtypes.OPS[op])).wait()
            assert (raw(dst) == want).all()
            assert src.tobytes() == before


@pytest.mark.parametrize("pair", [p for p in PAIRS if kernels.accumulate_width(*p)], ids=pair_id)
def test_reduce_atomically(ring, pair):
    """The same bits as the kernel that adds into one target, which has tests of its own."""
    code, op = pair
    for count in (1, 31, 515):
        dst, src = fabric_operands(code, count, seed=count)
        want = np.array(dst)
        kernels.accumulate(want, np.array(src), code, op)
        ring.submit(sdma.Batch(64).reduce(dst, src, dtypes.OPS[op], atomic=True)).wait()
        assert (raw(dst) == raw(want)).all()


def test_reduce_in_place_of_itself(ring):
    x = strata.array(np.arange(100, dtype="i4"))
    ring.submit(sdma.Batch().reduce(x, x)).wait()
    assert (x == 2 * np.arange(100)).all()


def test_reduce_large(ring):
    n = (1 << 20) + 3
    dst, src = strata.array(np.arange(n, dtype="f4")), strata.array(np.arange(n, dtype="f4")[::-1])
    ring.submit(sdma.Batch(block=1 << 18).reduce(dst, src, "sum")).wait()
    assert (dst == n - 1).all()


@settings(max_examples=30)
@given(st.integers(2, 5), st.integers(1, 200), st.data())
def test_lists_of_operands(ring, nsrc, count, data):
    """A reduction of many sources into many targets, made by hand: operands of 16 bytes in the fabric."""
    code, op = data.draw(st.sampled_from(PAIRS))
    ndst = data.draw(st.integers(1, 3))
    srcs = [strata.array(x) for x in operands(code, nsrc, count, 1)]
    dsts = [strata.zeros(count, srcs[0].dtype) for _ in range(ndst)]
    want = raw(fold(op, [np.array(x) for x in srcs]))
    table = strata.zeros(nsrc + ndst, sdma.OPERAND)
    table["va"] = [strata.address(x) for x in srcs + dsts]
    made = np.zeros(1, sdma.DESCRIPTOR)
    made["type"], made["flags"], made["op"], made["dtype"] = descriptors.REDUCE, descriptors.LIST, op, code
    made["src"], made["bytes"], made["value"] = strata.address(table), srcs[0].nbytes, nsrc | ndst << 16
    sdma.seal(made)
    assert made["src_gen"][0] != 0
    ring.submit(made, keep=(table, srcs, dsts)).wait()
    for dst in dsts:
        assert (raw(dst) == want).all()


def test_reductions_that_are_refused():
    dst, src = strata.zeros(8, "f4"), strata.zeros(8, "f4")
    with pytest.raises(TypeError, match="arrays of one dtype"):
        sdma.Batch().reduce(dst, strata.zeros(8, "f8"))
    with pytest.raises(TypeError, match="arrays of one dtype, not float32 and int"):
        sdma.Batch().reduce(dst, strata.address(src))
    with pytest.raises(TypeError, match="fill: dst is an array, .* not int"):
        sdma.Batch().fill(strata.address(src), 1)
    with pytest.raises(ValueError, match="did you mean 'sum'"):
        sdma.Batch().reduce(dst, src, "sun")
    for dtype, op in (("f4", "band"), ("c8", "max"), ("M8[s]", "sum"), (">i4", "sum"), ("S4", "min"), ("?", "avg")):
        with pytest.raises(TypeError):
            sdma.Batch().reduce(strata.zeros(8, dtype), strata.zeros(8, dtype), op)
    none = [(c, o) for c, o in PAIRS if not kernels.accumulate_width(c, o)]
    assert none
    for code, op in none:
        a, b = (strata.zeros(8, dtypes.dtype_of(code)) for _ in range(2))
        with pytest.raises(TypeError, match="no atomic"):
            sdma.Batch().reduce(a, b, dtypes.OPS[op], atomic=True)
    whole = strata.zeros(65, "u1")
    with pytest.raises(ValueError, match="multiple of"):
        sdma.Batch().reduce(whole[1:].view("u4"), strata.zeros(16, "u4"), atomic=True)
