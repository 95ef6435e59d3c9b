from typing import Any, Final

import numpy as np

from strata._core.inspector import Inspector
from strata._core.space import Context
from strata._core.tracemode import clear as clear
from strata._core.tracemode import mode as mode
from strata._core.tracemode import set_mode as set_mode

OFF: int
RING: int
STOP: int
NOBODY: int
MORE: int
SLACK: int
KINDS: Final[tuple[str, ...]]
WHYS: Final[tuple[str, ...]]
ROLES: Final[tuple[str, ...]]
DESCRIPTORS: Final[tuple[str, ...]]
EVENT: Final[np.dtype[np.void]]

def name(context: Context, text: str) -> int: ...
def ticks(context: Context) -> int: ...
def emit(
    context: Context,
    kind: int,
    begin: int,
    end: int,
    index: int = 0,
    arg: int = 0,
    peer: int = ...,
    core: int = 0,
) -> None: ...
def event_ns(context: Context, times: int) -> float: ...
def thread(context: Context, role: int, index: int = 0) -> None: ...
def read(source: Context | Inspector, rank: int) -> dict[str, Any]: ...
