"""MoE training with sharded parameters (FSDP), tensor and expert parallelism.

A layer's parameters are gathered one layer ahead, on a stream of their own, and its gradients are reduced and scattered
on another.  Activations are split by sequence within a tensor-parallel group: gathered before attention and the dense
(or shared) part, reduced and scattered after.  Tokens go to experts and come back through buffers that are new each
time.  Backward runs the layer again first (``recompute``), its collectives included.
"""

from __future__ import annotations

from dataclasses import dataclass

from strata.errors import InvalidArgument
from strata.workloads.description import within
from strata.workloads.routing import busiest
from strata.workloads.steps import COMM, COMPUTE, GATHER, REDUCE, Collective, Demand, Kernel, Part, Routing, Steps
from strata.workloads.switches import POOL, Switches

GIB = 1 << 30


@dataclass(frozen=True)
class Training:
    """Constants of a MoE training workload.

    ``fsdp`` * ``tp`` are the ``dies``; experts are on ``ep`` of them, and sharded among those that have the same
    ``tokens``            of a tensor-parallel group in a step
    ``attention_params``  of a layer, all but experts and dense parts
    ``param_bytes``       gathered;  ``grad_bytes``: reduced (4: in f32);  ``state_bytes``: of a parameter, kept
    ``skew``              of experts' popularity, Zipf
    ``recompute``         1: backward runs the forward pass again
    ``static_gib``        buffer-centric buffers;  ``pool_gib``: what a registered pool costs
    """

    dies: int = within(2, 1 << 16)
    fsdp: int = within(1, 1 << 16)
    tp: int = within(1, 1 << 10)
    ep: int = within(2, 4096)
    layers: int = within(1, 4096)
    dense_layers: int = within(0, 4096)
    hidden: int = within(1, 1 << 20)
    experts: int = within(1, 1 << 16)
    topk: int = within(1, 1024)
    shared_experts: int = within(0, 64)
    expert_width: int = within(1, 1 << 20)
    dense_width: int = within(1, 1 << 22)
    attention_params: float = within(1)
    attended: int = within(0, 1 << 30)
    attention_width: int = within(1, 1 << 24)
    param_bytes: int = within(1, 8)
    grad_bytes: int = within(2, 8)
    state_bytes: float = within(0, 64)
    tokens: int = within(1, 1 << 24)
    skew: float = within(0, 4)
    seed: int = within(0, 1 << 31)
    recompute: int = within(0, 1)
    static_gib: float = within(0, 1024)
    pool_gib: float = within(0, 1024)

    def __post_init__(self) -> None:
        if self.fsdp * self.tp != self.dies or self.dies % self.ep or self.dense_layers > self.layers:
            raise InvalidArgument(
                f"fsdp {self.fsdp} * tp {self.tp} are not the {self.dies} dies, these are no multiple of ep {self.ep}, "
                f"or dense_layers {self.dense_layers} are more than all {self.layers}"
            )

    @property
    def expert_params(self) -> float:
        """Of one expert: three matrices."""
        return 3.0 * self.hidden * self.expert_width

    def demand(self, switches: Switches) -> Demand:
        """A step: forward, backward, optimizer."""
        steps = Steps()
        ends: list[int] = []  # the last kernel of each layer so far, which frees what was gathered for it
        last: int | None = None
        for layer in range(self.layers):
            last = _Layer(self, steps, layer, f"forward {layer}", ends).forward(last)
        for layer in reversed(range(self.layers)):
            last = _Layer(self, steps, layer, f"backward {layer}", ends).backward(last)
        per_die = self._params / self.dies
        state = per_die * self.state_bytes
        steps.add(Kernel(0.0, 2 * state), "optimizer", "optimizer", COMPUTE, (len(steps.items) - 1,))
        taken = {"hccl": self.static_gib}.get(switches.library, 0.0)
        taken += self.pool_gib if switches.registration == POOL and switches.library != "hccl" else 0.0
        gathered = 2 * self.param_bytes * (self._dense(self.layers - 1) / self.tp + self._here * self.expert_params)
        memory = {"state": state, "gathered": gathered, "communication": taken * GIB}
        return Demand((Part("step", steps),), self.tokens / self.tp, "tokens", memory)

    @property
    def _here(self) -> float:
        """Experts of a die."""
        return self.experts / self.ep

    @property
    def _params(self) -> float:
        """Of all layers."""
        moe = self.layers - self.dense_layers
        return sum(map(self._dense, range(self.layers))) + moe * self.experts * self.expert_params

    def _dense(self, layer: int) -> float:
        """Parameters of a layer that all tokens use."""
        if layer < self.dense_layers:
            return self.attention_params + 3.0 * self.hidden * self.dense_width
        return self.attention_params + self.shared_experts * self.expert_params


class _Layer:
    """Items of a layer, forward or backward."""

    def __init__(self, of: Training, steps: Steps, layer: int, name: str, ends: list[int]) -> None:
        self.of, self.steps, self.layer, self.name, self.ends = of, steps, layer, name, ends
        self.moe = layer >= of.dense_layers
        self.group = of.dies // of.ep  # dies that have the same experts
        free = (ends[-2],) if len(ends) > 1 else ()
        dense = int(of._dense(layer) / of.tp)
        self.params = self._add(self._gather(dense, of.fsdp, of.tp), "gather", GATHER, free)
        self.expert_params = self.params
        if self.moe and self.group > 1:
            here = int(of._here * of.expert_params)
            self.expert_params = self._add(self._gather(here, self.group, of.ep), "gather experts", GATHER, free)

    def _add(self, what: Kernel | Collective, name: str, stream: str, after: tuple[int, ...]) -> int:
        return self.steps.add(what, name, self.name, stream, after)

    def forward(self, before: int | None) -> int:
        """The number of its last item, which comes after ``before``."""
        last = self._pass(before, 1.0, "")
        self.ends.append(self.last_kernel)
        return last

    def backward(self, before: int | None) -> int:
        """... of the backward pass."""
        if self.of.recompute:
            before = self._pass(before, 1.0, "again ")
        last = self._pass(before, 2.0, "back ")
        self.ends.append(self.last_kernel)
        of, total = self.of, int(self.of._dense(self.layer) / self.of.tp)
        if self.moe and self.group > 1:
            here = int(of._here * of.expert_params)
            self._add(self._scatter(here, self.group, of.ep), "scatter experts", REDUCE, (self.experts_kernel,))
        self._add(self._scatter(total, of.fsdp, of.tp), "scatter", REDUCE, (last, self.last_kernel))
        return last

    def _pass(self, before: int | None, factor: float, kind: str) -> int:
        """Through the layer; ``factor`` of a forward pass's operations."""
        of = self.of
        after = () if before is None else (before,)
        taken = self._add(self._tp("all_gather"), f"{kind}sequence gather", COMM, after)
        attention = self._add(self._attention(factor), f"{kind}attention", COMPUTE, (taken, self.params))
        given = self._add(self._tp("reduce_scatter"), f"{kind}sequence scatter", COMM, (attention,))
        taken = self._add(self._tp("all_gather"), f"{kind}sequence gather", COMM, (given,))
        dense = (of._dense(self.layer) - of.attention_params) / of.tp
        there = self._exchange(back=False)
        sent = self._add(there, f"{kind}dispatch", COMM, (given,)) if self.moe else given
        kernel = Kernel(2.0 * factor * of.tokens * dense, dense * of.param_bytes)
        self.last_kernel = self._add(kernel, f"{kind}dense", COMPUTE, (taken, self.params))
        last = self._add(self._tp("reduce_scatter"), f"{kind}sequence scatter", COMM, (self.last_kernel,))
        if self.moe:
            self.last_kernel = self._add(self._experts(there, factor), f"{kind}experts", COMPUTE,
                                         (sent, self.expert_params))  # fmt: skip
            self.experts_kernel = self.last_kernel
            last = self._add(self._exchange(back=True), f"{kind}combine", COMM, (self.last_kernel,))
        return last

    def _attention(self, factor: float) -> Kernel:
        of = self.of
        params, attended = of.attention_params / of.tp, min(of.attended, of.tokens)
        flops = factor * of.tokens * (2.0 * params + 4.0 * attended * of.attention_width / of.tp)
        return Kernel(flops, params * of.param_bytes)

    def _experts(self, there: Collective, factor: float) -> Kernel:
        of = self.of
        assert there.routing is not None
        rows = busiest(there.routing, of.ep)
        moved = of._here * of.expert_params * of.param_bytes + 2.0 * rows * there.routing.row_bytes
        return Kernel(2.0 * factor * rows * of.expert_params, factor * moved)

    def _exchange(self, *, back: bool) -> Collective:
        of = self.of
        rows = max(1, of.tokens // of.tp)
        routing = Routing("experts", rows, of.experts, 2 * of.hidden, of.topk, of.skew, of.seed, back)
        return Collective("all_to_all_v", 0, of.ep, routing=routing, dynamic=rows * of.topk * 2 * of.hidden)

    def _tp(self, operation: str) -> Collective:
        of = self.of
        whole = of.tokens * of.hidden * 2
        if operation == "all_gather":
            return Collective(operation, whole // of.tp, of.tp)
        return Collective(operation, whole // (2 * of.tp) * 2 * of.tp, of.tp, dtype="bf16")

    def _gather(self, params: int, ranks: int, stride: int) -> Collective:
        return Collective("all_gather", -(-params // ranks) * self.of.param_bytes, ranks, stride)

    def _scatter(self, params: int, ranks: int, stride: int) -> Collective:
        dtype = "f32" if self.of.grad_bytes == 4 else "bf16"
        return Collective("reduce_scatter", -(-params // ranks) * ranks * self.of.grad_bytes, ranks, stride, dtype)
