"""Tables of measurements, or of simulated times, that selection can go by.

JSON: ``{"version": 1, "name": ..., "rows": [{"operation", "ranks", "bytes", "us": {algorithm: us}}]}``, where
``bytes`` are a spec's ``part`` (of a member's source, or of one part in reduce_scatter, all_to_all, scatter).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from strata.errors import InvalidArgument, writing
from strata.plan.spec import OPERATIONS

VERSION = 1


class Table:
    """Times of algorithms by operation, number of members and size.

    ``rows``: (operation, ranks, bytes, {algorithm: microseconds}).  A lookup takes the row of the
    nearest size, by ratio, among those of just that operation and number of members.
    """

    def __init__(self, name: str, rows: Iterable[tuple[str, int, int, dict[str, float]]]):
        self.name = name
        self.rows = sorted(rows, key=lambda row: row[:3])
        self._sizes: dict[tuple[str, int], list[tuple[int, dict[str, float]]]] = {}
        for operation, ranks, nbytes, us in self.rows:
            self._sizes.setdefault((operation, ranks), []).append((nbytes, us))

    def lookup(self, operation: str, ranks: int, nbytes: int) -> dict[str, float]:
        """Microseconds by algorithm at the nearest size; empty if there is none within a factor of 8."""
        rows = self._sizes.get((operation, ranks))
        if not rows:
            return {}
        size, us = min(rows, key=lambda row: abs(_log(row[0]) - _log(nbytes)))
        return us if abs(_log(size) - _log(nbytes)) <= 3 else {}

    def save(self, file: str | PathLike[str]) -> None:
        """Writes the table as JSON."""
        rows = [{"operation": o, "ranks": r, "bytes": b, "us": us} for o, r, b, us in self.rows]
        text = ",\n  ".join(json.dumps(row) for row in rows)
        head = json.dumps({"version": VERSION, "name": self.name})[:-1]
        with writing(file):
            Path(file).write_text(f'{head}, "rows": [\n  {text}\n]}}\n')

    @classmethod
    def load(cls, file: str | PathLike[str]) -> Table:
        """Reads what ``save`` wrote; OSError, or InvalidArgument that says what is wrong with it."""
        try:
            found = json.loads(Path(file).read_text())
            if found["version"] != VERSION:
                raise InvalidArgument(f"{file}: a table of version {found['version']}, and this strata reads {VERSION}")
            return cls(str(found["name"]), [_row(row) for row in found["rows"]])
        except InvalidArgument:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            raise InvalidArgument(f"{file} is not a table for selection ({error}); strata tune makes one") from error


def _row(row: dict[str, Any]) -> tuple[str, int, int, dict[str, float]]:
    operation, ranks, nbytes, us = row["operation"], row["ranks"], row["bytes"], row["us"]
    if operation not in OPERATIONS:
        raise ValueError(f"unknown operation {operation!r}")
    if type(ranks) is not int or type(nbytes) is not int or ranks < 1 or nbytes < 0:
        raise ValueError(f"ranks {ranks!r} or bytes {nbytes!r}")
    times = {str(name): float(value) for name, value in us.items()}
    if not times or not all(0 < value < math.inf for value in times.values()):
        raise ValueError(f"times of {operation}, {ranks} ranks, {nbytes} bytes: {us}")
    return operation, ranks, nbytes, times


def _log(nbytes: int) -> float:
    return math.log2(nbytes + 1)
