"""Sequences of operations on groups that overlap, come and go, among allocations and frees.

What one operation leaves behind (epochs, mailboxes, plans, mappings, freed memory) must not be
seen by another, of the same group or of one that shares members, arrays or pages with it.
"""

import ctypes
import gc
import itertools

import pytest
from collectives_play import Case, in_step, play
from collectives_reference import data
from collectives_strategies import cases, members
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, multiple, rule

import strata
from strata import testing

N = 4
MAX_PENDING = 8
counts = st.sampled_from([0, 1, 5, 1000, 1100, 5000])
bigger = st.sampled_from([1, 64, 5000, 200_000, 2_500_000])


# ---- in a die: what it holds, and one step


class Held:
    """A die's groups, arrays and operations in progress, by the names that the model gives them."""

    def __init__(self, world):
        self.groups = {0: world}
        self.arrays = {}
        self.pending = {}


_held = {}  # machine -> Held


def step(world, machine, action, *args):
    """Does one step of a machine on this die."""
    if machine not in _held:
        _held.clear()
        _held[machine] = Held(world)
    return action(world, _held[machine], *args)


def form(world, held, parent, ranks, name):
    """``ranks``: numbers in the parent."""
    group = held.groups.get(parent)
    if group is not None and group.rank in ranks:
        held.groups[name] = group.subgroup(ranks)
        return held.groups[name].ranks
    return None


def split(world, held, parent, colors, keys, names):
    group = held.groups.get(parent)
    if group is None:
        return None
    color = colors[group.rank]
    made = group.split(color, keys[group.rank])
    assert (made is None) == (color is None)
    if made is None:
        return None
    held.groups[names[color]] = made
    return made.ranks


def drop(world, held, name):
    held.groups.pop(name, None)


def operate(world, held, name, case):
    group = held.groups.get(name)
    return None if group is None else play(group, case)


def begin(world, held, name, count, salt, work):
    """Begins an all_reduce that is waited for later."""
    group = held.groups.get(name)
    if group is not None:
        x = strata.full(count, world.rank + salt, "i8")
        held.pending[work] = (group.all_reduce(x, async_op=True), sum(group.ranks) + salt * group.size)


def finish(world, held, work):
    if work in held.pending:
        handle, total = held.pending.pop(work)
        assert (handle.wait() == total).all()


def forget(world, held, work):
    """The handle is dropped; the operation ends all the same."""
    held.pending.pop(work, None)


def allocate(world, held, rank, name, count):
    if world.rank == rank:
        held.arrays[name] = strata.array(data((count,), "u1", rank, name))
        return strata.address(held.arrays[name])
    return None


def free(world, held, name):
    held.arrays.pop(name, None)


def peek(world, held, reader, address, expected):
    """A die reads another's array by its address, after the fence."""
    world.barrier()
    if world.rank == reader:
        count, rank, name = expected
        assert ctypes.string_at(address, count) == data((count,), "u1", rank, name).tobytes()
    world.barrier()


def message(world, held, name, source, target, count, tag):
    group = held.groups.get(name)
    if group is None:
        return
    work = None
    if group.rank == source:
        work = group.send(strata.array(data((count,), "f4", source, tag)), target, tag, async_op=True)
    if group.rank == target:
        out = group.recv(strata.empty(count, "f4"), source, tag)
        assert out.tobytes() == data((count,), "f4", source, tag).tobytes()
    if work is not None:
        work.wait()


def disagree(world, held, name, odd, count):
    group = held.groups.get(name)
    if group is None:
        return None
    x = strata.zeros(count + (group.rank == odd))
    with pytest.raises(strata.CollectiveMismatch) as caught:
        group.all_reduce(x)
    assert (x == 0).all()
    in_step(group)
    return str(caught.value)


def clear(world, machine):
    """Ends a machine: everything is let go of, and nobody is left behind."""
    held = _held.pop(machine, None)
    if held is None:
        return 0
    for handle, total in held.pending.values():
        assert (handle.wait() == total).all()
    for group in held.groups.values():
        in_step(group)
    del held
    gc.collect()
    world.barrier()
    strata.world().split(0)  # sweeps what the groups have left
    return world.pending()


# ---- the model


class Collectives(RuleBasedStateMachine):
    groups = Bundle("groups")
    arrays = Bundle("arrays")
    works = Bundle("works")
    serial = itertools.count(1)

    def __init__(self):
        super().__init__()
        self.machine = next(self.serial)
        self.names = itertools.count(1)
        self.pool = testing.pool(N, stateful=True)
        self.members = {0: tuple(range(N))}  # group -> world ranks
        self.outstanding = 0

    def do(self, action, *args):
        return self.pool.run(step, self.machine, action, *args)

    @initialize(target=groups)
    def world(self):
        return 0

    def add(self, ranks):
        name = next(self.names)
        self.members[name] = ranks
        return name

    @rule(target=groups, parent=groups, pick=st.data())
    def form(self, parent, pick):
        ranks = pick.draw(members(len(self.members[parent])), label="numbers")
        expected = tuple(self.members[parent][r] for r in ranks)
        name = self.add(expected)
        found = self.do(form, parent, ranks, name)
        assert [r for r in found if r is not None] == [expected] * len(expected)
        return name

    @rule(target=groups, parent=groups, pick=st.data())
    def split(self, parent, pick):
        ranks = self.members[parent]
        n = len(ranks)
        colors = pick.draw(st.lists(st.sampled_from([None, 0, 1]), min_size=n, max_size=n), label="colors")
        keys = pick.draw(st.lists(st.integers(-2, 2), min_size=n, max_size=n), label="keys")
        expected, names = {}, {}
        for color in sorted({c for c in colors if c is not None}):
            order = sorted((m for m in range(n) if colors[m] == color), key=lambda m: (keys[m], m))
            expected[color] = tuple(ranks[m] for m in order)
            names[color] = self.add(expected[color])
        found = self.do(split, parent, colors, keys, names)
        for m, color in enumerate(colors):
            assert found[ranks[m]] == (None if color is None else expected[color])
        return multiple(*names.values())

    @rule(target=groups, name=consumes(groups))
    def drop(self, name):
        if not name:  # the world stays
            return 0
        self.do(drop, name)
        return multiple()

    @rule(name=groups, pick=st.data())
    def operate(self, name, pick):
        case: Case = pick.draw(cases(len(self.members[name])), label="case")
        found = self.do(operate, name, case)
        assert len({found[rank] for rank in self.members[name]}) == 1

    @rule(target=works, name=groups, count=counts, salt=st.integers(0, 9))
    def begin(self, name, count, salt):
        if self.outstanding == MAX_PENDING:
            return multiple()
        self.outstanding += 1
        work = next(self.names)
        self.do(begin, name, count, salt, work)
        return work

    @rule(work=consumes(works))
    def finish(self, work):
        self.outstanding -= 1
        self.do(finish, work)

    @rule(work=consumes(works))
    def forget(self, work):
        self.outstanding -= 1
        self.do(forget, work)

    @rule(target=arrays, rank=st.integers(0, N - 1), count=bigger)
    def allocate(self, rank, count):
        name = next(self.names)
        address = self.do(allocate, rank, name, count)[rank]
        return address, (count, rank, name)

    @rule(array=consumes(arrays))
    def free(self, array):
        self.do(free, array[1][2])

    @rule(array=arrays, reader=st.integers(0, N - 1))
    def peek(self, array, reader):
        self.do(peek, reader, *array)

    @rule(name=groups, pick=st.data(), count=counts, tag=st.integers(0, 3))
    def message(self, name, pick, count, tag):
        member = st.integers(0, len(self.members[name]) - 1)
        self.do(message, name, pick.draw(member, label="source"), pick.draw(member, label="target"), count, tag)

    @rule(name=groups, pick=st.data(), count=counts)
    def disagree(self, name, pick, count):
        ranks = self.members[name]
        if len(ranks) > 1:
            odd = pick.draw(st.integers(0, len(ranks) - 1), label="odd")
            found = self.do(disagree, name, odd, count)
            assert len({found[rank] for rank in ranks}) == 1

    def teardown(self):
        assert self.pool.run(clear, self.machine) == [0] * N


TestCollectives = Collectives.TestCase
# A sequence costs some ten times what an example of another test does.
TestCollectives.settings = settings(max_examples=settings.default.max_examples // 10, stateful_step_count=30)
TestCollectives = pytest.mark.hard_timeout(3600)(TestCollectives)
