"""Hand-made programs: what must be reported, and what must not."""

import json

import pytest
from checking_play import ORDERS, Program, check

from strata.checking.events import parse


def test_two_writes_without_order_are_a_race():
    p = Program(2)
    p.barrier()
    a, b = p.write(0, 100, 200), p.write(1, 150, 250)
    p.barrier()
    check(p, [("race", (a, b))])
    (report,) = p.reports()
    assert (report.lo, report.hi) == (150, 200)
    text = report.text()
    for part in ("rank 0", "rank 1", f"prog.py:{a}", f"prog.py:{b}", "prog.py:999", "barrier number 1", "Cure: order"):
        assert part in text, part


def test_reads_and_atomics_do_not_race_with_their_like():
    p = Program(3)
    for rank in range(3):
        p.read(rank, 0, 64)
        p.write(rank, 100, 108, atomic=1)
        p.read(rank, 100, 108, atomic=1)
    check(p)


def test_atomic_against_plain_is_a_race():
    p = Program(2)
    a, b = p.write(0, 0, 8, atomic=1), p.read(1, 0, 8)
    check(p, [("race", (a, b))])
    assert "atomic access orders itself with atomic ones only" in p.reports()[0].text()


def test_bytes_that_only_touch_do_not_race():
    p = Program(2)
    p.write(0, 0, 8)
    p.write(1, 8, 16)
    check(p)


def test_columns_are_not_their_hull():
    p = Program(2)
    p.write(0, 0, 4, n=100, step=8)
    p.write(1, 4, 8, n=100, step=8)
    check(p)
    q = Program(2)
    q.write(0, 0, 4, n=100, step=8)
    job = q.feed()
    job.sweep()  # joins pieces that touch, and only those
    q.lines[0].clear()
    q.write(1, 4, 8, n=100, step=8)
    for line in q.lines[1]:
        job.feed(job.dies[1], parse(line.encode()))
    assert not len(job.reports)
    q = Program(2)
    a, b = q.write(0, 0, 4, n=100, step=8), q.write(1, 2, 6, n=50, step=16)
    check(q, [("race", (a, b))])


def test_a_barrier_orders():
    p = Program(3)
    p.write(0, 0, 64)
    p.barrier()
    for rank in range(3):
        p.read(rank, 0, 64)
    p.barrier()
    p.write(2, 0, 64)
    check(p)


def test_a_barrier_of_another_group_does_not():
    p = Program(3)
    p.write(0, 0, 64)
    p.barrier([0, 1], "left")
    p.barrier([1, 2], "right")
    p.read(2, 0, 64)  # through rank 1: this one is ordered
    p.barrier([0, 1], "left")
    b = p.write(1, 0, 8)  # not after the read
    check(p, [("race", tuple(sorted((_line(p, 2), b))))])


def _line(program, rank):
    """Of a die's only access."""
    return next(v["site"] for v in map(json.loads, program.lines[rank]) if v["e"] == "acc")


def test_a_flag_orders_and_only_from_raising_to_seeing():
    p = Program(2)
    p.write(0, 0, 64)
    p.post(0, "flag:1000", value=1)
    late = p.write(0, 0, 8)
    p.take(1, "flag:1000", 1)
    p.read(1, 8, 64)
    check(p)
    b = p.read(1, 0, 8)
    check(p, [("race", (late, b))])


def test_a_flag_raised_past_what_is_waited_for():
    p = Program(2)
    for step in range(4):
        p.write(0, step * 8, step * 8 + 8)
        p.post(0, "flag:1000", value=2 * step + 1)
    p.take(1, "flag:1000", 4)  # raised to 5: three writes are seen
    p.read(1, 0, 24)
    check(p)
    b = p.read(1, 24, 32)
    check(p, [("race", (7, b))])


def test_a_flag_word_that_is_used_again():
    p = Program(2)
    p.alloc(0, 0x1000, 0x1040)
    p.barrier()
    p.post(1, "flag:1000", value=1)
    p.take(0, "flag:1000", 1)
    p.barrier()
    p.free(0, 0x1000, 0x1040)
    p.alloc(0, 0x1000, 0x1040)
    p.barrier()
    p.write(1, 0, 8)
    p.post(1, "flag:1000", value=1)
    b = p.write(1, 0, 4)
    p.take(0, "flag:1000", 1)  # the new one
    p.read(0, 4, 8)
    c = p.read(0, 0, 4)
    check(p, [("race", (b, c))])


def test_a_counted_flag():
    p = Program(4)
    for rank in range(3):
        p.write(rank, rank * 8, rank * 8 + 8)
        p.post(rank, "count", add=1)
    p.take(3, "count", 3)
    p.read(3, 0, 24)
    check(p)


def test_messages_order_and_one_that_nobody_got_is_a_leak():
    p = Program(2)
    p.write(0, 0, 64)
    p.post(0, "p2p:g:0:1:7", value=1)
    p.take(1, "p2p:g:0:1:7", 1)
    p.read(1, 0, 64)
    check(p)
    line = p.post(0, "p2p:g:0:1:7", value=2)
    check(p, [("leak", (line,))])
    assert "from rank 0 to rank 1, tag 7" in p.reports()[0].text()


def test_order_through_a_chain_of_dies():
    p = Program(4)
    p.write(0, 0, 64)
    for rank in range(3):
        p.post(rank, f"p2p:g:{rank}:{rank + 1}:0", value=1)
        p.take(rank + 1, f"p2p:g:{rank}:{rank + 1}:0", 1)
    p.write(3, 0, 64)
    check(p)


@pytest.mark.parametrize("op", ["broadcast", "scatter"])
def test_the_root_of_a_broadcast_is_before_all(op):
    p = Program(3)
    p.write(1, 0, 64)
    a = p.write(2, 64, 128)
    p.op(op, root=1)
    p.read(0, 0, 64)
    b = p.read(0, 64, 128)
    check(p, [("race", (a, b))])


@pytest.mark.parametrize("op", ["reduce", "gather"])
def test_all_are_before_the_root_of_a_reduce(op):
    p = Program(3)
    a = p.write(2, 0, 64)
    p.op(op, root=1)
    p.read(1, 0, 64)
    b = p.read(0, 0, 64)
    check(p, [("race", (a, b))])


def test_what_an_operation_does_to_a_peer_is_over_only_there():
    p = Program(2)
    ops = p.op("all_reduce", reads={0: [[0, 8]], 1: [[100, 108]]}, writes={0: [[0, 8]], 1: [[100, 108]]})
    b = p.read(0, 100, 108)  # rank 1 may be still in it
    check(p, [("race", (ops[1], b))])
    q = Program(2)
    q.op("all_reduce", reads={0: [[0, 8]], 1: [[100, 108]]}, writes={0: [[0, 8]], 1: [[100, 108]]})
    q.barrier()
    q.read(0, 100, 108)
    q.write(1, 0, 8)
    check(q)


def test_a_put_into_a_peers_source_must_be_ordered_before_it_comes():
    p = Program(2)
    a = p.write(0, 100, 108)
    ops = p.op("all_gather", reads={0: [[0, 8]], 1: [[100, 108]]})
    check(p, [("race", (a, ops[1]))])


def test_a_broadcasts_target_may_be_read_by_the_root_before_it():
    p = Program(2)
    p.read(0, 100, 108)
    p.op("broadcast", root=0, reads={0: [[0, 8]]}, writes={1: [[100, 108]]})
    check(p)


def test_an_operation_beside_the_program_races_until_it_was_waited_for():
    p = Program(2)
    lines = {}
    for rank in range(2):
        p.fork(rank, 5)
        mine = [[rank * 64, rank * 64 + 8]]
        lines[rank] = p.come(rank, "all_reduce", [0, 1], reads=mine, writes=mine, t=5)
        p.leave(rank, status="later", t=5)
    a = p.write(0, 0, 4)
    p.join(0, 5)
    p.write(0, 4, 8)
    p.add(1, "done", site=False, t=5)
    p.join(1, 5)
    p.write(1, 64, 72)
    check(p, [("race", (lines[0], a))])
    assert "Work.wait()" in p.reports()[0].text()


def test_streams_that_are_chained_and_joined():
    p = Program(1)
    for item in range(1, 4):
        p.fork(0, item)
        if item > 1:
            p.take(0, "stream:0", item - 1, t=item)
        p.write(0, 0, 64, t=item)
        p.post(0, "stream:0", value=item, t=item)
        p.add(0, "done", site=False, t=item)
    p.take(0, "stream:0", 3)
    p.write(0, 0, 64)
    check(p)


def test_a_task_that_nobody_joined_keeps_its_place_in_the_clocks():
    p = Program(2)
    p.fork(0, 1)
    a = p.write(0, 0, 8, t=1)
    p.add(0, "done", site=False, t=1)
    p.fork(0, 2)  # by one who does not know what task 1 did
    p.post(0, "flag:1", value=1, t=2)
    p.take(1, "flag:1", 1)
    b = p.read(1, 0, 8)
    check(p, [("race", (a, b))])


def test_a_place_in_the_clocks_that_is_used_again_is_not_known():
    p = Program(1)
    p.fork(0, 1)
    p.post(0, "flag:1", value=1, t=1)
    p.join(0, 1)
    p.fork(0, 2)
    a = p.write(0, 0, 8, t=2)
    b = p.write(0, 0, 8)
    check(p, [("race", (a, b))])


def test_what_a_task_did_after_its_last_post_is_not_known_by_it():
    p = Program(1)
    p.fork(0, 1)
    p.post(0, "stream:0", value=1, t=1)
    a = p.write(0, 0, 8, t=1)
    p.add(0, "done", site=False, t=1)
    p.take(0, "stream:0", 1)
    p.fork(0, 2)  # begins after the post, not after the write
    b = p.read(0, 0, 8, t=2)
    check(p, [("race", (a, b))])


def test_a_task_of_which_no_start_was_told():
    p = Program(1)
    p.write(0, 0, 8)
    p.write(0, 0, 4, t=9)  # begins after what the die has done before
    a, b = p.write(0, 8, 16, t=9), p.write(0, 8, 16)
    check(p, [("race", (a, b))])


def test_groups_that_were_split():
    p = Program(4)
    p.op("split", [0, 1], "low")
    p.op("split", [2, 3], "high")
    for first, group in ((0, "low"), (2, "high")):
        p.write(first, first * 64, first * 64 + 64)
        p.op("barrier", [first, first + 1], group)
        p.read(first + 1, first * 64, first * 64 + 64)
    check(p)
    b = p.read(0, 128, 136)
    check(p, [("race", (_line(p, 2), b))])


def test_an_error_gives_no_order_and_no_access():
    p = Program(2)
    a = p.write(0, 0, 64)
    for rank in range(2):
        p.come(rank, "all_reduce", [0, 1], reads=[[200, 264]], writes=[[200, 264]])
        p.leave(rank, status="CollectiveTimeout")
    b = p.read(1, 0, 64)
    check(p, [("race", (a, b))])


def test_leaks_are_counted_by_place():
    p = Program(1)
    line = p.add(0, "leak", t=0, kind="stream", text="never closed")
    p.lines[0].append(p.lines[0][-1])
    (report,) = p.reports()
    assert (report.kind, report.count, report.sides[0].place.line) == ("leak", 2, line)


def test_a_race_is_shown_once_and_counted():
    p = Program(2)
    p.write(0, 0, 8)
    p.write(1, 0, 8)
    p.lines[1] += [p.lines[1][-1]] * 3
    (report,) = p.reports()
    assert report.count == 4 and "Found 4 times" in report.text()


def test_a_die_that_is_gone_leaves_no_false_reports():
    """What the dead die's lost events would have ordered is not reported."""
    p = Program(3)
    p.write(0, 0, 64)
    p.post(0, "p2p:g:0:1:0", value=1)
    # rank 1 passes it on, and is killed before its events are sent
    p.take(2, "p2p:g:1:2:0", 1)
    p.write(2, 0, 64)
    for seed in ORDERS:
        job = p.feed(seed)
        assert job.pending == 2
        job.leave(job.dies[1])
        job.finish()
        assert {r.kind for r in job.reports} <= {"leak"} and job.forced


def test_a_long_stream_that_nobody_waits_for_has_one_slot():
    """Each item follows the one before: clocks do not grow with their number."""
    p = Program(1)
    for k in range(1, 400):
        p.fork(0, k)
        if k > 1:
            p.take(0, "stream:0.1", k - 1, t=k)
        p.write(0, 0, 64, t=k)
        p.post(0, "stream:0.1", t=k, value=k)
        p.add(0, "done", site=False, t=k)
    p.take(0, "stream:0.1", 399)
    p.write(0, 0, 64)
    job = p.feed()
    assert not list(job.reports)
    assert job._slots.count == 2
