"""Proves the packages: sdist -> wheel -> a fresh venv on a machine without a compiler.

The sdist is made from this tree, the wheel from the sdist alone and in an isolated
build, and the wheel is installed and used where no compiler can be found.

Usage: python tools/check_wheel.py [--python INTERPRETER]
"""

from __future__ import annotations

import argparse
import configparser
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from common import ROOT

# Both must work in the fresh venv; JOB moves bytes between dies.
SMOKE = """\
import importlib, pathlib, pkgutil, strata
names = [m.name for m in pkgutil.walk_packages(strata.__path__, "strata.")]
for name in names:
    hooked = name.startswith("strata._core.checked.") and not name.endswith(".hooks")  # take others' names
    if not name.endswith("__main__") and not hooked:
        importlib.import_module(name)
built = [n for n in names if n.startswith("strata._core.")]
assert built, "the wheel holds no module of the core"
assert "site-packages" in strata.__file__, strata.__file__
print(f"imported {len(names)} modules, {len(built)} of the core, from {pathlib.Path(strata.__file__).parent}")
"""
JOB = """\
import numpy as np, strata
strata.init()
g = strata.world()
x = strata.full((1 << 16,), g.rank + 1, "f4")
g.all_reduce(x)
assert (x == g.size * (g.size + 1) / 2).all(), x
"""


def say(text: str) -> None:
    print(f"check_wheel: {text}", flush=True)


def call(line: list[str | Path], **options) -> None:
    result = subprocess.run([str(part) for part in line], timeout=900, **options)
    if result.returncode:
        sys.exit(f"check_wheel: FAILED, status {result.returncode}: {' '.join(map(str, line))}")


def without_compiler(venv: Path, folder: Path) -> dict[str, str]:
    """An environment that finds the venv and nothing that compiles."""
    fail = folder / "no-compiler"
    fail.write_text("#!/bin/sh\necho 'there is no compiler here' >&2\nexit 127\n")
    fail.chmod(0o755)
    keep = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "LANG", "LC_", "HOME", "TMPDIR"))}
    return {**keep, "PATH": str(venv / "bin"), "CC": str(fail), "CXX": str(fail), "LDSHARED": str(fail)}


def check_contents(wheel: Path) -> None:
    """A wheel holds what runs and not what was compiled."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    sources = [n for n in names if n.endswith((".pyx", ".c", ".h"))]
    outside = [n for n in names if not n.startswith("strata")]
    modules = {Path(n).name.split(".")[0] for n in names if n.endswith(".so")}
    expected = {p.stem for p in (ROOT / "strata" / "_core").rglob("*.pyx")}
    python = {p.relative_to(ROOT).as_posix() for p in (ROOT / "strata").rglob("*.py")}
    stubs = {p.relative_to(ROOT).as_posix() for p in (ROOT / "strata").rglob("*.pyi")}
    data = {p.relative_to(ROOT).as_posix() for p in (ROOT / "strata").rglob("*.toml")}
    missing = (python | stubs | data) - set(names)
    for problem, what in (
        (sources, "sources of the core"),
        (outside, "files outside strata"),
        (modules ^ expected, "modules that differ from those of strata/_core"),
        (missing, "files that are not in it"),
    ):
        if problem:
            sys.exit(f"check_wheel: FAILED, {what}: {', '.join(sorted(problem))}")
    say(f"{wheel.name}: {len(names)} files, {len(modules)} compiled")


def scripts(wheel: Path) -> list[str]:
    """The commands that the wheel installs."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
        parser = configparser.ConfigParser()
        parser.read_string(archive.read(name).decode())
    return list(parser["console_scripts"])


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter of the fresh venv")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="check-wheel-") as name:
        folder = Path(name)
        say("sdist from this tree")
        call([sys.executable, "setup.py", "-q", "sdist", "-d", folder], cwd=ROOT)
        (sdist,) = folder.glob("*.tar.gz")
        builder = folder / "builder"
        call([args.python, "-m", "venv", builder])
        say("wheel from the sdist, in an isolated build")
        pip = ["-m", "pip", "--disable-pip-version-check"]
        # Unoptimised: what is looked at is what the wheel holds, and compiling is most of the time.
        call([builder / "bin/python", *pip, "wheel", "-q", "--no-deps", "-w", folder, sdist], cwd=folder,
             env={**os.environ, "STRATA_DEBUG": "1"})  # fmt: skip
        (wheel,) = folder.glob("strata-*.whl")
        check_contents(wheel)
        venv = folder / "venv"
        call([args.python, "-m", "venv", venv])
        env = without_compiler(venv, folder)
        say("install and run without a compiler")
        call([venv / "bin/python", *pip, "install", "-q", wheel], cwd=folder, env=env)
        call([venv / "bin/python", "-c", SMOKE], cwd=folder, env=env)
        job = folder / "job.py"
        job.write_text(JOB)
        call([venv / "bin/strata-run", "-n", "2", job], cwd=folder, env=env)
        call([venv / "bin/strata-run", "-n", "2", job], cwd=folder, env={**env, "STRATA_CORE": "checked"})
        for script in scripts(wheel):
            call([venv / "bin" / script, "--help"], cwd=folder, env=env, stdout=subprocess.DEVNULL)
    say("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
