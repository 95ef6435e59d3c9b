"""strata.testing: dies that stay up, and what becomes of calls that go wrong."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
from processes import alive

import strata
from strata import testing
from strata.testing import Pool


def total(group, values):
    return group.all_reduce(strata.array(values[group.rank]))


def place(group):
    return group.rank, group.size, os.getpid()


def raise_on(group, rank, error):
    if group.rank == rank:
        raise error
    group.barrier()


def kill_on(group, rank, number):
    if group.rank == rank:
        os.kill(os.getpid(), number)
    group.barrier()


def sleep_on(group, rank, seconds):
    if group.rank == rank:
        time.sleep(seconds)


def sleep_before_barrier(group, rank, seconds):
    sleep_on(group, rank, seconds)
    group.barrier()


def echo(group, value):
    return value


def out_of_step(group):
    """One die has begun an operation that the others have not."""
    if group.rank == 0:
        group.barrier(async_op=True)


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("stays here")


@pytest.fixture
def own():
    """Pools for one test; makes sure that none of their processes stays."""
    pools = []

    def make(n, **kwargs):
        pools.append(Pool(n, **kwargs))
        return pools[-1]

    yield make
    found = [psutil.Process(pid) for pool in pools for pid in pool.pids]
    for pool in pools:
        pool.close()
    assert not alive(found)


def test_results_come_in_order_of_rank(dies):
    values = np.arange(dies.n * 5.0).reshape(dies.n, 5)
    for result in dies.run(total, values):
        np.testing.assert_array_equal(result, values.sum(axis=0))
    found = dies.run(place)
    assert [(rank, size) for rank, size, _ in found] == [(r, dies.n) for r in range(dies.n)]
    assert [pid for _, _, pid in found] == dies.pids


def test_dies_stay_up(dies):
    assert dies.run(place) == dies.run(place)


def test_a_pool_is_shared_by_those_who_ask_alike():
    assert testing.pool(2) is testing.pool(2)
    assert testing.pool(2) is not testing.pool(3)
    assert testing.pool(2) is not testing.pool(2, mailbox_bytes=0)


def test_pools_of_several_sizes_live_at_once(own):
    pools = [own(n) for n in (1, 2, 3)]
    for _ in range(3):
        for pool in pools:
            assert [r[:2] for r in pool.run(place)] == [(r, pool.n) for r in range(pool.n)]
    assert len({pid for pool in pools for pid in pool.pids}) == 6
    assert {pid for pool in pools for pid in pool.pids} < testing.pids()


def test_functions_travel_by_value_with_what_they_close_over(pair):
    base = np.arange(3)

    def depth(k):
        return 0 if k == 0 else 1 + depth(k - 1)

    def inner(group, scale=2, *, shift=1):
        return depth(4), (base * scale + shift + group.rank).tolist(), np.pi

    assert pair.run(inner) == [(4, [1, 3, 5], np.pi), (4, [2, 4, 6], np.pi)]
    base = base + 10
    assert pair.run(inner, 1)[1] == (4, [12, 13, 14], np.pi)
    assert pair.run(lambda group: group.rank * len(base)) == [0, 3]


def test_large_values_travel_both_ways(pair):
    value = np.arange(3_000_000)
    for result in pair.run(echo, value):
        np.testing.assert_array_equal(result, value)


def test_functions_of_main_that_are_younger_than_the_dies(tmp_path):
    program = (
        "from strata.testing import Pool\n"
        "pool = Pool(2)\n"
        "pool.start()\n"
        "offset = 10\n"
        "def shifted(x): return x + offset\n"
        "def young(group): return shifted(group.rank)\n"
        "print(pool.run(young))\n"
        "offset = 20\n"
        "print(pool.run(young))\n"
    )
    script = tmp_path / "young.py"
    script.write_text(program)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[10, 11]\n[20, 21]\n", "")


def test_modules_that_appear_later_are_found(own, tmp_path, monkeypatch):
    pool = own(2)
    pool.start()
    (tmp_path / "late_module_of_pool.py").write_text("def f(group):\n    return 'late', group.rank\n")
    monkeypatch.syspath_prepend(tmp_path)
    import late_module_of_pool

    assert pool.run(late_module_of_pool.f) == [("late", 0), ("late", 1)]


def test_an_error_is_raised_again_with_rank_and_traceback(own):
    pool = own(3)
    with pytest.raises(KeyError, match="lost") as caught:
        pool.run(raise_on, 1, KeyError("lost"))
    cause = caught.value.__cause__
    assert isinstance(cause, strata.errors.SpawnError)
    assert cause.ranks == (1,)
    assert "rank 1 of 3: KeyError: 'lost'" in str(cause)
    assert "in raise_on" in cause.traceback
    assert [r[:2] for r in pool.run(place)] == [(0, 3), (1, 3), (2, 3)]


def test_every_rank_that_raised_is_named(own):
    def fail(group):
        raise ValueError("all alike")

    with pytest.raises(ValueError, match="all alike") as caught:
        own(3).run(fail)
    assert "ranks 1-2 the same" in str(caught.value.__cause__)


@pytest.mark.reports(maybe=["deadlock"], why="one leaves early, which is seen while others wait")
def test_the_root_cause_is_raised_and_not_its_consequence(own):
    def leave(group):
        if group.rank == 1:
            strata.finalize()
            raise RuntimeError("the cause")
        group.barrier()

    with pytest.raises(RuntimeError, match="the cause"):
        own(2).run(leave)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_what_would_end_a_program_ends_no_die_unseen(own, error):
    with pytest.raises(type(error)):
        own(2).run(raise_on, 0, error)


def test_an_error_that_cannot_travel_arrives_as_text(own):
    def fail(group):
        raise Unpicklable("here")

    with pytest.raises(strata.errors.SpawnError, match="Unpicklable: here") as caught:
        own(1).run(fail)
    assert caught.value.ranks == (0,)


def test_a_result_that_cannot_travel_is_an_error(own):
    pool = own(1)
    with pytest.raises(TypeError, match="pickle"):
        pool.run(lambda group: threading.Lock())
    assert pool.run(echo, 1) == [1]


def test_arguments_that_cannot_travel_are_an_error_here(own):
    pool = own(1)
    with pytest.raises(TypeError, match="pickle"):
        pool.run(echo, threading.Lock())
    assert pool.run(echo, 2) == [2]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_die_that_dies_is_named_and_replaced(own, number):
    pool = own(3)
    before = [pid for _, _, pid in pool.run(place)]
    with pytest.raises(strata.errors.SpawnError) as caught:
        pool.run(kill_on, 2, number)
    assert caught.value.ranks == (2,)
    assert f"rank 2 of 3 died in kill_on (killed by {number.name}" in str(caught.value)
    assert not pool.up
    after = [pid for _, _, pid in pool.run(place)]
    assert not set(before) & set(after)


def test_a_die_that_ends_itself_is_named(own):
    with pytest.raises(strata.errors.SpawnError, match=r"rank 0 of 1 died in <lambda> \(exit code 7\)"):
        own(1).run(lambda group: os._exit(7))


def test_a_die_killed_between_calls_is_an_error_of_the_next_call(own):
    pool = own(2)
    pool.start()
    os.kill(pool.pids[1], signal.SIGKILL)
    with pytest.raises(strata.errors.SpawnError, match="rank 1 of 2 died"):
        pool.run(sleep_before_barrier, 0, 0.5)
    assert pool.run(echo, 5) == [5, 5]


def test_a_stuck_die_is_named_with_the_place_where_it_is(own):
    pool = own(2)
    pool.run(place)  # both are up, and have done it before
    begin = time.monotonic()
    with pytest.raises(strata.errors.SpawnError) as caught:
        pool.run(sleep_on, 1, 60, timeout=0.5)
    assert time.monotonic() - begin < 20
    assert caught.value.ranks == (1,)
    assert "rank 1 of 2 did not come back from sleep_on" in str(caught.value)
    assert "in sleep_on" in caught.value.traceback
    assert pool.run(echo, 3) == [3, 3]


@pytest.mark.reports("deadlock")
def test_a_die_stuck_in_an_operation_ends_with_its_error(own):
    pool = own(2, timeout=3)
    with pytest.raises(strata.CollectiveTimeout, match="rank 1") as caught:
        pool.run(sleep_before_barrier, 1, 30)
    assert caught.value.ranks == (1,)


def test_an_exception_in_the_owner_ends_the_dies(own):
    class Alarm(BaseException):
        pass

    def ring(number, frame):
        raise Alarm

    pool = own(2)
    pool.start()
    before = signal.signal(signal.SIGUSR1, ring)
    try:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        with pytest.raises(Alarm):
            pool.run(sleep_on, 0, 30)
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not pool.up
    assert pool.run(echo, 4) == [4, 4]


def test_dies_out_of_step_are_replaced(own):
    pool = own(2)
    pool.run(out_of_step)
    assert not pool.up
    assert pool.run(echo, 6) == [6, 6]


def begin_everywhere(group):
    group.all_reduce(strata.ones(100_000), async_op=True)


def test_operations_that_end_soon_need_no_new_dies(own):
    pool = own(2)
    pids = pool.run(place)
    for _ in range(5):
        pool.run(begin_everywhere)
    assert pool.run(place) == pids


def test_a_stateful_pool_keeps_what_is_in_progress(own):
    pool = own(2, stateful=True)
    pids = pool.run(place)
    pool.run(out_of_step)
    pool.run(lambda group: group.barrier() if group.rank else None)
    assert pool.run(place) == pids
    pool.run(lambda group: group.barrier())


def test_options_reach_the_dies(own, monkeypatch):
    pool = own(2, hbm="256M", mailbox_bytes=0, yield_ms=1.5)

    def look(group):
        config = group.context.config
        return group.context.hbm_bytes, config.mailbox_bytes, config.yield_ms, config.timeout

    assert pool.run(look) == [(256 << 20, 0, 1.5, 30.0)] * 2
    monkeypatch.setenv("STRATA_TIMEOUT", "7")
    assert own(1).run(look)[0][3] == 7.0
    with pytest.raises(strata.ConfigError, match="did you mean mailbox_bytes"):
        Pool(2, mailbox_byte=1)
    for wrong in ({"n": 0}, {"n": 2, "timeout": 0}, {"n": "2"}):
        with pytest.raises(strata.errors.InvalidArgument):
            Pool(**wrong)


def test_a_pool_that_cannot_start_says_why(own):
    with pytest.raises(strata.StrataError):
        own(4, hbm="16T", window_base=1 << 56).run(place)
    assert own(1).run(echo, 1) == [1]


def test_dies_have_no_standing_input_and_draw_their_own_numbers(own):
    pool = own(3)
    assert pool.run(lambda group: os.read(0, 1)) == [b""] * 3
    drawn = pool.run(lambda group: np.random.random())
    assert len(set(drawn)) == 3


def test_nesting_is_refused(own):
    def nest(group):
        with pytest.raises(strata.StrataError, match="do not nest"):
            Pool(1).run(echo, 1)

    own(1).run(nest)


def test_threads_share_a_pool(own):
    pool, failed = own(2), []

    def work(k):
        for i in range(20):
            if pool.run(echo, (k, i)) != [(k, i)] * 2:
                failed.append((k, i))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_files_and_memory_do_not_grow(own):
    pool, me = own(2), psutil.Process()

    def once():
        pool.run(echo, 1)
        with pytest.raises(ZeroDivisionError):
            pool.run(lambda group: 1 / 0)
        pool.close()

    once()
    before = me.num_fds()
    for _ in range(10):
        once()
    assert me.num_fds() == before

    def files(group):
        return len(os.listdir("/proc/self/fd"))

    first = pool.run(files)
    for i in range(200):
        pool.run(echo, i)
    assert pool.run(files) == first
