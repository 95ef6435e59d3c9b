"""What is still there when a die leaves the job, and should have been waited for, or given back."""

from __future__ import annotations

import sys
from typing import Any

from strata import registration
from strata.checking.groups import opened
from strata.checking.heap import places
from strata.checking.recorder import Recorder
from strata.fabric import mappings

__all__ = ["report"]


def report(told: Recorder) -> None:
    """Tells the analyser of all of it."""

    def leak(kind: str, text: str, site: int | None) -> None:
        told.event("leak", kind=kind, text=text, site=told.sites.here() if site is None else site)

    for kind, text, site, _ in list(opened.items.values()):
        leak(kind, text, site)
    opened.items.clear()
    for entry in registration._entries:
        if entry.count and entry in places:
            leak("registration", f"{entry.nbytes} bytes were registered with strata.register(), and not deregistered",
                 places[entry])  # fmt: skip
    for span in list(mappings.spans):
        face = span.face() if span.face is not None else None
        if face is not None and face in places and span.pieces and not face.freed:
            leak("mapping", f"memory is mapped in an address range of {face.nbytes} bytes of strata.vmm that was not "
                 "closed: unmap() and free it, or close() it", places[face])  # fmt: skip
    for handle in list(mappings.handles):
        if handle in places and not handle.released:
            leak("handle", f"a handle of {handle.nbytes} bytes of strata.vmm was not released", places[handle])
    for kind, text, found in _modules():
        if found in places:
            leak(kind, text, places[found])


def _modules() -> Any:
    """Of parts that few programs use, and that are not loaded for this."""
    graphs = sys.modules["strata.capturing.replaying"]._graphs  # type: ignore[attr-defined]
    for graph in list(graphs):
        if graph.state == "ready":
            yield "graph", "a captured graph was not closed: close() it before finalize()", graph
    rounds = sys.modules["strata.moe.buffer"]
    for buffer in list(rounds._buffers):  # type: ignore[attr-defined]
        if buffer.explicitly_destroy and buffer.runtime is not None:
            yield "window", "a moe.Buffer with explicitly_destroy=True was not destroyed", buffer
