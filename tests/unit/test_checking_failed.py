"""What failed, was withdrawn or was given up leaves no false reports and holds nothing back."""

import pytest
from checking_play import Program, check, found


def test_who_has_got_the_error_of_an_operation_goes_on_after_it():
    p = Program(2)
    p.barrier()
    p.fork(0, 1)
    p.come(0, "all_reduce", [0, 1], t=1, reads=[[0, 64]], writes=[[64, 128]])
    p.leave(0, status="later", t=1)
    p.leave(0, status="GroupBroken")
    p.add(0, "done", site=False, t=1)
    p.add(0, "join", t=0, c=1, failed=1)
    p.write(0, 0, 128)
    check(p)


def test_a_message_that_never_came_does_not_hold_who_gave_it_up():
    p = Program(2)
    p.barrier()
    p.fork(0, 1)
    p.take(0, "p2p:g:1:0:7", 1, t=1)
    p.write(0, 0, 64, t=1)
    p.add(0, "done", site=False, t=1)
    p.add(0, "join", t=0, c=1, failed=1)
    p.write(0, 0, 64)
    p.barrier()
    p.write(1, 0, 64)
    check(p)


def test_behind_operations_that_failed_all_go_on():
    """The second of two in a chain is waited for; nobody asks for the first, whose peer never comes."""
    p = Program(2)
    p.barrier()
    for task in (1, 2):
        p.fork(0, task)
        if task == 2:
            p.take(0, "chain:0.g", 1, t=2)
        p.come(0, "all_reduce", [0, 1], t=task, writes=[[64 * task, 64 * task + 64]])
        p.leave(0, status="later", t=task)
        p.post(0, "chain:0.g", t=task, value=task)
        p.add(0, "done", site=False, t=task)
    p.leave(0, status="GroupBroken")
    p.add(0, "join", t=0, c=2, failed=1)
    p.write(0, 128, 192)
    p.barrier(group="h")
    p.write(1, 128, 192)
    for seed in range(8):
        assert not p.reports(seed, finish=False), seed
        assert p.feed(seed).pending <= 4, seed  # those of the first alone


@pytest.mark.parametrize("how", ["failed", "killed", "well"])
def test_what_is_left_open_in_a_job_that_broke_is_no_leak(how):
    p = Program(2)
    a = p.add(0, "leak", t=0, kind="request", text="")
    b = p.post(0, "p2p:g:0:1:7", value=1)
    p.add(0, "end", site=False, t=0)
    if how != "killed":
        p.add(1, "end", site=False, t=0, failed=int(how == "failed"))
    job = p.feed()
    for die in job.dies.values():
        job.leave(die)
    job.finish()
    assert found(job.reports) == ({("leak", (a,)), ("leak", (b,))} if how == "well" else set())


def test_a_message_that_was_withdrawn_is_none():
    p = Program(2)
    p.barrier()
    p.post(0, "p2p:g:0:1:7", value=1)
    p.add(0, "unpost", t=0, site=False, key="p2p:g:0:1:7", value=1)
    p.end()
    check(p)


def test_the_message_that_is_sent_anew_is_the_one_that_orders():
    p = Program(2)
    p.barrier()
    p.post(0, "p2p:g:0:1:7", value=1)
    p.add(0, "unpost", t=0, site=False, key="p2p:g:0:1:7", value=1)
    p.write(0, 0, 64)
    p.post(0, "p2p:g:0:1:7", value=1)
    p.take(1, "p2p:g:0:1:7", 1)
    p.read(1, 0, 64)
    assert not p.reports(0)


def test_what_waits_for_a_message_that_was_never_sent_is_dropped_at_the_end():
    """A receive that was begun, the item of a stream behind one, and one that waits for a flag."""
    p = Program(2)
    p.barrier()
    p.fork(0, 1)
    p.take(0, "p2p:g:1:0:7", 1, t=1)
    p.write(0, 0, 64, t=1)
    p.post(0, "stream:0.1", t=1, value=1)
    p.add(0, "done", site=False, t=1)
    p.fork(0, 2)
    p.take(0, "stream:0.1", 1, t=2)
    p.write(0, 0, 64, t=2)
    p.add(0, "done", site=False, t=2)
    p.fork(0, 3)
    p.take(0, "flag:100", 1, t=3)
    p.write(0, 0, 64, t=3)
    p.write(1, 0, 64)
    check(p.end())  # and nothing had to be forced


def test_a_message_that_a_thread_has_got_and_nobody_sent_is_missed():
    for how in ("main", "thread", "joined"):
        p = Program(2)
        p.barrier()
        t = int(how != "main")
        if t:
            p.fork(0, 1)
        if how == "thread":
            p.post(0, "host:0", value=1)
            p.take(0, "host:0", 1, t=1)
        p.take(0, "p2p:g:1:0:7", 1, t=t)
        if how == "joined":
            p.add(0, "done", site=False, t=1)
            p.join(0, 1)
        job = p.end().feed()
        job.finish()
        assert job.forced == 1, how


def test_a_group_is_tried_again_after_a_member_did_not_come():
    """Also if the other's first try comes in between; what the last try orders is in order."""
    for between in (False, True):
        p = Program(2)
        p.barrier()
        for _ in range(2):
            p.come(1, "subgroup", [0, 1], group="h", n=0)
            p.leave(1, group="h", n=0, status="CollectiveTimeout")
        if between:
            p.come(0, "subgroup", [0, 1], group="h", n=0)
            p.leave(0, group="h", n=0, status="CollectiveTimeout")
        p.write(1, 0, 64)
        p.come(1, "subgroup", [0, 1], group="h", n=0)
        p.come(0, "subgroup", [0, 1], group="h", n=0)
        for rank in (0, 1):
            p.leave(rank, group="h", n=0)
        p.read(0, 0, 64)
        p.barrier(group="k")
        for seed in (None, *range(8)):
            assert not p.reports(seed), (between, seed)


def test_what_a_stream_that_failed_had_queued_is_not_done():
    """Its items wait for a peer that never comes; who has got the error goes on after them, and so does the stream."""
    p = Program(2)
    p.barrier()
    p.fork(0, 1)
    p.write(0, 0, 64, t=1)
    p.post(0, "stream:0.1", t=1, value=1)
    p.add(0, "done", site=False, t=1)
    p.fork(0, 2)
    p.take(0, "stream:0.1", 1, t=2)
    p.come(0, "all_reduce", [0, 1], t=2, writes=[[0, 64]])
    p.leave(0, status="later", t=2)
    p.write(0, 64, 128, t=2)
    p.post(0, "stream:0.1", t=2, value=2)
    p.add(0, "done", site=False, t=2)
    p.add(0, "take", t=0, key="stream:0.1", value=2, failed=1)
    p.write(0, 0, 128)
    p.fork(0, 3)
    p.take(0, "stream:0.1", 2, t=3)
    p.write(0, 0, 64, t=3)
    p.post(0, "stream:0.1", t=3, value=3)
    p.add(0, "done", site=False, t=3)
    p.take(0, "stream:0.1", 3)
    p.barrier(group="h")
    p.write(1, 0, 128)
    check(p)
