"""What this machine permits: the least time of a cell, by the bytes and synchronisations that it takes at least."""

import math
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from versus_lib import cells

SOURCE = Path(__file__).with_name("limits.c")
HEADERS = Path(__file__).resolve().parents[2] / "strata" / "_core" / "include"
SMALLEST = 16 << 10     # bytes of a core that limits.c begins with


def traffic(op, nbytes, n):
    """(bytes read, bytes written) by all ranks together, at least.

    What is summed is read once and what a rank receives is written once. A line that several ranks receive
    is read once: the core that reads it may write it into all outputs.
    """
    sends, recvs = (count * cells.ITEM for count in cells.shape(op, nbytes, n))
    return {
        "barrier": (0, 0),
        "all_reduce": (n * sends, n * recvs),
        "reduce_scatter": (n * sends, n * recvs),
        "all_to_all": (n * sends, n * recvs),
        "all_gather": (recvs, n * recvs),
        "broadcast": (recvs, (n - 1) * recvs),
        "sendrecv": (sends, recvs),
    }[op]


class Limits:
    """Figures of limits.c: ``rates`` {(what, cores): {bytes of a core: GB/s}}, and round trips in us."""

    def __init__(self, rates, line_us, yield_one_us, cores):
        self.rates, self.line_us, self.yield_one_us, self.cores = rates, line_us, yield_one_us, cores

    @classmethod
    def of(cls, records):
        """The best of all records "limits": a limit is what the machine can do, not what others left of it."""
        records = [r for r in records if r["record"] == "limits"]
        if not records:
            return None
        rates = {}
        for record in records:
            for what, cores, nbytes, rate in record["rates"]:
                curve = rates.setdefault((what, cores), {})
                curve[nbytes] = max(rate, curve.get(nbytes, 0.0))
        line, one = (min((r[k] for r in records if r[k] is not None), default=None)
                     for k in ("line_us", "yield_one_us"))
        return cls(rates, line, one, records[0]["cores"])

    def rate(self, what, cores, nbytes):
        """GB/s, read and written, of ``cores`` cores that touch ``nbytes`` each; between two sizes by logarithms."""
        known = max(c for name, c in self.rates if name == what and c <= cores)
        curve = sorted(self.rates[what, known].items())
        below = [point for point in curve if point[0] <= nbytes] or curve[:1]
        above = [point for point in curve if point[0] >= nbytes] or curve[-1:]
        (a, low), (b, high) = below[-1], above[0]
        part = math.log(nbytes / a) / math.log(b / a) if b != a else 0.0
        return math.exp((1 - part) * math.log(low) + part * math.log(high)) * (cores / known)

    def move_us(self, read, written, n):
        """us for so many bytes, spread evenly over the cores that n ranks may use."""
        cores = min(n, self.cores)
        each = (read + written) / cores
        if not each:
            return 0.0
        rest = "read" if read > written else "fill"
        return (2 * min(read, written) / self.rate("copy", cores, each)
                + abs(read - written) / self.rate(rest, cores, each)) / 1e3

    def wait_us(self, op, n):
        """us that n ranks cannot do without to hear of each other, calls back to back.

        Across cores the news is one line on its way, half a round trip. With more ranks than cores, all of a core's
        ranks must have run before the next call begins, the last of one being the first of the next: a switch less
        than there are ranks on the core. A broadcast's ranks need not wait for each other.
        """
        cores = min(n, self.cores)
        line = self.line_us / 2 if cores > 1 and self.line_us else 0.0
        switches = 0 if op == "broadcast" else -(-n // cores) - 1
        return line + switches * self.yield_one_us / 2

    def cell_us(self, op, nbytes, n):
        """The least time of a call (of sendrecv: one way), us; 0 where nothing has to happen."""
        return self.wait_us(op, n) + self.move_us(*traffic(op, nbytes, n), n) if n > 1 else 0.0


class Meter:
    """limits.c, compiled once for a run. ``why`` says what is missing if it cannot be."""

    def __init__(self):
        self.why, self.folder = None, None
        compiler = next(filter(shutil.which, (os.environ.get("CC", ""), "cc", "gcc", "clang")), None)
        if compiler is None:
            self.why = "no C compiler (cc, gcc, clang or $CC)"
            return
        self.folder = tempfile.TemporaryDirectory()
        self.program = Path(self.folder.name) / "limits"
        command = [compiler, "-std=gnu11", "-O3", f"-I{HEADERS}", "-o", str(self.program), str(SOURCE), "-pthread"]
        for flags in (["-march=native"], []):
            done = subprocess.run([*command, *flags], capture_output=True, text=True)
            if done.returncode == 0:
                return
        self.why = f"{compiler} cannot compile {SOURCE.name}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}"

    def close(self):
        if self.folder:
            self.folder.cleanup()

    def take(self, seconds, largest):
        """The figures of a record "limits". ``seconds`` for each point, ``largest``: bytes that one core touches."""
        cpus = sorted(os.sched_getaffinity(0))
        done = subprocess.run([str(self.program), ",".join(map(str, cpus)), str(seconds), str(largest)],
                              capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{SOURCE.name}: status {done.returncode}: {done.stderr.strip()}")
        return {"cores": len(cpus), **parse(done.stdout)}


def parse(text):
    """What limits.c prints."""
    found = {"line_us": None, "yield_us": None, "yield_one_us": None, "rates": []}
    for line in text.splitlines():
        name, *rest = line.split()
        if len(rest) == 1:
            found[f"{name.replace('-', '_')}_us"] = float(rest[0])
        else:
            found["rates"].append([name, int(rest[0]), int(rest[1]), float(rest[2])])
    return found


def largest(ops, sizes, counts, memory):
    """Bytes that one core touches in the largest cell, a power of four above SMALLEST, within an eighth of memory."""
    cores = len(os.sched_getaffinity(0))
    most = max((sum(traffic(op, size, n)) / min(n, cores) for op in ops for size in sizes for n in counts), default=0)
    size = SMALLEST
    while size < most and size * 4 * cores <= memory / 8:
        size *= 4
    return size
