"""The simulator against SimGrid, written by others on another design: when every task of drawn problems is done.

Skipped where no interpreter here has the ``simgrid`` module (Debian: python3-simgrid; PyPI: simgrid)."""

import functools
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timing_reference
from timing_problems import draw

from strata._core import simulator
from strata.exec.timed import records as r
from strata.plan.topology import Topology

RUNS = {"engine": simulator.run, "reference": timing_reference.run}
ORACLE = Path(__file__).with_name("simgrid_oracle.py")
US = 1_000_000  # ps


@functools.cache
def interpreter():
    for python in (sys.executable, "/usr/bin/python3", shutil.which("python3")):
        if python and subprocess.run([python, "-c", "import simgrid"], capture_output=True, timeout=60).returncode == 0:
            return python
    pytest.skip("no interpreter here has simgrid (apt-get install python3-simgrid)")


def told(problem):
    """The problem as simgrid_oracle.py has it: microseconds, and bytes per microsecond."""
    links, uses, tasks, lanes, flags, members, rendezvous = problem.arrays()
    found = []
    for lane in lanes:
        for t in range(lane["first"], lane["first"] + lane["count"]):
            task = tasks[t]
            used = uses[task["use_first"] : task["use_first"] + task["nuse"]]
            waits = zip(task["wait"], task["wait_ps"], strict=True)
            found.append({
                "pause": float(task["hold_ps"] + task["latency_ps"]) / US, "work": int(task["work"]),
                "bound": None if math.isinf(task["bound"]) else float(task["bound"]) * US,
                "wait": [[int(f), float(ps) / US] for f, ps in waits if f != r.NONE],
                "post": int(task["post"]), "uses": [[int(u["link"]), int(u["weight"])] for u in used],
                "before": int(t - 1) if t > lane["first"] else -1, "ahead": bool(lane["ahead"]),
                "pool": int(lane["pool"]), "last": bool(t == lane["first"] + lane["count"] - 1),
            })  # fmt: skip
    meetings = []
    for meeting in rendezvous:
        there = members[meeting["first"] : meeting["first"] + meeting["count"]]
        tiers = [Topology(**problem.topology).tiers(int(die), there["die"]) for die in there["die"]]
        meetings.append({
            "arrive": there["arrive"].tolist(), "start": there["start"].tolist(),
            "base": float(meeting["base_ps"]) / US, "seen": [(meeting["seen_ps"][t] / US).tolist() for t in tiers],
        })  # fmt: skip
    return {"links": [{"capacity": float(x["capacity"]) * US, "loss": float(x["loss"])} for x in links],
            "tasks": found, "flags": flags["need"].tolist(), "rendezvous": meetings, "precision": 1e-9}  # fmt: skip


def simgrid_us(problem):
    given = json.dumps(told(problem))
    done = subprocess.run([interpreter(), str(ORACLE)], input=given, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    return np.array(json.loads(done.stdout), float)


SIZES = [(seed, {}) for seed in range(8)] + [(100, {"lanes": 30, "tasks": 250, "links": 12})]


def done_us(run, problem):
    return run(*problem.arrays(), **problem.topology, check=True)["times"]["done"] / US


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(("seed", "sizes"), SIZES, ids=str)
def test_every_task_of_drawn_problems_is_done_when_simgrid_says(seed, sizes, name):
    problem = draw(seed, **sizes)
    expected = simgrid_us(problem)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(done_us(RUNS[name], problem), expected, rtol=1e-9, err_msg=f"seed {seed}")


def test_a_constant_off_by_a_thousandth_is_seen():
    problem = draw(0)
    expected = simgrid_us(problem)
    lossy = next(i for i, link in enumerate(problem.parts["links"]) if link[1] > 0)
    capacity, loss, *rest = problem.parts["links"][lossy]
    problem.parts["links"][lossy] = (capacity, loss * 1.001, *rest)
    assert np.abs(done_us(timing_reference.run, problem) / expected - 1).max() > 1e-7
