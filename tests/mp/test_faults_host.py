"""Leaks of files and descriptors, namespaces, forks, ends of the interpreter."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import faultlib
import numpy as np
import pytest
from faultlib import BOUND, CLONE_NEWNS, CLONE_NEWPID, LIBC, Job, check_group, died

import strata
from strata import bootstrap, errors

ROOT = Path(__file__).parents[2]


def shm_names():
    return {name for name in os.listdir("/dev/shm") if "strata" in name}


# ---- namespaces and neighbours ---------------------------------------------------------------------------


def _other_namespace(die):
    g = strata.world()
    g.barrier()
    die.say("ready", os.getpid())
    if die.rank == 1:
        time.sleep(60)
    died(die.catch(g.barrier), [1])
    died(die.catch(g.recv, np.ones(1), 1), [1])
    check_group(g.shrink(), [0, 2])


def test_liveness_across_pid_namespaces():
    """The dies of one job in different PID namespaces, with the same PIDs."""
    info = os.pipe()
    job = Job.__new__(Job)
    job.n, job.events, job.processes = 3, [], []
    job.space = bootstrap.create_job(3, faultlib.HBM)
    helpers = []
    try:
        for rank in range(3):
            helpers.append(_die_in_pid_namespace(job, rank, info))
        os.close(info[1])
        pids = os.read(info[0], 1 << 16).decode().split()
        if "no" in pids:
            pytest.skip("PID namespaces are not permitted here")
        ready = job.all("ready")
        assert [e.data for e in ready.values()] == [1, 1, 1]  # each is the first of its namespace
        os.kill(job.processes[1].pid, signal.SIGKILL)
        assert [job.reap(r) for r in (0, 2)] == [0, 0]
    finally:
        job.close()
        os.close(info[0])


def _die_in_pid_namespace(job, rank, info):
    """A helper that unshares and forks the die; it is the process that the test sees."""
    pipe, out = os.pipe()
    inbox, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            LIBC.prctl(1, signal.SIGKILL)
            if LIBC.unshare(CLONE_NEWPID) != 0:
                os.write(info[1], b"no ")
                os._exit(77)
            child = os.fork()
            if child == 0:
                LIBC.prctl(1, signal.SIGKILL)
                os.close(info[1])
                os.close(pipe)
                os.close(tell)
                os._exit(faultlib._run(faultlib.Die(rank, out, inbox), _other_namespace, (), job.space.env(rank)))
            os.write(info[1], b"yes ")
            os.close(info[1])
            os.close(out)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        finally:
            os._exit(code if code >= 0 else 128 - code)
    os.close(out)
    os.close(inbox)
    job.processes.append(faultlib.Process(rank, pid, pipe, tell))


def test_two_jobs_do_not_meet():
    before = shm_names()
    with Job(_shrinking, 3) as a, Job(_shrinking, 3) as b:
        a.all("ready")
        b.all("ready")
        a.kill(1)
        a.reap(1)
        assert [a.reap(r) for r in (0, 2)] == [0, 0]
        assert not [e for e in b.events if e.name == "dead"]
        b.kill(2)
        assert [b.reap(r) for r in (0, 1)] == [0, 0]
    assert shm_names() == before


def _shrinking(die):
    g = strata.world()
    g.barrier()
    die.say("ready")
    try:
        while True:
            g.barrier()
    except errors.PeerDead:
        die.say("dead")
    check_group(g.shrink(), [r for r in range(3) if r != g.size] and g.shrink().ranks)


def _kill_everything():
    names = shm_names()
    for _ in range(3):
        with Job(_hoards, 3) as job:
            job.all("ready")
            for rank in range(3):
                job.kill(rank)
    assert shm_names() == names


def test_kill_of_everything_leaves_no_file():
    _kill_everything()


def test_kill_of_everything_gives_all_memory_back():
    """In a /dev/shm of its own, since others use the real one too."""

    def inside():
        assert LIBC.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=2g") == 0
        before = faultlib.shm_bytes()
        _kill_everything()
        assert faultlib.shm_bytes() == before

    faultlib.in_namespace(CLONE_NEWNS, inside)


def _hoards(die):
    g = strata.world()
    x = strata.ones(64 << 20, "u1")
    die.say("ready")
    while True:
        g.all_reduce(x)


# ---- descriptors, forks, ends --------------------------------------------------------------------------------


def _many_groups(die, rounds):
    g = strata.world()
    counts = []
    for k in range(rounds):
        h = g.split(0, key=-die.rank) if k % 2 else g.subgroup(range(g.size))
        x = np.full(3, die.rank)
        assert h.all_reduce(x)[0] == g.size * (g.size - 1) // 2
        if k % 20 == 0:
            h.all_reduce(np.ones(3), async_op=True).wait()
            h.send(np.ones(3), h.rank)
            y = np.zeros(3)
            h.recv(y, h.rank)
            h.send(np.ones(3), (h.rank + 1) % h.size)
            h.recv(y, (h.rank - 1) % h.size)
        del h
        if k in (rounds // 2, rounds - 1):
            g.barrier()
            tasks = len(os.listdir("/proc/self/task"))
            counts.append((len(os.listdir("/proc/self/fd")), tasks, strata.memory_stats()["allocation.all.current"]))
    assert counts[1][0] == counts[0][0] and counts[1][1] == counts[0][1], counts
    assert counts[1][2] <= counts[0][2] + 40, counts


def test_thousands_of_groups_take_no_descriptors():
    with Job(_many_groups, 3, 1500) as job:
        assert [job.reap(r, bound=60) for r in range(3)] == [0] * 3


def _slots(die):
    g = strata.world()
    g.barrier()
    die.say("ready")
    if die.rank == 2:
        time.sleep(60)
    die.hear()
    kept = []
    for k in range(150):  # more than there are slots; half of the groups stay
        h = g.subgroup([die.rank, 2] if k % 3 == 0 else [0, 1, 2], timeout=5)
        kept += [h] if k % 2 else []
        if k % 20 == 0:
            died(die.catch(h.barrier), [2])
    check_group(g.subgroup([0, 1]), [0, 1])


def test_groups_with_a_dead_member_use_nothing_up():
    """The dead never read where the group's memory is: that must not fill the leader's table."""
    with Job(_slots, 3) as job:
        job.all("ready")
        job.kill(2)
        job.reap(2)
        job.tell(0, 1)
        assert [job.reap(r) for r in (0, 1)] == [0, 0]


def _forks(die):
    g = strata.world()
    x = strata.full(1000, die.rank, "i8")
    g.all_reduce(x, async_op=True).wait()
    h = g.split(0)
    for how in range(3):
        pid = os.fork()
        if pid == 0:  # nothing that it does may hurt the die
            try:
                assert x[0] == 1  # what it inherited can be read
                for attempt in (g.barrier, h.barrier, lambda: strata.empty(10), strata.init, lambda: g.split(0)):
                    with pytest.raises(errors.NotInJob):
                        attempt()
                del h
                strata.finalize()
                for fd in os.listdir("/proc/self/fd"):  # closing files drops no lock of the parent
                    if how == 1 and int(fd) > 2:
                        try:
                            os.close(int(fd))
                        except OSError:
                            pass
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
            if how == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (-9 if how == 2 else 0)
        check_group(g, [0, 1], rounds=1)
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    check_group(h, [0, 1])


def test_forked_children_do_no_harm():
    with Job(_forks, 2) as job:
        assert [job.reap(r) for r in range(2)] == [0, 0]


def _child_outlives(die):
    g = strata.world()
    g.barrier()
    if die.rank == 1:
        if os.fork() == 0:
            LIBC.prctl(1, 0)
            time.sleep(3)
            os._exit(0)
        die.say("ready")
        time.sleep(60)
    died(die.catch(g.barrier, timeout=60), [1])
    die.say("dead")


def test_a_living_child_does_not_hide_the_death():
    with Job(_child_outlives, 2) as job:
        job.all("ready", [1])
        job.kill(1)
        job.all("dead", [0], bound=2.5)
        assert job.reap(0) == 0


ENDS = {
    "nothing waited for": "g.all_reduce(x, async_op=True); g.split(0).all_gather(x, async_op=True)",
    "operation that never ends": """
        h = g.split(0)
        if g.rank == 0:
            w = g.recv(x, 1, async_op=True)
            v = h.barrier(async_op=True)
        """,
    "daemon thread in a wait": """
        import threading, time
        threading.excepthook = lambda args: None  # PeerDead, if the other die ends first
        if g.rank == 0:
            threading.Thread(target=g.recv, args=(x, 1), daemon=True).start()
            time.sleep(0.1)
        """,
    "exit code": "w = g.all_reduce(x, async_op=True); sys.exit(5)",
    "kept in a cycle": """
        a = [g, g.split(0)]
        a.append(a)
        w = a[1].all_reduce(x, async_op=True)
        a.append(w)
        """,
    "array outlives": """
        import builtins
        builtins.keep = x
        w = g.all_reduce(x, async_op=True)
        strata.finalize()
        """,
}


@pytest.mark.parametrize("name", ENDS)
def test_end_of_the_interpreter(tmp_path, name):
    """Exits with operations in flight: the right code, no abort, no hang, no words."""
    lines, code = ENDS[name], 5 if name == "exit code" else 0
    script = tmp_path / "end.py"
    script.write_text("import sys\nimport numpy as np\nimport strata\ng = strata.world()\n"
                      "x = strata.ones(200_000)\ng.barrier()\n" + textwrap.dedent(lines) + "\n")  # fmt: skip
    job = bootstrap.create_job(2, faultlib.HBM)
    try:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("STRATA_")}
        dies = [
            subprocess.Popen([sys.executable, "-X", "faulthandler", str(script)], pass_fds=[job.fd],
                             env={**environ, **job.env(r), "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE)
            for r in range(2)
        ]  # fmt: skip
        try:
            said = [die.communicate(timeout=BOUND)[1].decode() for die in dies]
        finally:
            for die in dies:
                die.kill()
                die.wait()
        assert [die.returncode for die in dies] == [code, code], said
        assert said == ["", ""]
    finally:
        job.close()


LOCKED = """
import os, sys, threading, time
import strata
g = strata.world()
end = time.monotonic() + 10
while any(t.name == "strata-serve" for t in threading.enumerate()):  # rank 0 hands the space out
    assert time.monotonic() < end
    time.sleep(0.01)
g.barrier()
with open("/proc/locks") as f:
    mine = [line.split() for line in f if line.split()[1] == "POSIX" and line.split()[4] == str(os.getpid())]
assert len(mine) == 1, mine  # its byte of the UB space, by which others know that it lives
g.barrier()
"""


def test_serving_the_space_does_not_cost_rank_0_its_lock():
    """A process that closes any descriptor of a file loses its locks on it."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("STRATA_")}
    dies = [
        subprocess.Popen([sys.executable, "-c", LOCKED], stderr=subprocess.PIPE,
                         env={**environ, "RANK": str(r), "WORLD_SIZE": "2", "MASTER_PORT": str(os.getpid()),
                              "PYTHONPATH": str(ROOT)})
        for r in range(2)
    ]  # fmt: skip
    try:
        said = [die.communicate(timeout=BOUND)[1].decode() for die in dies]
    finally:
        for die in dies:
            die.kill()
            die.wait()
    assert [die.returncode for die in dies] == [0, 0], said
