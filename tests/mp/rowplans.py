"""Plans of units of rows, made by hand: gathers and weighted sums whose results numpy knows."""

from types import SimpleNamespace

import numpy as np

from strata.plan.records import COMBINE, NO_ROW, OPERAND_DTYPE, ROW_BITS, ROWS, UNIT_DTYPE


def _plan(me, have, made, row, units, cores, path):
    """``units``  (kind, total, members, entries, first row written, rows) each; core c has every cores-th of them"""
    units = [unit for core in range(cores) for unit in units[core::cores]]
    count = [len(range(core, len(units), cores)) for core in range(cores)]
    u, operands, rows = np.zeros(len(units), UNIT_DTYPE), [], []
    u["wait_peer"] = u["wait_flag"] = u["post_flag"] = -1
    u["core"], u["row"], u["ndst"] = np.repeat(np.arange(cores), count), row, 1
    for k, (kind, total, members, entries, first, number) in enumerate(units):
        u[k]["kind"], u[k]["total"], u[k]["bytes"], u[k]["nsrc"] = kind, total, row * number, len(members)
        u[k]["src_first"], u[k]["dst_first"] = len(operands), len(operands) + len(members)
        u[k]["index"] = sum(map(len, rows))
        operands += [(member, 0, 0, (0, 0), 0) for member in members] + [(me, 1, 0, (0, 0), first * row)]
        rows.append(entries)
    reach = np.zeros((len(have), 3), np.uint64)
    reach[:, 0], reach[me, 1] = np.asarray(have) * row, made * row
    return SimpleNamespace(
        units=u, operands=np.array(operands, OPERAND_DTYPE), buffer_bytes=reach, digest=0, exposes_out=False, scratch=0,
        rows=np.concatenate([np.zeros(0, np.uint64), *rows]), core_begin=np.cumsum([0, *count]).astype(np.uint32),
        staged_bytes=0, needs_done=True, path=path,
    )  # fmt: skip


def gather(me, have, picked, row, cores=3, pieces=5, path="mte"):
    """Member ``me`` copies rows ``picked[j]`` of each member j, which has ``have[j]`` of ``row`` bytes, one member's
    after another's."""
    units, first = [], 0
    for member, numbers in enumerate(picked):
        for part in np.array_split(numbers, pieces):
            if part.size:
                units.append((ROWS, 0, [member], part.astype(np.uint64), first, len(part)))
            first += len(part)
    return _plan(me, have, first, row, units, cores, path)


def combine(me, have, member, number, row, cores=3, pieces=7, path="mte"):
    """Row t of the output is the sum of rows ``number[t, k]`` of members ``member[t, k]``; -1: of none."""
    units = []
    for part in np.array_split(np.arange(len(member)), pieces):
        if not part.size:
            continue
        who = np.unique(member[part][member[part] >= 0])
        operand = np.searchsorted(who, member[part]).astype(np.uint64)
        entries = operand << np.uint64(ROW_BITS) | number[part].astype(np.uint64)
        entries[member[part] < 0] = NO_ROW
        units.append((COMBINE, member.shape[1], who, entries.ravel(), part[0], len(part)))
    return _plan(me, have, len(member), row, units, cores, path)
