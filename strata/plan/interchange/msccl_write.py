"""Plans as MSCCL XML: one step of copies of whole parts, a threadblock for each pair of members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn
from xml.sax.saxutils import quoteattr

from strata.errors import InvalidArgument
from strata.plan.plan import Plan
from strata.plan.records import NONE, PULL, SCRATCH

COLLECTIVES = {"all_gather": "allgather", "all_to_all": "alltoall"}
BUFFERS = "io"


def write(plans: Sequence[Plan]) -> str:
    """The plans of all members as XML: a pull or push is a send and a receive, of one's own a copy.

    InvalidArgument names what cannot be said: other operations, reductions, several steps, flags,
    scratch, mailboxes, members in place, and transfers that are not whole parts.
    """
    spec = plans[0].spec
    n, part = spec.nranks, spec.part
    if spec.operation not in COLLECTIVES:
        raise InvalidArgument(f"MSCCL XML is written of {', '.join(COLLECTIVES)}, not of {spec.operation}")
    if [p.rank for p in plans] != list(range(n)) or any(p.spec != spec for p in plans):
        raise InvalidArgument("MSCCL XML is of the plans of all members for one spec, in rank order")
    if spec.mode != "zero_copy" or spec.in_place or not part:
        raise InvalidArgument("MSCCL XML is not written of mailboxes, work in place, or no bytes")
    blocks: list[dict[tuple[int, int], list[str]]] = [{} for _ in range(n)]
    for plan in plans:
        for number, s in enumerate(plan.slices):
            where = f"die {plan.rank} slice {number}"
            if s["op"] or s["flags"] or s["step"] or s["wait_flag"] != NONE or s["post_flag"] != NONE:
                _fail(where, "reductions, steps and flags cannot be written")
            if SCRATCH in (s["src_buf"], s["dst_buf"]):
                _fail(where, "scratch cannot be written")
            if any(int(s[f]) % part for f in ("src", "dst", "bytes")):
                _fail(where, f"offsets {s['src']}, {s['dst']} and {s['bytes']} bytes are not whole parts of {part}")
            peer, own = int(s["peer"]), plan.rank
            sender, receiver = (peer, own) if s["kind"] == PULL else (own, peer)
            place = (
                f'srcbuf="{BUFFERS[s["src_buf"]]}" srcoff="{s["src"] // part}" dstbuf="{BUFFERS[s["dst_buf"]]}" '
                f'dstoff="{s["dst"] // part}" cnt="{s["bytes"] // part}" depid="-1" deps="-1" hasdep="0"'
            )
            if sender == receiver:
                _add(blocks[own], (-1, -1), "cpy", place)
            else:
                _add(blocks[sender], (receiver, -1), "s", place)
                _add(blocks[receiver], (-1, sender), "r", place)
    inputs = 1 if spec.operation == "all_gather" else n
    head = f'proto="Simple" nchannels="1" nchunksperloop="{n}" ngpus="{n}" coll="{COLLECTIVES[spec.operation]}"'
    lines = [f"<algo name={quoteattr(plans[0].algorithm + '_msccl')} {head} inplace=\"0\" outofplace=\"1\">"]
    for rank, block in enumerate(blocks):
        lines.append(f'  <gpu id="{rank}" i_chunks="{inputs}" o_chunks="{n}" s_chunks="0">')
        for number, ((send, recv), steps) in enumerate(block.items()):
            lines.append(f'    <tb id="{number}" send="{send}" recv="{recv}" chan="0">')
            lines += [f"      {step}" for step in steps] + ["    </tb>"]
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>"]) + "\n"


def _add(block: dict[tuple[int, int], list[str]], peers: tuple[int, int], kind: str, place: str) -> None:
    steps = block.setdefault(peers, [])
    steps.append(f'<step s="{len(steps)}" type="{kind}" {place}/>')


def _fail(where: str, why: str) -> NoReturn:
    raise InvalidArgument(f"{where}: {why} as MSCCL XML")
