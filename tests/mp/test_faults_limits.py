"""Shared memory that is full, small, read-only or not there, a memory cgroup, and addresses that are used up."""

import contextlib
import mmap
import os
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from cgroups import cgroup
from faultlib import BOUND, CLONE_NEWNS, LIBC, Job, check_group, died, in_namespace
from launching import environment, run, write

import strata
from strata import bootstrap, errors, vmm

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, or makes cgroups")
MIB = 1 << 20
SUM = """
import numpy as np, strata
g = strata.world()
x = strata.ones(3 << 20, "u1")
assert (g.all_reduce(x) == g.size).all()
assert g.split(0).all_gather(np.array([g.rank])).tolist() == [[r] for r in range(g.size)]
"""


def mount_shm(size):
    assert LIBC.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=%d" % size) == 0


def no_shm(how):
    """Takes /dev/shm away: "absent", or "read-only"."""
    if how == "read-only":
        assert LIBC.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 1, None) == 0
    else:
        assert LIBC.mount(b"/dev/null", b"/dev/shm", None, 4096, None) != 0  # a file is no place for a directory
        assert LIBC.mount(b"/proc/self/fdinfo", b"/dev/shm", None, 4096, None) == 0  # where no file can be made


@contextlib.contextmanager
def setting(**variables):
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# ---- /dev/shm -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["absent", "read-only"])
def test_dev_shm_that_is_absent_or_read_only(tmp_path, how):
    """One line that says what is missing and what to do; and what it says to do helps."""
    script = write(tmp_path / "sum.py", SUM)

    def inside():
        no_shm(how)
        files = len(os.listdir("/proc/self/fd"))
        with pytest.raises(errors.HostError, match="/dev/shm must be there and writable.*STRATA_BACKING=memfd"):
            bootstrap.create_job(2)
        assert len(os.listdir("/proc/self/fd")) == files
        done = run("-n", 2, script)
        assert done.returncode == 125 and done.stderr.count(b"\n") == 1, done.stderr
        assert b"STRATA_BACKING=memfd" in done.stderr
        done = run("-n", 2, script, env=environment(STRATA_BACKING="memfd"))
        assert (done.returncode, done.stderr) == (0, b"")

    in_namespace(CLONE_NEWNS, inside)


def _memfd(die):
    g = strata.world()
    check_group(g, range(3), rounds=1)
    with pytest.raises(errors.FabricMemoryError, match="HBM") as info:
        strata.empty(1 << 40, "u1")
    assert "/dev/shm" not in str(info.value)  # is not what is short
    die.say("ready")
    if die.rank == 2:
        time.sleep(60)
    died(die.catch(g.barrier), [2])
    check_group(g.shrink(), [0, 1])


def test_memfd_needs_no_dev_shm():
    def inside():
        mount_shm(64 << 10)
        with setting(STRATA_BACKING="memfd"), Job(_memfd, 3) as job:
            job.all("ready")
            job.kill(2)
            assert [job.reap(rank) for rank in (0, 1)] == [0, 0]
        assert not os.listdir("/dev/shm")

    in_namespace(CLONE_NEWNS, inside)


def hoard_all():
    """All that this die can still allocate."""
    hoard = []
    for size in (2 * MIB, 1 << 16, 1 << 13):
        with contextlib.suppress(errors.FabricMemoryError):
            while True:
                hoard.append(strata.ones(size, "u1"))
    return hoard


def _foreign_file(die):
    g = strata.world()
    mine = strata.full(3 * MIB, die.rank, "u1")
    g.all_reduce(mine)
    die.say("ready")
    die.hear()  # /dev/shm is full now
    hoard = hoard_all()
    with pytest.raises(errors.FabricMemoryError, match="0 bytes of .* in /dev/shm.*enlarge /dev/shm"):
        strata.empty(4 * MIB, "u1")
    g.barrier()
    mine[:] = die.rank  # what was given before is there, all of it
    assert (g.all_reduce(mine) == sum(range(g.size))).all()
    x = np.ones(MIB)
    attempts = {
        "a group": lambda: g.split(0),
        "a copy of a large array": lambda: g.all_reduce(x),
        "an output": lambda: g.all_gather(mine),
        "a stream": lambda: strata.Stream(),
        "scratch": lambda: g.all_reduce(mine, algorithm="ring"),
    }
    kinds = {}
    for name, attempt in attempts.items():
        with contextlib.suppress(AssertionError):  # some need nothing new here
            kinds[name] = die.catch(attempt).kind
        g.barrier()
    assert set(kinds.values()) <= {"FabricMemoryError", "CollectiveMismatch"}, kinds
    assert kinds["a group"] == kinds["an output"] == kinds["a copy of a large array"] == "FabricMemoryError", kinds
    die.say("tried", kinds)
    die.hear()  # there is room again
    del hoard
    check_group(g, range(g.size), rounds=1)
    check_group(g.split(0), range(g.size), rounds=1)
    assert g.all_gather(mine).shape == (g.size, 3 * MIB)


def test_a_foreign_file_fills_dev_shm():
    """At an allocation, a group, a staging copy, an output, a stream: an error, on all members if they wait."""

    def inside():
        mount_shm(96 * MIB)
        with Job(_foreign_file, 3) as job:
            job.all("ready")
            fill("/dev/shm/filler")
            job.tell()
            kinds = [event.data for event in job.all("tried").values()]
            assert kinds == kinds[:1] * 3
            os.unlink("/dev/shm/filler")
            job.tell()
            assert [job.reap(rank) for rank in range(3)] == [0] * 3
        assert not os.listdir("/dev/shm")

    in_namespace(CLONE_NEWNS, inside)


def fill(path):
    """Takes all that a file system has."""
    with open(path, "wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))


def _joins_late(die):
    die.hear()
    try:
        g = strata.world()
    except errors.StrataError as error:
        assert isinstance(error, errors.FabricMemoryError), error
        die.say("joined", "no room")
        return
    g.barrier()
    with pytest.raises(errors.FabricMemoryError):
        strata.ones(64 * MIB, "u1")
    die.say("joined", "yes")
    die.hear()
    check_group(g, [0, 1], rounds=1)


def test_dev_shm_is_full_when_dies_join():
    """Joining takes no page that was not reserved; allocating is an error."""

    def inside():
        mount_shm(48 * MIB)
        with Job(_joins_late, 2) as job:
            fill("/dev/shm/filler")
            job.tell()
            assert [event.data for event in job.all("joined").values()] == ["yes", "yes"]
            os.unlink("/dev/shm/filler")
            job.tell()
            assert [job.reap(rank) for rank in range(2)] == [0, 0]

    in_namespace(CLONE_NEWNS, inside)


# ---- cgroups ------------------------------------------------------------------------------------------------------


def memory_cgroup(limit):
    return cgroup("memory", "memory.limit_in_bytes", "memory.max", limit)


def _in_a_cgroup(die, folder):
    (folder / "cgroup.procs").write_text(str(os.getpid()))
    g = strata.world()
    for turn in range(2):  # one after the other: a look ahead is no reservation
        if turn == die.rank:
            hoard = []
            with pytest.raises(errors.FabricMemoryError, match="memory cgroup.*raise the cgroup's limit"):
                while True:
                    hoard.append(strata.ones(32 * MIB, "u1"))
            assert len(hoard) > 2
            del hoard[1:]  # its pages are in the cache, which is given up before the cgroup is run into
            with pytest.raises(errors.FabricMemoryError, match="memory cgroup"):
                vmm.create_handle(192 * MIB)
            hoard.clear()
            strata.empty_cache()
            end = time.monotonic() + BOUND
            while strata.stats()["quarantined_bytes"]:
                assert time.monotonic() < end
                time.sleep(0.001)
        g.barrier()
    check_group(g, [0, 1], rounds=1)


def test_a_memory_cgroup_is_an_error_and_no_kill():
    """Pages of the UB space count in the cgroup of who made them; its limit kills where others refuse."""
    with memory_cgroup(160 * MIB) as folder:
        with Job(_in_a_cgroup, 2, folder, hbm=1 << 30) as job:
            assert [job.reap(rank) for rank in range(2)] == [0, 0]


OOM = """
import os, sys, time
import numpy as np, strata
g = strata.world()
g.barrier()
if g.rank == 1:
    with open(sys.argv[1] + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
    hoard = []
    while True:
        hoard.append(np.ones(8 << 20, "u1"))  # memory of its own, not the fabric's
try:
    while True:
        g.all_reduce(strata.ones(1 << 16))
except strata.PeerDead as error:
    assert error.ranks == (1,)
    print("seen by", g.rank)
    h = g.shrink()
    assert (h.all_reduce(strata.ones(1 << 16)) == 2).all()
    print("went on", h.rank)
"""


def test_a_die_that_is_killed_for_memory(tmp_path):
    """The kernel kills it: peers see a death and go on, and the launcher says what such a signal can mean."""
    script = write(tmp_path / "oom.py", OOM)
    with memory_cgroup(64 * MIB) as folder:
        done = run("-n", 3, script, folder)
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert sorted(done.stdout.splitlines()) == [b"seen by 0", b"seen by 2", b"went on 0", b"went on 1"]
    last = done.stderr.splitlines()[-1]
    assert last == (b"strata-run: rank 1 of 3 failed: killed by SIGKILL (not by strata-run; the kernel does this "
                    b"when memory runs out)")  # fmt: skip


# ---- addresses ------------------------------------------------------------------------------------------------------


def _no_addresses(die):
    if die.rank == 1:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        now = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (now + 64 * MIB, hard))
        caught = die.catch(strata.init)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        assert caught.kind in ("RegistrationError", "HostError"), caught
        assert "ulimit -v" in caught.text, caught
        die.say("refused")
        return
    caught = die.catch(strata.init, timeout=BOUND)
    assert caught.kind in ("PeerDead", "RegistrationError"), caught
    assert "rank 1" in caught.text and caught.ranks == (1,), caught


def test_a_die_without_addresses_cannot_join():
    """It says which limit; the others hear that this rank has not come, and do not wait for it."""
    with Job(_no_addresses, 3) as job:
        job.all("refused", [1])
        assert job.reap(1) == 0
        assert [job.reap(rank) for rank in (0, 2)] == [0, 0]
