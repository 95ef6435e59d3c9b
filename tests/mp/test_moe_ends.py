"""Buffers of strata.moe: masks, several of them, threads, forks, and their end."""

import gc
import os
import signal
import threading
import time

import numpy as np
import pytest
from faultlib import Job
from moe_buffers import HIDDEN, TOKENS, E, data, layout, low, there_and_back

import strata
from strata import errors, moe

# ---- masks --------------------------------------------------------------------------------------


def masks(group):
    """Ranks 0 and 1 leave rank 2 out, by hand; it does nothing meanwhile."""
    buffer = low(group, enable_shrink=True, timeout=5.0)
    x, idx, weights = data(group)
    status = np.ones(group.size, np.int32)
    buffer.low_latency_query_mask_buffer(status)
    assert (status == 0).all()
    if group.rank < 2:
        with pytest.raises(errors.InvalidArgument):
            buffer.low_latency_update_mask_buffer(group.rank, True)
        buffer.low_latency_update_mask_buffer(2, True)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0, 0, 1]
        got, _, handle, _, hook = buffer.low_latency_dispatch(x, idx, TOKENS, E, use_fp8=False, return_recv_hook=True)
        hook()
        assert (handle[1][:, 2] & 0xFFFFFFFF == 0).all()
        sums = buffer.low_latency_combine(got, idx, weights, handle)[0]
        here = idx // 3 < 2  # experts of ranks 0 and 1 are 0 to 2, 3 to 5
        assert np.allclose(sums.astype("f4"), x.astype("f4") * (here * weights).sum(axis=1)[:, None], rtol=0.02)
        buffer.clean_low_latency_buffer(TOKENS, HIDDEN, E)
        with pytest.raises(errors.InvalidArgument, match="masked"):
            buffer.dispatch(x, **layout(buffer, idx))
        buffer.low_latency_clean_mask_buffer()
        buffer.low_latency_query_mask_buffer(status)
        assert (status == 0).all()
    group.barrier()
    return there_and_back(group, low(group))


def test_masks_by_hand(trio):
    trio.run(masks)


def left_behind(group):
    """Ranks 0 and 1 wait for rank 2 as long as they may, and go on; it is told when it comes."""
    buffer = low(group, enable_shrink=True, timeout=0.2)
    pair = group.split(group.rank < 2)
    x, idx, _ = data(group)
    if group.rank < 2:
        for _ in range(2):
            _, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, TOKENS, E, use_fp8=False)
            assert (handle[1][:, 2] & 0xFFFFFFFF == 0).all()
        pair.barrier()
    group.barrier()
    if group.rank == 2:
        with pytest.raises(errors.GroupBroken, match="ranks 0, 1.*went on without this die") as caught:
            buffer.low_latency_dispatch(x, idx, TOKENS, E, use_fp8=False)
        assert caught.value.ranks == (0, 1)
        status = np.zeros(3, np.int32)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [1, 1, 0]
    group.barrier()
    return there_and_back(group, low(group))


def test_who_was_left_behind_is_told(trio):
    trio.run(left_behind)


# ---- several, again and again ---------------------------------------------------------------------


def several(group):
    """Buffers of two groups, some of them at once, in different order on different members."""
    half = group.split(group.rank % 2)
    one, two, mine = low(group), moe.Buffer(group), low(half)
    for seed in range(2):
        for buffer, of in ((one, group), (mine, half), (two, group)):
            there_and_back(of, buffer, seed)
    x, idx, _ = data(group)
    first = one.low_latency_dispatch(x, idx, TOKENS, E, return_recv_hook=True)
    other = two.dispatch(x, **layout(two, idx), async_finish=True)
    there_and_back(half, mine)
    for wait in (first[4], other[5].current_stream_wait)[:: 1 if group.rank else -1]:
        wait()
    return True


def test_several_buffers(four):
    four.run(several)


def made_again(group, rounds):
    """What a die has after each Buffer: fabric bytes, files, threads."""
    found = []
    for k in range(rounds):
        buffer = low(group, explicitly_destroy=bool(k % 2))
        there_and_back(group, buffer, k % 4)
        x, idx, _ = data(group, k % 4)
        buffer.low_latency_dispatch(x, idx, TOKENS, E, return_recv_hook=True)[4]()
        if k % 2:
            buffer.destroy()
            with pytest.raises(errors.InvalidArgument, match="destroyed"):
                buffer.get_dispatch_layout(idx, E)
        thread = buffer.runtime.receiver if buffer.runtime else None
        del buffer
        gc.collect()
        if thread is not None:
            assert thread.join(10)
        del thread
        group.barrier()
        found.append((strata.stats()["memory"]["allocated_bytes.all.current"], len(os.listdir("/proc/self/fd")),
                      threading.active_count()))  # fmt: skip
    return found


def test_buffers_made_again_leave_nothing(pair):
    for mine in pair.run(made_again, 40):
        assert all(np.max(mine[20:], axis=0) <= np.max(mine[:20], axis=0)), mine


def many_rounds(group, cycles):
    """What a die has after each ten rounds of changing routing: fabric bytes, files, threads."""
    gc.collect()  # what other tests have left to it
    buffer, found = low(group), []
    for _ in range(cycles):
        for seed in range(5):
            x, idx, weights = data(group, seed, (seed * 5 + group.rank) % (TOKENS + 1))
            if seed == 4:
                idx[...] = 3
            x = strata.array(x)
            got, *_, handle, event = buffer.dispatch(x, **layout(buffer, idx), async_finish=True)
            first = buffer.low_latency_dispatch(x, idx[:, :1], TOKENS, E, use_fp8=bool(seed % 2), return_recv_hook=True)
            event.current_stream_wait()
            sums = buffer.combine(got, handle, async_finish=True)
            first[4]()
            sums[2].current_stream_wait()
        del x, got, handle, first, sums, event, idx, weights
        found.append((strata.stats()["memory"]["allocated_bytes.all.current"], len(os.listdir("/proc/self/fd")),
                      threading.active_count()))
    return found


def test_many_rounds_leave_nothing(trio):
    for mine in trio.run(many_rounds, 20):  # 300 rounds
        assert (np.max(mine[3:], axis=0) <= mine[2]).all(), mine


# ---- threads, forks, the end ------------------------------------------------------------------------


def two_threads(group):
    """A second thread in a Buffer is refused, as long as the first is in it."""
    buffer = moe.Buffer(group)
    x, idx, _ = data(group)
    at = layout(buffer, idx)
    if group.rank == 0:
        inside, error = threading.Event(), []

        class Slow:
            def current_stream_wait(self):
                inside.set()
                done.wait(10)

        done, event = threading.Event(), moe.EventOverlap()
        event.event = Slow()
        first = threading.Thread(target=lambda: error.append(buffer.dispatch(x, **at, previous_event=event)))
        first.start()
        assert inside.wait(10)
        with pytest.raises(errors.InvalidArgument, match="another thread"):
            buffer.dispatch(x, **at)
        done.set()
        first.join(10)
        assert len(error) == 1
    else:
        buffer.dispatch(x, **at)
    return there_and_back(group, buffer)


def test_two_threads(pair):
    pair.run(two_threads)


def forked(group):
    buffer = low(group)
    x, idx, _ = data(group)
    *_, event, hook = buffer.low_latency_dispatch(x, idx, TOKENS, E, return_recv_hook=True)
    pid = os.fork()
    if pid == 0:
        caught = 0
        for call in (hook, lambda: buffer.get_dispatch_layout(idx, E), lambda: moe.Buffer(group)):
            try:
                call()
            except errors.NotInJob:
                caught += 1
        os._exit(caught)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    hook()
    return there_and_back(group, buffer)


def test_forked_children_are_refused(pair):
    pair.run(forked)


def leaves(die, how):
    """Rank 0 ends with a round that rank 1 has never begun."""
    group = strata.world()
    buffer = low(group)
    x, idx, _ = data(group)
    if die.rank == 0:
        hook = buffer.low_latency_dispatch(x, idx, TOKENS, E, use_fp8=False, return_recv_hook=True)[4]
        if how == "finalize":
            strata.finalize()
            die.say("caught", die.catch(hook))
            die.say("again", die.catch(buffer.get_dispatch_layout, idx, E))
        die.say("left")
    else:
        die.hear()
        die.say("caught", die.catch(buffer.low_latency_dispatch, x, idx, TOKENS, E, use_fp8=False))


@pytest.mark.reports(maybe=["leak"], why="rounds in progress at the end")
@pytest.mark.parametrize("how", ["finalize", "exit"])
def test_an_end_with_rounds_in_progress(how):
    with Job(leaves, 2, how) as job:
        job.all("left", [0])
        assert job.reap(0) == 0
        job.tell()
        assert job.all("caught", [1])[1].data.kind == "PeerDead"
        assert job.reap(1) == 0
        if how == "finalize":
            assert job.all("caught", [0])[0].data.kind == "NotInJob"
            assert job.all("again", [0])[0].data.kind == "NotInJob"


def _raises(*_):
    raise errors.StrataError("of a signal handler")


def interrupted(die):
    """A signal while rank 0 waits for rank 1, which has not come yet."""
    signal.signal(signal.SIGUSR1, _raises)
    group = strata.world()
    buffer = low(group)
    x, idx, _ = data(group)
    if die.rank == 0:
        def posted():
            while buffer.runtime.next == 1:
                time.sleep(0.001)
            die.say("waits")

        threading.Thread(target=posted).start()
    else:
        die.hear()
    for name in ("first", "second"):
        die.say(name, die.catch(buffer.low_latency_dispatch, x, idx, TOKENS, E, use_fp8=False))


@pytest.mark.parametrize("number, error", [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGUSR1, "StrataError")])
def test_an_interrupt_ends_the_buffer(number, error):
    with Job(interrupted, 2) as job:
        job.all("waits", [0])
        job.kill(0, number)
        assert job.all("first", [0])[0].data.kind == error
        assert job.all("second", [0])[0].data.kind == "GroupBroken"
        job.tell(1)
        for name in ("first", "second"):
            caught = job.all(name, [1])[1].data
            assert caught.kind in ("GroupBroken", "PeerDead") and caught.ranks == (0,), caught
        assert job.reap(0) == job.reap(1) == 0


def windows(group):
    """Windows are used again when nobody has them any more, and not before."""
    buffer, found = low(group), []
    x, idx, weights = data(group)
    for _ in range(4):
        got, count, handle, _, _ = buffer.low_latency_dispatch(x, idx, TOKENS, E, use_fp8=False)
        found.append(strata.address(got))
        part = got[:1, :1]
        del got
        other = buffer.low_latency_dispatch(x, idx, TOKENS, E, use_fp8=False)[0]
        assert not np.shares_memory(other, part)
        del other, part, handle, count
    assert len(set(found)) == 1
    got, _, handle, _, hook = buffer.low_latency_dispatch(x, idx, TOKENS, E, use_fp8=False, return_recv_hook=True)
    hook()
    with pytest.raises(errors.InvalidArgument, match="overlap"):
        wide = got.reshape(-1, HIDDEN)[:TOKENS] if got.size else np.zeros(0)
        buffer.low_latency_combine(got, idx, weights, handle, out=wide)
    return there_and_back(group, buffer)


def test_windows_are_used_again(pair):
    pair.run(windows)


def received(group):
    """Large receive arrays of about one size lie in the same memory, once nobody has them any more."""
    buffer, found = moe.Buffer(group, 64 << 20), set()
    for tokens in (1000, 1003, 1001, 1002):
        x = np.ones((tokens, 2048), np.float32)
        idx = np.arange(tokens, dtype=np.int64)[:, None] % E
        got, *_, handle, _ = buffer.dispatch(x, **layout(buffer, idx))
        found.add(strata.address(got))
        assert (buffer.combine(got, handle)[0] == 1).all()
        kept = buffer.dispatch(x, handle)[0]
        assert not np.shares_memory(kept, got)
        del got, kept
    assert len(found) <= 2
    return there_and_back(group, buffer)


def test_receive_arrays_are_used_again(pair):
    pair.run(received)
