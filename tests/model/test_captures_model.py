"""Random sequences of operations, captured and called: the same bytes, in every array, after every replay."""

import captures
from captures import OPERATIONS, Step
from collectives_reference import NUMBERS, allowed
from hypothesis import given, note, settings
from hypothesis import strategies as st

from strata import testing

ALGORITHMS = {"all_reduce": (None, "full_mesh", "ring", "staged"), "all_gather": (None, "full_mesh", "ring", "pat"),
              "reduce_scatter": (None, "ring"), "broadcast": (None, "ring")}  # fmt: skip


@st.composite
def steps(draw, dtype, groups):
    op = draw(st.sampled_from(OPERATIONS))
    array = st.integers(0, captures.ARRAYS - 1)
    redop = draw(st.sampled_from(allowed(dtype)))
    how = draw(st.sampled_from(ALGORITHMS.get(op, (None,))))
    return Step(op, draw(array), draw(array), redop, draw(st.integers(0, 3)), how, draw(st.integers(0, groups - 1)))


@st.composite
def programs(draw):
    dtype = draw(st.sampled_from(NUMBERS))
    made = draw(st.lists(steps(dtype, 3), max_size=8))
    return dtype, made, draw(st.sampled_from((0, 1, 7, 350, 900)))


def plays(world, dtype, program, parts):
    """On the world, on itself in another order, and on its first and last members."""
    ends = sorted({0, world.size - 1})
    groups = [world, world.subgroup(range(world.size)[::-1]), world.subgroup(ends) if world.rank in ends else None]
    captures.compare(groups, program, dtype, parts, replays=2)


@settings(max_examples=60, deadline=None)
@given(programs(), st.integers(1, 4))
def test_graphs_give_what_calls_give(program, n):
    dtype, made, parts = program
    note(f"{n} dies, {program}")
    testing.pool(n).run(plays, dtype, made, parts)
