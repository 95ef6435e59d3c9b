"""A fabric-native communication library for supernodes, on one Linux host.

    import strata
    g = strata.world()
    x = strata.ones(1000, "f4")
    g.all_reduce(x)

run by ``strata-run -n 4 program.py``, or as a job of one die without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strata import clock, vmm
    from strata._core.binding import Persistent
    from strata._core.work import Work
    from strata.capturing import Graph, capture
    from strata.comm import Group, world
    from strata.errors import (
        Cancelled,
        CollectiveMismatch,
        CollectiveTimeout,
        ConfigError,
        Deadlock,
        FabricMemoryError,
        GroupBroken,
        NotInJob,
        PeerDead,
        RegistrationError,
        RingFull,
        SpawnError,
        StrataError,
    )
    from strata.explaining import explain
    from strata.fabric.allocator import (
        empty_cache,
        max_memory_allocated,
        max_memory_reserved,
        memory_allocated,
        memory_reserved,
        memory_snapshot,
        memory_stats,
        memory_summary,
        reset_peak_memory_stats,
        set_limit,
    )
    from strata.fabric.arrays import (
        address,
        array,
        empty,
        empty_like,
        from_address,
        full,
        full_like,
        is_fabric,
        ones,
        ones_like,
        owner,
        zeros,
        zeros_like,
    )
    from strata.fabric.intercept import intercept
    from strata.job import finalize, init, initialized, stats
    from strata.launch import spawn
    from strata.plan.user import algorithm
    from strata.prediction import Prediction, simulate
    from strata.registration import Registration, deregister, register
    from strata.streams import Event, Stream, current_stream, stream
    from strata.tracing import probe, tag, trace_dump, trace_start, trace_stop

__all__ = [
    "Cancelled",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "ConfigError",
    "Deadlock",
    "Event",
    "FabricMemoryError",
    "Graph",
    "Group",
    "GroupBroken",
    "NotInJob",
    "PeerDead",
    "Persistent",
    "Prediction",
    "Registration",
    "RegistrationError",
    "RingFull",
    "SpawnError",
    "StrataError",
    "Stream",
    "Work",
    "address",
    "algorithm",
    "array",
    "capture",
    "clock",
    "current_stream",
    "deregister",
    "empty",
    "empty_cache",
    "empty_like",
    "explain",
    "finalize",
    "from_address",
    "full",
    "full_like",
    "incarnation",
    "init",
    "initialized",
    "intercept",
    "is_fabric",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "ones",
    "ones_like",
    "owner",
    "probe",
    "register",
    "reset_peak_memory_stats",
    "set_limit",
    "simulate",
    "spawn",
    "stats",
    "stream",
    "tag",
    "trace_dump",
    "trace_start",
    "trace_stop",
    "vmm",
    "world",
    "zeros",
    "zeros_like",
]

__version__ = "0.1.0"

# Module -> its names.  Each is imported when first used, so that the launcher can settle
# the threads of numerical libraries before numpy is there, and stays small without it.
_HOME = {
    "strata._core.binding": ("Persistent",),
    "strata._core.work": ("Work",),
    "strata.capturing": ("Graph", "capture"),
    "strata.comm": ("Group", "world"),
    "strata.errors": (
        "Cancelled",
        "CollectiveMismatch",
        "CollectiveTimeout",
        "ConfigError",
        "Deadlock",
        "FabricMemoryError",
        "GroupBroken",
        "NotInJob",
        "PeerDead",
        "RegistrationError",
        "RingFull",
        "SpawnError",
        "StrataError",
    ),
    "strata.fabric.allocator": (
        "empty_cache",
        "max_memory_allocated",
        "max_memory_reserved",
        "memory_allocated",
        "memory_reserved",
        "memory_snapshot",
        "memory_stats",
        "memory_summary",
        "reset_peak_memory_stats",
        "set_limit",
    ),
    "strata.fabric.arrays": (
        "address",
        "array",
        "empty",
        "empty_like",
        "from_address",
        "full",
        "full_like",
        "is_fabric",
        "ones",
        "ones_like",
        "owner",
        "zeros",
        "zeros_like",
    ),
    "strata.fabric.intercept": ("intercept",),
    "strata.explaining": ("explain",),
    "strata.job": ("finalize", "incarnation", "init", "initialized", "stats"),
    "strata.launch": ("spawn",),
    "strata.plan.user": ("algorithm",),
    "strata.prediction": ("Prediction", "simulate"),
    "strata.registration": ("Registration", "deregister", "register"),
    "strata.streams": ("Event", "Stream", "current_stream", "stream"),
    "strata.tracing": ("probe", "tag", "trace_dump", "trace_start", "trace_stop"),
}


def _watch(context: object) -> None:
    """A die that is checked has joined: what it does is told from now on."""
    from strata.checking import dies

    dies.start(context)  # type: ignore[arg-type]


# What torch.distributed and mpi4py call by other names.
_ELSEWHERE = {"init_process_group": "init()", "destroy_process_group": "finalize()", "is_initialized": "initialized()",
              "get_rank": "world().rank", "get_world_size": "world().size", "new_group": "world().subgroup(ranks)",
              "isend": "world().send(x, dst, async_op=True)", "irecv": "world().recv(out, src, async_op=True)",
              "COMM_WORLD": "world()", "reduce_scatter_tensor": "world().reduce_scatter(...)",
              "all_gather_into_tensor": "world().all_gather(...)",
              "all_to_all_single": "world().all_to_all(...)"}  # fmt: skip
_OPERATIONS = ("all_gather", "all_reduce", "all_to_all", "all_to_all_v", "barrier", "broadcast", "gather", "recv",
               "reduce", "reduce_scatter", "scatter", "send", "shrink", "split", "subgroup")  # fmt: skip


def _instead(name: str) -> str:
    """What to call, if a name is known from elsewhere."""
    found = _ELSEWHERE.get(name)
    if name in _OPERATIONS:
        found = f"world().{name}(...): operations are a group's"
    return f"; it is strata.{found}" if found else ""


def __getattr__(name: str) -> object:
    import importlib

    for module, names in _HOME.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(module), name)
            return value
    if not name.startswith("_"):  # strata.errors, strata.vmm, without having imported them
        try:
            return importlib.import_module(f"strata.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"strata.{name}":
                raise
    raise AttributeError(f"module 'strata' has no attribute {name!r}{_instead(name)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
