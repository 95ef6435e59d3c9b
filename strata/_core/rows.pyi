from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from strata._core.group import CoreGroup
from strata._core.planned import PlanHandle

class Column(NamedTuple):
    src: NDArray[Any]
    limit: NDArray[Any]
    out: NDArray[Any]
    bias: tuple[NDArray[Any] | None, NDArray[Any] | None] = ...
    weights: NDArray[Any] | None = ...

class Columns: ...

def rows_handle(plan: Any, members: int, ndies: int = 0) -> PlanHandle: ...
def run_rows(group: CoreGroup, handle: PlanHandle, columns: Sequence[Column]) -> None: ...
