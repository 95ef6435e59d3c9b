"""Low latency: fixed windows for each expert and source, receive hooks, masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from strata import errors
from strata._core import array as codes
from strata._core import quantise, routing
from strata._core.spans import spanned
from strata.dtypes import EXTENDED, dtype_of
from strata.errors import InvalidArgument
from strata.moe import agreement, moving
from strata.moe.agreement import Asked
from strata.moe.arrays import empty, exactly, fabric, matrix, topk_of, weights_of
from strata.moe.calling import Calling
from strata.moe.config import BufferTooSmall, groups, low_latency_bytes, whole
from strata.moe.events import EventOverlap, Task
from strata.moe.handles import Low, LowLatencyHandle
from strata.moe.rounds import Posted

FLOATS = ("bfloat16", "float16", "float32")
Hook = Callable[[], None]


class _Casts(NamedTuple):
    bits: int
    dtype: Any  # of what travels
    groups: int  # scales of a row

    @property
    def packed(self) -> bool:
        return bool(self.bits & agreement.UE8M0)


class LowLatency(Calling):
    """``low_latency_dispatch``, ``low_latency_combine`` and what goes with them."""

    @staticmethod
    def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int,
                                       num_experts: int) -> int:
        """Bytes that the windows of one dispatch and one combine take on a die: what ``num_rdma_bytes`` must be."""
        return low_latency_bytes(
            whole("num_max_dispatch_tokens_per_rank", num_max_dispatch_tokens_per_rank, 1, 1 << 31),
            whole("hidden", hidden, 1, 1 << 31), whole("num_ranks", num_ranks, 1), whole("num_experts", num_experts, 1),
        )

    def _room(self, name: str, tokens: Any, hidden: int, experts: Any) -> tuple[int, int]:
        """(num_max, experts), if the Buffer has room for them."""
        tokens = whole("num_max_dispatch_tokens_per_rank", tokens, 1, 1 << 31)
        experts = whole("num_experts", experts, 1)
        if not self.low_latency_mode:
            raise InvalidArgument(f"{name}: the Buffer was made without low_latency_mode=True")
        n, slots = self.group_size, self._placed(experts).slots
        need = low_latency_bytes(tokens, hidden, n, slots)
        if self.num_rdma_bytes < need:
            raise BufferTooSmall(f"{name}: num_rdma_bytes={self.num_rdma_bytes} is too small for {tokens} tokens of "
                                 f"hidden {hidden} and {experts} experts on {n} ranks: {need} are needed, as "
                                 f"Buffer.get_low_latency_rdma_size_hint({tokens}, {hidden}, {n}, {slots}) says"
                                 + ("" if slots == experts else f", for the placement's {slots} slots"),
                                 operation=name)
        return tokens, experts

    # ---- dispatch -----------------------------------------------------------------------

    @spanned("moe.low_latency_dispatch")
    def low_latency_dispatch(self, x: np.ndarray, topk_idx: np.ndarray, num_max_dispatch_tokens_per_rank: int,
                             num_experts: int, cumulative_local_expert_recv_stats: np.ndarray | None = None,
                             dispatch_wait_recv_cost_stats: np.ndarray | None = None, use_fp8: bool = True,
                             round_scale: bool = False, use_ue8m0: bool = False, async_finish: bool = False,
                             return_recv_hook: bool = False, *, use_int8: bool = False
                             ) -> tuple[Any, np.ndarray, LowLatencyHandle, EventOverlap, Hook | None]:
        """Sends each token to each of its experts.  Called by all members; docs/moe.md has every argument.

        ``x``         bfloat16, float16 or float32 (tokens, hidden); it must not change before the event or the hook
        ``topk_idx``  int64 (tokens, topk); -1: none

        Returns (recv_x, recv_count, handle, event, hook).  recv_x: (local experts, n * num_max, hidden) in x's dtype,
        or (float8_e4m3fn or int8, scales); of expert i the first recv_count[i] rows are filled, by source, then token.
        Arrays are filled when the call returns, or by the event, or by the hook.

        BufferTooSmall: num_rdma_bytes.
        """
        with self._call("low_latency_dispatch"):
            if isinstance(x, tuple):
                raise TypeError("x: one array is expected, not a tuple; low_latency_dispatch itself casts it (use_fp8)")
            x = matrix("x", x, FLOATS)
            if not x.shape[1]:
                raise InvalidArgument(f"x has shape {x.shape}; rows of at least one element are expected")
            most, experts = self._room("low_latency_dispatch", num_max_dispatch_tokens_per_rank, x.shape[1],
                                       num_experts)
            if len(x) > most:
                raise InvalidArgument(f"x has {len(x)} tokens, and num_max_dispatch_tokens_per_rank is {most}: "
                                      "at least the tokens of the fullest rank are expected, the same on all ranks")
            casts = self._casts(x, use_fp8, round_scale, use_ue8m0, use_int8)
            _one_of(async_finish, return_recv_hook)
            topk_idx = topk_of(topk_idx, len(x))
            placement = self._placed(experts)
            local = int(placement.first[self.rank + 1] - placement.first[self.rank])
            stats = cumulative_local_expert_recv_stats
            if stats is not None:
                exactly("cumulative_local_expert_recv_stats", stats, np.int32, (local,), True)
            costs = self._costs("dispatch_wait_recv_cost_stats", dispatch_wait_recv_cost_stats)
            slot = placement.physical(topk_idx, self.rank)
            counts, tokens, position = routing.by_slot(slot, placement.slots)
            if counts.max(initial=0) > most:
                full = int(counts.argmax())
                raise BufferTooSmall(f"physical expert {full} is named {counts[full]} times, and a window has room for "
                                     f"num_max_dispatch_tokens_per_rank={most} rows of a rank: {counts[full]} are "
                                     "needed (a token that names an expert twice takes two)",
                                     operation="low_latency_dispatch")
            columns = self._cast(x, casts)
            outs = [self._windows.take((local, self.group_size * most, c.shape[1]), c.dtype) for c in columns]
            asked = Asked(agreement.LOW_DISPATCH, x.shape[1], codes.dtype_code(x.dtype), topk=topk_idx.shape[1],
                          slots=placement.slots, tokens=most, casts=casts.bits, placement=self._digest(placement))
            handle = LowLatencyHandle(np.full((local, self.group_size * most), -1, np.int32),
                                      np.zeros((local, self.group_size), np.int64), most, x.shape[1], experts)
            per_rank = np.diff(np.append(0, np.cumsum(counts, dtype=np.int64))[placement.first])
            how = self._how(None, 0)
            posted = self._rounds.post(asked, len(x), columns, per_rank, counts, tokens, masking=self.enable_shrink,
                                       ours=bool(casts.bits))
            handle.state = Low(self._rounds, posted.number, topk_idx.copy(), slot, position, placement,
                               np.zeros((self.group_size, placement.slots), np.int64))
            count = np.zeros(local, np.int32)

            def receive() -> None:
                self._receive(posted, handle, outs, how, count)
                if stats is not None:
                    stats[...] += count
                if costs is not None:
                    costs[...] += posted.waited

            task = self._rounds.run("low_latency_dispatch", posted, receive, async_finish or return_recv_hook)
            handle.state.received = task
            got = outs[0] if len(outs) == 1 else tuple(outs)
            return got, count, handle, self._event(task), self._hook(task, return_recv_hook)

    def _casts(self, x: np.ndarray, fp8: bool, rounds: bool, packs: bool, int8: bool) -> _Casts:
        if int8 and fp8:
            raise InvalidArgument("use_int8 with use_fp8 (the default): one of them is expected")
        if (rounds or packs) and not fp8:
            raise InvalidArgument("round_scale and use_ue8m0 are of use_fp8=True")
        if packs and not rounds:
            raise InvalidArgument("use_ue8m0 needs round_scale=True: it stores exponents alone")
        if packs and x.shape[1] % 512:
            raise InvalidArgument(f"use_ue8m0 packs exponents of 512 elements: hidden={x.shape[1]} is no multiple")
        if fp8:
            bits = agreement.FP8 | agreement.ROUND * bool(rounds) | agreement.UE8M0 * bool(packs)
            return _Casts(bits, dtype_of(_FP8), groups(x.shape[1]))
        return _Casts(agreement.INT8, np.dtype(np.int8), 1) if int8 else _Casts(0, x.dtype, 0)

    def _cast(self, x: np.ndarray, casts: _Casts) -> list[np.ndarray]:
        """What travels, where others can read it."""
        if not casts.bits:
            return [fabric(self.group, x)]
        x = np.ascontiguousarray(x)
        q, scales = empty(self.group, x.shape, casts.dtype), empty(self.group, (len(x), casts.groups), np.float32)
        if casts.bits & agreement.INT8:
            quantise.cast_int8(x, q, scales)
        else:
            quantise.cast_fp8(x, q, scales, bool(casts.bits & agreement.ROUND))
        if not casts.packed:
            return [q, scales]
        packed = empty(self.group, (len(x), casts.groups // 4), np.int32)
        packed.view(np.uint8)[...] = scales.view(np.uint32) >> 23
        return [q, packed]

    def _receive(self, posted: Posted, handle: LowLatencyHandle, outs: list[np.ndarray], how: moving.How,
                 count: np.ndarray) -> None:
        rounds, state, n = self._rounds, handle.state, self.group_size
        rounds.gather(posted)
        first = state.placement.first
        mine = slice(int(first[self.rank]), int(first[self.rank + 1]))
        lists: list[np.ndarray] = []
        for m in range(n):
            if not posted.present(m):
                lists.append(np.zeros(0, np.uint32))
                continue
            slots = state.counts[m] = rounds.head(posted, m, state.placement.slots).slots
            begin = agreement.HEAD + n + len(slots) + int(slots[: mine.start].sum())
            lists.append(rounds.piece(posted, m, begin, int(slots[mine].sum())))
            assert posted.posts is not None
            held = int(posted.posts[m]["tokens"])
            if slots.max(initial=0) > handle[2] or (len(lists[m]) and int(lists[m].max()) >= held):
                raise errors.CorruptSpace(f"rank {self.group.ranks[m]} lists tokens that it does not have",
                                          ranks=[self.group.ranks[m]], group=self.group.name,
                                          operation="low_latency_dispatch")
        counts = state.counts[:, mine]
        begin = np.cumsum(counts, axis=0) - counts
        moving.low_dispatch(rounds, posted, how, state.counts, state, n * handle[2], lists, outs)
        sizes = counts.reshape(-1)
        place = (np.arange(counts.shape[1]) * (n * handle[2]) + begin).reshape(-1)
        place = np.repeat(place - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))
        handle[0].reshape(-1)[place] = np.concatenate(lists)
        handle[1][...] = (begin << 32 | counts).T
        handle[1].setflags(write=False)  # combine goes by it
        count[...] = counts.sum(axis=0)

    # ---- combine ------------------------------------------------------------------------

    @spanned("moe.low_latency_combine")
    def low_latency_combine(self, x: np.ndarray, topk_idx: np.ndarray, topk_weights: np.ndarray,
                            handle: LowLatencyHandle, use_logfmt: bool = False, zero_copy: bool = False,
                            async_finish: bool = False,
                            return_recv_hook: bool = False, out: np.ndarray | None = None,
                            combine_wait_recv_cost_stats: np.ndarray | None = None
                            ) -> tuple[np.ndarray, EventOverlap, Hook | None]:
        """Of each token of this die the sum of its experts' rows by weight, in the order of experts.

        ``x``             (local experts, n * num_max, hidden): a result in the place of each row of recv_x
        ``topk_idx``      as in the dispatch; choices may be -1 here, and are left out
        ``topk_weights``  float32 (tokens, topk)
        ``zero_copy``     rows are taken from get_next_low_latency_combine_buffer(handle), not from x

        Returns (combined_x (tokens, hidden) in x's dtype, event, hook).
        """
        with self._call("low_latency_combine"):
            if use_logfmt:
                raise InvalidArgument("use_logfmt: that format is not there; rows come back in the dtype of x")
            if not isinstance(handle, LowLatencyHandle) or handle.state.owner is not self._rounds:
                raise InvalidArgument("handle: what low_latency_dispatch of this Buffer returned is expected")
            _one_of(async_finish, return_recv_hook)
            state, (rows, hidden) = handle.state, (handle[0].shape, handle[3])
            if not isinstance(x, np.ndarray):
                raise TypeError(f"x: a numpy array of shape {(*rows, hidden)} is expected, not {type(x).__name__}")
            if x.dtype.name not in FLOATS or x.shape != (*rows, hidden):
                raise InvalidArgument(f"x: {', '.join(FLOATS[:-1])} or {FLOATS[-1]} of shape {(*rows, hidden)}, as "
                                      f"recv_x has, is expected, not {x.dtype} of shape {x.shape}")
            used = self._same_choices(topk_of(topk_idx, len(state.topk_idx)), state)
            weights = np.ascontiguousarray(weights_of(topk_weights, state.topk_idx.shape))
            weights = weights.copy() if weights is topk_weights else weights
            costs = self._costs("combine_wait_recv_cost_stats", combine_wait_recv_cost_stats)
            result = self._result(out, (len(used), hidden), x.dtype)
            if zero_copy:
                window, state.window = state.window, None
                if window is None or window.dtype != x.dtype:
                    raise InvalidArgument("zero_copy: get_next_low_latency_combine_buffer(handle), of x's dtype, "
                                          "comes first, once for each combine")
                x = window
            if out is not None and np.may_share_memory(out, x):
                raise InvalidArgument("low_latency_combine: out and x overlap, and others read x as out is written")
            source = fabric(self.group, x).reshape(-1, hidden)
            if state.received is not None:
                state.received.wait(self.group.context)
            asked = Asked(agreement.LOW_COMBINE, hidden, codes.dtype_code(x.dtype), tokens=handle[2],
                          handle=state.round)
            place = handle[1].T.astype(np.uint64).reshape(-1).view(np.uint32)  # begin and count, by source
            none = np.zeros(0, np.int64)
            how = self._how(None, 0)
            posted = self._rounds.post(asked, len(source), [source], np.zeros(self.group_size, np.int64), none, place,
                                       masking=self.enable_shrink)

            def receive() -> None:
                self._rounds.gather(posted)
                begins, without = self._begins(posted, handle)
                moving.low_combine(self._rounds, posted, how, state, used, begins, without, rows[1], weights, result)
                if out is not None and result is not out:
                    out[...] = result
                if costs is not None:
                    costs[...] += posted.waited

            task = self._rounds.run("low_latency_combine", posted, receive, async_finish or return_recv_hook)
            return result if out is None else out, self._event(task), self._hook(task, return_recv_hook)

    def _same_choices(self, topk_idx: np.ndarray, state: Low) -> np.ndarray:
        """Slots of the choices that count: those of the dispatch, or fewer."""
        exactly("topk_idx", topk_idx, np.int64, state.topk_idx.shape)
        if ((topk_idx != state.topk_idx) & (topk_idx != -1)).any():
            raise InvalidArgument("topk_idx: the choices of the dispatch are expected, or -1 in their place")
        return np.where(topk_idx < 0, -1, state.slot)

    def _begins(self, posted: Posted, handle: LowLatencyHandle) -> tuple[np.ndarray, np.ndarray]:
        """Where this die's rows begin in the window of each slot, and the members that have none of them."""
        state, n = handle.state, self.group_size
        first, sent = state.placement.first, state.counts[self.rank]
        begins, without = np.zeros(len(sent), np.int64), np.zeros(n, bool)
        for m in range(n):
            mine = slice(int(first[m]), int(first[m + 1]))
            local = mine.stop - mine.start
            if not posted.present(m):
                without[m] = True
                continue
            words = self._rounds.piece(posted, m, agreement.HEAD + n + 2 * local * self.rank, 2 * local)
            place = words.view(np.uint64).astype(np.int64)
            count = place & 0xFFFFFFFF
            begins[mine] = place >> 32
            if np.array_equal(count, sent[mine]):
                continue
            without[m] = True  # it had masked this die when the rows went out
            if not posted.masking or count.any():
                raise errors.CorruptSpace(f"rank {self.group.ranks[m]} has other rows than this die sent",
                                          ranks=[self.group.ranks[m]], group=self.group.name,
                                          operation="low_latency_combine")
        return begins, without

    def _result(self, out: np.ndarray | None, shape: tuple[int, int], dtype: Any) -> np.ndarray:
        if out is None:
            return empty(self.group, shape, dtype)
        exactly("out", out, dtype, shape, True)
        return out if out.flags.c_contiguous else empty(self.group, shape, dtype)

    def get_next_low_latency_combine_buffer(self, handle: LowLatencyHandle, *, dtype: Any = None) -> np.ndarray:
        """The array, in the fabric, whose rows the next low_latency_combine(zero_copy=True) of the handle takes.

        (local experts, n * num_max, hidden) of ``dtype`` (None: bfloat16).  The same one until that combine.
        """
        with self._call("get_next_low_latency_combine_buffer"):
            if not isinstance(handle, LowLatencyHandle) or handle.state.owner is not self._rounds:
                raise InvalidArgument("handle: what low_latency_dispatch of this Buffer returned is expected")
            wanted = dtype_of(_BF16) if dtype is None else np.dtype(dtype)
            if wanted.name not in FLOATS:
                raise errors.UnsupportedType(f"dtype={wanted}: {', '.join(FLOATS)} is expected")
            state = handle.state
            if state.window is None or state.window.dtype != wanted:
                state.window = self._windows.take((*handle[0].shape, handle[3]), wanted)
            return state.window

    # ---- masks --------------------------------------------------------------------------

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Waits for all members: windows are new for each round, so nothing else has to be done.  Called by all."""
        with self._call("clean_low_latency_buffer"):
            hidden = whole("hidden", hidden, 1, 1 << 31)
            most, experts = self._room("clean_low_latency_buffer", num_max_dispatch_tokens_per_rank, hidden,
                                       num_experts)
            none = np.zeros(0, np.int64)
            asked = Asked(agreement.CLEAN, hidden, tokens=most, slots=experts)
            posted = self._rounds.post(asked, 0, [], np.zeros(self.group_size, np.int64), none, none,
                                       masking=self.enable_shrink, ours=True)
            self._rounds.run("clean_low_latency_buffer", posted, lambda: self._rounds.gather(posted), False)

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Masks a member (a number in the group), or takes its mask away: it is neither read nor waited for.

        InvalidArgument: this die itself; a Buffer without enable_shrink.
        """
        with self._call("low_latency_update_mask_buffer"):
            member = whole("rank_to_mask", rank_to_mask, 0, self.group_size - 1)
            board = self._shrinking("low_latency_update_mask_buffer")
            if member == self.rank:
                raise InvalidArgument(f"rank_to_mask={member} is this die itself; the others may mask it")
            masks = board.mask
            masks[member] = bool(mask)
            board.mask = masks

    def low_latency_query_mask_buffer(self, mask_status: np.ndarray) -> None:
        """Fills int32 (n): 1 of a member that is masked, else 0."""
        board = self._shrinking("low_latency_query_mask_buffer")
        exactly("mask_status", mask_status, np.int32, (self.group_size,), True)[...] = board.mask

    def low_latency_clean_mask_buffer(self) -> None:
        """Takes all masks away."""
        board = self._shrinking("low_latency_clean_mask_buffer")
        board.mask = np.zeros(self.group_size, bool)

    def _shrinking(self, name: str) -> Any:
        if not self.enable_shrink:
            raise InvalidArgument(f"{name}: the Buffer was made without enable_shrink=True")
        return self._rounds.board

    def _costs(self, name: str, stats: Any) -> np.ndarray | None:
        """Where nanoseconds of waiting are added: (n), or this die's row of (n, n)."""
        if stats is None:
            return None
        n = self.group_size
        both = isinstance(stats, np.ndarray) and stats.ndim == 2
        found = exactly(name, stats, np.int64, (n, n) if both else (n,), True)
        return found[self.rank] if both else found

    def _hook(self, task: Task | None, wanted: bool) -> Hook | None:
        context = self.group.context

        def hook() -> None:
            if task is not None:
                task.wait(context)

        return hook if wanted else None


def _one_of(async_finish: bool, return_recv_hook: bool) -> None:
    if async_finish and return_recv_hook:
        raise InvalidArgument("async_finish and return_recv_hook: one of them, or none, is expected")


_BF16, _FP8 = EXTENDED["bfloat16"], EXTENDED["float8_e4m3fn"]
