from typing import Any

from numpy import ndarray

from strata._core.engine import Engine
from strata._core.space import Context

class Ring:
    engine: Engine
    open: bool
    rank: int
    index: int
    depth: int
    head: int
    tail: int
    def check(self) -> None: ...
    def submit(
        self, batch: Any, *, notify: bool = True, timeout: float | None = None, wait: bool = True, keep: Any = None
    ) -> Any: ...
    def close(self) -> None: ...
    def drain(self, timeout: float | None = None) -> None: ...

def attach(engine: Engine, die: int, index: int) -> Ring: ...
def open_ring(engine: Engine, depth: int | None = None, first: int = 0) -> Ring: ...
def seal(context: Context, descriptors: ndarray) -> None: ...
