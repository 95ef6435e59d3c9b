from typing import Any, final

from numpy.typing import NDArray

from strata._core.space import Context

SLOTS: int

@final
class Window: ...

def reachable(ctx: Context) -> bool: ...
def window(
    ctx: Context, fd: int, device: int, inode: int, offset: int, nbytes: int, writes: bool
) -> NDArray[Any] | None: ...
