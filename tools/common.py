"""What the tools share: which files are ours, and how to read C without its comments."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("strata", "tests", "tools", "bench", "examples")


def sources(root: Path, *suffixes: str, folders: Iterable[str] = FOLDERS) -> Iterator[Path]:
    """Files of these suffixes that people write, in order; generated C is not among them."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            generated = path.suffix == ".c" and root / "strata" / "_core" in path.parents
            if path.suffix in suffixes and path.is_file() and not generated:
                yield path
    if ".py" in suffixes:
        yield from sorted(root.glob("*.py"))


_C_TOKEN = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' """, re.S | re.X
)


def blank_c(text: str) -> str:
    """C text with comments and literals blanked, every line and column in its place."""
    return _C_TOKEN.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def blank_pyx(text: str) -> str:
    """Cython text with comments and string literals blanked, lines and columns in place."""
    token = re.compile(
        r'''"""(?:\\.|[^\\])*?""" | \'\'\'(?:\\.|[^\\])*?\'\'\'
            | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | \#[^\n]*''',
        re.S | re.X,
    )
    return token.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def report(tool: str, problems: list[str], checked: int, what: str) -> int:
    """Prints the problems and a verdict; an empty check is a failure, since it proves nothing."""
    for problem in problems:
        print(problem, file=sys.stderr)
    if checked == 0:
        print(f"{tool}: FAILED, no {what} found to check", file=sys.stderr)
        return 1
    if problems:
        print(f"{tool}: FAILED, {len(problems)} problems in {checked} {what}", file=sys.stderr)
        return 1
    print(f"{tool}: {checked} {what}, no problem")
    return 0
