"""Signals and sudden deaths: whatever happens, no process and no file is left."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from launching import (
    COMMAND,
    INTERRUPTIBLE,
    Running,
    all_gone,
    all_there,
    environment,
    plain,
    run,
    says,
    sleeper,
    until,
    usual_signals,
    write,
)

# A die that starts grandchildren: one in its process group, one in a session of its own
# whose parent has gone, and one of the kind that ignores SIGTERM.
DEEP = """
import signal, subprocess
def start(code, **options):
    return subprocess.Popen([sys.executable, "-S", "-c", code, *sys.argv[1:]], **options)
sleep = "import time; time.sleep(1000)"
double = "import os, subprocess, sys; p = subprocess.Popen([sys.executable, '-S', '-c', %r], start_new_session=True)"
double += "; open(sys.argv[1] + '/deep3.' + os.environ['STRATA_RANK'], 'w').write(str(p.pid) + chr(10))"
there("deep1", start(sleep).pid)
there("deep2", start("import signal; signal.signal(15, signal.SIG_IGN); " + sleep, start_new_session=True).pid)
start(double % sleep).wait()
there()
def told():
    while not os.path.exists(sys.argv[1] + "/go"):
        time.sleep(0.01)
"""


def deep_job(tmp_path, n, after="time.sleep(1000)", *options, **popen):
    """A running job whose dies have started grandchildren, and the pids of all its processes."""
    script = sleeper(tmp_path, DEEP + after)
    job = Running("-n", n, *options, script, tmp_path, **popen)
    pids = all_there(tmp_path, n) + says(tmp_path / "deep[123].*")
    assert len(pids) == 4 * n
    return job, [*pids, job.pid, job.keeper()]


def test_kill_9_of_the_launcher_ends_all(tmp_path):
    job, pids = deep_job(tmp_path, 3)
    with job:
        os.kill(job.pid, signal.SIGKILL)
        all_gone(pids)


def test_kill_9_of_the_keeper_ends_all(tmp_path):
    job, pids = deep_job(tmp_path, 3)
    with job:
        os.kill(job.keeper(), signal.SIGKILL)
        code, _, err = job.end()
        assert code == 137
        assert err.count(b"\n") == 1
        assert b"keeper" in err
        all_gone(pids)


def test_kill_9_of_the_launchers_process_group_ends_all(tmp_path):
    """What ``kill -9 %1``, ``timeout -s KILL`` and test harnesses do."""
    job, pids = deep_job(tmp_path, 2, start_new_session=True)
    with job:
        os.killpg(job.pid, signal.SIGKILL)
        all_gone(pids)


def test_kill_9_of_front_and_dies_by_name_leaves_the_keeper_to_clean_up(tmp_path):
    """As ``pkill -9 -f sleeper.py`` does it, here for this job's own processes only."""
    job, pids = deep_job(tmp_path, 3)
    with job:
        named = [p for p in job.family() if any("sleeper.py" in w for w in psutil.Process(p).cmdline())]
        assert len(named) == 4
        for pid in named:  # the first may end the rest
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        all_gone(pids)


def test_kill_9_of_everything(tmp_path):
    script = sleeper(tmp_path, "from strata import bootstrap; bootstrap.init(); there(); time.sleep(1000)")
    with Running("-n", 4, script, tmp_path) as job:
        all_there(tmp_path, 4)
        pids = job.family()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it dies with its parent
                os.kill(pid, signal.SIGKILL)
        all_gone(pids)


@pytest.mark.parametrize("when", ["start", "middle"])
def test_kill_9_of_the_launcher_at_any_moment(tmp_path, when):
    script = sleeper(tmp_path)
    for i in range(8):
        with Running("-n", 4, script, tmp_path) as job:
            if when == "start":
                time.sleep(0.02 * i)
            else:
                until(lambda: list(tmp_path.glob("there.?")), "a first die")
            family = job.family()
            os.kill(job.pid, signal.SIGKILL)
            job.process.wait()
            all_gone(family)
            until(lambda: not any(dies_of(script)), "no die is left")
            for file in tmp_path.glob("there.*"):
                file.unlink()


def dies_of(script):
    """Processes that have the script in their command line."""
    for process in psutil.process_iter(["cmdline", "status"]):
        if str(script) in (process.info["cmdline"] or ()) and process.info["status"] != "zombie":
            yield process


@pytest.mark.parametrize("end", ["sys.exit(0)", "sys.exit(3)", "os.kill(os.getpid(), 9)"])
def test_what_dies_leave_behind_ends_with_the_job(tmp_path, end):
    job, pids = deep_job(tmp_path, 2, "told(); " + end, "--grace", 0.3)
    with job:
        (tmp_path / "go").touch()
        code, _, err = job.end()
        assert code == {"sys.exit(0)": 0, "sys.exit(3)": 3}.get(end, 137)
        assert (err == b"") == (code == 0)
        assert not any(psutil.pid_exists(pid) for pid in pids if pid != job.pid)


def test_only_the_jobs_processes_are_ended(tmp_path):
    stranger = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
    try:
        job, pids = deep_job(tmp_path, 2, "told(); os._exit(1)", "--grace", 0)
        with job:
            (tmp_path / "go").touch()
            job.end()
            all_gone(pids)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_wrapper_script_and_its_die_both_end(tmp_path):
    """The launcher's child is a shell; the die is the shell's."""
    script = sleeper(tmp_path)
    wrapper = write(tmp_path / "wrap.sh", f"{sys.executable} {script} {tmp_path}\necho never\n")
    with Running("-n", 2, "--grace", 0.5, "bash", wrapper) as job:
        pids = all_there(tmp_path, 2)
        family = job.family()
        assert set(pids) < set(family)
        job.process.send_signal(signal.SIGTERM)
        assert job.end()[0] == 143
        all_gone(family)


def test_ctrl_c_is_passed_on_once_and_clean(tmp_path):
    script = sleeper(tmp_path, INTERRUPTIBLE.replace("LEAVE", "True"))
    with Running("-n", 4, "--grace", 60, script, tmp_path) as job:
        pids = all_there(tmp_path, 4)
        job.process.send_signal(signal.SIGINT)
        code, out, err = job.end()
    assert (code, out) == (130, b"")
    assert len(list(tmp_path.glob("interrupted1.*"))) == 4
    assert not list(tmp_path.glob("interrupted2.*"))
    lines = err.decode().splitlines()
    assert lines[-1] == "strata-run: interrupted"
    assert sum(line == "KeyboardInterrupt" for line in lines) == 1  # one die's traceback is enough
    all_gone(pids)


def test_ctrl_c_escalates(tmp_path):
    script = sleeper(tmp_path, INTERRUPTIBLE.replace("LEAVE", "False"))
    with Running("-n", 2, "--grace", 0.3, script, tmp_path) as job:
        pids = all_there(tmp_path, 2)
        job.process.send_signal(signal.SIGINT)
        assert job.end()[0] == 130
    assert len(list(tmp_path.glob("interrupted1.*"))) == 2
    all_gone(pids)


def test_a_second_ctrl_c_kills_at_once(tmp_path):
    script = sleeper(tmp_path, INTERRUPTIBLE.replace("LEAVE", "False"))
    with Running("-n", 2, "--grace", 1000, script, tmp_path) as job:
        pids = all_there(tmp_path, 2)
        job.process.send_signal(signal.SIGINT)
        all_there(tmp_path, 2, "interrupted1")
        time.sleep(0.1)  # longer than what counts as an echo
        job.process.send_signal(signal.SIGINT)
        assert job.end()[0] == 130
    all_gone(pids)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT])
def test_signals_to_the_launcher_end_the_job(tmp_path, number):
    job, pids = deep_job(
        tmp_path, 2, "import signal; signal.signal(2, signal.SIG_DFL); time.sleep(1000)", "--grace", 0.5
    )
    with job:
        job.process.send_signal(number)
        code, _, err = job.end()
        assert code == 128 + number
        assert err.decode().splitlines()[-1].startswith("strata-run: ")
        all_gone(pids)


def test_ctrl_c_while_the_job_starts(tmp_path):
    script = sleeper(tmp_path)
    for i in range(10):
        with Running("-n", 8, "--grace", 0.5, script, tmp_path) as job:
            time.sleep(0.03 * i)
            if i == 0:
                until(lambda: psutil.Process(job.pid).children(), "the keeper")
            try:
                blocked = int(re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{job.pid}/status").read_text()).group(1), 16)
            except OSError:
                blocked = 0
            family = job.family()
            job.process.send_signal(signal.SIGINT)
            code, _, err = job.end()
            # Before the launcher has taken its signals over it is Python itself that ends.
            assert code == 130 or (not blocked and code in (-2, 1)), err
            all_gone(family)
            for file in tmp_path.glob("there.*"):
                file.unlink()


def test_what_was_ignored_stays_ignored(tmp_path):
    """nohup: SIGHUP ends neither launcher nor dies."""
    script = sleeper(tmp_path)

    def ignoring():
        usual_signals()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    process = subprocess.Popen(
        [*COMMAND, "-n", "2", "--grace", "0", str(script), str(tmp_path)],
        env=environment(), preexec_fn=ignoring, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        pids = all_there(tmp_path, 2)
        for pid in (process.pid, *pids):
            os.kill(pid, signal.SIGHUP)
        os.kill(pids[0], signal.SIGUSR1)  # is not ignored, and is handled after SIGHUP has been
        assert process.wait(60) == 128 + signal.SIGUSR1


def test_user_signals_are_passed_on(tmp_path):
    script = sleeper(
        tmp_path,
        """
        import signal
        signal.signal(signal.SIGUSR1, lambda *_: (there("usr1"), sys.exit(0)))
        there()
        while True:
            time.sleep(1000)
        """,
    )
    with Running("-n", 3, script, tmp_path) as job:
        all_there(tmp_path, 3)
        job.process.send_signal(signal.SIGUSR1)
        assert job.end() == (0, b"", b"")
    assert len(list(tmp_path.glob("usr1.*"))) == 3


def status(pid):
    return psutil.Process(pid).status()


def test_stop_and_continue(tmp_path):
    """Ctrl-Z stops dies and launcher; time stands still for --timeout; SIGCONT wakes all."""
    job, pids = deep_job(tmp_path, 2, "time.sleep(1000)", "--timeout", 30)
    dies = says(tmp_path / "there.*")
    with job:
        job.process.send_signal(signal.SIGTSTP)
        until(lambda: all(status(pid) == "stopped" for pid in [*dies, job.pid]), "all have stopped")
        job.process.send_signal(signal.SIGCONT)
        until(lambda: all(status(pid) == "sleeping" for pid in [*dies, job.pid]), "all go on")
        job.process.send_signal(signal.SIGTSTP)
        until(lambda: status(job.pid) == "stopped", "stopped again")
        job.process.send_signal(signal.SIGTERM)
        job.process.send_signal(signal.SIGCONT)
        assert job.end()[0] == 143
        all_gone(pids)


def test_closed_standard_files(tmp_path):
    """strata-run <&- >&- 2>&-: as python does it, and no pipe takes the numbers."""
    script = write(
        tmp_path / "script.py",
        """
        import os, sys
        print("lost")
        print("lost too", file=sys.stderr)
        open(sys.argv[1] + "/done." + os.environ["STRATA_RANK"], "w").close()
        """,
    )
    command = " ".join(map(str, [*COMMAND, "-n", 2, script, tmp_path]))
    for closing in (">&-", "2>&-", "<&-", "<&- >&- 2>&-"):
        done = subprocess.run(["sh", "-c", f"{command} {closing}"], env=environment(), timeout=60)
        assert done.returncode == 0
        assert len(list(tmp_path.glob("done.*"))) == 2
        for file in tmp_path.glob("done.*"):
            file.unlink()


def test_nothing_is_left_in_shared_memory(tmp_path):
    """By any user or name: what is there after twenty jobs was there before."""
    before = set(os.listdir("/dev/shm"))
    script = sleeper(
        tmp_path, "from strata import bootstrap; bootstrap.init(); os.environ['STRATA_RANK'] == '1' and os._exit(1)"
    )
    for _ in range(5):
        run("-n", 2, "--grace", 0.1, script, tmp_path)
    left = [name for name in set(os.listdir("/dev/shm")) - before if "strata" in name]
    assert not left
    assert plain("-c", "pass").returncode == 0
