"""A Buffer's thread is behind its calls: more rounds than may be in flight, destroy(), the end of a program."""

import threading

import launching
import numpy as np
import pytest
from moe_buffers import TOKENS, E, data, layout, low, there_and_back

import strata
from strata import errors, moe
from strata.moe.events import Task


def _stands(buffer):
    """The Buffer's thread does nothing until the event is set."""
    gate = threading.Event()
    buffer.runtime.receiver.submit(Task("stands still", gate.wait))
    return gate


def behind(group):
    """Rank 0's thread stands still while the others are through; the call that takes the first one's slot waits."""
    buffer, gate = low(group), None
    x, idx, weights = data(group)
    if group.rank == 0:
        gate = _stands(buffer)
    rounds = [buffer.low_latency_dispatch(x, idx, TOKENS, E, use_int8=True, use_fp8=False, return_recv_hook=True)
              for _ in range(8)]  # fmt: skip
    if gate is None:
        for *_, hook in rounds:
            hook()
    group.barrier()
    if gate is not None:
        threading.Timer(0.2, gate.set).start()
    rounds.append(buffer.low_latency_dispatch(x, idx, TOKENS, E, use_int8=True, use_fp8=False, return_recv_hook=True))
    for *_, hook in rounds:
        hook()
    for (q, scales), count, *_ in rounds:
        for i, rows in enumerate(count):
            assert np.array_equal(q[i, :rows], rounds[0][0][0][i, :rows])
            assert np.array_equal(scales[i, :rows], rounds[0][0][1][i, :rows])
    return there_and_back(group, buffer)


def test_a_call_waits_for_its_own_thread(trio):
    trio.run(behind)


def destroyed(group):
    """destroy() waits for rounds that have not been received, and their rows come."""
    buffer = low(group, explicitly_destroy=True, timeout=float("inf"))
    x, idx, _ = data(group)
    right = buffer.low_latency_dispatch(x, idx, TOKENS, E, use_fp8=False)
    gate = _stands(buffer)
    got, count, _, _, hook = buffer.low_latency_dispatch(x, idx, TOKENS, E, use_fp8=False, return_recv_hook=True)
    threading.Timer(0.1, gate.set).start()
    buffer.destroy()
    hook()
    assert count.tolist() == right[1].tolist()
    for i, rows in enumerate(count):
        assert np.array_equal(got[i, :rows], right[0][i, :rows])
    return there_and_back(group, low(group))


def test_destroy_waits_for_rounds(trio):
    trio.run(destroyed)


def late(group):
    """Ranks 1 and 2 have posted, and do not read what rank 0 has for them."""
    with pytest.raises(TypeError, match="timeout='1': seconds"):
        moe.Buffer(group, timeout="1")
    with pytest.raises(TypeError, match="something to call is expected, not int"):
        moe.EventOverlap().register_hook_after_wait(3)
    buffer = low(group, timeout=0.2 if group.rank == 0 else 20.0)
    gate = _stands(buffer) if group.rank else None
    x, idx, _ = data(group)
    hook = buffer.low_latency_dispatch(x, idx, TOKENS, E, use_fp8=False, return_recv_hook=True)[4]
    group.barrier()
    if gate is None:
        with pytest.raises(errors.CollectiveTimeout, match="ranks 1, 2 have not read it in time") as caught:
            hook()
        assert caught.value.ranks == (1, 2)
    group.barrier()
    if gate is not None:
        gate.set()
        with pytest.raises(errors.GroupBroken, match="given up") as caught:
            hook()
        assert 0 in caught.value.ranks
    return there_and_back(group, low(group))


def test_who_does_not_read_is_named(trio):
    trio.run(late)


def alone(group):
    """What a member does that the others do not, or not so, is named."""
    buffer = low(group)
    x, idx, _ = data(group)
    with pytest.raises(errors.InvalidArgument, match=f"num_tokens_per_expert has {E - 1} elements"):
        short = layout(buffer, idx)
        short["num_tokens_per_expert"] = short["num_tokens_per_expert"][:-1].copy()
        buffer.dispatch(x, topk_idx=np.full_like(idx, E - 1), **short)
    with pytest.raises(errors.CollectiveMismatch, match="rank 0: .* hidden 64 ") as caught:
        buffer.low_latency_dispatch(x if group.rank == 0 else x[:, :32], idx, TOKENS, E)
    assert "placement" not in str(caught.value)
    if group.rank == 0:
        with pytest.raises(errors.CollectiveTimeout, match=r"ranks 1, 2 did not make a moe\.Buffer") as caught:
            moe.Buffer(group, timeout=0.1)
        assert caught.value.ranks == (1, 2)


@pytest.mark.reports("deadlock")
def test_who_is_alone_is_told_why(trio):
    trio.run(alone)
    trio.close()  # its world group is broken


def torn(group):
    """Rank 0 is interrupted when it has posted a round, and before it has counted it."""
    buffer = low(group)
    x, idx, _ = data(group)
    there_and_back(group, buffer)
    if group.rank == 0:
        held = buffer.runtime._held

        def interrupt():
            del held.posted
            raise KeyboardInterrupt

        held.posted = interrupt
        with pytest.raises(KeyboardInterrupt):
            buffer.low_latency_dispatch(x, idx, TOKENS, E)
    with pytest.raises(errors.GroupBroken):
        for _ in range(2):
            buffer.low_latency_dispatch(x, idx, TOKENS, E, use_fp8=False)
            buffer.clean_low_latency_buffer(TOKENS, x.shape[1], E)
    return there_and_back(group, low(group))


def test_an_interrupt_between_two_steps_ends_the_buffer(trio):
    trio.run(torn)


LEAVES_BUFFERS = """
import numpy as np
import strata
from strata import moe

group = strata.world()
buffer = moe.Buffer(group, 0, 1 << 20, low_latency_mode=True)
buffer.low_latency_dispatch(np.ones((6, 64), "f4"), np.zeros((6, 1), np.int64), 6, 8, return_recv_hook=True)[4]()
moe.Buffer(group)
"""


def test_the_end_of_a_program_is_silent(tmp_path):
    done = launching.run("-n", 2, launching.write(tmp_path / "leaves.py", LEAVES_BUFFERS))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def _what_combine_goes_by(group):
    """What becomes of writes to handles."""
    x, idx = strata.ones((3, 8), "f4"), np.zeros((3, 1), np.int64)
    buffer = moe.Buffer(group, 0, 1 << 20, low_latency_mode=True)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, 2)
    high = buffer.dispatch(x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert)
    low = buffer.low_latency_dispatch(x, idx, 3, 2, use_fp8=False)
    refused = 0
    for array in (high[4].send_head, low[2].packed_recv_layout_range):
        try:
            array[...] = 7
        except ValueError:
            refused += 1
    sums = buffer.low_latency_combine(low[0], idx, np.ones((3, 1), "f4"), low[2])[0]
    return refused, bool((sums == x).all() and (buffer.combine(high[0], high[4])[0] == x).all())


def test_what_combine_goes_by_cannot_be_written(trio):
    assert trio.run(_what_combine_goes_by) == [(2, True)] * 3
