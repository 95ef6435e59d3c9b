"""numpy's own arrays in collectives of several dies, with nothing copied."""

import sys

import numpy as np
import pytest
from launching import environment, run, write

import strata

ARRAYS = """
    import numpy as np
    early = np.zeros(100_000)           # before strata is known
    import strata
    g = strata.world()
    early += g.rank
    g.all_reduce(early)
    late = np.arange(6_000.0).reshape(-1, 3) + g.rank   # what an operation of numpy's gives
    rows = np.empty((g.size, *late.shape))
    g.all_gather(late, rows)
    assert (early == sum(range(g.size))).all()
    assert all((rows[r] == np.arange(6_000.0).reshape(-1, 3) + r).all() for r in range(g.size))
    stats = strata.stats()
    print(stats["staged_bytes"], strata.is_fabric(early), strata.is_fabric(late), stats["intercept"]["fallbacks"])
"""


@pytest.mark.parametrize(
    "options, extra, staged",
    [
        (["--intercept"], {}, False),
        (["--intercept=100K"], {}, True),  # late, of 48,000 bytes, is ordinary then
        ([], {"STRATA_INTERCEPT": "1"}, False),
        ([], {"STRATA_INTERCEPT": "1", "STRATA_INTERCEPT_MIN_BYTES": "100K"}, True),
    ],
)
def test_plain_numpy_under_strata_run(tmp_path, options, extra, staged):
    script = write(tmp_path / "plain.py", ARRAYS)
    got = run("-n", 4, *options, script, env=environment(**extra))
    assert (got.returncode, got.stderr) == (0, b"")
    lines = got.stdout.decode().split("\n")[:-1]
    assert len(lines) == 4
    for line in lines:
        copied, large, small, fallbacks = line.split()
        assert (copied != "0", large, small, fallbacks) == (staged, "True", str(not staged), "0")


def test_without_the_option_the_same_program_copies(tmp_path):
    script = write(tmp_path / "plain.py", ARRAYS)
    got = run("-n", 2, script)
    assert (got.returncode, got.stderr) == (0, b"")
    assert got.stdout.decode().count("\n") == 2 and b"\n0 " not in b"\n" + got.stdout


def test_modules_and_programs(tmp_path):
    write(tmp_path / "plain.py", ARRAYS)
    env = environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    got = run("-n", 2, "--intercept", "-m", "plain", env=env)
    assert (got.returncode, got.stderr, got.stdout) == (0, b"", b"0 True True 0\n" * 2)
    # Another program is not joined to the job before its first line, but from init() on.
    code = ("import numpy as np, strata; g = strata.world(); x = np.ones(5000); g.all_reduce(x); "
            "print(strata.stats()['staged_bytes'], x[0])")  # fmt: skip
    got = run("-n", 2, "--intercept", sys.executable, "-c", code, env=env)
    assert (got.returncode, got.stderr, got.stdout) == (0, b"", b"0 2.0\n" * 2)


def test_a_script_that_ends_badly_says_what_it_always_says(tmp_path):
    script = write(tmp_path / "bad.py", "import numpy as np\nx = np.zeros(10_000)\nraise SystemExit(7)\n")
    got = run("-n", 2, "--intercept", script)
    assert got.returncode == 7 and b"Traceback" not in got.stderr


def operations(group):
    """All operations on arrays of numpy's own; bytes that were copied."""
    n, me = group.size, group.rank
    before = strata.stats()["staged_bytes"]
    with strata.intercept():
        for count in (1, 129, 5_000, 100_000):
            x = np.arange(count, dtype="f4") + me
            assert group.all_reduce(x.copy())[0] == sum(range(n))
            assert (group.all_gather(x)[:, -1] == count - 1 + np.arange(n)).all()
            whole = np.repeat(np.arange(n, dtype="i8"), count)
            assert (group.reduce_scatter(whole, np.empty(count, "i8")) == me * n).all()
            assert (group.all_to_all(whole, np.empty_like(whole)) == me).all()
            y = np.full(count, me, "u2")
            group.broadcast(y, root=n - 1)
            assert (y == n - 1).all()
            got = group.gather(x, np.empty((n, count), "f4") if me == 0 else None)
            assert me or (got[:, 0] == np.arange(n)).all()
            part = np.empty(count, "i8")
            group.scatter(whole if me == 0 else None, part)
            assert (part == me).all()
            work = group.all_reduce(np.ones(count), async_op=True)
            assert (work.wait() == n).all()
            if n > 1:
                right, left = (me + 1) % n, (me - 1) % n
                send = group.send(x, right, async_op=True)
                group.recv(z := np.empty(count, "f4"), left)
                send.wait()
                assert z[0] == left
        assert strata.stats()["intercept"]["fallbacks"] == 0
    return strata.stats()["staged_bytes"] - before


def test_operations_copy_nothing(dies):
    assert dies.run(operations) == [0] * dies.n


def grown(group):
    """Peers follow an array that moves as it grows, and one that is freed while they may still map it."""
    with strata.intercept():
        x = np.full(1000, group.rank + 1.0)
        for turn in range(12):
            group.all_reduce(x)
            assert (x == x[0]).all()
            x.resize(x.size * 2 - 3, refcheck=False)
            x[:] = group.rank + turn
            del turn
        return float(group.all_reduce(x)[-1])


def test_arrays_that_grow(peers):
    want = sum(range(peers.n)) + 11.0 * peers.n
    assert peers.run(grown) == [want] * peers.n
