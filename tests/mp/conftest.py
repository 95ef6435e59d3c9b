"""The same test at several numbers of dies, on pools that all tests share."""

import pytest

from strata import testing

SIZES = (1, 2, 3, 4, 8)


@pytest.fixture(params=SIZES, ids="n{}".format)
def dies(request):
    """A pool of n dies, for each of SIZES."""
    return _pool(request.param)


@pytest.fixture(params=SIZES[1:], ids="n{}".format)
def peers(request):
    """A pool of n dies, for each of SIZES but 1."""
    return _pool(request.param)


@pytest.fixture(params=SIZES[:4], ids="n{}".format)
def small(request):
    """A pool of n dies, for each of SIZES up to 4."""
    return _pool(request.param)


@pytest.fixture(params=(1, 3, 8), ids="n{}".format)
def corners(request):
    """A pool of n dies: alone, an odd number, and the most; for what other tests do at every number."""
    return _pool(request.param)


@pytest.fixture
def pair():
    """A pool of two dies."""
    return _pool(2)


@pytest.fixture
def trio():
    """A pool of three dies."""
    return _pool(3)


@pytest.fixture
def four():
    """A pool of four dies."""
    return _pool(4)


def _pool(n):
    pool = testing.pool(n)
    pool.start()  # what starts in a test would seem to be left by it
    return pool
