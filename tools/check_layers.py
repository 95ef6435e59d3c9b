"""Holds the order of the layers and the rules of the C core that a script can see.

* Imports go one way, down ``LAYERS``; units on one line may use each other, not in a circle.
* st_atomic.h alone spells memory orders.
* Each release in a header says in a comment which acquire it pairs with.
* Headers take no memory of their own accord and know nothing of Python.
* No typed memoryviews in the core.

Usage: python tools/check_layers.py [ROOT]
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from common import ROOT, blank_c, blank_pyx, line_of, report, sources

# Lowest first.  A unit is a module or a package directly under strata/.
LAYERS = (
    ("errors", "config", "dtypes"),
    ("_core",),
    ("bootstrap",),
    ("fabric",),
    ("registration", "vmm", "sdma"),
    ("plan",),
    ("machine",),
    ("exec",),
    ("failure", "staging", "selection"),
    ("growing", "operations"),
    ("clock", "comm", "explaining", "inspection", "workloads", "prediction"),
    ("streams", "moe"),
    ("capturing",),
    ("checking",),
    ("job",),
    ("profile",),
    ("tracing",),
    ("doctor", "launch", "testing", "tuning", "measuring", "cli"),
    ("__init__",),
)
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}

ATOMICS = re.compile(r"\b__(?:atomic|sync)_\w+|\bstdatomic\b|\b_Atomic\b|\b__ATOMIC_\w+")
RELEASE = re.compile(
    r"\bst_(?:store|add|sub|and|or|xor|cas|swap)_(?:release|acq_rel|seqcst)_\d+\s*\("
)
# dies.h takes orders away on purpose, so that ThreadSanitizer is seen to report it.
SPELL_ORDERS = ("st_atomic.h", "dies.h")
PAIR = re.compile(r"pairs?\s+with", re.I)
NEAR = 6  # lines above a release in which its comment may stand
FORBIDDEN_C = re.compile(r"\b(?:malloc|calloc|realloc|aligned_alloc|posix_memalign|free)\s*\(")
PYTHON_H = re.compile(r'#\s*include\s*[<"]Python\.h')
MEMORYVIEW = re.compile(r"\b\w+\s*\[\s*::?1?\s*(?:,\s*::?1?\s*)*\]\s*\w+")
PYX_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<base>[\w.]+)[ \t]+c?import[ \t]+(?P<names>\([^)]*\)|[^\n;]+)"
    r"|c?import[ \t]+(?P<plain>[^\n;]+))",
    re.M,
)
DYNAMIC = re.compile(r"""(?:import_module|__import__)\(\s*f?["'](strata[\w.]*)""")


def unit_of(path: Path, root: Path) -> str:
    return path.relative_to(root / "strata").parts[0].removesuffix(".py")


def _resolve(base: str, package: list[str]) -> str:
    """A possibly relative module name made absolute; package is where it is imported."""
    dots = len(base) - len(base.lstrip("."))
    if not dots:
        return base
    parts = package[: len(package) - dots + 1] + [base.lstrip(".")]
    return ".".join(part for part in parts if part)


def _from(base: str, names: list[str]) -> Iterator[str]:
    """Modules that ``from base import names`` may load."""
    if base == "strata":
        yield from (f"strata.{name}" for name in names)
    else:
        yield base


def imports_py(text: str, package: list[str]) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of each import, also those inside functions."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _resolve("." * node.level + (node.module or ""), package)
            yield from ((node.lineno, m) for m in _from(base, [a.name for a in node.names]))
    yield from ((line_of(text, m.start()), m[1]) for m in DYNAMIC.finditer(text))


def imports_pyx(text: str, package: list[str]) -> Iterator[tuple[int, str]]:
    for match in PYX_IMPORT.finditer(blank_pyx(text)):
        names = (match["names"] or match["plain"] or "").strip("() \t")
        split = [n.split()[0] for n in names.replace("\n", " ").split(",") if n.split()]
        line = line_of(text, match.start())
        modules = _from(_resolve(match["base"], package), split) if match["base"] else split
        yield from ((line, module) for module in modules)


def check_imports(root: Path) -> tuple[list[str], int]:
    problems, edges = [], set()
    files = list(sources(root, ".py", ".pyi", ".pyx", ".pxd", folders=["strata"]))
    files = [f for f in files if (root / "strata") in f.parents]
    for path in files:
        unit = unit_of(path, root)
        name = path.relative_to(root)
        if unit not in LEVEL:
            problems.append(f"{name}: '{unit}' has no place in LAYERS of tools/check_layers.py")
            continue
        package = list(name.parts[:-1])
        read = imports_py if path.suffix in (".py", ".pyi") else imports_pyx
        for line, module in read(path.read_text(), package):
            parts = module.split(".")
            if parts[0] != "strata":
                continue
            target = parts[1] if len(parts) > 1 else "__init__"
            if target not in LEVEL:
                # A name of the package itself, as in "from strata import empty".
                target = "__init__"
            if LEVEL[target] > LEVEL[unit]:
                problems.append(f"{name}:{line}: {unit} may not import {target}, which is above it")
            elif target != unit and LEVEL[target] == LEVEL[unit]:
                edges.add((unit, target, f"{name}:{line}"))
    pairs = {(a, b) for a, b, _ in edges}
    problems += [f"{where}: {a} and {b} import each other" for a, b, where in edges if (b, a) in pairs]
    return sorted(problems), len(files)


def check_atomics(root: Path) -> tuple[list[str], int]:
    problems, count = [], 0
    for path in sources(root, ".h", ".c", ".pyx", ".pxd"):
        count += 1
        text = path.read_text()
        code = blank_c(text) if path.suffix in (".h", ".c") else blank_pyx(text)
        if path.name not in SPELL_ORDERS:
            for match in ATOMICS.finditer(code):
                where = f"{path.relative_to(root)}:{line_of(code, match.start())}"
                problems.append(f"{where}: {match[0]} belongs in st_atomic.h, under a name")
    return problems, count


def check_headers(root: Path) -> tuple[list[str], int]:
    problems, count = [], 0
    for path in sources(root, ".h", folders=["strata"]):
        count += 1
        text = path.read_text()
        code, lines = blank_c(text), text.splitlines()
        name = path.relative_to(root)
        for match in FORBIDDEN_C.finditer(code):
            if path.parent.name != "checked":  # the hooks hold what is late
                problems.append(f"{name}:{line_of(code, match.start())}: {match[0]}...): headers take no memory")
        if PYTHON_H.search(text):
            problems.append(f"{name}: includes Python.h; headers know nothing of Python")
        if path.name in ("st_atomic.h", "st_checked.h"):
            continue
        for match in RELEASE.finditer(code):
            line = line_of(code, match.start())
            if not PAIR.search("\n".join(lines[max(0, line - 1 - NEAR) : line + 1])):
                problems.append(
                    f"{name}:{line}: {match[0]}...) has no \"pairs with\" comment on it or just above"
                )
    return problems, count


def check_memoryviews(root: Path) -> list[str]:
    problems = []
    for path in sources(root, ".pyx", ".pxd", folders=["strata"]):
        code = blank_pyx(path.read_text())
        for match in MEMORYVIEW.finditer(code):
            where = f"{path.relative_to(root)}:{line_of(code, match.start())}"
            problems.append(f"{where}: typed memoryview '{match[0]}'; take a pointer")
    return problems


def main(argv: list[str]) -> int:
    root = Path(argv[0]).resolve() if argv else ROOT
    problems, modules = check_imports(root)
    atomics, c_files = check_atomics(root)
    headers, header_count = check_headers(root)
    problems += atomics + headers + check_memoryviews(root)
    return report("layers", problems, min(modules, c_files, header_count) and modules + c_files, "files")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
