"""Where kernels read and write: any alignment, in place, and not one byte outside."""

import ctypes
import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels_reference import PAIRS, fold, operands, pair_id, raw

from strata import dtypes
from strata._core import kernels

LEVELS = kernels.LEVELS[: kernels.LEVELS.index(kernels.level()) + 1]
PAGE = mmap.PAGESIZE
FENCE = 0xA5


class GuardedPages:
    """Memory of which the page after the last byte may be neither read nor written."""

    def __init__(self, nbytes):
        self.room = -(-nbytes // PAGE) * PAGE
        self.map = mmap.mmap(-1, self.room + PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        anchor = ctypes.c_char.from_buffer(self.map)
        address = ctypes.addressof(anchor)
        del anchor
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(address + self.room), ctypes.c_size_t(PAGE), 0) == 0

    def tail(self, nbytes):
        """The last bytes before the forbidden page, as a uint8 array."""
        return np.frombuffer(self.map, np.uint8, nbytes, self.room - nbytes)


def fenced(nbytes, shift):
    """A destination `shift` bytes off a cache line, and the whole of which it is the middle."""
    whole = np.full(nbytes + 256, FENCE, np.uint8)
    start = -whole.ctypes.data % 64 + 64 + shift
    return whole[start : start + nbytes], whole, start


def fence_holds(whole, start, nbytes):
    return (whole[:start] == FENCE).all() and (whole[start + nbytes :] == FENCE).all()


@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_no_byte_outside(pair):
    """Sources end where memory ends; destinations have fences on both sides."""
    code, op = pair
    pages = [GuardedPages(20000) for _ in range(6)]
    for nsrc, count in ((2, 1), (2, 31), (3, 1000), (5, 129), (6, 515), (2, 1027)):
        srcs = operands(code, nsrc, count, seed=5)
        want = raw(fold(op, srcs))
        tails = [p.tail(s.nbytes) for p, s in zip(pages, srcs, strict=False)]
        for tail, src in zip(tails, srcs, strict=True):
            tail[:] = raw(src)
        for level in LEVELS:
            for nt in (False, True):
                fences = [fenced(want.nbytes, shift) for shift in (0, 1, 40)]
                kernels.reduce([d for d, _, _ in fences], tails, code, op, nt=nt, level=level)
                for dst, whole, start in fences:
                    assert dst.tobytes() == want.tobytes(), (nsrc, count, level, nt)
                    assert fence_holds(whole, start, want.nbytes)


@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_in_place_with_each_operand(pair):
    code, op = pair
    for nsrc, count in ((1, 40), (2, 300), (3, 67), (5, 1031), (7, 2100)):
        srcs = operands(code, nsrc, count, seed=6)
        want = srcs[0] if nsrc == 1 else fold(op, srcs)
        for target in range(nsrc):
            for nt in (False, True):
                mine = [s.copy() for s in srcs]
                spare = np.empty_like(want)
                kernels.reduce([raw(spare), raw(mine[target])], [raw(m) for m in mine], code, op, nt=nt)
                assert mine[target].tobytes() == spare.tobytes() == want.tobytes(), (nsrc, target, nt)
                again = [s.copy() for s in srcs]
                kernels.reduce([raw(again[target])], [raw(m) for m in again], code, op, nt=nt)
                assert again[target].tobytes() == want.tobytes(), (nsrc, target, nt)
                assert all(m.tobytes() == s.tobytes()
                           for r, (m, s) in enumerate(zip(again, srcs, strict=True)) if r != target)


def test_every_operand_is_a_destination():
    """An all-reduce in place on one mapping: all operands receive the result."""
    for code, op in PAIRS:
        srcs = operands(code, 6, 1500, seed=7)
        want = fold(op, srcs).tobytes()
        mine = [raw(s.copy()) for s in srcs]
        kernels.reduce(mine, mine, code, op)
        assert all(m.tobytes() == want for m in mine), pair_id((code, op))


@given(
    pair=st.sampled_from(PAIRS),
    count=st.integers(1, 1200),
    shifts=st.lists(st.integers(0, 63), min_size=3, max_size=9),
    level=st.sampled_from(LEVELS),
    nt=st.booleans(),
)
def test_any_alignment(pair, count, shifts, level, nt):
    code, op = pair
    srcs = operands(code, len(shifts) - 1, count, seed=8)
    want = fold(op, srcs)
    shifted = []
    for src, shift in zip(srcs, shifts, strict=False):
        part, _, _ = fenced(src.nbytes, shift)
        part[:] = raw(src)
        shifted.append(part)
    dst, whole, start = fenced(want.nbytes, shifts[-1])
    kernels.reduce([dst], shifted, code, op, nt=nt, level=level)
    assert dst.tobytes() == want.tobytes()
    assert fence_holds(whole, start, want.nbytes)


@given(
    nbytes=st.one_of(st.integers(0, 300), st.integers(0, 9000)),
    to=st.integers(0, 63),
    origin=st.integers(0, 63),
    nt=st.booleans(),
)
def test_copy(nbytes, to, origin, nt):
    src, _, _ = fenced(nbytes, origin)
    src[:] = np.arange(nbytes) * 31 % 251
    dst, whole, start = fenced(nbytes, to)
    kernels.copy(dst, src, nt=nt)
    assert dst.tobytes() == src.tobytes()
    assert fence_holds(whole, start, nbytes)


def test_copy_stays_inside_pages():
    for nbytes in (1, 15, 63, 64, 65, 4096, 5001):
        source, target = GuardedPages(nbytes), GuardedPages(nbytes)
        source.tail(nbytes)[:] = np.arange(nbytes) % 253
        for nt in (False, True):
            target.tail(nbytes)[:] = 0
            kernels.copy(target.tail(nbytes), source.tail(nbytes), nt=nt)
            assert target.tail(nbytes).tobytes() == source.tail(nbytes).tobytes()


def test_wrapper_refuses_bad_buffers():
    whole = np.zeros(64, np.uint8)
    code, op = dtypes.code_of("f4"), dtypes.op_code("sum")
    with pytest.raises(ValueError, match="overlaps"):
        kernels.reduce([whole[4:36]], [whole[:32]], code, op)
    with pytest.raises(ValueError, match="overlaps"):
        kernels.reduce([whole[:32], whole[4:36]], [np.zeros(32, np.uint8)], code, op)
    with pytest.raises(ValueError, match="bytes"):
        kernels.reduce([whole[:32]], [whole[32:60]], code, op)
    with pytest.raises(ValueError, match="whole number"):
        kernels.reduce([whole[:30]], [whole[30:60]], code, op)
    with pytest.raises((BufferError, ValueError)):
        kernels.reduce([bytes(32)], [whole[:32]], code, op)
    with pytest.raises((BufferError, ValueError)):
        kernels.reduce([whole[:32]], [whole[::2]], code, op)
    with pytest.raises(ValueError, match="overlaps"):
        kernels.copy(whole[:32], whole[16:48])
