"""How close do the reduction kernels come to the memory's bandwidth, and to numpy?

Every row is one dtype, operator, operand size and number of operands.  strata (with
and without non-temporal stores) and numpy take turns, so that a disturbance hits
all alike; figures are medians.  GB/s counts each operand and the result once,
(operands + 1) x bytes, GB = 1e9: what a perfect kernel has to move.  numpy folds
two at a time, so it moves more.

    python bench/kernels.py                             # f32 f64 i32 i64 bf16 f16, sum
    python bench/kernels.py --dtypes f32 --ops all --operands 2 8 --sizes 8 4K 1M 64M
"""

from __future__ import annotations

import argparse
import functools
import re
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from strata import dtypes
from strata._core import kernels

CODE = {name: code for code, (name, _, _) in enumerate(dtypes.DTYPES)}
UFUNC = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
         "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
UNIT = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(text: str) -> int:
    """Bytes of '64M', '4K' or '8'."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: give bytes, with K, M or G")
    return int(match[1]) * UNIT[match[2]]


def alternate(calls: dict[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    """Median seconds of each call; they take turns, in batches of at least 20 us.

    Each turn begins with a call that does not count, so that none pays for what its
    predecessor left in the caches.
    """
    batch = {}
    for name, call in calls.items():
        call()
        begin = time.perf_counter()
        call()
        batch[name] = max(1, min(1000, int(20e-6 / max(1e-9, time.perf_counter() - begin))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[name]) < 5:
        for name, call in calls.items():
            call()
            begin = time.perf_counter()
            for _ in range(batch[name]):
                call()
            times[name].append((time.perf_counter() - begin) / batch[name])
    return {name: statistics.median(found) for name, found in times.items()}


def numpy_fold(op: str, srcs: list[np.ndarray], out: np.ndarray) -> None:
    """The same reduction as a numpy user writes it."""
    combine = UFUNC[op]
    combine(srcs[0], srcs[1], out=out)
    for src in srcs[2:]:
        combine(out, src, out=out)
    if op == "avg":
        (np.floor_divide if out.dtype.kind in "iu" else np.divide)(out, len(srcs), out=out)


def filled(dtype: np.dtype, nbytes: int, rank: int) -> np.ndarray:
    """An operand whose pages exist; values whose products stay in range."""
    array = np.empty(nbytes // dtype.itemsize, dtype)
    array[:] = np.array([1, 1, 0, 1][rank % 4]).astype(dtype)
    return array


def row(name: str, op: str, nbytes: int, operands: int, args: argparse.Namespace) -> str:
    """One measured line of the table."""
    dtype = dtypes.dtype_of(CODE[name])
    srcs = [filled(dtype, nbytes, rank) for rank in range(operands)]
    out = filled(dtype, nbytes, 1)
    raw_srcs, raw_out = [s.view(np.uint8) for s in srcs], [out.view(np.uint8)]
    reduce = functools.partial(kernels.reduce, raw_out, raw_srcs, CODE[name], dtypes.op_code(op), level=args.level)
    calls: dict[str, Callable[[], None]] = {
        "strata": functools.partial(reduce, nt=False),
        "nt": functools.partial(reduce, nt=True),
        "numpy": functools.partial(numpy_fold, op, srcs, out),
    }
    with np.errstate(all="ignore"):
        found = alternate(calls, args.seconds)
    moved = (operands + 1) * nbytes / 1e9
    best = min(found["strata"], found["nt"])
    return (f"{name:>9} {op:>5} {nbytes:>11} {operands:>4}  {found['strata'] * 1e6:>11.2f} "
            f"{moved / found['strata']:>8.2f} {moved / found['nt']:>8.2f} {moved / found['numpy']:>8.2f} "
            f"{found['numpy'] / best:>8.2f}")


def limits(nbytes: int, seconds: float) -> None:
    """What this machine can do at all: copies, counted as bytes read plus bytes written."""
    src, out = filled(np.dtype("u1"), nbytes, 0), filled(np.dtype("u1"), nbytes, 1)
    found = alternate({
        "numpy copyto": lambda: np.copyto(out, src),
        "st_copy": lambda: kernels.copy(out, src),
        "st_copy nt": lambda: kernels.copy(out, src, nt=True),
    }, seconds)
    text = ", ".join(f"{name} {2 * nbytes / t / 1e9:.1f}" for name, t in found.items())
    print(f"# copies of {nbytes} bytes, GB/s read + written: {text}")


def main(argv: list[str]) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=["f32", "f64", "i32", "i64", "bf16", "f16"],
                        choices=[*list(CODE)[1:], "all"], metavar="NAME")
    parser.add_argument("--ops", nargs="+", default=["sum"], choices=[*UFUNC, "all"], metavar="OP")
    parser.add_argument("--sizes", nargs="+", type=size, default=[8, 1 << 10, 64 << 10, 1 << 20, 64 << 20],
                        help="bytes of one operand")
    parser.add_argument("--operands", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--level", choices=kernels.LEVELS, default=None, help="instead of the best")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each row")
    args = parser.parse_args(argv)
    if min(args.operands) < 2 or max(args.operands) > kernels.MAX_OPERANDS:
        parser.error(f"--operands: 2 to {kernels.MAX_OPERANDS}")
    names = list(CODE)[1:] if "all" in args.dtypes else args.dtypes
    ops = list(UFUNC) if "all" in args.ops else args.ops
    print(f"# level {args.level or kernels.level()}, numpy {np.__version__}; medians, taking turns")
    limits(max(args.sizes), args.seconds)
    print(f"# {'dtype':>7} {'op':>5} {'bytes':>11} {'srcs':>4}  {'us':>11} {'GB/s':>8} {'nt GB/s':>8} "
          f"{'numpy':>8} {'x numpy':>8}")
    for name in names:
        for op in ops:
            if not dtypes.supported(CODE[name], dtypes.op_code(op)):
                continue
            for nbytes in args.sizes:
                for operands in args.operands:
                    if nbytes >= dtypes.DTYPES[CODE[name]][2]:
                        print(row(name, op, nbytes, operands, args), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
