"""Nothing piles up over rounds of death and return.  STRATA_TEST_ROUNDS=50 for many."""

import ast
import os
import re
from pathlib import Path

from launching import environment, run

PLAY = Path(__file__).parents[1] / "elastic_play.py"
FRAME = 2 << 20


def test_rounds(tmp_path):
    rounds = int(os.environ.get("STRATA_TEST_ROUNDS", "8"))
    done = run("-n", 3, "--restarts", rounds + 1, PLAY, "rounds", tmp_path, rounds, timeout=60 + 10 * rounds,
               env=environment(STRATA_CACHE_BYTES="0"))  # fmt: skip
    out = done.stdout.decode()
    assert done.returncode == 0, out + done.stderr.decode()
    held = [ast.literal_eval(line) for line in re.findall(r"^held (.*)", out, re.M)]
    assert len(held) == rounds + 2
    for name in ("files", "threads", "maps"):
        assert held[-1][name] <= held[3][name], (name, held)
    # A page or two of table for each life, and what is just on its way out of quarantine.
    assert held[-1]["bytes"] <= held[3]["bytes"] + 8 * FRAME, held
    print(held[3], held[-1])
