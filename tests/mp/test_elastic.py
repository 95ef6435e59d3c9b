"""Dies that are killed come back into the running job: tests/elastic_play.py, by strata-run."""

import re
from pathlib import Path

import pytest
from launching import run

PLAY = Path(__file__).parents[1] / "elastic_play.py"


def play(place, n, restarts, *arguments, options=(), status=0):
    """Runs a scenario; its output.  All ranks must have come to its end."""
    again = ["--restarts", restarts] if restarts else ["--on-failure", "continue"]
    done = run("-n", n, *again, *options, PLAY, arguments[0], place, *arguments[1:], timeout=100)
    out, err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == status, f"status {done.returncode}\n{out}\n{err}"
    return out, err


def ranks_done(out):
    return sorted(int(r) for r in re.findall(r"^done (\d+)", out, re.M))


@pytest.mark.parametrize(
    ("n", "moment", "victims"),
    [(2, "idle", [0]), (2, "during", [1]), (3, "during", [0]), (4, "during", [3]), (4, "idle", [0, 2]),
     (8, "during", [0, 5])],
    ids=str,
)  # fmt: skip
def test_killed_and_back(tmp_path, n, moment, victims):
    out, err = play(tmp_path, n, len(victims), "kill", moment, *victims)
    assert ranks_done(out) == list(range(n))
    for rank in victims:
        assert f"strata-run: rank {rank} of {n} is started again" in err and "killed by SIGKILL" in err


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_survivor_that_was_busy_is_not_fooled(tmp_path, victim):
    out, _ = play(tmp_path, 3, 1, "busy", victim, (victim + 1) % 3)
    assert ranks_done(out) == [0, 1, 2]


@pytest.mark.parametrize("victim", [0, 2])
def test_all_of_the_dead_ones_memory_comes_back(tmp_path, victim):
    out, _ = play(tmp_path, 3, 1, "hbm", victim, options=("--hbm", "128M"))
    assert ranks_done(out) == [0, 1, 2]


@pytest.mark.parametrize(
    "where", [["grown"], ["start"], ["init"], ["world"], ["taken"], ["code", "init", "taken"]], ids=str
)
def test_it_dies_again(tmp_path, where):
    out, err = play(tmp_path, 3, 1 + len(where), "again", *where)
    assert ranks_done(out) == [0, 1, 2]
    assert err.count("is started again") == 1 + len(where)


@pytest.mark.parametrize("at", ["first", "offered", "other"])
def test_a_survivor_dies_in_grow(tmp_path, at):
    out, _ = play(tmp_path, 4, 2, "second", at)
    assert ranks_done(out) == [0, 1, 2, 3]


def test_nobody_comes(tmp_path):
    out, err = play(tmp_path, 3, 0, "nobody", status=137)
    assert ranks_done(out) == [0, 2]
    assert "rank 1 of 3 failed: killed by SIGKILL" in err


def test_some_are_taken_in_first(tmp_path):
    out, _ = play(tmp_path, 4, 2, "some")
    assert ranks_done(out) == [0, 1, 2, 3]


def test_nobody_is_left_who_could_grow(tmp_path):
    out, _ = play(tmp_path, 2, 2, "alone")
    assert ranks_done(out) == [0, 1]


def test_the_example():
    pytest.importorskip("sklearn")
    done = run("-n", 4, "--restarts", 1, PLAY.parents[1] / "examples" / "elastic.py", timeout=100)
    out = done.stdout.decode()
    assert done.returncode == 0, out + done.stderr.decode()
    assert "kills itself" in out and "is back, in world.grow1" in out and "4 of 4 dies" in out


def test_the_example_on_one_die():
    pytest.importorskip("sklearn")
    done = run("-n", 1, "--restarts", 1, PLAY.parents[1] / "examples" / "elastic.py", timeout=100)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
