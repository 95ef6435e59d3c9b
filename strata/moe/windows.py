"""Memory of low-latency windows, kept from one round to the next.

Windows are as large as all ranks could fill them, and often larger than what the allocator keeps; made anew for each
round they would be taken from the host and given back again, and peers would map and unmap them.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from strata.moe.arrays import empty

__all__ = ["Windows"]


def _references(blocks: list[np.ndarray], i: int) -> int:
    return sys.getrefcount(blocks[i])


_UNUSED = _references([np.empty(0)], 0)  # of a block that nobody but its list refers to


class Windows:
    """Of one Buffer: at most ``room`` bytes are kept.  A block is used again once no array refers to it."""

    def __init__(self, group: Any, room: int) -> None:
        self._group, self._room = group, room
        self._blocks: list[np.ndarray] = []

    def take(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array in the fabric, contents arbitrary."""
        need = math.prod(shape) * np.dtype(dtype).itemsize
        unused = [i for i in range(len(self._blocks)) if _references(self._blocks, i) == _UNUSED]
        found = next((i for i in unused if self._blocks[i].nbytes == need), None)
        if found is None:
            found = len(self._blocks)
            kept = sum(block.nbytes for block in self._blocks)
            for i in reversed(unused):  # of another size
                if kept + need > self._room:
                    kept -= self._blocks.pop(i).nbytes
                    found -= 1
            if not need or kept + need > self._room:
                return empty(self._group, shape, dtype)
            self._blocks.append(empty(self._group, (need,), np.uint8))
        return np.ndarray(shape, dtype, self._blocks[found])
