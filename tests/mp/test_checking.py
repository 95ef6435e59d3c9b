"""What dies of a checked job tell the analyser, when things go as they should and when they do not."""

import os
import signal
import socket
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import strata
from strata import config

sys.path.insert(0, str(Path(__file__).parents[1] / "checked_programs"))

from common import addresses
from everything import Checked


def run(fn, n, *args, **env):
    """The reports of a job, and how many events there were."""
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        with Checked() as found:
            strata.spawn(fn, n, *args)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    assert not found.problems
    return found


def loop(elements):
    g = strata.world()
    x, y = strata.zeros(elements), strata.zeros(elements)
    for i in range(elements):
        y[i] = x[i] + 1.0
    for i in reversed(range(elements)):
        x[i] = y[i]
    g.barrier()
    assert type(x + y) is np.ndarray
    assert x.sum() == elements


def test_a_loop_sends_few_lines():
    found = run(loop, 2, 20_000)
    assert not found.reports
    assert found.server.events < 200


def forked():
    g = strata.world()
    x = strata.zeros(100)
    peer = strata.from_address(addresses(g, x)[0], 100)
    if g.rank:
        child = os.fork()
        if child == 0:
            try:
                peer[...] = 1.0  # races with what rank 0 does, but a child is no die
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    else:
        x[:50] = 2.0
    g.barrier()
    assert g.all_reduce(np.ones(1)) == g.size


def test_a_forked_child_says_nothing():
    assert not run(forked, 2).reports


def threads():
    g = strata.world()
    other = g.split(0)
    x = strata.zeros(1000)
    lock = threading.Lock()

    def work(group):
        for _ in range(20):
            y = strata.ones(1000)
            group.all_reduce(y)
            with lock:
                x[...] += y

    both = [threading.Thread(target=work, args=(group,)) for group in (g, other)]
    for thread in both if g.rank else reversed(both):
        thread.start()
    for thread in both:
        thread.join()
    assert (x == 40 * g.size).all()


def test_threads_that_use_groups_in_different_orders():
    assert not run(threads, 2).reports


def intercepted():
    g = strata.world()
    x = np.ones((300, 300))
    assert strata.is_fabric(x)
    for _ in range(3):
        y = g.all_reduce(x.T.copy(), np.empty((300, 300)))
        x = y / g.size
    assert (x == 1).all()


def test_together_with_interception():
    assert not run(intercepted, 2, STRATA_INTERCEPT="1").reports


def killed():
    g = strata.world()
    x = strata.zeros(64)
    peer = strata.from_address(addresses(g, x)[0], 64)
    if g.rank:
        peer[:8] = 1.0  # the race
        g.send(np.ones(1), 0)
        os.kill(os.getpid(), signal.SIGKILL)
    x[...] = 2.0  # the race
    g.recv(np.ones(1), 1)
    with pytest.raises(strata.PeerDead):
        g.barrier()


def test_a_killed_die_has_told_what_it_did():
    with Checked() as found, pytest.raises(strata.StrataError):
        strata.spawn(killed, 2)
    races = [report for report in found.reports if report.kind == "race"]
    assert races, found.problems
    assert all("the race" in side.place.text for report in races for side in report.sides)


def alone():
    assert strata.world().all_reduce(np.ones(1)) == strata.world().size


def test_without_an_analyser_the_job_goes_on_and_says_so(capfd, monkeypatch):
    monkeypatch.setenv("STRATA_CHECK", f"strata-no-such-{os.getpid()}")
    strata.spawn(alone, 2)
    said = capfd.readouterr().err
    assert said.count("is not checked") == 2


def hanging_up():
    g = strata.world()
    for _ in range(200):
        strata.zeros(100)[...] = 1.0
        g.barrier()


def test_an_analyser_that_goes_away_does_not_hold_the_job(capfd, monkeypatch):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0strata-gone-{os.getpid()}")
        listener.listen(2)

        def hang_up():
            for _ in range(2):
                connection, _ = listener.accept()
                connection.recv(64)
                connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        monkeypatch.setenv("STRATA_CHECK", f"strata-gone-{os.getpid()}")
        strata.spawn(hanging_up, 2)
        thread.join(20)
        assert not thread.is_alive()
    assert capfd.readouterr().err.count("is not checked") == 2


def test_check_and_clock_refuse_each_other():
    with pytest.raises(strata.ConfigError, match="not both"):
        config.load({"STRATA_CHECK": "x", "STRATA_CLOCK": "cm384"})
