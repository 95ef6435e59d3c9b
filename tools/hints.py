"""What makes Cython slow without a word: hints it would print, and exceptions it would check for.

* Translates every .pyx with all performance hints on; a hint is a failure.
* Each C function of the core says what it does about exceptions: ``noexcept``,
  ``except -1`` or another value, or ``except *`` for one that returns an object's worth.
  Saying nothing costs a check of the error indicator at every call.

Usage: python tools/hints.py [ROOT]
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from common import ROOT, blank_pyx, line_of, report, sources

DECLARATION = re.compile(
    r"^[ \t]*c(?:p)?def[ \t]+(?P<head>[^\n(=:]*?)\b(?P<name>\w+)[ \t]*"
    r"\((?P<args>(?:[^()]|\([^()]*\))*)\)(?P<tail>[^\n:]*)(?P<end>:?)",
    re.M,
)
NOT_FUNCTION = re.compile(r"\b(?:class|extern|enum|struct|union|packed)\b")
EXPLICIT = re.compile(r"\bnoexcept\b|\bexcept\b")
OBJECT_RESULT = {"object", "list", "dict", "tuple", "str", "bytes", "set", "type", "bytearray"}
MODIFIERS = {"inline", "public", "api", "readonly"}
HINT = re.compile(r"(?:performance hint|warning): (?P<text>.*)")


def _extern_lines(code: str) -> set[int]:
    """Lines inside ``cdef extern`` blocks, where the block speaks for its functions."""
    inside: set[int] = set()
    indent = None
    for number, line in enumerate(code.splitlines(), 1):
        if not line.strip():
            continue
        width = len(line) - len(line.lstrip())
        if indent is not None and width <= indent:
            indent = None
        if indent is not None:
            inside.add(number)
        if re.match(r"\s*cdef\s+extern\b", line):
            indent = width
    return inside


def check_signatures(path: Path, root: Path) -> list[str]:
    problems = []
    code = blank_pyx(path.read_text())
    extern = _extern_lines(code)
    classes = set(re.findall(r"cdef\s+class\s+(\w+)", code))
    for match in DECLARATION.finditer(code):
        line = line_of(code, match.start("name"))
        words = [w for w in match["head"].replace("*", " * ").split() if w not in MODIFIERS]
        if line in extern or NOT_FUNCTION.search(match["head"]):
            continue
        result = words[-1] if words else "object"
        if result in OBJECT_RESULT or result in classes:
            continue
        if not EXPLICIT.search(match["tail"]):
            problems.append(
                f"{path.relative_to(root)}:{line}: {match['name']} says neither noexcept nor except"
            )
    return problems


def hints(path: Path, root: Path) -> list[str]:
    """The performance hints of one module, as Cython prints them."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "cython", str(path), "-o", str(Path(folder, path.stem + ".c"))]
        for name, value in {**directives(root), "show_performance_hints": True}.items():
            line += ["-X", f"{name}={value}"]
        result = subprocess.run(line, cwd=root, capture_output=True, text=True)
    found = [m[0] for m in HINT.finditer(result.stdout + result.stderr)]
    if result.returncode and not found:
        found = [f"does not translate:\n{result.stdout}{result.stderr}"]
    return [f"{path.relative_to(root)}: {line}" for line in found]


def directives(root: Path) -> dict[str, object]:
    """The directives of setup.py, read from it so that there is one list."""
    for node in ast.parse((root / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "DIRECTIVES":
            return ast.literal_eval(node.value)
    raise SystemExit("hints: FAILED, setup.py has no DIRECTIVES")


def main(argv: list[str]) -> int:
    root = Path(argv[0]).resolve() if argv else ROOT
    problems, count = [], 0
    for path in sources(root, ".pyx", ".pxd", folders=["strata"]):
        count += 1
        problems += check_signatures(path, root)
        if path.suffix == ".pyx":
            problems += hints(path, root)
    return report("hints", problems, count, "Cython files")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
