"""MoE inference: a request is a batch of prompt tokens, and the decoding of what is answered.

A layer is attention, dispatch, experts, combine.  The experts that all tokens go to compute while tokens travel.  Of
two micro-batches, one computes while the tokens of the other travel.  Prefill exchanges go through buffers that are new
each time, of the size that routing asks for; decode is a graph, whose buffers stay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from strata.errors import InvalidArgument
from strata.workloads.description import within
from strata.workloads.routing import busiest
from strata.workloads.steps import COMM, COMPUTE, Collective, Demand, Kernel, Part, Routing, Steps
from strata.workloads.switches import POOL, Switches

GIB = 1 << 30


@dataclass(frozen=True)
class Inference:
    """Constants of a MoE inference workload; all of one die unless they say otherwise.

    ``ep_prefill``, ``ep_decode``  dies among which the experts are
    ``attention_params``  of a layer, all but experts;  ``attended``: positions that a token attends to, of
                          ``attention_width`` = heads times their dimension
    ``weight_bytes``      of a parameter;  ``kv_bytes``: of a token in a layer's cache, as far as it is read
    ``dispatch_bytes``, ``combine_bytes``  of a token, there and back
    ``prompt_tokens``     of a prefill batch;  ``decode_batch``: sequences that fit with no library's buffers
    ``output_tokens``     decoded for each prefill batch, together
    ``attention_start_us``, ``shared_start_us``, ``experts_start_us``  of a layer's kernels, before they compute
    ``skew_prefill``, ``skew_decode``  of experts' popularity, Zipf
    ``static_gib``        buffer-centric buffers;  ``pool_gib``: what a registered pool costs;  ``sequence_gib``
    """

    dies: int = within(2, 1 << 16)
    ep_prefill: int = within(2, 4096)
    ep_decode: int = within(2, 4096)
    layers: int = within(1, 4096)
    hidden: int = within(1, 1 << 20)
    experts: int = within(1, 1 << 16)
    topk: int = within(1, 1024)
    shared_experts: int = within(0, 64)
    expert_width: int = within(1, 1 << 20)
    attention_params: float = within(1)
    attended: int = within(0, 1 << 30)
    attention_width: int = within(1, 1 << 24)
    weight_bytes: float = within(0.1, 16)
    kv_bytes: float = within(0)
    dispatch_bytes: int = within(1, 1 << 24)
    combine_bytes: int = within(1, 1 << 24)
    prompt_tokens: int = within(2, 1 << 24)
    decode_batch: int = within(8, 1 << 20)
    output_tokens: int = within(1, 1 << 24)
    micro_batches: int = within(1, 8)
    attention_start_us: float = within(0, 1e6)
    shared_start_us: float = within(0, 1e6)
    experts_start_us: float = within(0, 1e6)
    skew_prefill: float = within(0, 4)
    skew_decode: float = within(0, 4)
    seed: int = within(0, 1 << 31)
    static_gib: float = within(0, 1024)
    pool_gib: float = within(0, 1024)
    sequence_gib: float = within(1e-3, 1024)

    @property
    def expert_params(self) -> float:
        """Of one expert: three matrices."""
        return 3.0 * self.hidden * self.expert_width

    def demand(self, switches: Switches) -> Demand:
        """A request: one prefill batch, and as many decode steps as its answers take."""
        taken = {"hccl": self.static_gib}.get(switches.library, 0.0)
        taken += self.pool_gib if switches.registration == POOL and switches.library != "hccl" else 0.0
        lost = math.ceil(taken / self.sequence_gib - 1e-9)
        batch = self.decode_batch - lost
        if batch < self.micro_batches:
            raise InvalidArgument(f"{taken:.2f} GiB of buffers leave a decode batch of {batch}, and there are "
                                  f"{self.micro_batches} micro-batches")  # fmt: skip
        prefill = self._part(self.prompt_tokens, self.ep_prefill, self.skew_prefill, dynamic=True)
        decode = self._part(batch, self.ep_decode, self.skew_decode, dynamic=False)
        notes = (f"decode batch {batch}: {lost} fewer for {taken:.2f} GiB of buffers",) if lost else ()
        held = self.experts / self.ep_decode + self.shared_experts
        weights = self.layers * self.weight_bytes * (self.attention_params + held * self.expert_params)
        memory = {"weights": weights, "cache": batch * self.sequence_gib * GIB, "communication": taken * GIB}
        return Demand(
            (Part("prefill", prefill), Part("decode", decode, self.output_tokens / batch)),
            self.prompt_tokens + self.output_tokens, "tokens", memory, notes,
        )  # fmt: skip

    def _part(self, tokens: int, ep: int, skew: float, *, dynamic: bool) -> Steps:
        steps = Steps()
        shares = [tokens // self.micro_batches + (m < tokens % self.micro_batches) for m in range(self.micro_batches)]
        shares = [s for s in shares if s]
        last: list[int | None] = [None] * len(shares)
        for layer in range(self.layers):
            name = f"layer {layer}"
            dispatched, computed = [], []
            for m, share in enumerate(shares):
                before = last[m]
                attention = steps.add(self._attention(share, dynamic), "attention", name, COMPUTE,
                                      () if before is None else (before,))  # fmt: skip
                there = self._exchange(share, ep, skew, self.dispatch_bytes, m, dynamic, back=False)
                dispatched.append(steps.add(there, "dispatch", name, COMM, (attention,)))
                if self.shared_experts:
                    steps.add(self._shared(share), "shared experts", name, COMPUTE, (attention,))
            for m, share in enumerate(shares):
                work = self._experts(share, ep, skew, m)
                computed.append(steps.add(work, "experts", name, COMPUTE, (dispatched[m],)))
            for m, share in enumerate(shares):
                back = self._exchange(share, ep, skew, self.combine_bytes, m, dynamic, back=True)
                last[m] = steps.add(back, "combine", name, COMM, (computed[m],))
        return steps

    def _attention(self, tokens: int, prefill: bool) -> Kernel:
        params = self.attention_params
        flops = 2.0 * tokens * params + 4.0 * tokens * self.attended * self.attention_width
        cache = tokens * self.kv_bytes * (1 if prefill else self.attended)
        return Kernel(flops, params * self.weight_bytes + cache, "i8", self.attention_start_us)

    def _shared(self, tokens: int) -> Kernel:
        params = self.shared_experts * self.expert_params
        return Kernel(2.0 * tokens * params, params * self.weight_bytes, "i8", self.shared_start_us)

    def _experts(self, tokens: int, ep: int, skew: float, micro: int) -> Kernel:
        """Of the die that has most to do."""
        there = self._exchange(tokens, ep, skew, self.dispatch_bytes, micro, False, back=False)
        assert there.routing is not None
        rows = busiest(there.routing, ep)
        here = self.experts / ep
        touched = here * min(1.0, rows / here) if here else 0.0
        moved = rows * (self.dispatch_bytes + self.combine_bytes)
        moved += touched * self.expert_params * self.weight_bytes
        return Kernel(2.0 * rows * self.expert_params, moved, "i8", self.experts_start_us)

    def _exchange(self, tokens: int, ep: int, skew: float, row_bytes: int, micro: int, dynamic: bool, *,
                  back: bool) -> Collective:  # fmt: skip
        routing = Routing("experts", tokens, self.experts, row_bytes, self.topk, skew, self.seed + micro, back)
        pages = tokens * self.topk * row_bytes if dynamic else 0
        return Collective("all_to_all_v", 0, ep, routing=routing, dynamic=pages)
