"""A job with the emulated clock: always the same times, what the launcher says of them, and what it refuses."""

import itertools
import json
import random
import time

import launching
import pytest

import strata
from strata import clock, config, selection

pytestmark = pytest.mark.unchecked("a job is checked or timed, not both")

MACHINE = "cm384"


def play_everything(seed):
    """A program that does all of it, on dies that are really late now and then."""
    g, late = strata.world(), random.Random(seed + strata.world().rank)
    draw = random.Random(5)  # the same on all dies and in all runs
    half, s = g.split(g.rank % 2), strata.Stream()
    x, y = strata.ones(30_000, "f4"), strata.empty((g.size, 30_000), "f4")
    with strata.capture() as graph:
        g.all_gather(x, y)
        half.all_reduce(x)
    works, seen = [], []
    for _ in range(30):
        if late.random() < 0.1:
            time.sleep(0.002)
        clock.compute(us=draw.randrange(30) + g.rank)
        what = draw.randrange(8)
        if what == 0:
            works.append((g if draw.random() < 0.5 else half).all_reduce(x, async_op=True))
        elif what == 1:
            with strata.stream(s):
                g.all_gather(x, y)
                half.all_reduce(x)
                g.broadcast(x)
        elif what == 2:
            graph.replay()
        elif what == 3:
            peer = (g.rank + 1) % g.size
            work = g.recv(x[:2000], (g.rank - 1) % g.size, async_op=True)
            g.send(y[0, :2000], peer)
            work.wait()
        elif what == 4 and works:
            works.pop(0).wait()
        elif what == 5:
            s.synchronize()
        else:
            g.all_reduce(x[: draw.choice((8, 1000, 30_000))])
        seen.append(round(clock.now() * 1e6))
    for work in works:
        work.wait()
    s.close()
    return seen, clock.report()


@pytest.mark.parametrize("n", (3,))
def test_the_same_program_takes_the_same_time(n, capfd):
    runs = [strata.spawn(play_everything, n, 100 * k, clock=MACHINE, timeout=60) for k in range(3)]
    for one, other in itertools.pairwise(runs):
        assert one == other
    assert all(seen == sorted(seen) and seen[-1] > 0 for seen, _ in runs[0])
    assert capfd.readouterr().err.count(f"strata clock: {n} dies of {MACHINE}") == 3


SCRIPT = """
import strata
from strata import clock
g = strata.world()
x = strata.ones(50_000, "f4")
clock.compute(us=10.0 + g.rank)
g.all_reduce(x)
work = g.all_reduce(x, async_op=True)
clock.advance(2.5)
work.wait()
s = strata.Stream()
with strata.stream(s):
    g.broadcast(x)
s.synchronize()
print(clock.enabled(), clock.now() > 0, bool(clock.report()), x[0], clock.compute(flops=1e9) > 0, flush=True)
"""


def test_the_launcher_says_what_the_clocks_say(tmp_path):
    script = launching.write(tmp_path / "script.py", SCRIPT)
    files = tmp_path / "trace.json", tmp_path / "clock.json"
    done = launching.run("--clock", MACHINE, "--clock-trace", files[0], f"--clock-json={files[1]}", "-n", 3, script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(b"\n")[:3] == [b"True True True 9.0 True"] * 3
    table, found = done.stderr.decode(), json.loads(files[1].read_text())
    assert f"3 dies of {MACHINE}" in table and f"slowest: die {found['slowest']}" in table and "broadcast" in table
    assert found["machine"] == MACHINE and found["missing"] == [] and [r["rank"] for r in found["ranks"]] == [0, 1, 2]
    for rank, row in enumerate(found["ranks"]):
        rest = row["time_us"] - row["advance_us"] - row["compute_us"]
        assert row["advance_us"] == 2.5 and row["compute_us"] > 10 + rank and rest == pytest.approx(row["exposed_us"])
        assert row["operations"]["all_reduce"]["calls"] == 2 and row["operations"]["all_reduce"]["bytes"] == 400_000
        assert row["overlapped_us"] == pytest.approx(row["operations_us"] - row["exposed_us"])
    check_trace(json.loads(files[0].read_text()), found)


def check_trace(trace, found):
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert {e["pid"] for e in events} == {0, 1, 2} and {"host", "group world"} <= set(names.values())
    for pid, tid in names:
        mine = sorted((e["ts"], e["dur"]) for e in events if (e["pid"], e["tid"]) == (pid, tid))
        assert mine and all(a + b <= c + 1e-6 for (a, b), (c, _) in itertools.pairwise(mine))  # none overlap
    for row in found["ranks"]:
        host = sum(e["dur"] for e in events if e["pid"] == row["rank"] and names[e["pid"], e["tid"]] == "host")
        assert host == pytest.approx(row["time_us"])  # the host computes, or is blocked


def test_the_same_script_without_a_clock(tmp_path):
    script = launching.write(tmp_path / "script.py", SCRIPT)
    done = launching.run("-n", 2, script)
    assert done.returncode == 0 and done.stderr == b"", done.stderr
    assert done.stdout.split(b"\n")[:2] == [b"False False False 4.0 False"] * 2


def test_one_die_without_a_launcher(tmp_path):
    script = launching.write(tmp_path / "script.py", SCRIPT)
    found = tmp_path / "clock.json"
    env = launching.environment(STRATA_CLOCK=MACHINE, STRATA_CLOCK_JSON=str(found))
    done = launching.plain(script, env=env)
    assert done.returncode == 0 and b"1 dies of cm384" in done.stderr, done.stderr
    assert json.loads(found.read_text())["dies"] == 1


def test_dies_that_do_not_report(tmp_path):
    script = launching.write(tmp_path / "script.py", """
        import os, strata
        g = strata.world()
        g.barrier()
        os._exit(0)
    """)  # fmt: skip
    done = launching.run("--clock", MACHINE, "-n", 2, script)
    assert done.returncode == 0 and b"no die has reported" in done.stderr


@pytest.mark.parametrize("arguments", (["--clock", "cm385"], ["--clock", "nowhere.toml"], ["--clock-json", "x.json"]))
def test_what_the_launcher_refuses(tmp_path, arguments):
    script = launching.write(tmp_path / "script.py", "print('ran')")
    done = launching.run(*arguments, "-n", 2, script, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == b"", done
    assert b"STRATA_CLOCK" in done.stderr and (b"cm384" in done.stderr or b"cannot be read" in done.stderr)


def test_a_file_that_cannot_be_written(tmp_path):
    script = launching.write(tmp_path / "script.py", """
        import os, strata
        if strata.world().rank == 0:
            os.remove("x")
            os.mkdir("x")
        strata.world().barrier()
    """)  # fmt: skip
    done = launching.run("--clock", MACHINE, "--clock-json", tmp_path / "none" / "x", "-n", 2, script)
    assert done.returncode == 2 and b"STRATA_CLOCK_JSON" in done.stderr and done.stderr.count(b"\n") == 1
    done = launching.run("--clock", MACHINE, "--clock-json", tmp_path / "x", "-n", 2, script, cwd=tmp_path)
    assert done.returncode == 125 and b"cannot write" in done.stderr and b"slowest" in done.stderr


def test_spawn_refuses_what_there_is_not():
    with pytest.raises(strata.ConfigError, match="cm385.*there are cm384"):
        strata.spawn(play_everything, 2, 0, clock="cm385")
    with pytest.raises(ValueError, match="clock="):
        strata.spawn(play_everything, 2, 0, clock=3)
    with pytest.raises(strata.ConfigError, match="the machine has 768 dies, and the job 769"):
        clock.check(MACHINE, 768, 769)


WRONG = ({"us": float("nan")}, {"us": -1}, {"flops": -1}, {"bytes": "x"}, {"us": 1, "flops": 1}, {"us": 1e10},
         {"flops": float("inf")}, {"flops": 1e300}, {"us": 10**400})  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_wrong_arguments_are_errors_without_a_clock_too(wrong):
    with pytest.raises(ValueError, match="compute"):
        clock.compute(**wrong)
    with pytest.raises(ValueError, match="advance"):
        clock.advance(wrong.get("us", -1) if wrong.get("us") != 1 else None)


LONG = """
import strata
from strata import clock, errors
g = strata.comm.world()
for flops in (1e23, 1e15):
    try:
        took = clock.compute(flops=flops)
    except errors.InvalidArgument as error:
        assert flops == 1e23 and "at most" in str(error), error
        continue
    assert flops == 1e15 and 1e6 < took < 1e7, took
number = 0
try:
    while number < 300:
        clock.advance(9e9)
        number += 1
except errors.InvalidArgument as error:
    assert "ends at" in str(error), error
assert 250 < number < 300, number
g.barrier()
print(f"{clock.now():.6g}")
"""


def test_times_that_are_too_long_are_refused_at_once(tmp_path):
    script = tmp_path / "long.py"
    script.write_text(LONG)
    done = launching.run("--clock", MACHINE, "-n", 2, script)
    assert done.returncode == 0 and len(set(done.stdout.split())) == 1, done.stderr.decode()


QUEUE = """
import strata
from strata import clock
g = strata.comm.world()
x = strata.ones(1 << 18, "f4")
call = g.send if g.rank == 0 else g.recv
g.barrier()
ends = [clock.now()]
for number in (1, 10):
    works = [call(x, 1 - g.rank, async_op=True) for _ in range(number)]
    for work in reversed(works):
        work.wait()
    ends.append(clock.now())
print(ends[1] - ends[0], ends[2] - ends[1])
"""


def test_messages_of_one_tag_follow_each_other(tmp_path):
    script = tmp_path / "messages.py"
    script.write_text(QUEUE)
    done = launching.run("--clock", MACHINE, "-n", 2, script)
    assert done.returncode == 0, done.stderr.decode()
    for line in done.stdout.decode().splitlines():
        alone, ten = map(float, line.split())
        assert ten == pytest.approx(10 * alone, rel=0.02)


def test_selection_goes_by_the_machine():
    found = selection._read(config.load({"STRATA_CLOCK": MACHINE}))
    machine = strata.machine.load(MACHINE)
    assert (found.topology, found.cost, found.model) == (machine.place, machine.cost, machine.model)
    assert found.cores == machine.die.cores and found.options[""].path is None
    named = selection._read(config.load({"STRATA_CLOCK": MACHINE, "STRATA_CORES": "3", "STRATA_ALGORITHM": "ring"}))
    assert named.cores == 3 and named.options[""].algorithm == "ring"
    assert selection._read(config.load({})).model is not machine.model
