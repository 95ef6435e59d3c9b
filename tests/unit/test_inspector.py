"""Reading UB spaces from outside: sound ones, and any garbage."""

import json
import os
import random
import struct

import pytest

from strata import bootstrap, config
from strata._core import inspector
from strata._core.inspector import Inspector
from strata.errors import CorruptSpace, InvalidArgument, StrataError
from strata.inspection import finding, processes, saving, snapshot, text, waiting


@pytest.fixture
def job():
    """A job without dies."""
    made = bootstrap.create_job(4, 1 << 30)
    yield made
    made.close()


def test_an_empty_job(job):
    space = Inspector(job.fd)
    assert (space.ndies, space.hbm_bytes, space.token) == (4, 1 << 30, job.token)
    assert space.die(3)["state"] == "absent" and not space.die(3)["locked"]
    assert space.group(0, 4)["ranks"] == [0, 1, 2, 3] and space.group(0, 3) is None and space.group(1 << 50, 4) is None
    assert space.flight(0)["records"] == [] and space.rings(0) is None and space.rings(1 << 44) is None
    seen = snapshot.take(space)
    assert [die["state"] for die in seen["dies"]] == ["not joined"] * 4 and not seen["waits"] and not seen["deadlocks"]
    assert text.table(seen).count("not joined") == 4
    for bad in (4, 1 << 31):
        with pytest.raises(CorruptSpace):
            space.die(bad)
        with pytest.raises(CorruptSpace):
            space.flight(bad)


def test_what_is_no_space_is_refused(tmp_path):
    for content in (b"", b"x" * 100, b"\0" * 4096, b"\xff" * 8192):
        path = tmp_path / "x"
        path.write_bytes(content)
        with open(path, "rb") as file, pytest.raises(CorruptSpace):
            Inspector(file.fileno())
    with pytest.raises(OSError):
        Inspector(987654)


def test_a_space_that_is_cut_off_is_an_error(job):
    space = Inspector(job.fd)
    os.truncate(job.fd, 4096)
    for call in (lambda: space.die(0), lambda: space.flight(0), lambda: space.lag(0, [1] * 4)):
        with pytest.raises(StrataError):
            call()
    assert space.group(0, 4) is None


def test_any_garbage_is_read_without_harm(job, seed=None):
    seed = seed or random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    size = os.fstat(job.fd).st_size
    control = 4 << 30
    whole = os.pread(job.fd, 1 << 18, control)
    for turn in range(40):
        garbage = bytearray(whole)
        density = rng.choice((1, 0.1, 0.01, 0.001))
        for at in range(0, len(garbage) - 8, 8):
            if rng.random() < density:
                state = 0xFF | rng.randrange(32) << 16
                value = rng.choice((rng.getrandbits(64), (1 << 64) - 1, rng.randrange(16), state))
                garbage[at : at + 8] = struct.pack("<Q", value)
        os.pwrite(job.fd, garbage, control)
        seen = snapshot.take(Inspector(job.fd), "x", 1)
        json.dumps(seen)
        said = [text.job_line(seen), text.table(seen), *text.waits(seen, 0.0), text.history(seen, 5)]
        said.append(text.history(seen))
        assert all(isinstance(line, str) for line in said), turn
        assert all(0 <= r < 4 for wait in seen["waits"] for r in wait["for"])
    header = os.pread(job.fd, 304, size - 4096)
    for _ in range(200):
        broken = bytearray(header)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(0, 160, 8)
            broken[at : at + 8] = struct.pack("<Q", rng.choice((rng.getrandbits(64), rng.randrange(9), (1 << 64) - 1)))
        os.pwrite(job.fd, broken, size - 4096)
        try:
            snapshot.take(Inspector(job.fd))
        except CorruptSpace:
            pass


def made_snapshot(records, n=3, epochs=None, states=None):
    """A snapshot of n dies: {rank: [record]} in progress in the world, with the epochs of lines."""
    world = {"id": 9, "name": "world", "ranks": list(range(n)), "failure": None,
             "lines": [[(e, 0, 0) for e in (epochs or [0] * n)]] * 2,
             "members": [{"done": 0, "began": 0, "shrink": 0, "left": 0}] * n}  # fmt: skip
    dies = [{"rank": r, "pid": 100 + r, "state": (states or {}).get(r, "running"), "operations": records.get(r, []),
             "records": records.get(r, [])} for r in range(n)]  # fmt: skip
    made = {"format": snapshot.FORMAT, "job": "ab" * 16, "name": "x.py", "launcher": 7, "time": 0.0,
            "now_ns": 10_000_000_000, "ndies": n, "hbm_bytes": 1 << 30, "dies": dies, "groups": [world]}  # fmt: skip
    made["waits"] = waiting.waits(made)
    made["deadlocks"] = waiting.deadlocks(made)
    return made


def record(kind="collective", number=5, peer=None, **more):
    return {"index": 0, "kind": kind, "peer": peer, "async": False, "phase": "arrival", "status": "", "group": 9,
            "number": number, "desc": 1, "count": 0, "bytes": 8, "begin_ns": 7_700_000_000, "end_ns": 0,
            **more}  # fmt: skip


def test_who_waits_for_whom_in_words():
    seen = made_snapshot({0: [record()], 1: [record()]}, epochs=[5, 5, 4], states={2: "stopped"})
    assert text.waits(seen) == [
        "ranks 0-1 wait for rank 2 in all_reduce #5 of world since 2.3 s, which is stopped (SIGSTOP)"]  # fmt: skip
    seen = made_snapshot({0: [record(phase="completion")], 1: [record(phase="execution")]})
    assert text.waits(seen) == ["rank 0 waits for ranks 1-2 in the end of all_reduce #5 of world since 2.3 s",
                                "rank 1 moves data with ranks 0, 2 in all_reduce #5 of world since 2.3 s"]  # fmt: skip
    seen = made_snapshot({0: [record("posts", 3, count=0b101)]}, states={2: "dead"})
    assert text.waits(seen) == ["rank 0 waits for rank 2 in round 3 of MoE of world since 2.3 s, which is dead"]


def test_only_what_is_certain_is_a_deadlock():
    circle = {0: [record("recv", peer=1)], 1: [record("recv", peer=2)], 2: [record("recv", peer=0)]}
    (found,) = made_snapshot(circle)["deadlocks"]
    assert [(w["rank"], w["for"]) for w in found] == [(0, [1]), (1, [2]), (2, [0])]
    assert made_snapshot({**circle, 1: []})["deadlocks"] == []
    asynchronous = {**circle, 1: [record("recv", peer=2, **{"async": True})]}
    assert made_snapshot(asynchronous)["deadlocks"] == []  # its program goes on, and may yet send
    waited = {**circle, 1: [*asynchronous[1], record("work")]}
    assert len(made_snapshot(waited)["deadlocks"]) == 1
    two = {**circle, 1: [*asynchronous[1], record("recv", peer=0, **{"async": True}), record("work")]}
    assert made_snapshot(two)["deadlocks"] == []  # which of the two it waits for is not known
    assert made_snapshot({**circle, 1: [record("recv", peer=2), record("recv", peer=0)]})["deadlocks"] == []


def test_saved_and_loaded(tmp_path):
    seen = made_snapshot({0: [record()]}, epochs=[5, 5, 4])
    for die in seen["dies"]:
        die.update(begun=1, cpu=0, cpu_seconds=0.0, reserved=0, cached=0, lag=0, rings=[], late_maps=0)
    path = tmp_path / "d.json"
    saving.save(seen, str(path))
    loaded = saving.load(str(path))
    assert text.waits(loaded) == text.waits(seen) and os.listdir(tmp_path) == ["d.json"]
    with pytest.raises(OSError):
        saving.save(seen, str(tmp_path / "no/such/d.json"))
    with pytest.raises(TypeError):
        saving.save({"x": object()}, str(path))
    assert os.listdir(tmp_path) == ["d.json"] and saving.load(str(path)) == loaded
    del loaded["dies"][0]["records"][0]["desc"]
    path.write_text(json.dumps(loaded))
    with pytest.raises(InvalidArgument, match="damaged"):
        saving.load(str(path))


def test_names_of_jobs():
    name = finding._name
    assert name(["python3", "-m", "strata.launch", "-n", "4", "/x/train.py", "--lr", "1"]) == "train.py"
    assert name(["/usr/bin/python", "/usr/bin/strata-run", "--hbm", "4G", "-n", "2", "-m", "a.b"]) == "a.b"
    assert name(["python", "-u", "run.py"]) == "run.py" and name(["./prog", "x.py"]) == "prog" and name([]) == ""
    assert name(["python", "-c", "pass"]) == "-c"


def test_choosing_a_job():
    jobs = [finding.Job("aa" * 16, "x.py", 0, (11, 12), ("", ""), 2),
            finding.Job("bb" * 16, "x.py", 5, (21,), ("",), 1)]  # fmt: skip
    assert finding.choose(jobs[:1], None) is jobs[0] and finding.choose(jobs, "12") is jobs[0]
    assert finding.choose(jobs, "bbbbbbbb") is jobs[1] and finding.choose(jobs, "5") is jobs[1]
    with pytest.raises(InvalidArgument, match=r"2 jobs x\.py"):
        finding.choose(jobs, "x.py")
    with pytest.raises(InvalidArgument, match="no job 99"):
        finding.choose(jobs, "99")
    with pytest.raises(InvalidArgument, match="strata-run"):
        finding.choose([], None)


def test_this_process(tmp_path):
    me = processes.look(os.getpid())
    assert me is not None and me.parent == os.getppid() and me.state == "R" and me.seconds > 0
    assert processes.look(1 << 30) is None and processes.command(1 << 30) == []
    (tmp_path / "7").mkdir()
    for broken in ("", "7 (a) b", "7 (x) S 1 2", "x" * 9000):
        (tmp_path / "7/stat").write_text(broken)
        assert processes.look(7, str(tmp_path)) is None
    assert processes.pids(str(tmp_path)) == [7]


def test_sizes_and_times():
    assert [text.size(n) for n in (0, 96, 1536, 20 << 20, int(2.3 * (1 << 30)), 3 << 40)] == [
        "0", "96", "1.5K", "20M", "2.3G", "3T"]  # fmt: skip
    assert [text.duration(s) for s in (12e-6, 0.0034, 12.3, 7500)] == ["12.0 us", "3.4 ms", "12.3 s", "2 h 05 min"]
    assert text.ranks([3]) == "rank 3" and text.ranks([5, 0, 1, 2]) == "ranks 0-2, 5"
    assert inspector.now_ns() > 0 and config.load().hbm_bytes > 0
