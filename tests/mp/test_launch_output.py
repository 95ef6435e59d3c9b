"""Output: whole lines, every byte, nothing lost, nothing that grows without bound."""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
from launching import (
    COMMAND,
    PATIENCE,
    Running,
    all_gone,
    all_there,
    environment,
    plain,
    run,
    says,
    sleeper,
    until,
    write,
)


def script_of(tmp_path, body):
    """A script in which rank, out and err are known."""
    head = "import os, sys, time\nrank = int(os.environ['STRATA_RANK'])\n"
    head += "out = sys.stdout.buffer\nerr = sys.stderr.buffer\n"
    path = tmp_path / "script.py"
    write(path, body)
    path.write_text(head + path.read_text())
    return path


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"x",
        b"no end",
        b"a\nno end",
        b"\xff\xfe\n",
        b"\0\0\n\0",
        b"\r\n\r",
        b"\x1b[1m\n",
        bytes(range(256)) * 9,
    ],
    ids=lambda data: repr(data[:6]),
)
def test_bytes_of_one_die_come_through_untouched(tmp_path, data):
    script = script_of(tmp_path, f"out.write({data!r}); err.write({data!r})")
    got = run("-n", 1, script)
    assert (got.stdout, got.stderr) == (data, data)


def test_bytes_of_many_dies_come_through_untouched(tmp_path):
    """Lines without newline at the end too: none is added, none lost."""
    script = script_of(tmp_path, "out.write(b'a%d\\n' % rank * 3 + b'\\xff%d' % rank)")
    got = run("-n", 4, script)
    assert got.stdout.endswith(b"\xff0\xff1\xff2\xff3")
    assert sorted(got.stdout[:-8].splitlines()) == sorted([b"a%d" % r for r in range(4)] * 3)


def test_lines_are_atomic_even_when_dies_write_in_pieces(tmp_path):
    script = script_of(
        tmp_path,
        """
        import random
        for i in range(300):
            line = b"%d:%d:" % (rank, i) + b"%c" % (97 + rank) * random.randrange(3000) + b":end\\n"
            cut = random.randrange(len(line))
            for piece in line[:cut], line[cut:]:
                os.write(random.choice((1, 1)), piece)
        """,
    )
    got = run("-n", 4, script)
    lines = got.stdout.splitlines()
    assert len(lines) == 1200
    seen = [re.fullmatch(rb"(\d):(\d+):(a*|b*|c*|d*):end", line) for line in lines]
    assert all(seen)
    for rank in range(4):  # and each die's lines in their order
        assert [int(m[2]) for m in seen if int(m[1]) == rank] == list(range(300))


def test_both_streams_into_one_file_do_not_mix(tmp_path):
    script = script_of(
        tmp_path,
        """
        for i in range(200):
            fd = 1 + (i + rank) % 2
            os.write(fd, b"<%d " % rank)
            os.write(fd, b"%d>\\n" % i)
        """,
    )
    got = run("-n", 3, script, stderr=subprocess.STDOUT)
    lines = got.stdout.splitlines()
    assert len(lines) == 600
    assert all(re.fullmatch(rb"<\d \d+>", line) for line in lines)


@pytest.mark.parametrize("size", [1 << 20, 9 << 20], ids=["1MiB", "9MiB"])
def test_long_lines_stay_whole(tmp_path, size):
    """Longer than what the launcher holds back, too: the others wait."""
    script = script_of(tmp_path, f"out.write(b'%c' % (97 + rank) * {size} + b'\\n'); out.flush(); print(rank)")
    got = run("-n", 3, script)
    lines = got.stdout.splitlines()
    assert sorted(map(len, lines)) == [1] * 3 + [size] * 3
    assert {line for line in lines if len(line) > 1} == {b"%c" % c * size for c in b"abc"}


def test_short_lived_dies_lose_nothing():
    got = run("-n", 24, "sh", "-c", "i=0; while [ $i -lt 50 ]; do echo $STRATA_RANK.$i; i=$((i+1)); done; echo e >&2")
    assert sorted(got.stdout.split()) == sorted(b"%d.%d" % (r, i) for r in range(24) for i in range(50))
    assert got.stderr == b"e\n" * 24


def test_output_before_a_crash_is_kept(tmp_path):
    script = script_of(tmp_path, "os.write(1, b'y' * 60000 + b'\\n' + b'tail'); os.kill(os.getpid(), 9)")
    got = run("-n", 2, script)
    assert got.returncode == 137
    assert got.stdout.count(b"y") == 120000
    assert got.stdout.count(b"tail") == 2


def test_tag_output(tmp_path):
    script = script_of(tmp_path, "out.write(b'one\\n\\ntwo'); err.write(b'\\xff\\n')")
    got = run("-n", 3, "--tag-output", script)
    lines = got.stdout.split(b"\n")
    for rank in range(3):
        own = [line for line in lines if line.startswith(b"[%d]" % rank)]
        assert own == [b"[%d] one" % rank, b"[%d] " % rank, b"[%d] two" % rank]
    assert len(lines) == 9
    assert sorted(got.stderr.splitlines()) == [b"[%d] \xff" % r for r in range(3)]


def test_log_dir_has_all_bytes_as_well(tmp_path):
    script = script_of(tmp_path, "out.write(b'out %d\\xff' % rank); err.write(b'err %d\\n' % rank)")
    logs = tmp_path / "new" / "logs"
    got = run("-n", 3, "--log-dir", logs, script)
    assert sorted(p.name for p in logs.iterdir()) == sorted(f"rank.{r}.{s}" for r in range(3) for s in ("out", "err"))
    for rank in range(3):
        assert (logs / f"rank.{rank}.out").read_bytes() == b"out %d\xff" % rank
        assert (logs / f"rank.{rank}.err").read_bytes() == b"err %d\n" % rank
    assert got.stdout == b"out 0\xffout 1\xffout 2\xff"
    again = run("-n", 1, "--log-dir", logs, "true")
    assert again.returncode == 0
    assert (logs / "rank.0.out").read_bytes() == b""


def test_log_dir_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    got = run("-n", 2, "--log-dir", tmp_path / "file" / "logs", "true")
    assert got.returncode == 125
    assert got.stderr.count(b"\n") == 1
    assert b"logs" in got.stderr or b"file" in got.stderr


def test_full_disk_under_a_log_ends_the_job_with_its_name(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank.1.out").symlink_to("/dev/full")
    script = sleeper(tmp_path, "there(); print('x', flush=True); time.sleep(1000)")
    with Running("-n", 2, "--grace", 0.2, "--log-dir", tmp_path / "logs", script, tmp_path) as job:
        code, out, err = job.end()
    assert code == 125
    assert err.decode().splitlines()[-1] == (
        f"strata-run: cannot write {tmp_path}/logs/rank.1.out: No space left on device"
    )
    all_gone(says(tmp_path / "there.*"))


def test_full_disk_under_standard_output(tmp_path):
    script = sleeper(tmp_path, "there(); print('x', flush=True); time.sleep(1000)")
    with open("/dev/full", "wb") as full:
        got = run("-n", 2, "--grace", 0.2, script, tmp_path, stdout=full)
    assert got.returncode == 125
    assert got.stderr == b"strata-run: cannot write standard output: No space left on device\n"


def test_reader_that_leaves_ends_the_job_quietly(tmp_path):
    script = sleeper(
        tmp_path,
        """
        there()
        while True:
            print("y" * 100)
        """,
    )
    command = " ".join(map(str, [*COMMAND, "-n", 3, script, tmp_path]))
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -n 5; echo ${{PIPESTATUS[0]}}"],
        env=environment(), capture_output=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.stdout.splitlines() == [b"y" * 100] * 5 + [b"141"]
    assert done.stderr == b""
    all_gone(says(tmp_path / "there.*"))


def test_reader_that_was_never_there(tmp_path):
    script = sleeper(tmp_path, "print('x', flush=True); there(); time.sleep(1000)")
    read, write_end = os.pipe()
    os.close(read)
    with Running("-n", 2, "--grace", 5, script, tmp_path, stdout=write_end) as job:
        os.close(write_end)
        code, _, err = job.end()
    assert (code, err) == (141, b"")


def test_slow_reader_holds_the_dies_back_and_not_the_memory(tmp_path):
    total = 64 << 20
    script = sleeper(
        tmp_path,
        f"""
        there()
        line = b"z" * 999 + b"\\n"
        for _ in range({total} // 1000):
            os.write(1, line)
        there("done")
        """,
    )
    read, write_end = os.pipe()
    with Running("-n", 2, script, tmp_path, stdout=write_end) as job:
        os.close(write_end)
        all_there(tmp_path, 2)
        keeper = psutil.Process(job.keeper())
        before = keeper.memory_info().rss
        # Full, when neither die makes progress any more: both sleep in their write.
        dies = [psutil.Process(pid) for pid in all_there(tmp_path, 2)]

        def stuck():
            first = [d.cpu_times() for d in dies]
            time.sleep(0.2)
            return first == [d.cpu_times() for d in dies]

        until(stuck, "dies wait for the reader")
        assert keeper.memory_info().rss - before < 16 << 20
        assert not list(tmp_path.glob("done.*"))
        got = 0
        while piece := os.read(read, 1 << 20):
            got += len(piece)
        assert got == 2 * (total // 1000) * 1000
        assert job.end()[0] == 0
    os.close(read)


def test_ctrl_c_reaches_a_job_whose_reader_sleeps(tmp_path):
    script = sleeper(tmp_path, "there()\nwhile True:\n    os.write(1, b'z' * 999 + b'\\n')")
    read, write_end = os.pipe()
    with Running("-n", 2, "--grace", 0.5, script, tmp_path, stdout=write_end) as job:
        os.close(write_end)
        pids = all_there(tmp_path, 2)
        job.process.send_signal(signal.SIGINT)
        all_gone(pids)
        time.sleep(0.1)  # longer than what counts as an echo
        job.process.send_signal(signal.SIGINT)  # do not wait for the reader either
        assert job.process.wait(PATIENCE) == 130
    os.close(read)


def test_output_to_a_socket(tmp_path):
    script = script_of(tmp_path, "out.write(b'%d' % rank * 300000 + b'\\n')")
    mine, theirs = socket.socketpair()
    with mine, Running("-n", 2, script, stdout=theirs.fileno()) as job:
        theirs.close()
        data = b""
        while piece := mine.recv(1 << 16):
            data += piece
        assert job.end()[0] == 0
    assert sorted(data.splitlines()) == [b"0" * 300000, b"1" * 300000]


def test_output_to_a_file(tmp_path):
    script = script_of(tmp_path, "print(rank); print('e', rank, file=sys.stderr)")
    with open(tmp_path / "log", "wb") as log:
        got = run("-n", 4, script, stdout=log, stderr=log)
    assert got.returncode == 0
    lines = (tmp_path / "log").read_bytes().splitlines()
    assert sorted(lines) == sorted([b"%d" % r for r in range(4)] + [b"e %d" % r for r in range(4)])


def test_a_stranger_that_keeps_a_pipe_open_hangs_nobody(tmp_path):
    """Its descriptor was handed out of the job, so its death is not ours to bring about."""
    path = str(tmp_path / "socket")
    script = script_of(
        tmp_path,
        """
        import socket
        s = socket.socket(socket.AF_UNIX)
        s.connect(sys.argv[1])
        socket.send_fds(s, [b"x"], [1, 2])
        s.recv(1)
        print("said")
        """,
    )
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        with Running("-n", 1, script, path) as job:
            client, _ = server.accept()
            _, fds, _, _ = socket.recv_fds(client, 1, 2)
            client.send(b"x")
            assert job.end() == (0, b"said\n", b"")
            client.close()
        for fd in fds:
            os.close(fd)


def test_a_grandchild_that_keeps_a_pipe_open_ends_with_the_job(tmp_path):
    script = sleeper(
        tmp_path,
        """
        import subprocess
        p = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        there("deep", p.pid)
        there()
        print("said")
        """,
    )
    with Running("-n", 2, script, tmp_path) as job:
        assert job.end() == (0, b"said\n" * 2, b"")
        all_gone(all_there(tmp_path, 2, "deep"))


def test_an_unfinished_line_is_shown_to_a_lone_reader(tmp_path):
    """One die, one stream left: a prompt comes through a pipe as well."""
    script = script_of(tmp_path, "os.close(2); print('name? ', end='', flush=True); print(sys.stdin.readline())")
    with Running("-n", 1, script, stdin=subprocess.PIPE) as job:
        assert select.select([job.process.stdout], [], [], PATIENCE)[0]
        assert os.read(job.process.stdout.fileno(), 100) == b"name? "
        job.process.stdin.write(b"x\n")
        job.process.stdin.close()
        job.process.stdin = None
        assert job.end() == (0, b"x\n\n", b"")


def test_output_is_buffered_as_python_does(tmp_path):
    """Block-buffered into a pipe: os.write overtakes print."""
    script = script_of(tmp_path, "print('printed')\nos.write(1, b'written\\n')")
    env = {**environment()}
    assert run("-n", 1, script, env=env).stdout == b"written\nprinted\n"
    assert plain(script, env={**env, "STRATA_RANK": "0"}).stdout == b"written\nprinted\n"
    env["PYTHONUNBUFFERED"] = "1"
    assert run("-n", 1, script, env=env).stdout == b"printed\nwritten\n"


def test_c_code_that_prints_is_not_lost(tmp_path):
    script = script_of(tmp_path, "import ctypes; ctypes.CDLL(None).printf(b'from C\\n')")
    assert run("-n", 2, script).stdout == b"from C\n" * 2


def test_the_launchers_own_exit_flushes_everything_to_a_slow_reader(tmp_path):
    script = script_of(tmp_path, "out.write(b'w' * 3000000 + b'\\n')")
    command = " ".join(map(str, [*COMMAND, "-n", 2, script]))
    reader = f"{sys.executable} -S -c 'import sys, time; time.sleep(1); print(len(sys.stdin.buffer.read()))'"
    done = subprocess.run(["sh", "-c", f"{command} | {reader}"], env=environment(), capture_output=True, timeout=60)
    assert done.stdout == b"6000002\n"
