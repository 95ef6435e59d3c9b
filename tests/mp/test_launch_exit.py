"""Exit status and report: which die failed, how, and what it said last."""

import os
import re
import signal
import stat

import pytest
from launching import Running, all_gone, all_there, environment, plain, run, sleeper, until, write

ENDS = {
    "nothing": "pass",
    "none": "import sys; sys.exit(None)",
    "zero": "import sys; sys.exit(0)",
    "three": "import sys; sys.exit(3)",
    "large": "import sys; sys.exit(300)",
    "negative": "import sys; sys.exit(-1)",
    "text": "import sys; sys.exit('no such luck')",
    "bool": "import sys; sys.exit(True)",
    "error": "def f():\n    raise ValueError('boom')\nf()",
    "chained": "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e",
    "group": "raise BaseException('base')",
    "import": "import no_such_module_of_this_test",
    "bad_import": "import broken_module",
    "interrupt": "raise KeyboardInterrupt",
    "os_exit": "import os; os._exit(7)",
    "segv": "import os; os.kill(os.getpid(), 11)",
    "term": "import os; os.kill(os.getpid(), 15)",
    "abort": "import os; os.abort()",
    "hook": "import sys; sys.excepthook = lambda t, v, b: print('hook', t.__name__); 1/0",
    "bad_hook": "import sys\ndef hook(*a):\n    raise KeyError('hook')\nsys.excepthook = hook\n1/0",
    "exit_hook": "import sys; sys.excepthook = lambda *a: sys.exit(9); 1/0",
    "atexit": "import atexit\natexit.register(print, 'later')\nprint('now')\n1/0",
    "bad_atexit": "import atexit\natexit.register(lambda: 1/0)\natexit.register(print, 'still')",
    "del": "class A:\n    def __del__(self): print('gone')\na = A()\nb = [A()]; b.append(b)",
    "del_error": "class A:\n    def __del__(self): print('gone')\na = A()\n1/0",
    "del_module": "import sys, types\nclass A:\n    def __del__(self): print('gone')\n"
    "m = types.ModuleType('m'); sys.modules['m'] = m; m.a = A(); m.keep = sys; sys.kept = m",
    "file": "f = open('left.txt', 'w'); f.write('flushed')",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.2), print('done'))).start()",
    "daemon": "import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()\nprint(1)",
    "daemon_fails": "import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n1/0",
    "stdout": "import sys, io; sys.stdout = io.StringIO(); print('lost')",
    "closed": "import sys; sys.stdout.close()",
}
# What a plain run's frames look like differs by nothing but these.
ADDRESS = re.compile(rb"0x[0-9a-f]+")


def own_words(err):
    """Standard error without the launcher's report."""
    lines = err.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith((b"strata-run: ", b"  | ")))


@pytest.mark.parametrize("end", ENDS)
def test_a_script_ends_as_under_python(tmp_path, end):
    script = write(tmp_path / "script.py", ENDS[end] + "\n")
    write(tmp_path / "broken_module.py", "def f(:\n")
    expected = plain(script, cwd=tmp_path)
    left = tmp_path / "left.txt"
    text = left.read_text() if left.exists() else None
    left.unlink(missing_ok=True)
    got = run("-n", 1, script, cwd=tmp_path)
    code = expected.returncode
    assert got.returncode == (code if code >= 0 else 128 - code)
    assert got.stdout == expected.stdout
    assert ADDRESS.sub(b"", own_words(got.stderr)) == ADDRESS.sub(b"", expected.stderr)
    assert (left.read_text() if left.exists() else None) == text
    if code == 0:
        assert got.stderr.count(b"\n") == expected.stderr.count(b"\n")  # no noise after success


def test_the_failed_rank_is_named_last_with_its_end(tmp_path):
    script = write(
        tmp_path / "script.py",
        """
        import os, sys
        if os.environ["STRATA_RANK"] == "2":
            for i in range(100):
                print("line", i, flush=True)
            raise ValueError("boom")
        """,
    )
    got = run("-n", 4, script)
    assert got.returncode == 1
    lines = got.stderr.decode().splitlines()
    assert lines[-1] == "strata-run: rank 2 of 4 failed: exit code 1: ValueError: boom"
    shown = [line for line in lines if line.startswith("  | ")]
    assert len(shown) == 20
    assert shown[-1] == "  | ValueError: boom"
    assert "  | line 99" in shown


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM, 40])
def test_a_signal_is_128_more_and_named(number):
    got = run("-n", 3, "sh", "-c", f"if [ $STRATA_RANK = 1 ]; then kill -{int(number)} $$; fi")
    assert got.returncode == 128 + number
    name = number.name if isinstance(number, signal.Signals) else "signal 40"
    assert f"rank 1 of 3 failed: killed by {name}" in got.stderr.decode().splitlines()[-1]


def test_root_cause_is_not_the_peer_that_noticed(tmp_path):
    """Rank 0 dies first, of PeerDead; rank 1, slower to end, is why."""
    script = sleeper(
        tmp_path,
        """
        from strata.errors import PeerDead
        if os.environ["STRATA_RANK"] == "1":
            import atexit
            def slow():
                while os.path.exists(f"/proc/{open(sys.argv[1] + '/there.0').read().strip()}/exe"):
                    time.sleep(0.01)
            atexit.register(slow)
            while not os.path.exists(sys.argv[1] + "/there.0"):
                time.sleep(0.01)
            raise RuntimeError("the cause")
        there()
        raise PeerDead(ranks=[1], operation="barrier", number=1)
        """,
    )
    got = run("-n", 3, "--grace", 60, script, tmp_path)
    lines = got.stderr.decode().splitlines()
    assert lines[-1] == "strata-run: rank 1 of 3 failed first: exit code 1: RuntimeError: the cause"
    assert any(re.fullmatch(r"strata-run: ranks 0, 2 failed too: .*PeerDead.*", line) for line in lines)


def test_exit_status_is_the_first_failures(tmp_path):
    """Rank 2 fails with 5; rank 0 then ends by itself with 6, within the grace."""
    script = sleeper(
        tmp_path,
        """
        rank = os.environ["STRATA_RANK"]
        if rank == "2":
            there()
            sys.exit(5)
        if rank == "0":
            while not os.path.exists(sys.argv[1] + "/there.2"):
                time.sleep(0.01)
            pid = open(sys.argv[1] + "/there.2").read().strip()
            while os.path.exists(f"/proc/{pid}/exe"):
                time.sleep(0.01)
            time.sleep(0.2)
            sys.exit(6)
        """,
    )
    got = run("-n", 3, "--grace", 60, script, tmp_path)
    assert got.returncode == 5
    assert b"rank 0 failed too: exit code 6" in got.stderr
    assert got.stderr.rstrip().endswith(b"rank 2 of 3 failed first: exit code 5")


def test_others_get_grace_then_sigterm_then_sigkill(tmp_path):
    script = sleeper(
        tmp_path,
        """
        import signal
        rank = int(os.environ["STRATA_RANK"])
        def term(*_):
            there("termed")
            if rank == 1:
                sys.exit(0)
        signal.signal(signal.SIGTERM, term)
        there()
        while rank == 3 and len([f for f in os.listdir(sys.argv[1]) if "there." in f]) < 4:
            time.sleep(0.01)
        if rank == 3:
            sys.exit(4)
        time.sleep(0.1)
        if rank == 0:
            there("by_itself")
            sys.exit(0)
        while True:
            time.sleep(1)
        """,
    )
    got = run("-n", 4, "--grace", 0.7, script, tmp_path)
    assert got.returncode == 4
    assert sorted(p.name for p in tmp_path.glob("termed.*")) == ["termed.1", "termed.2"]
    assert got.stderr.rstrip().endswith(b"rank 3 of 4 failed: exit code 4")


def test_on_failure_continue_leaves_the_others_alone(tmp_path):
    script = sleeper(
        tmp_path,
        """
        if os.environ["STRATA_RANK"] == "1":
            sys.exit(3)
        time.sleep(0.5)
        there()
        """,
    )
    got = run("-n", 3, "--grace", 0, "--on-failure", "continue", script, tmp_path)
    assert got.returncode == 3
    assert len(list(tmp_path.glob("there.*"))) == 2
    assert got.stderr.decode().rstrip().endswith("rank 1 of 3 failed: exit code 3")


def test_timeout_names_who_was_still_running(tmp_path):
    script = sleeper(tmp_path, "there(); os.environ['STRATA_RANK'] == '1' or time.sleep(1000)")
    got = run("-n", 4, "--timeout", 5, "--grace", 0.2, script, tmp_path)
    assert got.returncode == 124
    last = got.stderr.decode().splitlines()[-1]
    assert last == "strata-run: timed out after 5 s; still running: ranks 0, 2-3"
    all_gone(all_there(tmp_path, 4))


def test_timeout_that_is_not_reached_says_nothing():
    got = run("-n", 2, "--timeout", 100, "true")
    assert (got.returncode, got.stderr) == (0, b"")


REFUSED = {
    (): "what shall the dies run",
    ("-n", "2"): "what shall the dies run",
    ("true",): "how many dies",
    ("-n", "0", "true"): "1 to 1024 dies",
    ("-n", "x", "true"): "a number expected",
    ("-n",): "needs a value",
    ("-n", "2", "--grcae", "1", "true"): "did you mean --grace?",
    ("-n", "2", "--timeout", "-1", "true"): "seconds",
    ("-n", "2", "--timeout", "nan", "true"): "seconds",
    ("-n", "2", "--hbm", "big", "true"): "not a size",
    ("-n", "2", "--hbm", "100T", "true"): "--hbm 100t: allowed is a size such as",
    ("-n", "2", "--on-failure", "retry", "true"): "kill or continue",
    ("-n", "2", "--bind=1", "true"): "takes no value",
    ("-n", "2", "--intercept=much", "true"): "not a size",
    ("-n", "2", "--intercept=99T", "true"): "strata_intercept_min_bytes",
    ("-n", "2", "-m"): "needs a value",
    ("-n", "2", "no_such_file.py"): "can't open file",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_a_wrong_command_line_is_refused_in_one_line(arguments):
    got = run(*arguments)
    assert got.returncode == 2
    assert got.stdout == b""
    assert got.stderr.count(b"\n") == 1
    assert REFUSED[arguments] in got.stderr.decode().lower()


def test_help():
    got = run("--help")
    assert (got.returncode, got.stderr) == (0, b"")
    for option in ("--np", "--hbm", "--timeout", "--grace", "--on-failure", "--tag-output", "--log-dir", "--bind",
                   "--intercept[=MIN_BYTES]"):
        assert option.encode() in got.stdout


def test_programs_that_cannot_be_run(tmp_path):
    assert run("-n", 2, "no-such-program-here").returncode == 127
    assert run("-n", 2, tmp_path / "absent").returncode == 127
    assert run("-n", 2, tmp_path).returncode == 126
    plain_file = write(tmp_path / "data", "x")
    got = run("-n", 2, plain_file)
    assert got.returncode == 126
    assert got.stderr.count(b"\n") == 1


def test_a_shell_script_without_a_first_line_runs_as_in_a_shell(tmp_path):
    script = write(tmp_path / "script", 'echo "$STRATA_RANK $1"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    got = run("-n", 2, script, "a b")
    assert sorted(got.stdout.splitlines()) == [b"0 a b", b"1 a b"]


def test_a_syntax_error_is_told_once(tmp_path):
    script = write(tmp_path / "script.py", "def f(:\n")
    got, expected = run("-n", 4, script), plain(script)
    assert got.returncode == 1
    assert got.stderr == expected.stderr


def test_tracebacks_of_several_dies_do_not_mix(tmp_path):
    script = write(
        tmp_path / "script.py",
        """
        import os
        def deep(n):
            if n == 0:
                raise ValueError(os.environ["STRATA_RANK"])
            deep(n - 1) if n % 2 else deep (n - 1)
        deep(60)
        """,
    )
    expected = plain(script, env=environment(STRATA_RANK="R")).stderr
    got = run("-n", 6, "--grace", 60, script)
    for rank in range(6):
        assert expected.replace(b"ValueError: R", b"ValueError: %d" % rank) in got.stderr


def test_many_failures_are_summed_up(tmp_path):
    got = run("-n", 8, "sh", "-c", "exit 9")
    assert got.returncode == 9
    lines = got.stderr.decode().splitlines()
    assert len(lines) == 2
    assert re.fullmatch(r"strata-run: ranks [0-7, -]+ failed too: exit code 9", lines[0])


def test_status_of_a_job_that_somebody_else_shoots_at(tmp_path):
    script = sleeper(tmp_path)
    with Running("-n", 3, "--grace", 0.1, script, tmp_path) as job:
        all_there(tmp_path, 3)
        victim = int(until(lambda: (tmp_path / "there.1").read_text(), "pid"))
        os.kill(victim, signal.SIGKILL)
        code, _, err = job.end()
    assert code == 137
    assert b"rank 1 of 3 failed: killed by SIGKILL" in err.splitlines()[-1]


def test_death_in_a_collective_is_the_root_cause(tmp_path):
    """Survivors see PeerDead within their grace, say so, and are not blamed."""
    script = sleeper(
        tmp_path,
        """
        import strata
        g = strata.world()
        x = strata.ones(100000, "f4")
        g.all_reduce(x)
        if g.rank == 1:
            os.kill(os.getpid(), 9)
        try:
            g.all_reduce(x)
        except strata.PeerDead as error:
            there(f"saw{error.ranks[0]}")
            raise
        """,
    )
    got = run("-n", 3, "--grace", 30, script, tmp_path)
    assert got.returncode == 137
    assert len(list(tmp_path.glob("saw1.*"))) == 2
    lines = got.stderr.decode().splitlines()
    assert "rank 1 of 3 failed first: killed by SIGKILL" in lines[-1]
    assert any(re.fullmatch(r"strata-run: ranks 0, 2 failed too: exit code 1, .*PeerDead", line) for line in lines)


def test_collectives_in_a_job_of_the_launcher(tmp_path):
    script = sleeper(
        tmp_path,
        """
        import numpy as np, strata
        g = strata.world()
        x = strata.full(1000, g.rank + 1, "i8")
        g.all_reduce(x)
        assert (x == g.size * (g.size + 1) // 2).all()
        print(g.rank, g.size, x[0])
        """,
    )
    got = run("-n", 4, script, tmp_path)
    assert (got.returncode, got.stderr) == (0, b"")
    assert sorted(got.stdout.splitlines()) == [b"%d 4 10" % r for r in range(4)]
