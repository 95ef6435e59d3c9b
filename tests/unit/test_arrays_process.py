"""What only whole processes show: exits, forks, full file systems."""

import os
import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
import gc, os, sys, threading, time
import numpy as np
from strata import bootstrap, errors
from strata._core import memory, space
from strata.fabric import allocator, arrays
PAGE = 1 << 21
"""


def run(code, *, before=(), status=0, **environ):
    """A process that runs the code as a job of one die.  Its output; what it says on stderr fails."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("STRATA_")} | environ
    done = subprocess.run(
        [*before, sys.executable, "-X", "dev", "-c", PRELUDE + textwrap.dedent(code)],
        env=env, capture_output=True, text=True, timeout=90,
    )
    assert (done.returncode, done.stderr) == (status, ""), done.stdout + done.stderr
    return done.stdout


# ---- the end of a process -------------------------------------------------------


def test_arrays_alive_at_exit():
    run("""
        kept = [arrays.zeros(n, "u1") for n in (0, 100, 1 << 20, 5 * PAGE)]
        views = [x[1:] for x in kept]
        cycle = [arrays.zeros(10)]; cycle.append(cycle)
        class Late:  # an attribute that dies while modules are taken apart
            def __init__(self): self.x = arrays.zeros(1000)
            def __del__(self): self.x[:] = 1
        sys.late = Late()
        np.late = Late()
    """)


def test_arrays_alive_at_exit_after_finalize():
    run("""
        x = arrays.zeros(3 * PAGE, "u1")
        y = arrays.ones(10)
        bootstrap.finalize()
        x[:] = 7
        assert (y == 1).all()
        bootstrap.finalize()
    """)


def test_thread_allocates_during_exit():
    for _ in range(3):
        run("""
            def work():
                while True:
                    x = arrays.ones(1000)
                    y = arrays.zeros(2 * PAGE, "u1")
                    allocator.empty_cache()
            for _ in range(3):
                threading.Thread(target=work, daemon=True).start()
            time.sleep(0.2)
        """)


def test_memory_returns_after_finalize():
    run("""
        x, y = arrays.zeros(5 * PAGE, "u1"), arrays.zeros(100)
        context = bootstrap.context()
        heap = memory.heap_of(context)
        used = context.die_info(0)["pages_reserved"]
        bootstrap.finalize()
        del x
        assert context.die_info(0)["pages_reserved"] == used - 5
        del y
        assert context.die_info(0)["pages_reserved"] == used - 6
        assert heap.stats()["reserved_bytes.all.current"] == 0 and heap.check() == 0
        assert arrays.zeros(3).sum() == 0  # joins again
        assert memory.heap_of(bootstrap.context()) is heap
    """, STRATA_CACHE_BYTES="0")


# ---- fork ---------------------------------------------------------------------------


def test_forked_child_gives_nothing_back():
    out = run("""
        x, y = arrays.full(1000, 7, "u1"), arrays.full(2 * PAGE, 7, "u1")
        heap = memory.heap_of(bootstrap.context())
        before = heap.stats()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            assert (x == 7).all() and (y == 7).all()
            del x, y
            gc.collect()
            for make in (lambda: arrays.empty(3), lambda: arrays.zeros(3 * PAGE),
                         lambda: memory.heap_array(heap, 3, "f4"),
                         lambda: memory.heap_array(heap, 5 * PAGE, "f4", True), allocator.empty_cache,
                         allocator.memory_stats, allocator.memory_snapshot, allocator.reset_peak_memory_stats,
                         lambda: allocator.set_limit(0), heap.stats,
                         heap.walk, lambda: heap.free(1 << 44)):
                try:
                    make()
                except errors.NotInJob as error:
                    pass
                else:
                    raise AssertionError("a forked child could use the heap")
            assert heap.check() == 0
            print("child went through")
            sys.exit(0)  # with all that an exit does
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert heap.stats() == before and heap.check() == 0
        assert (x == 7).all() and (y == 7).all()
        x[:] = y[:1000] = 9
        assert (arrays.zeros(PAGE, "u1") == 0).all() and (x == 9).all()
    """)
    assert out == "child went through\n"


def test_multiprocessing_child():
    run("""
        import multiprocessing, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads: not ours
        x = arrays.full(1000, 7, "u1")

        def look(view, queue):
            queue.put((int(view.sum()), type(view.copy()).__name__))

        fork = multiprocessing.get_context("fork")
        queue = fork.SimpleQueue()
        child = fork.Process(target=look, args=(x[::2], queue))
        child.start()
        assert queue.get() == (3500, "ndarray")
        child.join()
        assert child.exitcode == 0
        assert (x == 7).all() and allocator.memory_stats()["allocation.all.current"] == 1
    """)


def test_fork_while_threads_hold_the_locks():
    """Whatever state the locks are forked in, a child that drops arrays does not hang."""
    run("""
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        stop = threading.Event()

        def work():
            while not stop.is_set():
                x = arrays.empty(100)
                y = arrays.empty(2 * PAGE, "u1")
                del x, y

        kept = [arrays.zeros(100) for _ in range(100)]
        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads: t.start()
        for _ in range(40):
            child = os.fork()
            if child == 0:
                del kept
                os._exit(0)
            end = time.monotonic() + 20
            while True:
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid: break
                assert time.monotonic() < end, "a forked child hangs"
                time.sleep(0.001)
            assert status == 0
        stop.set()
        for t in threads: t.join()
        heap = memory.heap_of(bootstrap.context())
        assert heap.stats()["allocation.all.current"] == 100 and heap.check() == 0
    """, STRATA_CACHE_BYTES="0")


# ---- no room ----------------------------------------------------------------------------


def test_share_is_used_to_the_last_page():
    run("""
        heap = memory.heap_of(bootstrap.context())
        for _ in range(2):
            x = arrays.empty(8 * PAGE, "u1")  # an exact fit
            x[:] = 1
            before = heap.stats()
            for nbytes in (0, 1, PAGE, 8 * PAGE, 9 * PAGE):
                try:
                    arrays.empty(nbytes, "u1")
                    raise AssertionError(nbytes)
                except errors.FabricMemoryError as error:
                    text = str(error)
                    assert error.needed_bytes == max(1, -(-nbytes // PAGE)) * PAGE and error.available_bytes == 0
                    assert "--hbm" in text and "rank 0" in text and "16.00 MiB in 1 array;" in text, text
                    assert hex(arrays.address(x)) in text and "remount" not in text, text
            assert heap.stats() == before | {"num_ooms": before["num_ooms"] + 5}
            assert heap.check() == 0 and (x == 1).all()
            del x
        parts = [arrays.full(PAGE, i, "u1") for i in range(8)]
        del parts[::2]  # cached, and in pieces
        x = arrays.empty(4 * PAGE, "u1")
        x[:] = 99
        assert all((p == i).all() for p, i in zip(parts, (1, 3, 5, 7)))
        assert heap.stats()["num_alloc_retries"] >= 1 and heap.check() == 0
        held = [x, *parts]
        del x, parts
        held.clear()
        y = arrays.zeros(8 * PAGE, "u1")
        assert not y.any()
        del y
        small = []
        try:
            while True: small.append(arrays.full(1000, len(small) % 251, "u1"))
        except MemoryError:
            pass
        assert len(small) == 8 * (PAGE // 1024), len(small)
        assert all((s == i % 251).all() for i, s in enumerate(small))
        small.pop(1234)
        small.append(arrays.empty(1000, "u1"))
        assert heap.check() == 0
    """, STRATA_HBM="16M")


def test_shortage_in_a_thread_while_others_free():
    """Two threads that together never want more than there is are never refused."""
    run("""
        failures = []

        def work(seed):
            try:
                for i in range(600):
                    x = arrays.empty((1 + (i + seed) % 4) * PAGE, "u1")
                    x[::4096] = seed
                    assert (x[::4096] == seed).all()
                    del x
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in (1, 2)]
        for t in threads: t.start()
        for t in threads: t.join()
        assert not failures, failures
        heap = memory.heap_of(bootstrap.context())
        assert heap.stats()["allocation.all.current"] == 0 and heap.check() == 0
    """, STRATA_HBM="16M", STRATA_CACHE_BYTES="6M")


SMALL_SHM = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=32m tmpfs /dev/shm && exec "$0" "$@"']


def test_full_file_system_is_an_error_and_no_signal():
    try:
        probe = subprocess.run([*SMALL_SHM, "true"], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("a small /dev/shm needs `unshare` (util-linux), which is not here")
    if probe.returncode:
        pytest.skip(f"a small /dev/shm needs a mount namespace, which is refused here: {probe.stderr.strip()}")
    run("""
        heap = memory.heap_of(bootstrap.context())
        held = []
        try:
            while True:
                held.append(arrays.full(3 * PAGE, 5, "u1"))
            raise AssertionError
        except errors.FabricMemoryError as error:
            text = str(error)
            assert "remount" in text and "--shm-size" in text and "--hbm" not in text, text
            assert error.available_bytes == error.limits["/dev/shm"] < error.needed_bytes == 3 * PAGE, text
            assert error.limits["rank 0's HBM"] > 100 * PAGE
        assert 3 <= len(held) <= 5 and all((x == 5).all() for x in held)  # all of it can be written
        assert heap.check() == 0 and heap.stats()["allocation.all.current"] == len(held)
        room = os.statvfs("/dev/shm")
        room = room.f_bavail * room.f_frsize // PAGE
        exact = arrays.zeros(room * PAGE, "u1") if room else None
        del exact
        held.pop()
        held.append(arrays.zeros(3 * PAGE, "u1"))
        assert not held[-1].any()
        foreign = os.open("/dev/shm/foreign", os.O_CREAT | os.O_WRONLY)  # takes the rest
        try:
            while True: os.write(foreign, bytes(1 << 16))
        except OSError:
            os.close(foreign)
        for x in held: x[:] = 1
        try:
            for _ in range(20): held.append(arrays.ones(PAGE, "u1"))
            raise AssertionError
        except errors.FabricMemoryError:
            pass
    """, before=SMALL_SHM)
