from typing import Any, final

from numpy.typing import DTypeLike, NDArray

from strata._core.heap import Heap
from strata._core.heap import heap_of as heap_of
from strata._core.space import Context

Shape = Any

@final
class Block:
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

def heap_array(
    heap: Heap, shape: Shape, dtype: DTypeLike | None, zero: bool = False, tag: int = 0
) -> NDArray[Any]: ...
def alloc_array(
    ctx: Context, shape: Shape, dtype: DTypeLike | None, zero: bool = False, tag: int = 0
) -> NDArray[Any]: ...
def pointer(x: object) -> int | None: ...
def owner(ctx: Context, x: object) -> int: ...
