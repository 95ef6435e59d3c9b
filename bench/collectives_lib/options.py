"""nccl-tests' options: those that mean something here are taken, the others refused with a reason."""

import argparse
import re
from dataclasses import dataclass

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
REDUCTIONS = ("sum", "prod", "max", "min", "avg")
TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16",
         "f8e4m3", "f8e5m2")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "alltoallv", "broadcast", "reduce",
               "gather", "scatter", "sendrecv")
OTHER_NAMES = {"all_to_all": "alltoall", "all_to_all_v": "alltoallv", "send_recv": "sendrecv"}

# Options that describe a GPU or CUDA: their default is accepted, since scripts give it, nothing else.
REFUSED = (
    ("-t", "--nthreads", 1, "a die is a process with one thread of its own; start more with strata-run -n"),
    ("-g", "--ngpus", 1, "a die is a process; start more with strata-run -n"),
    ("-p", "--parallel_init", 0, "each die joins by itself, there is nothing to do in parallel"),
    ("-y", "--stream_null", 0, "there are no streams"),
    ("-G", "--cudagraph", 0, "there are no CUDA graphs; plans are cached by shape always"),
    ("-C", "--report_cputime", 0, "calls return when they are complete: CPU time and latency are one"),
    ("-x", "--cta_policy", -1, "there are no CTAs"),
    ("-D", "--device_implementation", 0, "there is no device API"),
    ("-V", "--device_cta_count", 16, "there are no CTAs"),
    ("-M", "--memory", 0, "see strata top for the memory of a job"),
)


class UsageError(Exception):
    """Arguments that make no sense; `code` is the exit status, `text` what to print."""

    def __init__(self, text, code=2):
        super().__init__(text)
        self.text, self.code = text, code


@dataclass(frozen=True)
class Options:
    """What to run. Sizes in bytes."""

    collectives: tuple
    minbytes: int
    maxbytes: int
    stepbytes: int
    stepfactor: int
    iters: int
    warmup_iters: int
    agg_iters: int
    run_cycles: int
    check: int
    ops: tuple
    types: tuple
    root: int               # -1: every rank in turn
    blocking: int
    timeout: float          # seconds, 0: the library's default
    average: int
    report_timestamps: int
    output_file: str
    unalign: int
    per_iter_timing: int
    per_iter_skip: int

    def sizes(self):
        """The sizes of the sweep, ascending."""
        size = self.minbytes
        while size <= self.maxbytes:
            yield size
            size = size * self.stepfactor if self.stepfactor > 1 else size + self.stepbytes

    def warm_sizes(self):
        """Sizes that are warmed up: the range in powers of two, whatever the step."""
        size = self.minbytes
        while size <= self.maxbytes:
            yield size
            size = max(1, size * 2)


def parse_size(text):
    """Bytes of '8', '64K', '1.5M', '1g'; what follows the unit letter is ignored, as nccl-tests does."""
    found = re.match(r"\s*(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)\s*([kKmMgG]?)(.*)$", text, re.S)
    if not found or (not found[2] and found[3].strip()):
        return None
    return int(float(found[1]) * UNITS[found[2].lower()])


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting, since one die alone prints for all."""

    def error(self, message):
        raise UsageError(f"{self.prog}: {message}")

    def print_help(self, file=None):
        raise UsageError(self.format_help(), code=0)


def _number(low, high=None):
    def convert(text):
        try:
            value = int(text, 0)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if value < low or (high is not None and value > high):
            raise argparse.ArgumentTypeError(f"{value} is not in {low}..{'' if high is None else high}")
        return value
    return convert


def _size(name):
    def convert(text):
        value = parse_size(text)
        if value is None:
            raise argparse.ArgumentTypeError(f"invalid size specified for '{name}': {text!r}")
        return value
    return convert


def _collective(text):
    name = OTHER_NAMES.get(text.removesuffix("_perf"), text.removesuffix("_perf"))
    if name != "all" and name not in COLLECTIVES:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(COLLECTIVES)}, all")
    return name


def _parser():
    p = _Parser(prog="collectives.py", description="Times and checks the collectives of a job of dies, with "
                "the options and the columns of nccl-tests. Run it under strata-run -n N.")
    add = p.add_argument
    add("collective", nargs="?", type=_collective, metavar="COLLECTIVE",
        help=", ".join(COLLECTIVES) + ", or all for a sweep (all_reduce)")
    add("--collective", dest="named", type=_collective, metavar="COLLECTIVE", help="the same as an option")
    add("-b", "--minbytes", type=_size("minbytes"), default=32 << 20, metavar="SIZE", help="32M")
    add("-e", "--maxbytes", type=_size("maxbytes"), default=32 << 20, metavar="SIZE", help="32M")
    add("-i", "--stepbytes", type=_size("stepbytes"), default=1 << 20, metavar="SIZE", help="1M")
    add("-f", "--stepfactor", type=_number(0), default=1, metavar="N", help="factor instead of -i")
    add("-n", "--iters", type=_number(1), default=20, metavar="N", help="timed iterations (20)")
    add("-m", "--agg_iters", type=_number(1), default=1, metavar="N", help="operations per iteration (1)")
    add("-w", "--warmup_iters", type=_number(0), default=1, metavar="N", help="(1)")
    add("-N", "--run_cycles", type=_number(0), default=1, metavar="N", help="sweeps; 0 is without end (1)")
    add("-c", "--check", type=_number(0), default=1, metavar="N", help="checked iterations per row (1)")
    add("-o", "--op", default="sum", metavar="OP",
        help="/".join(REDUCTIONS) + "/all; the name of a collective selects that (sum)")
    add("-d", "--datatype", default="float", metavar="TYPE", help="/".join(TYPES) + "/all (float)")
    add("-r", "--root", default="0", metavar="ROOT", help="a rank or all (0)")
    add("-z", "--blocking", type=_number(0, 3), default=0, metavar="0..3",
        help="1: barrier after each operation, timed; 3: after each iteration, not timed; 0, 2: none")
    add("-T", "--timeout", type=_number(0), default=0, metavar="SECONDS", help="of each operation")
    add("-a", "--average", type=_number(0, 3), default=1, metavar="0..3",
        help="time of rank 0, average, minimum, maximum over ranks (1)")
    add("-R", "--local_register", type=_number(0, 2), default=0, metavar="0..2",
        help="no effect: fabric memory is registered, and symmetric, always")
    add("-S", "--report_timestamps", type=_number(0, 1), default=0, metavar="0/1")
    add("-J", "--output_file", default="", metavar="FILE.json", help="the same figures as JSON")
    add("-u", "--unalign", type=_number(0), default=0, metavar="N", help="first element of the buffers (0)")
    add("-I", "--per_iter_timing", type=_number(0, 1), default=0, metavar="0/1", help="columns i_min ...")
    add("-K", "--per_iter_skip", type=_number(0), default=0, metavar="N", help="iterations -I leaves out")
    for short, long, default, _ in REFUSED:
        add(short, long, type=_number(-1), default=default, metavar="N", help=f"{default} only")
    return p


def _choose(what, text, known):
    if text == "all":
        return tuple(known)
    if text not in known:
        raise UsageError(f"invalid {what} {text!r}: {', '.join(known)}, all")
    return (text,)


def parse(argv):
    """Options from a command line, or UsageError."""
    a = _parser().parse_args(argv)
    for short, long, default, why in REFUSED:
        if getattr(a, long[2:]) != default:
            raise UsageError(f"{short} ({long[2:]}) takes {default} only here: {why}")
    chosen = [c for c in (a.collective, a.named) if c]
    if a.op not in REDUCTIONS and a.op != "all":
        try:
            chosen.append(_collective(a.op))
        except argparse.ArgumentTypeError:
            note = " (it is made of prod and sum, not an operation here)" if a.op == "mulsum" else ""
            raise UsageError(f"invalid op {a.op!r}{note}: {', '.join(REDUCTIONS)}, all") from None
        a.op = "sum"
    if len(set(chosen)) > 1:
        raise UsageError(f"one collective at a time, or all: {', '.join(chosen)}")
    if a.minbytes > a.maxbytes:
        raise UsageError(f"invalid sizes for 'minbytes' and 'maxbytes': {a.minbytes} > {a.maxbytes}")
    if a.minbytes < a.maxbytes and a.stepfactor <= 1 and a.stepbytes == 0:
        raise UsageError("a step of 0 bytes never reaches 'maxbytes'")
    if a.minbytes == 0 and a.maxbytes > 0 and a.stepfactor > 1:
        raise UsageError("a factor never leaves a 'minbytes' of 0")
    if a.per_iter_skip and not 0 < a.per_iter_skip < a.iters * a.per_iter_timing:
        raise UsageError(f"-K needs -I 1 and is below the number of iterations, {a.iters}")
    if a.output_file and not a.output_file.endswith(".json"):
        raise UsageError("-J writes JSON: the file's name ends in .json")
    try:
        root = -1 if a.root == "all" else int(a.root, 0)
    except ValueError:
        raise UsageError(f"invalid root {a.root!r}") from None
    picked = chosen[0] if chosen else "all_reduce"
    taken = {k: getattr(a, k) for k in Options.__dataclass_fields__ if hasattr(a, k)}
    taken.update(collectives=COLLECTIVES if picked == "all" else (picked,), root=root,
                 ops=_choose("op", a.op, REDUCTIONS), types=_choose("type", a.datatype, TYPES))
    return Options(**taken)


def split_color(rank, env):
    """A rank's colour from NCCL_TESTS_SPLIT (AND, OR, MOD, DIV) or NCCL_TESTS_SPLIT_MASK; 0 without."""
    if env.get("NCCL_TESTS_SPLIT_MASK"):
        text = "AND 0x" + env["NCCL_TESTS_SPLIT_MASK"].lower().removeprefix("0x")
    else:
        text = env.get("NCCL_TESTS_SPLIT", "")
    if not text.strip():
        return 0
    found = re.match(r"\s*(AND|OR|MOD|DIV|[&|%/])\s*(0b[01]+|0x[0-9a-f]+|\d+)\s*$", text, re.I)
    value = int(found[2], 0) if found and not re.match(r"0\d", found[2]) else None
    if value is None or (value == 0 and found[1].upper() in ("MOD", "DIV", "%", "/")):
        raise UsageError(f"invalid NCCL_TESTS_SPLIT {text!r}: AND, OR, MOD or DIV and a number")
    return {"AND": rank & value, "&": rank & value, "OR": rank | value, "|": rank | value,
            "MOD": rank % max(value, 1), "%": rank % max(value, 1),
            "DIV": rank // max(value, 1), "/": rank // max(value, 1)}[found[1].upper()]
