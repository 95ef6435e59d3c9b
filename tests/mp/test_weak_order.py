"""Jobs under weak order: they compute what they should, and an order that is taken out of the core is found."""

import subprocess
import sys
import textwrap

import launching
import pytest

import strata._core
from strata import errors

# All kinds of operations, small and large, with everything looked at.
EVERYTHING = textwrap.dedent("""
    import sys
    import numpy as np
    import strata
    from strata import sdma

    strata.init()
    g, rounds = strata.world(), int(sys.argv[1])
    everybody = range(g.size)
    after, before = (g.rank + 1) % g.size, (g.rank - 1) % g.size
    flags, s = sdma.flag(2), strata.Stream()
    box = strata.zeros(3000, "u4")
    places = g.all_gather(strata.array([strata.address(flags), strata.address(box)], "u8")).tolist()
    for k in range(1, rounds + 1):
        for n in (3, 700, 40_000):
            mine = strata.array(np.arange(n, dtype="u4") + 1000 * g.rank + k)
            assert (g.all_gather(mine) == [np.arange(n, dtype="u4") + 1000 * r + k for r in everybody]).all()
            total = sum(np.arange(n, dtype="u4") + 1000 * r + k for r in everybody)
            x = strata.array(mine)
            g.all_reduce(x)
            assert (x == total).all(), (k, n)
            g.broadcast(x if g.rank == k % g.size else mine, root=k % g.size)
            assert g.rank == k % g.size or (mine == total).all()
        with strata.stream(s):
            y = strata.array(np.full(5000, g.rank + k, "u4"))
            g.all_reduce(y)
            g.all_reduce(y)
        g.send(strata.array([k, g.rank], "u8"), after)
        got = strata.empty(2, "u8")
        g.recv(got, before)
        assert got.tolist() == [k, before], got
        box_of, flag_of = places[after][1], places[after][0]
        src = strata.array(np.full(3000, 100 * k + g.rank, "u4"))
        work = sdma.open_ring(16) if k == 1 else work
        done = work.submit(sdma.Batch(block=1024).copy(box_of, src, 12_000).write(flag_of, k))
        sdma.wait(flags[:1], k, timeout=30)
        assert (box == 100 * k + before).all(), (k, box)
        done.wait(30)
        sdma.write(places[before][0] + 8, k)  # it has been read
        sdma.wait(flags[1:], k, timeout=30)
        s.synchronize()
        assert (y == sum(r + k for r in everybody) * g.size).all(), (k, y)
    from strata._core.checked import hooks
    counts = hooks.weak_counts()
    assert counts["late"] > 100 and counts["overtook"] > 0 and counts["turns"] > 0 and counts["pauses"] > 0, counts
""")


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "everything.py"
    path.write_text(EVERYTHING)
    return path


@pytest.mark.parametrize(("seed", "n"), [(11, 2), (12, 3), (13, 4)])
def test_a_job_is_right(program, seed, n):
    done = launching.run("-n", n, "--weak-order", seed, program, 6)
    assert done.returncode == 0, done.stderr.decode()
    assert f"--weak-order {seed}".encode() in done.stderr


@pytest.mark.reports(maybe=["mismatch"], why="the core that it runs is broken on purpose")
def test_an_order_taken_out_is_found(program):
    """Arrival without its order: a peer sees that a member has come before it sees for what."""
    for seed in range(1, 11):
        env = launching.environment(STRATA_WEAK_BREAK="st_group_arrive", STRATA_TIMEOUT="20")
        done = launching.run("-n", 2, "--timeout", 30, f"--weak-order={seed}", program, 40, env=env)
        if done.returncode:
            print(f"found by seed {seed}")
            break
    else:
        pytest.fail("ten seeds did not find it")
    said = done.stderr.decode()
    again = said.splitlines().index(f"strata-run: order was weak in this job, by seed {seed}; the same choices again:")
    assert said.splitlines()[again + 1].startswith(f"strata-run:   strata-run --weak-order {seed} -n 2 --timeout 30 ")


def test_a_process_with_the_release_core_is_refused():
    program = (
        "import os, strata\nfrom strata import errors\nfrom strata._core import space\n"
        "os.environ['STRATA_WEAK_ORDER'] = '5'\n"
        "try:\n    strata.init()\nexcept errors.ConfigError as error:\n    assert 'release core' in str(error)\n"
        "else:\n    raise SystemExit('not refused')\n"
    )
    subprocess.run([sys.executable, "-c", program], env=launching.environment(), check=True, timeout=60)


@pytest.mark.parametrize("seed", ["0", "-1", "x", str(1 << 63)])
def test_seeds_that_are_none(seed):
    done = launching.run("-n", 1, "--weak-order", seed, "none.py")
    assert done.returncode == 2 and b"--weak-order" in done.stderr


def test_weak_order_needs_the_checked_core():
    """Under STRATA_WEAK_ORDER this process has it, else forked pools say what is wrong."""
    from strata._core import checked

    if strata._core.CHECKED:
        pytest.skip("this process has the checked core")
    with pytest.raises(errors.ConfigError, match="STRATA_WEAK_ORDER=3.*release core"):
        checked.weaken(3, "", 0)
