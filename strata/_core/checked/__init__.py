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

__all__ = ["load"]


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
