"""An operation's plans as lanes, tasks and rendezvous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from strata._core.translation import Translation
from strata.errors import InvalidArgument
from strata.exec.timed import sdma
from strata.exec.timed.assembly import Assembly, Part
from strata.exec.timed.links import Effects, Links
from strata.exec.timed.places import CORE, RING
from strata.exec.timed.records import DELAY
from strata.exec.timed.stage import Stage
from strata.machine.description import Machine
from strata.plan.plan import Plan
from strata.plan.records import OPERAND_DTYPE, TIER_NAMES, UNIT_DTYPE

MTE, SDMA = "mte", "sdma"
_HEADS = 3  # tasks of a lane besides its units, at most


def ps(us: float) -> int:
    """Whole picoseconds."""
    return round(us * 1e6)


def check(plans: Sequence[Plan], machine: Machine) -> None:
    """InvalidArgument unless they are the plans of all members of one operation, and fit the machine's dies."""
    if not plans or not all(isinstance(plan, Plan) for plan in plans):
        raise InvalidArgument("plans: a list of plans, one of each member, is expected")
    spec = plans[0].spec
    if len(plans) != spec.nranks:
        raise InvalidArgument(f"{len(plans)} plans of an operation of {spec.nranks} members: one of each is expected")
    shape, first = spec[:8], plans[0]  # without counts and in_place
    for m, plan in enumerate(plans):
        if plan.rank != m:
            raise InvalidArgument(f"plan {m} is of member {plan.rank}: they go in the members' order", ranks=[m])
        if plan.spec[:8] != shape or (plan.algorithm, plan.needs_done) != (first.algorithm, first.needs_done):
            raise InvalidArgument(f"the plans of members 0 and {m} are of different operations: {first!r}, {plan!r}",
                                  ranks=[0, m])  # fmt: skip
        if plan.cores > machine.die.cores:
            raise InvalidArgument(f"the plan of member {m} is for {plan.cores} cores, and a die of {machine.name} has "
                                  f"{machine.die.cores}", ranks=[m])  # fmt: skip


def path_of(plans: Sequence[Plan], asked: str | None, machine: Machine) -> str:
    """"mte" or "sdma": as asked, else as the plans say.  Cores copy what goes by mailboxes, or nowhere."""
    if asked not in (None, MTE, SDMA):
        raise InvalidArgument(f"path is {asked!r}; there is {MTE}, {SDMA}")
    why = sdma.moot(plans[0])
    if asked == SDMA and why:
        raise InvalidArgument(f"path {SDMA} does not carry this operation: {why}", operation=plans[0].spec.operation)
    path = asked or (MTE if why else plans[0].path)
    if path == SDMA:
        sdma.check(plans, machine)
    return path


def translate(plans: Sequence[Plan], dies: np.ndarray, path: str, links: Links, effects: Effects) -> Translation:
    """Plans on the way to tasks, measured; ``path`` of ``path_of``.  InvalidArgument for plans that are malformed."""
    between = links.between
    if between is not None:
        between = np.ascontiguousarray(between[np.ix_(dies, dies)])
    made = Translation(plans, UNIT_DTYPE, OPERAND_DTYPE, links.rows[dies], links.slow[dies], between)
    made.measure(**_figures(links.machine, effects, path))
    return made


class Operation(Part):
    """Plans of all members, translated; ``launch`` i64 (members,): picoseconds until each arrives."""

    def __init__(self, plans: Sequence[Plan], translation: Translation, launch: np.ndarray, machine: Machine) -> None:
        self.translation, self.launch_ps, self.machine = translation, launch, machine
        self.path = SDMA if translation.sdma else MTE
        self.needs_done, self.spec = plans[0].needs_done and len(plans) > 1, plans[0].spec

    def reserve(self, stage: Stage, into: Assembly) -> tuple[int, int, int]:
        t, n = self.translation, len(stage.dies)
        once = np.ones(n, np.int32)
        machine = self.machine
        self.arrived = into.flag(once)
        self.start = self.arrived
        base = ps(machine.sync.entry_us) + ps(machine.sync.poll_us)
        seen = [ps(tier.seen_us) for tier in machine.tiers]
        if n > 1:
            self.start = into.flag(once)
            into.meet(stage.dies, self.arrived, self.start, base, seen)
        self.drained = into.flag(0 * once)
        self.done = self.drained
        if self.needs_done:
            self.done = into.flag(once)
            into.meet(stage.dies, self.drained, self.done, base, seen)
        self.plan_flags = into.flag(np.zeros(int(t.nflags.sum()), np.int32))
        self.submitted = np.zeros(n, np.int64)
        if t.sdma:
            self.submitted = into.nflags + np.cumsum(t.units) - t.units
            into.flag(np.ones(int(t.units.sum()), np.int32))
        self.place = np.full((int(t.cores.sum()), 6), -1, np.int32)

        def flag() -> int:
            return int(into.flag(np.zeros(1, np.int32))[0])

        into.places.take(stage, t.cores, t.busy, self.place, CORE, machine.die.cores, flag)
        if t.sdma:
            into.places.take(stage, t.cores, t.busy, self.place, RING, sdma.queues(machine), flag)
        into.places.ask(stage, t.demand, t.memory)
        kinds = 2 if t.sdma else 1
        tasks, uses, lanes = into.serial_room(stage, 1, 0)
        return (tasks + kinds * (t.ntasks + _HEADS * t.nlanes) + n, uses + t.nuses, lanes + kinds * t.nlanes + n)

    def write(self, stage: Stage, into: Assembly) -> None:
        t, flags = self.translation, into.flags
        arrival = into.serial(stage, 1, self.arrived)
        arrival["kind"], arrival["hold_ps"] = DELAY, self.launch_ps[:, None]
        first = int(self.plan_flags[0]) if len(self.plan_flags) else 0
        base = (first + np.cumsum(t.nflags) - t.nflags).astype(np.int64)
        self.lanes = np.empty((int(t.cores.sum()), 2), np.int32)
        pair = into.pair
        if len(stage.dies) != len(pair) or not np.array_equal(stage.dies, np.arange(len(pair))):
            pair = np.ascontiguousarray(pair[np.ix_(stage.dies, stage.dies)])
        into.at = t.write(
            into.tasks, into.uses, into.lanes, flags, into.at,
            operation=stage.index, memory=into.memory[stage.dies], pair=pair, flag_base=base,
            poster=np.full(len(self.plan_flags), -1, np.int32), start=self.start,
            drained=self.drained, place=self.place, written=self.lanes, submitted=self.submitted,
            cores=self.machine.die.cores,
        )  # fmt: skip
        own = flags["need"][first : first + len(self.plan_flags)]
        own[own == 0] = 1  # nobody posts it: whoever waits for it waits for ever, and is named


def _figures(machine: Machine, effects: Effects, path: str) -> dict[str, Any]:
    """The machine's constants as ``Translation.measure`` takes them."""
    tiers = machine.tiers
    assert len(tiers) == len(TIER_NAMES)
    rate = [np.inf if path == SDMA else tier.core_gbps / 1e3 for tier in tiers]
    return {
        "alpha_ps": [ps(tier.alpha_us) for tier in tiers],
        "seen_ps": [ps(tier.seen_us) for tier in tiers],
        "rate": rate,
        "write": [tier.read_gbps / tier.write_gbps for tier in tiers],
        "poll_ps": ps(machine.sync.poll_us),
        "issue_ps": ps(machine.core.issue_us),
        "row_ps": ps(machine.core.row_us),
        "accumulate": machine.core.accumulate_weight,
        "loss": machine.fanout.loss,
        "backlog": machine.fanout.backlog_bytes,
        "jitter": effects.jitter,
        "seed": effects.seed,
        "flat": machine.place.flat,
        "sdma": path == SDMA,
        "ahead": int(machine.core.outstanding > 1),
        **sdma.figures(machine),
    }
