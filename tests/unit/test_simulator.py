"""The simulator's front and what must hold of any simulator: errors, deadlocks, digests, windows, symmetries."""

import signal
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timing_problems import INF, Problem, draw

from strata._core import simulator
from strata.errors import Deadlock, InvalidArgument
from strata.exec.timed import records as r

PARTS = ("links", "uses", "tasks", "lanes", "flags", "members", "rendezvous")


def run(problem, **options):
    return simulator.run(*problem.arrays(), **problem.topology, **options)


def small():
    """Two dies that pull from each other, a kernel, a rendezvous."""
    p = Problem(2, 2)
    port = p.link(0.2, 0.08)
    pool = p.link(2, kind=r.POOL)
    arrive, start = p.flag(), p.flag()
    p.lane([{"work": 1e6, "bound": 0.1, "uses": [(port, 1.0, 1)], "post": arrive, "hold": 5}], pool=pool)
    p.lane([{"work": 1e6, "bound": 2.0, "uses": [(pool, 1.0)], "wait": [(start, 7)]}])
    p.meeting([(0, arrive, start)], 10, (1, 2, 3, 4))
    return p


def mesh(dies, cores, order, nbytes=1 << 20, scale=1.0, slow=1.0, names=None):
    """Each core of each die pulls from its peers in turn; ports with a loss.  ``names``: the number of each die."""
    p = Problem()
    names = list(range(dies)) if names is None else names
    out, into = ([p.link(0.196 * scale * slow, 0.0785) for _ in range(dies)] for _ in range(2))
    for d in range(dies):
        peers = [(d + k) % dies for k in range(1, dies)] if order == "staggered" else [*range(d), *range(d + 1, dies)]
        for c in range(cores):
            p.lane([{
                "hold": 0 if slow != 1 else 50000, "latency": 0 if slow != 1 else 700000, "work": nbytes * scale,
                "bound": 0.0071 * (1 + names[d] % 3) * scale * slow, "backlog": r.BACKLOG_ONE // 3,
                "uses": [(out[peer], 1.0, names[d]), (into[d], 1.0, names[peer])],
            } for peer in peers[c::cores]], die=d, ahead=0 if slow != 1 else c % 2)  # fmt: skip
    return p


@pytest.mark.parametrize(
    ("part", "field", "value", "said"),
    [
        ("links", "capacity", -1.0, "capacity or loss"),
        ("links", "capacity", INF, "capacity or loss"),
        ("links", "loss", np.nan, "capacity or loss"),
        ("links", "kind", 10, "no such kind"),
        ("uses", "link", 2, "no such link"),
        ("uses", "weight", -0.5, "weight"),
        ("uses", "weight", 1e300, "weight"),
        ("uses", "peer", -1, "has a loss"),
        ("tasks", "hold_ps", -1, "negative or above"),
        ("tasks", "latency_ps", 2**53 + 1, "negative or above"),
        ("tasks", "work", np.nan, "work is"),
        ("tasks", "bound", 0.0, "bound"),
        ("tasks", "bound", np.nan, "bound"),
        ("tasks", "use_first", 2, "uses end"),
        ("tasks", "nuse", 65535, "uses end"),
        ("tasks", "wait", 2, "no flag"),
        ("tasks", "post", -2, "no flag"),
        ("tasks", "kind", 6, "no such kind"),
        ("tasks", "backlog", (1 << 20) + 1, "backlog"),
        ("lanes", "count", 5, "tasks end"),
        ("lanes", "count", 2, "another lane"),
        ("lanes", "count", 0, "no lane"),
        ("lanes", "pool", 0, "POOL"),
        ("lanes", "ahead", 2, "ahead"),
        ("flags", "need", -1, "need"),
        ("flags", "rendezvous", 1, "no such rendezvous"),
        ("members", "die", -1, "die"),
        ("members", "start", 2, "no flag"),
        ("members", "arrive", 1, "another rendezvous"),
        ("rendezvous", "base_ps", -1, "base_ps"),
        ("rendezvous", "seen_ps", -1, "seen_ps"),
        ("rendezvous", "count", 0, "none"),
        ("rendezvous", "count", 2, "beyond"),
    ],
)
def test_what_is_given_is_checked_and_named(part, field, value, said):
    arrays = dict(zip(PARTS, small().arrays(), strict=True))
    run(small(), check=True)
    arrays[part][field][0] = value
    with pytest.raises(InvalidArgument, match=said) as caught:
        simulator.run(*arrays.values(), package=2, node=2)
    assert str(caught.value).split("[")[0] in PARTS


def test_a_flow_needs_a_bound_or_a_link_and_a_start_flag_a_post():
    p = Problem()
    p.lane([{"work": 1.0}])
    with pytest.raises(InvalidArgument, match=r"tasks\[0\].*neither"):
        run(p)
    arrays = dict(zip(PARTS, small().arrays(), strict=True))
    arrays["flags"]["need"][1] = 0
    with pytest.raises(InvalidArgument, match=r"members\[0\].*time 0"):
        simulator.run(*arrays.values())


@pytest.mark.parametrize("options", [{"package": 0}, {"package": 2, "node": 3}, {"window_ps": -1}, {"node": 0}])
def test_options_are_checked(options):
    with pytest.raises(InvalidArgument):
        simulator.run(*small().arrays(), **options)


def test_arrays_are_of_the_records_dtypes():
    arrays = small().arrays()
    assert simulator.run(*arrays)["times"].dtype == r.TIMES_DTYPE
    for wrong in ([], arrays[1], np.repeat(arrays[0], 2)[::2], arrays[0].reshape(1, -1), np.zeros(3)):
        with pytest.raises(InvalidArgument, match="links"):
            simulator.run(wrong, *arrays[1:])


def test_a_deadlock_names_the_lane_the_task_and_the_flag():
    p = Problem()
    first, second = p.flag(), p.flag()
    p.lane([{}, {"wait": [(first, 0)], "post": second}], die=3)
    p.lane([{"wait": [(second, 0)], "post": first}], die=4)
    with pytest.raises(Deadlock, match=r"die 3, core 0 .*unit 1\) waits for flag 0.*die 4, core 1.*2 tasks"):
        run(p)
    p = Problem()
    p.lane([{"work": 1.0, "uses": [(p.link(0, kind=r.POOL), 1.0)]}])
    with pytest.raises(Deadlock, match="no capacity"):
        run(p)


def test_a_problem_has_one_digest_and_another_has_another():
    found = run(mesh(12, 5, "naive"), check=True)
    assert found["residual"] < 1e-12
    assert f"{found['digest']:016x}" == "82f204fed1ccb131"
    assert run(mesh(12, 5, "naive"))["digest"] == found["digest"]
    assert run(mesh(12, 5, "naive", nbytes=(1 << 20) + 1))["digest"] != found["digest"]


@pytest.mark.parametrize("order", ["naive", "staggered"])
@pytest.mark.parametrize("window", [10_000, 1_000_000])
def test_a_window_saves_solves_is_reported_and_ends_no_earlier(order, window):
    exact, found = run(mesh(12, 5, order)), run(mesh(12, 5, order), window_ps=window, check=True)
    assert (exact["window_ps"], found["window_ps"]) == (0, window)
    assert found["solves"] <= exact["solves"] and found["events"] == exact["events"]
    assert exact["end_ps"] <= found["end_ps"] <= exact["end_ps"] * 1.2


@pytest.mark.parametrize("order", ["naive", "staggered"])
def test_bytes_and_rates_scaled_by_a_power_of_two_change_no_time(order):
    one, two = run(mesh(9, 4, order)), run(mesh(9, 4, order, scale=64.0))
    assert (one["times"] == two["times"]).all() and one["digest"] == two["digest"]


def test_half_of_all_capacities_doubles_times_without_latencies():
    one, half = run(mesh(9, 4, "naive", slow=0.5)), run(mesh(9, 4, "naive", slow=0.25))
    np.testing.assert_allclose(half["times"]["done"], 2 * one["times"]["done"], rtol=0, atol=100)


def test_dies_in_another_order_have_the_same_times():
    dies, cores = 9, 4
    turned = [(5 * d + 2) % dies for d in range(dies)]
    plain = mesh(dies, cores, "staggered")
    links, uses, tasks, lanes, *rest = plain.arrays()
    where = np.array([*turned, *(t + dies for t in turned)])
    moved = np.empty_like(links)
    moved[where] = links
    uses["link"], uses["peer"] = where[uses["link"]], np.array(turned)[uses["peer"]]
    order = np.random.default_rng(1).permutation(len(lanes))  # lanes, too, stand elsewhere
    found = simulator.run(moved, uses, tasks, lanes[order], *rest)
    expected = run(plain)
    for name in found["times"].dtype.names:
        np.testing.assert_allclose(found["times"][name], expected["times"][name], rtol=1e-12, atol=5)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.booleans(), st.sampled_from([0, 10**6, 10**9]))
def test_every_solve_of_drawn_problems_is_proved(seed, crowd, window):
    problem = draw(seed, crowd=crowd)
    found = run(problem, window_ps=window, check=True)
    assert found["residual"] < 1e-11
    times = found["times"]
    assert (times["ready"] >= 0).all() and (times["ready"] <= times["begun"]).all()
    assert (times["begun"] <= times["flowing"]).all() and (times["flowing"] <= times["done"]).all()
    assert times["done"].max() == found["end_ps"]


def test_nothing_is_nothing():
    found = run(Problem())
    assert (found["end_ps"], found["events"], len(found["times"])) == (0, 0, 0)


def test_an_interrupt_ends_a_long_run():
    """The signal comes once the run has begun; without it this would take minutes."""
    p = Problem()
    port = p.link(1.0, 0.1)
    uses = [(port, 1.0, 0)]
    for lane in range(400):
        p.lane([{"work": 1.0 + lane, "uses": uses}], die=lane)
    links, uses, tasks, lanes, *rest = p.arrays()
    each = 2000
    tasks = np.repeat(tasks, each)
    tasks["work"] += np.arange(len(tasks)) * np.pi % 77
    lanes["first"], lanes["count"] = np.arange(len(lanes)) * each, each
    timer = threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        simulator.run(links, uses, tasks, lanes, *rest)
    timer.join()
