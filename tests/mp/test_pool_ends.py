"""The processes of strata.testing's pools end with their owner, however that ends."""

import gc
import os
import signal
import subprocess
import sys

import psutil
import pytest
from processes import alive

import strata
from strata.testing import Pool


def echo(group, value):
    return value


def test_a_dropped_pool_ends_its_dies():
    pool = Pool(2)
    pool.start()
    found = [psutil.Process(pid) for pid in pool.pids]
    del pool
    gc.collect()
    assert not alive(found)


OWNER = """
import os, sys, time
from strata.testing import Pool, pool
own, shared = Pool(2), pool(3)
own.start()
shared.start()
print(*own.pids, *shared.pids, own._warden, shared._warden, flush=True)
if sys.argv[1] == "fork":           # a child that lives on holds what it has inherited
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
if sys.argv[1] == "wait":
    sys.stdin.read()
if sys.argv[1] == "raise":
    raise RuntimeError
if sys.argv[1] == "exit":
    os._exit(3)
"""


@pytest.mark.parametrize(("how", "status"), [("end", 0), ("raise", 1), ("exit", 3), ("fork", 0), ("wait", -9)])
def test_nothing_outlives_the_owner(how, status):
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, how], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    )
    with process:
        found = []
        for pid in process.stdout.readline().split():
            try:
                found.append(psutil.Process(int(pid)))
            except psutil.NoSuchProcess:
                pass
        if how == "wait":
            assert len(found) == 7
            process.kill()
        assert process.wait() == status
        assert not alive(found)


def test_killing_the_warden_ends_the_dies():
    pool = Pool(2)
    pool.start()
    found = [psutil.Process(pid) for pid in pool.pids]
    os.kill(pool._warden, signal.SIGKILL)
    assert not alive(found)
    with pytest.raises(strata.errors.SpawnError, match="ranks 0-1 of 2 died"):
        pool.run(echo, 1)
    assert pool.run(echo, 1) == [1, 1]
    pool.close()
