"""``strata top`` on jobs that hang, in each way: it reads them from outside, and says who waits for whom."""

import json
import os
import signal
import subprocess
import sys

import pytest
from launching import PATIENCE, Running, all_there, environment, sleeper, until

from strata.errors import InvalidArgument
from strata.inspection import finding, snapshot, text

START = "import strata\nworld = strata.world()\nworld.barrier()\n"


def look(job, **options):
    """A snapshot of the job that a launcher runs."""
    with finding.opened(job.places[0]) as space:
        return snapshot.take(space, job.name, job.launcher, **options)


def the_job(running):
    """The one job whose launcher this is, once its dies have joined."""
    return until(lambda: next((j for j in finding.find() if j.launcher == running.pid), None), "the job is found")


def until_waits(job, condition, what):
    """A snapshot whose waits, as {rank: [(operation, ranks waited for)]}, fulfil the condition."""

    def now():
        seen = look(job)
        waits = {}
        for wait in seen["waits"]:
            waits.setdefault(wait["rank"], []).append((wait["operation"], wait["for"]))
        return seen if condition(waits) else None

    return until(now, what)


def command(*arguments):
    """What the command says, and its status."""
    done = subprocess.run([sys.executable, "-m", "strata.cli", *map(str, arguments)], env=environment(),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)  # fmt: skip
    assert not done.stderr or done.returncode == 2, done.stderr
    return done.returncode, done.stdout + done.stderr


def test_a_late_die_is_named_and_so_is_a_stopped_one(tmp_path):
    body = START + """
x = strata.ones(1000)
world.all_reduce(x)
there()
if world.rank == 2:
    time.sleep(1000)
world.all_reduce(x)
"""
    name = f"late{os.getpid()}.py"  # of which no other test has a job at the same time
    with Running("-n", 4, sleeper(tmp_path, body, name), tmp_path) as running:
        pids = all_there(tmp_path, 4)
        job = the_job(running)
        assert sorted(pids) == sorted(set(job.holders) & set(pids)) and job.name == name and job.ndies == 4
        what = [("all_reduce #3 of world", [2])]
        seen = until_waits(job, lambda w: all(w.get(r) == what for r in (0, 1, 3)) and 2 not in w, "three wait for one")
        assert [die["state"] for die in seen["dies"]] == ["running"] * 4
        assert not seen["deadlocks"]
        assert all(die["allocated"] > 0 and die["reserved"] > 0 and die["begun"] >= 2 for die in seen["dies"])
        victim = seen["dies"][2]["pid"]
        os.kill(victim, signal.SIGSTOP)
        until(lambda: look(job)["dies"][2]["state"] == "stopped", "the stopped die is seen")
        os.kill(seen["dies"][0]["pid"], signal.SIGSTOP)
        for wanted in (str(running.pid), str(victim), name, job.token[:8]):
            sought = "ranks 0-1, 3 wait for rank 2 in all_reduce #3 of world since"  # said once it is old enough
            status, said = until(lambda w=wanted, s=sought: (got := command("top", w)) and s in got[1] and got, sought)
            assert status == 0, said
            assert "which is stopped (SIGSTOP)" in said and f"launcher {running.pid}" in said
        status, said = command("top", running.pid, "--json")
        assert {w["rank"]: w["for"] for w in json.loads(said)["waits"]} == {0: [2], 1: [2], 3: [2]}
        with pytest.raises(InvalidArgument, match=r"no job nothing\.py; there (is|are):"):
            finding.choose(finding.find(), "nothing.py")


@pytest.mark.reports(maybe=["deadlock"], why="it is ended soon after it is one")
def test_a_circle_of_groups_is_a_deadlock(tmp_path):
    body = START + """
a, b = world.subgroup([0, 1]), world.subgroup([0, 1])
there()
(a if world.rank == 0 else b).barrier()
"""
    with Running("-n", 2, sleeper(tmp_path, body), tmp_path) as running:
        all_there(tmp_path, 2)
        job = the_job(running)
        seen = until_waits(job, lambda w: {r: f for r, ((_, f), *_) in w.items()} == {0: [1], 1: [0]}, "both wait")
        (circle,) = seen["deadlocks"]
        assert [(wait["rank"], wait["for"]) for wait in circle] == [(0, [1]), (1, [0])]
        status, said = command("top", running.pid)
        assert status == 1
        assert "deadlock: rank 0 waits for rank 1 in barrier #1 of world.subgroup" in said
        assert ", rank 1 waits for rank 0 in barrier #1 of world.subgroup" in said


def test_messages_streams_and_asynchronous_operations(tmp_path):
    body = START + """
x = strata.ones(100000)
work = world.all_reduce(x, async_op=True) if world.rank == 0 else None
there()
if world.rank == 0:
    work.wait()
elif world.rank == 1:
    world.send(x, 2, tag=7)
elif world.rank == 2:
    world.recv(x, 3, tag=-5)
else:
    stream = strata.Stream()
    with strata.stream(stream):
        world.recv(x, 0)
    stream.synchronize()
"""
    with Running("-n", 4, sleeper(tmp_path, body), tmp_path) as running:
        all_there(tmp_path, 4)
        job = the_job(running)

        def all_wait(waits):
            return (("all_reduce #2 of world", [1, 2, 3]) in waits.get(0, ())
                    and ("wait for an asynchronous operation of world", []) in waits.get(0, ())
                    and waits.get(1) == [("send to rank 2 (tag 7) of world", [2])]
                    and waits.get(2) == [("recv from rank 3 (tag -5) of world", [3])]
                    and ("recv from rank 0 (tag 0) of world", [0]) in waits.get(3, ())
                    and any(what.startswith("wait for item") for what, _ in waits.get(3, ())))  # fmt: skip

        seen = until_waits(job, all_wait, "all wait")
        assert len(seen["deadlocks"]) == 1  # 0 for 1, 1 for 2, 2 for 3, 3 for 0
        assert "since" in "\n".join(text.waits(seen, 0.0))


def test_dies_that_have_not_joined_and_dead_ones(tmp_path):
    body = """
import strata
there()
if os.environ["STRATA_RANK"] == "1":
    time.sleep(1000)
strata.world().barrier()
"""
    with Running("-n", 3, "--on-failure", "continue", sleeper(tmp_path, body), tmp_path) as running:
        pids = all_there(tmp_path, 3)
        job = the_job(running)
        what = [("init", [1])]
        seen = until_waits(job, lambda w: w == {0: what, 2: what}, "both wait for rank 1")
        assert [die["state"] for die in seen["dies"]] == ["running", "not joined", "running"]
        until(lambda: "rank 1 in init" in command("top", running.pid)[1], "it says so, once it is old enough")
        victim = seen["dies"][2]["pid"]
        assert victim in pids
        os.kill(victim, signal.SIGKILL)
        until(lambda: look(job)["dies"][2]["state"] == "dead", "the dead die is seen")
        status, said = command("top", running.pid)
        assert status == 1 and "dead" in said and "not joined" in said


def test_rates_and_a_running_job(tmp_path):
    body = START + """
there()
x = strata.ones(8)
while True:
    world.all_reduce(x)
"""
    with Running("-n", 2, sleeper(tmp_path, body), tmp_path) as running:
        all_there(tmp_path, 2)
        job = the_job(running)
        first = until(lambda: (s := look(job))["dies"][0]["begun"] > 200 and s, "operations are made")
        assert all(r["kind"] == "collective" for r in first["dies"][0]["records"][-50:])
        times = [r["begin_ns"] for r in first["dies"][0]["records"]]
        assert all(t > 0 for t in times) and times == sorted(times) and len(times) >= 100
        enough = [die["begun"] + 1000 for die in first["dies"]]
        second = until(lambda: (s := look(job)) and all(d["begun"] > k for d, k in zip(s["dies"], enough, strict=True))
                       and s, "more are")  # fmt: skip
        header, *rows = text.table(second, first).splitlines()
        rate = header.split().index("ops/s")
        assert header.split()[:3] == ["rank", "pid", "state"] and all(int(row.split()[rate]) > 0 for row in rows)
    until(lambda: not [j for j in finding.find() if j.token == job.token], "the job is gone")
