"""The launcher's parts by themselves: command line, report, tails, sinks, lines."""

import os
import selectors
import time

import pytest

from strata.launch import options, output, procs, report
from strata.launch.output import ERR, OUT, Forwarder, Tail
from strata.launch.sink import HIGH, Sink


def parsed(*arguments):
    return vars(options.parse(list(arguments)))


def test_command_line():
    got = parsed("-n", "4", "--hbm", "1G", "--timeout", "1.5", "--grace=0", "--tag-output", "--bind", "a.py", "-n", "9")
    assert got == {
        "n": 4, "hbm": 1 << 30, "timeout": 1.5, "grace": 0.0, "on_failure": "kill", "tag": True,
        "log_dir": None, "bind": True, "intercept": False, "kind": "script", "target": ["a.py", "-n", "9"],
        "clock": None, "clock_trace": None, "clock_json": None, "check": False, "check_json": None,
        "dump": None, "dump_dir": None, "weak_order": None, "restarts": 0,
        "trace": None, "trace_events": None, "trace_mode": "ring", "trace_sample": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "words, value, target",
    [
        (["--intercept", "a.py"], True, ["a.py"]),
        (["--intercept=4K", "a.py"], 4096, ["a.py"]),
        (["--intercept=0", "a.py"], 0, ["a.py"]),
        (["--intercept", "4K"], True, ["4K"]),  # a program of that name
    ],
)
def test_a_value_that_may_be_left_out(words, value, target):
    got = parsed("-n", "2", *words)
    assert (got["intercept"], got["target"]) == (value, target) and type(got["intercept"]) is type(value)


@pytest.mark.parametrize("count", [["-n", "3"], ["-n3"], ["--np", "3"], ["--np=3"], ["-np", "3"]])
@pytest.mark.parametrize(
    "target, kind, rest",
    [
        (["-m", "pkg.mod", "-x"], "module", ["pkg.mod", "-x"]),
        (["-mpkg"], "module", ["pkg"]),
        (["./a.out", "--np", "7"], "program", ["./a.out", "--np", "7"]),
        (["--", "-odd-"], "program", ["-odd-"]),
        (["-"], "program", ["-"]),
        (["dir/x.py"], "script", ["dir/x.py"]),
    ],
)
def test_count_and_target(count, target, kind, rest):
    got = parsed(*count, *target)
    assert (got["n"], got["kind"], got["target"]) == (3, kind, rest)


def test_ranks_as_text():
    assert report.ranks_text([3]) == "rank 3"
    assert report.ranks_text([5, 0, 2, 1]) == "ranks 0-2, 5"
    assert report.ranks_text([0, 1, 2, 4, 5, 9]) == "ranks 0-2, 4-5, 9"


def tail(err=b"", out=b""):
    made = Tail()
    made.add(ERR, err)
    made.add(OUT, out)
    return made


@pytest.mark.parametrize(
    "err, line",
    [
        (b"", ""),
        (b"some words\n", ""),
        (b"Error: not of Python\n", ""),
        (b"Traceback (most recent call last):\n  File x\n    f()\nValueError: no\n", "ValueError: no"),
        (b"Traceback (most recent call last):\n  File x\na.b.Odd\n", "a.b.Odd"),
        (b"Traceback (most recent call last):\n  File x\nValueError: one\ntwo, three!\n", "ValueError: one"),
        (b"Traceback (most recent call last):\n  File x\nKeyError: 1\n\nwords at the end.\n", "KeyError: 1"),
        (b"Traceback (most recent call last):\n  File x\nValueError: \xff\n", "ValueError: \\xff"),
    ],
)
def test_last_line_of_a_traceback(err, line):
    assert report.last_exception(tail(err, b"FakeError: said on stdout\n")) == line


def test_tail_is_bounded_and_keeps_the_end():
    made = Tail()
    for i in range(20000):
        made.add(OUT, b"line %d\n" % i)
    assert made.lines()[-1] == b"line 19999"
    assert output.TAIL_BYTES <= made._size < 2 * output.TAIL_BYTES
    made.add(OUT, b"z" * (10 << 20))
    assert made._size < 3 * output.TAIL_BYTES


def test_report_of_long_and_strange_lines():
    failures = [report.Failure(0, 1)]
    _, text = report.failure_text(failures, [tail(b"\xff" + b"y" * 5000 + b"\n" + b"\x1b[0m\n")], 1)
    assert all(len(line) < 2100 for line in text.splitlines())
    assert text.splitlines()[-1] == "strata-run: rank 0 of 1 failed: exit code 1"


@pytest.mark.parametrize(("status", "said"), [(0, True), (-9, False), (None, False)])
def test_report_names_a_rank_that_left_without_a_failure(status, said):
    waited = tail(b"Traceback (most recent call last):\n"
                  b"strata.errors.PeerDead: ranks 1, 2 died (or left the job) before it arrived\n")
    statuses = {0: 1, 1: status, 2: 1} if status is not None else {0: 1}
    _, text = report.failure_text([report.Failure(0, 1)], [waited], 3, statuses=statuses)
    assert ("strata-run: rank 1 did not fail, but ended (exit code 0)" in text) == said, text


def pipe_sink(selector, failures):
    read, write = os.pipe()
    os.set_blocking(read, False)
    sink = Sink(write, selector, lambda s, e: failures.append(e))
    os.close(write)
    return read, sink


def spin(selector, seconds=0.0):
    for key, events in selector.select(seconds):
        key.data(events)


def read_all(fd):
    data = b""
    try:
        while piece := os.read(fd, 1 << 16):
            data += piece
    except BlockingIOError:
        pass
    return data


def test_sink_never_blocks_and_loses_nothing():
    failures = []
    with selectors.DefaultSelector() as selector:
        read, sink = pipe_sink(selector, failures)
        data = os.urandom(3 << 20)
        sink.write(data)  # far more than a pipe holds
        assert sink.full and not sink.empty
        got = b""
        while not sink.empty:
            got += read_all(read)
            spin(selector, 1)
        got += read_all(read)
        assert got == data
        assert not failures
        assert not selector.get_map()
        os.close(sink._fd)
        os.close(read)


def test_the_users_descriptor_keeps_its_flags():
    read, write = os.pipe()
    with selectors.DefaultSelector() as selector:
        sink = Sink(write, selector, lambda *_: None)
        sink.write(b"x")
        assert os.get_blocking(write)
        assert not os.get_blocking(sink._fd)
        os.close(sink._fd)
    os.close(read)
    os.close(write)


def test_sink_whose_reader_leaves_fails_once():
    failures = []
    with selectors.DefaultSelector() as selector:
        read, sink = pipe_sink(selector, failures)
        os.close(read)
        sink.write(b"x")
        sink.write(b"y")
        assert [type(f) for f in failures] == [BrokenPipeError]
        assert sink.empty and sink.broken
        os.close(sink._fd)


class Dies:
    """A forwarder with pipes to write into, and its two outputs to read from."""

    def __init__(self, monkeypatch, n, tag=False):
        self.selector = selectors.DefaultSelector()
        self.forwarder = Forwarder(n, tag)
        self.ends = {}
        for rank in range(n):
            for stream in (OUT, ERR):
                read, self.ends[rank, stream] = os.pipe()
                self.forwarder.add(rank, stream, read, None)
        self.failures = []
        self.outs = []

        def sink(fd, selector, failed):
            read, made = pipe_sink(selector, self.failures)
            self.outs.append(read)
            return made

        monkeypatch.setattr(output, "Sink", sink)
        monkeypatch.setattr(output, "_same_file", lambda a, b: False)
        self.forwarder.begin(self.selector, lambda s, e: None)

    def write(self, rank, data, stream=OUT):
        os.write(self.ends[rank, stream], data)
        self.step()

    def close(self, rank):
        for stream in (OUT, ERR):
            os.close(self.ends.pop((rank, stream)))

    def step(self):
        self.forwarder.on_time()
        spin(self.selector)

    def said(self):
        return read_all(self.outs[0])

    def finish(self):
        got = b""
        for rank in {rank for rank, _ in self.ends}:
            self.close(rank)
        end = time.monotonic() + 10
        while not self.forwarder.finished():
            self.step()
            got += self.said()
            assert time.monotonic() < end
        got += self.said()
        for fd in [*self.outs, self.forwarder.out._fd, self.forwarder.err._fd]:
            os.close(fd)
        self.selector.close()
        return got


def test_pieces_of_lines_wait_for_their_end(monkeypatch):
    dies = Dies(monkeypatch, 2)
    dies.write(0, b"ab")
    dies.write(1, b"cd\n")
    assert dies.said() == b"cd\n"
    dies.write(0, b"ef\nrest")
    assert dies.said() == b"abef\n"
    time.sleep(output.PROMPT_AFTER)
    dies.step()
    assert dies.said() == b""  # rank 1 may write there too
    dies.close(1)
    dies.step()
    dies.step()
    assert dies.said() == b"rest"  # now nobody else does
    assert dies.finish() == b""


def test_a_line_too_long_to_hold_back_makes_others_wait(monkeypatch):
    dies = Dies(monkeypatch, 2)
    dies.forwarder.limit = 10
    dies.write(0, b"0" * 20)
    assert dies.said() == b"0" * 20
    dies.write(1, b"one\n")
    assert dies.said() == b""
    dies.write(0, b"end\nnext\n")
    dies.step()
    assert dies.said() == b"end\nnext\none\n"
    assert dies.finish() == b""


def test_nobody_waits_for_ever_for_the_end_of_a_line(monkeypatch):
    monkeypatch.setattr(output, "STALL", 0.05)
    dies = Dies(monkeypatch, 2)
    dies.forwarder.limit = 10
    dies.write(0, b"0" * 20)
    dies.write(1, b"one\n")
    assert dies.said() == b"0" * 20
    time.sleep(0.06)
    dies.step()
    dies.step()
    assert b"one\n" in dies.said() + dies.finish()


def test_a_full_output_stops_the_reading(monkeypatch):
    dies = Dies(monkeypatch, 1)
    os.set_blocking(dies.ends[0, OUT], False)
    sent = 0
    for _ in range(200):
        try:
            sent += os.write(dies.ends[0, OUT], b"x" * 65535 + b"\n")
        except BlockingIOError:
            break
        dies.step()
    assert HIGH < sent < 4 * HIGH  # the pipe is full: the die would wait
    assert len(dies.finish()) == sent


def test_title_changes_and_comes_back():
    def line():
        with open("/proc/self/cmdline", "rb") as file:
            return file.read()

    before, title = line(), procs.Title()
    title.set("strata-test")
    assert line().rstrip(b"\0") == b"strata-test"
    title.restore()
    assert line() == before
