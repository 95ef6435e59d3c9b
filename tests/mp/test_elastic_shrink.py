"""The first member dies in shrink(), and is started again before the last one has looked for what it made."""

import os
import signal
import time

from faultlib import Job, check_group

import strata
from strata import errors


def _late(die, before):
    if before:
        strata.init()
        die.say("back")
        check_group(strata.world(), [0, 1, 2])
        return
    g = strata.world()
    g.barrier()
    if die.rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    caught = die.catch(g.barrier)
    assert caught.ranks == (3,), caught
    form, calls = g._form, []

    def slow(*args):
        calls.append(args)
        if die.rank == 2 and len(calls) == 1:
            die.say("agreed")
            die.hear()
        try:
            return form(*args)
        finally:
            die.say("looked")
            if die.rank == 0:
                time.sleep(60)

    g._form = slow
    h = g.shrink()
    assert len(calls) == 2  # the group of the first call was nobody's, though rank 1 had found it
    check_group(h, [1, 2])
    check_group(h.grow([0]), [0, 1, 2])
    try:
        g.barrier()
    except (errors.PeerDead, errors.GroupBroken) as error:
        assert set(error.ranks) <= {0, 3}, error


def test_a_leader_that_is_back_before_all_have_looked():
    with Job(_late, 4, 0) as job:
        job.all("looked", [0, 1])
        job.all("agreed", [2])
        job.kill(0)
        assert job.reap(0) == -signal.SIGKILL
        job.restart(0, _late, 1)
        job.all("back", [0])
        job.tell(2)
        assert [job.reap(r) for r in range(4)] == [0, 0, 0, -signal.SIGKILL]
