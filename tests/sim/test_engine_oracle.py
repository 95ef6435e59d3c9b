"""The engine against the plain reference, in exact arithmetic: every time of every task, and every flag."""

from fractions import Fraction

import numpy as np
import pytest
import timing_reference
from timing_problems import draw

from strata._core import simulator


@pytest.mark.parametrize("crowd", [False, True], ids=["spread", "crowded"])
@pytest.mark.parametrize("seed", range(20))
def test_times_and_flags_are_the_references(seed, crowd):
    problem = draw(seed, crowd=crowd)
    found = simulator.run(*problem.arrays(), **problem.topology, check=True)
    expected = timing_reference.run(*problem.arrays(), **problem.topology, number=Fraction)
    for name in found["times"].dtype.names:  # a picosecond: doubles round up where a fraction is whole
        np.testing.assert_allclose(found["times"][name], expected["times"][name], rtol=1e-12, atol=2, err_msg=name)
    np.testing.assert_allclose(found["raised"], expected["raised"], rtol=1e-12, atol=2)
    assert abs(found["end_ps"] - expected["end_ps"]) <= 2 and found["residual"] < 1e-12
