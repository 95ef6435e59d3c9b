"""Memory of what comes, kept from one round to the next.

Windows of low latency are as large as all ranks could fill them, and they and large receive arrays are often more than
the allocator keeps; made anew for each round they would be taken from the host and given back again, and peers would
map and unmap them.
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
    """Of one Buffer: at most ``room`` bytes are kept.  A block is used again once no array refers to it.

    ``least``  bytes of an array that is worth it; of arrays whose sizes change blocks are up to an eighth larger
    """

    def __init__(self, group: Any, room: int, least: int = 0) -> None:
        self._group, self._room, self._least = group, room, least
        self._blocks: list[np.ndarray] = []

    def take(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array in the fabric, contents arbitrary."""
        need = math.prod(shape) * np.dtype(dtype).itemsize
        if not need or need < self._least:
            return empty(self._group, shape, dtype)
        size = _class(need) if self._least else need
        unused = [i for i in range(len(self._blocks)) if _references(self._blocks, i) == _UNUSED]
        found = next((i for i in unused if self._blocks[i].nbytes == size), None)
        if found is None:
            kept = sum(block.nbytes for block in self._blocks)
            for i in reversed(unused):  # of other sizes
                if kept + size > self._room:
                    kept -= self._blocks.pop(i).nbytes
            if kept + size > self._room:
                return empty(self._group, shape, dtype)
            found = len(self._blocks)
            self._blocks.append(empty(self._group, (size,), np.uint8))
        return np.ndarray(shape, dtype, self._blocks[found])


def _class(need: int) -> int:
    """The next of eight sizes between powers of two."""
    unit = 1 << max(need.bit_length() - 4, 0)
    return -(-need // unit) * unit
