"""Jobs under weak order: the core that the dies get, and how to run the same again."""

from __future__ import annotations

import os
import shlex
import sys

from strata.launch.options import Options, say

__all__ = ["again", "weaken"]

_VARIABLE = "STRATA_WEAK_ORDER"


def weaken(options: Options) -> None:
    """Sets the variable that chooses the checked core, and says the seed.  Before the core is imported."""
    if options.weak_order is not None:
        os.environ[_VARIABLE] = str(options.weak_order)
    seed = os.environ.get(_VARIABLE, "").strip()
    if seed not in ("", "0"):
        say(f"stores, flags and DMA are delayed and reordered: --weak-order {seed}")


def again() -> str:
    """The lines at the end of a job that failed under weak order; "" for other jobs."""
    seed = os.environ.get(_VARIABLE, "").strip()
    if seed in ("", "0"):
        return ""
    words = [word for word in sys.argv[1:] if not word.startswith("--weak-order=")]
    while "--weak-order" in words:
        at = words.index("--weak-order")
        del words[at : at + 2]
    return (
        f"strata-run: order was weak in this job, by seed {seed}; the same choices again:\n"
        f"strata-run:   strata-run --weak-order {seed} {shlex.join(words)}\n"
    )
