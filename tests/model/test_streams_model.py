"""Random programs over streams, events, copies and collectives of two groups do what they do one call after another;
those with steps that fail leave nothing out of step.

    pytest tests/model/test_streams_model.py --hypothesis-profile=deep
"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import strata
from strata import Cancelled, CollectiveMismatch, CollectiveTimeout, sdma, testing

ARRAYS, COUNTS, STREAMS = 4, (5, 2000), 3
KINDS = ("copy", "fill", "add", "all_reduce", "broadcast", "send", "barrier")
FAILING = ("differ", "one fails")  # all_reduce of what differs; a descriptor of one die


def steps(kinds):
    return st.tuples(
        st.sampled_from(kinds),
        st.integers(0, ARRAYS - 1),
        st.integers(0, ARRAYS - 1),
        st.integers(0, 1),  # which group, root, sender, die
        st.tuples(st.integers(-1, STREAMS - 1), st.integers(-1, STREAMS - 1)),  # each die's stream; -1: the host
        st.integers(0, 9),  # 0: each die synchronizes with one of its streams afterwards
    )


def expected(program, count):
    """Arrays of both dies after the program, one step after another."""
    a = [[np.full(count, 10 * d + k, "i8") for k in range(ARRAYS)] for d in range(2)]
    for number, (kind, i, j, which, _, _) in enumerate(program):
        for d in range(2):
            if kind == "copy":
                a[d][i] = a[d][j].copy()
            elif kind == "fill":
                a[d][i] = np.full(count, number + d)
            elif kind == "add":
                a[d][i] = a[d][i] + a[d][j] if i != j else a[d][i] * 2
        if kind == "all_reduce":
            a[0][i] = a[1][i] = (a[0][i] + a[1][i]) % 1000003
        elif kind == "broadcast":
            a[1 - which][i] = a[which][i].copy()
        elif kind == "send":
            a[1 - which][j] = a[which][i].copy()
    return a


class Player:
    """One die's program: each step on a stream, behind the steps whose arrays it touches."""

    def __init__(self, group, other, count):
        self.groups, self.me = (group, other), group.rank
        self.streams = [strata.Stream(depth=16) for _ in range(STREAMS)]
        self.arrays = [strata.full(count, 10 * self.me + k, "i8") for k in range(ARRAYS)]
        self.never = sdma.flag()
        self.last = [[] for _ in range(ARRAYS)]  # of each array: events of the steps that touched it

    def before(self, stream, touched):
        """Waits, on the stream or the host, for all that is queued on these arrays."""
        for k in touched:
            for event in self.last[k]:
                event.wait(stream)

    def after(self, stream, touched):
        event = strata.Event()
        event.record(stream)
        for k in touched:
            self.last[k] = [event]

    def step(self, number, kind, i, j, which, where):
        me, a, group = self.me, self.arrays, self.groups[which]
        stream = self.streams[where] if where >= 0 else None
        if kind in ("copy", "fill", "add", "one fails") and stream is None:
            stream = self.streams[0]  # the DMA thread's
        touched = {"copy": (i, j), "add": (i, j), "send": (i if which == me else j,), "barrier": ()}.get(kind, (i,))
        self.before(stream, touched)
        with strata.stream(stream):
            if kind == "copy" and i != j:
                stream.copy(a[i], a[j])
            elif kind == "fill":
                stream.fill(a[i], number + me)
            elif kind == "add":
                stream.submit(sdma.Batch().reduce(a[i], a[j]))
            elif kind == "all_reduce":
                group.all_reduce(a[i])
            elif kind == "broadcast":
                group.broadcast(a[i], root=which)
            elif kind == "send" and which == me:
                group.send(a[i], 1 - me)
            elif kind == "send":
                group.recv(a[j], which)
            elif kind == "barrier":
                group.barrier()
            elif kind == "differ":
                group.all_reduce(a[i][: 3 + me])
            elif kind == "one fails" and which == me:
                stream.submit(sdma.Batch().gate(self.never, 1, timeout=1e-6))
        self.after(stream, touched)
        if kind == "all_reduce":  # numbers stay small
            self.before(None, touched)
            a[i] %= 1000003

    def end(self):
        for s in self.streams:
            s.synchronize()
            assert s.query()
            s.close()
        return [np.array(a) for a in self.arrays]


def play(group, program, count):
    global _other
    if _other is None or _other[0] is not group:
        _other = group, group.subgroup([0, 1])
    player = Player(*_other, count)
    for number, (kind, i, j, which, where, pause) in enumerate(program):
        player.step(number, kind, i, j, which, where[group.rank])
        if pause == 0:
            player.streams[number % STREAMS].synchronize()
    return player.end()


_other = None


class Careless(Player):
    """Goes on after errors, which only what failed before may give."""

    def before(self, stream, touched):
        try:
            super().before(stream, touched)
        except (Cancelled, CollectiveMismatch, CollectiveTimeout):
            pass

    def step(self, number, kind, i, j, which, where):
        try:
            super().step(number, kind, i, j, which, where)
        except (Cancelled, CollectiveMismatch, CollectiveTimeout) as error:
            assert not isinstance(error, CollectiveTimeout) or "gate" in str(error), error

    def synchronize(self, stream):
        try:
            stream.synchronize()
        except (Cancelled, CollectiveMismatch, CollectiveTimeout) as error:
            assert not isinstance(error, CollectiveTimeout) or "gate" in str(error), error
        assert stream.query()


def stumble(group, program, count):
    player = Careless(group, group.subgroup([0, 1]), count)
    for number, (kind, i, j, which, where, pause) in enumerate(program):
        player.step(number, kind, i, j, which, where[group.rank])
        if pause == 0:
            player.synchronize(player.streams[number % STREAMS])
    for stream in player.streams:
        player.synchronize(stream)
    for k, stream in enumerate(player.streams):
        with strata.stream(stream):
            stream.fill(player.arrays[k], k + group.rank)
            for g in player.groups:
                g.all_reduce(player.arrays[k])
                g.send(strata.full(5, k), 1 - group.rank)
                g.recv(player.arrays[3][:5], 1 - group.rank)
        stream.synchronize()
        assert (player.arrays[k] == 4 * k + 2).all() and (player.arrays[3][:5] == k).all()
        stream.close()


@given(st.lists(steps(KINDS + FAILING), max_size=24), st.sampled_from(COUNTS))
def test_programs_that_fail(program, count):
    testing.pool(2).run(stumble, program, count)


@given(st.lists(steps(KINDS), max_size=24), st.sampled_from(COUNTS))
def test_programs(program, count):
    got = testing.pool(2).run(play, program, count)
    for mine, wanted in zip(got, expected(program, count), strict=True):
        for k in range(ARRAYS):
            assert (mine[k] == wanted[k]).all(), k
