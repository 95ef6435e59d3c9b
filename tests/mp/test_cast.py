"""Small bound broadcasts: the root is ahead, members read in order, and what goes wrong is told."""

import random
import time

import numpy as np
import pytest
from collectives_play import in_step
from faultlib import Job, check_group, died

import strata
from strata import CollectiveMismatch, CollectiveTimeout, GroupBroken

pytestmark = pytest.mark.unchecked("under the check they are plain broadcasts, which wait for everybody")
SIZES = (0, 1, 4, 5, 125, 8192)  # int64; the last is the largest that is cast


def conversation(group, seed):
    rng, n, me = random.Random(seed), group.size, group.rank
    arrays = {count: strata.zeros(count, "i8") for count in SIZES}
    ops = {(count, root): group.broadcast.bind(arrays[count], root) for count in SIZES for root in range(n)}
    total, work = strata.zeros(4, "i8"), None
    for k in range(400):
        count, root, what = rng.choice(SIZES), rng.randrange(n), rng.random()
        x = arrays[count]
        x[:] = np.arange(count) + k if me == root else -1
        if what < 0.6:
            assert ops[count, root]() is x
        elif what < 0.8:
            work = ops[count, root].start()
            if rng.random() < 0.5:
                group.all_reduce(total)  # behind it, as any operation
            assert work.wait() is x
        else:
            group.all_reduce(total)
            assert ops[count, root]() is x
        assert (x == np.arange(count) + k).all(), (k, count, root)
    assert strata.stats()["operations"] > 0
    in_step(group)


def test_conversation(dies):
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")
    dies.run(conversation, seed)


def order(group):
    """A cast that is called behind asynchronous operations comes after them, however it is called."""
    x = strata.ones(1000, "i8")
    for asynchronous in (False, True):
        op = group.broadcast.bind(x)
        for _ in range(50):
            x[:] = 1
            group.barrier()
            work = group.all_reduce(x, async_op=True)
            if asynchronous:
                op.start().wait()
            else:
                op()
            work.wait()
            assert (x == group.size).all()
    with strata.Stream() as stream:
        for _ in range(5):
            op()
        stream.synchronize()
    assert (x == group.size).all()


def test_order(dies):
    dies.run(order)


def any_array(group):
    for x in (np.zeros(100), strata.zeros(200)[::2], np.zeros((4, 50))[:, ::2], np.zeros((2, 3)).T):
        for root in range(group.size):
            op = group.broadcast.bind(x, root)
            for k in range(3):
                x[:] = k + 1.5 if group.rank == root else 0
                assert op() is x
                assert (x == k + 1.5).all()
                assert op.start().wait() is x
    x = strata.zeros(10)
    if group.rank == 0:
        x.flags.writeable = False  # a root's may be
    op = group.broadcast.bind(x)
    assert op() is x and op.result is x


def test_any_array(small):
    small.run(any_array)


def other_order(group):
    a, b = strata.full(4, 1.0), strata.full(8, 2.0)
    first, second = group.broadcast.bind(a), group.broadcast.bind(b)
    if group.rank == 0:
        first()
        second()
        first()
    else:
        b[:] = 7
        with pytest.raises(CollectiveMismatch, match="rank 0 has called a bound broadcast of 4 float64 .* of 8"):
            second()
        assert (b == 7).all()
        second()
        assert (b == 2).all()
        first()
    in_step(group)
    if group.size > 1:
        with pytest.raises(CollectiveMismatch, match="bind of broadcast"):  # all of them bind the same, or none does
            group.broadcast.bind(a if group.rank else b)
    in_step(group)


def test_another_order(dies):
    dies.run(other_order)


def roots_at_one_place(group):
    """Arrays and shapes are alike, the order is not: nobody takes an older cast for the one that it has called."""
    x = strata.full(4, -1.0)
    ops = [group.broadcast.bind(x, root) for root in range(2)]
    if group.rank < 2:
        x[:] = group.rank
        ops[group.rank]()
        with pytest.raises(CollectiveMismatch, match="not as the same one of the group's.*different orders"):
            ops[1 - group.rank]()
        assert (x == group.rank).all()
    else:
        ops[0]()
        with pytest.raises(CollectiveMismatch, match="different orders"):
            ops[1]()
        assert (x == 0).all()
    for k in range(20):
        for root, op in enumerate(ops):
            if group.rank == root:
                x[:] = 10 * k + root
            op()
            assert (x == 10 * k + root).all()
    in_step(group)


def test_roots_at_one_place(peers):
    peers.run(roots_at_one_place)


def _ahead(die):
    g = strata.world()
    x = strata.zeros(16, "i8")
    op = g.broadcast.bind(x, timeout=60)
    if die.rank:
        die.hear()
    for k in range(16):
        x[:] = k if die.rank == 0 else -1
        op()
        assert (x == k).all()
    die.say("ahead")
    x[:] = 99 if die.rank == 0 else -1
    op()
    assert (x == 99).all()
    g.barrier()


def test_the_root_is_ahead():
    """Sixteen calls return on the root while nobody else has made one."""
    with Job(_ahead, 3) as job:
        job.all("ahead", [0])
        job.tell(1, 2)
        job.all("ahead", [1, 2])
        assert [job.reap(r) for r in range(3)] == [0, 0, 0]


def _root_dies(die, said):
    g = strata.world()
    x = strata.zeros(100, "i8")
    op = g.broadcast.bind(x)
    if die.rank == 0:
        for k in range(said):
            x[:] = k
            op()
        die.say("said")
        time.sleep(60)
    die.hear()
    if die.rank == 1:  # alone: what was said counts
        for k in range(said):
            op()
            assert (x == k).all()
    caught = die.catch(lambda: [op() for _ in range(said + 1)])
    died(caught, [0])
    assert caught.group == "world" and caught.operation == "broadcast", caught
    died(die.catch(op), [0])
    died(die.catch(g.barrier), [0])
    check_group(g.shrink(), [1, 2])


@pytest.mark.parametrize("said", [0, 1, 16])
def test_the_root_dies(said):
    with Job(_root_dies, 3, said) as job:
        job.all("said", [0])
        job.kill(0)
        job.reap(0)
        job.tell(1, 2)
        assert [job.reap(r) for r in (1, 2)] == [0, 0]


def _reader_dies(die):
    g = strata.world()
    x = strata.zeros(1, "i8")
    op = g.broadcast.bind(x)
    die.say("bound")
    if die.rank == 1:
        time.sleep(60)
    die.hear()
    caught = die.catch(lambda: [op() for _ in range(40)])
    died(caught, [1])
    check_group(g.shrink(), [0, 2])


def test_a_reader_dies():
    """The root hears of it when it is a ring ahead, and the others from it."""
    with Job(_reader_dies, 3) as job:
        job.all("bound")
        job.kill(1)
        job.reap(1)
        job.tell(0, 2)
        assert [job.reap(r) for r in (0, 2)] == [0, 0]


def _too_late(die, late):
    g = strata.world()
    x = strata.zeros(1, "i8")
    op = g.broadcast.bind(x, timeout=0.3)
    if die.rank == late:
        die.hear()
        with pytest.raises((CollectiveTimeout, GroupBroken)):
            while True:
                op()
    else:
        with pytest.raises((CollectiveTimeout, GroupBroken), match="broadcast|stopped waiting") as caught:
            while True:
                op()
        # A reader waits for the root alone, which may be waiting for the one that is late.
        named = {(late,), (0,)} if die.rank else {(late,)}
        assert isinstance(caught.value, GroupBroken) or caught.value.ranks in named, caught.value
        die.say("late")
    with pytest.raises((CollectiveTimeout, GroupBroken)):
        g.barrier()
    check_group(g.shrink(), [0, 1, 2])


@pytest.mark.parametrize("late", [0, 2])
def test_a_member_that_is_late(late):
    with Job(_too_late, 3, late) as job:
        job.all("late", [r for r in range(3) if r != late])
        job.tell(late)
        assert [job.reap(r) for r in range(3)] == [0, 0, 0]
