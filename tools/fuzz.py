"""Fuzzes what the core reads from shared memory, and the loaders of files (docs/security.md).

Each tests/fuzz/*.c is a target, LLVMFuzzerTestOneInput over the headers of the core.  Built with the compiler at hand,
ASan and UBSan, it makes its cases up by a seed (tests/fuzz/driver.h); with --libfuzzer it is built by clang, and
libFuzzer makes them up by what they cover.  First it runs what once failed, tests/fuzz/found/TARGET/*, and a small set
of cases that come far, tests/fuzz/seeds/TARGET, which libFuzzer starts from too; --pack makes that anew, of the corpus.

A case that fails is kept in --keep, and the command that runs it again is printed.

tests/fuzz/loaders.py fuzzes what reads files, in Python.

Usage: python tools/fuzz.py [-k WORD] [--seconds S] [--cases N] [--seed N] [--libfuzzer | --pack] [--keep DIR]
                            [--rounds N]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from common import ROOT
from ctest import MODES, Failed, build, command, compiler

FOLDER = ROOT / "tests" / "fuzz"
CLANG_UNKNOWN = ("-Wno-maybe-uninitialized",)
ENV = {
    "ASAN_OPTIONS": "abort_on_error=0:exitcode=66:symbolize=1:detect_leaks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=66",
}
LOADERS = "loaders"
PACK = 18_000  # bytes of a target's seeds, at most
SLACK = 120.0  # seconds that a target may take beyond what it was given: the machine may be busy


def targets(word: str) -> list[str]:
    return [name for name in [*sorted(p.stem for p in FOLDER.glob("*.c")), LOADERS] if word in name]


def made(name: str, libfuzzer: bool, quickly: bool = False) -> Path:
    """The program of a target; ``quickly`` compiled, for few cases.  Failed: it does not build."""
    flags = [*MODES["asan"], *(["-O0"] if quickly else []), f"-I{ROOT / 'tests' / 'c'}"]
    cc = compiler()
    if libfuzzer:
        cc = shutil.which("clang") or ""
        if not cc:
            raise Failed("--libfuzzer needs clang: apt install clang")
        flags = [f for f in flags if f not in CLANG_UNKNOWN]
        flags += ["-Wno-pass-failed", "-fsanitize=fuzzer", "-DFUZZ_LIBFUZZER"]
    target = ROOT / ".fuzz" / ("libfuzzer" if libfuzzer else "quick" if quickly else "plain") / name
    newest = max(p.stat().st_mtime for p in FOLDER.glob("*.h"))
    if target.exists() and target.stat().st_mtime < newest:
        target.unlink()
    build(ROOT, FOLDER / f"{name}.c", target, cc, flags)
    return target


def case_of(shown: Path) -> bytes:
    """What a driver that died had in hand."""
    data = shown.read_bytes()
    return data[8 : 8 + int.from_bytes(data[:8], "little")]


def replay(name: str, program: Path) -> int:
    """Runs what has once failed, and the seeds; how many cases."""
    found = sorted((FOLDER / "found" / name).glob("*"))
    pack = [f"-p{FOLDER / 'seeds' / name}"] * (FOLDER / "seeds" / name).exists()
    if not found and not pack:
        return 0
    status, output = command([str(program), *pack, *map(str, found)], SLACK, {**os.environ, **ENV})
    if status:
        raise Failed(f"{name}: what was kept fails: {' '.join([*pack, *map(str, found)])}\n{output}")
    return int(output.split()[0])


def seeds(name: str) -> list[bytes]:
    """The cases of a pack: the length of each in 2 bytes, then the case."""
    pack, found = FOLDER / "seeds" / name, []
    data = pack.read_bytes() if pack.exists() else b""
    while data:
        end = 2 + int.from_bytes(data[:2], "little")
        found.append(data[2:end])
        data = data[end:]
    return found


def pack(name: str, args: argparse.Namespace) -> str:
    """Writes the seeds: of the corpus, the smallest cases that cover what all of it does."""
    program = made(name, True)
    with tempfile.TemporaryDirectory() as folder:
        line = [str(program), "-set_cover_merge=1", "-max_len=1020", folder, str(args.keep / "corpus" / name)]
        status, output = command(line, args.seconds + SLACK, {**os.environ, **ENV})
        if status:
            raise Failed(f"{name}: exit status {status}\n{output[-6000:]}")
        cases = sorted((path.read_bytes() for path in Path(folder).iterdir()), key=len)
    data = b""
    for case in cases:  # the longest do not all find room
        data += len(case).to_bytes(2, "little") + case if len(data) + len(case) < PACK else b""
    (FOLDER / "seeds").mkdir(exist_ok=True)
    (FOLDER / "seeds" / name).write_bytes(data)
    return f"{len(seeds(name))} seeds of {len(cases)}, {len(data)} bytes"


def plain(name: str, args: argparse.Namespace) -> str:
    program = made(name, False)
    again = replay(name, program)
    shown = program.with_suffix(".case")
    line = [str(program), "-s", str(args.seed), "-t", str(args.seconds), "-n", str(args.cases), "-o", str(shown)]
    status, output = command(line, args.seconds + SLACK, {**os.environ, **ENV})
    if status:
        kept = args.keep / f"{name}-{time.time_ns()}"
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(case_of(shown))
        raise Failed(f"{name}: exit status {status}; again: {program} {kept}\n{output[-6000:]}")
    return f"{again} kept before, {output.strip().splitlines()[-1]}"


def libfuzzer(name: str, args: argparse.Namespace) -> str:
    program = made(name, True)
    corpus = args.keep / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for k, case in enumerate(seeds(name)):
        (corpus / f"seed-{k}").write_bytes(case)
    line = [str(program), f"-max_total_time={args.seconds}", f"-artifact_prefix={args.keep}/{name}-", "-timeout=10",
            "-max_len=1020", "-rss_limit_mb=2048", "-print_final_stats=1", "-use_value_profile=1", "-len_control=0",
            str(corpus)]  # fmt: skip
    status, output = command(line, args.seconds + SLACK, {**os.environ, **ENV})
    edges = re.findall(r"cov: (\d+)", output)
    cases = re.findall(r"stat::number_of_executed_units: *(\d+)", output)
    if status:
        raise Failed(f"{name}: exit status {status}\n{output[-6000:]}")
    kept = len(list(corpus.iterdir()))
    return f"{(cases or ['?'])[-1]} cases, {(edges or ['?'])[-1]} edges, {kept} kept"


def loaders(args: argparse.Namespace) -> str:
    line = [sys.executable, str(FOLDER / "loaders.py"), "--seed", str(args.seed), "--seconds", str(args.seconds),
            "--cases", str(args.cases), "--keep", str(args.keep)]  # fmt: skip
    status, output = command(line, args.seconds + SLACK)
    if status:
        raise Failed(f"loaders: exit status {status}\n{output[-6000:]}")
    return output.strip().splitlines()[-1]


def one(name: str, args: argparse.Namespace) -> bool:
    begin = time.monotonic()
    try:
        if name == LOADERS:
            text = loaders(args)
        elif args.pack:
            text = pack(name, args)
        else:
            text = libfuzzer(name, args) if args.libfuzzer else plain(name, args)
    except Failed as failure:
        print(f"FAIL  {failure}", file=sys.stderr, flush=True)
        return False
    print(f"ok    {name}, {time.monotonic() - begin:.1f} s: {text}", flush=True)
    return True


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-k", dest="word", default="", help="only targets whose name contains this")
    parser.add_argument("--seconds", type=int, default=3, help="for each target; 0: no such bound")
    parser.add_argument("--cases", type=int, default=0, help="of each target, at most; 0: no such bound")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--libfuzzer", action="store_true", help="cases by coverage; needs clang")
    parser.add_argument("--keep", type=Path, default=ROOT / ".fuzz" / "kept", help="where failing cases go")
    parser.add_argument("--rounds", type=int, default=1, help="goes through all targets so many times")
    parser.add_argument("--pack", action="store_true", help="write tests/fuzz/seeds, of what --libfuzzer has kept")
    args = parser.parse_args(argv)
    names = [name for name in targets(args.word) if not args.pack or name != LOADERS]
    if not names:
        print(f"fuzz: no target is called {args.word!r}", file=sys.stderr)
        return 2
    print(f"fuzz: seed {args.seed}", flush=True)
    failed = 0
    for k in range(args.rounds):
        for name in names:
            failed += not one(name, args)
        args.seed += 1 + k
    print(f"fuzz: {len(names)} targets, {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
