"""The simulator's plain reference against closed forms: it is what the engine is compared with."""

import random
from fractions import Fraction

import pytest
import timing_reference as reference
from timing_problems import INF, Problem

from strata.errors import Deadlock
from strata.exec.timed import records as r


def run(p, **options):
    return reference.run(*p.arrays(), **p.topology, number=Fraction, check=True, **options)


def test_incast_shares_a_port_and_a_bound_leaves_the_rest():
    p = Problem()
    port = p.link(0.1)
    for bound in (INF, INF, 0.02):
        p.lane([{"work": 4000.0, "bound": bound, "uses": [(port, 1.0)]}])
    done = run(p)["times"]["done"]
    assert done.tolist() == [100_000, 100_000, 200_000]  # 0.04 each beside the bound of 0.02


def test_a_lane_is_one_after_the_other_and_ahead_hides_issue_and_latency():
    for ahead, done in ((0, [160, 320, 480]), (1, [160, 260, 360])):
        p = Problem()
        port = p.link(1.0)
        p.lane([{"work": 100.0, "hold": 10, "latency": 50, "uses": [(port, 1.0)]}] * 3, ahead=ahead)
        times = run(p)["times"]
        assert times["done"].tolist() == done
        assert times["flowing"].tolist() == [d - 100 for d in done]
        assert times["ready"].tolist() == ([0, 160, 320] if not ahead else [0, 60, 160])


def test_flags_count_down_and_are_seen_later():
    p = Problem()
    flag, both = p.flag(), p.flag(2)
    p.lane([{"hold": 7, "post": flag}, {"hold": 5, "post": both}])
    p.lane([{"hold": 30, "post": both}])
    p.lane([{"wait": [(flag, 100), (both, 3)], "hold": 1}])
    found = run(p)
    assert found["raised"].tolist() == [7, 30]
    assert found["times"][3].tolist() == (0, 107, 108, 108)
    assert found["end_ps"] == 108


def test_rendezvous_waits_for_the_last_as_each_sees_it():
    p = Problem(package=2, node=4)
    arrive, start = [p.flag() for _ in range(3)], [p.flag() for _ in range(3)]
    for i, delay in enumerate((0, 100, 40)):
        p.lane([{"hold": delay, "post": arrive[i]}, {"wait": [(start[i], 0)]}])
    p.meeting([(0, arrive[0], start[0]), (1, arrive[1], start[1]), (2, arrive[2], start[2])], 1000, [1, 20, 300, 300])
    found = run(p)
    assert found["raised"][start].tolist() == [1340, 1340, 1400]


def test_a_kernel_has_the_cores_that_lanes_do_not_hold():
    p = Problem()
    pool = p.link(4.0, kind=r.POOL)
    p.lane([{"work": 400.0, "bound": 1.0, "uses": [(pool, 4.0)]}])
    for _ in range(2):
        p.lane([{"hold": 100}], pool=pool)
    assert run(p)["times"]["done"].tolist() == [450, 100, 100]  # half speed for 100


def test_fan_out_loses_by_distinct_peers_and_mean_backlog():
    p = Problem()
    port = p.link(1.0, loss=0.5)
    for peer, backlog in ((1, r.BACKLOG_ONE), (1, 0), (2, r.BACKLOG_ONE), (3, r.BACKLOG_ONE), (4, r.BACKLOG_ONE)):
        p.lane([{"work": 100.0, "backlog": backlog, "uses": [(port, 1.0, peer)]}])
    assert abs(run(p)["end_ps"] - 500 * (1 + 0.5 * 2 * 0.8)) <= 1  # a backlog is a fraction of 2**20


def test_what_never_runs_is_a_deadlock():
    p = Problem()
    flag = p.flag()
    p.lane([{"wait": [(flag, 0)]}])
    with pytest.raises(Deadlock, match="flag 0"):
        run(p)
    p = Problem()
    p.lane([{"work": 1.0, "uses": [(p.link(0.0), 1.0)]}])
    with pytest.raises(Deadlock, match="flows at no rate"):
        run(p)


@pytest.mark.parametrize("seed", range(20))
def test_filling_satisfies_the_certificate_and_a_wrong_rate_does_not(seed):
    draw = random.Random(seed)
    capacities = {i: Fraction(draw.randint(1, 20), 4) for i in range(draw.randint(1, 6))}
    flows = []
    for _ in range(draw.randint(1, 12)):
        through = draw.sample(sorted(capacities), draw.randint(1, len(capacities)))
        bound = draw.choice([INF, Fraction(draw.randint(1, 8), 8)])
        flows.append((bound, {i: Fraction(draw.choice((1, 2))) for i in through}))
    rates = reference.fill(capacities, flows, Fraction)
    assert reference.certificate(capacities, flows, rates) < 1e-12
    for i in range(len(rates)):
        for factor in (Fraction(9, 10), Fraction(11, 10)):
            wrong = [*rates[:i], rates[i] * factor, *rates[i + 1 :]]
            assert reference.certificate(capacities, flows, wrong) > 0.01


def test_a_window_saves_solves_and_ends_no_earlier():
    p = Problem()
    port = p.link(1.0)
    for i in range(6):
        p.lane([{"hold": 13 * i, "work": 100.0 + 7 * i, "uses": [(port, 1.0)]}])
    exact, coarse = run(p), run(p, window_ps=40)
    assert coarse["end_ps"] >= exact["end_ps"]  # not so of each flow: others begin later, and leave it more
    assert coarse["solves"] < exact["solves"]
