"""Failures reported of other libraries that no other test here provokes in that way (docs/known-failures.md)."""

import ctypes
import mmap
import os
import platform
import signal
import subprocess
import sys

import numpy as np
import pytest
from faultlib import CLONE_NEWNS, LIBC, MS_PRIVATE, MS_REC, Job, check_group, died
from launching import environment, run, write

import strata
from strata import vmm

PAGE = mmap.PAGESIZE
PROT_NONE = 0


def shm_names():
    return {name for name in os.listdir("/dev/shm") if "strata" in name}


# ---- leaving -----------------------------------------------------------------------------------------------


def _many_histories(die):
    g = strata.world()
    five = g.subgroup(range(5)) if die.rank < 5 else None
    row, column = g.split(die.rank // 4), g.split(die.rank % 4, key=-die.rank)
    for group in (five, row, column) if die.rank % 2 else (five,):  # some groups are never used
        if group is not None and group is not row:
            group.barrier(async_op=True)
    die.say("ready")
    die.hear()
    strata.finalize()
    die.say("left")


@pytest.mark.reports("leak")
def test_leaving_does_not_depend_on_the_groups_that_were_made():
    """Groups that cross, some with operations that never end; dies leave in any order, and none waits."""
    with Job(_many_histories, 8) as job:
        job.all("ready")
        for rank in (6, 0, 3, 7, 1, 5, 2, 4):
            job.tell(rank)
            job.all("left", [rank])
            assert job.reap(rank) == 0


def _raises(die):
    g = strata.world()
    x = strata.ones(1 << 17)
    g.barrier()
    try:
        if die.rank == 2:
            raise SystemExit(3)
        died(die.catch(g.all_reduce, x), [2])
    finally:
        strata.finalize()  # while peers are in an operation with this die
        die.say("finalized")


def test_leaving_in_finally_waits_for_nobody():
    with Job(_raises, 3) as job:
        job.all("finalized")
        assert [job.reap(rank) for rank in range(3)] == [0, 0, 3]


# ---- names ---------------------------------------------------------------------------------------------------


def _looks(die, before):
    g = strata.world()
    x = strata.ones(4 << 20, "u1")
    g.all_reduce(x)
    assert shm_names() == before
    check_group(g.split(0), [0, 1], rounds=1)
    assert shm_names() == before


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_a_running_job_has_no_file(umask):
    """What has no name cannot be left behind, removed by somebody, or taken for another job's; the umask of whoever
    starts the job opens it to nobody, and closes it to none of its dies."""
    before, old = shm_names(), os.umask(umask)
    try:
        with Job(_looks, 2, before) as job:
            assert os.fstat(job.space.fd).st_nlink == 0
            assert os.fstat(job.space.fd).st_mode & 0o077 == 0
            assert [job.reap(rank) for rank in range(2)] == [0, 0]
    finally:
        os.umask(old)


def _elsewhere(die):
    if die.rank == 1:  # before it joins
        assert LIBC.unshare(CLONE_NEWNS) == 0
        assert LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0
        assert LIBC.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=64k") == 0
    g = strata.world()
    x = strata.full(8 << 20, die.rank + 1, "u1")
    assert (g.all_reduce(x) == 3).all()
    check_group(g, [0, 1])


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_dies_with_different_dev_shm_are_one_job():
    """As in two containers: what counts is the descriptor, and nothing is guessed from names or places."""
    with Job(_elsewhere, 2) as job:
        assert [job.reap(rank) for rank in range(2)] == [0, 0]


def test_a_temporary_directory_is_not_needed(tmp_path):
    script = write(tmp_path / "sum.py", """
        import strata
        x = strata.ones(5000)
        assert (strata.world().all_reduce(x) == 2).all()
    """)  # fmt: skip
    done = run("-n", 2, script, env=environment(TMPDIR="/nowhere/" + "x" * 300))
    assert (done.returncode, done.stderr) == (0, b"")
    script.write_text(
        "import strata\nfrom strata.testing import Pool\n"
        "def f(group): return group.size\n"
        "with Pool(2) as pool: assert pool.run(f) == [2, 2]\n"
        "def g(): return strata.world().size\n"
        "assert strata.spawn(g, 2) == [2, 2]\n"
    )
    environ = environment(TMPDIR="/nowhere/" + "x" * 300)
    done = subprocess.run([sys.executable, script], env=environ, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


# ---- memory ----------------------------------------------------------------------------------------------------


class Edge:
    """Ordinary memory whose last byte is followed by a page that nobody may touch."""

    def __init__(self, nbytes):
        self.whole = -(-nbytes // PAGE) * PAGE
        self.map = mmap.mmap(-1, self.whole + PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert LIBC.mprotect(start + self.whole, PAGE, PROT_NONE) == 0

    def array(self, count, dtype):
        size = count * np.dtype(dtype).itemsize
        return np.frombuffer(self.map, dtype, count, self.whole - size)


def _at_the_edge(group):
    """Each operation on arrays that end where memory ends, ordinary and the fabric's."""
    n, me = group.size, group.rank
    spans = [vmm.reserve_address(4 << 20) for _ in range(2)]  # the second half of each stays without memory
    for span in spans:
        vmm.map(span, vmm.create_handle(2 << 20))
        vmm.set_access(span, "read_write", 0, 2 << 20)
    edges = [Edge(1 << 16), Edge(1 << 16)]

    def fabric(which, count, dtype):
        size = count * np.dtype(dtype).itemsize
        return vmm.array(spans[which], (count,), dtype, (2 << 20) - size)

    kinds = {"fabric": fabric, "numpy": lambda which, count, dtype: edges[which].array(count, dtype)}
    for make in kinds.values():
        for dtype in ("u1", "i2", "f4", "f8"):
            for count in (1, 2, 3, 5, 9, 15, 17, 31, 33, 63, 65, 1001, 2049, 4095):
                src, out = make(0, count, dtype), make(1, count * n, dtype)
                src[:] = (np.arange(count) + me) % 29
                wanted = (np.arange(count) + np.arange(n)[:, None]) % 29
                assert (group.all_gather(src, out.reshape(n, count)) == wanted).all()
                part = make(1, count, dtype)
                assert (group.all_reduce(src, part) == wanted.sum(0)).all()
                group.broadcast(src, root=1)
                assert (src == wanted[1]).all()
                src[:] = wanted[me]
                if me == 0:
                    group.send(src, 1)
                elif me == 1:
                    assert (group.recv(part, 0) == wanted[0]).all()
                everything = make(1, count * n, dtype)
                everything[:] = np.tile(wanted[me], n)
                assert (group.reduce_scatter(everything, src) == wanted.sum(0)).all()
    group.barrier()


def test_nothing_is_read_or_written_beyond_the_end_of_memory(pair):
    pair.run(_at_the_edge)


def _each_in_its_own_order(group):
    """There is no symmetric heap: where an array lies is said at each operation."""
    order = np.random.default_rng(group.rank).permutation(12)
    arrays = [None] * 12
    for turn in range(4):
        for k in order:  # a different order of allocations and frees on every die
            arrays[k] = None
        for k in np.roll(order, turn + group.rank):
            arrays[k] = strata.full(1000 * (k + 1), group.rank * 100 + k, "i8")
        for k in range(12):
            group.all_reduce(arrays[k])
            assert (arrays[k] == sum(range(group.size)) * 100 + k * group.size).all()
    places = group.all_gather(np.array([strata.address(a) - strata.address(arrays[0]) for a in arrays]))
    assert group.size == 1 or (places != places[0]).any(), "the orders were meant to differ"


def test_dies_allocate_and_free_in_orders_of_their_own(trio):
    trio.run(_each_in_its_own_order)


# ---- processes ---------------------------------------------------------------------------------------------------


def _handlers():
    return {n: signal.getsignal(n) for n in signal.valid_signals()}, signal.pthread_sigmask(signal.SIG_BLOCK, [])


def _keeps_handlers(die):
    before = _handlers()
    g = strata.world()
    g.all_reduce(np.ones(70_000), async_op=True).wait()
    with strata.stream(strata.Stream()):
        g.all_reduce(strata.ones(70_000))
    g.barrier()
    assert _handlers() == before
    strata.finalize()
    assert _handlers() == before


@pytest.mark.reports("leak")
def test_signal_handlers_are_the_programs():
    with Job(_keeps_handlers, 2) as job:
        assert [job.reap(rank) for rank in range(2)] == [0, 0]


RAW_FORK = {"x86_64": (57,), "aarch64": (220, signal.SIGCHLD, 0, 0, 0, 0)}.get(platform.machine())


def _clones(die):
    g = strata.world()
    x = strata.full(1000, die.rank, "i8")
    g.all_reduce(x)
    pid = LIBC.syscall(*RAW_FORK)  # no handler of fork is called in it
    if pid == 0:
        code = 1
        try:
            for attempt in (g.barrier, lambda: strata.empty(10), lambda: g.split(0), strata.init):
                die.catch(attempt)
            del x
            strata.finalize()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    check_group(g, [0, 1])
    assert x[0] == 1


@pytest.mark.skipif(RAW_FORK is None, reason="the number of the system call is not known here")
def test_a_child_that_python_knows_nothing_of_does_no_harm():
    with Job(_clones, 2) as job:
        assert [job.reap(rank) for rank in range(2)] == [0, 0]
