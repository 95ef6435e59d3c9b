"""Constants in TOML files: each { value, grade, source }, checked against a dataclass whose fields say their range."""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Mapping
from dataclasses import Field
from pathlib import Path
from typing import Any

from strata.errors import InvalidArgument

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GRADES = {
    "M": "measured on the machine, primary source",
    "M2": "measured, read through a secondary source",
    "S": "specification",
    "D": "derived",
    "A": "assumed",
    "F": "fitted to published results",
}
KINDS: dict[str, type] = {"int": int, "float": float, "bool": bool}
WORDS = {int: "a whole number", float: "a number", bool: "true or false,"}


def shown(value: Any) -> str:
    """A value from a file, in few words: it may be of thousands of digits, or nested in itself."""
    if type(value) is int and value.bit_length() > 10000:  # Python does not write such
        return f"a number of {value.bit_length()} bits"
    return reprlib.repr(value)


def checked(where: str, name: str, known: Field[Any], value: Any) -> Any:
    """A constant of its field's type, within its range."""
    kind = KINDS[str(known.type)]
    if kind is float and type(value) is int and abs(value) < 1 << 64:
        value = float(value)
    least, most = known.metadata["least"], known.metadata["most"]
    if type(value) is not kind or (kind is float and not math.isfinite(value)) or not least <= value <= most:
        wanted = f"{WORDS[kind]} from {least:g} to {most:g} is expected"
        raise InvalidArgument(f"{where}: {name} is {shown(value)}: {wanted}")
    return value


def values(where: str, prefix: str, known: Mapping[str, Field[Any]], table: dict[str, Any],
           sources: dict[str, tuple[str, str]]) -> dict[str, Any]:  # fmt: skip
    """Of a table whose names are all known: what each is.  ``sources`` gets (grade, source) by ``prefix`` and name."""
    found = {}
    for key, entry in table.items():
        name = prefix + key
        if not isinstance(entry, dict) or set(entry) != {"value", "grade", "source"}:
            form = "{ value = ..., grade = ..., source = ... }"
            raise InvalidArgument(f"{where}: {name} is {shown(entry)}, not {form}")
        grade, source = entry["grade"], entry["source"]
        if not isinstance(grade, str) or grade not in GRADES or not isinstance(source, str) or not source.strip():
            raise InvalidArgument(f"{where}: {name} has grade {shown(grade)} and source {shown(source)}: a grade of "
                                  f"{', '.join(GRADES)} and a text are expected")  # fmt: skip
        found[key] = checked(where, name, known[key], entry["value"])
        sources[name] = grade, source
    return found


def parsed(text: str, where: str) -> dict[str, Any]:
    """TOML; InvalidArgument if it is none."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: a number of thousands of digits, too
        raise InvalidArgument(f"{where} is no TOML: {error}") from None


def text_of(what: str, name: str) -> str:
    """Of a file; ``what`` it is, for the InvalidArgument if it cannot be read."""
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{what} {name} cannot be read: {error}") from None
