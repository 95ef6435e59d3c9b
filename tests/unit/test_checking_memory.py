"""Memory that is no array any more, or another one, in hand-made programs."""

import random
from itertools import pairwise

import pytest
from checking_play import ORDERS, Program, check, found

from strata.checking.events import Range
from strata.checking.places import UNKNOWN, Doing, Place
from strata.checking.shadow import ALLOC, FREE, READ, WRITE, Access, Shadow


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


@pytest.mark.parametrize("seed", range(40))
def test_rows_are_as_one_access_each(seed):
    """Strided ranges at once and row by row, allocs and frees at once and byte by byte: the same is kept of each."""
    draw, doing = random.Random(seed), Doing("", "", UNKNOWN)
    whole, single = Shadow(), Shadow()
    spans = []
    for count in range(60):
        lo, size = draw.randrange(200), draw.randrange(1, 9)
        spans.append(Range(lo, lo + size, draw.randrange(1, 12), size + draw.randrange(9)))
        span = draw.choice(spans[-3:] + spans[:2])  # the same again and again, and others
        kind = draw.choice((READ, WRITE, READ, WRITE, ALLOC, FREE))
        made = Access(kind, draw.randrange(3), 0, draw.randrange(3), count, UNKNOWN, "", doing)
        clock = {slot: draw.randrange(count + 1) for slot in range(3)}
        said = {}, {}
        for shadow, heard in ((whole, said[0]), (single, said[1])):

            def tell(old, a, b, to=heard):
                known = to.get(old.count, (a, b))
                to[old.count] = min(a, known[0]), max(b, known[1])

            if kind in (ALLOC, FREE):
                change = shadow.alloc if kind == ALLOC else shadow.free
                step = span.end - span.lo if shadow is whole else 1
                for at in range(span.lo, span.end, step):
                    change(at, at + step, made, clock, tell)
            elif shadow is whole:
                shadow.access(span, made, clock, tell, tell)
            else:
                for k in range(span.n):
                    shadow.access(Range(span.lo + k * span.step, span.hi + k * span.step), made, clock, tell, tell)
        assert said[0] == said[1]
        states = [{byte: seen(state) for lo, hi, state in s._all() for byte in range(lo, hi)} for s in (whole, single)]
        assert states[0] == states[1]
        assert all(a < b <= c for (a, b, _), (c, _, _) in pairwise(whole._all()))


def seen(state):
    mark = state.mark
    return mark and (mark.kind, mark.count, mark.previous and mark.previous.count), [a.count for a in state.accesses]


def test_a_line_that_races_with_itself_is_kept_once():
    """Thousands of unordered writes of one line, as fills by streams that nobody waits for, cost what one does."""
    shadow, heard = Shadow(), []
    line, other = Place("prog.py", 10, "f"), Place("prog.py", 20, "f")

    def write(slot, place):
        made = Access(WRITE, 0, slot, slot, 1, place, "", Doing("", "", UNKNOWN))
        shadow.access(Range(0, 80), made, {slot: 1}, lambda old, a, b: heard.append((old.slot, slot)), lambda *_: None)

    for slot in range(1000):
        write(slot, line)
    assert shadow.entries() == 1 and heard == [(k, k + 1) for k in range(999)]
    write(2000, other)  # another line's is another race
    assert heard[-1] == (999, 2000) and shadow.entries() == 2
