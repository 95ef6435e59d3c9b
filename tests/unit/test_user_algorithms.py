"""``strata.algorithm``: users' algorithms are built, checked and refused with the cure."""

import itertools

import numpy as np
import plan_cases as cases
import pytest
from test_algorithms import play

import strata
from strata.errors import InvalidArgument
from strata.plan import PlanError, algorithms, build, user, verify
from strata.plan.frontends import frontend
from strata.plan.records import OP_NAMES
from strata.plan.spec import normal
from strata.plan.topology import HOST


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(algorithms, "_ALL", dict(algorithms._ALL))


def ring(op, rank):
    left = (rank - 1) % op.ranks
    if not op.in_place:
        yield op.pull(rank, op.nbytes, dst=rank * op.nbytes)
    for s in range(op.ranks - 1):
        block = (rank - 1 - s) % op.ranks
        src = op.out(block * op.nbytes) if s else op.src()
        wait = (left, s - 1) if s else None
        yield op.pull(left, op.nbytes, src=src, dst=block * op.nbytes, wait=wait, post=s, step=s)


def mesh(op, rank):
    for peer in range(op.ranks):
        if not op.in_place or peer != rank:
            yield op.pull(peer, op.nbytes, dst=peer * op.nbytes)


def test_a_ring_of_ones_own():
    strata.algorithm("all_gather", name="mine")(ring)
    for n in (1, 2, 3, 5, 8):
        for count in (0, 1, 1000):
            for in_place in (0, 0b10101):
                play(cases.spec("all_gather", count, n, itemsize=3), "mine", HOST, in_place, 3, 7)
    with pytest.raises(InvalidArgument, match=r"mine.*not available for all_to_all"):
        build(cases.spec("all_to_all", 1, 2), 0, algorithm="mine")


def test_what_moves_nothing_wrong_is_proved_once():
    strata.algorithm("all_gather", name="mine")(mesh)
    spec = cases.spec("all_gather", 100, 4)
    assert user.check_algorithm("mine", spec)
    assert user.check_algorithm("mine", spec)
    assert user.check_algorithm("ring", spec), "the library's own are taken as they are"
    assert not user.check_algorithm("mine", spec._replace(nranks=user.MAX_CHECKED + 1))


def test_what_does_not_deliver_is_refused():
    @strata.algorithm("all_gather")
    def short(op, rank):
        yield from list(mesh(op, rank))[:2]

    with pytest.raises(PlanError, match="member 0 OUT"):
        user.check_algorithm("short", cases.spec("all_gather", 100, 3))


def test_waits_that_nobody_posts_name_the_slice_and_the_cure():
    strata.algorithm("all_gather", name="mute")(lambda op, rank: (s._replace(post=None) for s in ring(op, rank)))
    with pytest.raises(PlanError, match=r"mute, member 0, slice 2 .*flag 0 of member 3, which posts none; give post=0"):
        user.check_algorithm("mute", cases.spec("all_gather", 100, 4))


def test_flags_of_any_member_are_counted_by_all():
    """Of one that does not come from the decorator, such as a program read from a file."""

    def slices(spec, rank, topology):
        found = frontend(spec, rank).copy()
        found["post_flag"][-1] = limit if rank == 1 else 3
        return found

    algorithms.register(algorithms.Algorithm("long", frozenset(("all_gather",)), slices))
    limit = 1023
    assert user.check_algorithm("long", cases.spec("all_gather", 100, 3))
    limit = 1024
    with pytest.raises(PlanError, match="long, member 1: it has flag 1024, and flags are 0 to 1023"):
        user.check_algorithm("long", cases.spec("all_gather", 101, 3))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda op, rank: [op.pull(op.ranks, 4)], r"bad, member 0, slice 0 .*no member 3 of 3; take the peer modulo"),
        (lambda op, rank: [op.sync(step=1), op.pull(1, 4)], r"slice 1 .*step 0 is not 1 to .*never fall"),
        (lambda op, rank: [op.pull(1, 4, post=1024)], r"posts flag 1024; flags are 0 to 1023"),
        (lambda op, rank: [op.pull(1, 4, wait=(7, 0))], r"waits for \(7, 0\)"),
        (lambda op, rank: [op.pull(1, 404)], r"its source is bytes 0 to 404 of SRC of member 1, which has 400"),
        (lambda op, rank: [op.push(2, 4, dst=1200)], r"its target is bytes 1200 to 1204 of OUT of member 2"),
        (lambda op, rank: [op.pull(1, 4, dst=op.scratch())], r"of SCRATCH of member 0, which has 0; give scratch="),
        (lambda op, rank: [op.pull(1, 4, dst=op.scratch(0, partial=True))], "a partial place is"),
        (lambda op, rank: ["pull"], r"slice 0 \(pull\): not a slice; yield what op.pull"),
        (lambda op, rank: None, r"bad, member 0: it returned None, no slices; yield them"),
        (lambda op, rank: [op.pull(1, 4, wait=3)], r"slice 0 .*waits for 3, not for \(member, flag\)"),
        (lambda op, rank: [op.pull(1, 4, wait=(1,))], r"waits for \(1,\), not for"),
        (lambda op, rank: [op.pull(1, 4, wait=(0, "a"))], r"slice 0 .*'a' is no whole number"),
        (lambda op, rank: [op.pull(1, 4, post=1.5)], r"slice 0 .*1.5 is no whole number"),
        (lambda op, rank: [op.pull(1, 4, step=None)], r"slice 0 .*None is no whole number"),
        (lambda op, rank: [op.pull(1, 4, src=user.Place(7, 0))], r"slice 0 .*not a slice as op.pull"),
        (lambda op, rank: [op.pull(1, 4)._replace(kind=9)], r"slice 0 .*not a slice as op.pull"),
        (lambda op, rank: itertools.repeat(op.sync()), r"more than 262144 slices: does it come to an end"),
        (lambda op, rank: [op.pull(1, op.nbytes / 3)], r"133.3\d* is no whole number"),
        (lambda op, rank: [op.pull(None, 4)], r"None is no whole number"),
    ],
)
def test_mistakes_name_the_slice_and_the_cure(what, message):
    strata.algorithm("all_gather", name="bad")(what)
    with pytest.raises((PlanError, InvalidArgument), match=message):
        user.check_algorithm("bad", cases.spec("all_gather", 100, 3))


@pytest.mark.parametrize("scratch", [None, "x", float("nan"), 1.5, -1, 1 << 70])
def test_scratch_is_a_whole_number(scratch):
    strata.algorithm("all_gather", name="bad", scratch=lambda op, rank: scratch)(mesh)
    with pytest.raises(PlanError, match=r"bad, member 0: scratch of .* whole number"):
        user.check_algorithm("bad", cases.spec("all_gather", 100, 3))


def test_the_order_of_one_core_is_no_excuse():
    @strata.algorithm("all_gather", scratch=lambda op, rank: op.ranks * op.nbytes)
    def hasty(op, rank):
        """Right on one core, which goes by the list."""
        if not op.in_place:
            yield op.pull(rank, op.nbytes, dst=rank * op.nbytes)
        others = [m for m in range(op.ranks) if m != rank]
        for m in others:
            yield op.pull(m, op.nbytes, dst=op.scratch(m * op.nbytes))
        for m in others:
            yield op.pull(rank, op.nbytes, src=op.scratch(m * op.nbytes), dst=m * op.nbytes, step=1)

    spec = cases.spec("all_gather", 100, 3)
    verify([build(spec, m, algorithm="hasty") for m in range(3)])
    with pytest.raises(PlanError, match="at the same time|nobody has written"):
        user.check_algorithm("hasty", spec)


def test_flags_do_not_depend_on_what_only_one_member_knows():
    @strata.algorithm("all_gather")
    def private(op, rank):
        yield from mesh(op, rank)
        if not op.in_place:
            yield op.sync(post=7)

    with pytest.raises(PlanError, match=r"private, member 0: flag 7 is posted in place only, or only if not"):
        user.check_algorithm("private", cases.spec("all_gather", 100, 3))


def test_atomic_additions_are_aligned():
    @strata.algorithm("reduce", scratch=lambda op, rank: op.nbytes + 1)
    def odd(op, rank):
        yield op.push(op.root, op.nbytes, src=op.src(), dst=op.scratch(1), atomic=True)

    with pytest.raises(PlanError, match=r"slice 0 .*atomically at byte 1, which is no multiple of the 4 of an element"):
        user.check_algorithm("odd", cases.spec("reduce", 100, 3))


def test_reductions_with_partial_sums_in_scratch():
    @strata.algorithm("all_reduce", scratch=lambda op, rank: op.count * op.partial_itemsize)
    def by_root(op, rank):
        """Everyone's share is summed by one member, and taken by all."""
        start, length = op.share(rank)
        at = op.scratch(start // op.itemsize * op.partial_itemsize, partial=True)
        half = op.ranks // 2
        yield op.reduce([(m, op.src(start)) for m in range(half)], length, dst=at, post=0)
        later = [(rank, at, (rank, 0)), *((m, op.src(start)) for m in range(half, op.ranks))]
        yield op.reduce(later, length, dst=start, post=1, step=1)
        for peer in range(op.ranks):
            start, length = op.share(peer)
            if peer != rank:
                yield op.pull(peer, length, src=op.out(start), dst=start, wait=(peer, 1), step=2)

    for n in (2, 3, 8):
        for count in (1, 100, 1001):
            for dtype, op in (("bf16", "avg"), ("f32", "sum"), ("i8", "avg")):
                spec = cases.spec("all_reduce", count, n, dtype, redop=OP_NAMES.index(op))
                play(spec, "by_root", HOST, 0b11010, 2, count)


def test_names_and_operations_are_checked():
    with pytest.raises(InvalidArgument, match="unknown operation"):
        strata.algorithm("all_gathers")
    with pytest.raises(InvalidArgument, match="the library's own"):
        strata.algorithm("all_gather", name="ring")(ring)
    with pytest.raises(InvalidArgument, match="does not reduce"):
        user.Op(normal(cases.spec("all_gather", 4, 2))).pull(0, 4, atomic=True)
    strata.algorithm(("all_gather", "broadcast"), name="two", scratch=lambda op, rank: 1.5)(ring)
    with pytest.raises(PlanError, match="scratch of 1.5 bytes"):
        build(cases.spec("all_gather", 4, 2), 0, algorithm="two")


def test_slices_without_bytes_are_left_out():
    @strata.algorithm("all_gather")
    def empty(op, rank):
        yield op.pull(0, 0, post=3)
        yield from mesh(op, rank)

    assert len(build(cases.spec("all_gather", 4, 2), 0, algorithm="empty").slices) == 2
    assert np.array_equal(build(cases.spec("all_gather", 0, 2), 0, algorithm="empty").slices["bytes"], [])
