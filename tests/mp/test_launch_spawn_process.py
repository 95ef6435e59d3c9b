"""spawn and the process that calls it: threads, signals, descriptors, and sudden ends."""

import _thread
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
from launching import PATIENCE, all_gone, environment, plain, until, usual_signals, write

from strata import errors
from strata.launch import spawn
from strata.launch.procs import children


def rank():
    return int(os.environ["STRATA_RANK"])


@pytest.fixture(autouse=True)
def no_child_left():
    """Not even a zombie."""
    before = set(children())
    yield
    assert set(children()) <= before


def test_the_callers_process_is_as_before(capfd):
    """Signals, mask, descriptors, subreaper, random numbers, buffered output, exit handlers."""

    def state():
        return (
            {s: signal.getsignal(s) for s in signal.valid_signals()},
            signal.pthread_sigmask(signal.SIG_BLOCK, []),
            sorted(os.listdir("/proc/self/fd")),
            os.environ.copy(),
            np.random.get_state()[1].tolist(),
        )

    sys.stdout.write("once ")
    before = state()
    spawn(rank, 3)
    assert state() == before
    sys.stdout.flush()
    assert capfd.readouterr().out == "once "


def test_random_numbers_differ():
    import random

    got = spawn(lambda: (np.random.rand(), random.random()), 4)
    assert len({x for pair in got for x in pair}) == 8


def test_exit_handlers_of_the_caller_are_its_own(tmp_path):
    code = f"""
import atexit, os
from strata.launch import spawn
atexit.register(lambda: print("caller", os.environ.get("STRATA_RANK")))
def fn():
    atexit.register(lambda: open("{tmp_path}/die." + os.environ["STRATA_RANK"], "w").close())
    print("in die", flush=True)
spawn(fn, 2)
"""
    done = plain("-c", code)
    assert (done.stdout, done.stderr) == (b"in die\n" * 2 + b"caller None\n", b"")
    assert len(list(tmp_path.iterdir())) == 2


def test_from_a_process_with_threads():
    """As in a notebook: other threads hold the GIL, the import lock and malloc at any moment."""
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            [bytearray(1000) for _ in range(100)]
            __import__("json").dumps(list(range(100)))

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            got = spawn(lambda: float((np.ones((64, 64)) @ np.ones((64, 64)))[0, 0]) + rank(), 2, timeout=PATIENCE)
            assert got == [64.0, 65.0]
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_from_another_thread_and_several_at_once():
    results = {}

    def one(i):
        results[i] = spawn(lambda: (i, rank()), 2)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: [(i, 0), (i, 1)] for i in range(3)}


def test_inside_a_running_event_loop():
    import asyncio

    async def cell():
        return spawn(lambda: asyncio.run(asyncio.sleep(0, rank())), 2)

    assert asyncio.run(cell()) == [0, 1]


def test_multiprocessing_in_caller_and_die():
    context = multiprocessing.get_context("fork")
    other = context.Process(target=time.sleep, args=(1000,))
    other.start()
    try:

        def inside():
            assert not multiprocessing.active_children()
            with context.Pool(2) as pool:
                return sum(pool.map(abs, [-1, -2]))

        assert spawn(inside, 2) == [3, 3]
        assert other.is_alive()
    finally:
        other.kill()
        other.join()


def test_keyboard_interrupt_leaves_nothing():
    read, write_end = os.pipe()

    def stay():
        os.write(write_end, b"x")
        time.sleep(1000)

    def interrupt():
        for _ in range(3):
            os.read(read, 1)
        _thread.interrupt_main()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        spawn(stay, 3, grace=0.5)
    thread.join()
    os.close(read)
    os.close(write_end)


SCRIPT = """
import os, subprocess, sys, time
from strata.launch import spawn

def stay():
    deep = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    path = f"{sys.argv[1]}/pids.{os.environ['STRATA_RANK']}"
    with open(path + "~", "w") as f:
        print(os.getppid(), os.getpid(), deep.pid, file=f)
    os.rename(path + "~", path)
    time.sleep(1000)

spawn(stay, 3, grace=0.5)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_end_of_the_caller_is_the_end_of_all(tmp_path, number):
    script = write(tmp_path / "script.py", SCRIPT)
    process = subprocess.Popen(
        [sys.executable, script, tmp_path], env=environment(), stderr=subprocess.PIPE, preexec_fn=usual_signals
    )
    with process:
        files = until(lambda: len(f := list(tmp_path.glob("pids.?"))) == 3 and f, "dies are there")
        pids = [int(word) for file in files for word in file.read_text().split()]
        os.kill(process.pid, number)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == -number
        all_gone(pids)


def test_kill_9_of_the_callers_process_group_is_the_end_of_all(tmp_path):
    script = write(tmp_path / "script.py", SCRIPT)
    process = subprocess.Popen([sys.executable, script, tmp_path], env=environment(), start_new_session=True)
    with process:
        files = until(lambda: len(f := list(tmp_path.glob("pids.?"))) == 3 and f, "dies are there")
        pids = [int(word) for file in files for word in file.read_text().split()]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)
        all_gone(pids)


def test_kill_9_of_the_keeper_is_an_error_here():
    read, write_end = os.pipe()

    def stay():
        os.write(write_end, b"x")
        time.sleep(1000)

    def kill():
        for _ in range(2):
            os.read(read, 1)
        (keeper,) = set(children()) - others
        os.kill(keeper, signal.SIGKILL)

    others = set(children())  # keepers of pools that stand by
    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(errors.SpawnError, match="keeper"):
        spawn(stay, 2)
    thread.join()
    os.close(read)
    os.close(write_end)


def test_what_dies_start_ends_with_the_job(tmp_path):
    def start():
        return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid

    pids = spawn(start, 2)
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_no_guard_and_standard_input(tmp_path):
    """No ``if __name__``; dies read nothing of the caller's input."""
    code = "import sys; from strata.launch import spawn; print(spawn(lambda: sys.stdin.read(), 2), sys.stdin.read())"
    script = write(tmp_path / "script.py", code)
    with open(script) as file:
        done = plain(script, stdin=file)
    assert done.stdout == f"['', ''] {code}\n".encode()
    assert done.stderr == b""
