"""strata-run --restarts: who is started again, what is said of it, and with which status the job ends."""

import pytest
from launching import run, write

SCRIPT = """
    import os, sys
    rank, life = int(os.environ["STRATA_RANK"]), int(os.environ["STRATA_INCARNATION"])
    print("here", rank, life, flush=True)
    plan = sys.argv[1].split(",") if rank == 1 else []       # what each life of rank 1 ends with
    if life < len(plan):
        if plan[life].startswith("-"):
            os.kill(os.getpid(), -int(plan[life]))
        sys.exit(int(plan[life]))
"""


@pytest.fixture
def script(tmp_path):
    return write(tmp_path / "lives.py", SCRIPT)


def test_a_rank_that_ended_well_at_last_has_ended_well(script):
    done = run("-n", 3, "--restarts", 2, "--tag-output", script, "-9,7")
    out, err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 0, out + err
    expected = [f"[{r}] here {r} 0" for r in range(3)] + ["[1] here 1 1", "[1] here 1 2"]
    assert sorted(out.splitlines()) == sorted(expected)
    assert "rank 1 of 3 is started again (1 of 2): killed by SIGKILL" in err
    assert "rank 1 of 3 is started again (2 of 2): exit code 7" in err


def test_a_budget_that_is_used_up(script):
    done = run("-n", 2, "--restarts", 1, script, "3,4")
    err = done.stderr.decode()
    assert done.returncode == 4, err
    assert "rank 1 of 2 failed: exit code 4" in err and "started again 1 time before" in err


def test_without_the_option_nothing_is_started_again(script):
    done = run("-n", 2, script, "3")
    assert done.returncode == 3
    assert b"again" not in done.stderr and done.stdout.count(b"here") == 2


def test_log_files_go_on(script, tmp_path):
    assert run("-n", 2, "--restarts", 1, "--log-dir", tmp_path / "log", script, "3").returncode == 0
    assert (tmp_path / "log" / "rank.1.out").read_text() == "here 1 0\nhere 1 1\n"


def test_one_die_and_any_program(tmp_path):
    program = "read line; echo $STRATA_INCARNATION $line; exit $((2 - STRATA_INCARNATION))"
    done = run("-n", 1, "--restarts", 2, "sh", "-c", program, input=b"a\nb\nc\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"0 a\n1 b\n2 c\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--on-failure", "kill"], "need"), (["--clock", "cm384"], "--clock")],
)
def test_refused(script, options, says):
    done = run("-n", 2, "--restarts", 1, *options, script, "0")
    assert done.returncode == 2 and says.encode() in done.stderr


@pytest.mark.parametrize("number", ["0", "x", "-1", "2.5"])
def test_wrong_numbers(script, number):
    assert run("-n", 2, "--restarts", number, script, "0").returncode == 2
