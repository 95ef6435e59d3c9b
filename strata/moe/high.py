"""High throughput: layout, dispatch with exact sizes, combine."""

from __future__ import annotations

from typing import Any

import numpy as np

from strata import errors
from strata._core import array as codes
from strata._core import routing
from strata._core.spans import spanned
from strata.errors import InvalidArgument
from strata.failure import people
from strata.moe import agreement, moving
from strata.moe.agreement import Asked
from strata.moe.arrays import FLOATS, Rows, empty, exactly, fabric, matrix, rows_of, topk_of, weights_of
from strata.moe.calling import Calling
from strata.moe.config import BufferTooSmall, Config, whole
from strata.moe.events import EventOverlap
from strata.moe.handles import DispatchHandle, High
from strata.moe.rounds import Posted
from strata.plan.moe import Placement

Dispatched = tuple[Any, np.ndarray | None, np.ndarray | None, list[int] | None, DispatchHandle | None, EventOverlap]


class HighThroughput(Calling):
    """``get_dispatch_layout``, ``dispatch`` and ``combine`` of Buffer."""

    @spanned("moe.get_dispatch_layout")
    def get_dispatch_layout(self, topk_idx: np.ndarray, num_experts: int, previous_event: EventOverlap | None = None,
                            async_finish: bool = False, allocate_on_comm_stream: bool = False
                            ) -> tuple[np.ndarray, None, np.ndarray, np.ndarray, EventOverlap]:
        """How many tokens go where; local, and done when it returns.

        ``topk_idx``     int64 (tokens, topk): the experts of each token; -1: none
        ``num_experts``  logical experts

        Returns (num_tokens_per_rank int32 (n), None, num_tokens_per_expert int32 (physical experts: one for each,
        or as the placement has them), is_token_in_rank bool (tokens, n), event).
        """
        with self._call("get_dispatch_layout", previous_event, async_finish, allocate_on_comm_stream):
            topk_idx = topk_of(topk_idx)
            placement = self._placed(whole("num_experts", num_experts, 1))
            per_rank, per_slot, in_rank = self._layout(placement, placement.physical(topk_idx, self.rank))
            return per_rank, None, per_slot, in_rank, self._event(None)

    @staticmethod
    def _layout(placement: Placement, slot: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return routing.layout(slot, placement.first)

    # ---- dispatch ---------------------------------------------------------------------

    @spanned("moe.dispatch")
    def dispatch(self, x: Any, handle: DispatchHandle | None = None, num_tokens_per_rank: np.ndarray | None = None,
                 num_tokens_per_rdma_rank: None = None, is_token_in_rank: np.ndarray | None = None,
                 num_tokens_per_expert: np.ndarray | None = None, topk_idx: np.ndarray | None = None,
                 topk_weights: np.ndarray | None = None, expert_alignment: int = 1, num_worst_tokens: int = 0,
                 config: Config | None = None, previous_event: EventOverlap | None = None, async_finish: bool = False,
                 allocate_on_comm_stream: bool = False) -> Dispatched:
        """Sends each token to the dies of its experts, once to each.  Called by all members.

        ``x``  (tokens, hidden) of bfloat16, float16, float32 or float64, or (float8_e4m3fn or int8, its scales); it
               must not change before the event, or, without async_finish, the return
        The layout is what get_dispatch_layout returned, or ``handle`` what a dispatch did, whose routing is used again.
        docs/moe.md has every argument.

        Returns (recv_x, recv_topk_idx, recv_topk_weights, num_recv_tokens_per_expert_list, handle, event): rows by
        source, then token; topk_idx counts the experts of this die, -1 for those of others.

        BufferTooSmall on all members: more rows come than num_worst_tokens.
        """
        with self._call("dispatch", previous_event, async_finish, allocate_on_comm_stream):
            self._unmasked("dispatch")
            rows = rows_of(x)
            if num_tokens_per_rdma_rank is not None:
                raise InvalidArgument("num_tokens_per_rdma_rank: None is expected, what get_dispatch_layout "
                                      "returns: rows go straight to their die, also across nodes")
            worst = whole("num_worst_tokens", num_worst_tokens)
            alignment = whole("expert_alignment", expert_alignment, 1)
            how = self._how(config, rows.hidden * rows.x.dtype.itemsize)
            if handle is not None:
                given = (num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights)
                if any(a is not None for a in given) or worst:
                    raise InvalidArgument("a dispatch with a handle takes x alone: layout, topk_idx, topk_weights and "
                                          "num_worst_tokens are those of the dispatch that made it")
                return self._dispatch_cached(rows, handle, how, async_finish)
            if num_tokens_per_rank is None or is_token_in_rank is None or num_tokens_per_expert is None:
                raise InvalidArgument("num_tokens_per_rank, is_token_in_rank and num_tokens_per_expert, from "
                                      "get_dispatch_layout, or a handle are expected")
            layout = num_tokens_per_rank, num_tokens_per_expert, is_token_in_rank
            return self._dispatch(rows, layout, topk_idx, topk_weights, alignment, worst, how, async_finish)

    def _check_layout(self, rows: Rows, layout: tuple[np.ndarray, ...],
                      topk_idx: Any) -> tuple[Placement, np.ndarray | None]:
        """The placement, and the slot of each choice."""
        per_rank, per_slot, in_rank = layout
        exactly("num_tokens_per_rank", per_rank, np.int32, (self.group_size,))
        exactly("is_token_in_rank", in_rank, np.bool_, (rows.tokens, self.group_size))
        if not isinstance(per_slot, np.ndarray) or per_slot.ndim != 1:
            raise InvalidArgument("num_tokens_per_expert: int32 of one dimension is expected")
        exactly("num_tokens_per_expert", per_slot, np.int32, per_slot.shape)
        placement = self._placed_slots(len(per_slot))
        if topk_idx is None:
            if not np.array_equal(in_rank.sum(axis=0), per_rank):
                raise InvalidArgument("num_tokens_per_rank is not what is_token_in_rank adds up to")
            if per_slot.min(initial=0) < 0:
                raise InvalidArgument(f"num_tokens_per_expert has {per_slot.min()}; numbers of tokens are expected")
            return placement, None
        choices = topk_of(topk_idx, rows.tokens)
        if choices.max(initial=-1) >= placement.experts and self.placement is None:
            raise InvalidArgument(f"topk_idx names expert {choices.max()}, and num_tokens_per_expert has "
                                  f"{len(per_slot)} elements: one for each expert is expected")
        slot = placement.physical(choices, self.rank)
        names = ("num_tokens_per_rank", "num_tokens_per_expert", "is_token_in_rank")
        for name, mine, right in zip(names, layout, self._layout(placement, slot), strict=True):
            if not np.array_equal(mine, right):
                raise InvalidArgument(f"{name} is not what get_dispatch_layout makes of topk_idx")
        return placement, slot

    def _dispatch(self, rows: Rows, layout: tuple[np.ndarray, ...], topk_idx: Any, topk_weights: Any, alignment: int,
                  worst: int, how: moving.How, later: bool) -> Dispatched:
        placement, slot = self._check_layout(rows, layout, topk_idx)
        topk = 0 if slot is None else slot.shape[1]
        columns = [fabric(self.group, rows.x)]
        if rows.scales is not None:
            columns.append(fabric(self.group, rows.scales))
        if slot is not None:
            choices = empty(self.group, slot.shape, np.int64)
            choices[...] = slot
            columns.append(choices)
        if topk_weights is not None:
            if slot is None:
                raise InvalidArgument("topk_weights without topk_idx: both, or neither, are expected")
            columns.append(fabric(self.group, weights_of(topk_weights, slot.shape)))
        asked = Asked(agreement.DISPATCH, rows.hidden, rows.code, rows.scale_bytes, topk, topk_weights is not None,
                      placement.slots, placement=self._digest(placement))
        sent, tokens, position = routing.by_rank(np.ascontiguousarray(layout[2]))
        posted = self._rounds.post(asked, rows.tokens, columns, sent, layout[1], tokens, worst)
        with self._rounds.part(posted):
            self._rounds.gather(posted)
            heads = [self._rounds.head(posted, m, placement.slots) for m in range(self.group_size)]
            counts = np.stack([head.rows for head in heads])
            self._refuse_worst(counts, [head.worst for head in heads], posted)
            begin = agreement.HEAD + self.group_size + placement.slots
            lists = [self._rounds.piece(posted, m, begin + int(counts[m, : self.rank].sum()), int(counts[m, self.rank]))
                     for m in range(self.group_size)]
            state = High(self._rounds, posted.number, placement.slots, rows.tokens, position, counts, lists,
                         worst or int(counts[:, self.rank].sum()), topk)
            outs = [self._received.take((state.rows, c.shape[1]), c.dtype) for c in columns]
            handle = self._handle(state, layout[2].copy(), layout[0].copy())
            mine = slice(int(placement.first[self.rank]), int(placement.first[self.rank + 1]))
            per_slot = np.stack([head.slots[mine] for head in heads]).sum(axis=0)
            # Before the round can end: it may be the receiver's from here on.
            found_idx = outs[1 + (rows.scales is not None)] if slot is not None else None
            found_weights = outs[-1] if topk_weights is not None else None

            def receive() -> None:
                self._pull(state, posted, outs, how)
                _localise(found_idx, found_weights, mine, int(counts[:, self.rank].sum()))

        task = self._rounds.run("dispatch", posted, receive, later)
        listed = [] if worst else [int(-(-count // alignment) * alignment) for count in per_slot.tolist()]
        got = outs[0] if rows.scales is None else (outs[0], outs[1])
        return got, found_idx, found_weights, listed, handle, self._event(task)

    def _refuse_worst(self, counts: np.ndarray, worst: list[int], posted: Posted) -> None:
        """The same on all members: they have seen the same blocks."""
        every = zip(self.group.ranks, counts.sum(axis=0).tolist(), worst, strict=True)
        bad = [(rank, need, room) for rank, need, room in every if 0 < room < need]
        if bad:
            text = "; ".join(f"rank {r} receives {need} rows, and its num_worst_tokens is {w}: {need} are needed"
                             for r, need, w in bad)
            raise BufferTooSmall(f"{people([r for r, _, _ in bad])} made too little room: {text}",
                                 ranks=[r for r, _, _ in bad], group=self.group.name, operation="dispatch",
                                 number=posted.number)

    def _handle(self, state: High, in_rank: np.ndarray, per_rank: np.ndarray) -> DispatchHandle:
        prefix = np.cumsum(state.counts, axis=0).astype(np.int32)
        source = np.full(state.rows, -1, np.int32)
        source[: int(state.counts[:, self.rank].sum())] = np.concatenate(state.lists)
        zeros = np.zeros((self.group_size, 1), np.int32)
        handle = DispatchHandle(prefix, per_rank[:, None], zeros, source, in_rank, state.position)
        state.position.setflags(write=False)  # combine goes by it
        handle.state = state
        return handle

    def _pull(self, state: High, posted: Posted, outs: list[np.ndarray], how: moving.How) -> None:
        """Moves the rows that come here."""
        assert posted.posts is not None
        for m in range(self.group_size):
            if int(posted.posts[m]["tokens"]) <= int(state.lists[m].max(initial=0)) and len(state.lists[m]):
                raise errors.CorruptSpace(f"rank {self.group.ranks[m]} lists a token that it does not have",
                                          ranks=[self.group.ranks[m]], group=self.group.name, operation="dispatch")
        moving.dispatch(self._rounds, posted, how, state.counts, state.lists, outs, state.plans)

    def _dispatch_cached(self, rows: Rows, handle: DispatchHandle, how: moving.How, later: bool) -> Dispatched:
        state = self._state(handle)
        if rows.tokens != state.tokens:
            raise InvalidArgument(f"x has {rows.tokens} tokens, and the handle is of {state.tokens}")
        columns = [fabric(self.group, rows.x)]
        if rows.scales is not None:
            columns.append(fabric(self.group, rows.scales))
        outs = [self._received.take((state.rows, c.shape[1]), c.dtype) for c in columns]
        asked = Asked(agreement.CACHED, rows.hidden, rows.code, rows.scale_bytes, handle=state.round)
        posted = self._post_plain(asked, rows.tokens, columns)

        def receive() -> None:
            self._rounds.gather(posted)
            self._pull(state, posted, outs, how)

        task = self._rounds.run("dispatch", posted, receive, later)
        return outs[0] if rows.scales is None else tuple(outs), None, None, None, None, self._event(task)

    def _post_plain(self, asked: Asked, tokens: int, columns: list[np.ndarray], keep: tuple[Any, ...] = ()) -> Posted:
        """A round whose routing is known."""
        none = np.zeros(0, np.int64)
        return self._rounds.post(asked, tokens, columns, np.zeros(self.group_size, np.int64), none, none, keep=keep)

    def _state(self, handle: Any) -> High:
        if not isinstance(handle, DispatchHandle):
            raise TypeError(f"handle: what dispatch returned is expected, not {type(handle).__name__}")
        if handle.state.owner is not self._rounds:
            raise InvalidArgument("the handle is of another Buffer")
        return handle.state

    # ---- combine ----------------------------------------------------------------------

    @spanned("moe.combine")
    def combine(self, x: np.ndarray, handle: DispatchHandle, topk_weights: np.ndarray | None = None,
                bias: Any = None, config: Config | None = None, previous_event: EventOverlap | None = None,
                async_finish: bool = False, allocate_on_comm_stream: bool = False
                ) -> tuple[np.ndarray, np.ndarray | None, EventOverlap]:
        """Adds up, for each token of this die, the rows that the dies it went to have for it, in order of ranks.

        ``x``             (rows received, hidden) of bfloat16, float16, float32 or float64
        ``topk_weights``  float32 (rows received, topk): added up as well
        ``bias``          None, one (tokens, hidden) array of x's dtype, or a tuple of two: sums begin with them

        Sums are of float32 (float64 of float64), rounded once.  Returns (combined_x (tokens, hidden),
        combined_topk_weights (tokens, topk) or None, event).
        """
        with self._call("combine", previous_event, async_finish, allocate_on_comm_stream):
            self._unmasked("combine")
            state = self._state(handle)
            matrix("x", x, FLOATS)
            if len(x) != state.rows or not x.shape[1]:
                raise InvalidArgument(f"x has shape {x.shape}; {state.rows} rows, as the dispatch returned, are "
                                      "expected")
            how = self._how(config, x.shape[1] * x.dtype.itemsize)
            biases = self._biases(bias, state.tokens, x)
            columns = [fabric(self.group, x)]
            topk = 0
            if topk_weights is not None:
                topk = matrix("topk_weights", topk_weights, ("float32",)).shape[1]
                columns.append(fabric(self.group, weights_of(topk_weights, (state.rows, topk))))
            asked = Asked(agreement.COMBINE, x.shape[1], codes.dtype_code(x.dtype), topk=topk, handle=state.round)
            outs = [self._received.take((state.tokens, c.shape[1]), c.dtype) for c in columns]
            posted = self._post_plain(asked, state.rows, columns, keep=(biases,))

            def receive() -> None:
                self._rounds.gather(posted)
                moving.combine_high(self._rounds, posted, how, state, outs, biases)

            task = self._rounds.run("combine", posted, receive, async_finish)
            return outs[0], outs[1] if topk_weights is not None else None, self._event(task)

    def _biases(self, bias: Any, tokens: int, x: np.ndarray) -> list[np.ndarray]:
        if bias is None:
            return []
        given = list(bias) if isinstance(bias, tuple) else [bias]
        if isinstance(bias, tuple) and len(given) != 2:
            raise InvalidArgument(f"bias is a tuple of {len(given)}: an array, or a tuple of two, is expected")
        shape = (tokens, x.shape[1])
        given = [exactly(f"bias {i}", b, x.dtype, shape) for i, b in enumerate(given) if b is not None]
        return [np.ascontiguousarray(b) for b in given]

    def internode_dispatch(self, *args: Any, **kwargs: Any) -> None:
        """Refused: ``dispatch`` serves dies of one node and of several alike."""
        raise InvalidArgument("internode_dispatch: call dispatch, which serves dies of all nodes alike")

    def internode_combine(self, *args: Any, **kwargs: Any) -> None:
        """Refused: ``combine`` serves dies of one node and of several alike."""
        raise InvalidArgument("internode_combine: call combine, which serves dies of all nodes alike")


def _localise(idx: np.ndarray | None, weights: np.ndarray | None, mine: slice, came: int) -> None:
    """Slots of all dies to those of this one; -1 and weight 0 for the others, and beyond what came."""
    if idx is None:
        return
    found = idx[:came]
    away = (found < mine.start) | (found >= mine.stop)
    found -= mine.start
    found[away] = -1
    idx[came:] = -1
    if weights is not None:
        weights[:came][away] = 0
        weights[came:] = 0
