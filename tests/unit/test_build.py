"""What is packed, how it is compiled, and what the two commands say when they cannot work."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    not (ROOT / "Makefile").exists(), reason="these look at the source tree"
)


def make(*args, **env):
    result = subprocess.run(
        ["make", "--no-print-directory", *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "MAKEFLAGS": "", **env},
    )
    return result.returncode, result.stdout + result.stderr


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    line = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", folder, "sdist", "-d", folder]
    subprocess.run(list(map(str, line)), cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


@pytest.mark.parametrize(
    "pattern",
    ["strata/**/*.py", "strata/**/*.pyi", "strata/**/*.toml", "strata/_core/*.pyx",
     "strata/_core/*.pxd", "strata/_core/include/*.h", "tests/**/*.py", "tests/c/*.c",
     "tools/*.py", "bench/*.py", "examples/*.py"],
)  # fmt: skip
def test_sdist_holds_every_source(sdist, pattern):
    files = {p.relative_to(ROOT).as_posix() for p in ROOT.glob(pattern)}
    assert files <= sdist, sorted(files - sdist)


def test_sdist_holds_what_a_build_reads_and_nothing_made(sdist):
    assert {"setup.py", "pyproject.toml", "LICENSE", "README.md", "Makefile"} <= sdist
    made = [n for n in sdist if n.endswith((".so", ".pyc", ".o")) or n.startswith((".venv", "build/"))]
    made += [n for n in sdist if n.startswith("strata/_core/") and n.endswith(".c")]
    assert not made


def test_git_ignores_what_the_build_makes():
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    made = ["build/x", "dist/x", ".venv/x", "strata/_core/x.c", "strata/_core/x.so", ".ctest/x",
            "strata.egg-info/x"]  # fmt: skip
    done = subprocess.run(["git", "check-ignore", *made], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == made


def old_python(folder, version):
    """Something that answers like an interpreter of another version."""
    path = folder / "python"
    path.write_text(
        "#!/bin/sh\nshift\n"
        f"exec {sys.executable} -c \"import sys; sys.version_info = {version + (0,)!r}\n$1\"\n"
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("version", [(3, 9), (2, 7), (3, 15)])
def test_make_names_a_python_that_is_out_of_range(tmp_path, version):
    python = old_python(tmp_path, version)
    status, output = make("build", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}")
    assert status and f"is Python {version[0]}.{version[1]}, and strata needs 3.10 to 3.14" in output
    assert not (tmp_path / "venv").exists()


def test_make_without_python(tmp_path):
    status, output = make("build", "PYTHON=python-absent", f"VENV={tmp_path / 'venv'}")
    assert status and "no python-absent here" in output


def test_make_without_a_compiler(tmp_path):
    status, output = make("build", f"PYTHON={sys.executable}", f"VENV={tmp_path / 'venv'}", CC="cc-absent")
    assert status and "no C compiler (cc-absent)" in output
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize("how", ["default", "same", "other"])
def test_make_keeps_a_venv_unless_another_python_is_asked_for(tmp_path, how):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "made-with").write_text("python-before\n")
    args = {"default": [], "same": ["PYTHON=python-before"], "other": ["PYTHON=python-after"]}[how]
    line = ["make", "-n", "build", f"VENV={tmp_path}", *args]
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "PYTHON")}
    (tmp_path / "built").touch()
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert ("-m venv --clear" in done.stdout) == (how == "other")


@pytest.mark.parametrize(
    ("name", "value"), [("STRATA_SANITIZE", "memory"), ("STRATA_DEBUG", "yes")]
)
def test_build_variables_are_checked(name, value, tmp_path):
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(tmp_path),
         "--build-temp", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, name: value},
    )  # fmt: skip
    assert done.returncode and f"{name}={value!r}: allowed are" in done.stderr


def test_the_core_is_one_shared_object_per_module():
    """Compiled modules need nothing but libc, so that a wheel works elsewhere."""
    modules = sorted((ROOT / "strata" / "_core").glob("*.so"))
    sources = {p.stem for p in (ROOT / "strata" / "_core").glob("*.pyx")}
    tag = f"cpython-{sys.version_info[0]}{sys.version_info[1]}"
    ours = [m for m in modules if tag in m.name]
    assert {m.name.split(".")[0] for m in ours} >= sources
    for module in ours:
        out = subprocess.run(["readelf", "-d", module], capture_output=True, text=True, check=True).stdout
        needed = [line.split("[")[1].rstrip("]") for line in out.splitlines() if "NEEDED" in line]
        base = [n for n in needed if n.startswith(("libc.so", "libm.so", "libpthread", "librt", "ld-linux"))]
        assert needed == base, f"{module.name} needs {needed}"


def test_the_core_exports_only_its_init_function():
    for module in sorted((ROOT / "strata" / "_core").glob("*.so")):
        out = subprocess.run(
            ["nm", "-D", "--defined-only", module], capture_output=True, text=True, check=True
        ).stdout
        names = {line.split()[-1] for line in out.splitlines()}
        assert names == {f"PyInit_{module.name.split('.')[0]}"}, module.name
