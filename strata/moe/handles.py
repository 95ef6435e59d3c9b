"""Handles: what a dispatch knows, and its combine and further dispatches of the same routing need.

They are tuples with the elements that users look at, and carry what only the library needs beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

__all__ = ["DispatchHandle", "High", "Low", "LowLatencyHandle"]


@dataclass
class High:
    """Of a high-throughput dispatch.

    ``owner``     the rounds of its Buffer;  ``round``: its number there
    ``experts``   physical: slots of all dies
    ``tokens``    of this die;  ``position``: i32 (tokens, n), number of a token among those sent to a die, or -1
    ``counts``    i64 (n, n): rows from source to destination
    ``lists``     of each source the tokens that come here, u32
    ``rows``      of the arrays received: all that came, or num_worst_tokens
    ``topk``      choices of a token; 0: they did not travel
    """

    owner: Any
    round: int
    experts: int
    tokens: int
    position: np.ndarray
    counts: np.ndarray
    lists: list[np.ndarray]
    rows: int
    topk: int
    plans: dict[Any, Any] = field(default_factory=dict)


class _Dispatch(NamedTuple):
    rank_prefix_matrix: np.ndarray
    channel_prefix_matrix: np.ndarray
    recv_channel_prefix_matrix: np.ndarray
    recv_src_idx: np.ndarray
    is_token_in_rank: np.ndarray
    send_head: np.ndarray


class DispatchHandle(_Dispatch):
    """What ``Buffer.dispatch`` returns for ``combine`` and for cached dispatches.

    ``rank_prefix_matrix``  i32 (n, n): rows that sources up to the first send to the second
    ``channel_prefix_matrix``, ``recv_channel_prefix_matrix``  i32 (n, 1): rows that this die sends to, and 0, the place
        where those of a source begin; there is one channel
    ``recv_src_idx``        i32 (rows): number of the token at its source; -1 beyond what came
    ``is_token_in_rank``    bool (tokens, n)
    ``send_head``           i32 (tokens, n): number of the token among those sent to a die; -1: not sent.  Read-only
    """

    state: High


@dataclass
class Low:
    """Of a low-latency dispatch.

    ``topk_idx``  a copy of what was asked for
    ``slot``      i64 (tokens, topk): place of each choice, or -1;  ``position``: i32, its number among this die's rows
    ``counts``    i64 (n, slots): rows from each source to each slot; known once it has been received
    ``window``    for combine: where its rows are filled in
    """

    owner: Any
    round: int
    topk_idx: np.ndarray
    slot: np.ndarray
    position: np.ndarray
    placement: Any
    counts: np.ndarray
    window: np.ndarray | None = None
    received: Any = None  # its Task: combine needs layout_range


class _LowLatency(NamedTuple):
    packed_recv_src_info: np.ndarray
    packed_recv_layout_range: np.ndarray
    num_max_dispatch_tokens_per_rank: int
    hidden: int
    num_experts: int


class LowLatencyHandle(_LowLatency):
    """What ``Buffer.low_latency_dispatch`` returns for ``low_latency_combine``.

    ``packed_recv_src_info``      i32 (local experts, n * num_max): number of the token at its source; -1 beyond
    ``packed_recv_layout_range``  i64 (local experts, n): begin << 32 | count of a source's rows;
        read-only once received
    """

    state: Low
