"""Dies that stay up, for tests and property tests of programs that use strata.

    import numpy as np
    from strata.testing import Pool

    def double(group, values):
        x = strata.array(values[group.rank])
        return group.all_reduce(x)

    with Pool(4) as pool:
        for values in examples:
            results = pool.run(double, values)      # one result a die, in order of rank
            assert all((r == sum(values)).all() for r in results)

Starting a job takes a tenth of a second; a call of a pool that is up takes a fraction of
a millisecond, so thousands of Hypothesis examples run on real dies in seconds.  ``pool(n)``
gives a pool that the whole process shares, which suits a pytest fixture:

    @pytest.fixture(params=[1, 2, 4])
    def dies(request):
        return strata.testing.pool(request.param)

``checked()`` finds races and other misuse of the fabric by the jobs of a block (docs/checking.md).
"""

from __future__ import annotations

from strata.testing.checked import Checked, checked
from strata.testing.pool import Pool, close, pids, pool

__all__ = ["Checked", "Pool", "checked", "close", "pids", "pool"]
