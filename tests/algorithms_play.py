"""Every algorithm on real dies against the reference executor: what its tests have in common."""

from __future__ import annotations

import numpy as np
from collectives_play import OPERATIONS, REDUCING, ROOTED, Case, in_step, play
from collectives_reference import EXTENDED, dtype_of, operation

from strata._core import array as codes
from strata.dtypes import OP_CODES
from strata.exec import reference
from strata.plan import Spec, algorithms, build
from strata.plan.operations import own_place
from strata.plan.spec import normal
from strata.plan.topology import HOST

SEED = 20_26
NAMES = algorithms.names()
DONE = [(name, op) for name in NAMES for op in OPERATIONS if op in algorithms.find(name).operations]
FREE_ORDER = ("atomic",)  # sums may come out in any order there


def spec_of(case: Case, n: int) -> Spec:
    dtype = dtype_of(case.dtype)
    count = int(np.prod(case.shape, dtype=np.int64))
    reduces = case.op in REDUCING
    return normal(Spec(case.op, count, dtype.itemsize, codes.dtype_code(dtype) if reduces else 0,
                       OP_CODES[case.redop] if reduces else 0, case.root if case.op in ROOTED else 0, n))  # fmt: skip


def can(case: Case, n: int) -> bool:
    return case.op == "all_to_all_v" or algorithms.find(case.algorithm).refusal(spec_of(case, n), HOST) is None


def in_plan_order(case: Case, n: int) -> list[np.ndarray | None]:
    """What each member gets by the reference executor: the algorithm's own order of the operands."""
    spec = spec_of(case, n)
    wanted = operation(case.op, n, case.shape, case.dtype, case.redop, case.root, case.salt)
    plans, members, outs = [], [], []
    for m, (src, out) in enumerate(wanted):
        mine = spec._replace(in_place=case.in_place and own_place(spec._replace(in_place=True), m) is not None)
        plan = build(mine, m, algorithm=case.algorithm)
        place = own_place(mine, m)
        out = np.zeros(0 if out is None else out.shape, case.dtype if out is None else out.dtype)
        src = src.copy()
        if place is not None and out.size:
            out = src if place == 0 else src.reshape(-1)[-place // src.itemsize :][: out.size].reshape(out.shape)
        plans.append(plan)
        members.append(reference.buffers(src, out, plan.scratch))
        outs.append(out if wanted[m].out is not None else None)
    reference.run(plans, members, seed=SEED)
    return outs


def run_all(pool, cases):
    cases = [case for case in cases if can(case, pool.n)]
    alike = {case: case._replace(cores=None, partition=None, path=None) for case in cases}  # in their results
    made = {case: in_plan_order(case, pool.n) if exactly(case) is False else None for case in {*alike.values()}}
    expected = [made[alike[case]] for case in cases]
    for digests in zip(*pool.run(play_all, cases, expected), strict=True):
        assert len(set(digests)) == 1


def exactly(case: Case) -> bool:
    """Whether the order of the operands cannot matter."""
    inexact = dtype_of(case.dtype).kind in "fcV" or case.dtype in EXTENDED
    return not (case.op in REDUCING and inexact and case.redop in ("sum", "prod", "avg"))


def play_all(group, cases, expected):
    found = []
    for case, outs in zip(cases, expected, strict=True):
        try:
            found.append(play(group, case, None if outs is None else outs[group.rank]))
        except Exception as error:
            raise AssertionError(f"{case}: {error!r}") from error
    in_step(group)
    return found


def count_of(op: str, nbytes: int, dtype: str, n: int) -> int:
    count = nbytes // dtype_of(dtype).itemsize
    return max(1, count // n) if op in ("reduce_scatter", "all_to_all", "scatter") else count
