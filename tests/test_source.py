"""The source tree keeps its own rules: layers, sizes, docstrings, a light import."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "strata" / "_core"


@pytest.mark.parametrize("tool", ["check_layers", "sz"])
def test_tool_finds_nothing(tool):
    result = subprocess.run(
        [sys.executable, ROOT / "tools" / f"{tool}.py"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_no_machine_flags_and_no_contraction():
    for path in (ROOT / "setup.py", ROOT / "Makefile"):
        assert not re.search(r"-m(arch|tune|cpu)=|-ffast-math", path.read_text()), path
    assert "-ffp-contract=off" in (ROOT / "setup.py").read_text()


def test_importing_strata_is_light():
    """Nothing heavy, and nothing that only one command needs."""
    program = (
        "import sys, numpy; before = set(sys.modules); import strata; "
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    heavy = {"ml_dtypes", "psutil", "hypothesis", "pytest", "asyncio", "multiprocessing", "scipy"}
    assert not heavy & set(out), out


def test_public_functions_have_docstrings():
    missing = []
    for path in sorted((ROOT / "strata").rglob("*.py")):
        tree = ast.parse(path.read_text())
        if not ast.get_docstring(tree) and tree.body:
            missing.append(str(path.relative_to(ROOT)))
        for node in tree.body:
            public = isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name[0] != "_"
            if public and not ast.get_docstring(node):
                missing.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not missing


def test_no_two_test_modules_share_a_name():
    """pytest imports them by their bare names, and stops at a second one."""
    names = [p.name for p in (ROOT / "tests").rglob("test_*.py")]
    assert not {name for name in names if names.count(name) > 1}
