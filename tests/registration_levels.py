"""What a die has of its host (frames, mappings, descriptors, memory), and that it comes back."""

import gc
import os
import time

import numpy as np

import strata
from strata import bootstrap, sdma, vmm

PAGE = 1 << 21
BOUND = 30.0


def until(condition, what):
    """Polls until something that happens in the background has happened; ``what()`` says more."""
    end = time.monotonic() + BOUND
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {BOUND:.0f} s: {what()}")
        time.sleep(0.0005)


def frames(context):
    """Frames in use, and what of them the heap and the quarantine have."""
    quarantine = context.counters()["quarantined_bytes"] // PAGE
    used = context.hbm_bytes // PAGE - context.frames_left
    return used, strata.memory_stats()["reserved_bytes.all.current"] // PAGE, quarantine


def settled(context, hands, quarantine=None):
    """Waits until frames in use are those of the heap, of ``hands`` and in quarantine; no more of these
    than ``quarantine``, if given."""

    def right():
        vmm.stats()  # exports that importers have let go of are closed by the next call
        used, heap, held = frames(context)
        return used == heap + hands + held and (quarantine is None or held <= quarantine)

    def story():
        used, heap, held = frames(context)
        return (f"{used} frames in use: {heap} of the heap, {held} in quarantine, {hands} in handles; "
                f"behind: {context.behind()}")  # fmt: skip

    until(right, story)


def blocks():
    """Live allocations of this die by what they are for: how many, in how many pages."""
    found = {}
    for segment in strata.memory_snapshot():
        for block in segment["blocks"]:
            if "kind" in block:
                pages = found.setdefault(block["kind"], [])
                pages.append(block["address"] // PAGE)
    found.pop("memory of the DMA engine", None)  # which keeps it
    return {kind: (len(pages), len(set(pages))) for kind, pages in found.items()}


def mapped(context):
    """Pages of this die's window that are mapped, by the die whose segment they are in; from the kernel."""
    found = [0] * context.ndies
    with open("/proc/self/maps") as maps:
        for line in maps:
            words = line.split(None, 2)
            if words[1][:3] != "---":
                low, high = (int(number, 16) for number in words[0].split("-"))
                owner = context.owner(low)
                if owner >= 0:
                    found[owner] += (high - low) // PAGE
    return found


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def lines():
    """Mappings of this process."""
    with open("/proc/self/maps", "rb") as maps:
        return sum(1 for _ in maps)


def memory():
    """RSS and PSS of this process, in bytes."""
    with open("/proc/self/smaps_rollup") as rollup:
        values = {words[0]: int(words[1]) << 10 for words in map(str.split, rollup) if words[0] in ("Rss:", "Pss:")}
    return values["Rss:"], values["Pss:"]


def space_bytes(context):
    """Bytes that the UB space takes of its file system."""
    for name in os.listdir("/proc/self/fd"):
        try:
            found = os.stat(f"/proc/self/fd/{name}")
            path = os.readlink(f"/proc/self/fd/{name}")
            if "/strata." in path and found.st_size >= context.ndies * context.hbm_bytes:
                return found.st_blocks * 512
        except FileNotFoundError:
            pass
    raise AssertionError("no descriptor of the UB space")


class Level:
    """What this die has when nothing is left of a program.  Called by all members of a group."""

    def __init__(self, group):
        self.group, self.context = group, bootstrap.context()
        for step in range(1, group.size):  # makes channels, which stay
            work = group.send(np.zeros(1), (group.rank + step) % group.size, async_op=True)
            group.recv(np.zeros(1), (group.rank - step) % group.size)
            work.wait()
        group.all_reduce(np.zeros(1), async_op=True).wait()  # and threads
        for ring in [sdma.open_ring() for _ in range(8)]:  # memory of rings stays, for those that come later
            ring.close()
        group.all_reduce(strata.zeros(1 << 20, "f4"), path="sdma")
        self.found = self.look()

    def look(self):
        gc.collect()
        strata.empty_cache()
        self.group.barrier()  # nobody frees anything any more
        settled(self.context, 0, quarantine=0)
        until(lambda: not vmm.stats()["exports_closing"], lambda: "exports: " + str(vmm.stats()))
        for die in self.group.ranks:
            if die != self.context.rank:
                self.context.follow(die)
        found = {
            "frames left": self.context.frames_left,
            "mapped": [mapped(self.context)[die] for die in self.group.ranks],
            "descriptors": descriptors(),
            "registrations": strata.stats()["registrations"],
            "handles and ranges": vmm.stats(),
            "blocks": blocks(),
        }
        self.group.barrier()
        return found

    def check(self):
        """Everything is as it was."""
        found = self.look()
        changed = {key: (self.found[key], value) for key, value in found.items() if value != self.found[key]}
        assert not changed, f"before and after a program: {changed}"
