"""Dies are killed and stopped while they submit to rings, and while others submit to theirs."""

import random
import select
import signal
import time

import numpy as np
import pytest
from faultlib import Job

import strata
from strata import errors, sdma

BOUND = 20.0
SLOTS = 64
ROUNDS = 6


def _join(die, ring=None, *arrays):
    """The rank-0 ring, and the addresses of rank 0's arrays, for everybody."""
    g = strata.world()
    said = [ring.index, *(strata.address(x) for x in arrays)] if die.rank == 0 else [0] * (1 + len(arrays))
    got = g.broadcast(strata.array(said, "u8")).tolist()
    return g, sdma.ring(got[0], 0), got[1:]


def _sign(rank, k):
    return rank << 48 | k << 16 | (rank * 31 + k * 17) & 0xFFFF


def _owner(die, depth):
    """Die 0: the ring is its own; when the test says so, what is in the log must be whole."""
    ring, log = sdma.open_ring(depth), strata.zeros((3, SLOTS, 2), "u8")
    _, ring, _ = _join(die, ring, log)
    die.say("ready")
    die.hear()
    ring.drain(BOUND)
    assert sdma.stats()["failed"] == 0
    seen = np.array(log)
    assert (seen[..., 0] == seen[..., 1]).all()
    for rank in (1, 2):
        for slot, sign in enumerate(seen[rank, :, 0].tolist()):
            k = sign >> 16 & 0xFFFFFFFF
            assert sign == 0 or (sign == _sign(rank, k) and k % SLOTS == slot), (rank, slot, hex(sign))
    die.say("checked", [int((seen[r, :, 0] != 0).sum()) for r in range(3)])
    mine = strata.zeros(1, "u8")
    ring.submit(sdma.Batch().fill(mine, 5)).wait(BOUND)  # it is as good as before
    assert mine[0] == 5
    die.say("good")
    die.hear()


def _produce(die, seed, until):
    """Fills one slot of the log after another, in batches that may be larger than the ring, while until() is true."""
    _, ring, (log,) = _join(die, None, None)
    rng = random.Random(seed * 8 + die.rank)
    die.say("ready")
    k = 0
    while until():
        n = rng.choice((1, 1, 2, 5, 12, 20))
        batch = np.zeros(n, sdma.DESCRIPTOR)
        batch["type"], batch["bytes"] = 4, 16
        batch["dst"] = [log + 16 * (die.rank * SLOTS + (k + i) % SLOTS) for i in range(n)]
        batch["value"] = [_sign(die.rank, k + i) for i in range(n)]
        if rng.random() < 0.2:
            ring.submit(batch).wait(BOUND)
        else:
            ring.submit(batch, notify=False, timeout=BOUND)
        k += n
    die.say("stopped", k)
    ring.submit(batch).wait(BOUND)
    die.say("whole")


def _three(die, seed, depth):
    if die.rank == 0:
        _owner(die, depth)
        return
    end = time.monotonic() + BOUND / 2
    _produce(die, seed, lambda: not select.select([die._inbox], [], [], 0)[0] and time.monotonic() < end)


@pytest.mark.parametrize("stop", [False, True], ids=["killed", "stopped-and-killed"])
def test_producer_dies(stop):
    """At a random moment, holding the ring or not: the ring's die and the other producer go on, and nothing that
    was half written is executed."""
    for _ in range(ROUNDS):
        seed = random.SystemRandom().randrange(1 << 31)
        rng = random.Random(seed)
        depth, delay = rng.choice((2, 8, 64)), rng.random() * 0.03
        print(f"seed {seed}, depth {depth}, {delay * 1e3:.2f} ms")
        with Job(_three, 3, seed, depth, hbm=64 << 20) as job:
            job.all("ready")
            time.sleep(delay)
            if stop:
                job.kill(1, signal.SIGSTOP)
                time.sleep(0.01)
            job.kill(1)
            job.reap(1)
            time.sleep(0.02)
            job.tell(2)
            assert job.all("stopped", [2])[2].data > 0
            job.all("whole", [2])
            job.tell(0)
            counts = job.all("checked", [0])[0].data
            assert counts[0] == 0 and counts[2] > 0
            job.all("good", [0])
            job.tell(0)
            assert job.reap(2) == 0 and job.reap(0) == 0


def test_producer_is_stopped_for_a_while():
    """Whoever waits for the ring meanwhile goes on when it does; nothing is lost on either side."""
    for _ in range(ROUNDS):
        seed = random.SystemRandom().randrange(1 << 31)
        rng = random.Random(seed)
        depth = rng.choice((2, 8, 64))
        print(f"seed {seed}, depth {depth}")
        with Job(_three, 3, seed, depth, hbm=64 << 20) as job:
            job.all("ready")
            for _ in range(3):
                time.sleep(rng.random() * 0.02)
                job.kill(1, signal.SIGSTOP)
                time.sleep(rng.random() * 0.05)
                job.kill(1, signal.SIGCONT)
            job.tell(1, 2)
            job.all("whole", [1, 2])
            job.tell(0)
            counts = job.all("checked", [0])[0].data
            assert min(counts[1:]) > 0
            job.all("good", [0])
            job.tell(0)
            assert [job.reap(r) for r in range(3)] == [0, 0, 0]


def _victims_ring(die):
    """Die 0, whose ring it is, is killed: 1 waits for room, 2 for its submission, 3 for a flag."""
    ring = sdma.open_ring(8) if die.rank == 0 else None
    flag = sdma.flag()
    g, ring, _ = _join(die, ring)
    g.barrier()
    if die.rank == 0:
        ring.submit(sdma.Batch().gate(flag, 1), notify=False)
        g.barrier()
        g.barrier()
        die.say("ready")
        time.sleep(60)
    g.barrier()
    work = ring.submit(sdma.Batch().nop()) if die.rank == 2 else None
    g.barrier()
    die.say("ready")
    if die.rank == 1:
        big = sdma.Batch()
        for _ in range(20):
            big.nop()
        caught = die.catch(ring.submit, big)
    elif die.rank == 2:
        caught = die.catch(work.wait)
        assert work.done() and type(work.exception()) is errors.PeerDead
    else:
        caught = die.catch(sdma.wait, flag, 1, rank=0)
    assert caught.kind == "PeerDead" and caught.ranks == (0,) and caught.operation == "sdma", caught
    for use in (lambda: ring.submit(sdma.Batch()), lambda: ring.tail, ring.drain, lambda: sdma.ring(0, 0)):
        assert die.catch(use).kind == "PeerDead"
    own = sdma.open_ring(4)  # and one's own are as they were
    mine = strata.zeros(1, "u8")
    own.submit(sdma.Batch().fill(mine, 5)).wait(BOUND)
    assert mine[0] == 5
    die.say("dead", caught.time)


def test_the_rings_die_dies():
    with Job(_victims_ring, 4) as job:
        job.all("ready")
        time.sleep(0.05)
        killed = job.kill(0)
        seen = job.all("dead", [1, 2, 3])
        assert max(e.data for e in seen.values()) - killed < BOUND
        assert [job.reap(r) for r in (1, 2, 3)] == [0, 0, 0]


def _busy(die, seed):
    """All copy from all, through own and others' rings, over and over; who outlives the others goes on."""
    g, rng = strata.world(), random.Random(seed + die.rank)
    ring, x, out = sdma.open_ring(16), strata.full(1 << 20, die.rank + 1, "u1"), strata.zeros(1 << 20, "u1")
    said = g.all_gather(strata.array([ring.index, strata.address(x)], "u8")).tolist()
    rings = [sdma.ring(index, r) for r, (index, _) in enumerate(said)]
    g.barrier()
    die.say("ready")
    alive, copied = set(range(g.size)), 0
    end = time.monotonic() + 2 * BOUND
    while copied < 30 or len(alive) == g.size:
        assert time.monotonic() < end
        to, source = rng.choice(sorted(alive)), rng.randrange(g.size)
        try:
            rings[to].submit(sdma.Batch(1 << 16).copy(strata.address(out), said[source][1], 1 << 20)).wait(BOUND)
            assert (out == source + 1).all()  # the dead's memory is still there
            copied += len(alive) < g.size
        except errors.PeerDead as error:
            assert error.ranks == (to,)
            alive.discard(to)
    die.say("survived", sorted(set(range(g.size)) - alive))
    die.hear()


@pytest.mark.reports(maybe=["use after free"], why="they leave when the test tells them to")
@pytest.mark.parametrize("round_", range(3))
def test_a_busy_die_dies(round_):
    seed = random.SystemRandom().randrange(1 << 31)
    rng = random.Random(seed)
    victim, delay = rng.randrange(3), rng.random() * 0.03
    print(f"seed {seed}: die {victim} after {delay * 1e3:.2f} ms")
    with Job(_busy, 3, seed, hbm=64 << 20) as job:
        job.all("ready")
        time.sleep(delay)
        job.kill(victim)
        job.reap(victim)
        rest = [r for r in range(3) if r != victim]
        seen = job.all("survived", rest, bound=3 * BOUND)
        assert all(e.data == [victim] for e in seen.values())
        job.tell(*rest)
        assert [job.reap(r) for r in rest] == [0, 0]
