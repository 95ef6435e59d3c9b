"""Proves that the plans of all dies deliver a dispatch or a combine, from the routings alone.

Where each row has to be follows here from the words of the interface (by source, then token; entries by expert), by
sorting, and not from the code that makes plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from strata.plan.moe.placement import Placement
from strata.plan.moe.rounds import MODES
from strata.plan.operations import remote
from strata.plan.plan import Plan, PlanError
from strata.plan.records import COMBINE, NBUFS, NO_ROW, NONE, OUT, ROW_BITS, ROWS, SRC
from strata.plan.wellformed import spread


class Expected(NamedTuple):
    """One entry for each row that moves in dispatch, int64: from ``source``'s row ``token`` to row ``out`` of ``die``;
    in combine the other way, as entry ``nth`` of its token's sum.  ``room``: rows of each die's receive buffer."""

    source: np.ndarray
    token: np.ndarray
    die: np.ndarray
    out: np.ndarray
    nth: np.ndarray
    tokens: np.ndarray
    room: np.ndarray


def expected(tables: Sequence[np.ndarray], placement: Placement, mode: str, most: int | None = None) -> Expected:
    """What has to be where; arguments as of ``rounds.played``."""
    tokens = np.array([len(table) for table in tables], np.int64)
    which = [np.nonzero(np.asarray(table) >= 0) for table in tables]
    source = np.repeat(np.arange(len(tables)), [len(token) for token, _ in which])
    token, choice = (np.concatenate([w[i] for w in which]) for i in (0, 1))
    expert = np.concatenate([np.asarray(t)[w].astype(np.int64) for t, w in zip(tables, which, strict=True)])
    by_expert = np.argsort(placement.logical, kind="stable")  # an expert's replicas, by slot
    number = np.bincount(placement.logical, minlength=placement.experts)
    slot = by_expert[np.cumsum(number)[expert] - number[expert] + (source + token) % number[expert]]
    die = np.searchsorted(placement.first, slot, side="right") - 1
    if mode == MODES[0]:  # each token once at a die
        order = np.lexsort((token, source, die))
        order = order[_new(die[order], source[order], token[order])]
        source, token, die = source[order], token[order], die[order]
        out, rank = _within(die), die
        room = np.bincount(die, minlength=placement.dies)
    else:
        order = np.lexsort((choice, token, source, slot))
        source, token, die, slot, expert, choice = (a[order] for a in (source, token, die, slot, expert, choice))
        window = len(tables) * (int(tokens.max()) if most is None else most)
        out = (slot - placement.first[die]) * window + _within(slot)
        rank = expert
        room = np.diff(placement.first).astype(np.int64) * window
    order = np.lexsort((choice if mode == MODES[1] else rank, rank, token, source))
    nth = np.empty(len(order), np.int64)
    nth[order] = _within(source[order] * (int(tokens.max(initial=0)) + 1) + token[order])
    return Expected(source, token, die, out, nth, tokens, room)


def _new(*columns: np.ndarray) -> np.ndarray:
    """Where sorted rows differ from the one before."""
    found = np.ones(len(columns[0]), bool)
    found[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return found


def _within(sorted_: np.ndarray) -> np.ndarray:
    """The number of each among those of its value, which lie together."""
    first = np.flatnonzero(_new(sorted_))
    return np.arange(len(sorted_)) - np.repeat(first, np.diff(first, append=len(sorted_)))


def verify(plans: Sequence[Plan], tables: Sequence[np.ndarray], placement: Placement, mode: str,
           most: int | None = None) -> dict[str, int]:  # fmt: skip
    """PlanError that names the first violation by die, unit and row, if any.

    ``plans``: of all dies, in rank order; the rest as of ``rounds.played``.  Of dispatch: every row of every receive
    buffer that has a token is written once, from the right source's right row, and no other.  Of combine: every token
    is written once, from exactly the entries that it has, in their order.  Of both: sizes that plans go by are there.
    Returns how many ``units``, ``rows`` (read) and ``bytes`` (written) were proved.
    """
    want = expected(tables, placement, mode, most)
    pairs = np.zeros((placement.dies, placement.dies), np.int64)
    np.add.at(pairs, (want.source, want.die), 1)
    dispatch = _agree(plans, pairs)
    size = np.zeros((placement.dies, NBUFS), np.int64)
    size[:, SRC], size[:, OUT] = (want.tokens, want.room) if dispatch else (want.room, want.tokens)
    units = rows = nbytes = 0
    owner = want.die if dispatch else want.source
    order = np.argsort(owner, kind="stable")
    ends = np.searchsorted(owner[order], np.arange(placement.dies + 1))
    for plan in plans:
        _kinds(plan)
        beyond = (plan.buffer_bytes.astype(np.int64) > size * plan.spec.itemsize).any(axis=1)
        if beyond.any():
            member = int(beyond.argmax())
            raise PlanError(f"die {plan.rank} claims more of a buffer of member {member} than there is",
                            ranks=[plan.rank])  # fmt: skip
        mine = order[ends[plan.rank] : ends[plan.rank + 1]]
        if dispatch:
            _dispatched(plan, want.source[mine], want.token[mine], want.out[mine], int(want.room[plan.rank]))
        else:
            _combined(plan, want.token[mine], want.nth[mine], want.die[mine], want.out[mine], len(tables[plan.rank]))
        units += len(plan.units)
        rows += len(mine)
        nbytes += int(plan.units["bytes"].sum())
    return {"units": units, "rows": rows, "bytes": nbytes}


def verify_counts(plans: Sequence[Plan]) -> dict[str, int]:
    """What plans show without the routings: every die reads as many rows of each member as counts say, and nothing is
    written twice; in combine no row is read twice.  Returns what ``strata.plan.verify`` does, rows as reads and writes.
    """
    dispatch = _agree(plans, plans[0].spec.counts if plans[0].spec.operation == "moe_dispatch" else
                      plans[0].spec.counts.T)  # fmt: skip
    n, reads, writes, nbytes = len(plans), 0, 0, 0
    for plan in plans:
        _kinds(plan)
        unit, place, member, named = _moved(plan)
        twice = np.bincount(place) > 1
        if twice.any():
            at = int(twice.argmax())
            _wrong(plan, int(unit[place == at][0]), f"writes row {at} of OUT, which others write, too")
        number = np.bincount(member, minlength=n)
        if (number != plan.spec.counts[:, plan.rank]).any():
            m = int((number != plan.spec.counts[:, plan.rank]).argmax())
            _wrong(plan, None, f"reads {number[m]} rows of member {m}, and {plan.spec.counts[m, plan.rank]} are its")
        if not dispatch and len(np.unique(np.stack((member, named)), axis=1).T) != len(named):
            _wrong(plan, None, "reads a row twice")
        reads, writes, nbytes = reads + len(named), writes + len(place), nbytes + int(plan.units["bytes"].sum())
    units = sum(len(plan.units) for plan in plans)
    return {"units": units, "reads": reads, "writes": writes, "bytes": nbytes, "flags": 0}


def _moved(plan: Plan) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of each row written the unit and the place; of each row read the member and its number there."""
    units, operands = plan.units, plan.operands
    length = units["bytes"].astype(np.int64) // plan.spec.itemsize
    unit, place = spread(operands["offset"][units["dst_first"]].astype(np.int64) // plan.spec.itemsize, length)
    total = np.where(units["kind"] == COMBINE, units["total"], 1).astype(np.int64)
    owner, entry = spread(units["index"].astype(np.int64), length * total)
    named = np.zeros(0, np.uint64) if plan.rows is None else plan.rows[entry]
    sums = units["kind"][owner] == COMBINE
    some = ~sums | (named != NO_ROW)
    owner, named, sums = owner[some], named[some], sums[some]
    operand = np.where(sums, named >> np.uint64(ROW_BITS), 0).astype(np.int64)
    number = np.where(sums, named & np.uint64((1 << ROW_BITS) - 1), named).astype(np.int64)
    member = operands["member"][units["src_first"][owner].astype(np.int64) + operand]
    return unit, place, member, number


def _agree(plans: Sequence[Plan], pairs: np.ndarray) -> bool:
    """Whether it is a dispatch; all plans are of one operation, and well formed."""
    if [plan.rank for plan in plans] != list(range(len(pairs))):
        raise PlanError(f"plans of {[plan.rank for plan in plans]} given, in a group of {len(pairs)}")
    first = plans[0].spec
    dispatch = first.operation == "moe_dispatch"
    wanted = pairs if dispatch else pairs.T
    for plan in plans:
        plan.check()
        if plan.spec._replace(counts=None) != first._replace(counts=None):
            raise PlanError(f"die {plan.rank} plans another operation than die 0", ranks=[plan.rank])
        if first.operation not in ("moe_dispatch", "moe_combine") or not np.array_equal(plan.spec.counts, wanted):
            raise PlanError(f"die {plan.rank} has counts that are not the routing's", ranks=[plan.rank])
        if plan.needs_done != remote(plan.spec):
            raise PlanError(f"die {plan.rank}: needs_done is wrong", ranks=[plan.rank])
    return dispatch


def _kinds(plan: Plan) -> None:
    """Kinds of units, and places of operands."""
    kind = ROWS if plan.spec.operation == "moe_dispatch" else COMBINE
    units, operands = plan.units, plan.operands
    row = plan.spec.itemsize
    source, which = spread(units["src_first"].astype(np.int64), units["nsrc"].astype(np.int64))
    target = operands[units["dst_first"]]
    wrong = {
        "is of another kind": units["kind"] != kind,
        "has rows of another length": units["row"] != row,
        "waits or posts": (units["wait_flag"] != NONE) | (units["post_flag"] != NONE),
        "writes elsewhere than to own OUT": (target["member"] != plan.rank) | (target["buf"] != OUT),
        "has elements of another dtype": (units["dtype"] != plan.spec.dtype) & (kind == COMBINE),
    }
    stray = (operands["buf"][which] != SRC) | (operands["offset"][which] != 0)
    wrong["reads elsewhere than from row 0 of SRC on"] = np.bincount(source, stray, len(units)) > 0
    for what, where in wrong.items():
        if where.any():
            _wrong(plan, int(where.argmax()), what)


def _dispatched(plan: Plan, source: np.ndarray, token: np.ndarray, out: np.ndarray, room: int) -> None:
    """Each row of the receive buffer."""
    units, operands, row = plan.units, plan.operands, plan.spec.itemsize
    assert plan.rows is not None or not len(units)
    length = units["bytes"].astype(np.int64) // row
    unit, place = spread(operands["offset"][units["dst_first"]].astype(np.int64) // row, length)
    _, entry = spread(units["index"].astype(np.int64), length)
    wanted = np.full((room, 2), -1, np.int64)
    wanted[out] = np.stack((source, token), axis=1)
    written = np.bincount(place, minlength=room)
    member = operands["member"][units["src_first"]][unit]
    named = np.zeros(0, np.uint64) if plan.rows is None else plan.rows[entry]
    bad = (written[place] > 1) | (member != wanted[place, 0]) | (named != wanted[place, 1].astype(np.uint64))
    if bad.any():
        i = int(bad.argmax())
        there = "nothing" if wanted[place[i], 0] < 0 else "row {1} of member {0}".format(*wanted[place[i]].tolist())
        many = f", and {written[place[i]]} rows are written there" if written[place[i]] > 1 else ""
        _wrong(plan, int(unit[i]), f"writes row {named[i]} of member {member[i]} to row {place[i]}, where {there} "
                                   f"belongs{many}")  # fmt: skip
    missing = (written == 0) & (wanted[:, 0] >= 0)
    if missing.any():
        at = int(missing.argmax())
        _wrong(plan, None, "writes nothing to row {2}, where row {1} of member {0} belongs".format(*wanted[at], at))


def _combined(
    plan: Plan, token: np.ndarray, nth: np.ndarray, die: np.ndarray, row_of: np.ndarray, tokens: int
) -> None:
    """Each token's sum."""
    units, operands, row = plan.units, plan.operands, plan.spec.itemsize
    length = units["bytes"].astype(np.int64) // row
    unit, place = spread(operands["offset"][units["dst_first"]].astype(np.int64) // row, length)
    written = np.bincount(place, minlength=tokens)
    if (written > 1).any():
        at = int((written > 1).argmax())
        _wrong(plan, int(unit[place == at][0]), f"writes token {at}, which {written[at] - 1} others write, too")
    if (written == 0).any():
        _wrong(plan, None, f"writes nothing for token {int((written == 0).argmax())}")
    total = units["total"].astype(np.int64)
    owner, entry = spread(units["index"].astype(np.int64), length * total)
    if not len(entry):
        return
    named = plan.rows[entry]  # type: ignore[index]
    first = np.cumsum(length * total) - length * total
    at = place[np.repeat(np.arange(len(place)), total[unit])]
    order = (np.arange(len(entry)) - first[owner]) % total[owner]
    some = named != NO_ROW
    operand = (named >> np.uint64(ROW_BITS)).astype(np.int64)
    source = units["src_first"][owner].astype(np.int64) + np.where(some, operand, 0)
    member = operands["member"][np.minimum(source, len(operands) - 1)]
    width = max(int(total.max()), int(nth.max(initial=-1)) + 1)
    wanted = np.full((tokens, width, 2), -1, np.int64)
    wanted[token, nth] = np.stack((die, row_of), axis=1)
    found = np.full((tokens, width, 2), -1, np.int64)
    number = (named & np.uint64((1 << ROW_BITS) - 1)).astype(np.int64)
    found[at[some], order[some]] = np.stack((member, number), axis=1)[some]
    bad = (wanted != found).any(axis=(1, 2))
    if bad.any():
        t = int(bad.argmax())
        k = int((wanted[t] != found[t]).any(axis=1).argmax())
        is_, should = (f"row {r} of member {m}" if m >= 0 else "none" for m, r in (found[t, k], wanted[t, k]))
        _wrong(plan, int(unit[place == t][0]), f"has {is_} as entry {k} of token {t}, and {should} belongs there")


def _wrong(plan: Plan, unit: int | None, what: str) -> NoReturn:
    who = f"die {plan.rank}" + ("" if unit is None else f" core {plan.units['core'][unit]} unit {unit}")
    raise PlanError(f"{who} {what}", ranks=[plan.rank], operation=plan.spec.operation)
