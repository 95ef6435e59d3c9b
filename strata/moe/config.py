"""How high-throughput rounds are cut, and how much memory rounds take."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from strata.errors import CollectiveMismatch, InvalidArgument

__all__ = ["GROUP", "BufferTooSmall", "Config", "groups", "low_latency_bytes", "whole"]

GROUP = 128  # elements of a row that share an fp8 scale
ALIGNMENT = 128
_META = 128 * (8 + 4 + 4) + 8  # of a token, at most: 128 choices, their weights, 128 scales, where it comes from


class BufferTooSmall(CollectiveMismatch, InvalidArgument):
    """A buffer is too small for what comes; the text has the number needed.  Nothing has moved."""

    phrase = "a buffer is too small"


def whole(name: str, value: Any, least: int = 0, most: int = 1 << 40) -> int:
    """An argument that is a whole number; TypeError, InvalidArgument."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: a whole number is expected") from None
    if not least <= number <= most:
        raise InvalidArgument(f"{name}={number}: a number from {least} to {most} is expected")
    return number


def groups(hidden: int) -> int:
    """fp8 scales of a row: one for 128 elements, the last group may be shorter."""
    return -(-hidden // GROUP)


def _up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


@dataclass(frozen=True)
class Config:
    """How a high-throughput round is cut into pieces.

    ``num_sms``                           emulated cores of this die that the round is shared among (0: one)
    ``num_max_nvl_chunked_send_tokens``   rows of a piece from dies of the same node
    ``num_max_rdma_chunked_send_tokens``  rows of a piece from dies of other nodes
    ``num_max_nvl_chunked_recv_tokens``, ``num_max_rdma_chunked_recv_tokens``  rows that may be under way from one
        die: of nothing but the size hints, since rows go straight to their place
    """

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

    def __post_init__(self) -> None:
        whole("num_sms", self.num_sms, 0, 4096)
        for kind in ("nvl", "rdma"):
            names = [f"num_max_{kind}_chunked_{way}_tokens" for way in ("send", "recv")]
            send, receive = (whole(name, getattr(self, name), 1) for name in names)
            if kind == "rdma":
                receive = _up(receive, send)
                object.__setattr__(self, names[1], receive)
            if not send < receive or (kind == "rdma" and 2 * send > receive):
                least = f"{2 * send}" if kind == "rdma" else f"more than {send}"
                raise InvalidArgument(f"{names[1]}={receive}: {least} is needed for {names[0]}={send}")

    @property
    def channels(self) -> int:
        return max(1, self.num_sms // 2)

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes of rows that may be under way to a die within its node, by this Config.

        ``hidden_bytes``  bytes of a row;  ``num_ranks``: members.  ``Buffer(num_nvl_bytes=)`` is compared with it.
        """
        row = whole("hidden_bytes", hidden_bytes, 0) + _META
        peers = min(whole("num_ranks", num_ranks, 1), 8)
        return _up(self.channels * peers * self.num_max_nvl_chunked_recv_tokens * row, ALIGNMENT)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """The same across nodes of 8 dies; 0 for up to 8 members."""
        row = whole("hidden_bytes", hidden_bytes, 0) + _META
        nodes = -(-whole("num_ranks", num_ranks, 1) // 8)
        if nodes == 1:
            return 0
        return _up(2 * self.channels * nodes * self.num_max_rdma_chunked_recv_tokens * row, ALIGNMENT)


def low_latency_bytes(tokens: int, hidden: int, ranks: int, experts: int) -> int:
    """Bytes of a die's windows: of one dispatch in bf16, or fp8 with its scales, and of one combine, with the tokens'
    numbers and the places of sources."""
    rows = -(-experts // ranks) * ranks * tokens
    row = max(2 * hidden, hidden + 4 * groups(hidden)) + 4 + 2 * hidden
    return _up(rows * row + 8 * ranks * -(-experts // ranks), ALIGNMENT)
