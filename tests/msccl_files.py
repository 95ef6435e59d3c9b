"""MSCCL XML files of known algorithms, made here in the schema that msccl-tools writes."""

from collections import defaultdict


class File:
    """Steps are added by gpu and threadblock (send, recv, chan), and written out."""

    def __init__(self, name, coll, n, chunks, inplace, scratch=0):
        self.head = (name, coll, n, chunks, inplace, scratch)
        self.blocks = defaultdict(dict)

    def add(self, gpu, tb, kind, src, dst, dep=None, count=1):
        """``tb``: (send, recv, chan); ``dep``: what an earlier add returned.  Returns (tb number, step)."""
        blocks = self.blocks[gpu]
        steps = blocks.setdefault(tb, [])
        steps.append((kind, src, dst, dep or (-1, -1), count))
        return list(blocks).index(tb), len(steps) - 1

    def text(self):
        name, coll, n, chunks, inplace, scratch = self.head
        has_in = chunks if coll != "allgather" else chunks // n
        has_out = chunks if coll != "reduce_scatter" else chunks // n
        head = f'name="{name}" proto="Simple" nchannels="8" nchunksperloop="{chunks}" ngpus="{n}" coll="{coll}"'
        lines = [f'<algo {head} inplace="{inplace}" outofplace="{1 - inplace}" minBytes="0" maxBytes="999">']
        for gpu in range(n):
            lines.append(f'<gpu id="{gpu}" i_chunks="{has_in}" o_chunks="{has_out}" s_chunks="{scratch}">')
            for i, ((send, recv, chan), steps) in enumerate(self.blocks[gpu].items()):
                lines.append(f'<tb id="{i}" send="{send}" recv="{recv}" chan="{chan}">')
                for s, (kind, src, dst, dep, count) in enumerate(steps):
                    place = f'srcbuf="{src[0]}" srcoff="{src[1]}" dstbuf="{dst[0]}" dstoff="{dst[1]}" cnt="{count}"'
                    order = f'depid="{dep[0]}" deps="{dep[1]}" hasdep="0"'
                    lines.append(f'<step s="{s}" type="{kind}" {place} {order}/>')
                lines.append("</tb>")
            lines.append("</gpu>")
        return "\n".join([*lines, "</algo>"]).encode()


def allpairs_allreduce(n, inplace=1):
    """Chunks go to their owners' scratch, are added there in turn, and go back."""
    out = "i" if inplace else "o"
    file = File(f"allpairs{inplace}", "allreduce", n, n, inplace, scratch=n)
    for g in range(n):
        took = []
        for p in range(n):
            if p != g:
                file.add(g, (p, -1, 0), "s", ("i", p), ("s", g))
                took.append(file.add(g, (-1, p, 0), "r", ("i", g), ("s", p)))
        if not inplace:
            file.add(g, (-1, -1, 9), "cpy", ("i", g), ("o", g))
        peers = [p for p in range(n) if p != g]
        for p, dep in zip(peers, took, strict=True):
            last = file.add(g, (-1, -1, 9), "re", ("s", p), (out, g), dep)
        for p in peers:
            file.add(g, (p, -1, 1), "s", (out, g), (out, g), last)
            file.add(g, (-1, p, 1), "nop", ("i", -1), ("o", -1), _sent(file, g, p), 0)
            file.add(g, (-1, p, 1), "r", (out, p), (out, p))
    return file.text()


def _sent(file, gpu, peer):
    return list(file.blocks[gpu]).index((peer, -1, 0)), 0


def ring_allreduce(n):
    """One threadblock a gpu, all fused steps."""
    file = File("ring_ar", "allreduce", n, n, 1)
    for g in range(n):
        tb = ((g + 1) % n, (g - 1) % n, 0)

        def at(back, g=g):
            return "i", (g - back) % n

        file.add(g, tb, "s", at(0), at(0))
        for k in range(1, n - 1):
            file.add(g, tb, "rrs", at(k), at(k))
        file.add(g, tb, "rrcs", at(n - 1), at(n - 1))
        for k in range(n, 2 * n - 2):
            file.add(g, tb, "rcs", at(k), at(k))
        file.add(g, tb, "r", at(2 * n - 2), at(2 * n - 2))
    return file.text()


def ring_reduce_scatter(n):
    file = File("ring_rs", "reduce_scatter", n, n, 0)
    for g in range(n):
        tb = ((g + 1) % n, (g - 1) % n, 0)
        file.add(g, tb, "s", ("i", (g - 1) % n), ("i", (g - 1) % n))
        for k in range(2, n):
            file.add(g, tb, "rrs", ("i", (g - k) % n), ("i", 0))
        file.add(g, tb, "rrc", ("i", g), ("o", 0))
    return file.text()


def ring_allgather(n, per=2):
    """Out of place: own chunks are copied, then go round; two chunks at once."""
    file = File("ring_ag", "allgather", n, n * per, 0)
    for g in range(n):
        tb = ((g + 1) % n, (g - 1) % n, 0)
        file.add(g, (-1, -1, 1), "cpy", ("i", 0), ("o", g * per), None, per)
        file.add(g, tb, "s", ("i", 0), ("o", g * per), None, per)
        for k in range(1, n):
            block = ("o", (g - k) % n * per)
            file.add(g, tb, "rcs" if k < n - 1 else "r", block, block, None, per)
    return file.text()


def doubling_allgather(n):
    """In place: block pairs of doubling size are exchanged."""
    file = File("rd_ag", "allgather", n, n, 1)
    last = dict.fromkeys(range(n))
    size = 1
    while size < n:
        now = {}
        for g in range(n):
            p, mine = g ^ size, g // size * size
            file.add(g, (p, p, 0), "s", ("o", mine), ("o", mine), last[g], size)
            now[g] = file.add(g, (p, p, 0), "r", ("o", mine ^ size), ("o", mine ^ size), None, size)
        last, size = now, size * 2
    return file.text()


def doubling_allreduce(n):
    """In place: sums of doubling groups are exchanged; each send is overwritten right after."""
    file = File("rd_ar", "allreduce", n, 2, 1)
    last = dict.fromkeys(range(n))
    size = 1
    while size < n:
        for g in range(n):
            p = g ^ size
            file.add(g, (p, p, 0), "s", ("i", 0), ("i", 0), last[g], 2)
            last[g] = file.add(g, (p, p, 0), "rrc", ("i", 0), ("i", 0), None, 2)
        size *= 2
    return file.text()


def hierarchical_allreduce(n):
    """Pairs reduce to halves, halves go across, pairs gather; gpu 2 k and 2 k + 1 are a pair."""
    file = File("hier_ar", "allreduce", n, 2, 1)
    for g in range(n):
        mine, mate = g % 2, g ^ 1
        file.add(g, (mate, mate, 0), "s", ("i", 1 - mine), ("i", 1 - mine))
        dep = file.add(g, (mate, mate, 0), "rrc", ("i", mine), ("i", mine))
        left, right = (g - 2) % n, (g + 2) % n
        tb = (right, left, 1)
        if g < 2:
            file.add(g, tb, "s", ("i", mine), ("i", mine), dep)
            end = file.add(g, tb, "r", ("i", mine), ("i", mine))
        else:
            file.add(g, tb, "rrcs" if g >= n - 2 else "rrs", ("i", mine), ("i", mine), dep)
            end = dep
            if g < n - 2:
                end = file.add(g, tb, "r", ("i", mine), ("i", mine))
            else:
                end = (1, 0)
        if g < n - 2:
            if g < n - 4:
                file.add(g, tb, "s", ("i", mine), ("i", mine))
        file.add(g, (mate, mate, 2), "s", ("i", mine), ("i", mine), end)
        file.add(g, (mate, mate, 2), "r", ("i", 1 - mine), ("i", 1 - mine), (0, 0))
    return file.text()


def allpairs_alltoall(n, per=2):
    file = File("a2a", "alltoall", n, n * per, 0)
    for g in range(n):
        for i in range(per):
            for p in range(n):
                if p == g:
                    file.add(g, (-1, -1, i), "cpy", ("i", g * per + i), ("o", g * per + i))
                else:
                    file.add(g, (p, -1, i), "s", ("i", p * per + i), ("o", g * per + i))
                    file.add(g, (-1, p, i), "r", ("i", g * per + i), ("o", p * per + i))
    return file.text()


ALL = {
    "allpairs": (allpairs_allreduce, (1, 2, 3, 4, 8)),
    "allpairs, out of place": (lambda n: allpairs_allreduce(n, 0), (2, 3, 5)),
    "ring_ar": (ring_allreduce, (2, 3, 4, 8)),
    "ring_rs": (ring_reduce_scatter, (2, 3, 5, 8)),
    "ring_ag": (ring_allgather, (2, 3, 4, 7)),
    "rd_ag": (doubling_allgather, (2, 4, 8)),
    "rd_ar": (doubling_allreduce, (2, 4, 8)),
    "hier_ar": (hierarchical_allreduce, (4, 6, 8)),
    "a2a": (allpairs_alltoall, (2, 3, 5)),
}
