"""Descriptors, threads, stacks, locked memory and mappings that run out, and a host without /proc."""

import contextlib
import ctypes
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
from launching import run, write

import strata
from strata import errors, vmm
from strata.testing import Pool

MAPPINGS = int(Path("/proc/sys/vm/max_map_count").read_text())  # that a process may have
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, or takes a limit that another user has")
SUM = """
import numpy as np, strata
g = strata.world()
x = strata.ones(3 << 20, "u1")
assert (g.all_reduce(x) == g.size).all()
assert (g.all_reduce(np.ones(1 << 18), async_op=True).wait() == g.size).all()
assert g.split(0).all_gather(np.array([g.rank])).tolist() == [[r] for r in range(g.size)]
s = strata.Stream()
with strata.stream(s):
    g.all_reduce(x)
s.synchronize()
"""


@contextlib.contextmanager
def limited(which, soft):
    before = resource.getrlimit(which)
    resource.setrlimit(which, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


@contextlib.contextmanager
def no_descriptors(spare=0):
    """Only ``spare`` more descriptors can be opened."""
    taken = []
    with limited(resource.RLIMIT_NOFILE, max(map(int, os.listdir("/proc/self/fd"))) + 1 + spare):
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            for _ in range(min(spare, len(taken))):
                os.close(taken.pop())
            yield
        finally:
            for fd in taken:
                os.close(fd)


# ---- descriptors ----------------------------------------------------------------------------------------------------


def _joins_without_descriptors(die, spare):
    strata.init, strata.world, strata.stream  # noqa: B018 - imported while there are descriptors
    if die.rank == 1:
        with no_descriptors(spare):
            try:
                strata.init()
                die.say("joined")
            except errors.HostError as error:
                assert "ulimit -n" in str(error) and error.errno, error
                die.say("refused", str(error))
        strata.init()
    g = strata.world()
    check_group(g, [0, 1], rounds=1)
    if die.rank == 1:
        with no_descriptors():  # nothing that a die does afterwards takes any
            check_group(g, [0, 1])
            check_group(g.split(0), [0, 1], rounds=1)
            g.all_reduce(np.ones(1 << 18), async_op=True).wait()
    else:
        check_group(g, [0, 1])
        check_group(g.split(0), [0, 1], rounds=1)
        g.all_reduce(np.ones(1 << 18), async_op=True).wait()
    if die.rank == 1:
        with no_descriptors():
            die.say("waits")
            died(die.catch(g.barrier, timeout=BOUND), [0])  # liveness can be seen without one
    else:
        die.hear()
        os._exit(0)


@pytest.mark.parametrize("spare", [0, 1, 2, 3])
def test_a_die_without_descriptors(spare):
    """Joining says so and may be tried again; afterwards a die needs none, not even to see a death."""
    with Job(_joins_without_descriptors, 2, spare) as job:
        job.all("waits", [1])
        assert {e.name for e in job.events} <= {"joined", "refused"}
        if spare == 0:
            assert [e.name for e in job.events] == ["refused"]
        job.tell(0)
        assert [job.reap(rank) for rank in range(2)] == [0, 0]


def _one():
    return 1


def _in_a_pool(fn, n):
    with Pool(n) as pool:
        return pool.run(lambda group: fn())


@pytest.mark.unchecked("it counts the descriptors of the process that checks")
@pytest.mark.parametrize("start", [strata.spawn, _in_a_pool], ids=["spawn", "pool"])
def test_a_caller_without_descriptors(start):
    """An error of the caller, nothing left, and it works again when there are some."""
    assert start(_one, 2) == [1, 1]  # what it imports needs descriptors, too
    failed = []
    for spare in (0, 2, 3, 4):
        files = sorted(os.listdir("/proc/self/fd"))
        with no_descriptors(spare):
            try:
                assert start(_one, 2) == [1, 1]
            except (OSError, errors.StrataError) as error:
                assert any(word in str(error) for word in ("open files", "ulimit -")), error
                failed.append(spare)
        assert sorted(os.listdir("/proc/self/fd")) == files
    assert failed[:2] == [0, 2]
    assert start(_one, 2) == [1, 1]


# ---- threads and memory ----------------------------------------------------------------------------------------------


NO_THREADS = """
import os, resource, sys
import numpy as np, strata
g = strata.world()
g.barrier()
if g.rank == 1:
    os.setresuid(54322, 54322, 54322)  # root has no such limit
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
x = strata.ones(50_000)
for attempt in (
    lambda: g.all_reduce(x, async_op=True).wait(),
    lambda: g.all_reduce(x, path="sdma"),
    lambda: g.send(x, 1 - g.rank, async_op=True) if g.rank else None,
):
    try:
        attempt()
        said = "nothing"
    except strata.StrataError as error:
        said = str(error)
    print(g.rank, said, flush=True)
if g.rank == 1:
    resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
y = strata.ones(50_000)
assert (g.all_reduce(y, async_op=True).wait() == 2).all()
assert (g.all_reduce(strata.ones(50_000), path="sdma") == 2).all()
"""


@ROOT_ONLY
def test_no_thread_for_asynchronous_work(tmp_path):
    script = write(tmp_path / "threads.py", NO_THREADS)
    done = run("-n", 2, script)
    assert (done.returncode, done.stderr) == (0, b"")
    said = done.stdout.decode().splitlines()
    poor = [line for line in said if line.startswith("1 ")]
    other = [line for line in said if line.startswith("0 ")]
    assert all("ulimit -u" in line for line in poor if "nothing" not in line), said
    assert "ulimit -u" in poor[0], said
    assert "mismatch" in other[0].lower() or "not the same" in other[0] or "failed" in other[0], said


@pytest.mark.parametrize("kilobytes", [256, 1024, None])
def test_stacks_of_any_size(tmp_path, kilobytes):
    """The stacks of threads follow `ulimit -s`, which may be small, or no limit at all."""
    script = write(tmp_path / "sum.py", SUM)
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    size = hard if kilobytes is None else kilobytes << 10
    done = run("-n", 2, script, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (size, hard)))
    assert (done.returncode, done.stderr) == (0, b"")


def test_no_memory_may_be_locked(tmp_path):
    script = write(tmp_path / "sum.py", SUM)
    done = run("-n", 2, script, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0)))
    assert (done.returncode, done.stderr) == (0, b"")


def _no_mappings(die):
    g = strata.world()
    g.all_reduce(strata.ones(1 << 16))
    pages = 3 * MAPPINGS
    taken = mmap.mmap(-1, pages * mmap.PAGESIZE) if die.rank == 1 else None
    every_second = iter(range(0, pages, 2))

    def fill():  # every second page becomes a mapping of its own
        start = np.frombuffer(taken, "u1").ctypes.data
        for k in every_second:
            if LIBC.mprotect(ctypes.c_void_p(start + k * mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 1) != 0:
                break

    out = np.zeros(8 << 20, "u1")
    if taken is not None:
        fill()
    g.barrier()
    if die.rank == 0:  # pages whose frames go the other way: none joins the mapping beside it
        size, span = vmm.granularity(), vmm.reserve_address(out.nbytes)
        for offset in reversed(range(0, out.nbytes, size)):
            vmm.map(span, vmm.create_handle(size), offset)
        vmm.set_access(span, "read_write")
        out = vmm.array(span, out.nbytes, "u1")
    caught = die.catch(g.broadcast, out)
    die.say("caught", caught)
    assert caught.kind in ("RegistrationError", "FabricMemoryError", "CollectiveMismatch", "GroupBroken"), caught
    if die.rank == 1:
        assert "max_map_count" in caught.text, caught


@pytest.mark.skipif(MAPPINGS > 200_000, reason="NOT TESTED: vm.max_map_count is too large to reach")
def test_a_die_without_mappings():
    """It says which limit; the others do not wait for it."""
    with Job(_no_mappings, 2) as job:
        caught = job.all("caught")
        assert [job.reap(rank) for rank in range(2)] == [0, 0], caught


# ---- /proc ----------------------------------------------------------------------------------------------------------


def _no_proc(die):
    g = strata.world()
    check_group(g, range(3), rounds=1)
    with pytest.raises(errors.FabricMemoryError):
        strata.empty(1 << 40, "u1")
    shared = mmap.mmap(-1, 1 << 16)
    held = strata.register(np.frombuffer(shared, "u1"))
    check_group(g.split(0), range(3), rounds=1)
    del held
    die.say("ready")
    if die.rank == 2:
        time.sleep(60)
    died(die.catch(g.barrier), [2])
    check_group(g.shrink(), [0, 1])


@ROOT_ONLY
def test_a_host_without_proc(tmp_path):
    """Dies do without it; the launcher says that it cannot."""
    script = write(tmp_path / "sum.py", SUM)

    def inside():
        assert LIBC.mount(b"tmpfs", b"/proc", b"tmpfs", 0, b"size=64k") == 0
        with Job(_no_proc, 3) as job:
            job.all("ready")
            job.kill(2)
            job.gone(2)
            assert [job.reap(rank) for rank in (0, 1)] == [0, 0]
        done = run("-n", 2, script)
        assert done.returncode == 125, done.stderr
        assert done.stderr == b"strata-run: a job's launcher needs /proc: mount -t proc proc /proc\n"

    in_namespace(CLONE_NEWNS, inside)


# ---- the launcher ---------------------------------------------------------------------------------------------------


@ROOT_ONLY
def test_no_more_processes(tmp_path):
    """The launcher cannot fork all dies: it says which one, and ends those that it has started."""
    script = write(tmp_path / "sum.py", SUM)
    with cgroup("pids", "pids.max", "pids.max", 8) as folder:
        done = run("-n", 12, script, preexec_fn=lambda: (folder / "cgroup.procs").write_text(str(os.getpid())))
    assert done.returncode == 125, done.stderr
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith("strata-run: cannot start rank ") and "of 12" in last and "ulimit -u" in last, done.stderr


def test_dies_without_addresses(tmp_path):
    """`ulimit -v` is the same for all dies: each says so, and so does the launcher, once."""
    script = write(tmp_path / "sum.py", SUM)
    limit = 6 << 30
    done = run("-n", 2, script, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert done.returncode == 1, done.stderr
    last = done.stderr.decode().splitlines()[-1]
    assert "RegistrationError" in last and "ulimit -v" in last and "--hbm" in last, done.stderr
    few = "--hbm", "256M"
    done = run("-n", 2, *few, script, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert (done.returncode, done.stderr) == (0, b"")


# ---- the metadata log ------------------------------------------------------------------------------------------------


def _many_records(die):
    g = strata.world()
    x = strata.full(1 << 20, die.rank + 1, "u1")
    g.all_reduce(x)
    die.say("ready")
    if die.rank == 0:
        die.hear()  # the other one is stopped
        before = strata.stats()["log_records"]
        for _ in range(520):
            strata.ones(2 << 20, "u1")
            strata.empty_cache()
        assert strata.stats()["log_records"] - before > 1024, "a log holds more than was written"
        die.say("written")
    y = strata.full(3 << 20, die.rank + 1, "u1")
    assert (g.all_reduce(y) == 3).all()
    check_group(g, [0, 1])


def test_a_full_log_whose_reader_is_stopped():
    """The writer does not wait for it; the reader goes through the page table when it runs again."""
    with Job(_many_records, 2, env={"STRATA_QUARANTINE": "0.01", "STRATA_HUGE_PAGES": "0"}) as job:
        job.all("ready")
        job.kill(1, signal.SIGSTOP)
        job.tell(0)
        job.all("written", [0], bound=60)
        job.kill(1, signal.SIGCONT)
        assert [job.reap(rank) for rank in range(2)] == [0, 0]
