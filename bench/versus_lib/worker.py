"""One rank of one contender: takes cells over a socket, runs them, sends back time stamps.

    python worker.py BACKEND SOCKET

BACKEND is strata, mpi or gloo; the contender's own launcher starts the ranks. A rank that
waits for its next cell sleeps in recv, so that contenders standing side by side do not
disturb each other. Run by bench/versus.py only.
"""

import gc
import json
import os
import socket
import struct
import sys
import time
from functools import partial

import cells  # beside this file: the worker runs as a script, in environments with numpy alone
import numpy as np

BOUND = os.environ.get("VERSUS_CALLS") == "bound"     # persistent operations, in strata and in MPI
KEEP = 8 << 20      # buffers above this many bytes are given back after their cell


def ping_pong(rank, send, recv):
    """A call that goes there and back: rank 0 sends first."""
    first, second = (send, recv) if rank == 0 else (recv, send)

    def call():
        first()
        second()
    return call


class Strata:
    """Fabric arrays, preallocated outputs; called as they are, or bound beforehand (persistent operations)."""

    def __init__(self):
        import strata
        strata.init()
        self.lib, self.group = strata, strata.world()
        self.rank, self.size = self.group.rank, self.group.size
        self.barrier = self.group.barrier
        self.about = f"strata {getattr(strata, '__version__', 'unknown')}"
        self.bound, self.kept = BOUND, []

    def empty(self, count):
        return self.lib.empty((count,), "f4")

    def bind(self, op, send, recv):
        if op == "barrier":
            return self._call("barrier")
        if op == "broadcast":
            return self._call("broadcast", recv)
        if op == "sendrecv":
            peer = 1 - self.rank
            return ping_pong(self.rank, self._call("send", send, peer), self._call("recv", recv, peer))
        return self._call(op, send, recv)

    def _call(self, name, *args):
        method = getattr(self.group, name)
        if not self.bound:
            return partial(method, *args) if args else method
        self.kept.append(method.bind(*args))
        return self.kept[-1]

    def release(self):
        for operation in self.kept:
            operation.free()
        self.kept.clear()


class Mpi:
    """mpi4py's buffer interface in its cheapest form: buffer, count and type all given; or persistent requests."""

    def __init__(self):
        from mpi4py import MPI
        self.lib, self.comm = MPI, MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.barrier = self.comm.Barrier
        self.about = MPI.Get_library_version().split("\n")[0].split(",")[0].strip("\0 ")
        self.about = " ".join(self.about.split())
        self.bound, self.kept = BOUND, []

    def empty(self, count):
        raw = np.empty(count + 16, np.float32)
        skip = (-raw.ctypes.data % 64) // cells.ITEM
        return raw[skip: skip + count]

    def bind(self, op, send, recv):
        lib, call = self.lib, self._call
        if op == "barrier":
            return call("Barrier")
        n = self.size
        src = (lib.buffer(send), len(send), lib.FLOAT)
        dst = (lib.buffer(recv), len(recv), lib.FLOAT)
        if op == "broadcast":
            return call("Bcast", dst)
        if op == "sendrecv":
            peer = 1 - self.rank
            return ping_pong(self.rank, call("Send", src, peer), call("Recv", dst, peer))
        if op == "all_reduce":
            return call("Allreduce", src, dst, lib.SUM)
        if op == "reduce_scatter":
            return call("Reduce_scatter_block", (src[0], len(recv), lib.FLOAT), dst, lib.SUM)
        if op == "all_gather":
            return call("Allgather", src, (dst[0], len(send), lib.FLOAT))
        share = len(send) // n
        return call("Alltoall", (src[0], share, lib.FLOAT), (dst[0], share, lib.FLOAT))

    def _call(self, name, *args):
        if not self.bound:
            method = getattr(self.comm, name)
            return partial(method, *args) if args else method
        request = getattr(self.comm, f"{name}_init")(*args)
        self.kept.append(request)

        def call(start=request.Start, wait=request.Wait):
            start()
            wait()
        return call

    def release(self):
        for request in self.kept:
            request.Free()
        self.kept.clear()


class Gloo:
    """torch.distributed on its CPU backend."""

    def __init__(self):
        import torch
        import torch.distributed as dist
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method="env://")
        self.torch, self.dist = torch, dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.barrier = dist.barrier
        self.about = f"gloo in torch {torch.__version__}"

    def empty(self, count):
        return np.empty(count, np.float32)

    def bind(self, op, send, recv):
        dist = self.dist
        if op == "barrier":
            return dist.barrier
        src, dst = self.torch.from_numpy(send), self.torch.from_numpy(recv)
        if op == "broadcast":
            return partial(dist.broadcast, dst, 0)
        if op == "sendrecv":
            peer = 1 - self.rank
            return ping_pong(self.rank, partial(dist.send, src, peer), partial(dist.recv, dst, peer))
        if op == "all_reduce":      # in place only: the copy that makes it out of place is timed
            def call():
                dst.copy_(src)
                dist.all_reduce(dst)
            return call
        name = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor",
                "all_to_all": "all_to_all_single"}[op]
        return partial(getattr(dist, name), dst, src)

    def release(self):
        pass        # it keeps nothing


class Rank:
    """Buffers and the cell that is bound to them."""

    def __init__(self, backend):
        self.backend = backend
        self.send = self.recv = backend.empty(0)
        self.cell, self.call = None, None

    def _grow(self, name, count):
        if len(getattr(self, name)) < count:
            setattr(self, name, self.backend.empty(count))
        return getattr(self, name)[:count]

    def open(self, op, nbytes):
        sends, recvs = cells.shape(op, nbytes, self.backend.size)
        send, recv = self._grow("send", sends), self._grow("recv", recvs)
        self.cell, self.call = (op, send, recv), self.backend.bind(op, send, recv)

    def close(self):
        self.cell = self.call = None
        self.backend.release()
        if max(self.send.nbytes, self.recv.nbytes) > KEEP:
            self.send = self.recv = self.backend.empty(0)

    def verify(self, salt):
        """Fresh data, one call, and how many elements of the answer are wrong."""
        op, send, recv = self.cell
        cells.prepare(op, self.backend.rank, salt, send, recv)
        self.call()
        bad = cells.errors(op, self.backend.rank, self.backend.size, salt, recv)
        self.backend.barrier()      # nobody writes its next input while a peer still checks
        return bad

    def time(self, iters):
        """Stamps (ns, one clock for the whole host) of `iters` + 1 calls back to back."""
        call, now = self.call, time.perf_counter_ns
        stamps = [0] * (iters + 1)
        self.backend.barrier()
        for i in range(iters + 1):
            call()
            stamps[i] = now()
        return np.array(stamps, np.int64).tobytes()


def answer(sock, rank, order):
    """Do one order of the controller; every answer is a JSON line, stamps follow it raw."""
    what, reply, raw = order["do"], {"ok": True}, b""
    try:
        if what == "open":
            rank.open(order["op"], order["bytes"])
        elif what == "verify":
            reply["wrong"] = rank.verify(order["salt"])
        elif what == "time":
            raw = rank.time(order["iters"])
        elif what == "close":
            rank.close()
    except Exception as error:      # told to the controller, which ends this contender's job
        reply = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    reply["raw"] = len(raw)
    line = json.dumps(reply).encode()
    sock.sendall(struct.pack("<I", len(line)) + line + raw)


def main():
    backend = {"strata": Strata, "mpi": Mpi, "gloo": Gloo}[sys.argv[1]]()
    sock = socket.socket(socket.AF_UNIX)
    sock.connect("\0" + sys.argv[2])
    hello = json.dumps({"rank": backend.rank, "size": backend.size, "about": backend.about}).encode()
    sock.sendall(struct.pack("<I", len(hello)) + hello)
    rank, lines = Rank(backend), sock.makefile("r")
    gc.disable()
    for line in lines:
        order = json.loads(line)
        if order["do"] == "quit":
            return
        answer(sock, rank, order)
    os._exit(1)         # the controller is gone; no library's exit handler may wait for peers


if __name__ == "__main__":
    main()
