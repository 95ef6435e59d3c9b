"""Other users of the host: they can neither join a job, nor read its memory, nor have its files written elsewhere.

What a second user can do is tried as one: a forked process that keeps no descriptor, as user and group 65534.  Only
root can become one; elsewhere these tests skip.
"""

import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from launching import run, write

from strata import bootstrap, errors
from strata._core import backing

NOBODY = 65534
ROOT = os.geteuid() == 0
PYTHON = os.path.realpath(sys.executable)


def as_nobody(code, *arguments):
    """What Python code prints as another user, in a forked process that keeps no descriptor.  Skips unless root."""
    if not ROOT:
        pytest.skip("only root can become another user")
    read, write_ = os.pipe()
    child = os.fork()
    if child == 0:
        _become_nobody(code, [str(a) for a in arguments], write_)
    os.close(write_)
    with open(read) as file:
        said = file.read()
    assert os.waitpid(child, 0)[1] == 0, said
    return said


def _become_nobody(code, arguments, out):
    """Runs the code in this process, a forked child, and ends it."""
    status = 1
    try:
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.closerange(3, 65536)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        sys.stdout = sys.stderr = open(1, "w", closefd=False)
        sys.argv = ["-c", *arguments]
        exec(compile(code, "as_nobody", "exec"), {})
        sys.stdout.flush()
        status = 0
    except BaseException as error:
        os.write(1, repr(error).encode())
    finally:
        os._exit(status)


def test_the_other_user_is_another():
    """So that the refusals below are those that are looked for."""
    assert as_nobody("import os; print(os.getuid(), os.getgid(), os.getgroups())").split()[:2] == [str(NOBODY)] * 2


@pytest.fixture
def job():
    made = bootstrap.create_job(2, 1 << 22)
    made.serve()
    yield made
    made.close()


CONNECT = """
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(20)
try:
    s.connect("\\0" + sys.argv[1])
    got, fds, _, _ = socket.recv_fds(s, 64, 4)
    print("got", len(got), len(fds))
except OSError as error:
    print("error", error.errno)
"""


def served(job, run_client):
    """What a client prints while the job answers requests as its launcher does."""
    over = threading.Event()

    def answer():
        while not over.is_set():
            job.accept()
            time.sleep(0.005)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        return run_client()
    finally:
        over.set()
        thread.join()


def test_another_user_who_knows_the_socket_gets_nothing(job):
    name = job.env(0)["STRATA_JOB_SOCKET"]
    said = served(job, lambda: as_nobody(CONNECT, name)).split()
    assert said[0] == "error" or said == ["got", "0", "0"]  # closed before a byte was sent
    own = served(job, lambda: subprocess.run([PYTHON, "-I", "-S", "-c", CONNECT, name], capture_output=True, text=True,
                                             timeout=60).stdout.split())  # fmt: skip
    assert own[0] == "got" and own[2] == "1"  # this user gets the descriptor: it was not the socket that refused


def test_a_socket_of_another_user_is_not_believed():
    """Who takes the name of a job's socket cannot hand this user's dies a space of his own."""
    if not ROOT:
        pytest.skip("only root can become another user")
    name = f"strata.test.{os.getpid()}.{time.time_ns()}"
    code = """
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind("\\0" + sys.argv[1])
s.listen(8)
print("up", flush=True)
c, _ = s.accept()
import array
fd = os.memfd_create("x")
try:
    c.sendmsg([b"strata ub 1\\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    c.recv(1)
except OSError:
    pass
"""
    ready, up = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ready)
        _become_nobody(code, [name], up)
    os.close(up)
    try:
        assert os.read(ready, 16) == b"up\n"
        with pytest.raises(errors.NotInJob, match="another user"):
            bootstrap._ask(name, time.monotonic() + 20, "rank 1")
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(ready)


READ = """
import os, sys
pid = sys.argv[1]
def attempt(what, call):
    try:
        print(what, "done", call())
    except OSError as error:
        print(what, "refused")
attempt("list", lambda: len(os.listdir(f"/proc/{pid}/fd")))
for fd in sys.argv[2:]:
    attempt("open", lambda: os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY))
attempt("maps", lambda: len(os.listdir(f"/proc/{pid}/map_files")))
attempt("memory", lambda: os.open(f"/proc/{pid}/mem", os.O_RDONLY))
attempt("environment", lambda: len(open(f"/proc/{pid}/environ").read()))
"""


def test_another_user_cannot_open_the_space_by_way_of_proc(job):
    said = as_nobody(READ, os.getpid(), job.fd).splitlines()
    assert len(said) == 5 and all(line.endswith("refused") for line in said), said
    line = [PYTHON, "-I", "-S", "-c", READ, str(os.getpid()), str(job.fd)]
    own = subprocess.run(line, capture_output=True, text=True, timeout=60).stdout.splitlines()
    assert all(" done " in line for line in own), own  # the same attempts, by who may


def test_the_space_has_no_name_and_is_the_users_alone(job):
    found = os.fstat(job.fd)
    assert found.st_nlink == 0  # nobody can come to it by a name, in /dev/shm or elsewhere
    assert stat.S_IMODE(found.st_mode) & 0o177 == 0 and found.st_uid == os.geteuid()
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("strata.") and job.token in name]
    assert not os.get_inheritable(job.fd)


@pytest.mark.parametrize("mask", (0o000, 0o022, 0o777))
def test_whatever_the_umask_the_space_is_the_users_alone(mask):
    before = os.umask(mask)
    try:
        made = bootstrap.create_job(1, 1 << 21)
    finally:
        os.umask(before)
    try:
        assert stat.S_IMODE(os.fstat(made.fd).st_mode) & ~0o600 == 0
    finally:
        made.close()


def test_names_cannot_be_guessed_and_are_never_taken_over(monkeypatch):
    """A name that is there already is refused, not opened: whoever put it there would have the job's memory."""
    taken = bytes(range(16))
    monkeypatch.setattr(backing.secrets, "token_bytes", lambda n: taken[:n])
    path = Path(f"/dev/shm/strata.{os.getuid()}.{taken.hex()}")
    for plant in (lambda: path.write_bytes(b""), lambda: path.symlink_to("/dev/shm/strata-test-nothing")):
        plant()
        try:
            with pytest.raises(errors.HostError, match="shared memory"):
                bootstrap.create_job(1, 1 << 21)
            assert not Path("/dev/shm/strata-test-nothing").exists()
        finally:
            path.unlink()
    monkeypatch.undo()
    jobs = [bootstrap.create_job(1, 1 << 21) for _ in range(3)]
    try:
        assert len({job.token for job in jobs}) == 3 and all(len(job.token) == 32 for job in jobs)
    finally:
        for job in jobs:
            job.close()


@pytest.mark.parametrize("program", ((), (sys.executable,)), ids=("script", "program"))
def test_processes_that_a_die_starts_do_not_have_the_space(tmp_path, program):
    script = write(tmp_path / "die.py", """
        import os, subprocess, sys
        import strata
        strata.init()
        x = strata.ones(16)
        code = "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if n != '3'])"
        line = [sys.executable, "-I", "-S", "-c", code]
        out = subprocess.run(line, close_fds=False, capture_output=True, text=True).stdout
        assert out.startswith("["), out
        assert "/dev/shm" not in out and "memfd" not in out, out
        strata.world().barrier()
    """)
    done = run("-n", 2, *program, script)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.skipif(not ROOT, reason="only root can become another user")
@pytest.mark.parametrize("how", ("link", "file"))
def test_logs_are_not_written_where_another_user_points(tmp_path, how):
    logs, target = tmp_path / "logs", tmp_path / "precious"
    logs.mkdir()
    target.write_text("kept")
    planted = logs / "rank.0.out"
    if how == "link":
        planted.symlink_to(target)
    else:
        planted.write_text("")
    os.chown(planted, NOBODY, NOBODY, follow_symlinks=False)
    done = run("-n", 2, "--log-dir", logs, write(tmp_path / "p.py", "print('secret')"))
    assert done.returncode != 0 and b"another user's" in done.stderr and b"--log-dir" in done.stderr
    assert target.read_text() == "kept"
    if how == "file":
        assert planted.read_text() == ""


def test_own_links_and_old_files_are_logs_as_before(tmp_path):
    logs, target = tmp_path / "logs", tmp_path / "elsewhere"
    logs.mkdir()
    (logs / "rank.0.out").symlink_to(target)
    (logs / "rank.1.out").write_text("old and longer than what comes")
    done = run("-n", 2, "--log-dir", logs, write(tmp_path / "p.py", "print('new')"))
    assert done.returncode == 0, done.stderr.decode()
    assert target.read_text() == (logs / "rank.1.out").read_text() == "new\n"


@pytest.mark.unchecked("a job is checked or timed, not both")
def test_the_clock_listens_to_its_user_alone_and_to_garbage_not_at_all(tmp_path):
    """Reports come over a socket: what is none ends neither the launcher nor the job."""
    script = write(tmp_path / "die.py", """
        import os, socket
        import strata
        from strata.clock.sending import socket_name
        strata.init()
        if strata.world().rank == 0:
            for data in (b"", b"x", b"{}"):
                s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                s.connect(socket_name(os.environ["STRATA_JOB"]))
                fd = os.memfd_create("x")
                os.write(fd, data)
                socket.send_fds(s, [b"r"], [fd] if data else [])
                s.close()
        strata.world().barrier()
    """)
    done = run("-n", 2, "--clock", "cm384", script)
    assert done.returncode == 0, done.stderr.decode()
