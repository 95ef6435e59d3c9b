"""Streams in large numbers and with much queued, closed, dropped, at finalize and in forked children."""

import gc
import os
import threading

import numpy as np
import pytest
from collectives_play import in_step
from faultlib import Job
from streaming import COUNT, gated

import strata
from strata import NotInJob, RingFull, sdma
from strata.testing import Pool


def many(group, items):
    """Queued without waiting: no more than so many are in progress, and memory stays what it is."""
    n = group.size
    s = strata.Stream()
    x, y = strata.zeros(COUNT, "i8"), strata.zeros(3, "i8")
    most = 0
    for k in range(items):
        with strata.stream(s):
            if k % 5 == 0:
                group.all_reduce(y)
            elif k % 5 == 1:
                s.fill(y, k)
            elif k % 5 == 2:
                s.submit(sdma.Batch().reduce(x, x, "max"))
            elif k % 5 == 3:
                group.barrier()
            else:
                s.fill(x, k)
        most = max(most, len(s.progress))
        if k == items // 10:
            before = strata.memory_stats()["allocation.all.current"]
    s.synchronize()
    assert most <= 256
    assert strata.memory_stats()["allocation.all.current"] <= before + 2
    assert (x == items - 1).all() and (y == items - 4).all()
    assert sdma._engine().pending == 0 and group.pending() == 0
    s.close()
    assert n == group.size


def test_ten_thousand_items(pair):
    pair.run(many, 10_000)


def long_chain(group):
    """More descriptors than the ring holds go in part by part."""
    s = strata.Stream(depth=16)
    x = strata.zeros(1000, "i8")
    batch = sdma.Batch()
    for k in range(1000):
        batch.fill(x[k : k + 1], k)
    flag = gated(s)
    sdma.write(flag, 1)
    s.submit(batch)
    for k in range(40):
        s.fill(x[k : k + 1], -k)
    s.synchronize()
    assert (x[40:] == np.arange(40, 1000)).all() and (x[:40] == -np.arange(40)).all()
    s.close()


def test_a_chain_that_is_longer_than_the_ring(pair):
    pair.run(long_chain)


def _torn(die):
    """A chain that did not come into the ring as a whole: nothing after it is carried out, and the peer hears of it."""
    g = strata.world()
    x = strata.zeros(COUNT, "i8")
    g.barrier(timeout=60)
    if die.rank == 0:
        s, t = strata.Stream(depth=4), strata.Stream()
        flag = gated(s)
        before = s.record_event()
        batch = sdma.Batch()
        for k in range(100):
            batch.fill(x[k : k + 1], 1)
        caught = die.catch(s.submit, batch)
        assert caught.kind == "CollectiveTimeout" and "stayed full" in caught.text, caught
        for call in (lambda: s.fill(x, 2), s.record_event):
            caught = die.catch(call)
            assert caught.kind == "Cancelled" and "stayed full" in caught.text, caught
        with strata.stream(s):
            work = g.all_reduce(x, timeout=60, async_op=True)
        assert die.catch(work.wait).kind == "Cancelled"
        assert not before.query()
        t.wait_event(before)
        sdma.write(flag, 1)
        t.synchronize()
        before.synchronize()
        caught = die.catch(s.synchronize)
        assert caught.kind == "CollectiveTimeout" and "stayed full" in caught.text, caught
        s.fill(x, 3)
        s.synchronize()
        assert (x == 3).all()
    else:
        assert die.catch(g.all_reduce, x, timeout=60).kind == "CollectiveMismatch"
        x[:] = 4
    g.all_reduce(x, timeout=60)
    assert (x == 7).all()


def test_a_chain_that_is_cut():
    with Job(_torn, 2, env={"STRATA_TIMEOUT": "0.2"}) as job:
        for rank in (0, 1):
            assert job.reap(rank) == 0


def rings(group):
    """Streams that are closed, or dropped with work in progress, leave nothing."""
    strata.Stream().close()
    before = strata.stats()["sdma"]["rings"]
    x = strata.zeros(10)
    for k in range(1500):
        s = strata.Stream(depth=8)
        s.fill(x, k)
        if k % 3 == 0:
            s.close()
    del s
    gc.collect()
    while strata.stats()["sdma"]["rings"] > before:
        strata.Stream(depth=8).close()
    assert strata.stats()["sdma"]["rings"] == before
    held = [strata.Stream(depth=2) for _ in range(1024 - before)]
    with pytest.raises(RingFull, match="close some"):
        strata.Stream(depth=2)
    for s in held:
        s.close()
    memory = strata.memory_stats()["allocation.all.current"]
    for _ in range(200):
        with strata.Stream(depth=8) as s, strata.stream(s):
            group.all_reduce(x)
    assert strata.memory_stats()["allocation.all.current"] <= memory + 2


@pytest.mark.reports("race", why="fills of one array by streams that nobody waits for")
def test_streams_leave_no_rings(pair):
    pair.run(rings)


def finalized(group):
    me = group.rank
    s, t = strata.Stream(), strata.Stream()
    x = strata.ones(COUNT)
    gated(s)
    seen = []
    with strata.stream(s):
        work = group.all_reduce(x, async_op=True)
    t.wait_stream(s)

    def wait():
        try:
            s.synchronize()
        except BaseException as error:
            seen.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    strata.finalize()
    thread.join()
    assert isinstance(seen[0], NotInJob), seen
    for call in (s.synchronize, s.query, lambda: t.fill(x, 1), lambda: work.wait(), s.record_event):
        with pytest.raises(NotInJob):
            call()
    s.close()
    strata.init()
    again = strata.world()
    with strata.Stream() as s, strata.stream(s):
        s.fill(x, me)
        again.all_reduce(x)
    assert (x == again.size * (again.size - 1) / 2).all()
    with pytest.raises(NotInJob):
        t.synchronize()


def test_finalize_ends_streams():
    with Pool(2) as pool:
        pool.run(finalized)
        pool.run(in_step)


def forked(group):
    s = strata.Stream()
    event = gated_event = s.record_event()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for call in (s.synchronize, s.query, s.close, lambda: strata.Stream(), lambda: s.fill(strata.ones(2), 1)):
                with pytest.raises(NotInJob):
                    call()
            del s, event, gated_event
            gc.collect()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    s.fill(strata.ones(2), 1)
    s.close()


def test_a_forked_child_has_no_streams(pair):
    pair.run(forked)
