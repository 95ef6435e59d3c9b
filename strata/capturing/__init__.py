"""Capture and replay: a sequence of collectives as one descriptor.

    with strata.capture() as graph:          # records; nothing runs
        g.all_gather(x, out)
        g.all_reduce(y)
    for batch in batches:
        x[...] = batch
        graph.replay()                       # both, by the dies' DMA threads: one descriptor, one doorbell

See ``strata.capture`` for the rules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from strata import bootstrap, comm
from strata.capturing import meeting, recording, replaying
from strata.capturing.replaying import Graph, Replay

__all__ = ["Graph", "Replay", "capture"]


@contextlib.contextmanager
def capture(group: comm.Group | None = None, *, timeout: float | None = None) -> Iterator[Graph]:
    """Records the collectives that this thread calls in the block, instead of running them.

    The members of a group capture the same operations of it, as they would call them.  At the end of the block they
    meet, in each group that the block has used, and tell each other their addresses.  Then ``graph.replay()`` runs
    the operations in order, on what is in the captured arrays at that time.  Results are those of calls, bit for bit.

    * Arrays must be contiguous fabric memory.  Outputs that calls allocate are returned as ever, and filled by replays;
      the graph keeps all arrays alive.
    * Nothing inside may need the host: no ``async_op=True``, send, recv, all_to_all_v, split, subgroup, shrink, replay,
      nor another capture.  Each raises InvalidArgument (a ValueError), and is not recorded.  scatter needs ``out``
      on all members.  Options ``cores``, ``path`` and ``timeout`` of the calls count for nothing.
    * What other threads call meanwhile runs as ever.

    ``group``: its members meet at the end whatever they have captured.  Without it a member that has captured nothing,
    or that leaves its block by an exception before its first operation, may be missed by the others until it calls
    something else.  ``timeout``: seconds to wait for the others at the end (None: option timeout).

    CollectiveMismatch on all members of a group that have not captured the same, or if one has left its block by an
    exception; CollectiveTimeout, PeerDead, FabricMemoryError, RingFull.
    """
    if group is not None and not isinstance(group, comm.Group):
        raise TypeError(f"capture: a strata.Group or None is expected, not {type(group).__name__}; the block makes the "
                        "graph: with strata.capture() as graph")  # fmt: skip
    context = bootstrap.context()
    replaying.sweep()
    made = Graph()
    recorded = recording.begin(context)
    met = meeting.Meeting(recorded, group, timeout)
    try:
        yield made
        recording.end(context)
        made._made(met.run(), recorded.entries, recorded.keep)
    except BaseException as error:
        recording.end(context)
        made._abandoned(error)
        met.abandon(error)
        raise
