"""docs/known-failures.md: no row is missing, every report is named, and every test that it names exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "known-failures.md"
ROWS = 198
NAMED = re.compile(r"`((?:unit|mp|model|sim|c)/[\w/]+\.(?:py|c))::(\w+)`")
REPORT = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+#\d+")


def rows():
    """(number, report, what happens here, test or reason) of each row."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if re.match(r"\| \d+ \|", line):
            cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
            assert len(cells) == 4, line
            found.append((int(cells[0]), *cells[1:]))
    return found


def functions(path):
    """Names that a file of tests defines at its top."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".c":
        return set(re.findall(r"^(?:static )?(?:void|int) (\w+)\(", text, re.M))
    return {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def test_every_row_is_there_once():
    assert [number for number, *_ in rows()] == list(range(1, ROWS + 1))


def test_every_row_names_a_report_and_says_what_happens():
    for number, report, here, shown in rows():
        assert REPORT.fullmatch(report), f"row {number}: {report!r} is no owner/repository#number"
        assert here and shown, f"row {number} is empty"


def test_every_test_exists():
    known = {}
    for number, _, _, shown in rows():
        named = NAMED.findall(shown)
        rest = NAMED.sub("", shown).strip(" ,")
        assert named or len(rest) > 20, f"row {number} has neither a test nor a reason"
        assert "::" not in rest, f"row {number}: {rest!r} is not spelled as a test"
        for file, name in named:
            path = ROOT / "tests" / file
            assert path.exists(), f"row {number}: there is no {file}"
            if path not in known:
                known[path] = functions(path)
            assert name in known[path], f"row {number}: {file} has no {name}"


def test_no_tracker_of_python_is_used():
    """multiprocessing's shared memory is followed by a process that unlinks what others use."""
    for path in (ROOT / "strata").rglob("*.py*"):
        if path.suffix in (".py", ".pyx"):
            tree = [line for line in path.read_text(encoding="utf-8").splitlines() if "import" in line]
            assert not any("shared_memory" in line or "resource_tracker" in line for line in tree), path
