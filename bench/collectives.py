#!/usr/bin/env python3
"""Times and checks the collectives, with the options and the columns of nccl-tests.

    strata-run -n 4 bench/collectives.py -b 8 -e 64M -f 4                # all_reduce
    strata-run -n 4 bench/collectives.py all -b 1K -e 1M -f 32 -c 2      # a sweep over all of them
    strata-run -n 8 bench/collectives.py broadcast -r all -d half -e 1M -b 1M

Out-of-place and in-place halves, #wrong counted against data that depends on rank and position.
The status is 1 when an element is wrong or NCCL_TESTS_MIN_BW is missed, 2 for arguments that
make no sense. What differs from nccl-tests: bench/README.md.
"""

import os
import platform
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from collectives_lib import data, operations, options, table

import strata


def agree(group, value, op="max"):
    """One number of all dies of a group."""
    return int(group.all_reduce(np.array([value], np.int64), op=op)[0])


def allocate(o, world, itemsize):
    """Send and receive buffer as bytes, as large as the memory allows. Returns (send, recv, largest size)."""
    size, pad = o.maxbytes, o.unalign * itemsize
    while True:
        send = recv = reason = None
        try:
            send, recv = strata.empty((size + pad,), "u1"), strata.empty((size + pad,), "u1")
        except strata.FabricMemoryError as error:
            reason = error
        if not agree(world, reason is not None):
            return send[pad:], recv[pad:], size
        del send, recv
        if size <= o.minbytes or size < 4096:
            raise options.UsageError(
                f"'minbytes' does not fit: two buffers of {size} bytes on each of {world.size} dies "
                f"({reason or 'another die has less room'}); strata-run --hbm gives a die more")
        size = max(o.minbytes, size // 2)


def elapsed(case, o):
    """Seconds per operation of one timing loop, and of each iteration."""
    call, barrier, now = case.bind(), case.group.barrier, time.perf_counter
    per_call = barrier if o.blocking == 1 else None
    stamps = []
    barrier()
    begun = before = now()
    waited = 0.0
    for _ in range(o.iters):
        for _ in range(o.agg_iters):
            call()
            if per_call:
                per_call()
        if o.blocking == 3:
            stamps.append(now() - before)
            barrier()
            waited += now() - before - stamps[-1]
            before = now()
        elif o.per_iter_timing:
            after = now()
            stamps.append(after - before)
            before = after
    seconds = (now() - begun - waited) / (o.iters * o.agg_iters)
    return seconds, [s / o.agg_iters for s in stamps] or [seconds] * o.iters


def over_ranks(group, seconds, how):
    """A time as -a wants it: rank 0, average, minimum, maximum."""
    if group.size == 1:
        return seconds
    every = group.all_gather(np.array([seconds]))[:, 0]
    return float((every[0], every.mean(), every.min(), every.max())[how])


class Bench:
    """The run of one collective: all types, operations, roots and sizes."""

    def __init__(self, o, world, group, report, buffers):
        self.o, self.world, self.group, self.report = o, world, group, report
        self.send, self.recv, self.largest = buffers
        self.smallest = agree(world, group.size, "min")     # groups of a split may differ in size
        self.errors, self.busbw, self.halves, self.salt = 0, 0.0, 0, 1

    def _case(self, name, type_name, op, root, nbytes, in_place):
        case = operations.Case(name, self.group, type_name, op, root, nbytes, in_place, self.o.timeout)
        return case.place(self.send, self.recv)

    def _half(self, case):
        """Time one half of a row, then check it on fresh data."""
        o, group = self.o, self.group
        case.fill(0)
        seconds, each = elapsed(case, o)
        seconds = over_ranks(group, seconds, o.average)
        times = [each] if group.size == 1 else group.all_gather(np.array(each)).tolist()
        algbw, busbw = operations.bandwidths(case.name, case.param, case.dtype.itemsize, seconds, group.size)
        wrong = None
        for _ in range(o.check):
            self.salt += 1
            case.fill(self.salt)
            group.barrier()
            case.bind()()
            mine = case.wrong()
            self.errors += bool(mine)
            wrong = agree(self.world, mine, "sum")
            if wrong:
                break
        self.report.half(case.in_place, seconds * 1e6, algbw, busbw, wrong, times)
        self.busbw, self.halves = self.busbw + busbw, self.halves + 1

    def _row(self, name, type_name, op, root, nbytes):
        case = self._case(name, type_name, op, root, nbytes, False)
        self.report.start_row(case.moved, case.param, type_name, op, root)
        self._half(case)
        if name in operations.NO_IN_PLACE:
            self.report.no_half()
        else:
            self._half(self._case(name, type_name, op, root, nbytes, True))
        self.report.end_row(operations.program(name) if len(self.o.collectives) > 1 else "")

    def sweep(self, name, type_name, op, root):
        o = self.o
        for nbytes in o.warm_sizes():
            case = self._case(name, type_name, op, root, min(nbytes, self.largest), False)
            case.fill(0)
            call = case.bind()
            for _ in range(o.warmup_iters):
                call()
        cycle = 0
        while o.run_cycles == 0 or cycle < o.run_cycles:
            for nbytes in (s for s in o.sizes() if s <= self.largest):
                self._row(name, type_name, op, root, nbytes)
            cycle += 1

    def run(self, name):
        """Everything that was asked for of one collective. Returns whether it went well."""
        o, report = self.o, self.report
        devices = describe(o, self.world, self.group, report, name)
        report.config(devices)
        if self.largest < o.maxbytes:
            report.say(f"#\n# Reducing maxBytes to {self.largest} due to memory limitation")
        for line in table.header(o):
            report.say(line)
        roots = [-1] if name not in operations.ROOTED else range(self.smallest) if o.root < 0 else [o.root]
        for type_name in o.types:
            for op in o.ops if name in operations.REDUCING else ("none",):
                for root in roots:
                    self.sweep(name, type_name, op, root)
        wanted = os.environ.get("NCCL_TESTS_MIN_BW")
        wanted = float(wanted) if wanted else None
        errors, busbw = agree(self.world, self.errors, "sum"), self.busbw / max(1, self.halves)
        report.close(operations.program(name), errors, busbw, wanted)
        missed = wanted is not None and busbw < 0.9 * wanted
        return not errors and not agree(self.world, missed)


def describe(o, world, group, report, name):
    """Print what is run and on which dies. Returns the dies for the JSON document."""
    version = getattr(strata, "__version__", "unknown")
    for line in table.opening(o, operations.program(name), version):
        report.say(line)
    color = options.split_color(world.rank, os.environ)
    who = np.array([os.getpid(), color], np.int64)
    rows = [who] if world.size == 1 else world.all_gather(who)
    host, cpu = socket.gethostname(), f"die on {platform.machine()}"
    devices = []
    for rank, (pid, tint) in enumerate(np.asarray(rows).tolist()):
        report.say(table.device(rank, tint, pid, host, cpu))
        devices.append({"rank": rank, "group": tint, "pid": pid, "hostname": host, "device": rank,
                        "device_hex": "0000:00:00", "device_info": cpu})
    return devices


def bench(world, argv):
    """Parse, allocate, run. Returns the exit status, equal on all dies."""
    o = options.parse(argv)
    color = options.split_color(world.rank, os.environ)
    split = any(os.environ.get(k) for k in ("NCCL_TESTS_SPLIT", "NCCL_TESTS_SPLIT_MASK"))
    group = world.split(color) if split else world
    if o.root >= agree(world, group.size, "min"):
        raise options.UsageError(f"root {o.root} is not a rank of every group: 0..{group.size - 1}")
    report = table.Report(o, speaks=world.rank == 0)
    buffers = allocate(o, world, max(data.dtype(t).itemsize for t in o.types))
    well = [Bench(o, world, group, report, buffers).run(name) for name in o.collectives]
    report.write()
    return 0 if all(well) else 1


def main(argv=None):
    strata.init()
    world = strata.world()
    try:
        return bench(world, sys.argv[1:] if argv is None else argv)
    except options.UsageError as error:
        if world.rank == 0:     # the same on every die; one says it
            print(error.text, file=sys.stdout if error.code == 0 else sys.stderr, flush=True)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
