"""The server: garbled lines, many jobs, answers, bounded memory."""

import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from checking_play import Program, found

from strata.checking.analyser import Job
from strata.checking.events import BadEvent, parse
from strata.checking.server import Server

SECONDS = 20.0


class Serving:
    def __init__(self, **options):
        self.server = Server(**options)
        self.thread = threading.Thread(target=self.server.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop()
        self.server.close()

    def stop(self):
        self.server.stop()
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()
        return self.server

    def die(self, rank, size=1, job="job"):
        return Speaker(self.server.name, rank, size, job)


class Speaker:
    """A die's end of the connection."""

    def __init__(self, name, rank, size, job):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS)
        self.sock.connect("\0" + name)
        self.say({"e": "hello", "job": job, "rank": rank, "size": size, "pid": os.getpid()})

    def say(self, *events):
        text = [e if isinstance(e, str) else json.dumps(e) for e in events]
        self.sock.sendall("".join(f"{line}\n" for line in text).encode())

    def end(self):
        """Says so, and closes; what the server answers."""
        self.say({"e": "end", "t": 0})
        answer = self.sock.recv(100)
        self.sock.close()
        return json.loads(answer)


def play(serving, program, job="job"):
    """All of a program; the answers."""
    dies = [serving.die(rank, program.n, job) for rank in range(program.n)]
    for die, lines in zip(dies, program.lines, strict=True):
        die.say(*lines)
    return [die.end()["reports"] for die in dies]


def racing():
    p = Program(2)
    p.write(0, 0, 8)
    p.write(1, 0, 8)
    return p


def test_reports_and_answers():
    with Serving() as serving:
        assert play(serving, racing())[-1] == 1
        server = serving.stop()
        assert not server.clean and server.jobs_seen == 1
        assert found(server.reports()) == {("race", (1, 2))}
        assert "1 report (1 race)" in server.text()


def test_many_jobs_and_their_common_reports():
    with Serving() as serving:
        threads = [threading.Thread(target=play, args=(serving, racing(), f"job{k}")) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        server = serving.stop()
        (report,) = server.reports()
        assert report.count == 8 and server.jobs_seen == 8


BAD = ["{", "[]", '{"e": "acc", "t": 0}', '{"e": "what", "t": 0}', '{"e": "acc", "t": 0, "lo": 9, "hi": 1, "site": 0}',
       '{"e": "op", "t": 0, "group": "g", "n": 1, "op": "barrier", "members": [0, 0], "site": 0}',
       '{"e": "join", "t": 0, "c": 77}', '{"e": "alloc", "t": 0, "lo": "0", "hi": 1, "site": 0}',
       '{"e": "take", "t": 0, "key": 1, "value": 1}', '{"e": "fork", "t": -1, "c": 1}', "[" * 5000]  # fmt: skip


@pytest.mark.parametrize("line", BAD)
def test_a_garbled_line_is_a_problem_of_the_die_that_sent_it(line):
    with Serving() as serving:
        die = serving.die(3, 4, "abcdef")
        die.say(line, {"e": "site", "id": 1, "file": "prog.py", "line": 7}, {"e": "leak", "kind": "stream", "site": 1})
        assert die.end() == {"reports": 1}  # what follows still counts
        server = serving.stop()
        assert len(server.problems) == 1 and "rank 3 of job abcdef sent" in server.problems[0]
        assert server.problems[0][:300] in server.text() and not server.clean


def test_random_bytes_do_not_stop_it():
    with Serving() as serving:
        for _ in range(5):
            die = serving.die(0)
            die.sock.sendall(os.urandom(5000) + b"\n" + os.urandom(100))
            die.sock.close()
        play(serving, racing(), "good")
        server = serving.stop()
        assert len(server.reports()) == 1 and server.problems


def test_an_endless_line():
    with Serving() as serving:
        die = serving.die(0)
        for _ in range(3):
            die.sock.sendall(b"x" * (1 << 20))
        die.sock.close()
        play(serving, racing(), "good")
        assert "a line of more than" in serving.stop().problems[0]


def test_an_event_before_hello():
    with pytest.raises(BadEvent, match="rank"):
        parse(b'{"e": "hello", "job": "x", "rank": -1, "size": 1}')
    with Serving() as serving:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect("\0" + serving.server.name)
        sock.sendall(b'{"e": "end", "t": 0}\n')
        sock.close()
        play(serving, racing())
        assert "a die without a hello" in serving.stop().problems[0]


def test_deadlocks_are_told_at_once():
    told = []
    event = threading.Event()
    with Serving(urgent=lambda report: (told.append(report), event.set())) as serving:
        p = Program(2)
        p.come(0, "barrier", [0, 1], "left")
        p.come(1, "barrier", [0, 1], "right")
        dies = [serving.die(rank, 2) for rank in range(2)]
        for die, lines in zip(dies, p.lines, strict=True):
            die.say(*lines)
        assert event.wait(SECONDS)
        for die in dies:
            die.sock.close()
    assert [report.kind for report in told] == ["deadlock"]


def test_a_die_whose_peer_lags_far_behind_is_held_back_and_nothing_is_lost(monkeypatch):
    monkeypatch.setattr("strata.checking.server.WAITING", 100)
    p = Program(2)
    a = p.write(0, 5000, 5008)
    p.barrier()
    for k in range(3000):
        p.write(0, k, k + 1)
    b = p.write(1, 5000, 5004)
    with Serving() as serving:
        first, second = serving.die(0, 2), serving.die(1, 2)
        first.sock.settimeout(0.2)
        done = threading.Event()
        thread = threading.Thread(target=lambda: (first.say(*p.lines[0]), done.set()))
        first.sock.settimeout(SECONDS)
        thread.start()
        second.say(*p.lines[1])
        assert done.wait(SECONDS)
        thread.join(SECONDS)
        first.end(), second.end()
        server = serving.stop()
        assert not server.reports() and not server.problems, (a, b)


def test_memory_stays_bounded_in_a_long_run():
    """A loop with fresh memory, streams, flags and operations beside the program."""
    job = Job("long")
    dies = [job.join(parse(json.dumps({"e": "hello", "job": "long", "rank": r, "size": 2}).encode())) for r in range(2)]

    def say(rank, e, **fields):
        job.feed(dies[rank], parse(json.dumps({"e": e, "site": 1, **fields}).encode()))

    sizes = []
    for step in range(2000):
        for rank in range(2):
            lo, child = ((rank << 40) + step * 64, step + 1)
            say(rank, "alloc", t=0, lo=lo, hi=lo + 64)
            say(rank, "acc", t=0, lo=lo, hi=lo + 64, w=1)
            say(rank, "fork", t=0, c=child)
            mine = {"members": [0, 1], "reads": [[lo, lo + 64]]}
            say(rank, "op", t=child, group="g", name="g", n=step, op="all_reduce", **mine)
            say(rank, "opend", t=child, group="g", n=step, status="later")
            say(rank, "post", t=child, key=f"chain:{rank}", value=step)
            say(rank, "done", t=child)
            say(rank, "join", t=0, c=child)
            say(rank, "post", t=0, key=f"once:{rank}:{step}", value=1)
        for rank in range(2):
            say(rank, "take", t=0, key=f"once:{1 - rank}:{step}", value=1)
            say(rank, "free", t=0, lo=(rank << 40) + step * 64, hi=(rank << 40) + step * 64 + 32)
        if step in (500, 1999):
            job.sweep()
            clocks = sum(len(task.clock) for die in dies for task in die.tasks.values())
            sizes.append((job.accesses.shadow.entries(), clocks, len(job.arrivals), job.pending, len(dies[0].open)))
    assert sizes[0] == sizes[1] and not len(job.reports)
    assert sizes[1][0] < 50


def test_the_command_and_its_status(tmp_path):
    talk = (
        "import json, os, socket\n"
        "for rank in range(2):\n"
        "    s = socket.socket(socket.AF_UNIX); s.connect('\\0' + os.environ['STRATA_CHECK'])\n"
        "    lines = [{'e': 'hello', 'job': 'j', 'rank': rank, 'size': 2, 'pid': 1},\n"
        "             {'e': 'site', 'id': 1, 'file': 'prog.py', 'line': rank + 1},\n"
        "             {'e': 'acc', 't': 0, 'lo': 0, 'hi': 8, 'w': 1, 'site': 1}, {'e': 'end', 't': 0}]\n"
        "    s.sendall(''.join(json.dumps(x) + '\\n' for x in lines).encode()); s.recv(100)\n"
    )
    command = [sys.executable, "-m", "strata.checking.server", "--json", tmp_path / "out", "--"]
    done = subprocess.run([*command, sys.executable, "-c", talk], capture_output=True, text=True, timeout=60)
    assert done.returncode == 65 and "strata check: race" in done.stderr, done.stderr
    first, last = map(json.loads, (tmp_path / "out").read_text().splitlines())
    assert first["kind"] == "race" and [side["line"] for side in first["sides"]] == [1, 2]
    assert last["kind"] == "summary" and last["reports"] == 1 and last["jobs"] == 1
    assert subprocess.run([*command, "false"], capture_output=True, timeout=60).returncode == 1
    assert subprocess.run([*command, "true"], capture_output=True, timeout=60).returncode == 0


def test_what_was_found_is_taken_once():
    """As a test suite takes it: also of a job that goes on, and of one to which not all have come."""
    site = {"e": "site", "id": 1, "file": "prog.py", "line": 1}
    write = {"e": "acc", "t": 0, "lo": 0, "hi": 8, "w": 1, "site": 1}
    with Serving() as serving:
        stays = [serving.die(rank, 2, "stays") for rank in range(2)]
        for die in stays:
            die.say(site, write)
        reports, problems = serving.server.take(SECONDS)
        assert [r.kind for r in reports] == ["race"] and not problems
        assert serving.server.take(SECONDS) == ([], [])
        goes = serving.die(0, 2, "goes")
        goes.say(site, {"e": "post", "t": 0, "key": "p2p:g:0:1:0", "value": 1, "site": 1}, "nonsense")
        goes.end()
        for die in stays:
            die.say({**write, "lo": 8, "hi": 16})
        reports, problems = serving.server.take(SECONDS)
        assert sorted(r.kind for r in reports) == ["leak", "race"] and len(problems) == 1
        for die in stays:
            die.sock.close()
        assert serving.server.take(SECONDS) == ([], [])
        assert not serving.stop().reports()


def test_a_fast_server():
    """No assertion on time: a figure for whoever looks (pytest -s)."""
    p = Program(2)
    for _ in range(100):
        for rank in range(2):
            for k in range(20):
                p.write(rank, (rank << 20) + 64 * k, (rank << 20) + 64 * k + 64)
        p.barrier()
    begin = time.perf_counter()
    job = p.feed(seed=5)
    took = time.perf_counter() - begin
    lines = sum(map(len, p.lines))
    print(f"\n{lines} lines in {took:.3f} s: {lines / took:.0f} a second")
    assert not len(job.reports)
