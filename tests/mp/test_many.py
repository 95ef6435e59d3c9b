"""More members than fit a machine word, and than a small host has CPUs."""

import time

import numpy as np
import pytest
from collectives_play import OPERATIONS, Case, in_step, play

import strata
from strata.testing import Pool

N = 70


def everything(group):
    for op in OPERATIONS:
        play(group, Case(op, "int32", (3,), root=66, rows=1, salt=1))
    x = strata.full(9000, 1.0)
    group.all_reduce(x)
    assert (x == N).all()
    with pytest.raises(strata.CollectiveMismatch, match="rank 69: all_reduce sum of 3 float64"):
        group.all_reduce(np.ones(3 if group.rank == 69 else 4))
    last = group.split(group.rank // 64)
    assert last.size == (64 if group.rank < 64 else 6)
    in_step(last)
    if group.rank in (1, 69):
        pair = group.subgroup([69, 1])
        out = pair.recv(np.empty(1), 1, async_op=True) if pair.rank == 0 else None
        if out is None:
            pair.send(np.array([group.rank + 0.5]), 0)
        else:
            assert out.wait() == [1.5]
    in_step(group)


def late(group):
    if group.rank in (3, 68):  # they never come, and see that the others have given up
        end = time.monotonic() + 60
        while not group.broken:
            assert time.monotonic() < end
            time.sleep(0.001)
    else:
        with pytest.raises(strata.CollectiveTimeout) as caught:
            group.barrier(timeout=1.5)
        assert caught.value.ranks == (3, 68)
    assert group.broken


@pytest.fixture(scope="module")
def many():
    with Pool(N, hbm="64M", timeout=100) as pool:
        pool.start()
        yield pool


@pytest.mark.reports("mismatch")
def test_every_operation(many):
    many.run(everything)


@pytest.mark.reports("deadlock")
def test_who_is_missing(many):
    many.run(late)
