"""Types of arguments that several subcommands take."""

from __future__ import annotations

import argparse

from strata.config import parse_size


def size(text: str) -> int:
    """Bytes in "1M" and its like."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
