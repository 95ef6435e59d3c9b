"""A die dies somewhere in a round of dispatch and combine: the others get PeerDead, or go on without it.

A round has four steps: dispatch is called, waited for, combine is called, waited for.  The victim takes some of
them with the others, and is killed.  What it had given by then may count or not; what it never gave cannot.
"""

import random
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from faultlib import Caught, Job, check_group, died

sys.path.insert(0, str(Path(__file__).parents[1]))

import moe_dies
import moe_play as play
import moe_reference as ref
from moe_play import Case, Round

import strata
from strata import errors, moe

N, VICTIM, EXPERTS = 4, 2, 10
STEPS = ("nothing", "dispatch", "wait", "combine", "all")


def _case(mode, salt, **more):
    r = Round(mode=mode, dtype="float32", hidden=64, tokens=(5, 0, 7, 3), topk=3, salt=salt, wait="event", **more)
    return Case(tuple(range(N)), EXPERTS, None, (r,), order=(0,))


class _Identity(moe_dies.Low):
    """What comes back is what was sent, wherever it lay."""

    def combine(self):
        y = np.array(self.got)
        self.sums, event, _ = self.buffer.low_latency_combine(
            y, self.idx, play.weights(self.r, self.rank), self.handle, async_finish=True
        )
        self.later = event.current_stream_wait


def _sums(case, rank, masked):
    """What a low-latency round of identities must give."""
    r, where, n = case.rounds[0], case.where, len(case.members)
    idx = [play.routing(case, r, m) for m in range(n)]
    windows = ref.low_latency_dispatch(where, [[play.tokens(r, m)] for m in range(n)], idx)
    y = [np.zeros((len(mine), play.most(case, r) * n, r.hidden), np.float32) for mine in windows]
    for m, mine in enumerate(windows):
        for nth, window in enumerate(mine):
            y[m][nth, : len(window.token)] = window.columns[0]
    return ref.low_latency_combine(where, windows, y, idx, [play.weights(r, m) for m in range(n)], masked)[rank]


def _buffer(group, shrink, **more):
    rows = max(play.most(_case("ll", salt), _case("ll", salt).rounds[0]) for salt in range(3))
    size = moe.Buffer.get_low_latency_rdma_size_hint(rows, 64, group.size, EXPERTS)
    return moe.Buffer(group, 0, size, low_latency_mode=True, enable_shrink=shrink, **more)


def _steps(one):
    def waited(then):
        one.wait()
        then()

    return [one.dispatch, lambda: waited(one.received), one.combine, lambda: waited(one.summed)]


def _right(case, one, masked=None):
    """Whether a round's results are those of the reference; ``masked``: or without these dies."""
    wanted = play.expected(case)[0][one.rank]
    if masked is None:
        return not play.differences(case._replace(members=(0,)), [[one.found]], [[wanted]])
    return any(ref.same(one.found["combined"], _sums(case, one.rank, m)) for m in ((), masked))


def _one(mode, shrink, buffer, case, rank):
    kind = moe_dies.High if mode == "ht" else _Identity if shrink else moe_dies.Low
    return kind(buffer, case, case.rounds[0], rank)


def _dies(die, mode, stop, shrink):
    g = strata.world()
    buffer = _buffer(g, shrink)
    first, case = _case(mode, 0), _case(mode, 1)
    one = _one(mode, shrink, buffer, first, g.rank)
    for step in _steps(one):
        step()
    assert _right(first, one, () if shrink else None), one.found
    g.barrier()
    one = _one(mode, shrink, buffer, case, g.rank)
    steps = _steps(one)
    for step in steps[:stop]:
        step()
    die.say("here")
    die.hear()
    if die.rank == VICTIM:
        time.sleep(60)
    try:
        for step in steps[stop:]:
            step()
        assert _right(case, one, (VICTIM,) if shrink else None), one.found
    except errors.StrataError as error:
        assert not shrink, error
        died(Caught.of(error), [VICTIM])
    case = _case(mode, 2)
    one = _one(mode, shrink, buffer, case, g.rank)
    if shrink:
        _goes_on(buffer, case, one)
    else:
        caught = die.catch(lambda: [step() for step in _steps(one)])
        died(caught, [VICTIM])
        assert caught.kind == "PeerDead" or stop < 4, caught
    h = g.shrink()
    check_group(h, [r for r in range(N) if r != VICTIM], rounds=1)
    _again(h)


def _goes_on(buffer, case, one):
    for step in _steps(one):
        step()
    assert ref.same(one.found["combined"], _sums(case, one.rank, (VICTIM,)))
    windows = ref.low_latency_dispatch(
        case.where, [[play.tokens(case.rounds[0], m)] for m in range(N)],
        [play.routing(case, case.rounds[0], m) for m in range(N)], masked=(VICTIM,),
    )[one.rank]  # fmt: skip
    assert all(ref.same(one.found[f"x{nth}"], w.columns[0]) for nth, w in enumerate(windows))
    status = np.zeros(N, np.int32)
    buffer.low_latency_query_mask_buffer(status)
    assert list(np.flatnonzero(status)) == [VICTIM]


def _again(group):
    """A new Buffer of the survivors."""
    case = Case((0, 1, 2), EXPERTS, None, (Round(tokens=(4, 2, 3), salt=7),), order=(0,))
    assert not play.differences(case._replace(members=(0,)), [moe_dies.play_case(group, case)],
                                [[play.expected(case)[0][group.rank]]])  # fmt: skip


@pytest.mark.parametrize("stop", range(5), ids=STEPS)
@pytest.mark.parametrize("mode, shrink", [("ht", False), ("ll", False), ("ll", True)])
def test_death_after(mode, shrink, stop):
    with Job(_dies, N, mode, stop, shrink) as job:
        job.all("here")
        job.kill(VICTIM)
        job.reap(VICTIM)
        job.tell()
        assert [job.reap(r) for r in range(N) if r != VICTIM] == [0] * (N - 1)


def _loop(die, mode, shrink, path):
    """Rounds until one fails, or until one went on without the dead."""
    g = strata.world()
    buffer, k = _buffer(g, shrink, path=path), 0
    status = np.zeros(N, np.int32)
    wanted = {}
    die.say("here")
    while not status.any():
        case = _case(mode, k % 3)
        if k % 3 not in wanted:
            wanted[k % 3] = play.expected(case)[0][g.rank]
        one = _one(mode, shrink, buffer, case, g.rank)
        try:
            for step in _steps(one):
                step()
        except errors.StrataError as error:
            assert not shrink, error
            died(Caught.of(error), [VICTIM])
            die.say("done")
            die.hear()  # who leaves is as one that died
            return
        if shrink:
            assert _right(case, one, (VICTIM,)), one.found
            buffer.low_latency_query_mask_buffer(status)
        else:
            assert not play.differences(case._replace(members=(0,)), [[one.found]], [[wanted[k % 3]]])
        k += 1
    _goes_on(buffer, _case(mode, k % 3), _one(mode, shrink, buffer, _case(mode, k % 3), g.rank))
    die.say("done")
    die.hear()


@pytest.mark.parametrize("mode, shrink", [("ht", False), ("ll", False), ("ll", True)])
def test_death_at_any_moment(mode, shrink):
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for path in ("mte", "sdma", "mte"):
        with Job(_loop, N, mode, shrink, path) as job:
            job.all("here")
            time.sleep(0.05 * rng.random())
            job.kill(VICTIM)
            job.reap(VICTIM)
            survivors = [r for r in range(N) if r != VICTIM]
            job.all("done", survivors)
            job.tell(*survivors)
            assert [job.reap(r) for r in survivors] == [0] * (N - 1)


def _late(die, shrink):
    g = strata.world()
    buffer = _buffer(g, shrink, timeout=1.0)
    case = _case("ll", 0)
    g.barrier()
    die.say("here")
    die.hear()
    if die.rank == VICTIM:
        time.sleep(60)
    one = _one("ll", True, buffer, case, g.rank)
    if shrink:
        _goes_on(buffer, case, one)
    else:
        caught = die.catch(lambda: [step() for step in _steps(one)])
        assert caught.kind == "CollectiveTimeout" and caught.ranks == (VICTIM,), caught
    die.say("done")


@pytest.mark.parametrize("shrink", [False, True], ids=["plain", "shrink"])
def test_a_die_that_is_too_late(shrink):
    """It lives, but says nothing: an error that names it, or rounds without it."""
    with Job(_late, N, shrink) as job:
        job.all("here")
        job.tell()
        job.all("done", [r for r in range(N) if r != VICTIM])
        job.kill(VICTIM)
