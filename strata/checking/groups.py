"""Groups of a die that is checked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from strata._core.clocked import Clocked
from strata._core.space import Context
from strata.checking import ranges, recorder
from strata.checking.items import Open, Track
from strata.comm import Group

__all__ = ["CheckedGroup", "opened"]

opened = Open()


class CheckedGroup(Clocked, Group):
    """The same, and the analyser of ``strata-run --check`` is told of its operations."""

    def __init__(self, context: Context, ranks: Iterable[int], name: str, key: bytes, timeout: float | None = None,
                 lives: Iterable[int] | None = None, memory: Any = None):  # fmt: skip
        super().__init__(context, ranks, name, key, timeout, lives, memory)
        told = recorder.current()
        assert told is not None
        self.track = Track(told, name, self._key, self.ranks, opened)

    def reopen(self) -> None:
        """After close(): the group can be used again."""
        super().reopen()
        told = recorder.current()
        if told is not None and self.track.told is not told:  # the die has joined again
            self.track = Track(told, self.name, self._key, self.ranks, opened)

    def _form(self, members: list[int], what: Any, name: str, timeout: float | None) -> Group:
        """As an operation of the new group, of its members alone."""
        told = self.track.told
        key = told.again + hashlib.blake2b(repr(what).encode(), key=self._key, digest_size=16).hexdigest()
        ranks = tuple(self.ranks[m] for m in members)
        told.event("op", group=key, name=name, n=0, op=what[0], members=ranks, root=None, reads=[], writes=[],
                   site=told.sites.here(), ts=0.0)  # fmt: skip
        told.flush()
        status = "ok"
        try:
            return super()._form(members, what, name, timeout)
        except BaseException as error:
            status = type(error).__name__
            raise
        finally:
            told.event("opend", group=key, n=0, status=status)

    def _stage(self, op: int, stage_src: bool, stage_out: bool, mailbox: bool, src: Any, out: Any, *rest: Any) -> Any:
        if stage_src and mailbox:  # copied by what is not told of
            found = ranges.of(src)
            if found and self.track.told.inside(found[0][0]):
                self.track.told.access(found, False, "copied for the operation")
        return super()._stage(op, stage_src, stage_out, mailbox, src, out, *rest)
