from collections.abc import Sequence
from typing import Any

LEVELS: tuple[str, ...]
MAX_OPERANDS: int

def reduce(
    dsts: Sequence[Any],
    srcs: Sequence[Any],
    dtype: int,
    op: int,
    nt: bool = False,
    level: str | None = None,
) -> None: ...
def copy(dst: Any, src: Any, nt: bool = False) -> None: ...
def supported(dtype: int, op: int) -> bool: ...
def itemsize(dtype: int) -> int: ...
def level() -> str: ...
def widen(dtype: int, code: int) -> float: ...
def narrow(dtype: int, values: Any, codes: Any) -> None: ...
def partial_bytes(dtype: int, op: int) -> int: ...
def accumulate_width(dtype: int, op: int) -> int: ...
def reduce_partial(
    dsts: Sequence[Any],
    dst_partial: Sequence[bool],
    srcs: Sequence[Any],
    src_partial: Sequence[bool],
    dtype: int,
    op: int,
    total: int = 0,
) -> None: ...
def accumulate(dst: Any, src: Any, dtype: int, op: int) -> None: ...
def weigh(
    dst: Any,
    srcs: Sequence[Any],
    dtype: int,
    weights: Any = None,
    bias: tuple[Any, Any] = (None, None),
    level: str | None = None,
) -> None: ...
