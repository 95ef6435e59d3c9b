"""spawn: dies from a script, a notebook or a test."""

import contextlib
import os
import pickle
import signal
import sys
import threading
import time

import numpy as np
import psutil
import pytest
from launching import PATIENCE, plain, until

from strata import bootstrap, errors
from strata.launch import spawn
from strata.launch.procs import children


def rank():
    return int(os.environ["STRATA_RANK"])


@pytest.fixture(autouse=True)
def no_child_left():
    """Not even a zombie."""
    before = set(children())
    yield
    assert set(children()) <= before


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_results_by_rank(n):
    offset = 10  # a closure
    assert spawn(lambda x, y: (rank() + offset) * x + y, n, 2, 1) == [(r + 10) * 2 + 1 for r in range(n)]


def test_dies_form_a_job():
    def who():
        context = bootstrap.init()
        return context.rank, context.ndies, context.hbm_bytes, context.token

    got = spawn(who, 4, hbm="64MiB")
    assert [g[:3] for g in got] == [(r, 4, 64 << 20) for r in range(4)]
    assert len({g[3] for g in got}) == 1
    assert not os.environ.get("STRATA_RANK")


def test_the_caller_may_have_a_job_of_its_own():
    """A notebook that has called init() before; then its dies have a job, and it still has its own."""
    code = """
        import os
        from strata import bootstrap
        from strata.launch import spawn
        mine = bootstrap.init()
        def who():
            c = bootstrap.init()
            return c.rank, c.ndies, c.token
        got = spawn(who, 3)
        assert [g[:2] for g in got] == [(0, 3), (1, 3), (2, 3)], got
        assert mine.token not in {g[2] for g in got}
        assert bootstrap.init() is mine and mine.here
        print("good")
    """
    import textwrap

    done = plain("-c", textwrap.dedent(code))
    assert (done.stdout, done.stderr) == (b"good\n", b"")


def test_large_results_and_arguments():
    big = np.arange(3_000_000)
    got = spawn(lambda a: a * (rank() + 1), 3, big)
    for r in range(3):
        np.testing.assert_array_equal(got[r], big * (r + 1))


class Odd(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a}/{b}")


def test_an_exception_is_raised_here_with_its_cause_and_traceback():
    def fail():
        if rank() == 2:
            raise KeyError("what", 3)
        time.sleep(1000)

    with pytest.raises(errors.SpawnError) as caught:
        spawn(fail, 4, grace=0.1)
    error = caught.value
    assert error.ranks == (2,)
    assert isinstance(error.__cause__, KeyError)
    assert error.__cause__.args == ("what", 3)
    text = str(error)
    assert text.startswith("rank 2 of 4: KeyError: ('what', 3)")
    assert 'raise KeyError("what", 3)' in text
    assert "in fail" in error.traceback
    assert "spawning.py" not in error.traceback
    assert str(pickle.loads(pickle.dumps(error))) == text


def test_an_exception_that_cannot_travel_is_told_as_text():
    def fail():
        raise Odd(1, 2)  # pickles, and cannot be unpickled

    with pytest.raises(errors.SpawnError, match="Odd: 1/2") as caught:
        spawn(fail, 2)
    assert caught.value.__cause__ is None


def test_a_result_that_cannot_travel():
    with pytest.raises(errors.SpawnError, match="rank [01] of 2: .*the result of rank [01] cannot travel by pickle"):
        spawn(lambda: lambda: 1, 2)

    class Trap:
        def __reduce__(self):
            return int, ("no number",)

    with pytest.raises(errors.SpawnError, match="rank 0 of 1: the result of rank 0 cannot be read back"):
        spawn(Trap, 1)


def test_root_cause_before_those_that_noticed():
    read, write_end = os.pipe()
    wait, go = os.pipe()

    def fail():
        if rank() == 1:
            os.read(read, 1)
            raise ValueError("cause")
        os.read(wait, 1)
        raise errors.PeerDead(ranks=[1], operation="barrier", number=3)

    def dies():
        with contextlib.suppress(psutil.NoSuchProcess):  # one ends while we look
            return {c.pid for k in psutil.Process().children() for c in k.children() if c.status() != "zombie"}

    others = dies() or set()  # of pools that stand by

    def release():
        """Rank 1 may fail once the others have."""
        until(lambda: len((dies() or set()) - others) == 3, "dies start")
        os.write(go, b"xx")
        until(lambda: len((dies() or others) - others) == 1, "only rank 1 is left")
        os.write(write_end, b"x")

    thread = threading.Thread(target=release)
    thread.start()
    with pytest.raises(errors.SpawnError) as caught:
        spawn(fail, 3, grace=PATIENCE)
    thread.join()
    for fd in (read, write_end, wait, go):
        os.close(fd)
    assert caught.value.ranks == (1,)
    assert "ValueError: cause" in str(caught.value)
    assert "ranks 0, 2 failed too" in str(caught.value)


@pytest.mark.parametrize(
    "end, text",
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL"),
        (lambda: os._exit(9), "exit code 9"),
        (lambda: os._exit(0), "ended without a result"),
        (lambda: sys.exit(4), "exit code 4"),
        (lambda: sys.exit("words"), "exit code 1"),
    ],
)
def test_dies_that_end_without_an_exception(end, text):
    def fail():
        return end() if rank() == 1 else 0

    with pytest.raises(errors.SpawnError, match=f"rank 1 of 2: {text}") as caught:
        spawn(fail, 2)
    assert caught.value.ranks == (1,)


def test_sys_exit_0_is_no_failure():
    assert spawn(sys.exit, 2) == [None, None]


def test_timeout():
    def stay():
        if rank() != 1:
            time.sleep(1000)

    with pytest.raises(errors.SpawnError, match="timed out after 2 s; still running: ranks 0, 2") as caught:
        spawn(stay, 3, timeout=2, grace=0.1)
    assert caught.value.ranks == (0, 2)


def test_dies_do_not_nest():
    with pytest.raises(errors.SpawnError, match="dies do not nest") as caught:
        spawn(lambda: spawn(rank, 2), 2)
    assert isinstance(caught.value.__cause__, errors.StrataError)


@pytest.mark.parametrize(
    "call, kind",
    [
        (lambda: spawn(rank, 0), errors.InvalidArgument),
        (lambda: spawn(rank, "2"), errors.InvalidArgument),
        (lambda: spawn(rank, 2, timeout=-1), errors.InvalidArgument),
        (lambda: spawn(rank, 2, timeout=float("nan")), errors.InvalidArgument),
        (lambda: spawn(rank, 2, grace=-1), errors.InvalidArgument),
        (lambda: spawn(3, 2), TypeError),
        (lambda: spawn(rank, 2, hbm="much"), errors.InvalidArgument),
        (lambda: spawn(rank, 2, hbm="100T"), errors.ConfigError),
    ],
)
def test_wrong_arguments(call, kind):
    with pytest.raises(kind):
        call()


def test_collectives_and_arrays_of_a_caller_that_is_a_die_itself():
    """What a notebook does: arrays before, dies that read them, collectives among the dies."""
    code = """
        import numpy as np, strata
        mine = strata.full(1000, 7, "i8")
        assert strata.world().size == 1
        def fn():
            g = strata.world()
            x = strata.full(1000, g.rank, "i8")
            g.all_reduce(x)
            return int(x[0]) + int(mine.sum())
        for _ in range(2):
            assert strata.spawn(fn, 4) == [6 + 7000] * 4
        strata.world().all_reduce(mine)
        assert (mine == 7).all()
        print("good")
    """
    import textwrap

    done = plain("-c", textwrap.dedent(code))
    assert (done.stdout, done.stderr) == (b"good\n", b"")


def test_peers_of_a_dead_die_are_not_the_cause():
    def fn():
        import strata

        g = strata.world()
        if g.rank == 2:
            raise ValueError("the cause")
        g.barrier()

    with pytest.raises(errors.SpawnError, match="rank 2 of 4: ValueError: the cause") as caught:
        spawn(fn, 4, grace=30)
    assert isinstance(caught.value.__cause__, ValueError)
