"""Boards between dies: rounds, what posts point at, masks, and members that are late, give up or die."""

import time

import numpy as np
import pytest
from faultlib import Job

import strata
from strata import errors
from strata._core import moe

WORDS = 33


def make(group):
    """This member's Board of a group, as a caller makes it."""
    memory = strata.zeros(moe.board_bytes(group.size) + 64, "u1")
    addresses = group.all_gather(np.array([moe.format_board(memory, group.size)], "u8"))
    return moe.Board(group, memory, addresses[:, 0])


def value(member, number):
    return member * 1000 + number


def rounds(group, count, ahead):
    """``count`` rounds, ``ahead`` of them in flight; what was read is right each time."""
    board = make(group)
    x = strata.zeros((moe.ROUNDS, 5, 7), "f4")
    blocks = strata.zeros((moe.ROUNDS, WORDS + 1), "u4")
    here = strata.address(x), strata.address(blocks)
    for number in range(1, count + ahead + 1):
        if number <= count:
            slot = number % moe.ROUNDS
            if number > moe.ROUNDS:
                board.drain(number - moe.ROUNDS)
            x[slot] = value(group.rank, number)
            blocks[slot] = np.arange(WORDS + 1) + value(group.rank, number)
            columns = [(here[0] + slot * x[0].nbytes, x[0].nbytes)] * 2
            block = here[1] + slot * blocks[0].nbytes, 4 * WORDS
            board.post(number, 5, group.size, 5, columns, block)
        if number > ahead:
            take(group, board, number - ahead)
    for number in range(max(1, count - moe.ROUNDS + 1), count + 1):
        board.drain(number)
    group.barrier()
    board.close()
    return True


def take(group, board, number):
    posts, waited = board.wait(number)
    assert posts.dtype == moe.POST_DTYPE and posts.shape == waited.shape == (group.size,)
    assert (posts["epoch"] == number).all() and (posts["desc"] == 5).all() and (posts["tokens"] == 5).all()
    assert (posts["count"] == group.size).all() and (waited >= 0).all()
    for j, post in enumerate(posts):
        assert (post["bytes"] == [140, 140, 0, 0, 0, 0]).all() and post["at"][0] == post["at"][1]
        block = board.block(post)
        assert block.dtype == np.uint32 and (block == np.arange(WORDS) + value(j, number)).all()
    board.done(number)


@pytest.mark.parametrize("ahead", [0, 3, moe.ROUNDS - 1])
def test_rounds(dies, ahead):
    assert all(dies.run(rounds, 40, ahead))


def refusals(group):
    board = make(group)
    mine, theirs = strata.zeros(64, "u1"), 1 - group.rank
    for bad, words in (
        (lambda: board.post(0, 1, 1, 1, []), "begin at 1"),
        (lambda: board.post(1, 1, 1, 1, [(0, 0)] * 7), "6 at most"),
        (lambda: board.wait(1), "not posted by this member"),
        (lambda: board.fail(0), "no failure"),
        (lambda: setattr(board, "mask", [True, True]), "False for this one"),
        (lambda: setattr(board, "mask", [False]), "each of 2"),
        (lambda: moe.format_board(mine, 2), "contiguous bytes"),
        (lambda: moe.Board(group, mine, [0]), "1 addresses"),
    ):
        with pytest.raises(errors.InvalidArgument, match=words):
            bad()
    for address, error in ((strata.address(mine), errors.CorruptSpace), (0, errors.CorruptSpace)):
        with pytest.raises(error, match="has no board"):
            moe.Board(group, mine, [address] * 2)
    # Addresses that are not the sender's, or are nowhere, come from one member; all are told.
    wrong = [(strata.address(mine), 64), (strata.address(mine), 1 << 40), (8, 8)]
    if group.rank == 0:
        other = group.all_gather(np.array([strata.address(mine)], "u8"))[1, 0]
        wrong.append((int(other), 64))
    else:
        group.all_gather(np.array([strata.address(mine)], "u8"))
        wrong.append(wrong[0])
    for number, where in enumerate(wrong, 1):
        board.post(number, 1, 1, 1, [where if group.rank == 0 else wrong[0]])
        if number == 1:
            board.wait(number)
        else:
            with pytest.raises((errors.CorruptSpace, errors.RegistrationError), match="rank 0 has posted") as caught:
                board.wait(number)
            assert caught.value.ranks == (0,) and caught.value.number == number
        board.done(number)
    board.mask = [theirs == 0, theirs == 1]
    assert board.mask.tolist() == [theirs == 0, theirs == 1]
    board.post(9, 2, 2, 2, [])
    posts, _ = board.wait(9)
    assert posts["epoch"].tolist() == [9 * (group.rank == 0), 9 * (group.rank == 1)]
    group.barrier()
    board.close()
    with pytest.raises(errors.InvalidArgument, match="closed"):
        board.done(1)
    return True


def test_refusals(pair):
    assert pair.run(refusals) == [True, True]


def late(group):
    """Member 1 does not post; then it does; then it gives up."""
    board, other = make(group), 1 - group.rank
    if group.rank == 0:
        board.post(1, 0, 0, 0, [])
        with pytest.raises(errors.CollectiveTimeout, match="rank 1 has not posted it in time") as caught:
            board.wait(1, timeout=0.02)
        assert caught.value.ranks == (1,) and caught.value.number == 1
    group.barrier()
    if group.rank == 1:
        board.post(1, 0, 0, 0, [])
    board.wait(1)
    if group.rank == 1:
        board.fail(2, 1)
    group.barrier()
    if group.rank == 0:
        for call in (board.done, board.drain):
            with pytest.raises(errors.GroupBroken, match=r"rank 1 has given up at round 1 \(ST_ENOMEM\)"):
                call(1)
        board.drain(1, masking=True)
        assert board.mask.tolist() == [False, True]
        for number in range(2, 20):
            board.post(number, 0, 0, 0, [])
            board.wait(number)
            board.done(number)
    group.barrier()
    if group.rank == 1:
        with pytest.raises(errors.GroupBroken, match="rank 0 has gone on without this member"):
            board.done(1)
    group.barrier()
    board.close()
    return other


def test_late_and_giving_up(pair):
    assert pair.run(late) == [1, 0]


def _dies(die):
    g = strata.world()
    board = make(g)
    board.post(1, 0, 0, 0, [])
    board.wait(1)
    board.done(1)
    die.say("ready")
    if die.rank == 1:
        time.sleep(60)
    board.post(2, 0, 0, 0, [])
    caught = die.catch(board.wait, 2)
    assert caught[:2] == ("PeerDead", (1,)), caught
    posts, _ = board.wait(2, masking=True)
    assert posts["epoch"].tolist() == [2, 0, 2] and board.mask.tolist() == [False, True, False]
    board.done(2)
    for number in range(3, 24):
        board.post(number, 0, 0, 0, [])
        board.wait(number)
        board.done(number)
    for number in range(16, 24):
        board.drain(number)
    die.say("on")


def test_a_dead_member_is_masked_and_the_others_go_on():
    with Job(_dies, 3) as job:
        job.all("ready")
        job.kill(1)
        job.all("on", [0, 2])
        assert [job.reap(r) for r in (0, 2)] == [0, 0]
