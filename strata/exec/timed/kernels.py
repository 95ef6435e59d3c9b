"""What dies do besides operations: kernels, mapping of peers' memory, and waiting."""

from __future__ import annotations

import numpy as np

from strata.errors import InvalidArgument
from strata.exec.timed.assembly import Assembly, Part
from strata.exec.timed.links import HBM_COLUMN, Links
from strata.exec.timed.records import COMPUTE, DELAY, MAP, NONE
from strata.exec.timed.stage import Stage
from strata.machine.description import Machine

PEAKS = {"f16": "f16_tflops", "bf16": "bf16_tflops", "i8": "int8_tflops", "u8": "int8_tflops", "f32": "f32_tflops"}
GIB = 1 << 30


class Delay(Part):
    """Every die waits; ``ps`` i64 (dies,)."""

    def __init__(self, ps: np.ndarray) -> None:
        self.ps = ps

    def reserve(self, stage: Stage, into: Assembly) -> tuple[int, int, int]:
        self.done = self.arrived = into.flag(np.ones(len(stage.dies), np.int32))
        return into.serial_room(stage, 1, 0)

    def write(self, stage: Stage, into: Assembly) -> None:
        made = into.serial(stage, 1, self.done)
        made["kind"], made["hold_ps"] = DELAY, self.ps[:, None]


class Mapping(Part):
    """Every die maps what ``peers`` (dies,) others have, one after the other, each in ``ps``.

    A die's page table has one lock: of several such stages, the one that was added first has it first.
    """

    def __init__(self, peers: np.ndarray, ps: int) -> None:
        self.peers, self.ps = peers, ps

    def reserve(self, stage: Stage, into: Assembly) -> tuple[int, int, int]:
        self.done = self.arrived = into.flag(np.ones(len(stage.dies), np.int32))
        self.locked = into.lock[stage.dies]
        into.lock[stage.dies] = self.done
        tasks, uses, lanes = into.serial_room(stage, max(int(self.peers.max()), 1), 0)
        return tasks + len(stage.dies), uses, lanes

    def write(self, stage: Stage, into: Assembly) -> None:
        number = max(int(self.peers.max()), 1)
        made = into.serial(stage, number, self.done, self.locked)
        made["kind"] = MAP
        made["hold_ps"] = np.where(np.arange(number) < self.peers[:, None], self.ps, 0)


class Kernel(Part):
    """Every die computes.

    ``ps``      f64 (dies,): how long, with all the cores it can use and the memory to itself
    ``cores``   that it keeps busy then
    ``nbytes``  read and written
    """

    def __init__(self, ps: np.ndarray, cores: float, nbytes: int) -> None:
        self.ps, self.cores, self.nbytes = ps, cores, nbytes

    def reserve(self, stage: Stage, into: Assembly) -> tuple[int, int, int]:
        self.done = self.arrived = into.flag(np.ones(len(stage.dies), np.int32))
        if self.nbytes:
            into.places.kernel(stage)
        return into.serial_room(stage, 1, 2)

    def write(self, stage: Stage, into: Assembly) -> None:
        made = into.serial(stage, 1, self.done)[:, 0]
        made["kind"] = COMPUTE
        hbm = into.links.rows[stage.dies, HBM_COLUMN]
        pool = into.pool(stage.dies)
        links = np.stack([pool, hbm if self.nbytes else np.full_like(hbm, NONE)], axis=1)
        if self.nbytes:  # work in bytes
            made["work"], made["bound"] = self.nbytes, self.nbytes / np.maximum(self.ps, 1.0)
            into.use(made, links, np.stack([self.cores * self.ps / self.nbytes, np.ones(len(links))], axis=1))
        elif self.ps.any():
            made["work"], made["bound"] = self.ps, 1.0
            into.use(made, links, np.stack([np.full(len(links), self.cores), np.zeros(len(links))], axis=1))


def kernel(machine: Machine, links: Links, dies: np.ndarray, us: float | None, flops: float, nbytes: int, dtype: str,
           cores: int | None) -> Kernel:  # fmt: skip
    """A kernel that takes ``us`` if nothing is in its way, or as long as its operations and bytes take."""
    of = machine.die.cores
    cores = of if cores is None else cores
    if not 1 <= cores <= of:
        raise InvalidArgument(f"cores is {cores}: 1 to {of}, the cores of a die of {machine.name}, are expected")
    if not (0 <= flops < np.inf) or not 0 <= nbytes < 1 << 60:
        raise InvalidArgument(f"flops {flops} or nbytes {nbytes} is out of range")
    slow = links.slow[dies]
    if us is not None:
        if flops or not 0 <= us < 1e12:
            why = "how long it takes is given twice" if flops else f"us is {us}"
            raise InvalidArgument(f"{why}: either us, or flops and nbytes, are expected")
        return Kernel(us * 1e6 * slow, cores, nbytes)
    if dtype not in PEAKS:
        raise InvalidArgument(f"the peak rate of {dtype!r} is not known; there are {', '.join(PEAKS)}")
    peak = getattr(machine.compute, PEAKS[dtype]) * machine.compute.efficiency * cores / of  # operations a picosecond
    stream = 2 * machine.tiers[0].core_gbps / 1e3  # of a core: it reads and writes
    memory = min(machine.die.hbm_gbps * machine.die.hbm_efficiency / 1e3, stream * cores)
    computes, moves = flops / peak, nbytes / memory
    ps = max(computes, moves)
    busy = max(cores * computes, nbytes / stream) / ps if ps else 0.0
    return Kernel(ps * slow, min(busy, cores), nbytes)


__all__ = ["Delay", "Kernel", "Mapping", "kernel"]
