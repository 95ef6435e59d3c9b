"""Dies that are killed, or stopped for a while, at random moments of programs with fabric memory.

``kill_trial(seed)`` and ``stop_trial(seed)`` raise AssertionError if something is not as it must be.
"""

import gc
import random
import signal
import time

from faultlib import Job
from registration_levels import settled, until
from registration_play import Player, draw, play

import strata
from strata import bootstrap, errors, vmm

LENGTH = 40  # steps of a program
MODES = ("on_allocation", "just_in_time", "pool")
MIB = 1 << 20


class Watchful(Player):
    """A player that knows that dies may be dead: what a dead one exported may be good no longer, or may be."""

    def do_import(self, rank, a, b):
        super().do_import(rank, a, b)
        self.group.barrier()  # a death is seen here, not by the model


def arrays():
    return sum(b.get("kind") == "array" for s in strata.memory_snapshot() for b in s["blocks"])


def comes_back(context):
    """Nothing that a broken program had is kept, for whomever."""
    until(lambda: gc.collect() >= 0 and not arrays(), lambda: f"{arrays()} arrays are left")
    strata.empty_cache()
    until(lambda: not vmm.stats()["exports_closing"], lambda: f"exports: {vmm.stats()}")
    settled(context, 0, quarantine=0)
    left = {key: value for key, value in vmm.stats().items() if value}
    assert not left, left


def survive(die, seed, survivors):
    """Plays programs, with fewer and fewer others; three whole ones with those that remain."""
    group, context = strata.world(), bootstrap.context()
    die.say("playing")
    whole = turn = 0
    while whole < 3:
        rng, player = random.Random(f"{seed} {group.ranks} {turn}"), Watchful(group)
        turn += 1
        try:
            player.play(draw(rng, LENGTH))
            player.group.barrier()  # all have played it
            broken = False
            whole += group.size == survivors
        except (errors.PeerDead, errors.GroupBroken):
            broken = True
        player.clear()
        del player
        while broken:
            try:
                group = group.shrink()
                broken, turn = False, 0
                die.say("shrunk", group.size)
            except (errors.PeerDead, errors.GroupBroken):
                pass
        comes_back(context)


def kill_trial(seed):
    """Kills all dies but one or two, one after another; what the survivors do goes on, and is right."""
    rng = random.Random(seed)
    n, mode = rng.randint(2, 4), rng.choice(MODES)
    survivors = rng.randint(1, n - 1)
    env = {"STRATA_REGISTRATION": mode, "STRATA_POOL": "256M"}
    with Job(survive, n, seed, survivors, hbm=512 * MIB, env=env) as job:
        job.all("playing")
        alive = list(range(n))
        while len(alive) > survivors:
            time.sleep(rng.random() * 0.6)  # a random moment
            victim = alive.pop(rng.randrange(len(alive)))
            job.kill(victim)
            assert job.reap(victim) == -signal.SIGKILL
        assert [job.reap(rank, bound=90) for rank in alive] == [0] * survivors
    return f"{n} dies, {survivors} survive, {mode}"


def go_on(die, seed, rounds):
    for number in range(rounds):
        play(strata.world(), draw(random.Random(f"{seed} {number}"), LENGTH))
        die.say("played", number)
    die.say("done")


def stop_trial(seed):
    """Dies are stopped for longer than the quarantine waits for them, and go on: all stays right."""
    rng = random.Random(seed)
    n, mode = rng.randint(2, 4), rng.choice(MODES)
    env = {"STRATA_REGISTRATION": mode, "STRATA_POOL": "256M", "STRATA_QUARANTINE": "0.05"}
    with Job(go_on, n, seed, 3, hbm=512 * MIB, env=env) as job:
        job.all("played", bound=90)
        for _ in range(6):
            victim = rng.randrange(n)
            job.kill(victim, signal.SIGSTOP)
            time.sleep(rng.random() * 0.2)
            job.kill(victim, signal.SIGCONT)
            time.sleep(rng.random() * 0.1)
        assert [job.reap(rank, bound=90) for rank in range(n)] == [0] * n
    return f"{n} dies, {mode}"
