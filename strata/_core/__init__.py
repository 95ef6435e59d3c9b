"""The C core: one module per concept.  Its rules are in DESIGN.md."""

import os

# Which of the two builds of the same modules this process has is settled before the first of them is imported.
CHECKED = os.environ.get("STRATA_CORE", "").strip().lower() == "checked" or any(
    os.environ.get(name, "").strip() not in ("", "0") for name in ("STRATA_FAULT", "STRATA_WEAK_ORDER")
)
if CHECKED:
    from strata._core import checked

    __path__.insert(0, checked.load())
