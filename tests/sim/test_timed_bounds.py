"""No plan is faster than its links and its cores allow, and links that are left out would have changed nothing."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from timed_cases import CM384, every_case, plans

from strata.exec.timed import Program
from strata.exec.timed.links import HBM_COLUMN
from strata.exec.timed.places import Places
from strata.plan.ports import port_ps

SINGLE = CM384.replace(**{"core.outstanding": 1})
TIGHT = CM384.replace(**{"die.hbm_gbps": 120.0, "tier.l1.read_gbps": 20.0, "tier.l2.read_gbps": 12.0,
                         "tier.sio.write_gbps": 9.0, "die.node_gbps": 150.0})  # fmt: skip


@st.composite
def cases(draw, on=CM384, most=16):
    n = draw(st.integers(2, most), "members")
    nbytes = draw(st.integers(1, 300_000), "elements") * 4
    case, algorithm = draw(st.sampled_from(every_case(n, nbytes, on)), "case")
    cores = draw(st.sampled_from([1, 3, 8, 24, 48]), "cores")
    policy = draw(st.sampled_from(["balanced", "naive"]), "policy")
    return plans(case, on, cores, algorithm=algorithm, policy=policy)


def timed(machine, made, ndies, **options):
    program = Program(machine, ndies)
    stage = program.operation(made, **options)
    return program, stage, program.run(check=True)


@settings(max_examples=60)
@given(cases(SINGLE), st.sampled_from(["ub", "cores"]))
def test_no_faster_than_links_and_cores(made, scarce):
    n = made[0].spec.nranks
    machine = SINGLE.replace(**({"die.ub_gbps": 20.0, "die.sio_gbps": 15.0} if scarce == "ub" else {}))
    program, stage, timeline = timed(machine, made, n)
    took = np.nanmax(timeline.core_times_us(stage), initial=0.0) * 1e6
    assert took >= port_ps(made, machine.cost, machine.place).max() * (1 - 1e-9)
    assert took >= max(plan.bound_ps for plan in made) - max(len(plan.units) for plan in made)
    assert took + 10 >= busiest_link(timeline)
    assert_parts_add_up(timeline, stage)


def busiest_link(timeline):
    """Picoseconds that the busiest link needs for all that goes through it."""
    made = timeline._made
    tasks = made.tasks
    per = np.repeat(tasks["work"], tasks["nuse"])
    which = np.concatenate([np.arange(t["use_first"], t["use_first"] + t["nuse"]) for t in tasks if t["nuse"]] or [[]])
    uses = made.uses[which.astype(int)]
    through = np.bincount(uses["link"], per * uses["weight"], len(made.all_links))
    return (through / made.all_links["capacity"]).max(initial=0)


def assert_parts_add_up(timeline, stage):
    parts = timeline.breakdown(stage)
    finish, start = timeline.finish_us(stage), timeline.start_us(stage)
    whole = finish - start + stage.part.launch_ps / 1e6
    total = sum(parts["critical"].values())
    assert whole.min() - 1e-5 <= total <= whole.max() + 1e-5, parts
    assert all(value >= -1e-9 for side in parts.values() for value in side.values()), parts


@settings(max_examples=60)
@given(cases(TIGHT, 10), st.booleans(), st.sampled_from(["mte", "sdma"]))
def test_links_that_are_left_out_would_not_limit(made, twice, path):
    """Pairs and memories are links only where they can be what limits: with all of them the times are the same."""
    n = made[0].spec.nranks
    machine = TIGHT.replace(**{"sdma.reduces": True})
    path = None if made[0].spec.mode == "mailbox" else path

    def run():
        program = Program(machine, n)
        stages = [program.operation(made) for _ in range(1 + twice)]
        timeline = program.run()
        return np.array([timeline.finish_us(stage) for stage in stages])

    few = run()
    demand, memories = Places.demand, Places.memories
    try:
        Places.demand = lambda self: np.where(self.links.tiers > 0, np.inf, 0.0)
        Places.memories = lambda self: self.links.rows[:, HBM_COLUMN].copy()
        all_links = run()
    finally:
        Places.demand, Places.memories = demand, memories
    # Rates may differ in the last bit, and picoseconds are whole: so many a unit at most.
    assert np.abs(few - all_links).max() * 1e6 <= 4 * (1 + max(len(plan.units) for plan in made))
