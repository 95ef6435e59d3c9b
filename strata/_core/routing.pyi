from typing import Any

import numpy as np

MAX_CHOICES: int

def physical(topk: np.ndarray, table: np.ndarray, replicas: np.ndarray, rank: int) -> np.ndarray: ...
def layout(slot: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
def by_rank(in_rank: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
def by_slot(slot: np.ndarray, slots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
def ht_entries(position: np.ndarray, base: np.ndarray) -> np.ndarray: ...
def ll_entries(
    slot: np.ndarray, position: np.ndarray, base: np.ndarray, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray]: ...
def prices(rows: np.ndarray, price: np.ndarray, each: int = 0) -> np.ndarray: ...
def limits(
    windows: np.ndarray,
    tiers: np.ndarray,
    plain: np.ndarray,
    least: int,
    alpha: np.ndarray,
    rate: np.ndarray,
    cores: int,
    most: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]: ...
def cut(
    windows: np.ndarray,
    tiers: np.ndarray,
    big: np.ndarray,
    small: np.ndarray,
    tail: np.ndarray,
    apart: int,
    slice_dtype: np.dtype[Any],
) -> tuple[np.ndarray, np.ndarray]: ...
def units(pieces: np.ndarray, row: int, units: np.ndarray, operands: np.ndarray) -> None: ...
