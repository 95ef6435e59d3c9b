"""A few of the trials that tools/soak.py --trials runs by the hundred: dies that are killed, or stopped for a while."""

import random

import pytest
import registration_trials

TRIALS = {"kill": 3, "stop": 1}


@pytest.mark.parametrize("kind", TRIALS)
def test_trials(kind):
    seed = random.SystemRandom().randrange(1 << 31)
    for k in range(TRIALS[kind]):
        print(f"replay: python tools/soak.py --trials 1 --only {kind} --seed {seed + k}")
        print(getattr(registration_trials, f"{kind}_trial")(seed + k))
