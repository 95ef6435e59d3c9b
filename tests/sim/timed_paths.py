"""When every unit of an operation is done if nothing is shared: the longest way through its plans, in plain Python.

Another reading of what plans come to, against which the translation is held: no arrays, no links, no engine.
"""

import math
from functools import lru_cache

from strata.plan.records import ACCUMULATE, NONE, PARTIAL, REDUCE, SYNC, partial_length


def ps(us):
    return round(us * 1e6)


def finishes(plans, machine, dies):
    """(When each member's last unit is done, when it is done with the operation), picoseconds after all arrive at 0.

    One unit of a core at a time (``core.outstanding`` 1), no rate but the core's own.
    """
    tiers = [[int(machine.place.tiers(a, [b])[0]) for b in dies] for a in dies]
    base = ps(machine.sync.entry_us) + ps(machine.sync.poll_us)
    seen = [ps(tier.seen_us) for tier in machine.tiers]
    n = len(dies)
    opened = [base + max(seen[t] for t in tiers[m]) if n > 1 else 0 for m in range(n)]
    posters = {}
    for plan in plans:
        for i, unit in enumerate(plan.units):
            if unit["post_flag"] != NONE:
                posters.setdefault((plan.rank, int(unit["post_flag"])), []).append(i)

    @lru_cache(None)
    def raised(member, flag):
        return max(done(member, i) for i in posters[member, flag])

    @lru_cache(None)
    def done(member, i):
        plan = plans[member]
        unit, core = plan.units[i], int(plan.units[i]["core"])
        first = i == plan.core_begin[core]
        begin = opened[member] if first else done(member, i - 1)
        if unit["wait_flag"] != NONE:
            peer, flag = int(unit["wait_peer"]), int(unit["wait_flag"])
            mine = peer == member and {int(plan.units[k]["core"]) for k in posters[peer, flag]} == {core}
            late = 0 if mine else seen[tiers[member][peer]] + ps(machine.sync.poll_us)
            begin = max(begin, raised(peer, flag) + late)
        return begin if unit["kind"] == SYNC else begin + takes(plan, unit, tiers[member], machine)

    last = []
    for m, plan in enumerate(plans):
        cores = zip(plan.core_begin[:-1], plan.core_begin[1:], strict=True)
        last.append(max((done(m, int(end) - 1) for begin, end in cores if end > begin), default=opened[m]))
    if not plans[0].needs_done or n == 1:
        return last, last
    return last, [base + max(last[j] + seen[tiers[m][j]] for j in range(n)) for m in range(n)]


def takes(plan, unit, tiers, machine):
    """Issue, distance and the bytes at the core's own rate."""
    far, legs, nbytes = 0, 0.0, int(unit["bytes"])
    for side, number in (("src", "nsrc"), ("dst", "ndst")):
        first = int(unit[f"{side}_first"])
        for operand in plan.operands[first : first + int(unit[number])]:
            tier = tiers[operand["member"]]
            far = max(far, tier)
            wide = partial_length(nbytes, int(unit["dtype"]), int(unit["op"])) if operand["flags"] & PARTIAL else nbytes
            if operand["member"] != plan.rank or (unit["kind"] == REDUCE and side == "src"):
                legs += wide / (machine.tiers[tier].core_gbps / 1e3)
    legs = legs or nbytes / (machine.tiers[0].core_gbps / 1e3)
    assert unit["kind"] != ACCUMULATE or far
    return ps(machine.core.issue_us) + ps(machine.tiers[far].alpha_us) + math.ceil(legs * (1 - 1e-12))
