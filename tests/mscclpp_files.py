"""MSCCL++ JSON execution plans for tests, of known algorithms."""

import json


class File:
    """A plan under way; a threadblock is a number of its gpu."""

    def __init__(self, name, coll, n, chunks, scratch=0, inplace=False):
        self.plan = {"name": name, "collective": coll, "protocol": "Simple", "inplace": inplace,
                     "reuse_resources": False}  # fmt: skip
        self.gpus = [
            {"id": g, "input_chunks": chunks[0], "output_chunks": chunks[1], "scratch_chunks": scratch,
             "threadblocks": [], "channels": [{"channel_type": "memory", "connected_to": []}],
             "remote_buffers": [], "semaphores": []}
            for g in range(n)
        ]  # fmt: skip
        self.numbers = {}

    def block(self, g, tb):
        blocks = self.gpus[g]["threadblocks"]
        while len(blocks) <= tb:
            blocks.append({
                "id": len(blocks), "ops": [], "channels": [{"channel_type": "memory", "channel_ids": []}],
                "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": []}],
            })  # fmt: skip
        return blocks[tb]

    def _number(self, key, values, value, own):
        """The threadblock's number of what is ``values[...]`` of the gpu."""
        at = self.numbers.setdefault(key, len(values))
        if at == len(values):
            values.append(value)
        if at not in own:
            own.append(at)
        return own.index(at)

    def far(self, g, tb, peer, buf, index, size=1):
        own = self.block(g, tb)["remote_buffer_refs"][0]["remote_buffer_ids"]
        value = {"rank": peer, "type": buf, "access_channel_types": ["memory"]}
        number = self._number(("buffer", g, peer, buf), self.gpus[g]["remote_buffers"], value, own)
        return {"buffer_id": number, "index": index, "size": size}

    def op(self, g, tb, name, src=None, dst=None, **more):
        op = {"name": name, **more}
        if src:
            op |= {"src_buff": src, "dst_buff": dst}
        if name in ("get", "put", "rre", "rres", "res"):
            op["channel_type"] = "memory"
        self.block(g, tb)["ops"].append(op)

    def sync(self, g, tb, name, *peers):
        own = self.block(g, tb)["channels"][0]["channel_ids"]
        connected = self.gpus[g]["channels"][0]["connected_to"]
        ids = [self._number(("channel", g, tb, peer), connected, peer, own) for peer in peers]
        self.op(g, tb, name, channel_ids=ids, channel_type="memory")

    def text(self):
        return json.dumps(self.plan | {"gpus": self.gpus}).encode()


def near(buf, index, size=1):
    return {"type": buf, "index": index, "size": size}


def get_allgather(n, per=2):
    """Out of place, a threadblock for all peers; inputs are there from the begin."""
    file = File("pp_ag_get", "allgather", n, (per, n * per))
    for g in range(n):
        file.op(g, 0, "copy", [near("i", 0, per)], [near("o", g * per, per)])
        for p in range(n):
            if p != g:
                file.op(g, 0, "get", [file.far(g, 0, p, "i", 0, per)], [near("o", p * per, per)])
    return file.text()


def put_allgather(n):
    """In place; a threadblock for each peer, who is told."""
    file = File("pp_ag_put", "allgather", n, (1, n), inplace=True)
    for g in range(n):
        for tb, p in enumerate(p for p in range(n) if p != g):
            file.sync(g, tb, "rlxsignal", p)
            file.sync(g, tb, "rlxwait", p)
            file.op(g, tb, "put", [near("o", g)], [file.far(g, tb, p, "o", g)])
            file.op(g, tb, "nop")
            file.sync(g, tb, "signal", p)
            file.sync(g, tb, "wait", p)
        if n == 1:
            file.op(g, 0, "nop")
    return file.text()


def grouped_allgather(n):
    """Two threadblocks cut each get in halves, and meet at a barrier."""
    file = File("pp_ag_group", "allgather", n, (1, n))
    for g in range(n):
        for tb in (0, 1):
            group = {"tbg_info": {"tb_id": tb, "tbg_size": 2}}
            file.op(g, tb, "copy", [near("i", 0)], [near("o", g)], **group)
            file.op(g, tb, "barrier", barrier_id=0, num_threadblocks=2)
            for p in range(n):
                if p != g:
                    file.op(g, tb, "get", [file.far(g, tb, p, "i", 0)], [near("o", p)], **group)
    return file.text()


def allpairs_allreduce(n):
    """In place: own chunk is put into peers' scratch, added there, and put back; one threadblock a peer."""
    file = File("pp_ar_pairs", "allreduce", n, (n, n), scratch=n, inplace=True)
    for g in range(n):
        peers = [p for p in range(n) if p != g]
        for tb, p in enumerate(peers):
            file.op(g, tb, "put", [near("i", p)], [file.far(g, tb, p, "s", g)])
            file.sync(g, tb, "signal", p)
            file.sync(g, tb, "wait", p)
            file.op(g, tb, "barrier", barrier_id=0, num_threadblocks=len(peers))
            if tb == 0:
                file.op(g, tb, "re", [near("i", g), *(near("s", q) for q in peers)], [near("i", g)])
            file.op(g, tb, "barrier", barrier_id=1, num_threadblocks=len(peers))
            file.op(g, tb, "put", [near("i", g)], [file.far(g, tb, p, "i", g)])
            file.sync(g, tb, "signal", p)
            file.sync(g, tb, "wait", p)
        if not peers:
            file.op(g, 0, "nop")
    return file.text()


def ring_allreduce(n):
    """In place, by way of scratch: n - 1 steps add, n - 1 steps pass sums on."""
    file = File("pp_ar_ring", "allreduce", n, (n, n), scratch=n, inplace=True)
    for g in range(n):
        right, left = (g + 1) % n, (g - 1) % n
        for step in range(2 * n - 2):
            mine, theirs = (g - step) % n, (g - 1 - step) % n
            buf = "s" if step < n - 1 else "i"
            file.op(g, 0, "put", [near("i", mine)], [file.far(g, 0, right, buf, mine)])
            file.op(g, 0, "nop")
            file.sync(g, 0, "signal", right)
            file.sync(g, 0, "wait", left)
            if buf == "s":
                file.op(g, 0, "re", [near("i", theirs), near("s", theirs)], [near("i", theirs)])
    return file.text()


def direct_allreduce(n):
    """In place, two steps in one operation: read and add all peers' inputs, write the sum to all of them."""
    file = File("pp_ar_direct", "allreduce", n, (n, n), inplace=True)
    for g in range(n):
        peers = [p for p in range(n) if p != g]
        sources, results = ([file.far(g, 0, p, "i", g) for p in peers] for _ in range(2))
        file.op(g, 0, "rres", [near("i", g), *sources], [near("i", g), *results], reduce_op="sum")
        file.op(g, 0, "nop")
        file.sync(g, 0, "signal", *peers)
        file.sync(g, 0, "wait", *peers)
    return file.text()


def read_reduce_scatter(n):
    """Out of place: the member reads and adds."""
    file = File("pp_rs", "reducescatter", n, (n, 1))
    for g in range(n):
        sources = [file.far(g, 0, p, "i", g) for p in range(n) if p != g]
        file.op(g, 0, "rre", [near("i", g), *sources], [near("o", 0)])
    return file.text()


def put_alltoall(n):
    file = File("pp_a2a", "alltoall", n, (n, n))
    for g in range(n):
        peers = [p for p in range(n) if p != g]
        file.op(g, 0, "copy", [near("i", g)], [near("o", g)])
        file.op(g, 0, "put", [near("i", p) for p in peers], [file.far(g, 0, p, "o", g) for p in peers])
        file.sync(g, 0, "signal", *peers)
        file.sync(g, 0, "wait", *peers)
    return file.text()


MAKERS = (get_allgather, put_allgather, grouped_allgather, allpairs_allreduce, ring_allreduce, direct_allreduce,
          read_reduce_scatter, put_alltoall)  # fmt: skip
