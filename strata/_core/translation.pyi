from collections.abc import Sequence
from typing import Any

import numpy as np

class Translation:
    def __init__(
        self,
        plans: Sequence[Any],
        unit_dtype: np.dtype[Any],
        operand_dtype: np.dtype[Any],
        dies: np.ndarray,
        slow: np.ndarray,
        between: np.ndarray | None,
    ) -> None: ...
    bytes: np.ndarray
    demand: np.ndarray
    memory: np.ndarray
    nflags: np.ndarray
    cores: np.ndarray
    units: np.ndarray
    busy: np.ndarray
    ntasks: int
    nuses: int
    nlanes: int
    sdma: bool
    def measure(
        self,
        *,
        alpha_ps: Sequence[int],
        seen_ps: Sequence[int],
        rate: Sequence[float],
        stream: Sequence[float],
        write: Sequence[float],
        engine: Sequence[float],
        poll_ps: int,
        issue_ps: int,
        row_ps: int,
        descriptor_ps: int,
        handover_ps: int,
        accumulate: float,
        loss: float,
        backlog: float,
        jitter: float,
        seed: int,
        block: int,
        flat: bool,
        sdma: bool,
        reduces: bool,
        ahead: int,
    ) -> None: ...
    def write(
        self,
        tasks: np.ndarray,
        uses: np.ndarray,
        lanes: np.ndarray,
        flags: np.ndarray,
        at: tuple[int, int, int],
        *,
        operation: int,
        memory: np.ndarray,
        pair: np.ndarray,
        flag_base: np.ndarray,
        poster: np.ndarray,
        start: np.ndarray,
        drained: np.ndarray,
        place: np.ndarray,
        written: np.ndarray,
        submitted: np.ndarray,
        cores: int,
    ) -> tuple[int, int, int]: ...
