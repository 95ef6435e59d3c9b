"""What DeepEP's own tests ask of a Buffer, asked of strata.moe.Buffer: its formulas and its calls, on numpy arrays."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from moe_reference import BF16, back, fp8, ue8m0

import strata
from strata import errors, moe

SEED = 20261130
LOW = 0xFFFFFFFF  # the count in a layout range


def difference(x, y):
    """1 - similarity, of which DeepEP gives bounds."""
    x, y = np.asarray(x, np.float64) + 1, np.asarray(y, np.float64) + 1
    norm = (x * x + y * y).sum()
    return 1 - 2 * (x * y).sum() / norm if norm else 0.0


def plain(received):
    """Rows as numbers: of a pair, cast back."""
    if not isinstance(received, tuple):
        return received
    q, scales = (a.reshape(-1, a.shape[-1]) for a in received)
    return back(q, scales).reshape(received[0].shape)


def choices(rng, tokens, experts, topk):
    return np.argsort(-rng.random((tokens, experts)), axis=1)[:, :topk].astype(moe.topk_idx_t)


def total(group, a):
    return group.all_reduce(strata.array(a))


# ---- high throughput: tests/test_intranode.py ------------------------------------------------


class HighThroughput:
    """One rank's data, and what the original looks at."""

    def __init__(self, group, tokens, hidden, topk, experts):
        n, me = group.size, group.rank
        rng = np.random.default_rng([SEED, me])
        self.group, self.experts, self.tokens = group, experts, tokens
        self.constant = np.full((tokens, hidden), me, BF16)
        self.random = rng.standard_normal((tokens, hidden)).astype(BF16)
        self.cast = fp8(self.constant)
        self.cast = (self.cast[0], np.asfortranarray(self.cast[1]))  # as the original has scales
        self.topk_idx = choices(rng, tokens, experts, topk)
        self.weights = np.full((tokens, topk), me, np.float32)
        self.random_weights = rng.standard_normal((tokens, topk)).astype(np.float32)
        die = self.topk_idx // (experts // n)
        self.in_rank = (die[:, :, None] == np.arange(n)).any(axis=1)
        self.per_rank = self.in_rank.sum(axis=0, dtype=np.int32)
        self.per_expert = np.bincount(self.topk_idx.ravel(), minlength=experts).astype(np.int32)
        self.all_per_rank, self.all_per_expert = total(group, self.per_rank), total(group, self.per_expert)
        self.buffer = moe.Buffer(group, int(2e9), explicitly_destroy=True)
        self.config = moe.Config(24, 8, 256)

    def layout(self):
        per_rank, per_rdma, per_expert, in_rank, event = self.buffer.get_dispatch_layout(self.topk_idx, self.experts)
        event.current_stream_wait()
        assert per_rdma is None and per_rank.dtype == per_expert.dtype == np.int32 and in_rank.dtype == bool
        assert (per_rank == self.per_rank).all() and (per_expert == self.per_expert).all()
        assert (in_rank == self.in_rank).all()

    def from_sources(self, rows, prefix):
        """Rows of constants come from the sources that the prefix matrix says."""
        begin = 0
        for source in range(self.group.size):
            end = prefix[source][self.group.rank]
            assert (rows[begin:end].astype(np.float32) == source).all()
            begin = end
        assert begin == len(rows)

    def turn(self, previous, later, x, with_topk):
        """Dispatch, the same with a worst number, or with the handle, and combine."""
        n, me = self.group.size, self.group.rank
        random = x is self.random
        common = {"config": self.config, "async_finish": later}

        def call(method, **more):
            if previous:
                more["previous_event"] = self.buffer.capture()
            *result, event = method(**common, **more)
            if later:
                event.current_stream_wait()
            return result

        asked = {"x": x, "num_tokens_per_rank": self.per_rank, "is_token_in_rank": self.in_rank,
                 "num_tokens_per_expert": self.per_expert}  # fmt: skip
        if with_topk:
            asked |= {"topk_idx": self.topk_idx, "topk_weights": self.random_weights if random else self.weights}
        got, idx, weights, counts, handle = call(self.buffer.dispatch, **asked)
        rows = plain(got)
        assert len(rows) == self.all_per_rank[me]
        assert counts == self.all_per_expert.reshape(n, -1)[me].tolist()
        if not random:
            self.from_sources(rows, handle[0])
        if with_topk:
            assert ((idx == -1) | ((idx >= 0) & (idx < self.experts // n))).all()
            assert [int((idx == i).sum()) for i in range(len(counts))] == counts
            sent = weights.copy()
            if not random:
                most = np.broadcast_to(weights.max(axis=1, keepdims=True), weights.shape)
                weights[idx == -1] = most[idx == -1]
                self.from_sources(weights, handle[0])
            worst = self.tokens * n
            more, more_idx, more_weights, empty, _ = call(self.buffer.dispatch, num_worst_tokens=worst, **asked)
            more = plain(more)
            assert empty == [] and len(more) == len(more_idx) == len(more_weights) == worst
            assert (more[: len(rows)] == rows).all() and (more_idx[: len(rows)] == idx).all()
            assert (more_weights[: len(rows)] == sent).all() and (more_idx[len(rows) :] == -1).all()
        else:
            again, *nothing = call(self.buffer.dispatch, x=x, handle=handle)
            assert nothing == [None] * 4 and (plain(again) == rows).all()
        sums, sums_of_weights = call(self.buffer.combine, x=rows, handle=handle,
                                     topk_weights=weights if with_topk else None)  # fmt: skip
        copies = self.in_rank.sum(axis=1, keepdims=True)
        assert difference(sums.astype(np.float32) / copies, self.random if random else self.constant) < 5e-6
        if with_topk:
            assert difference(sums_of_weights / (1 if random else copies),
                              self.random_weights if random else self.weights) < 1e-9  # fmt: skip


def intranode(group, *sizes):
    play = HighThroughput(group, *sizes)
    play.layout()
    for previous, later, with_topk in itertools.product((False, True), repeat=3):
        for x in (play.random, play.constant, play.cast):
            play.turn(previous, later, x, with_topk)
    handle = play.buffer.dispatch(play.constant, num_tokens_per_rank=play.per_rank, is_token_in_rank=play.in_rank,
                                  num_tokens_per_expert=play.per_expert)[4]  # fmt: skip
    moe.Buffer.set_num_sms(24)
    try:
        for config in (moe.Config(24, 4, 256), moe.Config(24, 32, 256), moe.Buffer.get_dispatch_config(group.size)):
            rows = play.buffer.dispatch(play.constant, handle=handle, config=config)[0]
            play.from_sources(rows, handle[0])
            play.buffer.combine(rows, handle, config=config)
    finally:
        moe.Buffer.set_num_sms(20)
    play.buffer.destroy()


@pytest.mark.parametrize("sizes", [(70, 256, 4, 16)], ids=str)
def test_intranode(four, sizes):
    four.run(intranode, *sizes)


# ---- low latency: tests/test_low_latency.py ----------------------------------------------------

OFFSET = 128  # of constants, which must be whole numbers in bfloat16


class Failures:
    """Ranks that leave at their first dispatch, combine or clean, and who knows of it."""

    AT = {"dispatch": 1, "combine": 3, "clean": 2}

    def __init__(self, group, buffer):
        self.rank, self.buffer, self.masked = group.rank, buffer, set()
        self.status = np.zeros(group.size, np.int32)

    def leaves(self, api):
        if self.rank in self.masked:
            return True
        self.masked.add(self.AT[api])
        return self.AT[api] == self.rank

    def check(self):
        self.buffer.low_latency_query_mask_buffer(self.status)
        assert set(np.flatnonzero(self.status).tolist()) == self.masked


class LowLatency:
    def __init__(self, group, tokens, hidden, experts, topk, buffer, seed):
        n, me = group.size, group.rank
        rng = np.random.default_rng([seed, me])
        self.group, self.buffer, self.sizes = group, buffer, (tokens, hidden, experts)
        self.constant = np.full((tokens, hidden), me - OFFSET, BF16)
        self.constant[:, -128:] = np.arange(tokens).astype(BF16)[:, None]
        self.random = (rng.standard_normal((tokens, hidden)) * 0.1).astype(BF16)
        self.topk_idx = choices(rng, tokens, experts, topk)
        self.weights = np.abs(rng.standard_normal((tokens, topk))).astype(np.float32)
        for _ in range(10):
            self.topk_idx[rng.integers(tokens), rng.integers(topk)] = -1
        self.every = group.all_gather(strata.array(self.topk_idx))
        self.mine = experts // n * me + np.arange(experts // n)
        self.hash, self.times = 0, 0

    def note(self, a):
        self.hash ^= hash(np.ascontiguousarray(a).tobytes())

    def dispatch(self, x, hook, casts):
        tokens, _, experts = self.sizes
        self.times += 1
        for _ in range(self.times % 2 + 1):
            stats = np.zeros(len(self.mine), np.int32)
            got, count, handle, event, wait = self.buffer.low_latency_dispatch(
                x, self.topk_idx, tokens, experts, cumulative_local_expert_recv_stats=stats, async_finish=not hook,
                return_recv_hook=hook, **casts,
            )  # fmt: skip
            wait() if hook else event.current_stream_wait()
        assert (stats == count).all()
        return got, count, handle

    def check(self, x, got, count, handle, casts, masked):
        tokens = self.sizes[0]
        rows = plain(got)
        for i, expert in enumerate(self.mine):
            ranges, number = handle[1][i], int(count[i])
            here = (self.every == expert).sum(axis=(1, 2))
            here[masked] = 0
            assert number == (ranges & LOW).sum() == here.sum()
            for a in got if isinstance(got, tuple) else (got,):
                self.note(a[i, :number])
            if not number or x is not self.constant:
                continue
            mine, source = rows[i, :number].astype(np.float32), handle[0][i, :number, None]
            first = mine[:, :-128].min(axis=1)
            assert (first == mine[:, :-128].max(axis=1)).all()
            if casts.get("round_scale"):
                assert difference(mine[:, -1:], source) < 0.007
                continue
            assert (mine[:, -128:] == source % tokens).all()
            for rank, place in enumerate(ranges):
                begin, size = int(place) >> 32, int(place) & LOW
                assert (first == rank - OFFSET).sum() == here[rank]
                assert (first[begin : begin + size] == rank - OFFSET).all()

    def combine(self, x, y, handle, hook, zero_copy, casts, masked):
        experts = self.sizes[2]
        if zero_copy:
            self.buffer.get_next_low_latency_combine_buffer(handle)[...] = y
        out = np.empty(x.shape, BF16)
        sums, event, wait = self.buffer.low_latency_combine(y, self.topk_idx, self.weights, handle, out=out,
                                                            zero_copy=zero_copy, async_finish=not hook,
                                                            return_recv_hook=hook)  # fmt: skip
        wait() if hook else event.current_stream_wait()
        assert sums is out and not np.isnan(sums.astype(np.float32)).any()
        if masked is not None:
            gone = masked()[self.topk_idx // (experts // self.group.size)] & (self.topk_idx >= 0)
            self.topk_idx[gone] = -1
        weights = np.where(self.topk_idx == -1, 0, self.weights).sum(axis=1, keepdims=True)
        if not casts.get("round_scale"):
            assert difference(x.astype(np.float32) * weights, sums) < (9e-4 if casts["use_fp8"] else 1e-5)
        self.note(sums)

    def clean(self):
        self.buffer.clean_low_latency_buffer(*self.sizes)


CASTS = [{"use_fp8": False}, {"use_fp8": True}, {"use_fp8": True, "round_scale": True},
         {"use_fp8": True, "round_scale": True, "use_ue8m0": True}]  # fmt: skip


def low_latency_rounds(group, buffer, sizes, seed, failures=None):
    play = LowLatency(group, *sizes, buffer, seed)
    masked = failures.status.astype(bool) if failures else np.zeros(group.size, bool)
    for x, hook, casts in itertools.product((play.constant, play.random), (False, True), CASTS):
        if failures and failures.leaves("dispatch"):
            break
        got, count, handle = play.dispatch(x, hook, casts)
        if failures:
            failures.check()
            masked = failures.status.astype(bool)
        play.check(x, got, count, handle, casts, masked)
        if failures and failures.leaves("combine"):
            break
        for zero_copy in (False, True):
            def gone():
                failures.check()
                return failures.status.astype(bool)

            play.combine(x, plain(got), handle, hook, zero_copy, casts, gone if failures else None)
        if failures:
            if failures.leaves("clean"):
                break
            play.clean()
            failures.check()
    return play.hash


def low_latency(group, sizes, shrinks=False):
    tokens, hidden, experts, _ = sizes
    n = group.size
    buffer = moe.Buffer(
        group, num_rdma_bytes=moe.Buffer.get_low_latency_rdma_size_hint(tokens, hidden, n, experts),
        low_latency_mode=True, num_qps_per_rank=experts // n, explicitly_destroy=True, enable_shrink=shrinks,
        timeout=1.0 if shrinks else None,
    )  # fmt: skip
    if shrinks:
        low_latency_rounds(group, buffer, sizes, 1, Failures(group, buffer))
    else:
        first = low_latency_rounds(group, buffer, sizes, 1)
        assert low_latency_rounds(group, buffer, sizes, 1) == first  # the same bits
    buffer.destroy()


@pytest.mark.parametrize("sizes", [(24, 512, 16, 4)], ids=str)
def test_low_latency(four, sizes):
    four.run(low_latency, sizes)


def test_low_latency_with_ranks_that_leave(four):
    four.run(low_latency, (12, 512, 8, 3), True)


# ---- both on one Buffer, and what the original cannot -------------------------------------------


def compatible(group):
    """Both modes by turns."""
    tokens, hidden, experts, topk = 16, 512, 8, 3
    n = group.size
    need = moe.Buffer.get_low_latency_rdma_size_hint(tokens, hidden, n, experts)
    buffer = moe.Buffer(group, 0, need, low_latency_mode=True)
    rng = np.random.default_rng([SEED, group.rank])
    x, topk_idx = rng.standard_normal((tokens, hidden)).astype(BF16), choices(rng, tokens, experts, topk)
    for _ in range(3):
        per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, experts)
        rows, *_, handle, _ = buffer.dispatch(x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank,
                                              num_tokens_per_expert=per_expert)  # fmt: skip
        sums = buffer.combine(rows, handle)[0]
        assert difference(sums.astype(np.float32) / in_rank.sum(axis=1, keepdims=True), x) < 5e-6
        buffer.clean_low_latency_buffer(tokens, hidden, experts)
        got, _, handle, _, _ = buffer.low_latency_dispatch(x, topk_idx, tokens, experts, use_fp8=True)
        sums = buffer.low_latency_combine(plain(got), topk_idx, np.ones((tokens, topk), np.float32), handle)[0]
        assert difference(sums, x.astype(np.float32) * topk) < 9e-4
    with pytest.raises(errors.InvalidArgument, match="logfmt"):
        buffer.low_latency_combine(plain(got), topk_idx, np.ones((tokens, topk), np.float32), handle, use_logfmt=True)


def test_both_modes_on_one_buffer(trio):
    trio.run(compatible)


def test_exponents_are_packed_as_the_reference_does():
    x = np.random.default_rng(SEED).standard_normal((5, 1024)).astype(ml_dtypes.bfloat16)
    q, scales = fp8(x, True)
    assert np.array_equal(back(q, ue8m0(scales)), back(q, scales))
