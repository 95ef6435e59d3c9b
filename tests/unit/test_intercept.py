"""Which arrays are the fabric's, resizing, blocks, contexts and threads."""

import asyncio
import contextvars
import queue
import random
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from intercepting import big, gives_all_back, job  # noqa: F401

import strata
from strata import bootstrap

PAGE = 1 << 21
KIB = 1 << 10


def counted():
    return strata.stats()["intercept"]


# ---- what is the fabric's, and what is not ------------------------------------------


@pytest.mark.parametrize("least", [0, 1, 1000, KIB, 4096, PAGE])
def test_min_bytes_is_the_limit(least):
    with strata.intercept(least):
        for n in {0, 1, least - 1, least, least + 1, 3 * PAGE} - {-1}:
            for x in (np.empty(n, "u1"), np.zeros(n, "u1")):
                assert strata.is_fabric(x) == (max(n, 1) >= least), n  # numpy asks for a byte at least
                assert x.flags.owndata and x.flags.writeable
                assert not strata.is_fabric(x) or x.ctypes.data % 64 == 0


def test_default_limit_is_the_option():
    least = bootstrap.context().config.intercept_min_bytes
    assert least == KIB
    with strata.intercept():
        assert not strata.is_fabric(np.zeros(least - 1, "u1")) and strata.is_fabric(np.zeros(least, "u1"))


@pytest.mark.parametrize("wrong", [-1, 1.5, "4K"])
def test_a_limit_that_is_none(wrong):
    with pytest.raises(ValueError, match="number of bytes"), strata.intercept(wrong):
        pass


def test_counters():
    before = counted()
    with strata.intercept(KIB):
        x = [np.empty(KIB, "u1"), np.zeros(PAGE), np.empty(10)]
        x[0].resize(2 * KIB, refcheck=False)
    after = counted()
    assert after == {
        "arrays": before["arrays"] + 3, "bytes": before["bytes"] + KIB + 8 * PAGE + 2 * KIB,
        "fallbacks": before["fallbacks"], "fallback_bytes": before["fallback_bytes"],
    }  # fmt: skip


def test_zeros_are_zero_in_memory_that_was_used():
    with strata.intercept(0):
        for n in (1, 100, KIB, 300_000, PAGE, 3 * PAGE):
            for _ in range(3):
                np.empty(n, "u1").fill(255)
                assert not np.zeros(n, "u1").any()
                assert not np.zeros((n, 1), [("a", "u1")])["a"].any()


# ---- resizing ----------------------------------------------------------------------------


SIZES = st.one_of(st.integers(0, 300), st.integers(0, 5000), st.integers(0, 600_000))


@given(st.lists(SIZES, min_size=2, max_size=8), st.sampled_from([0, 64, KIB, 100_000]), st.booleans())
def test_resized_arrays_keep_what_they_hold(sizes, least, start_ordinary):
    def fresh(n):
        return np.arange(n, dtype="u4")

    if start_ordinary:
        x = fresh(sizes[0])
        with strata.intercept(least, process=True):
            want = resize_all(x, sizes[1:], least, x.copy())
    else:
        with strata.intercept(least):
            x = fresh(sizes[0])
        want = resize_all(x, sizes[1:], least, x.copy())
    np.testing.assert_array_equal(x, want)


def resize_all(x, sizes, least, want):
    for n in sizes:
        moved = n != x.size  # else numpy asks for nothing
        x.resize(n, refcheck=False)
        kept = np.zeros(n, "u4")
        kept[: min(n, want.size)] = want[: min(n, want.size)]
        want = kept
        np.testing.assert_array_equal(x, want)
        assert not moved or strata.is_fabric(x) == (max(x.nbytes, 1) >= least)
        x += 1
        want += 1
    return want


def test_an_array_that_is_too_large_to_be_is_numpys_own_error():
    with strata.intercept():
        for make in (np.empty, np.zeros, np.ones):
            with pytest.raises(MemoryError):
                make(1 << 55, "u1")
        x = np.ones(1000)
        with pytest.raises(MemoryError):
            x.resize(1 << 52, refcheck=False)
        assert strata.is_fabric(x) and x.sum() == 1000


# ---- blocks --------------------------------------------------------------------------------


def test_nested_blocks():
    with strata.intercept(100):
        with strata.intercept(10_000):
            assert not big(1000) and big(2000)
            with strata.intercept(0):
                assert big(1)
            with strata.intercept(0, process=True):
                assert not big(1000)  # the context's own handler goes before
            assert not big(1000)
        assert big(1000)
        a = np.ones(1000)
    assert not big()
    a.resize(2000, refcheck=False)  # an array stays what it is
    assert strata.is_fabric(a)


def test_nested_blocks_for_the_process():
    with strata.intercept(100, process=True):
        with strata.intercept(10_000, process=True):
            assert not big(1000) and big(2000)
            with strata.intercept(50_000):
                assert not big(2000) and big(10_000)
            assert big(2000)
        assert big(1000)
    assert not big()


def test_exceptions_end_the_block():
    for process in (False, True):
        with pytest.raises(KeyError), strata.intercept(process=process):
            x = np.zeros(1000)
            raise KeyError
        assert strata.is_fabric(x) and not big()


def test_a_decorated_function():
    @strata.intercept(500)
    def make(n):
        return np.ones(n)

    for _ in range(2):
        assert strata.is_fabric(make(100)) and not strata.is_fabric(make(10))


def test_arrays_outlive_the_block_and_the_job():
    with strata.intercept():
        x = np.arange(10_000.0)
        bootstrap.finalize()
        try:
            assert not big()  # out of the job: ordinary memory
            x += 1
            assert x[9_999] == 10_000
            y = x.copy()
            x.resize(20_000, refcheck=False)
            assert not strata.is_fabric(x) and x[9_999] == 10_000
            del y
        finally:
            bootstrap.init()
        assert big()
        x.resize(30_000, refcheck=False)
        assert strata.is_fabric(x) and x[9_999] == 10_000


def pieces(log, least):
    with strata.intercept(least):
        log.append(np.empty(1000))
        yield
        log.append(np.empty(1000))
        yield


def test_a_generator_in_the_middle_of_its_block():
    """As with np.errstate, a block that is left by yield goes on in the caller's context."""
    first, second, log = pieces([], 0), pieces([], 100_000), []
    next(first)
    assert big()
    next(second)
    assert not big(1000)
    first.close()  # out of order: the second goes on
    assert not big(1000) and big(20_000)
    second.close()  # and then nobody's is left, not the first's again
    assert not big(20_000)
    third = pieces(log, 0)
    next(third)
    next(third)
    del third
    assert not big() and all(map(strata.is_fabric, log))


def test_a_generator_that_ends_in_another_context():
    other, kept = contextvars.copy_context(), pieces([], 0)
    other.run(next, kept)
    assert not big() and other.run(big)
    kept.close()  # here: this context has nothing to give back
    assert not big()


def test_coroutines_have_blocks_of_their_own():
    async def one(least, steps):
        seen = []
        with strata.intercept(least):
            for _ in range(steps):
                await asyncio.sleep(0)
                seen.append(big(1000))
            inherited = asyncio.create_task(other())
        return seen, await inherited, big(1000)

    async def other():
        await asyncio.sleep(0)
        return big(1000)

    async def main():
        return await asyncio.gather(one(0, 5), other(), one(1 << 20, 5), other(), one(0, 2))

    small, ordinary, large, ordinary2, last = asyncio.run(main())
    assert small == ([True] * 5, True, False) and last == ([True] * 2, True, False)
    assert large == ([False] * 5, False, False)
    assert not ordinary and not ordinary2


# ---- threads ---------------------------------------------------------------------------------


def in_thread(call, *args):
    """What a call returns in a thread that starts with an empty context."""
    out = queue.SimpleQueue()
    thread = threading.Thread(target=lambda: out.put(contextvars.Context().run(call, *args)))
    thread.start()
    thread.join(60)
    return out.get_nowait()


def test_a_block_is_for_its_own_thread():
    with strata.intercept():
        assert big() and not in_thread(big)
        x = in_thread(np.ones, 1000)
    assert not strata.is_fabric(x)


def test_a_process_block_is_for_all_threads():
    before = np.arange(1000)
    with strata.intercept(process=True):
        assert big() and in_thread(big) and in_thread(lambda: in_thread(big))
        x = in_thread(np.ones, 5000)
        before.resize(2000, refcheck=False)  # its handler is numpy's, which is ours now
        assert strata.is_fabric(before) and before[999] == 999
    assert strata.is_fabric(x) and not big() and not in_thread(big)
    before.resize(3000, refcheck=False)
    assert not strata.is_fabric(before) and before[999] == 999  # back: the block is over


def test_threads_make_resize_and_drop_each_others_arrays():
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    hands, failures = queue.SimpleQueue(), []

    def work(number):
        rng = random.Random(seed + number)
        try:
            for turn in range(300):
                n = rng.choice([10, 500, 5_000, 300_000])
                x = (np.zeros if turn % 2 else np.ones)(n, "i4")
                assert x[-1] == 1 - turn % 2
                x[:] = number * 1000 + turn
                hands.put((number * 1000 + turn, x))
                value, y = hands.get_nowait()
                if turn % 3:
                    y.resize(y.size + rng.randrange(100, 10_000), refcheck=False)
                    assert y[-1] == 0
                assert y[0] == value
        except BaseException as error:
            failures.append(error)

    with strata.intercept(process=True):
        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
    assert not failures
