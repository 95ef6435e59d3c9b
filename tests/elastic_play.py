"""Program of tests/mp/test_elastic*.py, run by strata-run: dies are killed, come back, and all works afterwards.

    strata-run -n N --restarts K tests/elastic_play.py SCENARIO DIRECTORY [ARGUMENTS]

DIRECTORY holds files by which dies tell each other, outside the library, how far they are.
"""

import ctypes
import gc
import os
import pathlib
import signal
import sys
import threading
import time

import numpy as np

import strata
from strata import growing, moe

PLACE = pathlib.Path(sys.argv[2])
ARGUMENTS = sys.argv[3:]
RANK = int(os.environ["STRATA_RANK"])
LIFE = int(os.environ["STRATA_INCARNATION"])
LARGE = 1 << 21  # elements: 8 MiB, more than a unit
LOST = (strata.PeerDead, strata.GroupBroken)
PATIENCE = 60.0


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def mark(name):
    (PLACE / name).touch()


def until(name):
    end = time.monotonic() + PATIENCE
    while not (PLACE / name).exists():
        assert time.monotonic() < end, f"{name} did not come"
        time.sleep(0.002)


def raises(kinds, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kinds as error:
        return error
    raise AssertionError(f"{call} did not raise")


def works(g):
    """Each kind of operation, on a group."""
    n, r = g.size, g.rank
    x = strata.full(LARGE // 8, r + 1, "f4")
    g.all_reduce(x)
    assert (x == n * (n + 1) / 2).all()
    for path in ("mte", "sdma"):
        y = g.all_gather(strata.full(50_000, r, "i4"), path=path)
        assert (y == np.arange(n)[:, None]).all(), path
    assert int(g.all_reduce(np.array([r]))[0]) == n * (n - 1) // 2
    small, large = strata.full(8, r, "i4"), strata.full(50_000, r, "i4")
    got = strata.empty(8, "i4"), strata.empty(50_000, "i4")
    sends = [g.send(a, (r + 1) % n, async_op=True) for a in (small, large)]
    for a in got:
        g.recv(a, (r - 1) % n)
        assert (a == (r - 1) % n).all()
    for work in sends:
        work.wait()
    h = g.split(r % 2)
    assert int(h.all_reduce(np.array([1]))[0]) == h.size
    with strata.Stream() as s:
        with strata.stream(s):
            z = g.all_gather(small)
        s.synchronize()
    assert (z == np.arange(n)[:, None]).all()
    with strata.capture() as graph:
        out = g.all_gather(large)
    for step in range(2):
        large[:] = r + step
        graph.replay()
        assert (out == (np.arange(n) + step)[:, None]).all()
    graph.close()
    rng = np.random.default_rng(r)
    tokens = strata.array(rng.standard_normal((16, 32)), "f4")
    chosen = np.argsort(rng.random((16, 8)))[:, :2].astype(moe.topk_idx_t)
    if 8 % n == 0:
        buffer = moe.Buffer(g)
        per_rank, _, per_expert, inside, _ = buffer.get_dispatch_layout(chosen, 8)
        rows, _, weights, _, handle, _ = buffer.dispatch(
            tokens, num_tokens_per_rank=per_rank, is_token_in_rank=inside, num_tokens_per_expert=per_expert,
            topk_idx=chosen, topk_weights=np.full((16, 2), 0.5, "f4"))  # fmt: skip
        combined = buffer.combine(rows * weights.sum(axis=1, keepdims=True), handle)[0]
        assert np.allclose(combined, tokens, atol=1e-5)
    g.barrier()


def done(g, victims=()):
    """The end of a scenario: what the test looks for."""
    lives = g.all_gather(np.array([strata.incarnation()]))[:, 0].tolist()
    assert list(g.ranks) == sorted(g.ranks)
    print(f"done {RANK} {g.name} {lives}", flush=True)


def fail(g):
    """Operations until one raises; what it was."""
    x = strata.ones(LARGE, "f4")
    while True:
        try:
            g.all_reduce(x)
        except LOST as error:
            return error


def whole(g):
    """Shrinks and grows until all are there."""
    while True:
        g = g.shrink()
        try:
            return g.grow(timeout=PATIENCE)
        except LOST:
            pass


# --- scenarios


def kill():
    """Some dies (ARGUMENTS) die: while idle, or in the middle of something."""
    moment, victims = ARGUMENTS[0], [int(v) for v in ARGUMENTS[1:]]
    g = strata.world()
    if strata.incarnation():
        works(g)
        return done(g)
    works(g)
    if RANK in victims:
        if moment == "idle":
            die()
        delay = np.random.default_rng().random() * 0.01
        threading.Timer(delay, die).start()
    error = fail(g)
    assert set(error.ranks) <= set(victims) and error.ranks, error
    full = whole(g)
    for _ in range(3):
        assert raises(LOST, g.all_reduce, strata.ones(4, "f4"))
    assert full.ranks == g.ranks and full.name == "world.grow1", full
    works(full)
    return done(full)


def busy():
    """A survivor notices nothing until the dead one's successor is there and waits."""
    victim, slow = int(ARGUMENTS[0]), int(ARGUMENTS[1])
    if LIFE:
        strata.init()
        x = strata.full(LARGE, 77.0, "f4")  # its HBM is its own
        mark("back")
        g = strata.world()
        works(g)
        assert (x == 77.0).all()
        return done(g)
    g = strata.world()
    mine = strata.full(LARGE, RANK, "f4")
    everyone = g.all_gather(np.array([strata.address(mine)]))[:, 0]
    small = g.subgroup([victim, slow]) if RANK in (victim, slow) else None
    g.barrier()
    if RANK == victim:
        die()
    if RANK == slow:
        until("back")
        theirs = np.frombuffer((ctypes.c_float * LARGE).from_address(int(everyone[victim])), "f4")
        assert set(np.unique(theirs)) <= {0.0, float(victim)}  # what was there, or nothing: not 77
        assert raises(strata.PeerDead, small.all_reduce, mine).ranks == (victim,)
        assert raises(LOST, small.recv, mine, small.ranks.index(victim)).ranks == (victim,)
        assert small.shrink().size == 1
        old = np.ndarray(4, "f4", theirs[:4].data)
        assert raises((strata.RegistrationError, *LOST), g.all_reduce, old)
    else:
        fail(g)
    assert raises(LOST, g.all_reduce, mine)
    full = whole(g)
    works(full)
    return done(full)


def hbm():
    """The dead one had used all of its HBM, and led a group that survivors keep."""
    victim = int(ARGUMENTS[0])
    room = strata.bootstrap.context().hbm_bytes
    if LIFE:
        strata.init()
        part = [strata.full(room // 4, 1, "u1") for _ in range(2)]  # waits for what the other had
        g = strata.world()
        g.barrier()
        assert strata.stats()["former_bytes"] > 0  # the pinned pages
        g.barrier()
        end = time.monotonic() + PATIENCE
        while strata.stats()["former_bytes"]:
            assert time.monotonic() < end
            time.sleep(0.005)
        part.append(strata.full(room // 4, 2, "u1"))
        works(g)
        return done(g)
    g = strata.world()
    led = g.subgroup([victim, *(r for r in g.ranks if r != victim)])
    led.barrier()
    kept = strata.full(room // 2, RANK, "u1") if RANK == victim else None
    g.barrier()
    if RANK == victim:
        assert kept is not None
        die()
    fail(g)
    full = whole(g)
    assert raises(LOST, led.barrier)
    full.barrier()
    h = led.shrink()  # by memory that lies in the dead one's HBM
    h.barrier()
    assert h.size == g.size - 1
    del led
    gc.collect()
    full.barrier()
    works(full)
    return done(full)


def again():
    """The same die dies several times: in the group that grew, before init(), in world(), and as grow() takes it."""
    where = ARGUMENTS
    if LIFE and LIFE <= len(where):
        at = where[LIFE - 1]
        if at == "start":
            die()
        if at == "init":
            strata.init()
            die()
        if at == "world":
            growing.core.await_offer = lambda *_: die()
        if at == "taken":
            growing.core.read_offer = lambda *_: die()
        if at == "code":
            sys.exit(7)
    g = strata.world()
    if not strata.incarnation():
        if RANK == 1:
            die()
        fail(g)
        g = whole(g)
    if LIFE == 1 and where[:1] == ["grown"]:
        g.barrier()
        die()
    if where[:1] == ["grown"] and RANK != 1:
        g.barrier()
        fail(g)
        g = whole(g)
    works(g)
    return done(g)


def second():
    """A survivor (the first one: it leads) dies in the middle of grow()."""
    at = ARGUMENTS[0]
    g = strata.world()
    if strata.incarnation():
        works(g)
        return done(g)
    if RANK == 2:
        die()
    fail(g)
    h = g.shrink()
    if at == "first" and RANK == 0:
        growing.core.offer = lambda *_: die()
    if at == "offered" and RANK == 0:
        offer = growing.core.offer
        growing.core.offer = lambda *a: (offer(*a), die())
    if at == "other" and RANK == 1:
        growing._bind = lambda *_: die()
    assert raises(LOST, h.grow, timeout=PATIENCE)
    full = whole(h)
    works(full)
    return done(full)


def nobody():
    """Nobody is started again: grow() says so, and the group goes on."""
    g = strata.world()
    if RANK == 1:
        die()
    fail(g)
    h = g.shrink()
    error = raises(strata.CollectiveTimeout, h.grow, timeout=0.3)
    assert error.ranks == (1,) and "rank 1" in str(error), error
    raises(ValueError, h.grow, [0])
    raises(ValueError, h.grow, [g.size])
    same = h.grow([])
    assert same.ranks == h.ranks and same.name == "world.grow1"
    works(same)
    works(h)
    error = raises(strata.CollectiveMismatch, h.grow, [1] if h.rank else [])
    assert error.operation in ("grow", "all_gather")
    works(h)
    return done(h)


def some():
    """Two are dead; the group takes in one, then the other."""
    g = strata.world()
    if strata.incarnation():
        if RANK == 2:
            g = g.grow([1])
        works(g)
        return done(g)
    if RANK in (1, 2):
        die()
    fail(g)
    h = g.shrink()
    while h.size > g.size - 2:
        h = h.shrink()
    part = h.grow([2])
    assert part.ranks == tuple(r for r in g.ranks if r != 1)
    full = part.grow([1])
    assert full.ranks == g.ranks and full.name == "world.grow2"
    works(full)
    return done(full)


def alone():
    """All die at the same time: nobody is left who could grow."""
    g = strata.world() if not LIFE else None
    if g is not None:
        g.barrier()
        die()
    strata.init()
    assert "no die is left" in str(raises(strata.PeerDead, strata.world))
    print(f"done {RANK}", flush=True)


def use():
    """What this process holds: open files, threads, mappings; and bytes of the job's shared memory."""
    gc.collect()
    files = os.listdir("/proc/self/fd")
    space = 0
    for fd in files:
        try:
            if "/strata." in os.readlink(f"/proc/self/fd/{fd}"):
                space = os.stat(f"/proc/self/fd/{fd}").st_blocks * 512
        except FileNotFoundError:
            pass  # the one that listed the directory
    maps = pathlib.Path("/proc/self/maps").read_text().count("strata.")
    return {"files": len(files), "threads": len(os.listdir("/proc/self/task")), "maps": maps, "bytes": space}


def rounds():
    """One die after the other dies and comes back; what the first one holds stays the same."""
    count, held = int(ARGUMENTS[0]), []
    g = strata.world()
    at = -1
    while True:
        at = int(g.all_gather(np.array([at]))[:, 0].max())
        x = strata.full(LARGE, at, "f4")
        g.all_reduce(x)
        assert (x == at * g.size).all()
        g.barrier()
        held.append(use())
        if at == count:
            break
        if RANK == 1 + at % (g.size - 1):
            die()
        fail(g)
        g = whole(g)
        at += 1
    if RANK == 0:
        for line in held:
            print("held", line, flush=True)
        print("left", {k: strata.stats()[k] for k in ("quarantined_bytes", "former_bytes")}, flush=True)
    done(g)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
