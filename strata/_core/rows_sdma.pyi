from collections.abc import Sequence

from strata._core.group import CoreGroup
from strata._core.planned import PlanHandle
from strata._core.rows import Column

class RowsEngine: ...

def run_rows_sdma(group: CoreGroup, handle: PlanHandle, columns: Sequence[Column],
                  timeout: float | None = None) -> None: ...
