"""A Buffer of strata.moe beside its data: agreement, refusals, order and events."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from moe_buffers import HIDDEN, TOKENS, E, data, layout, low, there_and_back
from moe_reference import BF16

import strata
from strata import config, errors, moe

# ---- wrong arguments: one member's affair -----------------------------------------------------


def refuses(group):
    """Each is refused by rank 0 alone; the others call the right thing, and wait for it."""
    buffer = low(group)
    x, idx, weights = data(group)
    at = layout(buffer, idx)
    rows, *_, handle, _ = buffer.dispatch(x, **at)
    got, _, lows, _, _ = buffer.low_latency_dispatch(x, idx, TOKENS, E, use_fp8=False)
    foreign = low(group).dispatch(x, **at)[4]
    wide = np.zeros((TOKENS, HIDDEN * 2), BF16)
    ask = buffer.dispatch
    send, back = buffer.low_latency_dispatch, buffer.low_latency_combine
    wrong = [
        (TypeError, "numpy array", lambda: ask([1], **at)),
        (TypeError, "int32", lambda: ask(x.astype("i4"), **at)),
        (ValueError, "two dimensions", lambda: ask(x[0], **at)),
        (ValueError, "scales|shape", lambda: ask((x.astype("f4").astype("i1"), np.ones((TOKENS, 2), "f4")), **at)),
        (ValueError, "layout", lambda: ask(x)),
        (ValueError, "is_token_in_rank", lambda: ask(x[:2], **at)),
        (ValueError, "adds up", lambda: ask(x, **{**at, "num_tokens_per_rank": at["num_tokens_per_rank"] + 1})),
        (ValueError, "not what", lambda: ask(x, **at, topk_idx=(idx + 1) % E)),
        (ValueError, "expert", lambda: ask(x, **at, topk_idx=idx + E)),
        (TypeError, "int64", lambda: ask(x, **at, topk_idx=idx.astype("i4"))),
        (ValueError, "without topk_idx", lambda: ask(x, **at, topk_weights=weights)),
        (ValueError, "rdma", lambda: ask(x, **at, num_tokens_per_rdma_rank=at["num_tokens_per_rank"])),
        (ValueError, "comm_stream", lambda: ask(x, **at, allocate_on_comm_stream=True)),
        (TypeError, "EventOverlap", lambda: ask(x, **at, previous_event=3)),
        (TypeError, "Config", lambda: ask(x, **at, config=(20, 6, 256))),
        (ValueError, "x alone", lambda: ask(x, handle, **at)),
        (ValueError, "another Buffer", lambda: ask(x, foreign)),
        (TypeError, "handle", lambda: ask(x, tuple(handle))),
        (ValueError, "tokens", lambda: ask(x[:1], handle)),
        (ValueError, "rows", lambda: buffer.combine(np.zeros((len(rows) + 1, HIDDEN), BF16), handle)),
        (ValueError, "bias", lambda: buffer.combine(rows, handle, bias=wide)),
        (ValueError, "tuple of 3", lambda: buffer.combine(rows, handle, bias=(x, x, x))),
        (ValueError, "call dispatch", lambda: buffer.internode_dispatch(x)),
        (ValueError, "call combine", lambda: buffer.internode_combine(x, handle)),
        (ValueError, "no stream", buffer.get_comm_stream),
        (ValueError, "no buffer", lambda: buffer.get_local_buffer_tensor(np.float32)),
        (ValueError, "explicitly_destroy", buffer.destroy),
        (ValueError, "tokens", lambda: send(np.zeros((TOKENS + 1, HIDDEN), BF16), idx, TOKENS, E)),
        (moe.BufferTooSmall, "are needed", lambda: send(wide, idx, TOKENS, E)),
        (ValueError, "round_scale", lambda: send(x, idx, TOKENS, E, use_ue8m0=True)),
        (ValueError, "multiple", lambda: send(x, idx, TOKENS, E, use_ue8m0=True, round_scale=True)),
        (ValueError, "use_fp8=True", lambda: send(x, idx, TOKENS, E, use_fp8=False, round_scale=True)),
        (ValueError, "use_int8", lambda: send(x, idx, TOKENS, E, use_int8=True)),
        (ValueError, "one of them", lambda: send(x, idx, TOKENS, E, async_finish=True, return_recv_hook=True)),
        (ValueError, "stats", lambda: send(x, idx, TOKENS, E, np.zeros(99, "i4"))),
        (ValueError, "logfmt", lambda: back(got, idx, weights, lows, use_logfmt=True)),
        (ValueError, "next_low_latency", lambda: back(got, idx, weights, lows, zero_copy=True)),
        (ValueError, "choices of the dispatch", lambda: back(got, (idx + 1) % E, weights, lows)),
        (ValueError, "handle", lambda: back(got, idx, weights, handle)),
        (ValueError, "out", lambda: back(got, idx, weights, lows, out=wide)),
        (TypeError, "float32", lambda: back(got, idx, weights.astype("f8"), lows)),
        (ValueError, "enable_shrink", lambda: buffer.low_latency_update_mask_buffer(0, True)),
        (ValueError, "path sdma", lambda: low(group, path="mte", allow_nvlink_for_low_latency_mode=False)),
        (ValueError, "path", lambda: low(group, path="pcie")),
        (ValueError, "mpi4py", lambda: moe.Buffer(comm=3)),
        (TypeError, "strata.Group", lambda: moe.Buffer(3)),
        (ValueError, "placement", lambda: moe.Buffer(group, placement=moe.Placement.default(4, group.size + 1))),
        (ValueError, "timeout", lambda: moe.Buffer(group, timeout=0)),
        (ValueError, "num_qps", lambda: moe.Buffer(group, num_qps_per_rank=0)),
        (ValueError, "even", lambda: moe.Buffer.set_num_sms(3)),
        (ValueError, "is needed", lambda: moe.Config(20, 6, 6)),
    ]  # fmt: skip
    if group.rank == 0:
        for k, (kind, text, call) in enumerate(wrong):
            with pytest.raises(kind, match=text):
                call()
                raise AssertionError(f"number {k} ({text}) was accepted")
    return there_and_back(group, buffer)


def test_wrong_arguments_leave_all_in_step(trio):
    trio.run(refuses)


def usual_mistakes(group):
    """Arrays and tuples in the wrong place are told what belongs there."""
    buffer = low(group)
    x, idx, weights = data(group)
    at = layout(buffer, idx)
    got, _, lows, _, _ = buffer.low_latency_dispatch(x, idx, TOKENS, E, use_fp8=False)
    ask, send, back = buffer.dispatch, buffer.low_latency_dispatch, buffer.low_latency_combine
    wrong = [
        (TypeError, "without scales", lambda: ask(np.zeros(x.shape, "i1"), **at)),
        (TypeError, "itself casts it", lambda: send((x, x), idx, TOKENS, E)),
        (TypeError, "not tuple", lambda: back((got, got), idx, weights, lows)),
        (ValueError, "as recv_x has", lambda: back(x, idx, weights, lows)),
        (ValueError, "1 to 1048576", lambda: buffer.get_dispatch_layout(idx, 1 << 40)),
    ]  # fmt: skip
    for kind, text, call in wrong:
        with pytest.raises(kind, match=text):
            call()
    return there_and_back(group, buffer)


def test_usual_mistakes_are_told_what_is_expected(pair):
    pair.run(usual_mistakes)


def disagree(group):
    """All get the same error, and the Buffer goes on."""
    me, buffer, texts = group.rank, low(group), []
    x, idx, weights = data(group)
    at = layout(buffer, idx)
    rows, *_, handle, _ = buffer.dispatch(x, **at)
    again = buffer.dispatch(x, **at)[4]
    odd = me == group.size - 1
    for call in (
        lambda: buffer.dispatch(x.astype("f4") if odd else x, **at),
        lambda: buffer.dispatch(x, **at, **({"topk_idx": idx} if odd else {})),
        lambda: buffer.dispatch(x, handle if odd else again),
        lambda: buffer.combine(rows, handle) if odd else buffer.dispatch(x, **at),
        lambda: buffer.low_latency_dispatch(x, idx, TOKENS, E, use_fp8=odd),
        lambda: buffer.low_latency_dispatch(x, idx, TOKENS, E, return_recv_hook=True, round_scale=odd)[4](),
    ):
        with pytest.raises(errors.CollectiveMismatch, match="asked for different") as caught:
            call()
        assert set(caught.value.ranks) == set(group.ranks)
        texts.append(str(caught.value))
    there_and_back(group, buffer)
    return texts


@pytest.mark.reports("mismatch")
def test_disagreement_is_everybodys(trio):
    said = trio.run(disagree)
    assert said[0] == said[1] == said[2]
    assert "float32" in said[0][0] and "bfloat16" in said[0][0] and "rank 2" in said[0][0]


def different_buffers(group):
    with pytest.raises(errors.CollectiveMismatch, match="num_rdma_bytes is 0 on rank 0, 1 on rank 1") as caught:
        moe.Buffer(group, num_rdma_bytes=group.rank)
    there_and_back(group, moe.Buffer(group))
    return str(caught.value)


def test_different_buffers(pair):
    said = pair.run(different_buffers)
    assert said[0] == said[1]


def worst(group):
    """Rank 0 makes too little room, and all are told before anything moves."""
    buffer = moe.Buffer(group)
    x, idx, weights = data(group)
    idx[...] = 0
    n = group.size
    at = layout(buffer, idx)
    room = TOKENS * n - 1 if group.rank == 0 else 1
    text = f"rank 0 receives {TOKENS * n} rows.*{TOKENS * n} are needed"
    with pytest.raises(moe.BufferTooSmall, match=text) as caught:
        buffer.dispatch(x, **at, topk_idx=idx, num_worst_tokens=room)
    rows, got, w, counts, handle, _ = buffer.dispatch(x, **at, topk_idx=idx, topk_weights=weights,
                                                      num_worst_tokens=TOKENS * n + 3)  # fmt: skip
    assert counts == [] and len(rows) == len(got) == len(w) == TOKENS * n + 3 == len(handle[3])
    came = TOKENS * n if group.rank == 0 else 0
    assert (got[came:] == -1).all() and (w[came:] == 0).all() and (handle[3][came:] == -1).all()
    assert (got[:came] == 0).all() and (handle[3][:came] == np.tile(np.arange(TOKENS), n)[:came]).all()
    assert (buffer.combine(rows, handle)[0] == x).all()
    return str(caught.value)


def test_too_few_worst_tokens_are_refused_on_all(trio):
    assert len(set(trio.run(worst))) == 1


def alone(group):
    """Rank 1 does not come, and who waits is told what for."""
    buffer = moe.Buffer(group, timeout=0.3)
    x, idx, _ = data(group)
    at = layout(buffer, idx)
    if group.rank == 0:
        with pytest.raises(errors.CollectiveTimeout, match=r"rank 1 did not call dispatch within 0.3 s") as caught:
            buffer.dispatch(x, **at)
        assert caught.value.ranks == (1,)
    group.barrier()
    return True


def test_who_is_late_and_for_what(pair):
    assert pair.run(alone) == [True] * 2


def hint_of_slots(group):
    """What is said to be needed is what the hint says, with the numbers in the text."""
    placement = moe.balance(np.ones(E), E + group.size, group.size)
    buffer = moe.Buffer(group, low_latency_mode=True, placement=placement, enable_shrink=True)
    x, idx, _ = data(group)
    with pytest.raises(moe.BufferTooSmall, match=f"the placement's {placement.slots} slots") as caught:
        buffer.low_latency_dispatch(x, idx, TOKENS, E)
    needed, call = re.search(r"(\d+) are needed, as Buffer\.(\w+\([\d, ]+\))", str(caught.value)).groups()
    assert eval(f"moe.Buffer.{call}") == int(needed)
    with pytest.raises(errors.InvalidArgument, match="this die itself"):
        buffer.low_latency_update_mask_buffer(group.rank, True)
    return True


def test_what_is_said_to_be_needed_is_the_hint(pair):
    assert pair.run(hint_of_slots) == [True] * 2


# ---- rounds in flight -------------------------------------------------------------------------


def in_flight(group):
    """Rank 0 begins nine rounds while the other does nothing: the ninth waits, as long as it may."""
    buffer = low(group, timeout=0.5)
    x, idx, _ = data(group)
    if group.rank == 0:
        for _ in range(8):
            buffer.low_latency_dispatch(x, idx, TOKENS, E, use_fp8=False, return_recv_hook=True)
        with pytest.raises((errors.CollectiveTimeout, errors.GroupBroken), match="rank 1"):
            buffer.low_latency_dispatch(x, idx, TOKENS, E, use_fp8=False, return_recv_hook=True)
    group.barrier()
    return True


def many_hooks(group):
    buffer, rng = low(group), np.random.default_rng(group.rank)
    made = []
    for seed in range(8):
        x, idx, weights = data(group, seed)
        round = buffer.low_latency_dispatch(x, idx, TOKENS, E, use_fp8=False, return_recv_hook=True)
        made.append((x, idx, weights, round))
    for k in rng.permutation(8):
        x, idx, weights, (got, _, handle, _, hook) = made[k]
        hook()
        hook()
        made[k] = x, buffer, idx, weights, got, handle
    out = []
    for x, _, idx, weights, got, handle in made:
        sums, _, hook = buffer.low_latency_combine(got, idx, weights, handle, return_recv_hook=True)
        out.append((x, sums, hook))
    for x, sums, hook in reversed(out):
        hook()
        assert np.allclose(sums.astype("f4"), x.astype("f4"), rtol=0.02)
    return there_and_back(group, buffer)


def test_hooks_in_any_order(trio):
    trio.run(many_hooks)


@pytest.mark.filterwarnings("ignore:.*nobody waited for it")
def test_the_ninth_round_waits(pair):
    pair.run(in_flight)


def events(group):
    """Events, and what is done around them."""
    buffer = moe.Buffer(group)
    x, idx, _ = data(group)
    at, seen = layout(buffer, idx), []
    before = buffer.capture()
    assert before.event.query()
    before.register_hook_after_wait(lambda: seen.append("before"))
    rows, *_, handle, event = buffer.dispatch(x, **at, previous_event=before, async_finish=True,
                                              allocate_on_comm_stream=True)  # fmt: skip
    assert seen == ["before"]
    event.register_hook_after_wait(lambda: seen.append("after"))
    with pytest.raises(errors.InvalidArgument, match="already"):
        event.register_hook_after_wait(print)
    sums, _, last = buffer.combine(rows, handle, async_finish=True, previous_event=event)
    assert seen == ["before", "after"]
    with last(release_handle=True):
        pass
    assert last.event is None
    with pytest.raises(errors.InvalidArgument, match="no event"):
        last.current_stream_wait()
    assert np.allclose(sums.astype("f4"), handle[4].sum(axis=1)[:, None] * x.astype("f4"), rtol=0.02)
    with strata.Stream() as s, strata.stream(s):
        late = buffer.capture()
        with pytest.raises(errors.InvalidArgument, match="stream"):
            buffer.dispatch(x, **at)
    with pytest.raises(errors.InvalidArgument, match="capture"), strata.capture():
        buffer.combine(rows, handle)
    buffer.combine(rows, handle, previous_event=late)
    return True


def test_events(pair):
    pair.run(events)


def by_engine(group, more, moves):
    """Whether the DMA engine moves the rows."""
    before = strata.stats()["sdma"]["bytes"]
    there_and_back(group, low(group, **more))
    assert (strata.stats()["sdma"]["bytes"] - before >= TOKENS * HIDDEN * 2) == moves
    return True


@pytest.mark.parametrize(("more", "moves"), [
    ({}, False), ({"path": "sdma"}, True), ({"path": "sdma", "cores": 4, "num_qps_per_rank": 2}, True),
    ({"allow_nvlink_for_low_latency_mode": False}, True),
], ids=str)
def test_the_path_is_taken(trio, more, moves):
    trio.run(by_engine, more, moves)


def statistics(group):
    n, me = group.size, group.rank
    buffer = low(group)
    x, idx, weights = data(group)
    costs, every = np.zeros(n, np.int64), np.zeros((n, n), np.int64)
    local = len(np.array_split(np.arange(E), n)[me])
    stats = np.ones(local, np.int32)
    for _ in range(2):
        got, count, handle, _, _ = buffer.low_latency_dispatch(x, idx, TOKENS, E, stats, costs, use_fp8=False)
        buffer.low_latency_combine(got, idx, weights, handle, combine_wait_recv_cost_stats=every)
    assert (stats == 1 + 2 * count).all()
    assert (costs >= 0).all() and (every >= 0).all() and (np.delete(every, me, axis=0) == 0).all()
    return True


def test_statistics(trio):
    trio.run(statistics)


# ---- what is fixed elsewhere ------------------------------------------------------------------


@pytest.mark.unchecked("a job is checked or timed, not both")
def test_the_clock_is_refused(monkeypatch):
    monkeypatch.setenv("STRATA_CLOCK", "cm384")
    config.reset()
    try:
        with pytest.raises(errors.InvalidArgument, match="clock"):
            moe.Buffer()
    finally:
        monkeypatch.undo()
        config.reset()


def test_sizes():
    hint = moe.Buffer.get_low_latency_rdma_size_hint
    assert hint(128, 7168, 8, 256) >= 2 * 32 * 8 * 128 * 7168 * 2 and hint(1, 1, 3, 2) % 128 == 0
    assert moe.Config(20, 6, 256, 6, 128).get_rdma_buffer_size_hint(14336, 8) == 0
    assert moe.Config() == moe.Config(20, 6, 256, 6, 256)
    need = moe.Config(20, 6, 256).get_nvl_buffer_size_hint(128, 2)
    strata.testing.pool(2).run(small, need)


def small(group, need):
    x, idx, _ = data(group)
    for nbytes in (need - 1, need):
        buffer = moe.Buffer(group, nbytes)
        at = layout(buffer, idx)
        if nbytes < need:
            with pytest.raises(moe.BufferTooSmall, match=f"{need} are needed"):
                buffer.dispatch(x, **at, config=moe.Config(20, 6, 256))
        else:
            buffer.dispatch(x, **at, config=moe.Config(20, 6, 256))


def test_the_table_has_every_argument():
    text = (Path(__file__).parents[2] / "docs/moe.md").read_text().split("## Every argument")[1]
    rows, method = {}, ""
    for line in text.splitlines():
        if line.startswith("| `") or line.startswith("| |"):
            cells = line.split("|")
            method = cells[1].strip() or method
            for name in re.findall(r"`(\w+)`", method):
                rows.setdefault(name, set()).update(re.findall(r"`(\w+)(?:=[^`]*)?`", cells[2]))
    for name, call in inspect.getmembers(moe.Buffer, callable):
        if name.startswith("_") and name != "__init__":
            continue
        wanted = {p for p, what in inspect.signature(call).parameters.items()
                  if p != "self" and what.kind not in (what.VAR_POSITIONAL, what.VAR_KEYWORD)}  # fmt: skip
        name = "Buffer" if name == "__init__" else name
        assert name in rows, name
        assert wanted <= rows[name], (name, wanted - rows[name])
    for kind in (moe.Config, moe.EventOverlap):
        assert set(inspect.signature(kind).parameters) <= rows[kind.__name__], kind
