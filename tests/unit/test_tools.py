"""Each tool is shown a violation that it must see, and its like that it must let pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"

HEADER = """\
#ifndef ST_X_H
#define ST_X_H
#include "st_atomic.h"
static const int st_table[2] = {1, 2};
static inline void st_x(uint64_t *p)
{
    /* pairs with the acquire in st_y */
    st_store_release_64(p, st_table[1]);
}
#endif
"""
C_TEST = """\
#include "st_x.h"
int main(void) { uint64_t v = 0; st_x(&v); return v != 2; }
"""
PYX = """\
from strata.errors import StrataError
cdef extern from "st_x.h" nogil:
    void st_x(unsigned long *p)
cdef int f(int x) except -1 nogil:
    return x
cdef inline void g(int x) noexcept nogil:
    pass
cdef object h():
    return StrataError
def use():
    g(1)
    return f(1), h()
"""


@pytest.fixture
def tree(tmp_path):
    """A small source tree, in order in every respect."""
    files = {
        "setup.py": "DIRECTIVES = {'language_level': '3'}\n",
        "strata/__init__.py": "from strata.comm import Group\n",
        "strata/errors.py": "class StrataError(Exception):\n    pass\n",
        "strata/config.py": "from strata.errors import StrataError\n",
        "strata/comm.py": "from strata.plan import cost\nfrom . import errors\n",
        "strata/plan/__init__.py": "",
        "strata/plan/cost.py": "from strata import config, errors\nfrom ..errors import StrataError\n",
        "strata/launch/__init__.py": "import strata.comm\n",
        "strata/_core/__init__.py": "",
        "strata/_core/x.pyx": PYX,
        "strata/_core/include/st_atomic.h": (
            ROOT / "strata/_core/include/st_atomic.h"
        ).read_text(),
        "strata/_core/include/st_checked.h": (ROOT / "strata/_core/include/st_checked.h").read_text(),
        "strata/_core/include/st_x.h": HEADER,
        "tests/c/t.c": C_TEST,
    }
    for name, text in files.items():
        plant(tmp_path, name, text)
    return tmp_path


def plant(tree, name, text, append=False):
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((path.read_text() if append else "") + text)


def run(tool, *args, **env):
    result = subprocess.run(
        [sys.executable, TOOLS / f"{tool}.py", *map(str, args)],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
    )
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize("tool", ["check_layers", "sz", "hints"])
def test_sound_tree_passes(tree, tool):
    status, output = run(tool, tree)
    assert status == 0, output


@pytest.mark.parametrize("tool", ["check_layers", "sz", "hints"])
def test_nothing_to_check_is_a_failure(tmp_path, tool):
    status, output = run(tool, tmp_path)
    assert status == 1 and "FAILED, no" in output


LAYER_VIOLATIONS = {
    "absolute": ("strata/plan/cost.py", "import strata.comm\n", "plan may not import comm"),
    "from": ("strata/plan/cost.py", "from strata.comm import Group\n", "plan may not import comm"),
    "from package": ("strata/plan/cost.py", "from strata import comm\n", "plan may not import comm"),
    "relative": ("strata/plan/cost.py", "from .. import comm\n", "plan may not import comm"),
    "relative module": ("strata/plan/cost.py", "from ..comm import Group\n", "may not import comm"),
    "in a function": ("strata/errors.py", "def f():\n    import strata.comm\n", "may not import comm"),
    "by name": (
        "strata/errors.py",
        "import importlib\nm = importlib.import_module('strata.comm')\n",
        "errors may not import comm",
    ),
    "the package": ("strata/comm.py", "import strata\n", "comm may not import __init__"),
    "a public name": ("strata/comm.py", "from strata import empty\n", "may not import __init__"),
    "no place": ("strata/novel.py", "x = 1\n", "'novel' has no place"),
    "circle": ("strata/errors.py", "import strata.config\n", "import each other"),
    "pyx": ("strata/_core/x.pyx", "from strata.comm import Group\n", "_core may not import comm"),
    "pyx cimport": ("strata/_core/x.pxd", "cimport strata.comm\n", "_core may not import comm"),
    "pyx relative": ("strata/_core/x.pyx", "from ..plan import cost\n", "_core may not import plan"),
    "pyx lines": (
        "strata/_core/x.pyx",
        "from strata import (errors,\n    comm)\n",
        "_core may not import comm",
    ),
    "atomic in a header": (
        "strata/_core/include/st_x.h",
        "static inline void q(int *p) { __atomic_store_n(p, 1, 0); }\n",
        "__atomic_store_n belongs in st_atomic.h",
    ),
    "stdatomic in a test": ("tests/c/t.c", "#include <stdatomic.h>\n", "stdatomic belongs in"),
    "sync in pyx": (
        "strata/_core/x.pyx",
        'cdef extern from *:\n    void __sync_synchronize()\n',
        "__sync_synchronize belongs in",
    ),
    "unpaired": (
        "strata/_core/include/st_x.h",
        "\n\n\n\n\n\n\n\nstatic inline void q(uint64_t *p) { st_add_acq_rel_64(p, 1); }\n",
        'no "pairs with" comment',
    ),
    "malloc": (
        "strata/_core/include/st_x.h",
        "static inline void *q(void) { return malloc(3); }\n",
        "headers take no memory",
    ),
    "Python.h": ("strata/_core/include/st_x.h", "#include <Python.h>\n", "includes Python.h"),
    "memoryview": (
        "strata/_core/x.pyx",
        "def q(double[:, ::1] a):\n    return a\n",
        "typed memoryview 'double[:, ::1] a'",
    ),
}


@pytest.mark.parametrize("case", LAYER_VIOLATIONS)
def test_layers_sees(tree, case):
    name, text, message = LAYER_VIOLATIONS[case]
    plant(tree, name, text, append=(tree / name).exists())
    status, output = run("check_layers", tree)
    assert status == 1 and message in output and name in output, output


def test_layers_ignores_comments_and_text(tree):
    plant(
        tree,
        "strata/_core/include/st_x.h",
        '/* not __atomic_load_n, not malloc(1) */\nstatic const char s[] = "__sync_x malloc(";\n',
        append=True,
    )
    plant(tree, "strata/_core/x.pyx", "# import strata.comm\ns = 'stdatomic'\nt = s[1:]\n", append=True)
    status, output = run("check_layers", tree)
    assert status == 0, output


def body(lines, indent="    "):
    return "".join(f"{indent}x{i} = {i}\n" for i in range(lines))


SIZE_VIOLATIONS = {
    "file": ("strata/big.py", body(401, ""), "401 lines, budget 400"),
    "pyx": ("strata/_core/big.pyx", body(401, ""), "401 lines, budget 400"),
    "header": ("strata/_core/include/big.h", "\n" * 301, "301 lines, budget 300"),
    "function": ("strata/f.py", "def f():\n" + body(70), "f has 71 lines, budget 70"),
    "method": (
        "tests/f.py",
        "class A:\n    async def f(self):\n" + body(70, " " * 8),
        "f has 71 lines",
    ),
    "pyx function": (
        "strata/_core/f.pyx",
        "cdef int f(int a,\n           int b) except -1 nogil:\n" + body(69),
        "f has 71 lines",
    ),
    "c function": (
        "strata/_core/include/f.h",
        "struct a { int b; };\nstatic inline int\nf(int a)\n{\n" + "    a++;\n" * 65 + "  if (a) {}\n}\n",
        "f has 70 lines",
    ),
    "macro function": (
        "tests/c/f.c",
        "#define F(n) \\\n" + "static int n(void) \\\n{ \\\n" + "    g(); \\\n" * 69 + "}\n",
        "n has 72 lines",
    ),
}


@pytest.mark.parametrize("case", SIZE_VIOLATIONS)
def test_sizes_sees(tree, case):
    name, text, message = SIZE_VIOLATIONS[case]
    if case == "c function":  # one line more is one too many
        plant(tree, name, text)
        assert run("sz", tree)[0] == 0
        text, message = text.replace("    a++;\n", "    a++;\n    a++;\n", 1), "f has 71 lines"
    plant(tree, name, text)
    status, output = run("sz", tree)
    assert status == 1 and message in output and name in output, output


def test_sizes_at_budget_pass(tree):
    plant(tree, "strata/f.py", "def f():\n" + body(69) + body(330, ""))
    plant(tree, "strata/_core/f.pyx", "def f():\n" + body(69) + "\n\n" + body(100, ""))
    status, output = run("sz", tree)
    assert status == 0, output


HINT_VIOLATIONS = {
    "silent": ("cdef int q(int x) nogil:\n    return x\n", "q says neither"),
    "method": ("cdef class A:\n    cdef double m(self):\n        return 1\n", "m says neither"),
    "pointer": ("cdef void *q(int x):\n    return NULL\n", "q says neither"),
    "gil": (
        "cdef void q(int x) except * nogil:\n    pass\ncdef void r() noexcept nogil:\n    q(1)\n",
        "performance hint",
    ),
    "broken": ("cdef int q(\n", "does not translate"),
}


@pytest.mark.parametrize("case", HINT_VIOLATIONS)
def test_hints_sees(tree, case):
    pytest.importorskip("Cython")
    text, message = HINT_VIOLATIONS[case]
    plant(tree, "strata/_core/x.pyx", text, append=True)
    status, output = run("hints", tree)
    assert status == 1 and message in output, output


def ctest(tree, *args, **env):
    return run("ctest", "--root", tree, "--mode", "plain", *args, **env)


def test_ctest_passes_a_sound_tree(tree):
    status, output = ctest(tree)
    assert status == 0 and "ok    plain t" in output and "no failure" in output, output


def test_ctest_reports_a_skip(tree):
    plant(tree, "tests/c/t.c", '#include <stdio.h>\nint main(void) { puts("no luck"); return 77; }\n')
    status, output = ctest(tree)
    assert status == 0 and "skip  plain t" in output and "no luck" in output


CTEST_VIOLATIONS = {
    "failure": ("tests/c/t.c", "int main(void) { return 1; }\n", [], "exit status 1"),
    "signal": ("tests/c/t.c", "int main(void) { __builtin_trap(); }\n", [], "exit status -"),
    "hang": ("tests/c/t.c", "int main(void) { for (;;) ; }\n", ["--timeout", "1"], "no end after 1 s"),
    "syntax": ("tests/c/t.c", "int main(void) { return 1 }\n", [], "does not build"),
    "warning": ("tests/c/t.c", "int main(void) { int x; return 0; }\n", [], "does not build"),
    "python": (
        "tests/c/t.c",
        "int Py_Initialize(void) { return 0; }\nint main(void) { return Py_Initialize(); }\n",
        [],
        "needs Python: Py_Initialize",
    ),
    "no program": ("tests/c/other.h", "", ["-k", "absent"], "no program found"),
    "variable": (
        "strata/_core/include/st_x.h",
        "static inline int q(void) { static int count; return ++count; }\n",
        [],
        "holds variables: count",
    ),
    "memory": (
        "strata/_core/include/st_x.h",
        "#include <stdlib.h>\nstatic inline void *q(int n) { return (malloc)(n); }\n",
        [],
        "takes memory: malloc",
    ),
    "not alone": (
        "strata/_core/include/st_z.h",
        "static inline size_t q(void) { return 0; }\n",
        [],
        "does not compile alone",
    ),
}


@pytest.mark.parametrize("case", CTEST_VIOLATIONS)
def test_ctest_sees(tree, case):
    name, text, args, message = CTEST_VIOLATIONS[case]
    if name.endswith("st_x.h"):
        text = HEADER.replace("#endif\n", text + "#endif\n")
    plant(tree, name, text)
    status, output = ctest(tree, *args)
    assert status == 1 and message in output and "FAILED" in output, output


def test_ctest_without_a_compiler_fails(tree):
    status, output = ctest(tree, PATH="/nonexistent", CC="")
    assert status == 1 and "no C compiler" in output


SANITIZER_VIOLATIONS = {
    "tsan": (
        "#include <pthread.h>\nstatic int x;\nstatic void *f(void *a) { x++; return a; }\n"
        "int main(void) { pthread_t t; pthread_create(&t, 0, f, 0); x++; pthread_join(t, 0); return 0; }\n",
        "data race",
    ),
    "asan": (
        "#include <stdlib.h>\nint main(void) { char *volatile p = calloc(4, 1); free(p); return p[0]; }\n",
        "heap-use-after-free",
    ),
}


@pytest.mark.parametrize("mode", SANITIZER_VIOLATIONS)
def test_ctest_sanitizers_are_on(tree, mode):
    text, message = SANITIZER_VIOLATIONS[mode]
    plant(tree, "tests/c/t.c", text)
    status, output = run("ctest", "--root", tree, "--mode", mode)
    assert status == 1 and message in output, output


RACE = """\
/* tsan must report: {name} */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
static uint64_t x;
static void *f(void *a) {{ x = 1; return a; }}
int main(void)
{{
    pthread_t t;
    pthread_create(&t, 0, f, 0);
{broken}    pthread_join(t, 0);
    return (int)x - 1;
}}
"""


@pytest.mark.parametrize(
    "name, broken, message",
    [
        ("st_x", "    if (getenv(\"ST_TEST_BREAK\"))\n        x = 1;\n", None),
        ("st_x", "", "a lost memory order was not reported"),
        ("st_gone", "", "no header has a function st_gone"),
    ],
    ids=["reported", "silent", "unknown"],
)
def test_ctest_wants_lost_orders_reported(tree, name, broken, message):
    plant(tree, "tests/c/t.c", RACE.format(name=name, broken=broken))
    status, output = run("ctest", "--root", tree, "--mode", "tsan")
    assert (status == 1 and message in output) if message else status == 0, output
