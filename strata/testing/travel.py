"""How functions reach the dies: by name if they have one there, else by value.

A die is a fork of the calling process, so both run one interpreter and code
may travel as it is.  What was imported before the pool was started is there already.
"""

from __future__ import annotations

import dis
import importlib
import io
import marshal
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

__all__ = ["pack"]

_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")


def pack(value: Any) -> bytes:
    """Pickles ``value``; unpickled in a die by pickle.loads.

    Functions that can be found under their module and name go by that.  Others
    (lambdas, functions inside functions, those of ``__main__``) go by value: their code, what
    they close over and, for ``__main__``, the global names they use.  Classes always go by name.
    """
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


class _Empty:
    """Stands for the contents of a cell that has none."""


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType) and not _has_name(obj):
            return _by_value(obj)
        if isinstance(obj, types.ModuleType):
            return importlib.import_module, (obj.__name__,)
        return NotImplemented


def _has_name(function: Callable[..., Any]) -> bool:
    """Whether a die finds this very function by module and name."""
    if function.__module__ == "__main__":
        return False  # it may be younger than the dies
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def _by_value(function: types.FunctionType) -> Any:
    code = function.__code__
    used = {}
    if function.__module__ == "__main__":
        used = {n: function.__globals__[n] for n in _globals(code) if n in function.__globals__}
    state = (
        [_contents(cell) for cell in function.__closure__ or ()],
        function.__defaults__,
        function.__kwdefaults__,
        function.__dict__,
        used,
    )
    made = (marshal.dumps(code), function.__module__, function.__name__, function.__qualname__)
    return _skeleton, made, state, None, None, _fill


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _Empty


@lru_cache(maxsize=256)
def _globals(code: types.CodeType) -> tuple[str, ...]:
    """Global names that code uses, its inner functions included."""

    def names(code: types.CodeType) -> Iterator[str]:
        for instruction in dis.get_instructions(code):
            if instruction.opname in _GLOBAL:
                yield instruction.argval
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield from names(constant)

    return tuple(sorted(set(names(code))))


# --- in a die


def _skeleton(code: bytes, module: str, name: str, qualname: str) -> types.FunctionType:
    """A function without contents: it may be among its own."""
    body = marshal.loads(code)
    space = importlib.import_module(module).__dict__
    cells = tuple(types.CellType() for _ in body.co_freevars)
    function = types.FunctionType(body, space, name, None, cells)
    function.__qualname__ = qualname
    function.__module__ = module
    return function


def _fill(function: types.FunctionType, state: tuple[Any, ...]) -> None:
    contents, function.__defaults__, function.__kwdefaults__, attributes, used = state
    function.__dict__.update(attributes)
    function.__globals__.update(used)
    for cell, value in zip(function.__closure__ or (), contents, strict=True):
        if value is not _Empty:
            cell.cell_contents = value
