"""How dies play a case of strata.moe: all its rounds in flight at once, waited for in an order of each die's own."""

from __future__ import annotations

import moe_play as play
import moe_reference as ref
import numpy as np
from moe_play import Case, Round

import strata
from strata import moe

QUANT = {"": {"use_fp8": False}, "fp8": {}, "fp8r": {"round_scale": True},
         "ue8m0": {"round_scale": True, "use_ue8m0": True}, "int8": {"use_fp8": False, "use_int8": True}}  # fmt: skip


def placed(x: np.ndarray, layout: str) -> np.ndarray:
    """An array like x that lies elsewhere, and otherwise."""
    if layout == "fabric":
        made = strata.empty(x.shape, x.dtype)
    elif layout == "numpy":
        made = np.empty_like(x)
    elif layout == "strided":
        made = strata.zeros((len(x), 2, *x.shape[1:]), x.dtype)[:, 1]
    else:
        made = np.empty((*x.shape[:-1], 3 * x.shape[-1] + 1), x.dtype)[..., 1::3][..., : x.shape[-1]]
    made[...] = x
    return made


def buffer_of(group, case: Case) -> moe.Buffer:
    """One with room for all rounds."""
    size, hint = 0, moe.Buffer.get_low_latency_rdma_size_hint
    for r in case.rounds:
        if r.mode == "ll":
            size = max(size, hint(play.most(case, r), r.hidden, group.size, len(case.where.logical)))
    placement = None
    if case.placement is not None:
        placement = moe.Placement(*(np.array(part, np.int32) for part in case.placement))
    return moe.Buffer(
        group, case.kept, size, low_latency_mode=size > 0, explicitly_destroy=True, placement=placement,
        path=case.path, partition=case.partition, cores=case.cores,
    )  # fmt: skip


def play_case(group, case: Case) -> list[dict]:
    """What this member found, of each round."""
    buffer, rank = buffer_of(group, case), group.rank
    kinds = {"ht": High, "ll": Low}
    rounds = [kinds[r.mode](buffer, case, r, rank) for r in case.rounds]
    order = np.roll(np.array(case.order, int), rank)
    for one in rounds:
        one.dispatch()
    for k in order:
        rounds[k].wait()
        rounds[k].received()
    for one in rounds:
        one.combine()
    for k in order[::-1]:
        rounds[k].wait()
        rounds[k].summed()
    for one in rounds:
        one.once_more()
    for one in rounds:
        one.unchanged()
    buffer.destroy()
    return [one.found for one in rounds]


class _One:
    def __init__(self, buffer, case: Case, r: Round, rank: int) -> None:
        self.buffer, self.case, self.r, self.rank = buffer, case, r, rank
        self.found: dict = {}
        self.arrays: dict = {}
        self.later = None
        self.idx = play.routing(case, r, rank)
        self.x = placed(play.tokens(r, rank), r.layout)

    def wait(self) -> None:
        """For what was begun."""
        if self.later is not None:
            self.later()
        self.later = None

    def flags(self) -> dict:
        return {"async_finish": True} if self.r.wait != "now" else {}

    def keep(self, **arrays) -> None:
        """Copies, as they are now; and the arrays themselves."""
        self.found |= {name: np.array(array) for name, array in arrays.items()}
        self.arrays |= arrays

    def unchanged(self) -> None:
        """What a round has returned is the caller's: no later round writes there."""
        for name, array in self.arrays.items():
            assert ref.same(np.asarray(array), self.found[name]), f"{name} of a round was changed by a later one"

    def once_more(self) -> None:
        pass


class High(_One):
    """High throughput."""

    def _x(self, more=0):
        x = self.x if not more else play.tokens(self.r, self.rank, more)
        return (x, placed(play.scales(self.r, self.rank, more), self.r.layout)) if play.scaled(self.r) else x

    def dispatch(self):
        r, buffer = self.r, self.buffer
        per_rank, none, per_slot, in_rank, _ = buffer.get_dispatch_layout(self.idx, self.case.experts)
        assert none is None
        self.keep(per_rank=per_rank, per_slot=per_slot, in_rank=in_rank)
        more = {"topk_idx": self.idx} if r.give_idx else {}
        if r.give_idx and r.give_weights:
            more["topk_weights"] = play.weights(r, self.rank)
        if r.worst:
            more["num_worst_tokens"] = sum(r.tokens) + 2
        self.got, self.idx_got, self.weights_got, self.list, self.handle, event = buffer.dispatch(
            self._x(), num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_slot,
            expert_alignment=r.alignment, **more, **self.flags(),
        )  # fmt: skip
        if r.wait != "now":
            self.later = event.current_stream_wait

    def received(self):
        r = self.r
        self.found["per_slot_list"] = self.list
        prefix, src = self.handle[0], self.handle[3]
        self.rows = int(prefix[-1, self.rank])
        x = self.got[0] if play.scaled(r) else self.got
        self.keep(x=x[: self.rows], prefix=prefix, src=src[: self.rows])
        if r.worst:
            assert len(x) == sum(r.tokens) + 2
        else:
            assert len(x) == self.rows
        if play.scaled(r):
            self.keep(scales=self.got[1][: self.rows])
        if r.give_idx:
            self.keep(idx=self.idx_got[: self.rows])
            assert (self.idx_got[self.rows :] == -1).all()
            if r.give_weights:
                self.keep(weights=self.weights_got[: self.rows])
        else:
            assert self.idx_got is None and self.weights_got is None

    def combine(self):
        r = self.r
        room = len(self.handle[3])  # of which the first rows are filled
        y = placed(np.resize(play.results(r, self.rows, self.rank), (room, r.hidden)), r.layout)
        biases = play.bias(r, self.rank)
        more = {"bias": tuple(biases) if len(biases) == 2 else biases[0]} if biases else {}
        if r.combine_weights:
            rng = np.random.default_rng((r.salt, self.rank, 3))
            back = rng.normal(size=(self.rows, r.topk)).astype(np.float32)
            more["topk_weights"] = np.resize(back, (room, r.topk))
        self.sums, self.weight_sums, event = self.buffer.combine(y, self.handle, **more, **self.flags())
        if r.wait != "now":
            self.later = event.current_stream_wait

    def summed(self):
        self.keep(combined=self.sums)
        if self.r.combine_weights:
            self.keep(combined_weights=self.weight_sums)
        else:
            assert self.weight_sums is None

    def once_more(self):
        if not self.r.cached:
            return
        again, *nones, event = self.buffer.dispatch(self._x(7), handle=self.handle, **self.flags())
        if self.r.wait != "now":
            event.current_stream_wait()
        assert nones == [None] * 4
        self.keep(again=(again[0] if play.scaled(self.r) else again)[: self.rows])


class Low(_One):
    """Low latency."""

    def flags(self):
        return {"now": {}, "event": {"async_finish": True}, "hook": {"return_recv_hook": True}}[self.r.wait]

    def _later(self, event, hook):
        self.later = {"now": None, "event": event and event.current_stream_wait, "hook": hook}[self.r.wait]

    def dispatch(self):
        r = self.r
        self.got, self.count, self.handle, event, hook = self.buffer.low_latency_dispatch(
            self.x, self.idx, play.most(self.case, r), self.case.experts, **QUANT[r.quant], **self.flags()
        )
        self._later(event, hook)

    def received(self):
        self.keep(count=self.count)
        x, scales = self.got if self.r.quant else (self.got, None)
        n = len(self.case.members)
        assert x.shape == (len(self.count), play.most(self.case, self.r) * n, self.r.hidden)
        for nth, count in enumerate(self.count):
            self.keep(**{f"x{nth}": x[nth, :count], f"src{nth}": self.handle[0][nth, :count],
                         f"range{nth}": self.handle[1][nth]})  # fmt: skip
            if scales is not None:
                self.keep(**{f"scales{nth}": scales[nth, :count]})

    def combine(self):
        r, slots, rows = self.r, len(self.count), play.most(self.case, self.r) * len(self.case.members)
        y = play.results(r, slots * rows, self.rank).reshape(slots, rows, r.hidden)
        more = {}
        if r.zero_copy:
            self.buffer.get_next_low_latency_combine_buffer(self.handle, dtype=y.dtype)[...] = y
            more["zero_copy"] = True
        if r.give_out:
            more["out"] = placed(np.zeros((r.tokens[self.rank], r.hidden), play.combined(r)), r.layout)
        self.sums, event, hook = self.buffer.low_latency_combine(
            placed(y, r.layout) if not r.zero_copy else y, self.idx, play.weights(r, self.rank), self.handle,
            **more, **self.flags(),
        )  # fmt: skip
        assert not r.give_out or self.sums is more["out"]
        self._later(event, hook)

    def summed(self):
        self.keep(combined=self.sums)


def differences(case: Case, found: list[list[dict]]) -> list[str]:
    return play.differences(case, found, play.expected(case))


__all__ = ["buffer_of", "differences", "placed", "play_case", "ref"]
