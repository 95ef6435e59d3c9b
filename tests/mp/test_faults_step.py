"""Members that do not agree, threads, and asynchronous operations that nobody waits for."""

import gc
import os
import random
import signal
import threading
import time

import numpy as np
import pytest
from faultlib import BOUND, Job, check_group

import strata
from strata import errors
from strata._core import closing

# ---- mismatch -----------------------------------------------------------------------------------


def _calls(g, rng):
    """Two calls that do not go together, both small or both large."""
    count = rng.choice((1, 7, 100, 40_000))
    x, y = strata.ones(count * g.size, "f4"), strata.ones((count + 1) * g.size, "f4")
    z = strata.ones(count * g.size, "i4")
    calls = [
        lambda **k: g.all_reduce(x, **k),
        lambda **k: g.all_reduce(y, **k),
        lambda **k: g.all_reduce(z, **k),
        lambda **k: g.all_reduce(x, op="max", **k),
        lambda **k: g.all_gather(x, **k),
        lambda **k: g.all_gather(z, **k),
        lambda **k: g.reduce_scatter(x, **k),
        lambda **k: g.all_to_all(x, **k),
        lambda **k: g.broadcast(x, 0, **k),
        lambda **k: g.broadcast(x, 1, **k),
        lambda **k: g.reduce(x, root=0, **k),
        lambda **k: g.reduce(x, root=1, **k),
        lambda **k: g.gather(x, root=0, **k),
        lambda **k: g.barrier(**k),
        lambda **k: g.all_to_all_v(x, [count] * g.size),
    ]
    pair = rng.sample(calls, 2)
    # The exchange of counts is not asynchronous: it fails before there is a Work.
    return (*pair, calls[-1] not in pair)


def _mismatch(die, rounds, seed):
    g = strata.world()
    rng = random.Random(seed)  # the same on all
    texts = []
    for k in range(rounds):
        one, other, can_be_late = _calls(g, rng)
        odd = rng.randrange(g.size)
        late = can_be_late and rng.random() < 0.3
        fn = other if die.rank == odd else one

        def ask(fn=fn, late=late):
            """The text is of that moment, however late it is asked for."""
            work = fn(async_op=late)
            if late:
                [g.barrier() for _ in range(3)]
                work.wait()

        caught = die.catch(ask)
        assert caught.kind == "CollectiveMismatch", (k, caught)
        assert caught.ranks == tuple(range(g.size)) and caught.group == "world", caught
        assert f"rank {odd}:" in caught.text, (odd, caught)
        texts.append(caught.text)
        if k % 50 == 0:
            check_group(g, range(g.size), rounds=1)
    assert not g.broken
    die.say("texts", hash(tuple(texts)) if rounds > 500 else texts)


@pytest.mark.reports("mismatch")
@pytest.mark.parametrize("n, rounds", [(2, 2000), (3, 300), (5, 100)])
def test_mismatch_is_the_same_on_all_and_leaves_the_group_in_step(n, rounds):
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")
    with Job(_mismatch, n, rounds, seed, env={"PYTHONHASHSEED": "0"}) as job:
        texts = job.all("texts", bound=60)
        assert all(e.data == texts[0].data for e in texts.values())
        assert [job.reap(r) for r in range(n)] == [0] * n


def _counts(die):
    g = strata.world()
    x = strata.ones((12, 3))
    send = [4, 4, 4] if die.rank else [4, 5, 3]
    wrong = die.catch(g.all_to_all_v, x, send, recv_counts=[4, 4, 4])
    short = die.catch(g.all_to_all_v, x, [4, 4, 4], strata.ones((11 if die.rank == 1 else 12, 3)))
    wide = die.catch(g.all_to_all_v, strata.ones((12, 2)) if die.rank == 2 else x, [4, 4, 4])
    scatter = die.catch(g.scatter, x if die.rank == 0 else None, None if die.rank < 2 else strata.ones((5, 3)))
    for caught in (wrong, short, wide, scatter):
        assert caught.kind == "CollectiveMismatch", caught
    assert "5" in wrong.text and "11" in short.text and "24" in wide.text and "16" in wide.text
    # A wrong argument is the caller's own affair: the group stays in step.
    if die.rank == 1:
        assert die.catch(g.all_reduce, x, op="median").kind == "ValueError"
        assert die.catch(g.broadcast, x, 3).kind == "ValueError"
        assert die.catch(g.all_to_all_v, x, [1, 2]).kind == "ValueError"
        assert die.catch(g.all_reduce, np.ones(3, object)).kind in ("TypeError", "UnsupportedType")
    check_group(g, range(3))
    die.say("texts", [c.text for c in (wrong, short, wide, scatter)])


def test_counts_that_disagree():
    with Job(_counts, 3) as job:
        texts = job.all("texts")
        assert all(e.data == texts[0].data for e in texts.values())
        assert [job.reap(r) for r in range(3)] == [0] * 3


# ---- threads ---------------------------------------------------------------------------------------


def _together(*functions):
    """Runs functions in threads of their own; raises what one of them raises."""
    failed = []

    def run(fn):
        try:
            fn()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(fn,), daemon=True) for fn in functions]
    for t in threads:
        t.start()
    for t in threads:
        t.join(BOUND)
        assert not t.is_alive(), "a thread hangs"
    if failed:
        raise failed[0]


def _two_threads_one_group(die):
    g = strata.world()
    n = g.size

    def work(nbytes):
        x = strata.full(nbytes, die.rank + 1, "u1")
        y = strata.empty(nbytes, "u1")
        for _ in range(100):
            g.all_reduce(x, y)
            assert (y == n * (n + 1) // 2).all()

    # The same call from both: whichever comes first, the dies agree.
    _together(lambda: work(1000), lambda: work(1000))
    _together(lambda: work(50_000), lambda: work(50_000))
    sums = [0] * 4

    def messages(tag):
        x, y = np.full(20_000, tag), np.zeros(20_000, int)
        for _ in range(50):
            sent = g.send(x, (die.rank + 1) % n, tag=tag, async_op=True)
            g.recv(y, (die.rank - 1) % n, tag=tag)
            sent.wait()
            assert (y == tag).all()
            sums[tag] += 1

    _together(*(lambda tag=tag: messages(tag) for tag in range(4)))
    assert sums == [50] * 4


def test_threads_share_a_group():
    with Job(_two_threads_one_group, 3) as job:
        assert [job.reap(r, bound=60) for r in range(3)] == [0] * 3


def _threads_and_groups(die):
    g = strata.world()
    groups = [g, g.split(0), g.split(0, key=-die.rank), g.subgroup(range(g.size))]

    def work(h, count):
        x = strata.full(count, h.rank, "i8")
        for k in range(60):
            assert (h.all_gather(x)[:, -1] == np.arange(h.size)).all()
            if k % 5 == 0:
                h.barrier()

    _together(*(lambda h=h, c=c: work(h, c) for h, c in zip(groups, (5, 30_000, 10_000, 300), strict=True)))


def test_groups_run_side_by_side():
    with Job(_threads_and_groups, 3) as job:
        assert [job.reap(r, bound=60) for r in range(3)] == [0] * 3


def _queue_for_the_group(die):
    g = strata.world()
    if die.rank == 0:
        ready = threading.Event()
        thread = threading.Thread(target=lambda: (ready.set(), g.barrier()))
        thread.start()
        ready.wait()
        while g.number < 1:
            pass
        caught = die.catch(g.barrier, timeout=0.2)  # it has not begun: the group is whole
        assert caught.kind == "CollectiveTimeout" and "has not begun" in caught.text, caught
        die.say("waited")
        thread.join()
    else:
        die.hear()
        g.barrier()
    check_group(g, [0, 1])


@pytest.mark.unchecked("a thread's turn is waited for without its timeout then")
def test_a_thread_that_waits_for_its_turn_times_out_alone():
    with Job(_queue_for_the_group, 2) as job:
        job.all("waited", [0])
        job.tell(1)
        assert [job.reap(r) for r in range(2)] == [0, 0]


def _handler(die, bound):
    g = strata.world()
    x = strata.zeros(10)
    call = g.all_reduce.bind(x) if bound else g.barrier
    before, texts = g.number, []

    def handle(*_):
        texts.append(die.catch(call))  # it would wait for what it has interrupted
        texts.append(die.catch(g.all_reduce, x))
        die.say("handled")

    def interrupt():
        while g.number == before:
            pass
        os.kill(os.getpid(), signal.SIGUSR1)

    signal.signal(signal.SIGUSR1, handle)
    if die.rank == 0:
        thread = threading.Thread(target=interrupt)
        thread.start()
        g.all_reduce(x)
        thread.join()
        for caught in texts:
            assert caught.kind == "Deadlock" and "interrupted" in caught.text, caught
        assert len(texts) == 2
    else:
        die.hear()
        g.all_reduce(x)
    if bound:
        call()
    check_group(g, [0, 1])


@pytest.mark.unchecked("operations have other ways then")
@pytest.mark.parametrize("bound", [False, True])
def test_a_handler_that_calls_what_it_interrupted_is_told_at_once(bound):
    with Job(_handler, 2, bound) as job:
        job.all("handled", [0])
        job.tell(1)
        assert [job.reap(r) for r in range(2)] == [0, 0]


# ---- asynchronous operations that nobody waits for ------------------------------------------------------


def _dropped(die):
    g = strata.world()
    x = strata.full(20_000, die.rank, "i8")
    before = None
    for k in range(300):
        g.all_reduce(strata.array(x), async_op=True)  # neither the array nor the Work is kept
        g.send(np.full(2000, k), (die.rank + 1) % g.size, async_op=True)
        y = np.empty(2000, int)
        g.recv(y, (die.rank - 1) % g.size)
        assert (y == k).all()
        if k == 150:
            g.barrier()
            before = strata.memory_stats()
    g.barrier()
    end = time.monotonic() + BOUND
    while g.pending():  # the last send is with its receiver, and about to say that it is done
        assert time.monotonic() < end
    after = strata.memory_stats()
    assert after["allocated_bytes.all.current"] <= before["allocated_bytes.all.current"] + (8 << 20), (before, after)
    # A group that nobody holds any more, with an operation on its way.
    total = strata.zeros(20_000, "i8")
    h = g.split(0)
    work = h.all_reduce(x, total, async_op=True)
    del h
    gc.collect()
    work.wait()
    assert (total == g.size * (g.size - 1) // 2).all()
    # Neither the group nor the Work: the operation goes on, and then both go.
    del work
    gc.collect()
    total[:] = -1
    h = g.split(0)
    if die.rank == 0:
        time.sleep(0.3)  # the others' is on its way for a while
    h.all_reduce(x, total, async_op=True)
    del h
    gc.collect()
    end = time.monotonic() + BOUND
    while not (total == g.size * (g.size - 1) // 2).all():
        assert time.monotonic() < end
        time.sleep(0.01)
    g.barrier()
    closing.sweep()
    gc.collect()
    check_group(g, range(g.size))


@pytest.mark.reports(maybe=["leak", "race"], why="works that nobody waits for")
def test_dropped_works():
    with Job(_dropped, 3) as job:
        assert [job.reap(r, bound=60) for r in range(3)] == [0] * 3


def _finalize_with_works(die):
    g = strata.world()
    h = g.split(0)
    x = strata.ones(100_000)
    if die.rank == 0:
        works = [g.barrier(async_op=True), h.all_reduce(x, async_op=True), h.barrier(async_op=True),
                 g.recv(x, 1, async_op=True)]  # fmt: skip
        die.say("finalizes")
        strata.finalize()
        for work in works:
            caught = die.catch(work.wait) if strata.initialized() else None
            assert work.done() and isinstance(work.exception(), errors.GroupBroken), (caught, work.exception())
        assert die.catch(h.barrier).kind == "NotInJob"
        assert die.catch(g.barrier).kind == "NotInJob"
        assert x.sum() == 100_000
        die.say("left")
        strata.init()
        assert strata.world().rank == 0
        alone = strata.world().subgroup([0])
        assert alone.all_reduce(x, async_op=True).wait().sum() == 100_000
    else:
        die.hear()
        for attempt in (g.barrier, h.barrier):
            caught = die.catch(attempt)
            assert caught.kind in ("PeerDead", "GroupBroken") and caught.ranks == (0,), caught


@pytest.mark.reports(maybe=["leak", "mismatch"], why="works in progress at the end")
def test_finalize_ends_what_is_in_progress():
    with Job(_finalize_with_works, 2) as job:
        job.all("left", [0])
        job.tell(1)
        assert [job.reap(r) for r in range(2)] == [0, 0]


def _again(die):
    for k in range(20):
        strata.init()
        g = strata.world()
        x = np.full(10, die.rank)
        assert g.all_reduce(x, async_op=True).wait()[0] == 1
        g.send(np.array([k]), 1 - die.rank)
        y = np.zeros(1, int)
        g.recv(y, 1 - die.rank, async_op=True).wait()
        assert y[0] == k
        die.say("round")  # both must be there before one leaves, and back before one begins
        die.hear()
        strata.finalize()
        strata.init()
        die.say("back")
        die.hear()


def test_leave_and_return():
    with Job(_again, 2) as job:
        for _ in range(20):
            for word in ("round", "back"):
                job.all(word)
                job.tell()
        assert [job.reap(r) for r in range(2)] == [0, 0]


def _more_plans_than_fit(die):
    g = strata.world()

    def work(base):
        for k in range(700):
            x = np.ones(base + k, "i4")
            assert g.all_gather(x, async_op=k % 7 == 0) is not None

    if die.rank == 0:
        work(1)
    else:
        work(1)
    g.barrier()
    h = g.split(0)
    _together(lambda: work(1000), lambda: [h.all_reduce(np.ones(i + 1)) for i in range(700)])


@pytest.mark.reports(maybe=["leak"], why="works that nobody waits for")
def test_plans_that_run_are_not_dropped():
    with Job(_more_plans_than_fit, 2) as job:
        assert [job.reap(r, bound=90) for r in range(2)] == [0, 0]
