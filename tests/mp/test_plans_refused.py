"""A plan that cannot be made: all members refuse it alike, or the one that cannot says so to the others."""

import numpy as np
import pytest
from collectives_play import in_step

import strata
from strata import CollectiveMismatch, errors
from strata.plan import PlanError, algorithms, user
from strata.plan.algorithms.algorithm import Algorithm
from strata.plan.frontends import frontend

COUNT = 30_000  # elements: no mailbox


@pytest.fixture(params=["call", "asynchronous", "after others", "from outside"])
def way(request):
    """How the operation is called: its thread is made, has work, or the arrays must be staged."""
    return request.param


def gather(group, name, way):
    """An all_gather by an algorithm, in one of the ways."""
    make = np.full if way == "from outside" else strata.full
    first = group.all_reduce(strata.ones(COUNT, "f4"), async_op=True) if way == "after others" else None
    try:
        done = group.all_gather(make(COUNT, group.rank, "i4"), algorithm=name, async_op=way == "asynchronous")
        return done.wait() if way == "asynchronous" else done
    finally:
        if first is not None:
            assert (first.wait() == group.size).all()


def use(name, slices):
    """Gives a user's algorithm of all_gather and all_to_all_v a name."""
    algorithms.register(Algorithm(name, frozenset(("all_gather", "all_to_all_v")), slices, chosen_freely=False))


def many_flags(member):
    def slices(spec, rank, topology):
        found = frontend(spec, rank).copy()
        if rank == member:
            found["post_flag"][-1] = 1024
        return found

    return slices


# ---- alike ------------------------------------------------------------------------------------


def too_many_flags(group, way):
    use("flaggy", many_flags(1))
    before = group.number
    with pytest.raises(PlanError, match="flaggy, member 1: it has flag 1024, and flags are 0 to 1023"):
        gather(group, "flaggy", way)
    assert group.number == before + (way == "after others"), "nobody waited for anybody"
    in_step(group)


def test_more_flags_than_a_member_has_are_refused_by_all(peers, way):
    peers.run(too_many_flags, way)


def tries_again(group):
    """A wrong argument is its member's own affair: the others wait for it until it has a right one."""
    x = strata.ones(COUNT, "i8")
    if group.rank == 1:
        with pytest.raises(ValueError, match="atomic.*not available.*a mean"):
            group.all_reduce(x, op="avg", algorithm="atomic")
    group.all_reduce(x, algorithm="atomic")
    assert (x == group.size).all()
    in_step(group)


def test_a_refused_argument_tells_nobody(peers):
    peers.run(tries_again)


# ---- one member alone -------------------------------------------------------------------------


def alone(group, odd, error, call):
    """One member's own error is a mismatch on the others; all go on."""
    before = group.number
    with pytest.raises(error if group.rank == odd else CollectiveMismatch) as caught:
        call()
    if group.rank != odd:
        assert f"rank {odd}: nothing (it failed)" in str(caught.value)
        assert caught.value.number == group.number
    assert group.number > before
    in_step(group)


def flags_of_one(group, way, odd):
    """More members than are checked together: each finds out about its own plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(user, "MAX_CHECKED", 1)
        use("odd_flags", many_flags(odd))
        for _ in range(2):  # what others have a plan of by now
            alone(group, odd, errors.InvalidArgument, lambda: gather(group, "odd_flags", way))


def test_more_flags_than_one_member_has(trio, way):
    for odd in range(3):
        trio.run(flags_of_one, way, odd)


def flags_of_one_v(group, odd):
    counts = np.arange(group.size * group.size).reshape(group.size, -1) * 100
    src = strata.ones(int(counts[group.rank].sum()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(user, "MAX_CHECKED", 1)
        use("odd_counts", many_flags(odd))
        alone(group, odd, errors.InvalidArgument,
              lambda: group.all_to_all_v(src, counts[group.rank], algorithm="odd_counts"))  # fmt: skip


def test_more_flags_than_one_member_has_for_its_counts(trio):
    for odd in range(3):
        trio.run(flags_of_one_v, odd)


def stumbles(group, way, odd, error, checked):
    def slices(spec, rank, topology):
        if group.rank == odd and rank == odd:
            raise error
        return frontend(spec, rank)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(user, "MAX_CHECKED", checked)
        use("stumbles", slices)
        alone(group, odd, type(error), lambda: gather(group, "stumbles", way))


@pytest.mark.parametrize(("error", "checked"), [(ZeroDivisionError("one"), 1), (PlanError("one"), 1),
                                                (MemoryError("one"), 1), (MemoryError("one"), 64)])  # fmt: skip
def test_a_plan_that_one_member_cannot_make(trio, way, error, checked):
    """Also without memory for what all look at alike."""
    trio.run(stumbles, way, 1, error, checked)
