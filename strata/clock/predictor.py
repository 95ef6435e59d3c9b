"""When operations end on the emulated machine, from when their members came to them."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from strata import bootstrap
from strata._core import descriptors as d
from strata.errors import InvalidArgument
from strata.plan.build import PATHS, PlanCache
from strata.plan.plan import Plan
from strata.plan.schedule import POLICIES
from strata.plan.select import Settings, choose
from strata.plan.spec import Spec
from strata.plan.topology import Topology

if TYPE_CHECKING:
    from strata.machine import Machine

__all__ = ["Asked", "Predictor", "way_of"]

KEPT = 1 << 18  # ends that are remembered
PEAKS = {"bfloat16": "bf16", "float16": "f16", "half": "f16", "float32": "f32", "single": "f32"}


class Asked(NamedTuple):
    """An operation, apart from what is each member's own; ``dies``: world ranks of the members."""

    spec: Spec
    algorithm: str
    dies: tuple[int, ...]

    def key(self) -> tuple[Any, ...]:
        """Equal for what is simulated alike."""
        counts = self.spec.counts
        own = None if counts is None else counts.tobytes()
        return (*self.spec._replace(counts=own, in_place=False), self.algorithm, self.dies)


def way_of(plan: Plan | None) -> int:
    """How a member carries an operation out, in a number: cores, path, partition, and whether it is in place."""
    if plan is None:
        return 1
    return plan.cores | PATHS.index(plan.path) << 16 | POLICIES.index(plan.policy) << 17 | plan.spec.in_place << 18


class Predictor:
    """Results are remembered by plans and relative begins: a step that is like the last costs no simulation."""

    def __init__(self, machine: Machine, settings: Settings, rank: int) -> None:
        self.machine, self.settings, self.rank = machine, settings, rank
        self._cache = PlanCache(max_bytes=64 << 20)
        self._ends: OrderedDict[Any, tuple[int, ...]] = OrderedDict()
        self._held = 0

    # ---- operations ---------------------------------------------------------------------------

    def collective(self, asked: Asked, ways: Sequence[int], begins: Sequence[int]) -> list[int]:
        """Each member's end, from when each has come to it, picoseconds."""
        first = min(begins)
        key = asked.key(), tuple(ways), tuple(b - first for b in begins)
        found = self._ends.get(key)
        if found is None:
            plans = [self._plan(asked, m, way) for m, way in enumerate(ways)]
            found = self._simulate(plans, asked.dies, key[2])
            self._ends[key] = found
            self._held += len(found)
            while self._held > KEPT:
                self._held -= len(self._ends.popitem(last=False)[1])
        else:
            self._ends.move_to_end(key)
        return [first + end for end in found]

    def _plan(self, asked: Asked, member: int, way: int) -> Plan:
        spec = asked.spec._replace(in_place=bool(way >> 18 & 1))
        return self._cache.get(
            spec, member, way & 0xFFFF, algorithm=asked.algorithm, path=PATHS[way >> 16 & 1],
            policy=POLICIES[way >> 17 & 1], cost=self.settings.cost, topology=self.settings.topology,
        )  # fmt: skip

    def _simulate(self, plans: list[Plan], dies: tuple[int, ...], begins: tuple[int, ...]) -> tuple[int, ...]:
        from strata.exec.timed import Program

        program = Program(self.machine, max(dies) + 1)
        stage = program.operation(plans, dies=dies, arrivals_us=[b / 1e6 for b in begins])
        return tuple(round(float(us) * 1e6) for us in program.run().finish_us(stage))

    def message(self, source: int, target: int, nbytes: int, eager: bool, begins: tuple[int, int]) -> tuple[int, int]:
        """Ends of a send and of its receive (world ranks): the receiver reads what the sender has, as in a broadcast to
        one; what is eager has come by a mailbox."""
        if source == target:
            return begins[0], max(begins) + self.copy(source, target, nbytes)
        first = min(begins)
        relative = begins[0] - first, begins[1] - first
        key = "message", source, target, nbytes, eager, relative
        found = self._ends.get(key)
        if found is None:
            pair = self._pair(source, target, nbytes, eager)
            found = self._ends[key] = self._simulate(pair, (source, target), relative)
            self._held += 2
        return first + found[0], first + found[1]

    def _pair(self, source: int, target: int, nbytes: int, eager: bool) -> list[Plan]:
        """Plans of a sender and a receiver."""
        spec = Spec("broadcast", nbytes, nranks=2, mode="mailbox" if eager else "zero_copy")
        tier = int(self.machine.place.tiers(source, np.array([target]))[0])
        place = (Topology(2, 2, flat=True), Topology(2, 2), Topology(1, 2), Topology(1, 1))[tier]
        way = choose(spec, settings=dataclasses.replace(self.settings, topology=place, table=None, options={}))
        return [
            self._cache.get(spec, m, way.cores, algorithm=way.algorithm.name, path=way.path, policy=way.partition,
                            cost=self.settings.cost, topology=place)
            for m in (0, 1)
        ]  # fmt: skip

    # ---- what one die does ----------------------------------------------------------------------

    def copy(self, source: int, target: int, nbytes: int, descriptors: int = 1) -> int:
        """Picoseconds in which this die's DMA engine (its cores, if it has none) copies bytes from die to die."""
        machine, me = self.machine, self.rank
        far = max(int(t) for t in machine.place.tiers(me, np.array([source, target])))
        tier, sdma = machine.tiers[far], machine.sdma
        rate = tier.write_gbps if target != me else tier.read_gbps
        us = tier.alpha_us + nbytes / (rate * 1e3 * (sdma.share if sdma else 1.0))
        return round((us + (sdma.handover_us * descriptors if sdma else 0.0)) * 1e6)

    def batch(self, batch: np.ndarray) -> tuple[int, int]:
        """(Picoseconds, bytes) of descriptors in a chain: those that move bytes, one after another.  What gates wait
        for is not known, and takes no time here."""
        context = bootstrap.context()
        ps = total = 0
        for row in batch[np.isin(batch["type"], (d.COPY, d.REDUCE, d.ACCUMULATE, d.FILL))]:
            target = max(context.owner(int(row["dst"])), 0)
            source = target if row["type"] == d.FILL else max(context.owner(int(row["src"])), 0)
            ps += self.copy(source, target, int(row["bytes"]))
            total += int(row["bytes"])
        return ps, total

    def compute(self, flops: float, nbytes: float, dtype: Any) -> int:
        """Picoseconds of a kernel by the roofline: operations at what is reached of the peak, or bytes through HBM."""
        die, peak = self.machine.die, self.machine.compute
        name = PEAKS.get(str(dtype), str(dtype))
        tflops = getattr(peak, f"{name}_tflops", None)
        if tflops is None:
            there = [f.name.removesuffix("_tflops") for f in dataclasses.fields(peak) if f.name.endswith("_tflops")]
            text = f"{self.machine.name} has no peak for dtype {dtype!r}; there are {', '.join(there)}"
            raise InvalidArgument(f"compute: {text}")
        work = flops / (tflops * peak.efficiency * 1e6)
        memory = nbytes / (die.hbm_gbps * die.hbm_efficiency * 1e3)
        return round(max(work, memory) * 1e6)
