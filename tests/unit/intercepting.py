"""What the tests of interception share: a job of one die, and a look for what they leave behind."""

import gc

import numpy as np
import pytest

import strata
from strata import bootstrap
from strata._core import intercept as core
from strata._core import memory


@pytest.fixture(scope="module", autouse=True)
def job():
    """A job of one die in this process, that later tests do not see."""
    context = bootstrap.init()
    strata.world()  # what it keeps is not a test's
    yield context
    bootstrap.finalize()
    bootstrap.forget()


@pytest.fixture(autouse=True)
def gives_all_back(job):
    """Whatever a test does, its memory is free after it, the heap is sound, and numpy is as before."""
    heap, name = memory.heap_of(job), core.handler_name()
    before = heap.stats()
    yield
    gc.collect()
    after = heap.stats()
    assert heap.check() == 0
    for name_ in ("allocation.all.current", "requested_bytes.all.current", "bad_frees"):
        assert after[name_] == before[name_], name_
    assert core.handler_name() == name


def big(n=10_000):
    """Whether an array of n float64 is made in the fabric here and now."""
    return strata.is_fabric(np.empty(n))
