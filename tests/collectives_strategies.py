"""Hypothesis strategies for cases of collectives."""

from collectives_play import LAYOUTS, OPERATIONS, REDUCING, Case
from collectives_reference import MOVED, NUMBERS, allowed, dtype_of
from hypothesis import strategies as st

EDGES = (40, 64, 8192, 40_000)  # bytes: the inline limit, a cache line, the mailbox, and beyond


def members(n: int):
    """Some of n dies in any order."""
    return st.permutations(range(n)).flatmap(lambda order: st.integers(1, n).map(lambda k: tuple(order[:k])))


@st.composite
def shapes(draw, itemsize: int):
    """Small ones of every kind, and those at the edges of the limits."""
    if draw(st.booleans()):
        return tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    count = max(0, draw(st.sampled_from(EDGES)) // itemsize + draw(st.integers(-2, 2)))
    if draw(st.booleans()) or count < 4:
        return (count,)
    return (count // 3, 3)


@st.composite
def cases(draw, n: int):
    """A case for a group of n members."""
    op = draw(st.sampled_from(OPERATIONS))
    dtype = draw(st.sampled_from(NUMBERS if op in REDUCING else (*NUMBERS, *MOVED)))
    in_place = op != "all_to_all_v" and draw(st.booleans())
    return Case(
        op,
        dtype,
        draw(shapes(dtype_of(dtype).itemsize)),
        draw(st.sampled_from(allowed(dtype))) if op in REDUCING else "sum",
        root=draw(st.integers(0, n - 1)),
        salt=draw(st.integers(0, 50)),
        in_place=in_place,
        give_out=in_place or draw(st.booleans()),
        fabric_src=draw(st.booleans()),
        fabric_out=draw(st.booleans()),
        layout_src=draw(st.sampled_from(LAYOUTS)),
        layout_out=draw(st.sampled_from(LAYOUTS)),
        read_only=draw(st.booleans()),
        async_op=draw(st.booleans()),
        rows=draw(st.integers(0, 4)),
        recv_counts=draw(st.booleans()),
        path=draw(st.sampled_from((None, "mte", "sdma", "mixed"))),
    )
