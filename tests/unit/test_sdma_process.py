"""strata.sdma where processes end, fork, leave the job and come back."""

import os
import subprocess
import sys
import textwrap

PRELUDE = """
import gc, os, sys, threading, time
import numpy as np
import strata
from strata import errors, sdma
def raises(kind, use, text=""):
    try:
        use()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")
"""


def run(code, **environ):
    """A process that runs the code as a job of one die; what it says on stderr fails."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("STRATA_")} | environ
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", PRELUDE + textwrap.dedent(code)],
        env=env,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def test_finalize_ends_what_is_queued():
    """What had ended keeps its outcome; what had not is NotInJob and names where it was; nothing is executed later."""
    run("""
        ring, gate, out = sdma.open_ring(64), sdma.flag(), strata.zeros(10, "u1")
        good = ring.submit(sdma.Batch().fill(out[:1], 1))
        bad = ring.submit(np.zeros(1, sdma.DESCRIPTOR))
        ring.drain(20)
        shut = ring.submit(sdma.Batch().gate(gate, 1).fill(out[1:], 2))
        behind = ring.submit(sdma.Batch().fill(out[1:], 2))
        ring.submit(sdma.Batch().fill(out[1:], 3))
        waiter = []
        def wait():
            try: shut.wait()
            except errors.NotInJob as error: waiter.append(error)
        thread = threading.Thread(target=wait)
        thread.start()
        strata.finalize()
        thread.join(20)
        assert waiter and waiter[0] is shut.exception()
        good.wait()
        raises(errors.InvalidArgument, bad.wait, "descriptor 2 of ring 0")
        raises(errors.NotInJob, shut.wait, "gate on flag")
        raises(errors.NotInJob, behind.wait, "fill of 9 bytes")
        assert out.tolist() == [1] + [0] * 9
        for use in (lambda: ring.submit(sdma.Batch()), lambda: ring.tail, ring.drain, ring.check):
            raises(errors.NotInJob, use, "is closed")
        ring.close()
        sdma.write(gate, 1)       # joins again
        assert sdma.stats()["rings"] == 0
        raises(errors.NotInJob, lambda: sdma.ring(0))
        raises(errors.NotInJob, lambda: ring.submit(sdma.Batch()))
        new = sdma.open_ring(64)
        raises(errors.NotInJob, lambda: ring.submit(sdma.Batch()))
        new.submit(sdma.Batch().fill(out, 9)).wait()
        assert (out == 9).all() and new.head == 2
        raises(errors.NotInJob, shut.wait)
    """)


def test_finalize_and_come_back_many_times():
    run("""
        out = strata.zeros(8, "u1")
        for k in range(30):
            rings = [sdma.open_ring(4) for _ in range(3)]
            works = [r.submit(sdma.Batch().gate(sdma.flag(), 1)) for r in rings[1:]]
            rings[0].submit(sdma.Batch().fill(out, k)).wait(20)
            assert (out == k).all()
            strata.finalize()
            for w in works:
                raises(errors.NotInJob, w.wait)
        assert len(os.listdir("/proc/self/task")) <= 3
    """)


def test_exit_with_full_rings():
    run("""
        ring, gate = sdma.open_ring(16), sdma.flag()
        works = [ring.submit(sdma.Batch().gate(gate, 1)) for _ in range(8)]
        big = [strata.ones(1 << 22) for _ in range(2)]
        other = sdma.open_ring(1 << 10)
        for _ in range(100):
            other.submit(sdma.Batch().copy(*big), notify=False)
        sys.late = works, big
    """)


def test_exit_with_a_thread_that_waits():
    run("""
        ring = sdma.open_ring(16)
        work = ring.submit(sdma.Batch().gate(sdma.flag(), 1))
        def wait():
            raises(errors.NotInJob, work.wait)
            print("ended")
        threading.Thread(target=wait, daemon=True).start()
        time.sleep(0.05)
        strata.finalize()
        raises(errors.NotInJob, work.wait)
    """)


def test_a_forked_child_is_no_producer():
    run("""
        ring, gate = sdma.open_ring(16), sdma.flag()
        work, done = ring.submit(sdma.Batch().gate(gate, 1)), ring.submit(sdma.Batch(), keep=[1])
        over = sdma.open_ring(2).submit(sdma.Batch()); over.wait(20)
        pid = os.fork()
        if pid == 0:
            for use in (work.wait, work.done, work.exception, work.cancel, done.wait, ring.close, ring.drain,
                        ring.check, lambda: ring.head, lambda: ring.tail, lambda: ring.submit(sdma.Batch()),
                        sdma.open_ring, sdma.flag, lambda: sdma.ring(0), lambda: sdma.read(gate),
                        lambda: sdma.write(gate, 1), sdma.stats,
                        lambda: sdma.wait(gate, 1), lambda: sdma.seal(np.zeros(1, sdma.DESCRIPTOR)),
                        lambda: sdma.Batch().write(gate, 1).build()):
                raises(errors.NotInJob, use, "forked")
            assert "of another process" in repr(work) and "ring 0" in repr(ring)
            over.wait(); assert over.done() and over.exception() is None
            del work, done, over, ring
            gc.collect()
            strata.finalize()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert not work.done() and ring.head == 0
        sdma.write(gate, 1)
        work.wait(20); done.wait(20)
        ring.close()
    """)


def test_a_timeout_that_never_comes():
    """A gate without a timeout of its own, where the option is none, waits on."""
    run(
        """
        ring, gate = sdma.open_ring(16), sdma.flag()
        work = ring.submit(sdma.Batch().gate(gate, 1))
        raises(errors.CollectiveTimeout, lambda: work.wait(0.1))
        sdma.write(gate, 1)
        work.wait(20)
    """,
        STRATA_TIMEOUT="1e10",
    )


def test_options():
    run(
        """
        assert sdma.open_ring().depth == 32
        x, y = strata.zeros(1000, "u1"), strata.zeros(1000, "u1")
        assert len(sdma.Batch().copy(x, y)) == 8
        work = sdma.open_ring().submit(sdma.Batch().gate(sdma.flag(), 1))
        raises(errors.CollectiveTimeout, work.wait, "the flag did not come to it in time, by option timeout")
    """,
        STRATA_SDMA_DEPTH="32",
        STRATA_SDMA_BLOCK="128",
        STRATA_TIMEOUT="0.1",
    )


def test_stats_of_nothing():
    run("""
        assert not any(sdma.stats().values())
        assert strata.stats()["sdma"] == sdma.stats()
        ring, x, y = sdma.open_ring(), strata.zeros(1000, "u1"), strata.zeros(1000, "u1")
        ring.submit(sdma.Batch().copy(x, y).nop()).wait()
        found = sdma.stats()
        assert (found["descriptors"], found["bytes"], found["notifies"], found["rings"]) == (3, 1000, 1, 1), found
    """)


def test_interrupt():
    """Ctrl-C ends waits for room and for a submission; what had come into the ring of a batch is given up."""
    run("""
        import signal
        def soon():
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        ring, gate, out = sdma.open_ring(4), sdma.flag(), strata.zeros(64, "u1")
        work = ring.submit(sdma.Batch().gate(gate, 1))
        soon(); raises(KeyboardInterrupt, work.wait)
        soon(); raises(KeyboardInterrupt, lambda: ring.submit(sdma.Batch(8).fill(out, 1)))
        soon(); raises(KeyboardInterrupt, ring.drain)
        soon(); raises(KeyboardInterrupt, lambda: sdma.wait(gate, 1))
        assert not work.done()
        sdma.write(gate, 1)
        work.wait(20); ring.drain(20)
        assert not out.any()
        ring.submit(sdma.Batch(8).fill(out, 1)).wait(20)
        assert out.all()
    """)
