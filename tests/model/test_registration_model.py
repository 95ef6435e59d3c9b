"""Memory that comes and goes in any order, in all modes of registration, against a plain model.

No die may ever see a byte that is not what the model says, at whatever address; what is freed
cannot be reached; and when all is let go of, every frame, mapping and descriptor is back.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from registration_play import KIND_WEIGHTS, STEPS, Step, play

from strata import testing

LENGTH = 60
MODES = ("on_allocation", "just_in_time", "pool")
numbers = st.integers(0, 59)
kinds = st.sampled_from([kind for kind in STEPS for _ in range(KIND_WEIGHTS[kind])])
steps = st.builds(Step, kinds, st.integers(0, 11), numbers, numbers)
programs = st.integers(1, LENGTH).flatmap(lambda n: st.lists(steps, min_size=n, max_size=LENGTH))


@pytest.mark.hard_timeout(7200)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_programs(n, mode):
    with testing.Pool(n, hbm="512M", registration=mode, pool_bytes="256M") as pool:
        pool.start()

        @settings(max_examples=max(1, settings.default.max_examples // 20))
        @given(programs)
        def check(program):
            pool.run(play, program)

        check()
