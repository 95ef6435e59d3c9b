"""What is simulated, as numpy dtypes: twins of ``st_timing.h``, which says what each field means."""

from __future__ import annotations

import numpy as np

NONE = -1
BACKLOG_ONE = 1 << 20

# Kinds of links
UB_OUT, UB_IN, SIO_OUT, SIO_IN, HBM, PAIR, NODE_UP, NODE_DOWN, ENGINE, POOL = range(10)
LINK_NAMES = ("ub_out", "ub_in", "sio_out", "sio_in", "hbm", "pair", "node_up", "node_down", "engine", "pool")

# Kinds of tasks
NOTHING, MOVE, SUBMIT, COMPUTE, MAP, DELAY = range(6)
TASK_NAMES = ("nothing", "move", "submit", "compute", "map", "delay")

LINK_DTYPE = np.dtype([("capacity", "<f8"), ("loss", "<f8"), ("kind", "<i4"), ("die", "<i4")])

USE_DTYPE = np.dtype([("link", "<u4"), ("peer", "<i4"), ("weight", "<f8")])

TASK_DTYPE = np.dtype(
    [
        ("hold_ps", "<i8"),
        ("latency_ps", "<i8"),
        ("work", "<f8"),
        ("bound", "<f8"),
        ("wait_ps", "<i8", (2,)),
        ("wait", "<i4", (2,)),
        ("post", "<i4"),
        ("use_first", "<u4"),
        ("nuse", "<u2"),
        ("kind", "u1"),
        ("tier", "u1"),
        ("backlog", "<i4"),
        ("operation", "<i4"),
        ("unit", "<i4"),
        ("pad", "<i4", (2,)),
    ]
)

LANE_DTYPE = np.dtype(
    [("first", "<u4"), ("count", "<u4"), ("die", "<i4"), ("pool", "<i4"), ("core", "<i4"), ("ahead", "<u4")]
)

FLAG_DTYPE = np.dtype([("need", "<i4"), ("rendezvous", "<i4")])

MEMBER_DTYPE = np.dtype([("die", "<i4"), ("arrive", "<i4"), ("start", "<i4"), ("pad", "<i4")])

RENDEZVOUS_DTYPE = np.dtype([("first", "<u4"), ("count", "<u4"), ("base_ps", "<i8"), ("seen_ps", "<i8", (4,))])

TIMES_DTYPE = np.dtype([("ready", "<i8"), ("begun", "<i8"), ("flowing", "<i8"), ("done", "<i8")])
