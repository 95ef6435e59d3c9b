"""Training of a recommendation model (DLRM): embedding tables in shards, a dense part that all dies have.

Looked-up rows go to the dies whose samples want them, and their gradients come back, by all_to_all_v; gradients of the
dense part are all-reduced in buckets while backward goes on; the next batch's ids are on their way meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from strata.workloads.description import within
from strata.workloads.steps import COMM, COMPUTE, GATHER, REDUCE, Collective, Demand, Kernel, Part, Routing, Steps
from strata.workloads.switches import POOL, Switches

GIB = 1 << 30
ID_BYTES = 8


@dataclass(frozen=True)
class Recommendation:
    """Constants of a recommendation workload.

    ``tables`` of ``dimension`` values of ``value_bytes``, each in ``shards`` by columns
    ``ids``            that a sample looks up, in all tables together
    ``batch``          samples of a die
    ``bottom_params``, ``top_params``  of the dense part before and after the rows come in
    ``bucket_bytes``   of gradients that are reduced together
    ``static_gib``, ``pool_gib``       as of the others
    """

    dies: int = within(2, 1 << 16)
    tables: int = within(1, 1 << 16)
    shards: int = within(1, 1 << 10)
    dimension: int = within(1, 1 << 16)
    value_bytes: int = within(1, 8)
    ids: float = within(1)
    batch: int = within(1, 1 << 24)
    bottom_params: float = within(1)
    top_params: float = within(1)
    bucket_bytes: int = within(4, 1 << 34)
    table_gib: float = within(0, 1 << 20)
    static_gib: float = within(0, 1024)
    pool_gib: float = within(0, 1024)

    def demand(self, switches: Switches) -> Demand:
        """A step."""
        steps = Steps()
        add = steps.add
        pieces = self.tables * self.shards
        width = self.dimension // self.shards * self.value_bytes
        held = -(-pieces // self.dies)  # shards of the die that has most
        looked = int(self.dies * self.batch * held * self.ids / self.tables * width)
        rows = Routing("tables", self.batch, pieces, width)
        ids = Routing("tables", self.batch, pieces, max(1, round(self.ids / self.tables * ID_BYTES)), back=True)
        moved = self.batch * self.ids * self.shards * ID_BYTES
        add(Collective("all_to_all_v", 0, self.dies, routing=ids, dynamic=int(moved)), "ids", "input", GATHER)
        there = Collective("all_to_all_v", 0, self.dies, routing=rows)
        back = Collective("all_to_all_v", 0, self.dies, routing=Routing("tables", self.batch, pieces, width, back=True))
        lookup = add(Kernel(0.0, looked), "lookup", "embeddings", COMPUTE)
        came = add(there, "rows", "embeddings", COMM, (lookup,))
        bottom = add(self._dense(self.bottom_params, 2.0), "bottom", "forward", COMPUTE)
        top = add(self._dense(self.top_params, 2.0), "top", "forward", COMPUTE, (came, bottom))
        last = self._backward(steps, top)
        returned = add(back, "gradients", "embeddings", COMM, (last,))
        under = add(self._dense(self.bottom_params, 4.0), "bottom back", "backward", COMPUTE, (last,))
        add(self._reduced(self.bottom_params), "all-reduce bottom", "backward", REDUCE, (under,))
        add(Kernel(0.0, 3 * looked), "update", "embeddings", COMPUTE, (returned,))
        dense = 4 * (self.bottom_params + self.top_params)
        add(Kernel(0.0, 4 * dense), "optimizer", "optimizer", COMPUTE, (len(steps.items) - 2,))
        taken = {"hccl": self.static_gib}.get(switches.library, 0.0)
        taken += self.pool_gib if switches.registration == POOL and switches.library != "hccl" else 0.0
        memory = {"tables": self.table_gib * GIB / self.dies, "dense": 4 * dense, "communication": taken * GIB}
        return Demand((Part("step", steps),), self.batch, "samples", memory)

    def _backward(self, steps: Steps, after: int) -> int:
        """Of the upper part, bucket by bucket, each reduced while the next is computed."""
        buckets = max(1, round(4 * self.top_params / self.bucket_bytes))
        for b in range(buckets):
            kernel = self._dense(self.top_params / buckets, 4.0)
            after = steps.add(kernel, f"top back {b}", "backward", COMPUTE, (after,))
            steps.add(self._reduced(self.top_params / buckets), f"all-reduce {b}", "backward", REDUCE, (after,))
        return after

    def _dense(self, params: float, factor: float) -> Kernel:
        return Kernel(factor * params * self.batch, 2 * params)

    def _reduced(self, params: float) -> Collective:
        return Collective("all_reduce", int(params) * 4, self.dies, dtype="f32")
