"""Who waits for whom: mismatches and deadlocks, in hand-made programs."""

import pytest
from checking_play import Program, found

SEEDS = range(6)


def stuck(program, seed=0, at=10.0):
    """The job, after a look for dies that have not moved for ten seconds."""
    job = program.feed(seed)
    job.arrivals.check(at)
    return job


def only(program, kind):
    """The one report, of all orders of arrival."""
    for seed in SEEDS:
        (report,) = stuck(program, seed).reports
        assert report.kind == kind
    return report


def test_two_groups_in_different_order():
    p = Program(2)
    a = p.come(0, "barrier", [0, 1], "left")
    b = p.come(1, "barrier", [0, 1], "right")
    report = only(p, "deadlock")
    assert found([report]) == {("deadlock", (a, b))}
    text = report.text()
    for part in ("ranks 0, 1 wait for each other", "barrier number 1 of left", "barrier number 1 of right",
                 "rank 0 waits for rank 1", f"prog.py:{a}", f"prog.py:{b}"):
        assert part in text, part


def test_a_cycle_of_three():
    p = Program(3)
    for rank in range(3):
        p.come(rank, "all_reduce", sorted([rank, (rank + 1) % 3]), f"pair {rank}")
    report = only(p, "deadlock")
    assert sorted(side.die for side in report.sides) == [0, 1, 2]


def test_it_is_told_once_and_not_before_its_time():
    p = Program(2)
    p.come(0, "barrier", [0, 1], "left")
    p.come(1, "barrier", [0, 1], "right")
    job = p.feed()
    assert not job.arrivals.check(0.25) and not len(job.reports)
    assert job.arrivals.check(2.0)
    assert not job.arrivals.check(3.0)
    (report,) = job.reports
    assert report.count == 1


def test_one_that_still_computes_may_come():
    p = Program(3)
    p.come(0, "barrier", [0, 1], "left")
    p.come(1, "barrier", [1, 2], "right")
    p.write(2, 0, 8)
    for seed in SEEDS:
        assert not len(stuck(p, seed).reports)


def test_one_that_has_not_said_hello_may_come():
    p = Program(2)
    p.come(0, "barrier", [0, 1, 2])
    p.come(1, "barrier", [0, 1, 2])
    job = p.feed()
    job.size = 3
    assert not job.arrivals.check(10.0)


def test_all_have_come_but_none_has_left_yet():
    p = Program(2)
    for rank in range(2):
        p.come(rank, "barrier", [0, 1])
    assert not len(stuck(p).reports)


def test_a_die_that_ended():
    p = Program(2)
    a = p.come(0, "all_reduce", [0, 1])
    p.add(1, "end", site=False, t=0)
    job = p.feed()
    assert job.arrivals.check(10.0)
    (report,) = job.reports
    assert f"prog.py:{a}" in report.text() and "rank 0 waits for rank 1, which has ended" in report.text()


@pytest.mark.parametrize("how", ["failed", "killed"])
@pytest.mark.parametrize("status", [None, "PeerDead"])
def test_a_program_that_fails_by_itself_is_not_told_that_peers_wait_for_it(how, status):
    p = Program(2)
    p.come(0, "all_reduce", [0, 1])
    if status:
        p.leave(0, status=status)
    if how == "failed":
        p.add(1, "end", site=False, t=0, failed=1)
    job = p.feed(seed=1)
    job.leave(job.dies[1])
    assert not job.arrivals.check(10.0) and not len(job.reports)


def test_an_error_since_a_peer_has_ended_without_coming():
    p = Program(2)
    a = p.come(0, "all_reduce", [0, 1])
    p.add(1, "end", site=False, t=0)
    p.leave(0, status="PeerDead")
    job = p.feed(seed=1)
    assert found(job.reports) == {("deadlock", (0, a))}


def test_other_operations_at_one_number():
    p = Program(2)
    a, b = p.come(0, "broadcast", [0, 1], root=0), p.come(1, "all_reduce", [0, 1])
    report = only(p, "mismatch")
    assert found([report]) == {("mismatch", (a, b))}
    assert "operation number 1 of g is" in report.text() and "in the same order" in report.text()


def test_other_roots():
    p = Program(2)
    p.come(0, "broadcast", [0, 1], root=0)
    p.come(1, "broadcast", [0, 1], root=1)
    assert "has root rank" in only(p, "mismatch").text()


def test_other_sizes_are_known_by_the_error():
    p = Program(3)
    for rank, size in ((0, 8), (1, 8), (2, 16)):
        p.come(rank, "all_reduce", [0, 1, 2], reads=[[0, size]])
    for rank in range(3):
        p.leave(rank, status="CollectiveMismatch")
    report = only(p, "mismatch")
    for part in ("8 bytes read", "16 bytes read", "same dtype and size"):
        assert part in report.text()


def test_two_that_receive_from_each_other():
    p = Program(2)
    for rank in range(2):
        peer = 1 - rank
        p.add(rank, "wait", t=0, what=f"recv from {peer}, tag 0", ranks=[peer], key=f"p2p:g:{peer}:{rank}:0", value=1)
    assert "recv from 0, tag 0" in only(p, "deadlock").text()


def test_a_message_that_is_there_ends_the_wait():
    p = Program(2)
    p.post(1, "p2p:g:1:0:0", value=1)
    for rank in range(2):
        p.add(rank, "wait", t=0, what="recv", ranks=[1 - rank], key=f"p2p:g:{1 - rank}:{rank}:0", value=1)
    for seed in SEEDS:
        assert not len(stuck(p, seed).reports)


def test_waiting_for_operations_beside_the_program():
    """Each waits for its own first, and the peers' are the others."""
    p = Program(2)
    for rank in range(2):
        p.fork(rank, 1)
        p.come(rank, "barrier", [0, 1], ("left", "right")[rank], t=1)
        p.leave(rank, ("left", "right")[rank], status="later", t=1)
        p.add(rank, "done", site=False, t=1)
        p.add(rank, "wait", t=0, what="Work.wait", c=[1])
    report = only(p, "deadlock")
    assert report.title == "ranks 0, 1 wait for each other" and "Work.wait" in report.text()


def test_waiting_for_an_operation_to_which_all_have_come():
    p = Program(2)
    for rank in range(2):
        p.fork(rank, 1)
        p.come(rank, "barrier", [0, 1], t=1)
        p.leave(rank, status="later", t=1)
        p.add(rank, "done", site=False, t=1)
    p.add(0, "wait", t=0, what="Work.wait", c=[1])
    p.come(1, "barrier", [0, 1], "other")
    for seed in SEEDS:
        assert not len(stuck(p, seed).reports)


def test_a_flag_that_nobody_can_raise_any_more():
    p = Program(2)
    a = p.add(0, "wait", t=0, what="a flag", key="flag:10", value=1)
    b = p.come(1, "barrier", [0, 1])
    assert found([only(p, "deadlock")]) == {("deadlock", (a, b))}


def test_timeouts_of_dies_that_wait_for_each_other_are_a_deadlock_at_once():
    p = Program(2)
    for rank, group in ((0, "left"), (1, "right")):
        p.come(rank, "barrier", [0, 1], group)
    for rank, group in ((0, "left"), (1, "right")):
        p.leave(rank, group, status="CollectiveTimeout")
    (report,) = p.reports(seed=None)  # as it was written down: all come before one gives up
    assert report.title == "ranks 0, 1 wait for each other"


def test_a_timeout_whose_peer_never_came():
    p = Program(2)
    a = p.come(0, "all_reduce", [0, 1])
    p.leave(0, status="CollectiveTimeout")
    p.write(1, 0, 8)
    (report,) = p.reports()
    assert report.kind == "deadlock" and f"prog.py:{a}" in report.text() and "until its timeout" in report.text()
    p.come(1, "all_reduce", [0, 1])
    p.leave(1, status="CollectiveTimeout")
    assert not p.reports()  # late, and no deadlock
