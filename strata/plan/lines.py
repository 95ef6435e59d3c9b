"""A member's memory as the verifier sees it: pieces, each with its value and who touched it last."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Piece:
    """Bytes of one value, and the accesses that later ones must come after.

    ``value``, ``at``  what they hold: from byte ``at`` of that value on
    ``writer``         (core, unit's place on it) of the last plain write; None: nobody
    ``adders``         the same of accumulations since
    ``readers``        core -> place of its last read since the last plain write
    """

    __slots__ = ("adders", "at", "readers", "value", "writer")

    def __init__(self, value: int, at: int, writer: tuple[int, int] | None = None) -> None:
        self.value, self.at, self.writer = value, at, writer
        self.adders: list[tuple[int, int]] = []
        self.readers: dict[int, int] = {}

    def cut(self, by: int) -> Piece:
        """What lies ``by`` bytes on; the same accesses."""
        made = Piece(self.value, self.at + by, self.writer)
        made.adders, made.readers = list(self.adders), dict(self.readers)
        return made


class Line:
    """[0, size) in pieces."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.starts: list[int] = [0]
        self.pieces: list[Piece] = [Piece(0, 0)]

    def set(self, start: int, end: int, value: int, at: int) -> None:
        """Before anything runs: what is there."""
        if end > start:
            first, last = self._range(start, end)
            self.starts[first:last] = [start]
            self.pieces[first:last] = [Piece(value, at)]

    def _split(self, at: int) -> int:
        """The number of the piece that begins at ``at``, which there is afterwards."""
        i = bisect_left(self.starts, at)
        if i < len(self.starts) and self.starts[i] == at:
            return i
        if at < self.size:
            self.pieces.insert(i, self.pieces[i - 1].cut(at - self.starts[i - 1]))
            self.starts.insert(i, at)
        return i

    def _range(self, start: int, end: int) -> tuple[int, int]:
        first = self._split(start)
        return first, self._split(end)

    def touched(self, start: int, end: int) -> list[Piece]:
        """The pieces of a range, cut at its ends."""
        first, last = self._range(start, end)
        return self.pieces[first:last]

    def read(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """(offset in the range, value, offset in the value), neighbours of one value joined."""
        first = bisect_right(self.starts, start) - 1
        found: list[tuple[int, int, int]] = []
        for i in range(first, len(self.starts)):
            begin = self.starts[i]
            if begin >= end:
                break
            piece, skip = self.pieces[i], max(start - begin, 0)
            offset, value, at = begin + skip - start, piece.value, piece.at + skip
            if found and found[-1][1] == value and (value == 0 or found[-1][2] + offset - found[-1][0] == at):
                continue
            found.append((offset, value, at))
        return found

    def write(self, start: int, end: int, parts: list[tuple[int, int, int]], writer: tuple[int, int]) -> None:
        """Replaces the range by ``parts``, as ``read`` gives them."""
        first, last = self._range(start, end)
        self.starts[first:last] = [start + offset for offset, _, _ in parts]
        self.pieces[first:last] = [Piece(value, at, writer) for _, value, at in parts]
