"""A job on a terminal: prompts, what is typed, Ctrl-C, and the window that is closed."""

import os
import pty
import signal
import termios

import psutil
from launching import (
    COMMAND,
    INTERRUPTIBLE,
    all_gone,
    all_there,
    environment,
    says,
    sleeper,
    until,
    usual_signals,
    write,
)


class Terminal:
    """A job on a terminal of its own, as its foreground process group."""

    def __init__(self, *arguments, command=COMMAND):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            usual_signals()
            os.execvpe(command[0], [*command, *map(str, arguments)], environment())
        self.seen = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def read_until(self, text):
        def look():
            try:
                self.seen += os.read(self.fd, 4096)
            except OSError:  # the other end is closed
                raise AssertionError(f"{text!r} has not come: {self.seen!r}") from None
            return text in self.seen

        until(look, f"{text!r} on the terminal")

    def type(self, text):
        os.write(self.fd, text)

    def end(self):
        """Exit status, after all output has been read."""
        try:
            while piece := os.read(self.fd, 4096):
                self.seen += piece
        except OSError:
            pass
        _, state = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(state)


def test_prompt_and_input_on_a_terminal(tmp_path):
    script = write(
        tmp_path / "script.py",
        """
        import os, sys
        if os.environ["STRATA_RANK"] == "0":
            print("got", repr(input("name? ")), repr(sys.stdin.read()))
        else:
            print("other", repr(sys.stdin.read()))
        """,
    )
    with Terminal("-n", 2, script) as job:
        job.read_until(b"name? ")  # no newline ends it
        job.type(b"strata\n")
        job.type(b"more\n\x04")
        assert job.end() == 0
    assert b"got 'strata' 'more\\n'" in job.seen
    assert b"other ''" in job.seen


def test_prompt_and_a_line_of_another_die_do_not_mix(tmp_path):
    script = sleeper(
        tmp_path,
        """
        if os.environ["STRATA_RANK"] == "0":
            print("working... ", end="", flush=True)
            there()
            sys.stdin.readline()
            print("done", flush=True)
        else:
            while not os.path.exists(sys.argv[1] + "/go"):
                time.sleep(0.01)
            print("other line", flush=True)
        """,
    )
    with Terminal("-n", 2, script, tmp_path) as job:
        job.read_until(b"working... ")
        (tmp_path / "go").touch()
        job.read_until(b"\r\nother line\r\n")
        job.type(b"\n")
        assert job.end() == 0


def test_ctrl_c_from_a_terminal_comes_once(tmp_path):
    script = sleeper(tmp_path, INTERRUPTIBLE.replace("LEAVE", "False"))
    with Terminal("-n", 3, "--grace", 1, script, tmp_path) as job:
        pids = all_there(tmp_path, 3)
        job.type(b"\x03")
        assert job.end() == 130
    assert len(list(tmp_path.glob("interrupted1.*"))) == 3
    assert not list(tmp_path.glob("interrupted2.*"))
    all_gone(pids)


def test_the_end_of_the_terminal_ends_the_job(tmp_path):
    """The window is closed: SIGHUP."""
    script = sleeper(tmp_path)
    with Terminal("-n", 2, script, tmp_path) as job:
        pids = [*all_there(tmp_path, 2), job.pid]
        os.close(job.fd)
        job.fd = os.open(os.devnull, os.O_RDONLY)
        _, state = os.waitpid(job.pid, 0)
        job.pid = 0
        assert os.waitstatus_to_exitcode(state) == 129
        all_gone(pids)


def test_terminal_output_is_shown_as_it_comes(tmp_path):
    """A progress bar: carriage returns and no newline."""
    script = write(
        tmp_path / "script.py",
        """
        import sys
        for i in range(3):
            print(f"\\r{i} of 3", end="", file=sys.stderr, flush=True)
            sys.stdin.readline()
        """,
    )
    with Terminal("-n", 1, script) as job:
        attributes = termios.tcgetattr(job.fd)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(job.fd, termios.TCSANOW, attributes)
        for i in range(3):
            job.read_until(b"\r%d of 3" % i)
            job.type(b"\n")
        assert job.end() == 0


def test_ctrl_z_and_fg_in_a_shell(tmp_path):
    """The shell sees the job stop; in the background it does not take what is typed; fg goes on."""
    script = sleeper(
        tmp_path,
        """
        there()
        if os.environ["STRATA_RANK"] == "0":
            for line in sys.stdin:
                print("got", line.strip(), flush=True)
        """,
    )
    with Terminal("--norc", "-i", command=["bash"]) as shell:
        shell.type(b"PS1='ready> '; echo start'ed'\n")
        shell.read_until(b"started")
        shell.type(" ".join(map(str, [*COMMAND, "-n", 2, script, tmp_path])).encode() + b"\n")
        all_there(tmp_path, 2)
        dies = says(tmp_path / "there.0")  # the other ends at once
        shell.type(b"one\n")
        shell.read_until(b"got one")
        shell.type(b"\x1a")
        shell.read_until(b"Stopped")
        until(lambda: all(psutil.Process(pid).status() == "stopped" for pid in dies), "the dies have stopped")
        shell.type(b"bg\n")
        until(lambda: all(psutil.Process(pid).status() == "sleeping" for pid in dies), "the dies go on")
        shell.type(b"echo shell'_'has it\n")
        shell.read_until(b"shell_has it")
        shell.type(b"fg\n")
        shell.type(b"two\n")
        shell.read_until(b"got two")
        assert b"got echo" not in shell.seen
        shell.type(b"\x04")
        all_gone(dies)
        shell.type(b"echo status $?; exit\n")
        shell.read_until(b"status 0")
        assert shell.end() == 0
