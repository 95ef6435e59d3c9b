"""Builds and runs the C tests: plain, under ASan+UBSan, under TSan, and for aarch64.

Each tests/c/*.c is a program: exit 0 passes, 77 skips (and says why), anything
else fails.  Ranks are contexts, so a test runs N dies as threads over one mapping,
which is the only way ThreadSanitizer can see them.

A test may name functions after "tsan must report:".  It is then run once more for each,
with the memory orders taken out of that function (dies.h), and fails unless
ThreadSanitizer reports a data race: the silence of the others means something.

Before that each header of the core is compiled alone, and all of them together, to see
that they need no Python.h, hold no variable, and take no memory.

Mode quick, which is not part of all, is plain without optimisation, in a fifth of the compilers' time: what the test
suite runs.  Tests of loops and of the order of accesses are optimised there too (OPTIMISED).
In mode weak, which is not part of all either, the stores of the tests' dies are late (weak.h, docs/memory-model.md).

For aarch64 the programs are compiled with a cross compiler (tools/cross.py installs it where that is possible), and
run with --emulate, in fewer rounds.  An emulator on x86-64 keeps x86-64's order of memory accesses: such a run shows
that the code is right on another architecture, not that its memory orders suffice there.

Programs are built by as many compilers as there are CPUs, and run one after another.

Usage: python tools/ctest.py [--mode plain|quick|asan|tsan|weak|aarch64|all ...] [-k WORD] [--timeout S] [--emulate]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from common import ROOT

CFLAGS = (
    "-std=gnu11 -D_GNU_SOURCE=1 -g -Wall -Wextra -Werror -Wno-unused-function -pthread -ffp-contract=off"
).split()
LIBS = ["-lm", "-lrt", "-pthread"]
MODES = {
    "plain": ["-O2"],
    "quick": ["-O0"],
    "asan": ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined",
             "-fno-omit-frame-pointer", "-Wno-maybe-uninitialized"],  # gcc: false alarms under sanitizers
    "tsan": ["-O1", "-fsanitize=thread", "-fno-omit-frame-pointer", "-Wno-maybe-uninitialized"],
    "weak": ["-O2", "-DST_CHECKED=1", "-include", "weak.h"],
}
RUN_ENV = {
    "ASAN_OPTIONS": "abort_on_error=0:exitcode=66:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=66",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:second_deadlock_stack=1",
}
CROSS = "aarch64-linux-gnu-gcc"
EMULATOR = "qemu-aarch64"
SKIP = 77
RUNS = 8  # in which a lost memory order may be reported: whether one run meets the race is chance
# Unoptimised they would show something else, or take longer to run than to compile.
OPTIMISED = {"test_heap", "test_kernels", "test_litmus", "test_litmus_core", "test_page", "test_wait"}
STRONG = re.compile(r"\bdies_hook\b|litmus\.h")  # tests that have accesses in their own hands
SEEDED = re.compile(r"tsan must report: *(\w+(?: +\w+)*)")


class Failed(Exception):
    """A program did not build, or did not pass."""


def compiler() -> str:
    """$CC, else the first of cc, gcc, clang; a tool that cannot run must not pass."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name.split()[0]):
            return name
    raise Failed("no C compiler: set CC, or install gcc or clang")


def command(args: list[str], timeout: float, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit status and output.  A timeout kills the whole process group and is a failure."""
    process = subprocess.Popen(
        args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        env=env, start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        raise Failed(f"{output}\nno end after {timeout:.0f} s: killed") from None
    return process.returncode, output


def build(root: Path, source: Path, target: Path, cc: str, flags: list[str]) -> None:
    """One program, unless it is newer than all that it is made from."""
    include = root / "strata" / "_core" / "include"
    checked = include.parent / "checked"
    inputs = [source, Path(__file__), *include.glob("*.h"), *checked.glob("*.h"), *source.parent.glob("*.h")]
    if target.exists() and target.stat().st_mtime > max(p.stat().st_mtime for p in inputs):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    line = [*cc.split(), *CFLAGS, *flags, f"-I{include}", f"-I{checked}", f"-I{source.parent}", str(source),
            "-o", str(target), *LIBS]
    status, output = command(line, 300)
    if status:
        raise Failed(f"does not build: {' '.join(line)}\n{output}")


def check_symbols(program: Path) -> None:
    """A program over the core's headers must run without Python."""
    status, output = command(["nm", str(program)], 60)
    if status:
        raise Failed(f"nm failed: {output}")
    python = sorted(set(re.findall(r"\b_?Py[A-Z_]\w*", output)))
    if python:
        raise Failed(f"needs Python: {', '.join(python[:5])}")


def _compile(cc: str, include: Path, names: Iterable[str], *flags: str) -> None:
    """One C file that includes the headers and has one variable, ``alone_``."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "alone.c")
        source.write_text("".join(f'#include "{name}"\n' for name in names) + "int alone_;\n")
        status, output = command([*cc.split(), *CFLAGS, "-O0", f"-I{include}", *flags, str(source)], 120)
    if status:
        raise Failed(f"does not compile alone:\n{output}")


def _emitted(cc: str, include: Path, names: list[str]) -> None:
    """The headers, compiled with all their functions, need no Python and emit neither variables nor malloc."""
    with tempfile.TemporaryDirectory() as folder:
        target, depends = Path(folder, "alone.o"), Path(folder, "d")
        keep = [] if "clang" in cc else ["-fkeep-static-functions", "-fkeep-inline-functions"]
        _compile(cc, include, names, "-fno-pic", *keep, "-MD", "-MF", str(depends), "-c", "-o", str(target))
        if "Python.h" in depends.read_text():
            raise Failed("includes Python.h")
        _, symbols = command(["nm", str(target)], 60)
    kinds = [line.split()[-2:] for line in symbols.splitlines() if len(line.split()) >= 2]
    # "$d" and its like mark data in the code of ARM; they are no variables.
    variables = [n for k, n in kinds if k in "bBdDC" and n != "alone_" and not n.startswith("$")]
    memory = [n for k, n in kinds if k == "U" and n in ("malloc", "calloc", "realloc", "free")]
    if variables:
        raise Failed(f"holds variables: {', '.join(variables)}")
    if memory:
        raise Failed(f"takes memory: {', '.join(memory)}")


def check_headers(root: Path, cc: str) -> None:
    """Each header compiles alone, and none emits variables or calls that take memory.

    What they emit is looked at in one object file, which takes a tenth of the time of one for each;
    only if there is something wrong are they compiled one by one, to name the header.
    """
    include = root / "strata" / "_core" / "include"
    names = sorted(path.name for path in include.glob("*.h"))
    if not names:
        raise Failed(f"no header in {include}")

    def syntax(name: str) -> None:
        try:
            _compile(cc, include, [name, name], "-fsyntax-only")
        except Failed as failure:
            raise Failed(f"{name} {failure}") from None

    with ThreadPoolExecutor(jobs()) as pool:
        list(pool.map(syntax, names))
    try:
        _emitted(cc, include, names)
    except Failed:
        for name in names:
            try:
                _emitted(cc, include, [name])
            except Failed as failure:
                raise Failed(f"{name} {failure}") from None
        raise


def execute(program: Path, mode: str, timeout: float, **env: str) -> tuple[int, str]:
    """Exit status and output of a program under its mode's settings, and variables beyond."""
    line = [str(program)]
    if mode == "tsan" and shutil.which("setarch"):
        # TSan of older compilers cannot place its shadow when addresses are random.
        line = ["setarch", os.uname().machine, "-R", *line]
    if mode == "aarch64":
        line = [EMULATOR, "-L", "/usr/aarch64-linux-gnu", *line]
    return command(line, timeout, {**os.environ, **RUN_ENV, **env})


def run(program: Path, mode: str, timeout: float) -> str:
    """Runs one program; "ok" or "skip: why"."""
    status, output = execute(program, mode, timeout)
    if status == SKIP:
        return "skip: " + (output.strip().splitlines() or ["no reason given"])[-1]
    if status:
        raise Failed(f"exit status {status}\n{output}")
    return "ok"


def find(root: Path, word: str) -> list[Path]:
    return [p for p in sorted((root / "tests" / "c").glob("*.c")) if word in p.stem]


def made(root: Path, source: Path, mode: str) -> Path:
    """Builds one test in one mode; the program, which needs no Python."""
    cc, flags = (CROSS, ["-O2", "-DST_EMULATED"]) if mode == "aarch64" else (compiler(), MODES[mode])
    if mode == "quick" and source.stem in OPTIMISED:
        flags = MODES["plain"]
    if mode == "tsan" and "clang" not in cc:
        flags = [*flags, "-Wno-tsan"]  # fences are not modelled; what they order is atomic anyway
    target = root / ".ctest" / mode / source.stem
    build(root, source, target, cc, flags)
    check_symbols(target)
    return target


def one(program: Path, mode: str, timeout: float, emulate: bool = False) -> str:
    """Runs one test that has been built: "ok" or "skip: why"; raises Failed."""
    if mode == "aarch64" and not emulate:
        return "ok: compiled, not run"
    if mode == "aarch64" and not shutil.which(EMULATOR):
        return f"skip: compiled; {EMULATOR} is not installed, so it was NOT run"
    return run(program, mode, timeout)


def seeded(source: Path) -> list[str]:
    """The functions without whose memory orders ThreadSanitizer must report a race."""
    return [name for names in SEEDED.findall(source.read_text()) for name in names.split()]


def reported(root: Path, program: Path, function: str, timeout: float) -> str:
    """"ok" if a test is reported when a function of the core has lost its memory orders."""
    core = root / "strata" / "_core" / "include"
    if not any(re.search(rf"\b{function}\(", header.read_text()) for header in core.glob("*.h")):
        raise Failed(f"no header has a function {function}")
    for _ in range(RUNS):
        status, output = execute(program, "tsan", timeout, ST_TEST_BREAK=function)
        if status == 66 and "data race" in output:
            return "ok"
    raise Failed(f"exit status {status}: a lost memory order was not reported in {RUNS} runs\n{output}")


def jobs() -> int:
    return len(os.sched_getaffinity(0))


def attempts(args: argparse.Namespace, modes: list[str], pool: ThreadPoolExecutor) -> list[tuple[str, Callable]]:
    """What is to be done, by name, in order; the programs are being built meanwhile."""
    found: list[tuple[str, Callable]] = []

    def program(source: Path, mode: str, built: Future[Path]) -> None:
        name = f"{mode} {source.stem}"
        found.append((name, lambda: one(built.result(), mode, args.timeout, args.emulate)))
        for function in seeded(source) if mode == "tsan" else ():
            found.append((f"{name} reports {function} without order",
                          lambda f=function: reported(args.root, built.result(), f, args.timeout)))

    for cc in (compiler(), *([CROSS] if "aarch64" in modes and shutil.which(CROSS) else [])):
        found.append((f"headers, {cc}", lambda cc=cc: check_headers(args.root, cc)))
    for mode in modes:
        if mode == "aarch64" and not shutil.which(CROSS):
            text = f"skip: {CROSS} is not installed, so NOTHING was compiled for aarch64"
            found.append((mode, lambda text=text: text))
            continue
        for source in find(args.root, args.word):
            if mode == "weak" and STRONG.search(source.read_text()):
                continue
            program(source, mode, pool.submit(made, args.root, source, mode))
    return found


def _attempt(name: str, action) -> tuple[str, str]:
    begin = time.monotonic()
    try:
        result = action() or "ok"
    except Failed as failure:
        print(f"FAIL  {name}\n{failure}", file=sys.stderr, flush=True)
        return "fail", name
    print(f"{result.split(':')[0]:5} {name} {time.monotonic() - begin:.1f} s"
          + (f"  ({result})" if result != "ok" else ""), flush=True)
    return result.split(":")[0], name


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", default=["all"], nargs="+", choices=[*MODES, "aarch64", "all"])
    parser.add_argument("-k", dest="word", default="", help="only programs whose name contains this")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds a program may run")
    parser.add_argument("--emulate", action="store_true", help=f"run aarch64 programs in {EMULATOR}")
    parser.add_argument("--root", type=Path, default=ROOT)
    args = parser.parse_args(argv)
    modes = [m for m in [*MODES, "aarch64"] if m in args.mode or ("all" in args.mode and m not in ("quick", "weak"))]
    pool = ThreadPoolExecutor(jobs())
    try:
        results = [_attempt(name, action) for name, action in attempts(args, modes, pool)]
    except Failed as failure:
        print(f"ctest: FAILED, {failure}", file=sys.stderr)
        return 1
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C nothing else is built
    failed = [name for kind, name in results if kind == "fail"]
    skipped = [name for kind, name in results if kind == "skip"]
    if not find(args.root, args.word):
        failed.append("no program found to run")
    verdict = f"FAILED: {', '.join(failed)}" if failed else "no failure"
    print(f"ctest: {len(results)} run, {len(skipped)} skipped, {verdict}",
          file=sys.stderr if failed else sys.stdout)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
