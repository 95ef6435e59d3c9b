"""What is imported when: the front stays small, numpy comes after its threads are settled."""

import inspect
import subprocess
import sys

import strata
from strata.launch.command import PRELOAD


def modules_after(code):
    code += "\nimport sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_the_package_and_the_front_import_little():
    found = modules_after("import strata, strata.launch.main")
    assert not found & {"numpy", "strata.bootstrap", "strata.comm", "argparse", "subprocess", "dataclasses"}


def test_the_keeper_makes_the_job_before_numpy():
    found = modules_after("import strata.launch.command, strata.bootstrap, strata.launch.keeper")
    assert "numpy" not in found


def test_what_is_preloaded_is_what_public_names_need():
    found = modules_after(f"import importlib\nfor name in {PRELOAD!r}: importlib.import_module(name)")
    for name in strata.__all__:
        if name != "spawn":
            value = getattr(strata, name)
            home = value.__name__ if inspect.ismodule(value) else value.__module__
            assert home in found | {"builtins"}, name


def test_public_names():
    assert set(strata.__all__) <= set(dir(strata))
    for name in strata.__all__:
        assert getattr(strata, name) is getattr(strata, name)
    assert not hasattr(strata, "no_such_name")
    assert strata.errors.PeerDead is strata.PeerDead
