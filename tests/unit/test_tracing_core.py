"""Traces of one die: what is written is read, from inside and from outside, and garbage does no harm."""

import os
import random
import struct
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from strata import bootstrap, config
from strata._core import space, tracemode, tracing
from strata._core.inspector import Inspector
from strata.errors import ConfigError, CorruptSpace, InvalidArgument

PROBE, MORE = tracing.KINDS.index("probe"), tracing.MORE


def die(program, **options):
    """What a die of its own prints, as the namespace of what it says."""
    head = "import strata\nfrom strata._core import space, tracing\ng, c = strata.world(), space.current()\n"
    env = {**os.environ, **{f"STRATA_{name.upper()}": str(value) for name, value in options.items()}}
    done = subprocess.run([sys.executable, "-c", head + textwrap.dedent(program)], capture_output=True, text=True,
                          timeout=120, env=env)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return eval(done.stdout, {"__builtins__": {}})


@pytest.fixture
def job():
    """A job without dies, of which traces are small."""
    made = bootstrap.Job(4, config.load({}, hbm_bytes=1 << 30, trace_events=64))
    yield made
    made.close()


def test_event_is_32_bytes():
    assert tracing.EVENT.itemsize == 32
    assert [tracing.EVENT.fields[name][1] for name in tracing.EVENT.names] == [0, 8, 16, 17, 18, 20, 24]
    assert len(tracing.KINDS) == 22 and tracing.KINDS[19] == "mailbox" and len(tracing.ROLES) == 8


def test_what_is_written_is_read():
    seen = die(f"""
        tracing.emit(c, {PROBE}, 1, 2)  # off: nothing
        tracing.set_mode(c, tracing.RING)
        name = tracing.name(c, "hällo")
        assert tracing.name(c, "hällo") == name == 1 and tracing.name(c, "x" * 5000) == 2
        begin = tracing.ticks(c)
        for k in range(100):
            tracing.emit(c, {PROBE}, begin + k, begin + k + 1, name, k, k, k)
        tracing.emit(c, {MORE}, 77, 5, 1, 2)
        tracing.emit(c, {PROBE}, begin + 1, begin)  # cannot be
        tracing.emit(c, {PROBE}, begin, 1 << 63)
        seen = tracing.read(c, 0)
        one, = seen["slices"]
        print({{"names": seen["names"], "pid": seen["pid"], "rate": seen["ns_per_tick"], "role": one["role"],
               "events": one["events"].tolist(), "lost": one["lost"], "more": seen["lost"] + seen["names_lost"],
               "mode": tracing.mode(c), "begin": begin}})
    """)
    assert seen["names"] == ["", "hällo", "x" * 1024] and seen["role"] == "caller" and seen["mode"] == tracing.RING
    assert seen["lost"] == 2 and seen["more"] == 0 and 0 < seen["rate"] < 1000
    *spans, more = seen["events"]
    assert spans == [(seen["begin"] + k, seen["begin"] + k + 1, PROBE, k, k, 1, k) for k in range(100)]
    assert more == (77, 5, MORE, 0, tracing.NOBODY, 1, 2)


def test_ring_stop_and_clear():
    seen = die(f"""
        found = {{}}
        for mode in (tracing.RING, tracing.STOP):
            tracing.set_mode(c, mode, 0)
            for k in range(200):
                tracing.emit(c, {PROBE}, k, k)
            one, = tracing.read(c, 0)["slices"]
            found[mode] = one["events"]["begin"].tolist(), one["lost"]
            tracing.clear(c)
            one, = tracing.read(c, 0)["slices"]
            assert len(one["events"]) == one["lost"] == 0
        print(found)
    """, trace_events=64)  # fmt: skip
    assert seen[tracing.RING] == (list(range(137, 200)), 137)  # the next may be on its way over the oldest
    assert seen[tracing.STOP] == (list(range(64)), 136)


def test_threads_have_slices_of_their_own():
    seen = die(f"""
        import threading
        tracing.set_mode(c, tracing.RING)
        all_there = threading.Barrier(20, timeout=60)
        def work(n):
            tracing.thread(c, tracing.ROLES.index("other"), n)
            for k in range(50):
                tracing.emit(c, {PROBE}, k, k, n)
            all_there.wait()
        threads = [threading.Thread(target=work, args=(n,)) for n in range(20)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        seen = tracing.read(c, 0)
        print({{"slices": [(s["role"], s["index"], s["events"]["index"].tolist()) for s in seen["slices"]],
               "lost": seen["lost"]}})
    """)
    assert len(seen["slices"]) == 16 and seen["lost"] >= 4 * 50  # and each thread() that found none
    for role, index, events in seen["slices"]:
        assert role == "other" and events == [index] * 50


def test_what_cannot_be_asked(job):
    viewer = space.Context.attach(os.dup(job.fd), config.load({}))
    inspector = Inspector(job.fd)
    assert tracing.read(inspector, 3)["slices"] == [] and tracing.read(viewer, 3)["names"] == [""]
    tracemode.set_mode(viewer, tracing.STOP)
    assert [tracemode.mode(viewer, k) for k in range(4)] == [tracing.STOP] * 4
    tracemode.set_mode(viewer, tracing.OFF, 2)
    assert tracemode.mode(viewer, 1) == tracing.STOP and tracemode.mode(viewer, 2) == tracing.OFF
    tracemode.clear(viewer)
    for call in (lambda: tracing.read(inspector, 4), lambda: tracemode.set_mode(viewer, 3),
                 lambda: tracemode.set_mode(viewer, 1, 4), lambda: tracemode.mode(viewer, -1),
                 lambda: tracemode.clear(viewer, 4), lambda: tracing.emit(viewer, 0, 0, 0),
                 lambda: tracing.emit(viewer, 22, 0, 0), lambda: tracing.thread(viewer, 8)):  # fmt: skip
        with pytest.raises(InvalidArgument):
            call()
    with pytest.raises(TypeError):
        tracing.read(job.fd, 0)
    with pytest.raises(ConfigError):
        config.load({"STRATA_TRACE_EVENTS": "1000"})
    with pytest.raises(InvalidArgument, match="power of two"):
        space.layout(4, 1 << 30, 8192, 0, 96)


def test_off_touches_no_memory(job):
    """All of the traces' part of the object is a hole until an event is written."""
    header = struct.unpack("<41Q", os.pread(job.fd, 328, os.fstat(job.fd).st_size - 4096))
    first = header[3] + header[39]
    assert header[40] == 64 and os.lseek(job.fd, first, os.SEEK_DATA) == os.fstat(job.fd).st_size - 4096


def test_any_garbage_is_read_without_harm(job, seed=None):
    seed = seed or random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    inspector, size = Inspector(job.fd), os.fstat(job.fd).st_size
    header = struct.unpack("<41Q", os.pread(job.fd, 328, size - 4096))
    dies, area = header[3] + header[9], header[3] + header[39]
    os.pwrite(job.fd, struct.pack("<IIQ", 1, 1, 0), dies + 136)
    for turn in range(300):
        limits = (rng.getrandbits(64), rng.randrange(200), (1 << rng.randrange(64)) - 1, 0)
        os.pwrite(job.fd, struct.pack("<136Q", *rng.choices(limits, k=136)), area)
        os.pwrite(job.fd, rng.randbytes(300), area + 4096)
        os.pwrite(job.fd, rng.randbytes(2048), area + 4096 + (64 << 10) + 4096 * rng.randrange(16))
        for k in range(16):  # what is a slice's, so that there is one
            os.pwrite(job.fd, struct.pack("<II", 1, rng.randrange(1, 8)), area + 64 + 64 * k + 32)
        seen = tracing.read(inspector, 0)
        for one in seen["slices"]:
            events = one["events"]
            assert len(events) <= 64 and one["role"] in tracing.ROLES[1:] and isinstance(one["lost"], int), turn
            assert np.all((events["kind"] > 0) & (events["kind"] < 22)), turn
        assert all(isinstance(name, str) for name in seen["names"]) and 0 < seen["ns_per_tick"] < 1e6, turn
    os.truncate(job.fd, 4096)
    with pytest.raises(CorruptSpace):
        tracing.read(inspector, 0)
