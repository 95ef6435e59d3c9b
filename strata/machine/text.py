"""Machines as text: a table for people, and TOML."""

from __future__ import annotations

import json
from typing import Any

from strata.machine.constants import GRADES
from strata.machine.description import Machine


def describe(machine: Machine, *, markdown: bool = False) -> str:
    """The constants of a machine, a line each: name, value, grade, source; and what the grades that occur mean."""
    rows = [(name, _shown(value), *machine.sources.get(name, ("", "by default")))
            for name, value in machine.constants().items()]  # fmt: skip
    grades = [f"{grade}: {meaning}" for grade, meaning in GRADES.items() if any(row[2] == grade for row in rows)]
    if markdown:
        lines = ["| constant | value | grade | source |", "|---|---|---|---|"]
        lines += [f"| `{name}` | {value} | {grade} | {_cell(source)} |" for name, value, grade, source in rows]
        return "\n".join(lines)
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [f"{machine.name}: {machine.title}, {machine.topology.dies} dies", ""]
    for name, value, grade, source in rows:
        lines.append(f"{name:{widths[0]}}  {value:>{widths[1]}}  {grade:{widths[2]}}  {source}")
    return "\n".join([*lines, "", *grades])


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:_}" if isinstance(value, int) else repr(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def dumps(machine: Machine) -> str:
    """TOML that ``parse`` reads as the same machine, with the same sources."""
    lines = [f"name = {_text(machine.name)}", f"title = {_text(machine.title)}"]
    section = ""
    for name, value in machine.constants().items():
        before, _, key = name.rpartition(".")
        if name == "topology.flat" and name not in machine.sources and not value:
            continue  # it may be left out, and was
        if before != section:
            lines += ["", f"[{before}]"]
            section = before
        grade, source = machine.sources.get(name, ("A", "not told"))
        lines.append(f"{key} = {{ value = {_shown(value)}, grade = {_text(grade)}, source = {_text(source)} }}")
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """As a basic string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
