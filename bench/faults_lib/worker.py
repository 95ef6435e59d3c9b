"""One rank of one contender, to which something is done: says on a file what happens to it, and when.

    python worker.py BACKEND FAULT CASE DIR SECONDS

BACKEND is strata, mpi or gloo.  Each line of DIR/<rank> is a JSON object with a time (monotonic, one clock for
the whole host) and an event.  Run by bench/faults.py only, in environments that have numpy alone beside the library.
"""

import json
import os
import sys
import time

import numpy as np


class Strata:
    """All calls have a timeout of the caller's; survivors of a death make a new group."""

    def __init__(self, seconds):
        import strata
        strata.init()
        self.lib, self.seconds, self.group = strata, seconds, strata.world()
        self.rank, self.size = self.group.rank, self.group.size

    def all_reduce(self, src, out):
        self.group.all_reduce(src, out, timeout=self.seconds)

    def all_gather(self, src, out):
        self.group.all_gather(src, out, timeout=self.seconds)

    def barrier(self):
        self.group.barrier(timeout=self.seconds)

    def go_on(self):
        self.group = self.group.shrink()
        return self.group.size


class Mpi:
    """Errors are exceptions, as mpi4py has them; there is no timeout.  Where the library has a way for survivors
    to go on (ULFM), it is tried."""

    def __init__(self, seconds):
        from mpi4py import MPI
        self.lib, self.comm = MPI, MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size

    def all_reduce(self, src, out):
        self.comm.Allreduce(src, out)

    def all_gather(self, src, out):
        self.comm.Allgather(src, out)

    def barrier(self):
        self.comm.Barrier()

    def go_on(self):
        try:
            self.comm.Revoke()
        except self.lib.Exception:
            pass        # not needed where everybody has noticed
        self.comm = self.comm.Shrink()
        return self.comm.size


class Gloo:
    """torch.distributed on its CPU backend, with the caller's timeout."""

    def __init__(self, seconds):
        import datetime

        import torch
        import torch.distributed as dist
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method="env://", timeout=datetime.timedelta(seconds=seconds))
        self.torch, self.dist = torch, dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def all_reduce(self, src, out):
        out[:] = src
        self.dist.all_reduce(self.torch.from_numpy(out))

    def all_gather(self, src, out):
        self.dist.all_gather_into_tensor(self.torch.from_numpy(out.reshape(-1)), self.torch.from_numpy(src))

    def barrier(self):
        self.dist.barrier()

    def go_on(self):
        raise NotImplementedError("gloo has no way to make a group of the survivors without a new rendezvous")


class Told:
    """The file on which this rank says what happens."""

    def __init__(self, folder, rank):
        self.fd = os.open(f"{folder}/{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __call__(self, event, **more):
        line = json.dumps({"event": event, "time": time.monotonic(), "pid": os.getpid(), **more})
        os.write(self.fd, line.encode() + b"\n")


def text(error):
    return f"{type(error).__name__}: {error}"[:400]


def in_a_loop(backend, tell, nbytes):
    """All-reduces until something happens; then tries to go on with those that are left."""
    src, out = np.ones(max(1, nbytes // 4), np.float32), np.zeros(max(1, nbytes // 4), np.float32)
    for _ in range(20):
        backend.all_reduce(src, out)
    tell("ready")
    try:
        while True:
            backend.all_reduce(src, out)
    except Exception as error:
        tell("error", text=text(error))
    try:
        left = backend.go_on()
        for _ in range(3):
            backend.all_reduce(src, out)
        if (out == left).all():
            tell("went on", size=left)
    except Exception as error:
        tell("cannot go on", text=text(error))


def in_rounds(backend, tell, nbytes):
    """All-reduces, a round said each tenth of a second, until an error: what goes on says so."""
    src, out = np.ones(max(1, nbytes // 4), np.float32), np.zeros(max(1, nbytes // 4), np.float32)
    backend.all_reduce(src, out)
    tell("ready")
    next_time = 0.0
    try:
        while True:
            backend.all_reduce(src, out)
            if time.monotonic() > next_time:
                tell("round")
                next_time = time.monotonic() + 0.1
    except Exception as error:
        tell("error", text=text(error))


def once(backend, tell, call):
    """One call that does not fit the others', then a barrier and a right call."""
    backend.barrier()
    tell("ready")
    try:
        wrong = call()
        tell("returned", wrong=int(wrong))
    except Exception as error:
        tell("error", text=text(error))
    try:
        backend.barrier()
        src, out = np.full(64, 1, np.float32), np.zeros(64, np.float32)
        backend.all_reduce(src, out)
        tell("later right" if (out == backend.size).all() else "later wrong")
    except Exception as error:
        tell("later error", text=text(error))


def other_counts(backend, count):
    """The last rank gives twice as many elements; how many elements of mine are not what all gave there."""
    mine = count * 2 if backend.rank == backend.size - 1 else count
    src, out = np.full(mine, backend.rank + 1, np.float32), np.zeros(mine, np.float32)
    backend.all_reduce(src, out)
    return np.count_nonzero(out[:count] != backend.size * (backend.size + 1) / 2) + (mine - count)


def other_operation(backend, count):
    """The last rank gathers while the others reduce; of such a call everything is wrong that returns."""
    src = np.full(count, backend.rank + 1, np.float32)
    if backend.rank == backend.size - 1:
        backend.all_gather(src, np.zeros((backend.size, count), np.float32))
    else:
        backend.all_reduce(src, np.zeros(count, np.float32))
    return count


def main():
    name, fault, case, folder, seconds = sys.argv[1:]
    backend = {"strata": Strata, "mpi": Mpi, "gloo": Gloo}[name](float(seconds))
    tell, size = Told(folder, backend.rank), int(case)
    if fault in ("kill", "left"):
        in_a_loop(backend, tell, size)
    elif fault == "stop":
        in_rounds(backend, tell, size)
    elif fault == "counts":
        once(backend, tell, lambda: other_counts(backend, max(1, size // 4)))
    elif fault == "operations":
        once(backend, tell, lambda: other_operation(backend, max(1, size // 4)))
    tell("end")


if __name__ == "__main__":
    main()
