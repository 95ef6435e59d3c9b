"""The checked core: the modules of strata._core compiled once more, with hooks in them.

Every atomic access, every copy and every fault point of the C core calls a hook there (``include/st_checked.h``,
``include/st_fault.h``), so that it can be killed at a step, or delayed and reordered as weaker hardware would.  The
release core has none of it.  ``STRATA_CORE=checked`` loads it, and so do the options that need it.  The hooks are one
shared object for all modules, since they are the one place of the core that holds variables.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["load", "weaken"]


def load() -> str:
    """Loads the hooks, so that the other modules find them; the directory of the checked modules."""
    folder = Path(__file__).parent
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | os.RTLD_GLOBAL)
    try:
        from strata._core.checked import hooks  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"the checked core was not built ({error}): build with STRATA_CHECKED_CORE=1 (the default), or unset "
            "STRATA_CORE, STRATA_FAULT and STRATA_WEAK_ORDER"
        ) from None
    finally:
        sys.setdlopenflags(flags)
    return str(folder)


def weaken(seed: int, broken: str, rank: int) -> None:
    """Weak order for this die, by option weak_order.

    Raises ConfigError in a process that has the release core already: which core a process has is settled at its
    first import, and processes forked from it have the same.
    """
    if "strata._core.checked.hooks" not in sys.modules:
        from strata import errors

        raise errors.ConfigError(
            f"STRATA_WEAK_ORDER={seed}: this process has the release core, which knows no weak order. "
            "Set the variable before the first import of strata, as strata-run --weak-order does"
        )
    from strata._core.checked import hooks

    hooks.weaken(seed, rank, broken)
