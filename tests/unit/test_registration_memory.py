"""Buffers and windows of registrations in one die: who uses them, how long, and where they end."""

import gc
import os
import random
import threading

import numpy as np
import pytest
from registering import gives_all_back, run, shared_array, the_job, windows  # noqa: F401

import strata
from strata import bootstrap, registration


def test_a_buffer_is_lent_to_one_operation_at_a_time(job):
    x = np.arange(1000.0)
    with strata.register(x):
        a = registration.lease(job, x[:500])
        assert strata.is_fabric(a) and a.shape == (500,) and a.ctypes.data % 64 == x.ctypes.data % 64
        assert registration.lease(job, x) is None and registration.lease(job, x[499:501]) is None
        b = registration.lease(job, x[500:].view("c16").reshape(5, -1))
        assert b.dtype == "c16" and b.shape == (5, 50) and not np.shares_memory(a, b)
        assert b.ctypes.data - a.ctypes.data == 4000
        del a
        assert registration.lease(job, x[:500]) is not None
        assert registration.lease(job, x[::2]) is None  # strided: as ever
    b[:] = 1  # what an operation has outlives the registration
    assert registration.lease(job, x[:1]) is None
    with strata.register(x[:500]):
        assert registration.lease(job, x) is None and registration.lease(job, x[499:500]) is not None


def test_a_window_outlives_its_registration_as_long_as_it_is_used(job):
    x = shared_array()
    with strata.register(x):
        view = registration.alias(job, x[100:])
    assert len(windows()) == 1
    view[0] = 42
    assert x[100] == 42
    with strata.register(x) as r:
        assert r.kind == "shared" and len(windows()) == 2
    del view
    assert not windows()


def test_few_descriptors_do_and_none_is_told():
    got = run("""
        import mmap, os, resource
        fd = os.memfd_create("x")
        os.ftruncate(fd, 1 << 16)
        x = np.frombuffer(mmap.mmap(fd, 1 << 16), "f8")
        strata.deregister(strata.register(np.zeros(3)))
        for spare in (0, 1, 5):
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            taken = []
            try:
                while True:
                    taken.append(os.dup(0))
            except OSError:
                pass
            for n in taken[len(taken) - spare :]:
                os.close(n)
            with strata.register(x) as r:
                print(r.kind, "ulimit -n" in r.reason)
            for n in taken[: len(taken) - spare]:
                os.close(n)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        print(strata.register(x).kind)
    """)
    assert got == "staged True\nshared False\nshared False\nshared\n"


def test_a_full_fabric_is_an_error_and_nothing_is_registered():
    got = run("""
        x = np.zeros(4 << 20, "u1")
        keep = strata.zeros(5 << 20, "u1")
        try:
            strata.register(x)
        except strata.FabricMemoryError as error:
            print("--hbm" in str(error), set(strata.stats()["registrations"].values()))
        del keep
        print(strata.register(x).kind)
    """, STRATA_HBM="8M")
    assert got == "True {0}\nstaged\n"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # the registrar
def test_a_forked_child_registers_nothing():
    x = np.zeros(1000)
    r = strata.register(x)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            try:
                strata.register(x)
            except strata.NotInJob:
                status = 0 if set(registration.stats().values()) == {0} else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert r.count == 1
    strata.deregister(r)


def test_a_finalizer_may_register_and_deregister():
    class Owner:
        def __init__(self):
            self.x, self.me = np.zeros(100), self
            strata.register(self.x)

        def __del__(self):
            strata.deregister(self.x)
            with strata.register(self.x):
                pass

    threshold = gc.get_threshold()
    gc.set_threshold(1)  # whatever is allocated runs it
    try:
        kept = np.zeros(1000)
        for _ in range(50):
            Owner()
            with strata.register(kept), strata.register(kept[:10]):
                assert registration.lease(bootstrap.context(), kept[10:]) is not None
    finally:
        gc.set_threshold(*threshold)
        gc.collect()


def test_threads_register_the_same_memory():
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    memories = [np.zeros(5000), shared_array(5000), strata.zeros(5000)]
    failures = []

    def work(number):
        rng = random.Random(seed + number)
        try:
            held = []
            for _ in range(150):
                if held and rng.random() < 0.5:
                    strata.deregister(held.pop(rng.randrange(len(held))))
                else:
                    x = rng.choice(memories)
                    held.append(strata.register(x) if rng.random() < 0.5 else (strata.register(x), x)[1])
            for x in held:
                strata.deregister(x)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and not any(thread.is_alive() for thread in threads)
