"""The stubs of the core say what the compiled modules hold: names, members, parameters."""

import ast
import importlib
import inspect
import types
from pathlib import Path

import pytest

import strata

CORE = Path(strata.__file__).parent / "_core"
STUBS = sorted(CORE.glob("*.pyi"))


def members(body):
    """Public name -> definition, of a module or a class in a stub."""
    found = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            found[node.target.id] = node
    return {name: node for name, node in found.items() if not name.startswith("_")}


def parameters(node, method):
    """Names of the parameters in a stub, without self."""
    args = [a.arg for a in [*node.args.posonlyargs, *node.args.args]]
    static = any(getattr(d, "id", "") == "staticmethod" for d in node.decorator_list)
    args = args[1:] if method and not static else args
    args += [a.arg for a in node.args.kwonlyargs]
    return args + [a.arg for a in (node.args.vararg, node.args.kwarg) if a]


def runtime(module):
    """Public name -> object that the module defines itself."""
    found = {}
    for name, value in vars(module).items():
        if name.startswith("_") or isinstance(value, types.ModuleType):
            continue
        if getattr(value, "__module__", module.__name__) == module.__name__:
            found[name] = value
    return found


def check_parameters(node, value, where, method):
    try:
        real = [p.name for p in inspect.signature(value).parameters.values()]
    except (TypeError, ValueError):
        return  # a slot of the C type, which tells nothing
    if method and real[:1] == ["self"]:
        real = real[1:]
    assert parameters(node, method) == real, where


def test_every_module_of_the_core_has_a_stub():
    sources = {p.stem for p in CORE.glob("*.pyx")}
    assert sources <= {p.stem for p in STUBS} and STUBS


@pytest.mark.parametrize("stub", STUBS, ids=lambda p: p.stem)
def test_stub_says_what_the_module_holds(stub):
    module = importlib.import_module(f"strata._core.{stub.stem}")
    said, held = members(ast.parse(stub.read_text()).body), runtime(module)
    types_only = {n for n, v in said.items() if isinstance(v, ast.AnnAssign)}
    assert {n for n in said if n not in types_only} <= set(held)
    assert types_only <= set(vars(module))
    assert {n for n, v in held.items() if callable(v)} <= set(said)
    for name, node in said.items():
        if isinstance(node, ast.FunctionDef):
            check_parameters(node, held[name], name, method=False)
        elif isinstance(node, ast.ClassDef):
            inner = members(node.body)
            real = {n for n in vars(held[name]) if not n.startswith("_")}
            assert set(inner) == real, name
            for member, definition in inner.items():
                if isinstance(definition, ast.FunctionDef) and callable(getattr(held[name], member)):
                    where = f"{name}.{member}"
                    check_parameters(definition, getattr(held[name], member), where, method=True)
