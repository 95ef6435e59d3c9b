"""A die is killed: every survivor gets PeerDead that names it, and goes on with the others."""

import os
import random
import time

import faultlib
import faulttrials
import numpy as np
import pytest
from faultlib import Job, check_group, died

import strata
from strata import errors

TRIALS = 10


def test_random_kills():
    """At any moment, of any operation."""
    seed = random.SystemRandom().randrange(1 << 31)
    for k in range(TRIALS):
        trial = faulttrials.Trial.draw(seed + k)
        print(f"replay: python tools/fault_trials.py --trial '{trial}'")
        faulttrials.run(trial)


@pytest.mark.parametrize("operation", ["init", "shrink", "exchange", "split", "background", "leave", "compute"])
def test_kill_in(operation):
    """The kinds of operation that a few random trials may miss."""
    seed = random.SystemRandom().randrange(1 << 31)
    rng = random.Random(seed)
    delay = -1 if operation == "leave" else 0.02 * rng.random()
    trial = faulttrials.Trial(operation, 100_000, 4, (rng.randrange(4),), delay=delay)
    print(trial)
    faulttrials.run(trial)


def _never_arrives(die):
    g = strata.world()
    g.barrier()
    die.say("ready")
    if die.rank == 2:
        time.sleep(60)
    x = strata.ones(1 << 17, "f4")
    caught = die.catch(g.all_reduce, x, op="max")
    died(caught, [2])
    assert caught[:5] == ("PeerDead", (2,), "world", "all_reduce", 2), caught
    die.say("dead", caught.time)
    for later in (lambda: g.barrier(), lambda: g.all_gather(x), lambda: g.split(0), lambda: g.broadcast(x, root=1)):
        died(die.catch(later), [2])
    assert g.broken
    died(die.catch(g.recv, x, 2), [2])
    check_group(g.shrink(), [0, 1, 3])


def test_death_before_it_arrives():
    """Everything that the error carries; later operations name the dead too; the rest shrinks."""
    with Job(_never_arrives, 4) as job:
        job.all("ready")
        time.sleep(0.05)
        killed = job.kill(2)
        seen = job.all("dead", [0, 1, 3])
        assert max(e.data for e in seen.values()) - killed < 10
        assert [job.reap(r) for r in (0, 1, 3)] == [0, 0, 0]


def _several_groups(die):
    g = strata.world()
    left, right = g.subgroup([0, 1, 2]) if die.rank < 3 else None, g.subgroup([0, 1, 3]) if die.rank != 2 else None
    pair = g.subgroup([1, 0]) if die.rank < 2 else None
    x = strata.ones(50_000, "i8")
    g.barrier()
    die.say("ready")
    if die.rank == 2:
        time.sleep(60)
    die.hear()
    if right is not None:
        check_group(right, [0, 1, 3])
    if pair is not None:
        check_group(pair, [1, 0])
    if left is not None:
        caught = die.catch(left.all_reduce, x)
        died(caught, [2])
        assert caught.group == left.name
    if right is not None:  # the death is known by now, and is none of this group's affairs
        check_group(right, [0, 1, 3])
        half = right.split(right.rank % 2)
        check_group(half, [0, 3] if die.rank in (0, 3) else [1])
    if pair is not None:
        check_group(pair, [1, 0])
        works = [pair.send(x, 1 - pair.rank, async_op=True)]
        y = strata.zeros(50_000, "i8")
        pair.recv(y, 1 - pair.rank)
        works[0].wait()
        assert y.sum() == 50_000
    died(die.catch(g.barrier), [2])
    check_group(g.shrink(), [0, 1, 3])


def test_groups_without_the_dead_go_on():
    with Job(_several_groups, 4) as job:
        job.all("ready")
        job.kill(2)
        job.reap(2)
        job.tell(0, 1, 3)
        assert [job.reap(r) for r in (0, 1, 3)] == [0, 0, 0]


def _shrink_again(die, order):
    g = strata.world()
    alive = list(range(g.size))
    check_group(g, alive, rounds=1)
    for victim in order:
        die.say(f"before {victim}")
        if die.rank == victim:
            time.sleep(60)
        died(die.catch(g.barrier), [victim])
        alive.remove(victim)
        g = g.shrink()
        check_group(g, alive, rounds=2)


def test_deaths_and_shrinks_over_and_over():
    """Down to one die; the dead are leaders, last ones and those between."""
    order = [0, 6, 3, 1, 5, 2]
    with Job(_shrink_again, 7, order) as job:
        for victim in order:
            job.all(f"before {victim}", [r for r in range(7) if r == victim])
            job.kill(victim)
            job.reap(victim)
        assert job.reap(4) == 0


def _dies_in_shrink(die, victim):
    g = strata.world()
    g.barrier()
    die.say("ready")
    if die.rank == 3:
        time.sleep(60)
    died(die.catch(g.barrier), [3])
    die.say("broken")
    if die.rank == victim:
        die.say("stays away")
        time.sleep(60)
    h = g.shrink()
    check_group(h, [r for r in range(3) if r != victim])


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_death_of_one_that_others_wait_for_in_shrink(victim):
    with Job(_dies_in_shrink, 4, victim) as job:
        job.all("ready")
        job.kill(3)
        job.all("stays away", [victim])
        time.sleep(0.1)
        job.kill(victim)
        assert [job.reap(r) for r in range(3) if r != victim] == [0, 0]


def _leader_dies_having_called(die):
    g = strata.world()
    g.barrier()
    if die.rank == 0:
        g.survivors(1, 0.05)  # what shrink() says first; it never makes the group
        die.say("called")
        time.sleep(60)
    die.say("waits")
    h = g.shrink()
    check_group(h, [1, 2])


def test_death_of_the_leader_between_its_call_and_the_new_group():
    """All survivors find that the group's first member is gone, and agree again."""
    with Job(_leader_dies_having_called, 3) as job:
        job.all("waits", [1, 2])
        job.all("called", [0])
        time.sleep(0.2)
        job.kill(0)
        assert [job.reap(r) for r in (1, 2)] == [0, 0]


def _two_die(die, nbytes):
    g = strata.world()
    x = strata.ones(nbytes, "u1")
    die.say("ready")
    try:
        while True:
            g.all_gather(x)
    except errors.PeerDead as error:
        died(faultlib.Caught.of(error), [1, 4])
    while True:
        g = g.shrink()
        if g.size == 3:
            break
        died(die.catch(g.barrier), [1, 4])
    check_group(g, [0, 2, 3])


@pytest.mark.parametrize("nbytes", [8, 1 << 20])
def test_two_at_once(nbytes):
    with Job(_two_die, 5, nbytes) as job:
        job.all("ready")
        time.sleep(0.02)
        job.kill(1)
        job.kill(4)
        assert [job.reap(r) for r in (0, 2, 3)] == [0, 0, 0]


def _point_to_point(die, nbytes, receive):
    g = strata.world()
    x = strata.ones(nbytes, "u1")
    g.barrier()
    if die.rank == 1:
        if receive:  # leaves two messages behind
            works = [g.send(x, 0, timeout=60, async_op=nbytes > 4096) for _ in range(2)]
            while strata.stats()["sends"] < 2:
                time.sleep(0.01)
            die.say("ready", len(works))
        else:
            die.say("ready")
        time.sleep(60)
    if receive:
        die.hear()
        y = strata.zeros(nbytes, "u1")
        for _ in range(2):  # what it had sent counts
            g.recv(y, 1)
            assert y.all()
        caught = die.catch(g.recv, y, 1)
    else:
        die.say("ready")
        caught = die.catch(lambda: [g.send(x, 1) for _ in range(100)])
    assert caught.kind == "PeerDead" and caught.ranks == (1,), caught
    assert caught.operation == ("recv" if receive else "send") and caught.group == "world"
    died(die.catch(g.recv(x, 1, async_op=True).wait), [1])


@pytest.mark.parametrize("nbytes", [8, 100_000])
@pytest.mark.parametrize("receive", [False, True])
def test_point_to_point(nbytes, receive):
    with Job(_point_to_point, 2, nbytes, receive) as job:
        job.all("ready", [1])
        job.kill(1)
        job.reap(1)
        job.tell(0)
        assert job.reap(0) == 0


def _ends(die, how):
    g = strata.world()
    h = g.split(0)  # never used before the death
    if die.rank == 1:
        if how == "_exit":
            os._exit(0)
        if how == "exit":
            raise SystemExit(0)
        strata.finalize()
        die.say("left")
        die.hear()
        return
    x = np.zeros(1 << 18)
    for attempt in (lambda: h.all_reduce(x), lambda: g.all_reduce(x), lambda: g.recv(x, 1), g.barrier):
        died(die.catch(attempt), [1])
    check_group(g.shrink(), [0, 2])
    die.say("done")


@pytest.mark.reports(maybe=["deadlock"], why="it leaves, and others wait for it")
@pytest.mark.parametrize("how", ["exit", "_exit", "finalize"])
def test_one_that_leaves_is_as_one_that_died(how):
    with Job(_ends, 3, how) as job:
        job.all("done", [0, 2])
        job.tell(1)
        assert [job.reap(r) for r in range(3)] == [0, 0, 0]
