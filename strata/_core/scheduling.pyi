from typing import Any

import numpy as np

MAX_UNITS: int
LEAST_UNIT: int

def schedule(
    slices: np.ndarray,
    tiers: np.ndarray,
    alpha: np.ndarray,
    rate: np.ndarray,
    unit: np.ndarray,
    cap: np.ndarray,
    unit_dtype: np.dtype[Any],
    operand_dtype: np.dtype[Any],
    *,
    rank: int,
    cores: int,
    balanced: bool,
    local_first: bool,
    dtype: int,
    itemsize: int,
    whole: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, int, int]: ...
def schedule_all(
    slices: list[np.ndarray],
    tiers: list[np.ndarray],
    alpha: np.ndarray,
    rate: np.ndarray,
    unit: np.ndarray,
    cap: np.ndarray,
    unit_dtype: np.dtype[Any],
    operand_dtype: np.dtype[Any],
    *,
    ranks: list[int],
    cores: int,
    balanced: bool,
    local_first: bool,
    dtype: int,
    itemsize: int,
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, int, int]]: ...
