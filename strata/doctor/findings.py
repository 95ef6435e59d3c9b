"""What a check says."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SEVERITIES", "Finding", "error", "note", "ok", "warning"]

SEVERITIES = ("ok", "note", "warning", "error")


class Finding(NamedTuple):
    """``severity``: ok; note, good to know; warning, slower or smaller than it could be; error, jobs would fail.
    ``seen``: what was looked at and how it is; ``means``: why that matters; ``cure``: a command, or what to change."""

    severity: str
    check: str
    seen: str
    means: str = ""
    cure: str = ""


def ok(check: str, seen: str) -> Finding:
    """All is well."""
    return Finding("ok", check, seen)


def note(check: str, seen: str, means: str, cure: str = "") -> Finding:
    """Good to know."""
    return Finding("note", check, seen, means, cure)


def warning(check: str, seen: str, means: str, cure: str) -> Finding:
    """Works, but slower or smaller than it could be."""
    return Finding("warning", check, seen, means, cure)


def error(check: str, seen: str, means: str, cure: str) -> Finding:
    """Jobs would fail."""
    return Finding("error", check, seen, means, cure)
