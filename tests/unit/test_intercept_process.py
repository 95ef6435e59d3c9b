"""Interception in whole processes: full fabrics, forks, exits, options, and what it does when nobody asks."""

import os
import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
import gc, os, sys, threading, warnings
import numpy as np
import strata
PAGE = 1 << 21
def counted():
    return strata.stats()["intercept"]
def child(call):
    "Status of a forked child that makes a call; 0 if it returns."
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            call()
            status = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def run(code, *options, said=None, **environ):
    """A process that runs the code as a job of one die, under the interpreter's own checks of its memory.

    Its output.  What it says on stderr fails, or must contain ``said``, once.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("STRATA_")} | environ
    done = subprocess.run(
        [sys.executable, "-X", "dev", *options, "-c", PRELUDE + textwrap.dedent(code)],
        env=env, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "" if said is None else done.stderr.count(said) == 1, done.stdout + done.stderr
    return done.stdout


# ---- no room ------------------------------------------------------------------------


FULL = """
    made = []
    def fill():
        with strata.intercept():
            for i in range(12):
                made.append(np.full(PAGE, i, "u1"))
            x = np.zeros(3 * PAGE, "u1")   # in the fabric or not, what a program sees is the same
            x.resize(4 * PAGE, refcheck=False)
            made.append(x)
            made.append(np.fromiter(range(PAGE), "i8"))
    fill()
    assert [int(x[0]) for x in made[:12]] == list(range(12)) and not made[12].any()
    assert (made[13] == np.arange(PAGE)).all()
    inside = sum(map(strata.is_fabric, made))
    assert 6 <= inside <= 8, inside
    got = counted()
    assert got["fallbacks"] >= 6 and got["fallback_bytes"] >= 6 * PAGE and got["arrays"] >= 8, got
    assert strata.stats()["memory"]["bad_frees"] == 0
    keep, made[:] = made[:3], []
    with strata.intercept():
        assert strata.is_fabric(np.zeros(PAGE, "u1"))   # there is room again
    assert counted()["fallbacks"] == got["fallbacks"]
"""


def test_without_room_numpy_goes_on_and_one_warning_says_why():
    text = "no room for 2.00 MiB of fabric memory"
    run(FULL, said=text, STRATA_HBM="16M")
    run(FULL, "-W", "ignore", STRATA_HBM="16M")
    run(FULL, "-W", "error", said=text, STRATA_HBM="16M")  # nobody can catch it, so it ends nothing


def test_the_warning_says_what_to_change_and_can_be_caught():
    run("""
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with strata.intercept(100):
                x = [np.ones(PAGE // 8) for _ in range(8)]
            for _ in range(3):
                len(x)
        (only,) = seen
        text = str(only.message)
        assert only.category is RuntimeWarning and text.startswith("strata.intercept: a numpy array of 2097152 bytes")
        for word in ("--hbm", "min_bytes", "STRATA_INTERCEPT_MIN_BYTES", "HBM", "strata.stats()['intercept']"):
            assert word in text, text
    """, STRATA_HBM="8M")


def test_a_thread_without_room_warns_too():
    run("""
        def work():
            x = [np.ones(PAGE // 8) for _ in range(8)]
            assert x[7].sum() == PAGE // 8
        with strata.intercept(process=True):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        assert counted()["fallbacks"] >= 4
    """, said="no room for 2.00 MiB", STRATA_HBM="8M")


def test_a_cgroup_is_not_run_into(tmp_path):
    for name, text in {"limit": 64 << 20, "used": 61 << 20, "stat": "inactive_file 0"}.items():
        (tmp_path / name).write_text(f"{text}\n")
    run(f"""
        from strata._core import limits
        group = limits.Cgroup(*(os.path.join({str(tmp_path)!r}, name) for name in ("limit", "used", "stat")))
        limits.cgroups = lambda *_: (group,)
        with strata.intercept():
            a, b = np.ones(PAGE, "u1"), np.ones(2 * PAGE, "u1")  # 3 MiB are free
            assert strata.is_fabric(a) and not strata.is_fabric(b)
            del a                                       # a page of cache, which goes back at the next look
            c = np.ones(2 * PAGE, "u1")
            assert not strata.is_fabric(c)
            assert strata.stats()["memory"]["cached_bytes"] == 0
            d = np.ones(1000)
            assert strata.is_fabric(d)
            d.resize(4 * PAGE // 8, refcheck=False)
            assert not strata.is_fabric(d) and d.sum() == 1000
        assert counted()["fallbacks"] == 3
    """, said="the memory cgroup")


# ---- forks ----------------------------------------------------------------------------


def test_a_forked_child_makes_ordinary_arrays_and_frees_nothing():
    run("""
        with strata.intercept(process=True), strata.intercept():
            shared = [np.full(n, 7, "i4") for n in (300, 5_000, 2 * PAGE)]
            before = strata.stats()["memory"]["allocation.all.current"]
            def look():
                fresh = [np.zeros(n) for n in (10, 5_000, PAGE)]
                assert not any(x.any() for x in fresh) and not any(map(strata.is_fabric, fresh))
                del fresh
                for x in shared:
                    assert (x == 7).all()
                    n = x.size
                    for size in (n + 50_000, 100, 10):
                        x.resize(size, refcheck=False)   # moves out of the parent's memory
                        assert (x[:min(n, size)] == 7).all() and not x[n:].any()
                        n = min(n, size)
                        x[:] = 7
                        x += 0
                    x[:] = 1
                thread = threading.Thread(target=lambda: np.zeros(100_000).sum())
                thread.start(); thread.join()
                shared.clear()
                gc.collect()
            assert child(look) == 0
            assert all((x == 7).all() for x in shared)
            assert strata.stats()["memory"]["allocation.all.current"] == before
            assert strata.is_fabric(np.zeros(10_000))
        shared.clear()
        after = strata.stats()["memory"]
        assert after["allocation.all.current"] < before and after["bad_frees"] == 0
        assert counted()["fallbacks"] == 0
    """)


def test_forks_while_threads_allocate():
    run("""
        stop = threading.Event()
        def busy():
            while not stop.is_set():
                x = np.ones(20_000); x.resize(300_000, refcheck=False)
        with strata.intercept(process=True):
            threads = [threading.Thread(target=busy) for _ in range(3)]
            for t in threads: t.start()
            kept = np.arange(5_000)
            def look():
                kept.resize(9_000, refcheck=False)
                assert kept[4_999] == 4_999
                for _ in range(20): np.zeros(100_000)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads, as Python 3.12 says
                for _ in range(20):
                    assert child(look) == 0
            stop.set()
            for t in threads: t.join()
    """)


# ---- ends -----------------------------------------------------------------------------


@pytest.mark.parametrize("finalize", [False, True])
def test_arrays_alive_at_exit(finalize):
    run(f"""
        with strata.intercept(0, process=True), strata.intercept(0):
            kept = [np.zeros(n, "u1") for n in (0, 100, 1 << 20, 5 * PAGE)]
            cycle = [np.zeros(10_000)]; cycle.append(cycle)
            objects = np.array([object(), [1], cycle], dtype=object)
        class Late:  # numpy is asked for memory while modules are taken apart
            def __init__(self): self.x = np.zeros(10_000)
            def __del__(self): self.x[:] = 1; self.x.resize(20_000, refcheck=False); self.x + self.x
        blocks = [strata.intercept(), strata.intercept(process=True)]
        for block in blocks: block.__enter__()
        sys.late = Late(); np.late = Late()
        if {finalize}: strata.finalize()
    """)


def test_threads_allocate_during_exit():
    for _ in range(3):
        run("""
            block = strata.intercept(process=True)
            block.__enter__()
            def work():
                while True: np.ones(100_000)
            for _ in range(3): threading.Thread(target=work, daemon=True).start()
            assert all(strata.is_fabric(np.ones(50_000)) for _ in range(50))
        """)


# ---- options ---------------------------------------------------------------------------


def test_the_option_is_for_all_threads_from_init_to_finalize():
    run("""
        out = []
        def make(): out.append(np.zeros(5_000))
        def in_thread():
            thread = threading.Thread(target=make); thread.start(); thread.join()
            return strata.is_fabric(out.pop())
        early = np.ones(5_000)
        assert not in_thread()
        strata.init()
        assert strata.is_fabric(np.ones(5_000)) and in_thread() and not strata.is_fabric(early)
        assert not strata.is_fabric(np.ones(4_000, "u1"))
        with strata.intercept(100):
            x = np.ones(500, "u1")
            assert strata.is_fabric(x) and in_thread()
        strata.finalize()
        assert not in_thread() and x.sum() == 500
        early.resize(6_000, refcheck=False)
        assert early.sum() == 5_000
        strata.init()
        assert in_thread()
    """, STRATA_INTERCEPT="1", STRATA_INTERCEPT_MIN_BYTES="5000")


def test_nobody_who_does_not_ask_pays():
    """Neither importing strata nor using it touches numpy's handlers, or loads what would."""
    run("""
        import ctypes
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        table = ctypes.cast(get(np._core._multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
        default = ctypes.cast(table[306], ctypes.POINTER(ctypes.py_object))[0]
        before = get(default, b"mem_handler")
        x = strata.ones(1000)
        strata.world().all_reduce(x)
        assert "strata._core.intercept" not in sys.modules and "strata.fabric.intercept" not in sys.modules
        assert set(counted().values()) == {0}
        with strata.intercept():
            pass
        assert get(default, b"mem_handler") == before
    """)
