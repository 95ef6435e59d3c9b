"""Who waits for whom: from the records that are in progress, and the lines of their groups."""

from __future__ import annotations

from typing import Any

from strata._core.names import OPERATIONS

__all__ = ["deadlocks", "operation", "waits"]

_WAITS = ("work", "stream", "event", "replay", "flag")  # of the host, for what this die has started itself
_KNOWN = 64  # members of a group that a record's mask has room for


def operation(record: dict[str, Any], groups: dict[int, dict[str, Any]]) -> str:
    """What a record is about, in a few words: ``all_reduce #118 of world``."""
    kind, number, peer = record["kind"], record["number"], record["peer"]
    group = groups.get(record["group"])
    of = f" of {group['name']}" if group else f" of a group that is closed ({record['group']:x})"
    of = of if record["group"] else ""
    if kind == "collective":
        op = record["desc"] & 0xFF
        return f"{OPERATIONS[op] if op < len(OPERATIONS) else f'operation {op}'} #{number}{of}"
    return {
        "send": f"send to rank {peer} (tag {number}){of}",
        "recv": f"recv from rank {peer} (tag {number}){of}",
        "posts": f"round {number} of MoE{of}",
        "drain": f"end of round {number} of MoE{of}",
        "join": "init",
        "group": "making of a group",
        "shrink": f"shrink #{number}{of}",
        "late map": f"mapping of {record['count']} pages of rank {peer}",
        "submit": f"submission of {record['count']} descriptors to ring {number} of rank {peer}",
        "event": "wait for a submission to its DMA engine",
        "flag": f"wait for the flag at {number & (1 << 64) - 1:#x}",
        "stream": f"wait for item {number} of a stream",
        "work": f"wait for an asynchronous operation{of}",
        "replay": f"wait for replay {number} of a graph",
        "lock": f"wait for another thread's operation{of}",
        "cast": f"bound broadcast #{number}{of}",
    }.get(kind, kind)


def waits(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    """A dict for each operation in progress: rank, operation, group, number, phase, since_ns, async, and ``for``: the
    ranks that it waits for, empty if for nobody else."""
    groups = {group["id"]: group for group in snapshot["groups"]}
    found = []
    for die in snapshot["dies"]:
        if die["state"] not in ("running", "stopped"):
            continue
        for record in die["operations"]:
            found.append({
                "rank": die["rank"],
                "operation": operation(record, groups),
                "kind": record["kind"],
                "group": record["group"],
                "number": record["number"],
                "phase": record["phase"],
                "async": record["async"],
                "since_ns": record["begin_ns"],
                "for": _missing(die["rank"], record, groups.get(record["group"]), snapshot),
            })  # fmt: skip
    return found


def _missing(rank: int, record: dict[str, Any], group: dict[str, Any] | None, snapshot: dict[str, Any]) -> list[int]:
    kind, number = record["kind"], record["number"]
    if kind in ("send", "recv", "cast", "group", "flag", "submit"):
        return [record["peer"]] if record["peer"] not in (None, rank) else []
    if kind == "join":
        never = [die for die in snapshot["dies"] if not die.get("joined", True)]
        return [die["rank"] for die in never if die["rank"] != rank]
    if group is None or kind not in ("collective", "shrink", "posts", "drain"):
        return []
    ranks, members = group["ranks"], group["members"]
    if kind == "collective" and record["phase"] == "arrival":
        missing = [i for i, line in enumerate(group["lines"][number & 1]) if line[0] != number]
    elif kind == "collective":
        missing = [i for i, member in enumerate(members) if member["done"] < number]
    elif kind == "shrink":
        dead = {die["rank"] for die in snapshot["dies"] if die["state"] in ("dead", "left")}
        missing = [i for i, member in enumerate(members) if member["shrink"] < number and ranks[i] not in dead]
    else:
        missing = [i for i in range(min(len(ranks), _KNOWN)) if record["count"] >> i & 1]
    return [ranks[i] for i in missing if ranks[i] != rank]


def deadlocks(snapshot: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Circles of dies in which each waits for the next, in something that the next does not come to: each as the
    list of its waits.  Only what is certain: dies that do one thing, and wait in it for somebody to begin.  Of circles
    that have dies in common, the shortest."""
    edges = {die["rank"]: wait for die in snapshot["dies"] if (wait := _blocked(die["rank"], snapshot["waits"]))}
    found: list[list[dict[str, Any]]] = []
    seen: set[int] = set()
    for circle in sorted(filter(None, (_circle(start, edges) for start in edges)), key=len):
        if not seen.intersection(circle):
            seen.update(circle)
            found.append([{**edges[a], "for": [b]} for a, b in zip(circle, circle[1:] + circle[:1], strict=True)])
    return found


def _blocked(rank: int, all_waits: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The one thing in which a die waits for others, if it is one and the program waits for it."""
    mine = [wait for wait in all_waits if wait["rank"] == rank]
    host = [wait for wait in mine if not wait["async"]]
    if len(host) == 1 and host[0]["kind"] in _WAITS:
        host = [wait for wait in mine if wait["async"]]
    if len(host) != 1 or host[0]["phase"] != "arrival" or not host[0]["for"]:
        return None
    return host[0]


def _circle(start: int, edges: dict[int, dict[str, Any]]) -> list[int]:
    """The shortest way from a rank back to it, without the return; [] if there is none."""
    ways, seen = [[start]], {start}
    while ways:
        way = ways.pop(0)
        for rank in edges[way[-1]]["for"]:
            if rank == start:
                return way
            if rank in edges and rank not in seen:
                seen.add(rank)
                ways.append([*way, rank])
    return []
