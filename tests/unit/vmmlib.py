"""What tests of strata.vmm in one die share."""

import gc

import pytest

import strata
from strata import bootstrap, errors, vmm

M = vmm.granularity()


@pytest.fixture(autouse=True)
def nothing_stays():
    """Every test gives back all that it took."""
    context = bootstrap.init()
    strata.empty_cache()
    frames = context.frames_left
    yield
    gc.collect()
    strata.empty_cache()
    left = vmm.stats()
    assert {key: n for key, n in left.items() if n} == {}
    assert context.frames_left == frames and context.counters()["quarantined_bytes"] == 0
    bootstrap.finalize()


@pytest.fixture
def span():
    with vmm.reserve_address(16 * M) as span:
        yield span


@pytest.fixture
def handle():
    with vmm.create_handle(4 * M) as handle:
        yield handle


def wrong(match, call, *args, error=errors.InvalidArgument, **kwargs):
    with pytest.raises(error, match=match):
        call(*args, **kwargs)
