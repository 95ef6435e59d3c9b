"""The lines and the JSON of nccl-tests 2.19, column for column."""

import json
import math
import os
import sys
import time

FORMAT = "2.19.6"           # the version of nccl-tests whose output this is
JSON_VERSION = 3
STAMP = "%Y-%m-%d %H:%M:%S"
NAMES = ("size", "count", "type", "redop", "root")
UNITS = ("(B)", "(elements)", "", "", "")
BLANK = ("", "", "", "", "")


def fit(value, width):
    """`value` with as many decimals, two at most, as fit in `width` characters."""
    for decimals in (2, 1, 0):
        text = f"{value:{width}.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.{1 if width >= 7 else 0}e}"


def _lead(size, count, kind, redop, root):
    return f"# {size:>10}  {count:>12}  {kind:>8}  {redop:>6}  {root:>6}"


def _half(cells):
    """Cells of one half of a row: a time, two bandwidths, a count, and times of iterations."""
    return "".join(f"  {c:>{w}}" for c, w in zip(cells, (7, 6, 6, 6, 7, 7, 7, 7)[:len(cells)], strict=True))


def header(o):
    """The three lines above the rows, and the empty comment before them."""
    stamp_width = 19 if o.report_timestamps else 0
    half, unit = ["time", "algbw", "busbw", "#wrong"], ["(us)", "(GB/s)", "(GB/s)", ""]
    title = "           out-of-place                       in-place          "
    if o.per_iter_timing:
        half += ["i_min", "i_max", "i_p99", "i_cv%"]
        unit += ["(us)", "(us)", "(us)", "(%)"]
        title = ("              out-of-place (+ per-iteration)                               "
                 " in-place (+ per-iteration)")

    def line(names, cells, last):
        return _lead(*names) + _half(cells) * 2 + f" {last:>{stamp_width}}"

    return ["#", _lead(*BLANK) + title,
            line(NAMES, half, "timestamp" if o.report_timestamps else ""),
            line(UNITS, unit, STAMP if o.report_timestamps else "")]


def preamble(size, count, type_name, op_name, root):
    return f"{size:12d}  {count:12d}  {type_name:>8}  {op_name:>6}  {root:6d}"


def body(us, algbw, busbw, wrong):
    """One half of a row. `wrong` is None where nothing was checked."""
    return _half((fit(us, 7), fit(algbw, 6), fit(busbw, 6), "N/A" if wrong is None else f"{float(wrong):g}"))


def no_body(per_iter):
    """The half of an operation that has no in-place form."""
    return _half(("N/A",) * (8 if per_iter else 4))


def statistics(seconds, skip):
    """What -I reports of one half: microseconds, and per cent for cv."""
    kept = sorted(s * 1e6 for s in seconds[skip:])
    n, mean = len(kept), sum(kept) / len(kept)

    def nearest_rank(percent):
        return kept[min(n - 1, (n * percent + 99) // 100 - 1)]

    deviation = math.sqrt(sum((s - mean) ** 2 for s in kept) / n)
    return {"min_us": kept[0], "max_us": kept[-1], "avg_us": mean, "p50_us": kept[n // 2],
            "p95_us": nearest_rank(95), "p99_us": nearest_rank(99), "stdev_us": deviation,
            "cv_pct": 100 * deviation / mean if mean > 0 else 0.0}


def per_iteration(figures):
    return "".join(f"  {fit(figures[k], 7)}" for k in ("min_us", "max_us", "p99_us", "cv_pct"))


def footer(program, errors, busbw, wanted):
    """The closing lines. `wanted` GB/s (NCCL_TESTS_MIN_BW) or None."""
    verdict = "" if wanted is None else "FAILED" if busbw < wanted * 0.9 else "OK"
    return [f"# {'Out of bounds values':20} : {errors} {'FAILED' if errors else 'OK'}",
            f"# {'Avg bus bandwidth':20} : {busbw:g} {verdict}",
            "#", f"# Collective test concluded: {program}", "#", ""]


def opening(o, program, version):
    """What is run, above the list of dies."""
    factor = o.stepfactor > 1
    lines = [
        f"# strata {version}, output of nccl-tests version {FORMAT}",
        f"# Collective test starting: {program}",
        f"# nThread 1 nGpus 1 minBytes {o.minbytes} maxBytes {o.maxbytes} "
        f"step: {o.stepfactor if factor else o.stepbytes}({'factor' if factor else 'bytes'}) "
        f"warmup iters: {o.warmup_iters} iters: {o.iters} agg iters: {o.agg_iters} "
        f"validation: {o.check} graph: 0 unalign: {o.unalign}"]
    if o.blocking:
        lines.append("# Blocking Enabled: " + {
            1: "wait and barrier after each inner iteration (-m) ",
            2: "wait after each inner iteration (-m), no barrier ",
            3: "wait and barrier after each outer iteration (-n); time excludes barrier "}[o.blocking])
    if o.per_iter_timing:
        skip = f"; summary skips first {o.per_iter_skip} iterations" if o.per_iter_skip else ""
        lines.append(f"# Per-Iteration Report: host timing; i_* uses max over process rows{skip} ")
    return [*lines, "#", "# Using devices"]


def device(rank, color, pid, host, name):
    """One die's line; there is no PCI bus, so its address is zero."""
    return (f"#  Rank {rank:2d} Group {color:2d} Pid {pid:6d} on {host:>10} device {rank:2d} "
            f"[0000:00:00] {name}")


class Report:
    """Prints on the die that reports, collects the JSON document, writes it at the end."""

    def __init__(self, options, speaks):
        self.o, self.speaks, self.path = options, speaks, None
        self.doc, self.row = {}, {}
        if options.output_file and speaks:
            self._claim(options.output_file)

    def _claim(self, path):
        """An existing file is not overwritten: .0, .1, ... are tried."""
        number, candidate = 0, path
        while True:
            try:
                with open(candidate, "x"):
                    break
            except FileExistsError:
                candidate, number = f"{path}.{number}", number + 1
            except OSError:
                self.say(f"# skipping json output; {path} not accessible")
                return
        self.path = candidate
        self.say(f"# Writing JSON output to {candidate}")
        self.doc = {"version": JSON_VERSION, "start_time": time.strftime(STAMP), "args": sys.argv,
                    "env": [f"{k}={v}" for k, v in os.environ.items()
                            if k.startswith(("STRATA_", "NCCL_TESTS_"))], "nccl_version": 0}

    def say(self, text, end="\n"):
        if self.speaks:
            print(text, end=end, flush=True)

    def config(self, devices):
        o = self.o
        step = ({"step_factor": o.stepfactor} if o.stepfactor > 1 else {"step_bytes": o.stepbytes})
        self.doc["config"] = {
            "nthreads": 1, "ngpus": 1, "minimum_bytes": o.minbytes, "maximum_bytes": o.maxbytes, **step,
            "warmup_iters": o.warmup_iters, "iterations": o.iters, "aggregated_iterations": o.agg_iters,
            "validation": o.check, "graph": 0, "blocking_collectives": "true" if o.blocking else "false",
            "per_iter_timing": "true" if o.per_iter_timing else "false", "per_iter_skip": o.per_iter_skip,
            "parallel_init": "false", "devices": devices}
        self.doc.setdefault("results", [])

    def start_row(self, size, count, type_name, op_name, root):
        self.say(preamble(size, count, type_name, op_name, root), end="")
        self.row = {"size": size, "count": count, "type": type_name, "redop": op_name, "root": f"{root:6d}"}

    def half(self, in_place, us, algbw, busbw, wrong, times):
        """One half of the row. `times`: seconds per iteration and process, for -I."""
        key = "in_place" if in_place else "out_of_place"
        self.say(body(us, algbw, busbw, wrong), end="")
        self.row[key] = {"time": us, "alg_bw": algbw, "bus_bw": busbw, "nwrong": wrong}
        if self.o.per_iter_timing:
            slowest = [max(column) for column in zip(*times, strict=True)]
            figures = statistics(slowest, self.o.per_iter_skip)
            self.say(per_iteration(figures), end="")
            self.row[f"{key}_per_iter"] = {
                "skipped_iterations": self.o.per_iter_skip, **figures, "times_us": [s * 1e6 for s in slowest],
                "per_process_max_times_us": [[s * 1e6 for s in row] for row in times]}

    def no_half(self):
        self.say(no_body(self.o.per_iter_timing), end="")
        self.row["in_place"] = None

    def end_row(self, name):
        self.say(f"{time.strftime(STAMP):>21}" if self.o.report_timestamps else "")
        self.row.update(actual_iterations=self.o.iters, experiment_name=name)
        self.doc.setdefault("results", []).append(self.row)

    def close(self, program, errors, busbw, wanted):
        for line in footer(program, errors, busbw, wanted):
            self.say(line)
        self.doc["out_of_bounds"] = {"count": errors, "okay": "false" if errors else "true"}
        okay = "unchecked" if wanted is None else "true" if busbw >= wanted * 0.9 else "false"
        self.doc["average_bus_bandwidth"] = {"bandwidth": busbw, "okay": okay}

    def write(self):
        """The JSON document, if one was asked for."""
        if self.path:
            self.doc.update(errors=[], end_time=time.strftime(STAMP))
            with open(self.path, "w") as out:
                json.dump(self.doc, out)
