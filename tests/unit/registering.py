"""What the tests of registration share: a job of one die, shared files, and a look for what is left of them."""

import gc
import mmap
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from strata import bootstrap, registration
from strata._core import heap

PAGE = 1 << 21
N = 300_000  # float64, a little more than two pages


@pytest.fixture(scope="module", autouse=True, name="job")
def the_job():
    """A job of one die in this process, that later tests do not see."""
    context = bootstrap.init()
    yield context
    bootstrap.finalize()
    bootstrap.forget()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def windows():
    """Mappings of other files in this die's segment."""
    context = bootstrap.context()
    with open("/proc/self/maps") as maps:
        lines = [line for line in maps if line.split()[1][0] == "r" and "/strata." not in line]
    return [line for line in lines if context.owner(int(line.split("-")[0], 16)) >= 0]


@pytest.fixture(autouse=True)
def gives_all_back(job):
    """After a test nothing is registered, and memory, windows and descriptors are what they were."""
    pool = heap.heap_of(job)
    gc.collect()
    before = pool.stats()["allocation.all.current"], descriptors(), windows()
    yield
    gc.collect()
    assert set(registration.stats().values()) == {0}
    assert (pool.stats()["allocation.all.current"], descriptors(), windows()) == before


def memfd(nbytes, offset=0, prot=mmap.PROT_READ | mmap.PROT_WRITE):
    """A mapping of a file without a name, whose descriptor is the mapping's own."""
    fd = os.memfd_create("test")
    os.ftruncate(fd, nbytes + offset)
    mapped = mmap.mmap(fd, nbytes, mmap.MAP_SHARED, prot, offset=offset)
    os.close(fd)
    return mapped


def shared_array(n=N, dtype="f8"):
    return np.frombuffer(memfd(n * np.dtype(dtype).itemsize), dtype)


def run(code, **environ):
    """Output of a process that runs the code as a job of one die."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("STRATA_")} | environ
    done = subprocess.run([sys.executable, "-c", "import numpy as np, strata\n" + textwrap.dedent(code)], env=env,
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
