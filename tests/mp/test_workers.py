"""Several threads of a die run the cores of an operation: the same bits, and the same errors."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from collectives_play import in_step

import strata
from strata.testing import Pool

NAMES = ("full_mesh", "ring", "rhd", "hierarchical", "staged")


@pytest.fixture(scope="module", params=[1, 2, 3], ids="workers{}".format)
def crew(request):
    with Pool(3, workers=request.param, cores=5) as pool:
        yield pool


def digest(group, name, cores):
    x = (np.arange(100_003, dtype="f4") % 1009 + group.rank) / 7
    total = group.all_reduce(strata.array(x), algorithm=name, cores=cores)
    whole = group.all_gather(strata.array(x), algorithm=name if name != "atomic" else None, cores=cores)
    assert all((whole[m] == (np.arange(100_003, dtype="f4") % 1009 + m) / 7).all() for m in range(group.size))
    return total.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_bits_do_not_depend_on_threads(crew, name):
    one = crew.run(digest, name, 1)
    assert len(set(one)) == 1
    for cores in (2, 5, None):
        assert crew.run(digest, name, cores) == one


def counted(group):
    total = np.zeros(5001, "i8")
    for i in range(20):
        total += group.all_reduce(np.full(5001, group.rank + i, "i8"), algorithm="atomic")
    in_step(group)
    return bool((total == sum(group.size * i + 3 for i in range(20))).all())


def test_atomic_sums_lose_nothing(crew):
    assert all(crew.run(counted))


def twice(group):
    """Two groups at once: one has the crew, the other runs alone."""
    other = group.split(0)
    works = [g.all_reduce(strata.full(50_000, 1, "i4"), algorithm="ring", async_op=True) for g in (group, other) * 8]
    return all((w.wait() == group.size).all() for w in works)


def test_groups_share_the_crew(crew):
    assert all(crew.run(twice))


def threads():
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("Threads")).split()[1])


def again(group):
    before = threads()
    group.all_reduce(strata.ones(50_000, "f4"), algorithm="ring", cores=4)
    during = threads()
    strata.finalize()
    after = threads()
    strata.init()
    x = strata.world().all_reduce(strata.ones(50_000, "f4"), algorithm="ring", cores=4)
    return before, during, after, float(x[0])


def test_threads_end_with_the_job_and_come_back():
    with Pool(2, workers=3, cores=4) as pool:
        for before, during, after, value in pool.run(again):
            assert during > after and value == 2.0, (before, during, after)


VICTIM = """
import os, signal, sys
import numpy as np, strata
g = strata.world()
x = strata.ones(1 << 20, "f4")
for i in range(10**6):
    if g.rank == 1 and i == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        g.all_reduce(x, op="max", algorithm="ring", cores=4, timeout=60)
    except strata.PeerDead as error:
        assert error.ranks == (1,), error
        break
rest = g.shrink()
assert rest.all_reduce(np.array([1]))[0] == 2
print("survived", flush=True)
"""


def test_death_stops_all_threads(tmp_path):
    (tmp_path / "victim.py").write_text(VICTIM)
    run = [sys.executable, "-m", "strata.launch", "-n", "3", "--on-failure", "continue", str(tmp_path / "victim.py")]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=90,
                          env={**os.environ, "STRATA_WORKERS": "3", "STRATA_CORES": "4"})  # fmt: skip
    assert done.returncode == 128 + signal.SIGKILL and done.stdout.count("survived") == 2, done.stdout + done.stderr
