"""Mixture of experts: dispatch and combine on the fabric, with the interface of DeepEP's Buffer, on numpy arrays.

    from strata import moe
    buffer = moe.Buffer(strata.world())
    layout = buffer.get_dispatch_layout(topk_idx, num_experts)
    per_rank, _, per_expert, in_rank, _ = layout
    recv_x, recv_topk_idx, recv_topk_weights, counts, handle, _ = buffer.dispatch(
        x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
        topk_idx=topk_idx, topk_weights=topk_weights)
    y, _, _ = buffer.combine(experts(recv_x, recv_topk_idx, recv_topk_weights), handle)

Rows are pulled from where they lie straight to where they belong: no packing, no buffer on the way.
``docs/moe.md`` has every method and argument, ``docs/moe-timing.md`` what it takes on a machine (``moe.simulate``).
"""

from __future__ import annotations

import numpy as np

from strata.moe.buffer import Buffer
from strata.moe.config import BufferTooSmall, Config
from strata.moe.events import EventHandle, EventOverlap
from strata.moe.handles import DispatchHandle, LowLatencyHandle
from strata.moe.rounds import stop
from strata.plan.moe import Placement, Routing, balance, imbalance

__all__ = [
    "Buffer", "BufferTooSmall", "Config", "DispatchHandle", "EventHandle", "EventOverlap", "LowLatencyHandle",
    "Placement", "Routing", "balance", "imbalance", "simulate", "stop",
    "topk_idx_t",
]

topk_idx_t = np.int64  # of topk_idx


def __getattr__(name: str) -> object:
    if name == "simulate":  # which dies have no use for: it imports the machines and their simulator
        from strata.moe.predicting import simulate

        return simulate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
