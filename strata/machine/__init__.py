"""Machines whose time is predicted: CloudMatrix384 and others, as TOML files."""

from strata.machine.constants import GRADES
from strata.machine.description import Machine, load, names, parse
from strata.machine.text import describe, dumps

__all__ = ["GRADES", "Machine", "describe", "dumps", "load", "names", "parse"]
