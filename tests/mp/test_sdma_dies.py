"""Descriptors, rings and flags between dies."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import strata
from strata import errors, sdma, testing

BOUND = 30.0  # seconds in which anything that a test waits for must have happened


@pytest.fixture(params=(2, 3, 4), ids="n{}".format)
def some(request):
    """A pool of n dies."""
    pool = testing.pool(request.param)
    pool.start()
    return pool


def told(g, number):
    """What each die says, one number each."""
    return [int(x) for x in g.all_gather(strata.array([number], "u8"))[:, 0]]


def places(g, *arrays):
    """Addresses of the arrays on each die: one list a die."""
    return g.all_gather(strata.array([strata.address(x) for x in arrays], "u8")).tolist()


def pattern(rank, count, k=0):
    """Numbers that depend on die, place and round."""
    return (np.arange(count, dtype="u4") * 2654435761 + rank * 7919 + k * 104729).astype("u4")


def _each_to_each(g):
    ring = sdma.open_ring(16)
    rings = [sdma.ring(i, r) for r, i in enumerate(told(g, ring.index))]
    src, out = strata.array(pattern(g.rank, 1000)), strata.zeros((g.size, 1000), "u4")
    everybody = places(g, src, out)
    for k in range(5):
        src[:] = pattern(g.rank, 1000, k)
        g.barrier()
        # die r's DMA thread carries r's array here, and writes a flag here
        flags = sdma.flag(g.size)
        works = [
            rings[r].submit(sdma.Batch(block=512).copy(strata.address(out) + 4000 * r, everybody[r][0], 4000)
                            .write(flags[r : r + 1], k + 1))
            for r in range(g.size)
        ]  # fmt: skip
        for r, work in enumerate(works):
            sdma.wait(flags[r : r + 1], k + 1, rank=r, timeout=BOUND)
            work.wait(BOUND)
            assert work.exception() is None and (out[r] == pattern(r, 1000, k)).all()
            assert f"ring {rings[r].index} of rank {r}" in repr(work)
        g.barrier()
    before = ring.tail
    g.barrier()
    ring.drain(BOUND)
    assert before == g.size * 5 * 10  # 8 copies, the flag and the notification
    for other in rings:
        other.close()  # of others' only the object
        with pytest.raises(errors.NotInJob):
            other.submit(sdma.Batch())
    g.barrier()


def test_each_submits_to_each(some):
    some.run(_each_to_each)


def _peers_memory(g):
    """This die's DMA thread reads, adds to and fills peers' arrays."""
    ring, n = sdma.open_ring(), 50_000
    src, total, marks = strata.array(pattern(g.rank, n)), strata.zeros(n, "u4"), strata.zeros((g.size, 8), "u2")
    everybody = places(g, src, total, marks)
    batch = sdma.Batch()
    other = strata.zeros((g.size, n), "u4")
    for r, (source, target, mark) in enumerate(everybody):
        batch.copy(strata.address(other[r]), source, 4 * n)
        made = sdma.Batch().reduce(total, src, atomic=True).build()
        made["dst"] += np.uint64(target) - np.uint64(strata.address(total))
        sdma.seal(made)
        ring.submit(made).wait(BOUND)
        fill = sdma.Batch().fill(marks[g.rank], g.rank + 1).build()
        fill["dst"] = mark + 16 * g.rank
        sdma.seal(fill)
        ring.submit(fill).wait(BOUND)
    ring.submit(batch).wait(BOUND)
    g.barrier()
    assert all((other[r] == pattern(r, n)).all() for r in range(g.size))
    want = sum(pattern(r, n).astype("u8") for r in range(g.size)) & 0xFFFFFFFF
    assert (total == want).all()
    assert (marks == np.arange(1, g.size + 1)[:, None]).all()
    g.barrier()
    ring.close()


def test_memory_of_peers(some):
    some.run(_peers_memory)


def _ping_pong(g, rounds):
    """Each die's ring waits for the other's flag, takes the other's word, adds its own, and raises the other's flag;
    all of it is queued before it begins."""
    ring, me, other = sdma.open_ring(4096), g.rank, 1 - g.rank
    flag, word, ones = sdma.flag(), strata.zeros(1, "u8"), strata.ones(1, "u8")
    theirs = places(g, flag, word)[other]
    g.barrier()
    batch = sdma.Batch()
    for k in range(rounds):
        batch.gate(flag, k + 1, timeout=BOUND).copy(strata.address(word), theirs[1], 8).reduce(word, ones)
        batch.write(theirs[0], k + 1 + me)
    if me == 0:
        sdma.write(flag, 1)  # before it is queued, or it is a cycle of gates that the host is to open
    work = ring.submit(batch)
    work.wait(2 * BOUND)
    g.barrier()
    assert word[0] == 2 * rounds - (1 - me)
    g.barrier()
    ring.close()


def test_ping_pong(pair):
    pair.run(_ping_pong, 300)


def _token(g, rounds):
    """A token goes round all dies, by gates alone."""
    ring = sdma.open_ring(1024)
    flag, token, ones = sdma.flag(), strata.zeros(1, "u8"), strata.ones(1, "u8")
    everybody = places(g, flag, token)
    before, after = everybody[g.rank - 1], everybody[(g.rank + 1) % g.size]
    batch = sdma.Batch()
    for k in range(rounds):
        batch.gate(flag, k + 1, timeout=BOUND).copy(strata.address(token), before[1], 8).reduce(token, ones)
        batch.add(after[0])
    g.barrier()
    if g.rank == 0:
        sdma.write(flag, 1)
    work = ring.submit(batch)
    work.wait(2 * BOUND)
    g.barrier()
    assert token[0] == (rounds - 1) * g.size + g.rank + 1
    g.barrier()
    ring.close()


def test_token_round_a_ring_of_gates(some):
    some.run(_token, 60)


def _many_producers(g, depth, rounds):
    """All fill one ring; a chain's descriptors stay together and in order, each die's chains in its own order."""
    ring = sdma.open_ring(depth) if g.rank == 0 else None
    index = told(g, ring.index if ring else 0)[0]
    log, count = strata.zeros((rounds * g.size, 2), "u4"), strata.zeros(1, "u4")
    target = places(g, log, count)[0]
    ring = sdma.ring(index, 0)
    values = strata.array(np.arange(rounds * 2, dtype="u4").reshape(-1, 2) + (g.rank + 1) * 1_000_000)
    g.barrier()
    works = []
    for k in range(rounds):
        at = target[0] + 8 * (k * g.size + g.rank)
        batch = sdma.Batch().copy(at, strata.address(values[k]), 4).copy(at + 4, strata.address(values[k]) + 4, 4)
        if k % 10 == 9:
            works.append(ring.submit(batch))
        else:
            ring.submit(batch, notify=False, timeout=BOUND)
    for work in works:
        work.wait(BOUND)
    g.barrier()
    if g.rank == 0:
        ring.drain(BOUND)
        assert ring.head == ring.tail == g.size * (2 * rounds + len(works))
        seen = log.reshape(rounds, g.size, 2)
        want = np.arange(rounds * 2).reshape(-1, 1, 2) + np.arange(1, g.size + 1)[None, :, None] * 1_000_000
        assert (seen == want).all()
    g.barrier()


@pytest.mark.parametrize("depth", [2, 4, 64])
def test_many_producers(some, depth):
    some.run(_many_producers, depth, 200)


def _poison(g):
    """A chain that fails on one die fails, by its flag, those that wait for it on the others, one after another."""
    ring, flag, out = sdma.open_ring(), sdma.flag(), strata.zeros(1, "u1")
    flags = [p[0] for p in places(g, flag)]
    batch = sdma.Batch()
    if g.rank == 0:
        bad = np.zeros(1, sdma.DESCRIPTOR)
        bad["type"], bad["bytes"] = 1, 8
        batch = np.concatenate([bad, sdma.Batch().write(flags[1 % g.size], 1).build()])
    else:
        batch.gate(flag, 1, timeout=BOUND).fill(out, 1).write(flags[(g.rank + 1) % g.size], 1)
    work = ring.submit(batch)
    with pytest.raises(errors.RegistrationError, match="copy of 8 bytes" if g.rank == 0 else "gate on flag"):
        work.wait(BOUND)
    with pytest.raises(errors.RegistrationError, match="is poisoned"):
        sdma.wait(flag, 1, rank=(g.rank - 1) % g.size, timeout=BOUND)
    assert not out[0]
    g.barrier()
    ring.submit(sdma.Batch().fill(out, 2)).wait(BOUND)
    assert out[0] == 2
    ring.close()


def test_poison_goes_from_die_to_die(some):
    some.run(_poison)


def _error_of_another(g):
    """A submission to another die's ring ends with that die's error, which names the descriptor."""
    ring = sdma.open_ring(8)
    index = told(g, ring.index)
    other = sdma.ring(index[1], 1)
    if g.rank == 0:
        bad = np.zeros(3, sdma.DESCRIPTOR)
        bad["type"] = (10, 1, 10)
        bad["bytes"] = (0, 16, 0)
        for k in range(20):
            work = other.submit(bad)
            assert work.first == 4 * k
            with pytest.raises(errors.RegistrationError) as caught:
                work.wait(BOUND)
            text = f"descriptor {work.first + 1} of ring {index[1]} of rank 1, copy of 16 bytes from 0x0 to 0x0"
            assert text in str(caught.value) and caught.value.ranks == (1,)
            assert work.done() and work.exception() is caught.value
        with pytest.raises(ValueError, match="another die's ring cannot be cancelled"):
            held = other.submit(sdma.Batch().gate(sdma.flag(), 1, timeout=0.2))
            held.cancel()
        done = False
        while not done:  # never raises
            done = held.done()
        assert isinstance(held.exception(), errors.CollectiveTimeout)
    g.barrier()
    ring.close()


def test_errors_of_another_dies_thread(pair):
    pair.run(_error_of_another)


def _cycle(g):
    """Each die's ring waits for a flag that the next one raises behind its own gate: nobody will."""
    ring, flag, out = sdma.open_ring(), sdma.flag(), strata.zeros(1, "u1")
    after = places(g, flag)[(g.rank + 1) % g.size][0]
    g.barrier()
    work = ring.submit(sdma.Batch().gate(flag, 1, timeout=BOUND).fill(out, 1).write(after, 1))
    with pytest.raises(errors.Deadlock, match="gate on flag") as caught:
        work.wait(BOUND)
    assert not out[0]
    with pytest.raises(errors.Deadlock, match="is poisoned"):
        sdma.wait(flag, 1, timeout=BOUND)
    g.barrier()
    ring.submit(sdma.Batch().fill(out, 1)).wait(BOUND)
    ring.close()
    return strata.address(flag), str(caught.value), caught.value.ranks


def test_cycles_of_gates(some):
    """All get Deadlock: who finds the cycle names all of its dies and flags, the others may have it by the poison."""
    said = some.run(_cycle)
    found = [(text, ranks) for _, text, ranks in said if set(ranks) == set(range(some.n))]
    assert found, said
    for text, _ in found:
        assert all(f"flag {flag:#x}" in text for flag, _, _ in said), said


def _given_back(g):
    """The owner gives memory back that others have named: their descriptors fail, on whichever ring."""
    ring = sdma.open_ring()
    index = told(g, ring.index)
    out = strata.zeros(1000, "u1")
    x = strata.ones(6 << 20, "u1") if g.rank == 0 else None
    at = told(g, strata.address(x) if g.rank == 0 else 0)[0]
    batch = sdma.Batch().copy(strata.address(out), at + (5 << 20), 1000)
    write = sdma.Batch().copy(at + (3 << 20), strata.address(out), 1000)
    batch.build()
    write.build()
    g.barrier()
    mine, others = sdma.ring(ring.index), sdma.ring(index[(g.rank + 1) % g.size], (g.rank + 1) % g.size)
    mine.submit(batch).wait(BOUND)
    assert (out == 1).all()
    g.barrier()
    if g.rank == 0:
        del x
        strata.empty_cache()
    g.barrier()
    out[:] = 0
    for to in (mine, others):
        for what in (batch, write):
            with pytest.raises(errors.RegistrationError, match="copy of 1000 bytes"):
                to.submit(what).wait(BOUND)
    assert not out.any()
    g.barrier()
    ring.close()


@pytest.mark.reports(maybe=["use after free"], why="that is what it is about")
def test_memory_that_was_given_back(some):
    some.run(_given_back)


def _given_back_meanwhile(g, rounds):
    """Die 0 gives memory back at any time; copies from it are whole, or fail, and nobody crashes."""
    ring = sdma.open_ring()
    out = strata.zeros(4 << 20, "u1")
    good = bad = 0
    for k in range(rounds):
        x = strata.full(4 << 20, k + 1, "u1") if g.rank == 0 else None
        at = told(g, strata.address(x) if g.rank == 0 else 0)[0]
        if g.rank:
            batch = sdma.Batch(block=4 << 20).copy(strata.address(out), at, 4 << 20)
            batch.build()
        g.barrier()
        if g.rank == 0:
            ring.submit(sdma.Batch(block=1 << 16).copy(strata.address(x), strata.address(out), 1 << 20), notify=False)
            del x
            strata.empty_cache()
        else:
            work = ring.submit(batch)
            try:
                work.wait(BOUND)
                assert (out[1 << 20 :] == k + 1).all()
                good += 1
            except errors.RegistrationError:
                bad += 1
        g.barrier()
    ring.drain(BOUND)
    ring.close()
    return good, bad


@pytest.mark.reports(maybe=["use after free", "race"], why="that is what it is about")
def test_memory_that_is_given_back_meanwhile(some):
    said = some.run(_given_back_meanwhile, 30)
    print(f"copies that came first, and that failed: {said[1:]}")
    assert all(good + bad == 30 for good, bad in said[1:])


def _full_queues(g):
    """Leaves with full queues everywhere: everybody's submissions end, whoever leaves first."""
    ring, gate = sdma.open_ring(8), sdma.flag()
    index = told(g, ring.index)
    g.barrier()
    after = (g.rank + 1) % g.size
    held = ring.submit(sdma.Batch().gate(gate, 1))
    g.barrier()
    other = sdma.ring(index[after], after)
    works = [other.submit(sdma.Batch().nop()) for _ in range(3)]
    assert not any(work.done() for work in works)
    g.barrier()
    if g.rank % 2 == 0:
        strata.finalize()
        with pytest.raises(errors.NotInJob):
            held.wait(BOUND)
    else:
        for work in works:
            with pytest.raises((errors.NotInJob, errors.PeerDead)) as caught:
                work.wait(BOUND)
            assert caught.value.ranks == (after,)
        with pytest.raises((errors.NotInJob, errors.PeerDead)):
            other.submit(sdma.Batch().nop(), timeout=BOUND)
    assert all(work.done() for work in works) or g.rank % 2


def test_leaving_with_full_queues():
    for n in (2, 4):
        with testing.Pool(n) as pool:
            pool.run(_full_queues)


@pytest.mark.parametrize("n", [1, 4])
def test_the_example_of_the_documentation(n, tmp_path):
    root = Path(__file__).parents[2]
    text = (root / "docs" / "sdma.md").read_text()
    program = tmp_path / "pull.py"
    program.write_text(text.split("```python\n")[1].split("```")[0])
    done = subprocess.run(
        [sys.executable, "-m", "strata.launch", "-n", str(n), str(program)],
        cwd=root, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [f"die {r} has what die {(r + 1) % n} had" for r in range(n)]
