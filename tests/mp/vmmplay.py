"""What tests of strata.vmm on several dies share."""

import ctypes
import gc
import time

import numpy as np
from collectives_play import in_step

import strata
from strata import bootstrap, vmm

M = vmm.granularity()
BOUND = 20.0


def until(condition, what):
    """Polls until something that happens in the background has happened."""
    end = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {BOUND} s"
        time.sleep(0.0005)


class Level:
    """What a die has of its HBM, and that all of it comes back."""

    def __init__(self, group):
        group.send(np.zeros(1), (group.rank + 1) % group.size)  # makes channels, which stay
        group.recv(np.zeros(1), group.rank - 1 if group.rank else group.size - 1)
        group.barrier()
        gc.collect()
        strata.empty_cache()
        self.group, self.context = group, bootstrap.context()
        until(lambda: not self.context.counters()["quarantined_bytes"], "quarantine")
        self.frames = self.context.frames_left

    def check(self):
        gc.collect()
        strata.empty_cache()
        self.group.barrier()
        until(lambda: vmm.stats()["exports_closing"] == 0, "exports")
        until(lambda: not strata.stats()["quarantined_bytes"], "quarantine")
        assert self.context.frames_left == self.frames
        assert {key: n for key, n in vmm.stats().items() if n} == {}
        in_step(self.group)


def raw(address, count, dtype="u1"):
    """An array over an address, which the library knows nothing of."""
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_ubyte * size).from_address(address), dtype)


def made(*sizes, pages=16, access="read_write"):
    """A range with handles of so many pages one after the other."""
    span, at = vmm.reserve_address(pages * M), 0
    for size in sizes:
        with vmm.create_handle(size * M) as handle:
            span.map(handle, at)
        at += size * M
    span.set_access(access)
    return span


def everywhere(group, value):
    """Every member's integer."""
    return group.all_gather(np.array([value], np.int64)).ravel().tolist()
