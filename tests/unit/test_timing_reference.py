"""The simulator's plain reference against closed forms: it is what the engine is compared with."""

import random
from fractions import Fraction

import numpy as np
import pytest
import timing_reference as reference

from strata.errors import Deadlock
from strata.exec.timed import records as r

INF = float("inf")


class Problem:
    """Arrays of a small problem, grown a record at a time."""

    def __init__(self):
        self.parts = {n: [] for n in ("links", "uses", "tasks", "lanes", "flags", "members", "rendezvous")}

    def link(self, capacity, loss=0.0, kind=r.UB_OUT, die=0):
        return self._add("links", (capacity, loss, kind, die))

    def flag(self, need=1):
        return self._add("flags", (need, r.NONE))

    def lane(self, tasks, pool=r.NONE, ahead=0):
        """``tasks``: dicts of the record's fields; wait: (flag, ps), uses: (link, weight[, peer])."""
        first = len(self.parts["tasks"])
        for t in tasks:
            start = len(self.parts["uses"])
            for link, weight, *peer in t.get("uses", ()):
                self._add("uses", (link, peer[0] if peer else r.NONE, weight))
            waits = [*t.get("wait", ()), (r.NONE, 0), (r.NONE, 0)][:2]
            self._add("tasks", (
                t.get("hold", 0), t.get("latency", 0), t.get("work", 0.0), t.get("bound", INF), [w[1] for w in waits],
                [w[0] for w in waits], t.get("post", r.NONE), start, len(t.get("uses", ())), r.MOVE, 0,
                t.get("backlog", r.BACKLOG_ONE), 0, 0, [0, 0],
            ))  # fmt: skip
        self._add("lanes", (first, len(tasks), 0, pool, len(self.parts["lanes"]), ahead))

    def meeting(self, members, base, seen):
        """``members``: (die, arrive, start)."""
        index = len(self.parts["rendezvous"])
        self._add("rendezvous", (len(self.parts["members"]), len(members), base, seen))
        for die, arrive, start in members:
            self._add("members", (die, arrive, start, 0))
            self.parts["flags"][arrive] = (self.parts["flags"][arrive][0], index)

    def _add(self, part, record):
        self.parts[part].append(record)
        return len(self.parts[part]) - 1

    def run(self, **options):
        kinds = {"links": r.LINK_DTYPE, "uses": r.USE_DTYPE, "tasks": r.TASK_DTYPE, "lanes": r.LANE_DTYPE,
                 "flags": r.FLAG_DTYPE, "members": r.MEMBER_DTYPE, "rendezvous": r.RENDEZVOUS_DTYPE}  # fmt: skip
        arrays = [np.array([_tuple(x) for x in self.parts[n]], kinds[n]) for n in kinds]
        return reference.run(*arrays, number=Fraction, check=True, **options)


def _tuple(record):
    return tuple(tuple(x) if isinstance(x, list) else x for x in record)


def test_incast_shares_a_port_and_a_bound_leaves_the_rest():
    p = Problem()
    port = p.link(0.1)
    for bound in (INF, INF, 0.02):
        p.lane([{"work": 4000.0, "bound": bound, "uses": [(port, 1.0)]}])
    done = p.run()["times"]["done"]
    assert done.tolist() == [100_000, 100_000, 200_000]  # 0.04 each beside the bound of 0.02


def test_a_lane_is_one_after_the_other_and_ahead_hides_issue_and_latency():
    for ahead, done in ((0, [160, 320, 480]), (1, [160, 260, 360])):
        p = Problem()
        port = p.link(1.0)
        p.lane([{"work": 100.0, "hold": 10, "latency": 50, "uses": [(port, 1.0)]}] * 3, ahead=ahead)
        times = p.run()["times"]
        assert times["done"].tolist() == done
        assert times["flowing"].tolist() == [d - 100 for d in done]
        assert times["ready"].tolist() == ([0, 160, 320] if not ahead else [0, 60, 160])


def test_flags_count_down_and_are_seen_later():
    p = Problem()
    flag, both = p.flag(), p.flag(2)
    p.lane([{"hold": 7, "post": flag}, {"hold": 5, "post": both}])
    p.lane([{"hold": 30, "post": both}])
    p.lane([{"wait": [(flag, 100), (both, 3)], "hold": 1}])
    found = p.run()
    assert found["raised"].tolist() == [7, 30]
    assert found["times"][3].tolist() == (0, 107, 108, 108)
    assert found["end_ps"] == 108


def test_rendezvous_waits_for_the_last_as_each_sees_it():
    p = Problem()
    arrive, start = [p.flag() for _ in range(3)], [p.flag() for _ in range(3)]
    for i, delay in enumerate((0, 100, 40)):
        p.lane([{"hold": delay, "post": arrive[i]}, {"wait": [(start[i], 0)]}])
    p.meeting([(0, arrive[0], start[0]), (1, arrive[1], start[1]), (2, arrive[2], start[2])], 1000, [1, 20, 300, 300])
    found = p.run(package=2, node=4)
    assert found["raised"][start].tolist() == [1340, 1340, 1400]


def test_a_kernel_has_the_cores_that_lanes_do_not_hold():
    p = Problem()
    pool = p.link(4.0, kind=r.POOL)
    p.lane([{"work": 400.0, "bound": 1.0, "uses": [(pool, 4.0)]}])
    for _ in range(2):
        p.lane([{"hold": 100}], pool=pool)
    assert p.run()["times"]["done"].tolist() == [450, 100, 100]  # half speed for 100


def test_fan_out_loses_by_distinct_peers_and_mean_backlog():
    p = Problem()
    port = p.link(1.0, loss=0.5)
    for peer, backlog in ((1, r.BACKLOG_ONE), (1, 0), (2, r.BACKLOG_ONE), (3, r.BACKLOG_ONE), (4, r.BACKLOG_ONE)):
        p.lane([{"work": 100.0, "backlog": backlog, "uses": [(port, 1.0, peer)]}])
    assert abs(p.run()["end_ps"] - 500 * (1 + 0.5 * 2 * 0.8)) <= 1  # a backlog is a fraction of 2**20


def test_what_never_runs_is_a_deadlock():
    p = Problem()
    flag = p.flag()
    p.lane([{"wait": [(flag, 0)]}])
    with pytest.raises(Deadlock, match="flag 0"):
        p.run()
    p = Problem()
    p.lane([{"work": 1.0, "uses": [(p.link(0.0), 1.0)]}])
    with pytest.raises(Deadlock, match="flows at no rate"):
        p.run()


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
    exact, coarse = p.run(), p.run(window_ps=40)
    assert coarse["end_ps"] >= exact["end_ps"]  # not so of each flow: others begin later, and leave it more
    assert coarse["solves"] < exact["solves"]
