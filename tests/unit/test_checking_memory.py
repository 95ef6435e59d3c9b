"""Memory that is no array any more, or another one, in hand-made programs."""

import random
from itertools import pairwise

import pytest
from checking_play import ORDERS, Program, check, found

from strata.checking.events import Range
from strata.checking.places import UNKNOWN, Doing
from strata.checking.shadow import READ, WRITE, Access, Shadow


def test_use_after_free():
    p = Program(2)
    p.alloc(0, 0, 64)
    p.barrier()
    a = p.read(1, 0, 8)
    b = p.free(0, 0, 64)
    check(p, [("use after free", (a, b))])
    assert "group.barrier() before it is deleted" in p.reports()[0].cure
    assert "the array that rank 0 made at prog.py:1" in p.reports()[0].text()


def test_an_operation_that_is_over_before_its_own_die_uses_the_memory_again():
    """Nobody has waited for it, but the array was freed, which its die does once nothing uses it."""
    p = Program(2)
    p.alloc(0, 0, 64)
    p.fork(0, 1)
    p.take(0, "chain:g", 1, t=1)  # the analysis comes late to what follows
    p.read(0, 0, 64, t=1)
    p.free(0, 0, 64)
    p.alloc(0, 0, 64)
    p.write(0, 0, 64)
    p.post(1, "chain:g", value=1)
    check(p)


def test_use_after_free_although_it_is_ordered():
    p = Program(2)
    p.alloc(0, 0, 64)
    b = p.free(0, 0, 64)
    p.barrier()
    a = p.read(1, 0, 8)
    check(p, [("use after free", (b, a))])


def test_a_free_after_a_barrier_is_none():
    p = Program(2)
    p.alloc(0, 0, 64)
    p.barrier()
    p.write(1, 0, 64)
    p.barrier()
    p.free(0, 0, 64)
    p.alloc(0, 0, 32)
    p.write(0, 0, 32)
    p.barrier()
    p.read(1, 0, 32)
    check(p)


def test_stale():
    p = Program(2)
    p.alloc(0, 0, 64)
    p.barrier()
    free = p.free(0, 0, 64)
    again = p.alloc(0, 0, 64)
    p.write(0, 0, 64)
    a = p.read(1, 0, 8)
    expected = [{("stale", tuple(sorted((free, again, a))))}, {("use after free", (free, a))}]
    for seed in ORDERS:  # which of the two it is, depends on who came first
        assert found(p.reports(seed)) in expected


def test_an_old_view_is_stale_although_it_is_ordered():
    p = Program(2)
    p.alloc(0, 0, 64)
    p.barrier()
    p.add(1, "view", t=0, id=3, lo=0, hi=64)
    p.read(1, 0, 8, v=3)
    p.barrier()
    free = p.free(0, 0, 64)
    again = p.alloc(0, 0, 64)
    p.write(0, 0, 64)
    p.barrier()
    p.read(1, 0, 8)
    check(p)
    a = p.read(1, 0, 8, v=3)
    check(p, [("stale", tuple(sorted((free, again, a))))])


def test_an_array_that_nobody_was_told_of():
    p = Program(2)
    a = p.alloc(0, 0, 64)
    b = p.read(1, 0, 8)
    check(p, [("race", (a, b))])


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_as_one_access_each(seed):
    """A strided range at once, and row by row: the same is kept of every byte."""
    draw, doing = random.Random(seed), Doing("", "", UNKNOWN)
    whole, single = Shadow(), Shadow()
    for count in range(60):
        lo, size = draw.randrange(200), draw.randrange(1, 9)
        step, n = size + draw.randrange(9), draw.randrange(1, 12)
        made = Access(draw.choice((READ, WRITE)), draw.randrange(3), 0, draw.randrange(3), count, UNKNOWN, "", doing)
        clock = {slot: draw.randrange(count + 1) for slot in range(3)}
        said = [], []
        for shadow, rows, heard in (
            (whole, [Range(lo, lo + size, n, step)], said[0]),
            (single, [Range(lo + k * step, lo + k * step + size) for k in range(n)], said[1]),
        ):

            def tell(old, a, b, to=heard):
                to += [(old.count, byte) for byte in range(a, b)]

            for row in rows:
                shadow.access(row, made, clock, tell, tell)
        assert sorted(said[0]) == sorted(said[1])
        states = [{byte: state for lo, hi, state in s._all() for byte in range(lo, hi)} for s in (whole, single)]
        assert states[0] == states[1]
        assert all(a < b <= c for (a, b, _), (c, _, _) in pairwise(whole._all()))
