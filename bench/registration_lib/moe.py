"""The mixture-of-experts-like loop on real dies, and its allocations alone."""

import time
from collections import deque

import numpy as np

import strata
from registration_lib import dies
from registration_lib.workload import TOP
from strata._core import space

now = time.monotonic_ns


def compute_size(milliseconds):
    """Edge of square f4 matrices whose product takes about that long here, alone and on one thread."""
    m = 256
    a = np.ones((m, m), "f4")
    times = []
    for _ in range(12):     # the fastest: others may be at work here, and the first is not warm
        begin = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - begin)
    one = min(times)
    return max(16, int(m * (milliseconds / 1e3 / one) ** (1 / 3)))


class Buffers:
    """Where a step's arrays come from: allocated each, or parts of arrays made once (``static``)."""

    def __init__(self, work, static, steps):
        self.work, self.static = work, static
        self.kept = deque(maxlen=work.keep + 1)
        self.spent = 0      # ns in the allocator
        if static:
            send, recv, routed = work.most(steps)
            columns = work.hidden // 4
            self.sends, self.route = strata.zeros((send, columns), "f4"), strata.zeros((routed, TOP), "i4")
            self.gathered = strata.zeros((work.n * routed, TOP), "i4")
            self.recvs = deque(strata.zeros((recv, columns), "f4") for _ in range(work.keep + 1))

    def take(self, send, recv, routed):
        """(send, recv, route, gathered) of a step."""
        columns, n = self.work.hidden // 4, self.work.n
        if self.static:
            self.recvs.rotate()
            return (self.sends[:send], self.recvs[0][:recv], self.route[:routed],
                    self.gathered[: n * routed].reshape(n, routed, TOP))
        begin = now()
        made = (strata.empty((send, columns), "f4"), strata.empty((recv, columns), "f4"),
                strata.empty((routed, TOP), "i4"), strata.empty((n, routed, TOP), "i4"))
        self.spent += now() - begin
        return made

    def keep(self, recv):
        """The oldest kept array goes; with static buffers there is nothing to do."""
        if not self.static:
            begin = now()
            self.kept.append(recv)
            self.spent += now() - begin


def loop(group, work, first, steps, static, edge, whole):
    """Steps first..first+steps-1 of ``whole``; a list of what each took, and wrong rows.

    Buffers are allocated, then computed for, then used: the order of a model's layers.
    """
    ctx = space.current()
    buffers = Buffers(work, static, whole)
    a = np.ones((edge, edge), "f4")
    product = np.empty_like(a)
    dies.settle(group, ctx)
    found, wrong = [], 0
    for step in range(first, first + steps):
        before, spent = ctx.counters(), buffers.spent
        begin = now()
        wrong += _step(group, work, step, buffers, a, product)
        end = now()
        after = ctx.counters()
        found.append({"begin": begin, "end": end, "allocator_ns": buffers.spent - spent,
                      **{k: after[k] - before[k] for k in ("late_maps", "late_map_ns", "shadow_maps")}})
    dies.meet(group)    # nobody frees what others still read
    del buffers
    return found, wrong


def _step(group, work, step, buffers, a, product):
    """One step; returns how many received rows say that they come from somebody else."""
    counts, me = work.counts(step), group.rank
    sends, recvs = counts[me], counts[:, me]
    send, recv, route, gathered = buffers.take(int(sends.sum()), int(recvs.sum()), work.routed(step))
    np.matmul(a, a, out=product)
    send[:, 0] = 1000 * step + me
    route[:] = me
    group.all_gather(route, out=gathered)
    group.all_to_all_v(send, sends, out=recv, recv_counts=recvs)
    bad = int((recv[:, 0] != np.repeat(1000 * step + np.arange(work.n), recvs)).sum())
    bad += int((gathered[:, 0, 0] != np.arange(work.n)).sum())
    del send, route, gathered
    buffers.keep(recv)
    return bad


def replay(group, work, steps):
    """The allocations of the loop alone: (reserved, allocated, requested) where a step holds most, by step.

    None if the memory does not suffice.
    """
    kept, found = deque(maxlen=work.keep + 1), []
    try:
        for step in range(steps):
            freed, stays = work.sizes(step, group.rank)
            live = [strata.empty(n, "u1") for n in freed]
            kept.append(strata.empty(stays, "u1"))
            found.append(dies.held(strata.memory_stats()))
            del live
    except strata.FabricMemoryError:
        found = None
    return found
