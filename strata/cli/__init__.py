"""The command ``strata``: subcommands, each a module that is imported when it is asked for."""

from strata.cli.main import main

__all__ = ["main"]
