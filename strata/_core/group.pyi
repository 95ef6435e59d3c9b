from collections.abc import Iterable
from typing import Any

import numpy as np

from strata._core.membership import Membership
from strata._core.space import Context

class CoreGroup(Membership):
    @property
    def number(self) -> int: ...
    @property
    def broken(self) -> bool: ...
    @property
    def recorder(self) -> Any: ...
    def __init__(
        self,
        context: Context,
        ranks: Iterable[int],
        name: str,
        key: bytes,
        timeout: float | None = None,
        lives: Iterable[int] | None = None,
        memory: np.ndarray | tuple[int, int, int] | None = None,
    ) -> None: ...
    def uncapturable(self, what: str) -> None: ...
    def close(self) -> None: ...
    def reopen(self) -> None: ...
    def pending(self) -> int: ...
    def survivors(self, round: int, timeout: float | None = None) -> tuple[list[int], list[int]]: ...
