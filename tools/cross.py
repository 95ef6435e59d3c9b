"""Sees to the tools that tools/ctest.py --mode aarch64 --emulate needs: a cross compiler, and an emulator.

Where they are missing, and this is root on a machine with apt-get, they are installed; else, and if that fails, nothing
is: the exit status is 0 all the same, and what was done is said.  ctest then skips, and says so.

Usage: python tools/cross.py [--timeout SECONDS]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys

from ctest import CROSS, EMULATOR

PACKAGES = ("gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user")


def missing() -> list[str]:
    return [name for name in (CROSS, EMULATOR) if shutil.which(name) is None]


def install(timeout: float) -> str:
    """Tries to install the packages; what became of it, in words."""
    if os.geteuid() != 0:
        return "not root, so nothing was installed"
    apt = shutil.which("apt-get")
    if apt is None:
        return "no apt-get here, so nothing was installed"
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for line in ([apt, "-qq", "update"], [apt, "-qq", "-y", "--no-install-recommends", "install", *PACKAGES]):
        try:
            done = subprocess.run(line, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, errors="replace", timeout=timeout)  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"{' '.join(line)}: no end after {timeout:.0f} s"
        if done.returncode and "install" in line:
            last = (done.stdout.strip().splitlines() or ["no output"])[-1]
            return f"{' '.join(line)}: status {done.returncode}: {last}"
    return f"installed {', '.join(PACKAGES)}"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds that each call of apt-get may take")
    args = parser.parse_args(argv)
    wanted = missing()
    if not wanted:
        print(f"cross: {CROSS} and {EMULATOR} are here")
        return 0
    print(f"cross: {' and '.join(wanted)} missing: {install(args.timeout)}")
    for name in missing():
        what = "NOTHING will be compiled for aarch64" if name == CROSS else "aarch64 programs will NOT be run"
        print(f"cross: still no {name}: {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
