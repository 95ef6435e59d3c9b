"""Buffer: expert-parallel dispatch and combine, as DeepEP's users know them."""

from __future__ import annotations

import numbers
import threading
import weakref
from typing import Any

import numpy as np

from strata import bootstrap, comm, config
from strata.errors import InvalidArgument
from strata.moe.config import Config, whole
from strata.moe.events import EventHandle, EventOverlap
from strata.moe.high import HighThroughput
from strata.moe.low import LowLatency
from strata.moe.rounds import Rounds
from strata.moe.windows import Windows
from strata.plan.moe import Placement
from strata.plan.select import Ask, check

_buffers: weakref.WeakSet[Buffer] = weakref.WeakSet()
LARGE = 1 << 20  # bytes of a receive array that is not left to the allocator
JOIN = 5.0  # seconds that destroy() gives the receiving thread to end, once no round is in progress


class Buffer(HighThroughput, LowLatency):
    """Rounds of dispatch and combine among the members of a group.  Made by all members together.

    ``group``              a strata.Group (None: the world)
    ``num_nvl_bytes``      0, or at least ``Config.get_nvl_buffer_size_hint`` of each config that is used; so much
                           memory of what high-throughput rounds return is kept from call to call
    ``num_rdma_bytes``     at least ``get_low_latency_rdma_size_hint`` of each low-latency call; so much memory of
                           windows is kept from call to call
    ``low_latency_mode``   low-latency calls may be used
    ``num_qps_per_rank``   path sdma: descriptor rings that a round uses at most
    ``allow_nvlink_for_low_latency_mode``  False: low-latency rounds go by the DMA engine (path sdma), not by cores
    ``allow_mnnvl``        True or False: the fabric reaches all dies in any case
    ``explicitly_destroy`` ``destroy()`` ends the Buffer; else its last reference does
    ``enable_shrink``      low-latency rounds mask members that are dead or late
    ``comm``               refused: a group is expected
    ``placement``          a strata.moe.Placement (None: experts in order, as even as can be)
    ``path``, ``partition``, ``cores``  as of the group's collectives;  ``timeout``: seconds that a wait may take

    docs/moe.md has every method and argument.  CollectiveMismatch on all members: they asked for different Buffers.
    """

    num_sms: int = 20

    def __init__(self, group: Any = None, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0,
                 low_latency_mode: bool = False, num_qps_per_rank: int = 24,
                 allow_nvlink_for_low_latency_mode: bool = True, allow_mnnvl: bool = False,
                 explicitly_destroy: bool = False, enable_shrink: bool = False, comm: Any = None, *,
                 placement: Placement | None = None, path: str | None = None, partition: str | None = None,
                 cores: int | None = None, timeout: float | None = None) -> None:
        self._live = None
        if comm is not None:
            raise InvalidArgument("comm: mpi4py communicators are not taken; pass a strata.Group as group")
        group = _group(group)
        self.num_nvl_bytes = whole("num_nvl_bytes", num_nvl_bytes)
        self.num_rdma_bytes = whole("num_rdma_bytes", num_rdma_bytes)
        self._rings = whole("num_qps_per_rank", num_qps_per_rank, 1, 1024)
        if placement is not None and (not isinstance(placement, Placement) or placement.dies != group.size):
            raise InvalidArgument(f"placement: a strata.moe.Placement of {group.size} dies is expected, not "
                                  f"{placement!r:.80}")
        if timeout is not None and not isinstance(timeout, numbers.Real):
            raise TypeError(f"timeout={timeout!r}: seconds are expected")
        if timeout is not None and not timeout > 0:
            raise InvalidArgument(f"timeout={timeout!r}: seconds, above 0, are expected")
        if low_latency_mode and not allow_nvlink_for_low_latency_mode:
            if path == "mte":
                raise InvalidArgument("allow_nvlink_for_low_latency_mode=False is path sdma, and path is 'mte'")
            path = path or "sdma"
        self._ask = check(Ask(None, path, cores, partition))
        self.group, self.rank, self.group_size = group, group.rank, group.size
        self.low_latency_mode, self.enable_shrink = bool(low_latency_mode), bool(enable_shrink)
        self.explicitly_destroy = bool(explicitly_destroy)
        self.placement = placement
        self._turn = threading.Lock()
        self._windows = Windows(group, self.num_rdma_bytes)
        self._received = Windows(group, self.num_nvl_bytes, LARGE)
        wishes = {
            "num_nvl_bytes": self.num_nvl_bytes, "num_rdma_bytes": self.num_rdma_bytes,
            "low_latency_mode": self.low_latency_mode, "enable_shrink": self.enable_shrink,
            "allow_mnnvl": bool(allow_mnnvl),
            "placement": -1 if placement is None else placement.digest() >> 1,
        }
        self._live = Rounds(group, wishes, None if timeout is None else float(timeout))
        _buffers.add(self)
        self._end = weakref.finalize(self, self._live.receiver.end)
        self._end.atexit = False

    @property
    def runtime(self) -> Any:
        """What carries out the rounds; None after destroy()."""
        return self._live

    def destroy(self) -> None:
        """Waits for the rounds in progress, and ends the Buffer.  Local; later calls raise InvalidArgument.

        InvalidArgument: the Buffer was made without explicitly_destroy=True.
        """
        if not self.explicitly_destroy:
            raise InvalidArgument("destroy: the Buffer was made without explicitly_destroy=True; it ends with its "
                                  "last reference")
        with self._only("destroy"):
            try:
                if self._live is not None and self._live.context.here:
                    self._end()
                    self._live.receiver.join(min(self._live.timeout * 8 + JOIN, threading.TIMEOUT_MAX))
            finally:
                self._live, self._windows, self._received = None, Windows(self.group, 0), Windows(self.group, 0)

    def __repr__(self) -> str:
        state = "destroyed" if self._live is None else f"next round {self._live.next}"
        return f"<strata.moe.Buffer of {self.group.name}: rank {self.rank} of {self.group_size}, {state}>"

    # ---- what belongs to no round ---------------------------------------------------------

    @staticmethod
    def is_sm90_compiled() -> bool:
        """True: float8_e4m3fn works."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Emulated cores that get_dispatch_config and get_combine_config give from now on; an even number."""
        number = whole("new_num_sms", new_num_sms, 2, 4096)
        if number % 2:
            raise InvalidArgument(f"new_num_sms={number}: an even number is expected")
        Buffer.num_sms = number

    @staticmethod
    def capture() -> EventOverlap:
        """Where this thread's current stream is now; outside of any stream an event that has happened."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """A Config for a dispatch among so many members: ``num_sms`` cores, pieces of 32 rows (16 across nodes)."""
        whole("num_ranks", num_ranks, 1, 1024)
        return Config(Buffer.num_sms, 32, 288, 16, 288)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """A Config for a combine: pieces of 16 rows, each of which is read from several dies."""
        whole("num_ranks", num_ranks, 1, 1024)
        return Config(Buffer.num_sms, 16, 288, 8, 288)

    def get_comm_stream(self) -> None:
        """Refused: rounds go on on a thread of the Buffer's, and no stream has them."""
        raise InvalidArgument("get_comm_stream: rounds are on no stream; wait for the events they return")

    def get_local_buffer_tensor(self, dtype: Any = None, size: Any = None, offset: int = 0,
                                use_rdma_buffer: bool = False) -> np.ndarray:
        """Refused: rows go straight to where they are returned, and there is no buffer on the way."""
        raise InvalidArgument("get_local_buffer_tensor: there is no buffer that rows pass through; for combine see "
                              "get_next_low_latency_combine_buffer, for fabric memory strata.empty")


def _group(group: Any) -> comm.Group:
    if config.get().clock:
        raise InvalidArgument("strata.moe: dispatch and combine do not move the emulated clock yet; run without "
                              "--clock (STRATA_CLOCK), and ask strata.moe.simulate what they would take")
    if group is None:
        return comm.world()
    if not isinstance(group, comm.Group):
        raise TypeError(f"group: a strata.Group is expected, not {type(group).__name__}")
    bootstrap.context()  # raises in a forked child
    group.uncapturable("moe.Buffer")
    return group
