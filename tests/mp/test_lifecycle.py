"""Leaving a job and coming back, and how dies end with arrays, groups and operations alive."""

import inspect
import os
import subprocess
import sys

import numpy as np
import pytest
from collectives_play import in_step

import strata
from strata.testing import Pool


def again(group, turns):
    """All leave and come back; what was allocated before can still be used."""
    n, me = group.size, group.rank
    x = strata.full(5000, me + 1.0)
    for _ in range(turns):
        group.all_reduce(x.copy())
        group.barrier()
        strata.finalize()
        strata.finalize()
        assert not strata.initialized()
        x += 1  # its memory is still there
        strata.init()
        strata.init()
        assert strata.initialized()
        now = strata.world()
        assert (now.rank, now.size) == (me, n)
        got = now.all_gather(x)
        assert (got == x[0] + np.arange(n)[:, None] - me).all()
        in_step(now)
        group = now


def test_finalize_then_init(dies):
    dies.run(again, 3)


def alone():
    strata.init()
    x = strata.ones(100)
    g = strata.world()
    h = g.subgroup([0])
    assert g.all_reduce(x) is x and h.all_gather(x).shape == (1, 100)
    strata.finalize()
    assert (x == 1).all()
    strata.init()
    assert strata.world().all_reduce(x)[0] == 1


def test_outside_any_job_a_process_is_a_job_of_one(tmp_path):
    script = tmp_path / "alone.py"
    script.write_text(f"import strata\n{inspect.getsource(alone)}\nalone()\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


ENDINGS = {
    "arrays": "x = strata.ones(5000); g.all_reduce(x); y = x[::2]",
    "finalized": "x = strata.ones(5000); g.all_reduce(x); strata.finalize(); x += 1",
    "groups": "h = [g.split(0) for _ in range(3)]; [k.barrier() for k in h]",
    "a cycle": "h = g.split(0); c = [h, strata.ones(3)]; c.append(c); h.barrier(); del h, c",
    "operations waited for": "w = g.all_reduce(strata.ones(5000), async_op=True); w.wait()",
    "operations dropped": "g.all_reduce(strata.ones(5000), async_op=True); g.barrier()",
    "a message nobody received": "g.send(np.ones(3), (g.rank + 1) % g.size); g.barrier()",
    "a recv that nothing came for": "w = g.recv(strata.ones(3), (g.rank + 1) % g.size, async_op=True); g.barrier()",
    "streams": "s = strata.Stream()\nwith strata.stream(s): g.all_reduce(strata.ones(5000))\ng.barrier(); del s",
    "a stream that waits": (
        "from strata import sdma; s, t = strata.Stream(), strata.Stream()\n"
        "s.submit(sdma.Batch().gate(sdma.flag(), 1)); t.wait_stream(s)\n"
        "with strata.stream(t): g.all_reduce(strata.ones(5000)); g.recv(strata.ones(3), 0)\ndel t"
    ),
    "a thread": "import threading; g.barrier(); threading.Thread(target=lambda: strata.ones(3)).start()",
    "modules torn down": "import sys; x = strata.ones(5000); sys.modules['keep'] = x; g.barrier()",
}


@pytest.mark.reports(maybe=["leak"], why="what they leave open is what it is about")
@pytest.mark.parametrize("name", ENDINGS)
def test_dies_end_well(tmp_path, name):
    """Exit code 0 and not a word, whatever is alive at the end."""
    script = tmp_path / "end.py"
    script.write_text(f"import numpy as np, strata\ng = strata.world()\n{ENDINGS[name]}\n")
    run = [sys.executable, "-m", "strata.launch", "-n", "3", str(script)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


NO_THREAD = """
import os, resource, sys, time
import numpy as np, strata, strata.comm, strata.job
mark = open(sys.argv[1], "a")
if os.environ["STRATA_RANK"] == "1":
    os.setresuid(54321, 54321, 54321)  # root has no such limit
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    for _ in range(2):  # it joins; it comes back
        resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
        try:
            strata.init()
        except strata.StrataError as error:
            assert "ulimit -u" in str(error), error
        else:
            raise AssertionError("a thread, in spite of the limit")
        assert not strata.initialized()
        resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
        strata.init()
        assert strata.initialized()
        strata.finalize()
    strata.init()
    mark.write("!")
    mark.close()
else:
    strata.init()  # the other one waits for this one in its own
    until = time.monotonic() + 60
    while not os.path.getsize(sys.argv[1]) and time.monotonic() < until:
        time.sleep(0.01)
x = strata.ones(5000)
assert (strata.world().all_reduce(x) == 2).all()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="takes a limit that another user has")
@pytest.mark.unchecked("the check imports more than a die")
def test_no_thread_for_the_registrar(tmp_path):
    """init() says so, and may be called again when there is one."""
    script = tmp_path / "no_thread.py"
    script.write_text(NO_THREAD)
    run = [sys.executable, "-m", "strata.launch", "-n", "2", str(script), str(tmp_path / "mark")]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def leave_early(group):
    """A die that has finished may leave; those that need it no more go on."""
    if group.rank == 0:
        strata.finalize()
        return
    rest = group.subgroup(range(1, group.size))
    for _ in range(20):
        assert (rest.all_reduce(strata.ones(3000)) == group.size - 1).all()
    with pytest.raises(strata.PeerDead) as caught:
        group.barrier()
    assert caught.value.ranks == (0,)


@pytest.mark.reports(maybe=["deadlock"], why="it leaves, and others wait for it")
def test_an_early_finisher_may_leave():
    with Pool(3) as pool:
        pool.run(leave_early)
