"""Prints what an extra of pyproject.toml asks for, so that it is installed without a rebuild.

Usage: python tools/extra.py NAME
"""

import sys
from importlib.metadata import requires


def main(name: str) -> int:
    found = [r.split(";")[0].strip() for r in requires("strata") or [] if f'extra == "{name}"' in r]
    if not found:
        print(f"extra: strata has no extra {name}", file=sys.stderr)
        return 1
    print(*found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
