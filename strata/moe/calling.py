"""What every call of a Buffer goes through."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

from strata import errors, selection
from strata._core import space
from strata._core.stream import current_stream
from strata.errors import InvalidArgument
from strata.failure import people
from strata.moe.config import BufferTooSmall, Config
from strata.moe.events import EventHandle, EventOverlap, Task
from strata.moe.moving import How
from strata.moe.rounds import Rounds
from strata.moe.windows import Windows
from strata.plan.moe import Placement
from strata.plan.select import Ask, check


class Calling:
    """State and checks that high-throughput and low-latency calls share."""

    group: Any
    group_size: int
    rank: int
    num_nvl_bytes: int
    num_rdma_bytes: int
    low_latency_mode: bool
    enable_shrink: bool
    placement: Placement | None
    _ask: Ask
    _rings: int
    _live: Rounds | None  # None: destroyed
    _turn: threading.Lock
    _windows: Windows
    _received: Windows
    _default: Placement | None = None
    _digested: tuple[Placement | None, int] = (None, 0)

    @property
    def _rounds(self) -> Rounds:
        if self._live is None:
            raise InvalidArgument("the Buffer is destroyed", operation="moe")
        return self._live

    @contextlib.contextmanager
    def _call(self, name: str, previous_event: EventOverlap | None = None, async_finish: bool = False,
              allocate_on_comm_stream: bool = False) -> Iterator[None]:
        with self._only(name):
            if not self.group.context.here:
                space.current()  # raises, and says why
                raise errors.NotInJob(f"{name}: this process was forked from a die and is not one itself")
            self._rounds.check()
            self.group.uncapturable(name)
            if current_stream() is not None:
                raise InvalidArgument(f"{name} cannot be queued on a stream: call it outside of strata.stream(); "
                                      "async_finish=True and the returned event let it go on meanwhile")
            if previous_event is not None and not isinstance(previous_event, EventOverlap):
                raise TypeError(f"previous_event: an EventOverlap is expected, not {type(previous_event).__name__}")
            if allocate_on_comm_stream and not (async_finish and previous_event is not None):
                raise InvalidArgument("allocate_on_comm_stream needs previous_event and async_finish")
            if previous_event is not None and previous_event.event is not None:
                previous_event.current_stream_wait()
            yield

    @contextlib.contextmanager
    def _only(self, name: str) -> Iterator[None]:
        if not self._turn.acquire(blocking=False):
            raise InvalidArgument(f"{name}: another thread is in a call of this Buffer; rounds have one order, so "
                                  "calls come one after another, or each thread has a Buffer of its own")
        try:
            yield
        finally:
            self._turn.release()

    def _event(self, task: Task | None) -> EventOverlap:
        return EventOverlap(EventHandle(task, self.group.context))

    def _placed(self, experts: int) -> Placement:
        """Where so many logical experts are."""
        if self.placement is not None:
            if self.placement.experts != experts:
                raise InvalidArgument(f"num_experts={experts}, and the placement is of {self.placement.experts}")
            return self.placement
        if self._default is None or self._default.experts != experts:
            self._default = Placement.default(experts, self.group_size)
        return self._default

    def _digest(self, placement: Placement) -> int:
        if self._digested[0] is not placement:
            self._digested = placement, placement.digest()
        return self._digested[1]

    def _placed_slots(self, slots: int) -> Placement:
        """By the length of num_tokens_per_expert."""
        if self.placement is None:
            if not slots:
                raise InvalidArgument("num_tokens_per_expert is empty; one number for each expert is expected")
            return self._placed(slots)
        if self.placement.slots != slots:
            raise InvalidArgument(f"num_tokens_per_expert has {slots} elements, and the placement has "
                                  f"{self.placement.slots} physical experts")
        return self.placement

    def _unmasked(self, name: str) -> None:
        masked = [self.group.ranks[m] for m in self._rounds.board.mask.nonzero()[0]]
        if masked:
            raise InvalidArgument(f"{name} needs all members, and masked are {people(masked)}; masks are for "
                                  "low-latency rounds: make a Buffer on group.shrink()")

    def _how(self, config: Config | None, row: int) -> How:
        """Who moves rows, and in what pieces.  ``row``: bytes of one."""
        if config is not None and not isinstance(config, Config):
            raise TypeError(f"config: a strata.moe.Config is expected, not {type(config).__name__}")
        found = selection.settings()
        wanted = check(self._ask).over(found.options.get("", Ask()))
        path = wanted.path or "mte"
        cores, cost = wanted.cores or found.cores, found.cost
        if config is not None:
            need = config.get_nvl_buffer_size_hint(row, self.group_size)
            if 0 < self.num_nvl_bytes < need:
                raise BufferTooSmall(f"num_nvl_bytes={self.num_nvl_bytes} is too small for this config and rows of "
                                     f"{row} bytes: {need} are needed (0: no limit)", operation="moe")
            cores = self._ask.cores or max(1, config.num_sms)
            near, far = config.num_max_nvl_chunked_send_tokens * row, config.num_max_rdma_chunked_send_tokens * row
            cost = dataclasses.replace(cost, unit_bytes=(near, near, near, far))
        if path == "sdma":
            cores = min(cores, self._rings)
        return How(path, cores, wanted.partition or "balanced", cost, found.topology)
