"""Machines whose time is predicted: CloudMatrix384 and others, as TOML files."""

from strata.machine.description import GRADES, Machine, load, names, parse

__all__ = ["GRADES", "Machine", "load", "names", "parse"]
