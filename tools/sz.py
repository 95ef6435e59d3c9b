"""Lines per folder, and the budgets: a file or function near its budget has two jobs.

Usage: python tools/sz.py [--quiet] [ROOT]
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from common import ROOT, blank_c, blank_pyx, report, sources

FILE_BUDGET = {".py": 400, ".pyx": 400, ".pxd": 400, ".pyi": 400, ".h": 300, ".c": 800}
FUNCTION_BUDGET = 70

PYX_FUNCTION = re.compile(
    r"^(?P<indent>[ \t]*)(?:(?:async )?def|c(?:p)?def(?! (?:class|extern|enum|struct|union|packed)\b))"
    r"\b[^\n=]*?\b(?P<name>\w+)[ \t]*\(",
    re.M,
)


def functions_py(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, first line, lines) of each function, from its def to its end."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def functions_pyx(text: str) -> Iterator[tuple[str, int, int]]:
    """The same, by indentation.  A cdef without a body, as in a .pxd, counts as one line."""
    code = blank_pyx(text)
    lines, kept = code.splitlines(), text.splitlines()
    for match in PYX_FUNCTION.finditer(code):
        first = code.count("\n", 0, match.start())
        indent = len(match["indent"])
        depth, row = 0, first
        while row < len(lines):  # the signature, which may go on over lines
            depth += sum(lines[row].count(c) for c in "([{") - sum(lines[row].count(c) for c in ")]}")
            row += 1
            if depth <= 0:
                break
        last = row - 1
        while row < len(lines):
            body = lines[row]
            if body.strip() and len(body) - len(body.lstrip()) <= indent:
                break
            if kept[row].strip():
                last = row
            row += 1
        yield match["name"], first + 1, last - first + 1


def functions_c(text: str) -> Iterator[tuple[str, int, int]]:
    """The same for C: a brace block at file level that follows a parenthesis, macros included."""
    code = re.sub(r"\\(?=\n)", " ", blank_c(text))
    code = re.sub(r"^[ \t]*#[ \t]*(?:if|else|elif|endif|include|undef|error|pragma)[^\n]*",
                  lambda m: " " * len(m[0]), code, flags=re.M)
    code = re.sub(r"^[ \t]*#[ \t]*define[ \t]+\w+(?:\([^)]*\))?", lambda m: re.sub(r"[^\n]", " ", m[0]),
                  code, flags=re.M)
    depth, start, name = 0, 0, ""
    head = 0  # where the current declaration begins
    for match in re.finditer(r"[{};]", code):
        position = match.start()
        if match[0] == "{":
            if depth == 0:
                declaration = code[head:position]
                found = re.search(r"(\w+)\s*\([^{}]*\)[^(){};=]*$", declaration)
                name = found[1] if found and "=" not in declaration.split("(")[0] else ""
                text_start = head + len(declaration) - len(declaration.lstrip())
                start = code.count("\n", 0, text_start) + 1
            depth += 1
        elif match[0] == "}":
            depth = max(0, depth - 1)
            if depth == 0:
                if name:
                    yield name, start, code.count("\n", 0, position) + 2 - start
                head, name = position + 1, ""
        elif depth == 0:
            head = position + 1


READERS = {".py": functions_py, ".pyi": functions_py, ".pyx": functions_pyx, ".pxd": functions_pyx,
           ".h": functions_c, ".c": functions_c}


def check(root: Path) -> tuple[list[str], dict[Path, list[int]]]:
    problems: list[str] = []
    folders: dict[Path, list[int]] = defaultdict(lambda: [0, 0, 0])
    for path in sources(root, *FILE_BUDGET):
        text, name = path.read_text(), path.relative_to(root)
        count, budget = len(text.splitlines()), FILE_BUDGET[path.suffix]
        if count > budget:
            problems.append(f"{name}: {count} lines, budget {budget}")
        row = folders[name.parent]
        row[0] += 1
        row[1] += count
        for function, line, length in READERS[path.suffix](text):
            row[2] = max(row[2], length)
            if length > FUNCTION_BUDGET:
                problems.append(f"{name}:{line}: {function} has {length} lines, budget {FUNCTION_BUDGET}")
    return problems, folders


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=ROOT)
    parser.add_argument("--quiet", action="store_true", help="only problems and the verdict")
    args = parser.parse_args(argv)
    problems, folders = check(args.root.resolve())
    if not args.quiet:
        print(f"{'files':>6} {'lines':>7} {'longest function':>17}  folder")
        for folder, (files, lines, longest) in sorted(folders.items()):
            print(f"{files:6} {lines:7} {longest:17}  {folder}")
        total = [sum(row[i] for row in folders.values()) for i in (0, 1)]
        print(f"{total[0]:6} {total[1]:7} {'':17}  all")
    return report("sizes", problems, sum(row[0] for row in folders.values()), "files")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
