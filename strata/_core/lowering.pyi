from typing import Any

import numpy as np

from strata._core.planned import PlanHandle
from strata._core.space import Context

def room(handle: PlanHandle, block: int = ...) -> tuple[int, int]: ...
def lower(
    context: Context,
    handle: PlanHandle,
    me: int,
    bases: Any,
    flag_at: Any,
    *,
    number: int,
    counters: int,
    lists: int,
    space: int,
    block: int = ...,
    wake_at: int = 0,
    event: int = 0,
    flags: int = 0,
) -> list[np.ndarray]: ...
