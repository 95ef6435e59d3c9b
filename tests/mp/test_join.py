"""Jobs that other launchers start: only their variables are set, and the processes find each other."""

import os
import signal
import subprocess
import sys
import time

import pytest

from strata import bootstrap, config, errors

PROGRAM = """
import numpy as np, strata, sys, time
exec(sys.argv[1])
g = strata.world()
x = strata.full(5000, 2 ** g.rank)
g.all_reduce(x)
g.barrier()
strata.finalize()
print(g.rank, g.size, int(x[0]))
"""
LAUNCHERS = {
    "torchrun": lambda r, n: {
        "RANK": r, "WORLD_SIZE": n, "LOCAL_RANK": r, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none"},
    "torchrun, long names": lambda r, n: {
        "RANK": r, "WORLD_SIZE": n, "MASTER_ADDR": "host." * 1000, "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "/" * 300},
    "torchrun, bare": lambda r, n: {"RANK": r, "WORLD_SIZE": n},
    "Open MPI": lambda r, n: {
        "OMPI_COMM_WORLD_RANK": r, "OMPI_COMM_WORLD_SIZE": n, "OMPI_COMM_WORLD_LOCAL_RANK": r,
        "PMIX_NAMESPACE": "prterun-host-77@1", "PMIX_RANK": r},
    "Open MPI 4": lambda r, n: {
        "OMPI_COMM_WORLD_RANK": r, "OMPI_COMM_WORLD_SIZE": n, "OMPI_MCA_ess_base_jobid": "3812"},
    "MPICH": lambda r, n: {"PMI_RANK": r, "PMI_SIZE": n, "PMI_FD": "9", "MPI_LOCALRANKID": r},
    "Intel MPI": lambda r, n: {"PMI_RANK": r, "PMI_SIZE": n, "I_MPI_HYDRA_UUID": "c0ffee"},
    "Slurm": lambda r, n: {
        "SLURM_PROCID": r, "SLURM_NTASKS": n, "SLURM_LOCALID": r, "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"},
}  # fmt: skip
FOREIGN = ("STRATA_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC", "I_MPI", "HYDI")


def environment(variables):
    """This process's, without any launcher's variables, and with these."""
    kept = {
        key: value for key, value in os.environ.items()
        if not key.startswith(FOREIGN) and key not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    }  # fmt: skip
    return kept | {key: str(value) for key, value in variables.items()} | {"STRATA_TIMEOUT": "30"}


class Jobs:
    """Processes of a test; none outlives it."""

    def __init__(self):
        self.all = []

    def start(self, variables, before="", *more):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, before, *more], env=environment(variables),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.all.append(process)
        return process


@pytest.fixture
def jobs():
    made = Jobs()
    yield made
    for process in made.all:
        process.kill()
        process.communicate()


def results(processes):
    """What each printed; it must have ended well and said nothing else."""
    found = []
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, ""), err
        found.append(tuple(map(int, out.split())))
    return found


@pytest.mark.parametrize("name", LAUNCHERS)
def test_processes_find_each_other(jobs, name):
    n = 3
    processes = [jobs.start(LAUNCHERS[name](rank, n)) for rank in range(n)]
    assert results(processes) == [(rank, n, 7) for rank in range(n)]


@pytest.mark.parametrize("late", [0, 1])
def test_one_that_comes_late_is_waited_for(jobs, late):
    first = jobs.start(LAUNCHERS["torchrun"](1 - late, 2))
    time.sleep(0.7)
    second = jobs.start(LAUNCHERS["torchrun"](late, 2))
    assert sorted(results([first, second])) == [(0, 2, 3), (1, 2, 3)]


def test_jobs_of_different_names_do_not_meet(jobs):
    def start(port, rank):
        return jobs.start(LAUNCHERS["torchrun"](rank, 2) | {"MASTER_PORT": port}, f"time.sleep({0.2 * rank})")

    processes = [start(port, rank) for rank in range(2) for port in (29501, 29502, 29503)]
    assert sorted(results(processes)) == [(0, 2, 3)] * 3 + [(1, 2, 3)] * 3


def test_the_same_name_again_at_once(jobs):
    for _ in range(2):
        assert len(results([jobs.start(LAUNCHERS["Slurm"](rank, 2)) for rank in range(2)])) == 2


def test_the_same_name_again_after_a_kill(jobs):
    wait = "strata.init(); print('in', flush=True); time.sleep(60)"
    killed = [jobs.start(LAUNCHERS["torchrun"](rank, 2), wait) for rank in range(2)]
    for process in killed:
        assert process.stdout.readline() == "in\n"
        process.send_signal(signal.SIGKILL)
    for process in killed:
        process.wait()
    assert len(results([jobs.start(LAUNCHERS["torchrun"](rank, 2)) for rank in range(2)])) == 2


def test_two_jobs_of_one_name_are_an_error(jobs):
    hold = "strata.init(timeout=20); time.sleep(0)"
    first = jobs.start(LAUNCHERS["torchrun"](0, 2), hold)
    time.sleep(0.7)
    second = jobs.start(LAUNCHERS["torchrun"](0, 2))
    _, err = second.communicate(timeout=60)
    assert second.returncode == 1
    assert "NotInJob: rank 0 of 2 under torchrun: another job of this user has the same name" in err
    assert "MASTER_PORT" in err
    other = jobs.start(LAUNCHERS["torchrun"](1, 2))
    assert sorted(results([first, other])) == [(0, 2, 3), (1, 2, 3)]


@pytest.mark.parametrize(("present", "missing"), [(0, 1), (1, 0)])
def test_one_that_never_comes_is_named(jobs, present, missing):
    process = jobs.start(LAUNCHERS["torchrun"](present, 2), "strata.init(timeout=1)")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "CollectiveTimeout" in err
    assert f"rank {missing}" in err or (missing == 0 and "nobody serves" in err), err


RETRY = """
try:
    strata.init(timeout=0.5)
except strata.CollectiveTimeout:
    open(sys.argv[2], "w").close()  # the other may come
    strata.init()
"""


@pytest.mark.parametrize("early", [0, 1])
def test_init_may_be_called_again_when_others_came_too_late(jobs, tmp_path, early):
    mark = tmp_path / "gave up"
    first = jobs.start(LAUNCHERS["torchrun"](early, 2), RETRY, str(mark))
    until = time.monotonic() + 60
    while not mark.exists() and first.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    second = jobs.start(LAUNCHERS["torchrun"](1 - early, 2))
    assert sorted(results([first, second])) == [(0, 2, 3), (1, 2, 3)]


def test_strata_s_own_variables_come_first(monkeypatch):
    environ = LAUNCHERS["Slurm"]("3", "4") | {"STRATA_RANK": "1", "STRATA_WORLD_SIZE": "2", "STRATA_JOB": "ab"}
    me = bootstrap.identify(environ, config.load(environ))
    assert me == ("strata", 1, 2, "ab")


@pytest.mark.parametrize("name", LAUNCHERS)
def test_identity(name):
    def identify(rank, n):
        environ = {key: str(value) for key, value in LAUNCHERS[name](rank, n).items()}
        return bootstrap.identify(environ, config.load(environ))

    found = [identify(rank, 3) for rank in range(3)]
    assert [(me.rank, me.size) for me in found] == [(0, 3), (1, 3), (2, 3)]
    assert len({me.name for me in found}) == 1  # the job's, equal on all ranks
    assert identify(0, 4).name != found[0].name
    assert name.startswith(("Intel", found[0].launcher))


@pytest.mark.parametrize(
    "variables",
    [{"RANK": "x", "WORLD_SIZE": "2"}, {"RANK": "2", "WORLD_SIZE": "2"}, {"PMI_RANK": "-1", "PMI_SIZE": "2"},
     {"SLURM_PROCID": "0", "SLURM_NTASKS": ""}, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "0"}],
    ids=str,
)  # fmt: skip
def test_nonsense_is_refused(variables):
    with pytest.raises(errors.ConfigError) as caught:
        bootstrap.identify(variables, config.load({}))
    assert next(iter(variables)) in str(caught.value)


def test_no_launcher_is_no_job():
    assert bootstrap.identify({"RANK": "0"}, config.load({})) is None
    assert bootstrap.identify({}, config.load({})) is None


def test_alone(jobs):
    assert results([jobs.start({})]) == [(0, 1, 1)]
