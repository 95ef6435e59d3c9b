"""A die's Python is like that of ``python script.py`` and ``python -m module``, save that it is faster there."""

import json
import os
import sys

import numpy as np
import psutil
import pytest
from launching import COMMAND, environment, plain, run, usual_signals, write

PROBE = """
import json, os, pickle, signal, sys
import __main__

class Thing:
    pass

spec = globals().get("__spec__")
json.dump({
    "argv": sys.argv,
    "path": sys.path,
    "names": sorted(k for k in globals() if k.startswith("__")),
    "name": __name__,
    "file": __file__,
    "spec": spec and [spec.name, spec.origin],
    "package": __package__,
    "doc": __doc__,
    "loader": type(__loader__).__name__ if isinstance(__loader__, object) else "",
    "cached": globals().get("__cached__"),
    "annotations": repr(globals().get("__annotations__")),
    "is_main": __main__.__dict__ is globals(),
    "pickles": type(pickle.loads(pickle.dumps(Thing()))) is Thing,
    "signals": {s.name: str(signal.getsignal(s)) for s in signal.valid_signals()
                if isinstance(s, signal.Signals)},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "line_buffering": sys.stdout.line_buffering,
    "write_through": sys.stdout.write_through,
    "encoding": [sys.stdin.encoding, sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors],
    "stdin": sys.stdin.read(),
    "flags": repr(sys.flags),
    "cwd": os.getcwd(),
    "umask": os.umask(0),
    "gc": __import__("gc").isenabled(),
    "limit": sys.getrecursionlimit(),
    "builtins": type(__builtins__).__name__,
    "threads": __import__("threading").active_count(),
    "files": __import__("resource").getrlimit(__import__("resource").RLIMIT_NOFILE),
    "fds": sorted(int(f) for f in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{f}")),
}, sys.stdout)
"""


def compared(way, tmp_path, env=None, **options):
    expected = json.loads(plain(*way, cwd=tmp_path, env=env, **options).stdout)
    done = run("-n", 1, *way, cwd=tmp_path, env=env, **options)
    assert done.stderr == b""
    got = json.loads(done.stdout)
    # The job's descriptor is the one that a die has more.
    assert len(got["fds"]) == len(expected["fds"]) + 1
    del got["fds"], expected["fds"]
    return got, expected


def test_script_sees_what_a_plain_script_sees(tmp_path):
    (tmp_path / "below").mkdir()
    write(tmp_path / "below" / "probe.py", '"""A probe."""\nx: int = 1\n' + PROBE)
    got, expected = compared(["below/probe.py", "a", "-b", "--", "c d", ""], tmp_path)
    assert got == expected


def test_script_by_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    write(tmp_path / "real" / "probe.py", PROBE)
    (tmp_path / "link.py").symlink_to("real/probe.py")
    got, expected = compared(["link.py"], tmp_path)
    assert got == expected


@pytest.mark.parametrize("name", ["package", "package.inner", "lone"])
def test_module_sees_what_a_plain_module_sees(tmp_path, name):
    (tmp_path / "package").mkdir()
    write(tmp_path / "package" / "__init__.py", "")
    write(tmp_path / "package" / "__main__.py", "from . import inner2\n" + PROBE)
    write(tmp_path / "package" / "inner2.py", "")
    write(tmp_path / "package" / "inner.py", "from . import inner2\n" + PROBE)
    write(tmp_path / "lone.py", PROBE)
    got, expected = compared(["-m", name, "-n", "3"], tmp_path)
    assert got == expected


@pytest.mark.parametrize(
    "variable", ["PYTHONUNBUFFERED", "PYTHONSAFEPATH", "PYTHONOPTIMIZE", "PYTHONDEVMODE", "PYTHONIOENCODING"]
)
def test_pythons_variables_count(tmp_path, variable):
    write(tmp_path / "probe.py", PROBE)
    env = environment(**{variable: "latin-1" if variable == "PYTHONIOENCODING" else "1"})
    got, expected = compared(["probe.py"], tmp_path, env=env)
    assert got == expected


@pytest.mark.parametrize("way", ["script", "module"])
@pytest.mark.parametrize("body", ["1/0", "import nothing_of_this_name", "raise SystemExit('text')", "import bad"])
def test_tracebacks_have_no_frame_of_the_launcher(tmp_path, way, body):
    write(tmp_path / "fails.py", f"def f():\n    {body}\nf()\n")
    write(tmp_path / "bad.py", "x = = 1\n")
    how = ["fails.py"] if way == "script" else ["-m", "fails"]
    expected = plain(*how, cwd=tmp_path)
    got = run("-n", 1, *how, cwd=tmp_path)
    err = b"".join(line for line in got.stderr.splitlines(True) if not line.startswith((b"strata-run: ", b"  | ")))
    assert err == expected.stderr
    assert got.returncode == expected.returncode


def test_missing_module(tmp_path):
    got, expected = run("-n", 1, "-m", "no_such_module_here"), plain("-m", "no_such_module_here")
    assert got.returncode == expected.returncode == 1
    assert expected.stderr in got.stderr


def test_rank_0_gets_the_input_and_others_none(tmp_path):
    script = write(
        tmp_path / "script.py",
        "import os, sys; print(os.environ['STRATA_RANK'], repr(sys.stdin.read()))",
    )
    got = run("-n", 3, script, input=b"typed\nhere")
    assert sorted(got.stdout.splitlines()) == [b"0 'typed\\nhere'", b"1 ''", b"2 ''"]
    with open(script) as file:  # a file is rank 0's own: seekable
        code = "import os, sys; os.environ['STRATA_RANK'] == '0' and print(sys.stdin.seekable())"
        other = write(tmp_path / "other.py", code)
        assert run("-n", 2, other, stdin=file).stdout == b"True\n"


def test_a_die_has_no_descriptor_of_the_launcher_or_of_other_dies(tmp_path):
    """Only its own pipes, and the UB space; whatever the user had open stays."""
    script = write(
        tmp_path / "script.py",
        """
        import os
        kinds = {f: os.readlink(f"/proc/self/fd/{f}") for f in os.listdir("/proc/self/fd")
                 if os.path.exists(f"/proc/self/fd/{f}")}
        extra = {int(f) for f in kinds} - {0, 1, 2, int(os.environ["STRATA_JOB_FD"])}
        pipes = [k for k in kinds.values() if k.startswith("pipe:")]
        print(sorted(extra), len(pipes), len(set(pipes)))
        """,
    )
    read, write_end = os.pipe()
    try:
        got = run("-n", 4, script, stdin=-3, pass_fds=[read])
        assert got.stdout.splitlines() == [b"[%d] 3 3" % read] * 4
    finally:
        os.close(read)
        os.close(write_end)


def test_an_executed_program_gets_its_pipes_and_the_ub_space_only():
    got = run("-n", 3, "sh", "-c", "ls /proc/self/fd | tr '\\n' ' '; echo; echo $STRATA_JOB_FD")
    for line in got.stdout.splitlines():
        numbers = {int(n) for n in line.split()}
        assert len(numbers) in (1, 5)  # the variable; or 0, 1, 2, the space, and ls's own


def test_random_numbers_differ(tmp_path):
    script = write(
        tmp_path / "script.py",
        """
        import random, uuid
        import numpy as np
        print(random.random(), np.random.rand(), np.random.default_rng().random(), uuid.uuid4())
        """,
    )
    words = [word for line in run("-n", 6, script).stdout.splitlines() for word in line.split()]
    assert len(words) == len(set(words)) == 24


def test_loaded_random_module_is_seeded_anew(monkeypatch):
    from strata.launch.die import new_random_numbers

    np.random.seed(7)
    same = np.random.rand()
    np.random.seed(7)
    new_random_numbers()
    assert np.random.rand() != same


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_inside_a_die(tmp_path, method):
    script = write(
        tmp_path / "script.py",
        f"""
        import multiprocessing as mp, os

        def square(x):
            return x * x, os.environ["STRATA_RANK"]

        if __name__ == "__main__":
            with mp.get_context({method!r}).Pool(2) as pool:
                print(pool.map(square, range(3)))
        """,
    )
    got = run("-n", 2, script)
    assert got.returncode == 0, got.stderr
    assert got.stderr == b""
    expected = [str([(0, r), (1, r), (4, r)]).encode() for r in "01"]
    assert sorted(got.stdout.splitlines()) == expected


def test_concurrent_futures_and_subprocess(tmp_path):
    script = write(
        tmp_path / "script.py",
        """
        import concurrent.futures, subprocess, sys
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            print(sum(pool.map(int, "123")))
        print(subprocess.run([sys.executable, "-c", "print('sub')"], capture_output=True, text=True).stdout.strip())
        """,
    )
    got = run("-n", 2, script)
    assert (sorted(got.stdout.splitlines()), got.stderr) == ([b"6", b"6", b"sub", b"sub"], b"")


def threads_seen(env=None, n=2):
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    got = run("-n", n, "sh", "-c", "echo " + " ".join(f"${{{name}-none}}" for name in names), env=env)
    assert len(set(got.stdout.splitlines())) == 1
    return got.stdout.splitlines()[0].decode().split()


def test_threads_of_numerical_libraries(monkeypatch):
    from strata._core.cpus import usable_cpus

    env = environment()
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        env.pop(name, None)
    cpus = usable_cpus()
    assert threads_seen(env, n=1) == [str(cpus)] * 3
    assert threads_seen(env, n=2 * cpus) == ["1"] * 3
    assert threads_seen({**env, "OMP_NUM_THREADS": "7"}) == ["none", "7", "none"]


def test_numpy_is_there_before_the_script_and_unthreaded(tmp_path):
    script = write(
        tmp_path / "script.py",
        """
        import sys
        print("numpy" in sys.modules, "strata" in sys.modules, len(__import__("os").listdir("/proc/self/task")))
        """,
    )
    env = environment(OPENBLAS_NUM_THREADS="1")
    assert run("-n", 2, script, env=env).stdout.splitlines() == [b"True True 1"] * 2


def test_configuration_is_read_in_the_die(tmp_path):
    script = write(
        tmp_path / "script.py",
        """
        import os
        os.environ["STRATA_TIMEOUT"] = "12.5"
        from strata import config
        print(config.get().timeout, config.get().rank is not None)
        """,
    )
    assert run("-n", 2, script).stdout.splitlines() == [b"12.5 True"] * 2


def test_bind_takes_allowed_cpus_in_turn(tmp_path):
    cpus = sorted(os.sched_getaffinity(0))
    code = "import os; print(os.environ['STRATA_RANK'], sorted(os.sched_getaffinity(0)))"
    script = write(tmp_path / "script.py", code)
    n = 2 * len(cpus) if len(cpus) <= 4 else 5
    got = dict(line.split(b" ", 1) for line in run("-n", n, "--bind", script).stdout.splitlines())
    for rank in range(n):
        assert got[b"%d" % rank] == str([cpus[rank % len(cpus)]]).encode()
    got = dict(line.split(b" ", 1) for line in run("-n", 2, script).stdout.splitlines())
    assert got[b"1"] == str(cpus).encode()

    def one_cpu():
        usual_signals()
        os.sched_setaffinity(0, cpus[-1:])

    got = run("-n", 3, "--bind", script, preexec_fn=one_cpu).stdout.splitlines()
    assert {line.split(b" ", 1)[1] for line in got} == {str(cpus[-1:]).encode()}


def test_hbm_reaches_the_job(tmp_path):
    code = "from strata import bootstrap; c = bootstrap.init(); print(c.rank, c.ndies, c.hbm_bytes)"
    script = write(tmp_path / "script.py", code)
    got = run("-n", 2, "--hbm", "64MiB", script)
    assert sorted(got.stdout.splitlines()) == [b"%d 2 %d" % (r, 64 << 20) for r in (0, 1)], got.stderr


def test_grandchildren_join_through_a_wrapper(tmp_path):
    """A shell that closes what it inherited: the space comes over the socket."""
    code = "from strata import bootstrap; c = bootstrap.init(); print(c.rank, c.ndies)"
    script = write(tmp_path / "script.py", code)
    wrapper = f'eval "exec $STRATA_JOB_FD>&-"; {sys.executable} {script}; exit $?'
    got = run("-n", 3, "bash", "-c", wrapper)
    assert sorted(got.stdout.splitlines()) == [b"0 3", b"1 3", b"2 3"], got.stderr


def test_two_jobs_never_meet(tmp_path):
    script = write(
        tmp_path / "script.py",
        """
        import sys
        from strata import bootstrap
        c = bootstrap.init()
        print(c.token, c.ndies)
        """,
    )
    import subprocess

    jobs = [
        subprocess.Popen([*COMMAND, "-n", str(n), str(script)], env=environment(), stdout=subprocess.PIPE)
        for n in (2, 3)
    ]
    out = [job.communicate(timeout=60)[0].split() for job in jobs]
    assert [len(set(words)) for words in out] == [2, 2]
    assert out[0][0] != out[1][0]
    assert [words[1::2] for words in out] == [[b"2"] * 2, [b"3"] * 3]


def test_a_die_that_ends_before_it_joins_is_no_mystery(tmp_path):
    script = write(
        tmp_path / "script.py",
        """
        import os, sys
        from strata import bootstrap, errors
        if os.environ["STRATA_RANK"] == "1":
            sys.exit(3)
        try:
            bootstrap.init()
        except errors.PeerDead as error:
            print(error.ranks)
        """,
    )
    got = run("-n", 3, "--grace", 60, script)
    assert (got.returncode, got.stdout) == (3, b"(1,)\n" * 2)


@pytest.mark.hard_timeout(240)
def test_512_dies():
    got = run("-n", 512, "--tag-output", "sh", "-c", "echo $STRATA_RANK", timeout=200)
    assert (got.returncode, got.stderr) == (0, b"")
    assert sorted(got.stdout.split()) == sorted(w for r in range(512) for w in (b"[%d]" % r, b"%d" % r))


def test_too_few_files_is_one_clear_line():
    import resource

    def few():
        usual_signals()
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))

    got = run("-n", 100, "true", preexec_fn=few)
    assert got.returncode == 125
    assert b"open files are needed and the limit is 200" in got.stderr
    assert got.stderr.count(b"\n") == 1


def test_soft_limit_of_files_is_raised_for_the_launcher_and_not_for_dies():
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def few():
        usual_signals()
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))

    got = run("-n", 60, "sh", "-c", "ulimit -Sn", preexec_fn=few)
    assert got.stdout.splitlines() == [b"100"] * 60


def test_dies_are_named_like_their_command_and_the_keeper_is_not(tmp_path):
    script = write(
        tmp_path / "script.py",
        """
        import os
        def line(pid):
            return open(f"/proc/{pid}/cmdline", "rb").read().rstrip(b"\\0").split(b"\\0")
        print(line(os.getpid())[-1].decode(), line(os.getppid())[0].decode())
        """,
    )
    got = run("-n", 1, script).stdout.split()
    assert got == [str(script).encode(), b"strata-keeper"]
    assert psutil.Process().name()
