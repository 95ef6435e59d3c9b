"""What this die's caching allocator holds, in the words of ``torch.cuda``, and how to steer it.

Each function joins the job first if that has not been done, and concerns this die alone.
"""

from __future__ import annotations

import operator
from typing import Any

from strata import bootstrap
from strata._core import heap, limits, space

__all__ = [
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
]

_BLOCKS = {"block": "active_allocated", "run": "active_allocated", "hole": "inactive", "cached": "inactive"}


def _heap() -> heap.Heap:
    return heap.heap_of(bootstrap.context())


def memory_stats() -> dict[str, int]:
    """Counters of this die's fabric memory, a flat dict with the keys of ``torch.cuda.memory_stats``.

    Of each of these there are ``.current``, ``.peak`` (since the start, or since
    ``reset_peak_memory_stats()``), ``.allocated`` (ever added) and ``.freed`` (ever taken
    away), as ``NAME.POOL.current`` and so on.  POOL is ``small_pool`` (allocations below
    2 MiB, which share pages), ``large_pool`` (those with pages of their own) or ``all``.

    ``allocation``, ``allocated_bytes``  live allocations, and their bytes, rounded up: arrays, and what
                          the library allocates for groups, channels and staging
    ``requested_bytes``   what was asked for them
    ``active``, ``active_bytes``  the same as allocated: what is freed is free at once
    ``segment``           ranges of mapped pages of one pool without a gap, as in ``memory_snapshot()``
    ``reserved_bytes``    mapped pages; those without a live allocation count as large_pool.
                          A page moves from one pool to the other when it begins or ceases to be
                          shared: allocated in one, freed in the other, neither in ``all``
    ``inactive_split``, ``inactive_split_bytes``  free pieces of shared pages: they can be allocated, but not
                          given back.  Whole free pages can be, so large_pool has none

    ``num_alloc_retries`` times cached pages were given back for lack of room, to try again
    ``num_ooms``          allocations that found no room
    ``num_device_alloc``, ``num_device_free``  mappings of pages made, and parts of them given back

    Beyond torch's:

    ``remaps``, ``remapped_bytes``  mappings that made a cached run of pages longer, and what they mapped:
                          only these bytes are new to peers
    ``cached_bytes``      mapped pages without a live allocation, kept up to ``cache_limit_bytes``
    ``limit_bytes``       most that may be reserved (``set_limit()``, the HBM, or the pool)
    ``largest_free_bytes``  the largest allocation that needs no further pages
    ``pool_bytes``        the pool if registration is pool, else 0
    ``hbm_bytes``, ``hbm_free_bytes``  this die's share of the UB space, and what of it is not mapped
    ``quarantined_bytes`` given back, but not free before peers have unmapped it
    ``bad_frees``, ``unmap_errors``  0, or something is wrong

    Torch's counters of streams, of oversize blocks and of ``max_split_size`` mean nothing here.
    """
    context = bootstrap.context()
    allocator = heap.heap_of(context)
    stats = allocator.stats()
    stats["cache_limit_bytes"] = context.config.cache_bytes
    stats["limit_bytes"] = stats["pool_bytes"] or min(
        context.hbm_bytes, context.hbm_bytes if allocator.limit is None else allocator.limit
    )
    stats["hbm_bytes"] = context.hbm_bytes
    stats["hbm_free_bytes"] = context.frames_left * space.PAGE_BYTES
    stats["quarantined_bytes"] = context.counters()["quarantined_bytes"]
    return stats


def memory_snapshot() -> list[dict[str, Any]]:
    """The segments of this die's fabric memory, by address: ranges of mapped pages of one pool without a gap.

    Of each: ``device`` (the world rank), ``address``, ``total_size``, ``allocated_size``,
    ``active_size`` (the same), ``requested_size``, ``segment_type`` ("small", "large"),
    ``is_expandable`` (whether it may become longer) and ``blocks``.  Of each block:
    ``address``, ``size``, ``requested_size``, ``state`` ("active_allocated", "inactive"),
    if it is allocated ``kind`` (what for), and ``frames`` (dicts of ``filename`` and
    ``line``, innermost first) if tracemalloc was tracing when it was allocated.
    """
    context = bootstrap.context()
    allocator = heap.heap_of(context)
    expandable = not allocator.stats()["pool_bytes"]
    segments: list[dict[str, Any]] = []
    for va, size, requested, kind, _, tag in allocator.walk():
        if kind == "chunk":
            segments.append(_segment(context.rank, va, "small", False) | {"total_size": size})
            continue
        if kind in ("run", "cached"):
            last = segments[-1] if segments else None
            if not last or last["segment_type"] != "large" or last["address"] + last["total_size"] != va:
                segments.append(_segment(context.rank, va, "large", expandable))
            segments[-1]["total_size"] += size
        segment = segments[-1]
        block = {"address": va, "size": size, "requested_size": requested, "state": _BLOCKS[kind]}
        segment["blocks"].append(block)
        if block["state"] == "inactive":
            continue
        segment["allocated_size"] += size
        segment["active_size"] += size
        segment["requested_size"] += requested
        block["kind"] = heap.TAGS[tag][0]
        frames = allocator.frames(va)
        if frames:
            block["frames"] = [{"filename": name, "line": line} for name, line in frames]
    return segments


def _segment(rank: int, va: int, kind: str, expandable: bool) -> dict[str, Any]:
    return {
        "device": rank, "address": va, "total_size": 0, "allocated_size": 0, "active_size": 0, "requested_size": 0,
        "segment_type": kind, "is_expandable": expandable, "blocks": [],
    }  # fmt: skip


def memory_allocated() -> int:
    """Bytes of live allocations: ``allocated_bytes.all.current``."""
    return _heap().stats()["allocated_bytes.all.current"]


def max_memory_allocated() -> int:
    """The most that memory_allocated() was, since the start or ``reset_peak_memory_stats()``."""
    return _heap().stats()["allocated_bytes.all.peak"]


def memory_reserved() -> int:
    """Bytes of mapped pages: ``reserved_bytes.all.current``."""
    return _heap().stats()["reserved_bytes.all.current"]


def max_memory_reserved() -> int:
    """The most that memory_reserved() was, since the start or ``reset_peak_memory_stats()``."""
    return _heap().stats()["reserved_bytes.all.peak"]


def reset_peak_memory_stats() -> None:
    """All peaks of ``memory_stats()`` begin anew, with what there is now."""
    _heap().reset_peaks()


def empty_cache(keep: int = 0) -> None:
    """Gives cached pages back to the host until at most ``keep`` bytes of them are left.

    A pool (registration=pool) keeps its pages.  ValueError for a negative number, TypeError for
    what is not a whole number.
    """
    keep = _whole("keep", keep)
    if keep < 0:
        raise ValueError(f"keep={keep}: bytes, 0 or more, expected")
    _heap().trim(keep)


def set_limit(nbytes: int | None) -> None:
    """This die reserves at most ``nbytes`` of fabric memory from now on, the cache included; None: its HBM.

    If it has more, cached pages are given back until it has not, or none are left; what is in
    use stays.  An allocation beyond the limit raises FabricMemoryError.  Option memory_limit
    sets it at the start.  ValueError for a negative number, TypeError for what is not a whole
    number; InvalidArgument for a pool.
    """
    _heap().set_limit(None if nbytes is None else _whole("limit", nbytes))


def _whole(name: str, nbytes: int) -> int:
    try:
        return operator.index(nbytes)
    except TypeError:
        raise TypeError(f"{name}={nbytes!r}: a whole number of bytes is expected, such as 16 << 30") from None


def memory_summary() -> str:
    """What memory_stats() says, as a short table for people."""
    stats, human = memory_stats(), limits.human
    rows = [["", "now", "most", "ever"]]
    for title, name, show in (
        ("allocated", "allocated_bytes", human), ("requested", "requested_bytes", human),
        ("reserved", "reserved_bytes", human), ("free in shared pages", "inactive_split_bytes", human),
        ("allocations", "allocation", str), ("segments", "segment", str),
    ):  # fmt: skip
        for pool, label in (("all", title), ("small_pool", "  below 2 MiB"), ("large_pool", "  2 MiB and more")):
            rows.append([label, *(show(stats[f"{name}.{pool}.{what}"]) for what in ("current", "peak", "allocated"))])
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [f"fabric memory of rank {bootstrap.context().rank}, of {human(stats['hbm_bytes'])} HBM"]
    lines += [f"{row[0]:{widths[0]}}  " + "  ".join(f"{row[i]:>{widths[i]}}" for i in (1, 2, 3)) for row in rows]
    lines.append(
        f"cached {human(stats['cached_bytes'])} of at most {human(stats['cache_limit_bytes'])}, limit "
        f"{human(stats['limit_bytes'])}, largest free piece {human(stats['largest_free_bytes'])}"
    )
    lines.append(
        f"mappings {stats['num_device_alloc']} (extensions {stats['remaps']}, {human(stats['remapped_bytes'])}), "
        f"given back {stats['num_device_free']}; retries {stats['num_alloc_retries']}, refusals {stats['num_ooms']}"
    )
    return "\n".join(lines)
